//! A small process pays next to nothing: until it grows it is *dormant*.
//!
//! The constructor keeps the settings, hangs the process on the lifeline and patches libc (`sites`). It makes no space, arms
//! nothing and installs no handler. So a dormant process runs as without Ebb. To *activate* it is to do the rest of the start
//! (`start::activate`) and to take over the memory that there is (`takeover`). This happens when the process
//!
//! * has grown by [`THRESHOLD_BYTES_MAX`], or by a thirty-second of its budget if that is less;
//! * makes a second thread, or a process that shares its memory and runs beside it;
//! * begins with as much relocated data, or with 8 MiB of zeroed data (`.bss`): then it is managed from its start on;
//! * asks for something that the agent must refuse, or is about to set limits that the agent would run into.
//!
//! A process under a seccomp filter that refuses what Ebb needs (`refused`) is never activated, nor are its forks. It
//! stays dormant until it would be activated. Then it says so, and goes on as if Ebb were not there.
//!
//! Growth shows in libc's own calls of brk, mmap and mremap. The sizes that they ask for are added up. Only when the sum is
//! large does the process read its real size from `/proc/self/statm`. So memory that comes and goes does not count as growth.
//!
//! Invariants:
//! * a dormant process has one thread, so all threads of a managed process are armed;
//! * a process between vfork and exec never activates: the memory belongs to its parent, which is waiting;
//! * everything here runs with the program's signals blocked, except for calls that wait in the kernel.

use crate::base::action::{self, Action};
use crate::base::contract::Early;
use crate::base::frame::{Context, SigInfo};
use crate::base::signum::{FULL_MASK, SIGBUS, SIGSEGV, bit};
use crate::base::text::Line;
use crate::base::{calls, copy};
use crate::dormant::sites;
use crate::dormant::trampoline::VECTORS_BYTES;
use crate::dormant::trampoline::{self, ANSWER, CALL_REPLACED, CALL_THERE, Frame, SITES_MAX, TRAMPOLINE};
use crate::kept::owner::{FORKED, OWNER};
use crate::kept::{environment, leaving, lifeline, refused};
use crate::signals::masks;
use crate::threads::{actions, entry};
use core::cell::UnsafeCell;
use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicBool, AtomicU64};
use ebb::uapi;
use linux_raw_sys::general as g;

/// Growth up to which a process counts as small, in bytes. Below it Ebb could give back little: its own tables, staging
/// and buffers take about as much. An activation costs half a millisecond; the kernel takes some 2 ms to give a program
/// 8 MiB page by page.
const THRESHOLD_BYTES_MAX: u64 = 8 << 20;
/// The part of the budget that bounds the threshold.
const THRESHOLD_SHARE: u64 = 32;
/// Most data that a process is taken to begin with, in bytes: its variables, and those of its libraries.
const BASE_BYTES_MAX: u64 = THRESHOLD_BYTES_MAX;
/// The threshold in tests, by `EBB_FORCE=early`, in bytes.
const THRESHOLD_BYTES_EARLY: u64 = 128 << 10;
/// The part of the threshold that a process must ask for before its real size is read: before the first look, at least
/// between any two, and again when a look or an activation was not possible.
pub(crate) const LOOK_SHARE: u64 = 16;

/// Descriptors that an activation needs at least: a userfaultfd, and one that is open for a moment. Without a spill
/// file of its own a process keeps in RAM what does not compress.
pub(crate) const FDS_AT_START: usize = 2;

pub(crate) static THRESHOLD: AtomicU64 = AtomicU64::new(0);
/// Bytes of data that the process began with, and 1 for "known" in bit 63.
static BASE: AtomicU64 = AtomicU64::new(0);
const KNOWN: u64 = 1 << 63;
/// Bytes that were mapped without access. mprotect may make them accessible, and nobody sees that.
static RESERVED: AtomicU64 = AtomicU64::new(0);
/// Program break at the start.
static BRK_START: AtomicU64 = AtomicU64::new(0);
/// A mapping for the environment of an exec, with its size, kept for the next exec: a vfork child cannot give it back.
pub(crate) static SCRATCH: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];

