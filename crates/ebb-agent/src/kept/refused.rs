//! Which of Ebb's own system calls a seccomp filter refuses.
//!
//! A filter belongs to the thread, so a filter of the program's also applies to Ebb. If it refused what Ebb cannot do
//! without, pages that are out would be lost. So:
//!
//! * Before the program loads a filter, Ebb looks at it ([`by_load`]). A small process then goes without Ebb, for good.
//!   A managed process cannot go back, and ends ([`before_managed_load`]).
//! * Ebb cannot look at a filter that was there before the program. Before a process becomes managed, Ebb tries the
//!   calls ([`by_inherited`]). It tries them in a separate process, because a refusal may kill.
//!
//! Even if the kernel knows the calls, whatever runs the program may not: programs under valgrind are not managed.
//!
//! Ebb can do without a few further calls, and asks [`may_make`] before each.

use crate::base::seccomp::{ARCH, Action, Data, INSTRUCTIONS_MAX, Instruction, run};
use crate::base::text::Line;
use crate::base::{calls, user};
use crate::kept::environment;
use crate::threads::entry;
use core::ffi::CStr;
use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicU32, AtomicU64};
use ebb::uapi::{self, uffd};
use linux_raw_sys::{errno as e, general as g, ioctl};

/// A call that a managed process cannot do without, with arguments that have no effect.
struct Vital {
    name: &'static str,
    nr: u32,
    args: [u64; 6],
    /// What the kernel answers to these arguments; 1 stands for any number above zero.
    answer: i64,
}

const EFAULT: i64 = -(e::EFAULT as i64);
const EBADF: i64 = -(e::EBADF as i64);
const EINVAL: i64 = -(e::EINVAL as i64);
const NO_FD: u64 = u64::MAX;
const PR_SET_SYSCALL_USER_DISPATCH: u64 = 59;
const PR_SET_SECCOMP: u32 = 22;
const SECCOMP_SET_MODE_STRICT: u32 = 0;
const PR_SET_NAME: u64 = 15;

const fn vital(name: &'static str, nr: u32, args: [u64; 6], answer: i64) -> Vital {
    Vital { name, nr, args, answer }
}

const NR_VITAL: usize = 15;
static VITAL: [Vital; NR_VITAL] = [
    vital("madvise", g::__NR_madvise, [0, 0, g::MADV_DONTNEED as u64, 0, 0, 0], 0),
    vital("mprotect", g::__NR_mprotect, [0; 6], 0),
    vital("mincore", g::__NR_mincore, [0; 6], 0),
    vital("futex", g::__NR_futex, [0, (g::FUTEX_WAKE | g::FUTEX_PRIVATE_FLAG) as u64, 0, 0, 0, 0], 0),
    vital("futex", g::__NR_futex, [1, g::FUTEX_WAKE as u64, 0, 0, 0, 0], EINVAL),
    vital("rt_sigprocmask", g::__NR_rt_sigprocmask, [g::SIG_SETMASK as u64, 0, 0, 8, 0, 0], 0),
    vital("rt_sigaction", g::__NR_rt_sigaction, [g::SIGHUP as u64, 0, 0, 8, 0, 0], 0),
    vital("sigaltstack", g::__NR_sigaltstack, [0; 6], 0),
    vital("rt_tgsigqueueinfo", g::__NR_rt_tgsigqueueinfo, [0; 6], EFAULT),
    vital("prctl", g::__NR_prctl, [PR_SET_SYSCALL_USER_DISPATCH, 0, 0, 0, 0, 0], 0),
    vital("getpid", g::__NR_getpid, [0; 6], 1),
    vital("gettid", g::__NR_gettid, [0; 6], 1),
    vital("fcntl", g::__NR_fcntl, [NO_FD, g::F_GETFD as u64, 0, 0, 0, 0], EBADF),
    vital("pread64", g::__NR_pread64, [NO_FD, 0, 0, 0, 0, 0], EBADF),
    vital("pwrite64", g::__NR_pwrite64, [NO_FD, 0, 0, 0, 0, 0], EBADF),
];

/// Calls that a managed process can replace or do without: they must not kill.
static MANAGED_TOO: [(&str, u32); 27] = [
    ("mmap", g::__NR_mmap),
    ("munmap", g::__NR_munmap),
    ("process_madvise", g::__NR_process_madvise),
    ("futex_waitv", g::__NR_futex_waitv),
    ("sched_yield", g::__NR_sched_yield),
    ("clock_gettime", g::__NR_clock_gettime),
    ("getrusage", g::__NR_getrusage),
    ("fallocate", g::__NR_fallocate),
    ("fadvise64", g::__NR_fadvise64),
    ("sync_file_range", g::__NR_sync_file_range),
    ("cachestat", g::__NR_cachestat),
    ("kill", g::__NR_kill),
    ("msync", g::__NR_msync),
    ("close", g::__NR_close),
    ("rt_sigtimedwait", g::__NR_rt_sigtimedwait),
    ("rt_sigreturn", g::__NR_rt_sigreturn),
    // In the child of a fork, and after an exec.
    ("userfaultfd", g::__NR_userfaultfd),
    ("open", g::__NR_open),
    ("openat", g::__NR_openat),
    ("stat", g::__NR_stat),
    ("fstat", g::__NR_fstat),
    ("faccessat2", g::__NR_faccessat2),
    ("ftruncate", g::__NR_ftruncate),
    ("dup3", g::__NR_dup3),
    ("getrandom", g::__NR_getrandom),
    ("get_robust_list", g::__NR_get_robust_list),
    ("sched_getaffinity", g::__NR_sched_getaffinity),
];

/// Calls that Ebb makes for transfers of the program's, for threads of its own, for the control socket, for its own
/// transfers in flight, for files that tell the size of RAM, and for signals to the own process. It does not make those that would kill.
static OPTIONAL: [Optional; NR_OPTIONAL] = [
    (g::__NR_newfstatat, [0, 0]),
    (g::__NR_getsockopt, [0, 0]),
    (g::__NR_ppoll, [0, 0]),
    (g::__NR_sendto, [0, 0]),
    (g::__NR_sendmsg, [0, 0]),
    (g::__NR_recvfrom, [0, 0]),
    (g::__NR_recvmsg, [0, 0]),
    (g::__NR_preadv2, [0, 0]),
    (g::__NR_fcntl, [0, g::F_GETFL as u64]),
    (g::__NR_ioctl, [0, ioctl::FIONREAD as u64]),
    (g::__NR_ioctl, [0, ioctl::TCGETS as u64]),
    (g::__NR_clone, [uapi::thread::CLONE_FLAGS, 0]),
    (g::__NR_tgkill, [0, 0]),
    (g::__NR_prctl, [PR_SET_NAME, 0]),
    (g::__NR_exit, [0, 0]),
    (g::__NR_socket, [0, 0]),
    (g::__NR_fchmod, [0, 0]),
    (g::__NR_bind, [0, 0]),
    (g::__NR_listen, [0, 0]),
    (g::__NR_openat, [0, 0]),
    (g::__NR_unlinkat, [0, 0]),
    (g::__NR_accept4, [0, 0]),
    (g::__NR_getsockname, [0, 0]),
    (g::__NR_shutdown, [0, 0]),
    (g::__NR_setsockopt, [0, 0]),
    (g::__NR_geteuid, [0, 0]),
    (g::__NR_io_setup, [0, 0]),
    (g::__NR_io_submit, [0, 0]),
    (g::__NR_io_getevents, [0, 0]),
    (g::__NR_rt_sigqueueinfo, [0, 0]),
    (g::__NR_fstatfs, [0, 0]),
    (g::__NR_readlink, [0, 0]),
    (g::__NR_lseek, [0, 0]),
    (g::__NR_rt_sigpending, [0, 0]),
    (g::__NR_fcntl, [0, g::F_DUPFD_CLOEXEC as u64]),
];
const NR_OPTIONAL: usize = 35;
/// Number and first two arguments.
type Optional = (u32, [u64; 2]);
/// The calls for threads. A filter must let them through, not only not kill: a thread that cannot end stays for ever.
const FOR_THREADS: core::ops::Range<usize> = 11..15;
/// The calls for the control socket alone.
const FOR_CONTROL: core::ops::Range<usize> = 15..26;
/// The calls for transfers in flight.
const FOR_FLIGHTS: core::ops::Range<usize> = 26..29;
/// The calls by which files that tell the size of RAM are found and read.
const FOR_SHOWN: core::ops::Range<usize> = 30..NR_OPTIONAL;
/// A bit for each optional call for which a filter kills: an inherited filter, or one of this process's.
static DEADLY_INHERITED: AtomicU64 = AtomicU64::new(0);
static DEADLY: AtomicU64 = AtomicU64::new(0);