/// The name of a call that Ebb needs and a seccomp filter refuses; none until that is known.
pub struct Refused(UnsafeCell<Option<&'static str>>, AtomicBool);
// SAFETY: the name is used by the one thread of a dormant process, with every signal blocked.
unsafe impl Sync for Refused {}
pub(crate) static REFUSED: Refused = Refused(UnsafeCell::new(None), AtomicBool::new(false));

impl Refused {
    pub fn load(&self) -> Option<&'static str> {
        // SAFETY: nobody writes it meanwhile.
        unsafe { *self.0.get() }
    }

    /// Whether there is a name. May be asked at any time.
    pub fn is_set(&self) -> bool {
        self.1.load(Relaxed)
    }

    /// Keeps the first name only. True for the first.
    pub fn set(&self, name: &'static str) -> bool {
        let is_first = self.load().is_none();
        if is_first {
            // SAFETY: nobody reads it meanwhile.
            unsafe { *self.0.get() = Some(name) }
            self.1.store(true, Relaxed);
        }
        is_first
    }
}

/// True while the process is dormant.
#[inline]
pub fn is_dormant() -> bool {
    TRAMPOLINE.is_dormant.load(Relaxed) != 0
}

/// Whether pages may be shared with other processes.
pub fn has_forked() -> bool {
    FORKED.load(Relaxed)
}

/// Where the heap begins.
pub fn heap_start() -> u64 {
    BRK_START.load(Relaxed)
}

/// The part of the auxiliary vector that matters: what the kernel says of the process.
#[derive(Clone, Copy, Default)]
pub struct Auxv {
    /// Whether user space may write the GS base.
    pub has_fsgsbase: bool,
    /// Largest signal frame, in bytes; 0 on kernels that do not say (before 5.14).
    pub frame_bytes: u64,
    /// Address of the program headers, and how many there are.
    pub headers: u64,
    pub nr_headers: usize,
    /// An address near the end of the stack.
    pub stack_end: u64,
}

/// Begins a dormant life. False when the process cannot be dormant: then it must activate at once.
///
/// # Safety
/// Called by the constructor, before a second thread or a handler of the program's exists.
pub unsafe fn begin(early: &Early<'_>, auxv: &Auxv) -> bool {
    /// A frame smaller than this has no vector state beyond the legacy area: the processor has no XSAVE.
    const FRAME_BYTES_MIN: u64 = 1300;
    let keeps_vectors = (FRAME_BYTES_MIN..VECTORS_BYTES as u64 / 2 + 8192).contains(&auxv.frame_bytes);
    // With a limit on address space, the program may have used all of it by the time it has grown.
    let is_tight = uapi::address_space_limit() != u64::MAX;
    if early.no_dormant || is_tight || !auxv.has_fsgsbase || !keeps_vectors {
        return false;
    }
    // SAFETY: the kernel's own words.
    if auxv.headers == 0 || unsafe { sites::is_go(auxv.headers as *const _, auxv.nr_headers) } {
        return false;
    }
    let threshold =
        if early.is_early { THRESHOLD_BYTES_EARLY } else { THRESHOLD_BYTES_MAX.min(early.ram_bytes / THRESHOLD_SHARE) };
    // The program may write to all of its zeroed variables without a call that anybody sees. Relocated data is in
    // memory already.
    // SAFETY: the kernel's own words.
    let (zeroed, relocated) = unsafe { sites::own_bytes(auxv.headers as *const _, auxv.nr_headers) };
    if zeroed >= THRESHOLD_BYTES_MAX || relocated >= threshold {
        return false;
    }
    // SAFETY: one thread, and no handler.
    if !unsafe { sites::patch(early.sites) } {
        return false;
    }
    THRESHOLD.store(threshold, Relaxed);
    OWNER.store(uapi::getpid(), Relaxed);
    // SAFETY: asks only.
    let brk = unsafe { calls::raw_syscall(g::__NR_brk as u64, &[0; 6]) } as u64;
    BRK_START.store(brk, Relaxed);
    TRAMPOLINE.brk.store(brk, Relaxed);
    TRAMPOLINE.limit.store(threshold / LOOK_SHARE, Relaxed);
    TRAMPOLINE.is_dormant.store(1, Relaxed);
    true
}

/// Whether a dormant process must activate for a call: one that the agent refuses, or must know of, or that sets limits
/// which an activation would run into.
pub(crate) fn is_for_the_agent(nr: u32, frame: &Frame) -> bool {
    const PR_SET_SYSCALL_USER_DISPATCH: u32 = 59;
    let limits = |resource: u64| [g::RLIMIT_NOFILE, g::RLIMIT_AS, g::RLIMIT_FSIZE].contains(&(resource as u32));
    match nr {
        g::__NR_prctl => frame.di as u32 == PR_SET_SYSCALL_USER_DISPATCH,
        // It only asks: calls that load a filter do not come here.
        g::__NR_seccomp => false,
        g::__NR_setrlimit => limits(frame.di),
        g::__NR_prlimit64 => frame.dx != 0 && limits(frame.si),
        _ => true,
    }
}

/// Prepares fork's child, before it goes on.
pub(crate) fn in_child() {
    OWNER.store(uapi::getpid(), Relaxed);
    lifeline::arm();
}

/// Lets a process go on unmanaged that has grown, or makes a thread, and cannot be managed. Its calls are not looked at
/// any more.
pub(crate) fn go_without(name: &'static str) {
    if REFUSED.set(name) {
        leaving::take_place(0);
    }
    refused::say(name);
    TRAMPOLINE.is_dormant.store(0, Relaxed);
}

/// As [`go_without`], where the program has as many descriptors open as it may have.
pub(crate) fn go_without_descriptors() {
    leaving::take_place(0);
    let mut line = Line::new();
    line.str("ebb: descriptors: the program has used up its limit on open files; process ").num(uapi::getpid() as u64);
    line.str(" is not managed and not limited; raise the limit (ulimit -n)\n").write();
    TRAMPOLINE.is_dormant.store(0, Relaxed);
}

/// Whether the process has one thread. Others were made by system calls that did not come by here, and cannot be armed:
/// such a process stays as it is, and is measured from outside.
pub fn is_alone() -> bool {
    const ST_NLINK_AT: usize = 2;
    /// The directory's own links.
    const LINKS: u64 = 2;
    let mut stat = [0u64; 18];
    let path = c"/proc/self/task".as_ptr() as u64;
    // SAFETY: the kernel reads the path and writes one `struct stat`, 144 bytes.
    let ret = unsafe { calls::raw_syscall(g::__NR_stat as u64, &[path, stat.as_mut_ptr() as u64, 0, 0, 0, 0]) };
    ret != 0 || stat[ST_NLINK_AT] <= LINKS + 1
}

/// Whether the process has grown beyond the threshold, with what it asks for now.
pub(crate) fn has_grown(frame: &Frame) -> bool {
    let threshold = THRESHOLD.load(Relaxed);
    let gross = TRAMPOLINE.gross.swap(0, Relaxed);
    let asked = match frame.nr as u32 {
        g::__NR_mmap => frame.si,
        g::__NR_mremap => frame.dx.saturating_sub(frame.si),
        // SAFETY: asks only.
        _ => frame.di.saturating_sub(unsafe { calls::raw_syscall(g::__NR_brk as u64, &[0; 6]) } as u64),
    };
    if frame.nr as u32 == g::__NR_mmap && frame.dx == g::PROT_NONE as u64 {
        RESERVED.fetch_add(asked, Relaxed);
    }
    // There is no descriptor to look with: try another time. An activation needs some, too.
    let Some(data) = data_bytes() else {
        TRAMPOLINE.limit.store(threshold / LOOK_SHARE, Relaxed);
        return false;
    };
    let mut base = BASE.load(Relaxed);
    if base & KNOWN == 0 {
        // What the process asked for until now is little, and most likely still there. Libraries' variables beyond the
        // maximum count as growth, too.
        base = data.saturating_sub(gross.saturating_sub(asked)).min(BASE_BYTES_MAX) | KNOWN;
        BASE.store(base, Relaxed);
    }
    let growth = data.saturating_sub(base & !KNOWN).saturating_add(asked).saturating_add(RESERVED.load(Relaxed));
    if growth >= threshold {
        return true;
    }
    TRAMPOLINE.limit.store((threshold - growth).max(threshold / LOOK_SHARE), Relaxed);
    false
}

/// Private writable memory of the process, in bytes: the sixth field of `/proc/self/statm`.
fn data_bytes() -> Option<u64> {
    const DATA_FIELD: usize = 5;
    let mut text = [0u8; 128];
    let fd = uapi::open_read(c"/proc/self/statm").ok()?;
    let n = uapi::read(fd, &mut text);
    uapi::close(fd);
    let field = text[..n.ok()?].split(|&c| c == b' ').nth(DATA_FIELD)?;
    let pages: u64 = core::str::from_utf8(field).ok()?.parse().ok()?;
    Some(pages * ebb::PAGE as u64)
}

/// Handles faults while the agent reads the program's memory.
unsafe extern "C" fn on_fault(sig: i32, info: *const SigInfo, uc: *mut Context) {
    // SAFETY: the kernel calls with its own frame.
    let (info, uc) = unsafe { (&*info, &mut *uc) };
    if !info.is_fault() {
        // Not a fault, but a signal that waited because the program blocks it: it goes on waiting.
        uc.mask |= bit(sig);
        let (pid, thread) = (calls::getpid(), calls::gettid());
        let args = [pid, thread, sig as u64, core::ptr::from_ref(info) as u64, 0, 0];
        // SAFETY: the kernel reads one siginfo. The signal is blocked here.
        unsafe { calls::raw_syscall(g::__NR_rt_tgsigqueueinfo as u64, &args) };
        return;
    }
    match copy::fixup(uc.regs.ip).or_else(|| entry::current_fixup(uc.regs.ip)) {
        Some(ip) => uc.regs.ip = ip,
        // The agent's own code faulted: the fault happens again, and ends the process.
        None => drop(actions::set_kernel_action(sig, &Action::default())),
    }
}