/// Calls of a small process, which can take any answer.
static DORMANT_TOO: [u32; 18] = [
    g::__NR_rt_sigprocmask,
    g::__NR_rt_sigaction,
    g::__NR_rt_sigreturn,
    g::__NR_open,
    g::__NR_openat,
    g::__NR_read,
    g::__NR_pread64,
    g::__NR_write,
    g::__NR_close,
    g::__NR_fcntl,
    g::__NR_dup3,
    g::__NR_stat,
    g::__NR_fstat,
    g::__NR_mmap,
    g::__NR_munmap,
    g::__NR_brk,
    g::__NR_getpid,
    g::__NR_kcmp,
];

/// A descriptor near the number of Ebb's userfaultfd, because a filter may look at the number.
const FD: u64 = 984;

/// What a filter refuses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Refusal {
    /// The first call that is refused.
    pub name: &'static str,
    /// The filter would kill even a small process for what Ebb does there.
    pub is_deadly: bool,
}

/// How much of Ebb there is in the process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Life {
    Dormant,
    Managed,
    /// Managed, and the device makes its userfaultfds: it keeps that open.
    ByDevice,
}

/// What `program` refuses. None if it refuses nothing, or is invalid, so that the kernel would not load it.
fn by_program(program: &[Instruction], life: Life) -> Option<Refusal> {
    let action = |nr: u32, args: [u64; 6]| {
        run(program, &Data { nr, arch: ARCH, ip: entry::stub(), args }).map_or(Action::Made, Action::of)
    };
    let is_deadly = |nr: u32| action(nr, [0; 6]) == Action::Deadly;
    let is_made = |nr: u32, args: [u64; 6]| action(nr, args) == Action::Made;
    let name = if !uffd::REQUESTS.iter().all(|&request| is_made(g::__NR_ioctl, [FD, request, 0, 0, 0, 0])) {
        "ioctl"
    } else if life == Life::Dormant && !is_made(g::__NR_userfaultfd, [uffd::FLAGS, 0, 0, 0, 0, 0]) {
        "userfaultfd"
    } else if let Some(call) = VITAL.iter().find(|call| !is_made(call.nr, call.args)) {
        call.name
    } else if let Some((name, _)) =
        MANAGED_TOO.iter().find(|(_, nr)| is_deadly(*nr) && !(life == Life::ByDevice && *nr == g::__NR_userfaultfd))
    {
        name
    } else if life == Life::ByDevice && action(g::__NR_ioctl, [FD, uffd::NEW, uffd::FLAGS, 0, 0, 0]) == Action::Deadly {
        "ioctl"
    } else {
        return None;
    };
    Some(Refusal { name, is_deadly: life == Life::Dormant && DORMANT_TOO.iter().any(|&nr| is_deadly(nr)) })
}