/// Runs `f`. In it, [`read`](crate::base::user::read) returns an error for memory that does not exist. Meanwhile the
/// program's handlers of SIGSEGV and SIGBUS are set aside. The caller must have every signal blocked.
pub(crate) fn with_faults<R>(f: impl FnOnce() -> R) -> R {
    let handler = Action {
        handler: on_fault as *const () as u64,
        flags: action::SA_RESTORER | action::SA_SIGINFO,
        restorer: trampoline::restorer(),
        mask: u64::MAX,
    };
    let olds = [SIGSEGV, SIGBUS].map(|sig| actions::exchange_kernel_action(sig, &handler).unwrap_or_default());
    let mask = masks::set_kernel_mask(FULL_MASK);
    let result = f();
    masks::set_kernel_mask(mask);
    for (sig, old) in [SIGSEGV, SIGBUS].into_iter().zip(&olds) {
        let _ = actions::set_kernel_action(sig, old);
    }
    result
}

/// Prepares execve or execveat, whose path is argument `path_at`: gives the program an environment in which Ebb goes on.
pub(crate) fn exec(frame: &mut Frame, path_at: usize) -> u64 {
    let mut args = [frame.di, frame.si, frame.dx, frame.r10, frame.r8, frame.r9];
    let envp = args[path_at + 2];
    let dir = if path_at == 0 { g::AT_FDCWD } else { args[0] as i32 };
    let (takes_agent, found) = with_faults(|| {
        let takes_agent = leaving::before_exec(dir, args[path_at]).takes_agent();
        (takes_agent, environment::missing(envp, takes_agent))
    });
    // Nothing is missing, or the kernel will refuse what cannot be read.
    let Ok(Some(bytes)) = found else { return CALL_THERE };
    let Some(memory) = scratch(bytes) else { return no_memory(frame) };
    match with_faults(|| environment::environment(memory, envp, takes_agent)) {
        Ok(new) => args[path_at + 2] = new,
        Err(errno) => {
            frame.answer = errno as u64;
            return ANSWER;
        }
    }
    frame.replaced = args;
    CALL_REPLACED
}

fn no_memory(frame: &mut Frame) -> u64 {
    frame.answer = -(linux_raw_sys::errno::ENOMEM as i64) as u64;
    ANSWER
}

/// Memory of at least `bytes` bytes for an environment.
fn scratch(bytes: usize) -> Option<&'static mut [u8]> {
    let bytes = bytes.next_multiple_of(ebb::PAGE);
    if (SCRATCH[1].load(Relaxed) as usize) < bytes {
        if SCRATCH[0].load(Relaxed) != 0 {
            // SAFETY: the last exec failed, or its process is gone.
            let _ = unsafe { uapi::munmap(SCRATCH[0].load(Relaxed) as usize, SCRATCH[1].load(Relaxed) as usize) };
        }
        SCRATCH[1].store(0, Relaxed);
        let at = uapi::map_for_now(bytes).ok()?;
        SCRATCH[0].store(at as u64, Relaxed);
        SCRATCH[1].store(bytes as u64, Relaxed);
    }
    // SAFETY: mapped, and used by nobody else: the process has one thread, which waits while its vfork child is here.
    Some(unsafe {
        core::slice::from_raw_parts_mut(SCRATCH[0].load(Relaxed) as *mut u8, SCRATCH[1].load(Relaxed) as usize)
    })
}

const _: () = assert!(SITES_MAX >= 8);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::user;
    use crate::kept::owner;

    #[test]
    fn memory_that_is_not_there_is_an_answer() {
        assert_eq!(with_faults(|| user::read::<u64>(8)), Err(user::Fault));
        let word = 7u64;
        assert_eq!(with_faults(|| user::read::<u64>(&raw const word as u64)), Ok(7));
    }

    #[test]
    fn data_of_this_process_is_more_than_nothing() {
        assert!(data_bytes().is_some_and(|bytes| bytes > 0));
    }

    #[test]
    fn a_process_owns_its_memory_when_it_is_the_owner() {
        OWNER.store(uapi::getpid(), Relaxed);
        assert!(owner::is_owner());
    }
}