/// A bit for each optional call that cannot be made under `program`: the filter kills for it, or for a call of
/// [`FOR_THREADS`], refuses it.
fn optional_by_program(program: &[Instruction]) -> u64 {
    let is_bad = |at: usize, (nr, [first, second]): Optional| {
        let data = Data { nr, arch: ARCH, ip: entry::stub(), args: [first, second, 0, 0, 0, 0] };
        let action = run(program, &data).map(Action::of);
        action == Some(Action::Deadly) || FOR_THREADS.contains(&at) && action == Some(Action::Answered)
    };
    OPTIONAL.into_iter().enumerate().filter(|&(at, call)| is_bad(at, call)).fold(0, |bits, (at, _)| bits | 1 << at)
}

/// True if an optional call may be made: no known filter kills for it, in any thread.
pub fn may_make(nr: u32) -> bool {
    let deadly = DEADLY.load(Relaxed) | DEADLY_INHERITED.load(Relaxed);
    deadly == 0 || !(0..).zip(OPTIONAL).any(|(at, (optional, _))| optional == nr && deadly & 1 << at != 0)
}

fn bits_of(range: core::ops::Range<usize>) -> u64 {
    range.fold(0, |bits, at| bits | 1 << at)
}

fn may_make_all(range: core::ops::Range<usize>) -> bool {
    let deadly = DEADLY.load(Relaxed) | DEADLY_INHERITED.load(Relaxed);
    deadly == 0 || range.into_iter().all(|at| deadly & 1 << at == 0)
}

/// True if Ebb can have threads of its own, and end them.
pub fn may_have_threads() -> bool {
    may_make_all(FOR_THREADS)
}

/// True if transfers of Ebb's can be in flight.
pub fn may_fly() -> bool {
    may_make_all(FOR_FLIGHTS)
}

/// True if files that tell the size of RAM can be found and read.
pub fn may_show() -> bool {
    may_make_all(FOR_SHOWN)
}

/// True if Ebb can have a control socket.
pub fn may_answer() -> bool {
    may_make_all(FOR_CONTROL)
        && [g::__NR_getsockopt, g::__NR_ppoll, g::__NR_sendto, g::__NR_recvfrom].into_iter().all(may_make)
}

/// True if a call loads a filter or asks for the strict mode.
#[inline]
pub fn is_load(nr: u32, args: &[u64; 6]) -> bool {
    what(nr, args).is_some()
}

/// What a call asks for: the strict mode, or the filter (`struct sock_fprog`) at an address.
fn what(nr: u32, a: &[u64; 6]) -> Option<Option<u64>> {
    let (mode, filter) = match nr {
        // SECCOMP_MODE_STRICT is 1, SECCOMP_MODE_FILTER is 2; as operations of seccomp they are 0 and 1.
        g::__NR_prctl if a[0] as u32 == PR_SET_SECCOMP => (a[1], a[2]),
        // What the kernel refuses in any case changes nothing: libseccomp asks so which operations there are.
        g::__NR_seccomp if a[0] as u32 == SECCOMP_SET_MODE_STRICT && (a[1] as u32 != 0 || a[2] != 0) => return None,
        g::__NR_seccomp => (a[0] as u32 as u64 + 1, a[2]),
        _ => return None,
    };
    match mode {
        1 => Some(None),
        2 => Some(Some(filter)),
        _ => None,
    }
}

/// What the filter that a call is about to load refuses. None if the kernel will not load it. Reads the program's
/// memory.
pub fn by_load(nr: u32, args: &[u64; 6], life: Life) -> Option<Refusal> {
    let Some(filter) = what(nr, args)? else {
        return Some(Refusal { name: "all but read and write", is_deadly: true });
    };
    if !may_load() {
        return None;
    }
    let [len, at] = user::read::<[u64; 2]>(filter).ok()?;
    let len = len as u16 as usize;
    if len == 0 || len > INSTRUCTIONS_MAX {
        return None;
    }
    let bytes = len * size_of::<u64>();
    let memory = uapi::map_for_now(bytes).ok()?;
    // SAFETY: fresh memory of this length that only this function knows.
    let words = unsafe { core::slice::from_raw_parts_mut(memory, bytes) };
    let mut refusal = None;
    if user::read_bytes(at, words).is_ok() {
        let program = memory.cast::<Instruction>();
        for i in 0..len {
            // SAFETY: within the memory, which is aligned to a page; an instruction is as large as a word.
            unsafe { program.add(i).write(Instruction::of(program.add(i).cast::<u64>().read())) };
        }
        // SAFETY: all of them were written.
        let program = unsafe { core::slice::from_raw_parts(program, len) };
        refusal = by_program(program, life);
        // The kernel may yet refuse to load the filter: then Ebb takes the longer way for nothing.
        DEADLY.fetch_or(optional_by_program(program), Relaxed);
    }
    // SAFETY: mapped above, and no longer referred to.
    let _ = unsafe { uapi::munmap(memory as usize, bytes) };
    refusal
}

const _: () = assert!(size_of::<Instruction>() == size_of::<u64>());

/// True if the kernel lets this process load a filter.
fn may_load() -> bool {
    const PR_GET_NO_NEW_PRIVS: u64 = 39;
    const VERSION: u32 = 0x2008_0522;
    const CAP_SYS_ADMIN: u32 = 21;
    let header = [VERSION, 0];
    // Effective, permitted, inheritable; first the lower halves, then the upper.
    let mut sets = [0u32; 6];
    // SAFETY: asks only; the kernel reads the header and writes the sets.
    unsafe {
        calls::raw_syscall(g::__NR_prctl as u64, &[PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0, 0]) == 1
            || calls::raw_syscall(
                g::__NR_capget as u64,
                &[header.as_ptr() as u64, sets.as_mut_ptr() as u64, 0, 0, 0, 0],
            ) == 0
                && sets[0] & 1 << CAP_SYS_ADMIN != 0
    }
}

/// Call in a managed process before it loads a filter. Ends the process if Ebb could not bring memory back under it.
pub fn before_managed_load(space: &ebb::Space, nr: u32, args: &[u64; 6]) {
    let life = if space.has_device() { Life::ByDevice } else { Life::Managed };
    if let Some(refusal) = by_load(nr, args, life) {
        let mut line = Line::new();
        line.str("ebb: seccomp: the program asks for a filter that refuses ").str(refusal.name);
        line.str("; Ebb could then not bring the program's memory back, so the process ends before any is lost: ");
        line.str("run the program without Ebb, or change its filter to allow this\n").write();
        uapi::exit_group(125);
    }
}

/// What [`by_inherited`] returns if userfaultfd is unknown here although `ebb` could use it.
const UNKNOWN: &str = "userfaultfd, which is not known here";
/// Likewise if the process may not have one: `ebb` took it from the device, as another user.
const FORBIDDEN: &str = "userfaultfd, which this user may not have";

/// Says that this process goes without Ebb, unless Ebb is to be quiet.
pub fn say(name: &str) {
    if environment::kept_vars().any(|var| var == b"EBB_VERBOSE=0") {
        return;
    }
    let mut line = Line::new();
    if name == UNKNOWN {
        line.str(
            "ebb: userfaultfd: valgrind, or whatever else runs the program, does not know this system call; process ",
        );
        line.num(uapi::getpid() as u64).str(" is not managed and not limited\n").write();
        return;
    }
    if name == FORBIDDEN {
        line.str(
            "ebb: userfaultfd: the system call is refused here, and this user may not open /dev/userfaultfd; process ",
        );
        line.num(uapi::getpid() as u64).str(" is not managed and not limited\n").write();
        return;
    }
    line.str("ebb: seccomp: one of the program's filters refuses ").str(name);
    line.str(", which Ebb needs; process ").num(uapi::getpid() as u64);
    line.str(" is not managed and not limited\n").write();
}

/// The call under trial in [`try_all`], counted from 1; [`DONE`] once all were made.
static REACHED: AtomicU32 = AtomicU32::new(0);
const DONE: u32 = u32::MAX;

/// What the filters refuse that this process inherited from a program of the tree. `holder` is the process of `ebb`.
/// Filters that `ebb` itself is under apply to all, and are no reason to go without a limit. Every signal is blocked.
pub fn by_inherited(holder: i32) -> Option<&'static str> {
    const PR_GET_SECCOMP: u64 = 21;
    // SAFETY: asks only.
    let has_filters = unsafe { calls::raw_syscall(g::__NR_prctl as u64, &[PR_GET_SECCOMP, 0, 0, 0, 0, 0]) } != 0;
    if !has_filters {
        return if holder > 0 { unknown() } else { None };
    }
    // Of the calls that `ebb` has made before, it is known that its own filters let them through. It makes none of these.
    DEADLY_INHERITED.fetch_or(bits_of(FOR_FLIGHTS), Relaxed);
    match has_more_filters(holder) {
        Some(true) => {}
        Some(false) => {
            let _ = apart(try_flights_apart);
            return unknown();
        }
        None => {
            let _ = apart(try_flights_apart);
            return unknown();
        }
    }
    REACHED.store(0, Relaxed);
    DEADLY_INHERITED.store(bits_of(0..NR_OPTIONAL), Relaxed);
    // If no other process can be made, try the calls here: if one kills, it kills this process.
    apart(try_apart).unwrap_or_else(|_| try_all());
    match REACHED.load(Relaxed) {
        DONE => None,
        0 => Some("userfaultfd"),
        at => Some(VITAL.get(at as usize - 1).map_or("ioctl", |call| call.name)),
    }
}

/// Whether this process has filters that `holder` does not have; none if that cannot be told.
fn has_more_filters(holder: i32) -> Option<bool> {
    let mut path = Line::new();
    path.str("/proc/").num(u64::try_from(holder).ok().filter(|holder| *holder > 0)?).str("/status\0");
    let of_holder = CStr::from_bytes_with_nul(path.as_bytes()).ok().and_then(nr_filters)?;
    Some(nr_filters(c"/proc/self/status")? > of_holder)
}

/// Runs `tries` in another process, which shares the memory, and waits for it.
fn apart(tries: extern "C" fn(usize) -> !) -> Result<(), uapi::Errno> {
    let stack = uapi::map_for_now(uapi::thread::STACK_BYTES)?;
    // SAFETY: fresh memory that outlives the new process, for which this process waits.
    let made = unsafe { uapi::thread::run_apart(stack, tries, 0) };
    if let Ok(pid) = made {
        // SAFETY: the kernel writes nothing.
        unsafe { calls::raw_syscall(g::__NR_wait4 as u64, &[pid as u64, 0, g::__WALL as u64, 0, 0, 0]) };
    }
    // SAFETY: nobody uses the stack any more.
    let _ = unsafe { uapi::munmap(stack as usize, uapi::thread::STACK_BYTES) };
    made.map(|_| ())
}

/// Checks whether userfaultfd cannot be had although no filter of the program's refuses anything. `ebb` has had one, or it would not
/// have started the program.
fn unknown() -> Option<&'static str> {
    match uffd::Uffd::open() {
        Ok(uffd) => {
            uffd.close();
            None
        }
        Err(uapi::Errno::NOSYS) => Some(UNKNOWN),
        Err(uapi::Errno::PERM | uapi::Errno::ACCES) => Some(FORBIDDEN),
        Err(_) => None,
    }
}

extern "C" fn try_apart(_: usize) -> ! {
    try_all();
    try_optional(0..NR_OPTIONAL);
    uapi::thread::exit()
}

extern "C" fn try_flights_apart(_: usize) -> ! {
    try_optional(FOR_FLIGHTS);
    uapi::thread::exit()
}

/// Tries which of these optional calls kill. If one kills, it and all after it keep their bits.
fn try_optional(range: core::ops::Range<usize>) {
    const NONE: u64 = u64::MAX;
    for (at, (nr, arguments)) in OPTIONAL.into_iter().enumerate().filter(|(at, _)| range.contains(at)) {
        // A call that would make a thread gets arguments that make none.
        let first = if nr == g::__NR_prctl { PR_SET_NAME } else { NONE };
        let second = if arguments[1] == 0 { NONE } else { arguments[1] };
        // This call would end the process that tries.
        let is_tried = nr != g::__NR_exit;
        // SAFETY: these calls get no descriptor and invalid addresses, so they have no effect; none waits.
        let answer =
            is_tried.then(|| unsafe { calls::raw_syscall(nr as u64, &[first, second, NONE, NONE, NONE, NONE]) });
        let is_made = !FOR_THREADS.contains(&at) || [None, Some(EINVAL), Some(EFAULT)].contains(&answer);
        if is_made {
            DEADLY_INHERITED.fetch_and(!(1 << at), Relaxed);
        }
    }
}

/// Makes each vital call, and stops at the first that is refused.
fn try_all() {
    if let Ok(uffd) = uffd::Uffd::open() {
        try_with(&uffd);
        uffd.close();
    }
}

fn try_with(uffd: &uffd::Uffd) {
    let is_answered = |nr: u32, args: &[u64; 6], answers: &[i64]| {
        // SAFETY: with these arguments the calls have no effect.
        let answer = unsafe { calls::raw_syscall(nr as u64, args) };
        answers.contains(&answer.min(1))
    };
    for (at, call) in (1..).zip(&VITAL) {
        REACHED.store(at, Relaxed);
        if !is_answered(call.nr, &call.args, &[call.answer]) {
            return;
        }
    }
    REACHED.store(NR_VITAL as u32 + 1, Relaxed);
    // An older kernel does not know all requests: EINVAL is fine, too.
    let is_known =
        |request: u64| is_answered(g::__NR_ioctl, &[uffd.fd() as u64, request, 0, 0, 0, 0], &[EFAULT, EINVAL]);
    if uffd::REQUESTS.into_iter().all(is_known) {
        REACHED.store(DONE, Relaxed);
    }
}

/// How many filters a process is under, from its `status` in `/proc`.
fn nr_filters(path: &CStr) -> Option<u64> {
    const KEY: &[u8] = b"Seccomp_filters:";
    let mut text = [0u8; 4096];
    let fd = uapi::open_read(path).ok()?;
    let n = uapi::read(fd, &mut text);
    uapi::close(fd);
    let line = text[..n.ok()?].split(|&c| c == b'\n').find_map(|line| line.strip_prefix(KEY))?;
    core::str::from_utf8(line).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALLOW: u32 = 0x7fff_0000;
    const EPERM: u32 = 0x0005_0001;

    fn op(code: u16, k: u32) -> Instruction {
        Instruction { code, jt: 0, jf: 0, k }
    }

    /// A filter that answers one call with `value` and all others with `rest`.
    fn but(nr: u32, value: u32, rest: u32) -> [Instruction; 4] {
        [op(0x20, 0), Instruction { code: 0x15, jt: 0, jf: 1, k: nr }, op(6, value), op(6, rest)]
    }

    fn name(program: &[Instruction], life: Life) -> Option<&'static str> {
        by_program(program, life).map(|refusal| refusal.name)
    }

    #[test]
    fn a_filter_that_lets_ebb_live_is_no_matter() {
        for life in [Life::Dormant, Life::Managed] {
            assert_eq!(by_program(&[op(6, ALLOW)], life), None);
            assert_eq!(by_program(&but(g::__NR_getppid, 0x0003_0000, ALLOW), life), None);
            assert_eq!(by_program(&but(g::__NR_futex_waitv, EPERM, ALLOW), life), None);
        }
    }

    #[test]
    fn what_a_filter_refuses_is_named() {
        let ioctl = but(g::__NR_ioctl, EPERM, ALLOW);
        assert_eq!(by_program(&ioctl, Life::Dormant), Some(Refusal { name: "ioctl", is_deadly: false }));
        assert_eq!(name(&ioctl, Life::Managed), Some("ioctl"));
        assert_eq!(name(&but(g::__NR_futex, 0, ALLOW), Life::Managed), Some("futex"));
        assert_eq!(name(&but(g::__NR_futex_waitv, 0, ALLOW), Life::Managed), Some("futex_waitv"));
    }

    #[test]
    fn a_managed_process_has_its_userfaultfd() {
        let program = but(g::__NR_userfaultfd, EPERM, ALLOW);
        assert_eq!((name(&program, Life::Dormant), name(&program, Life::Managed)), (Some("userfaultfd"), None));
        // Whether a filter may kill for the call depends on what makes those of its forks.
        let kill = but(g::__NR_userfaultfd, 0, ALLOW);
        assert_eq!((name(&kill, Life::Managed), name(&kill, Life::ByDevice)), (Some("userfaultfd"), None));
        assert_eq!(name(&but(g::__NR_openat, 0, ALLOW), Life::ByDevice), Some("openat"));
        // The request to the device alone: ioctl, and the second argument.
        let jump = |k| Instruction { code: 0x15, jt: 0, jf: 1, k };
        let jump_over = |jf, k| Instruction { jf, ..jump(k) };
        let request =
            [op(0x20, 0), jump_over(3, g::__NR_ioctl), op(0x20, 24), jump(uffd::NEW as u32), op(6, 0), op(6, ALLOW)];
        assert_eq!((name(&request, Life::Managed), name(&request, Life::ByDevice)), (None, Some("ioctl")));
    }

    #[test]
    fn a_question_about_operations_loads_nothing() {
        let load = |args: [u64; 6]| is_load(g::__NR_seccomp, &args);
        // As libseccomp asks; the kernel answers EINVAL.
        assert!(!load([0, 1, 0, 0, 0, 0]) && !load([0, 0, 8, 0, 0, 0]) && !load([2, 0, 8, 0, 0, 0]));
        assert!(load([0, 0, 0, 0, 0, 0]) && load([1, 0, 8, 0, 0, 0]));
    }

    #[test]
    fn what_can_be_left_out_is_no_refusal() {
        let kill = but(g::__NR_newfstatat, 0, ALLOW);
        assert_eq!((by_program(&kill, Life::Managed), optional_by_program(&kill)), (None, 1));
        assert_eq!(optional_by_program(&but(g::__NR_ppoll, 0x0003_0000, ALLOW)), 1 << 2);
        assert_eq!(optional_by_program(&but(g::__NR_ppoll, EPERM, ALLOW)), 0);
        assert_eq!(optional_by_program(&[op(6, 0)]), (1 << OPTIONAL.len()) - 1);
        assert_eq!(optional_by_program(&[]), 0);
    }

    #[test]
    fn a_filter_that_kills_is_told_from_one_that_answers() {
        let of = |rest| by_program(&but(g::__NR_read, ALLOW, rest), Life::Dormant).map(|refusal| refusal.is_deadly);
        assert_eq!((of(0), of(EPERM), of(ALLOW)), (Some(true), Some(false), None));
    }

    #[test]
    fn calls_that_load_are_told() {
        assert_eq!(what(g::__NR_prctl, &[22, 2, 7, 0, 0, 0]), Some(Some(7)));
        assert_eq!(what(g::__NR_prctl, &[22, 1, 7, 0, 0, 0]), Some(None));
        assert_eq!(what(g::__NR_seccomp, &[1, 0, 7, 0, 0, 0]), Some(Some(7)));
        assert_eq!(what(g::__NR_seccomp, &[0, 0, 0, 0, 0, 0]), Some(None));
        assert_eq!(what(g::__NR_seccomp, &[2, 0, 7, 0, 0, 0]), None);
        assert_eq!(what(g::__NR_prctl, &[38, 1, 0, 0, 0, 0]), None);
    }

    #[test]
    fn the_calls_under_trial_are_answered_as_expected() {
        try_all();
        let reached = REACHED.load(Relaxed);
        // On a host without userfaultfd nothing is tried.
        assert!(reached == DONE || reached == 0, "{:?}", VITAL.get(reached as usize - 1).map(|call| call.name));
        assert!(nr_filters(c"/proc/self/status").is_some());
    }
}
