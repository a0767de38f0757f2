//! Thin, mostly safe wrappers of C library calls that the standard library lacks.
//!
//! Owns no policy. Everything that `ebb` opens for itself is close-on-exec.

use std::ffi::{CStr, CString, OsStr};
use std::fs::Permissions;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

use libc::c_int;

/// Turns -1 into the error in `errno`.
pub fn check(ret: c_int) -> io::Result<c_int> {
    if ret == -1 { Err(io::Error::last_os_error()) } else { Ok(ret) }
}

/// `text` as a C string; none if it contains a NUL.
pub fn c_string(text: &OsStr) -> Option<CString> {
    CString::new(text.as_bytes()).ok()
}

fn c_path(path: &Path) -> io::Result<CString> {
    c_string(path.as_os_str()).ok_or_else(|| io::Error::from_raw_os_error(libc::EINVAL))
}

/// Occupies closed standard descriptors, so that no file of `ebb` takes their numbers. What occupies them is
/// close-on-exec, so the program finds them closed again.
pub fn hold_standard_descriptors() {
    for fd in 0..=2 {
        // SAFETY: asks for a flag of a descriptor number.
        if unsafe { libc::fcntl(fd, libc::F_GETFD) } == -1 {
            // SAFETY: the path is a C string. The lowest free number is `fd`, because all below are open.
            unsafe { libc::open(c"/dev/null".as_ptr(), libc::O_RDWR | libc::O_CLOEXEC) };
        }
    }
}

/// Writes one line to standard error. Ignores errors: there is nobody to tell.
pub fn complain(line: &str) {
    use io::Write;
    let text = format!("{line}\n");
    let _ = io::stderr().write_all(text.as_bytes());
}

/// Fails if the effective user may not execute the file.
pub fn may_execute(path: &Path) -> io::Result<()> {
    access(path, libc::X_OK)
}

/// Fails if the effective user may not do `mode` (`R_OK | W_OK | X_OK`) with the file.
pub fn access(path: &Path, mode: c_int) -> io::Result<()> {
    let path = c_path(path)?;
    // SAFETY: the path is a C string.
    check(unsafe { libc::faccessat(libc::AT_FDCWD, path.as_ptr(), mode, libc::AT_EACCESS) }).map(drop)
}

/// The real user and group of this process.
pub fn identity() -> (u32, u32) {
    // SAFETY: these calls have no arguments and cannot fail.
    unsafe { (libc::getuid(), libc::getgid()) }
}

/// Whether set-user-ID bits and file capabilities are ignored for this process and its children.
pub fn no_new_privileges() -> bool {
    // SAFETY: reads a flag.
    unsafe { libc::prctl(libc::PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 1 }
}

/// Whether the file has the extended attribute `name`.
pub fn has_attribute(path: &Path, name: &CStr) -> bool {
    let Ok(path) = c_path(path) else { return false };
    // SAFETY: both are C strings; a size of 0 asks for the length only.
    unsafe { libc::getxattr(path.as_ptr(), name.as_ptr(), std::ptr::null_mut(), 0) >= 0 }
}

/// What a file system says about itself.
pub struct FileSystem {
    pub free_bytes: u64,
    /// `f_type` of statfs(2).
    pub magic: i64,
    pub nosuid: bool,
}

impl FileSystem {
    /// Whether it keeps its files in memory.
    pub fn is_in_memory(&self) -> bool {
        const RAMFS_MAGIC: i64 = 0x8584_58f6;
        matches!(self.magic, libc::TMPFS_MAGIC | RAMFS_MAGIC)
    }
}

/// Asks the file system that `path` is on.
pub fn file_system(path: &Path) -> io::Result<FileSystem> {
    let path = c_path(path)?;
    let mut out = MaybeUninit::<libc::statfs64>::zeroed();
    // SAFETY: the path is a C string and `out` is a whole `statfs64`.
    check(unsafe { libc::statfs64(path.as_ptr(), out.as_mut_ptr()) })?;
    // SAFETY: filled by the kernel, and all zeroes before.
    let out = unsafe { out.assume_init() };
    /// `ST_NOSUID` of statfs(2).
    const NOSUID: i64 = 2;
    Ok(FileSystem {
        free_bytes: (out.f_bavail).saturating_mul(out.f_bsize as u64),
        magic: out.f_type,
        nosuid: out.f_flags & NOSUID != 0,
    })
}

/// Creates an anonymous file in memory. It is close-on-exec, only its owner may open it, and nobody can shrink it. It
/// is `len` bytes long, or `len_min` if the limit on file sizes does not allow `len`.
pub fn memory_file(name: &CStr, len: u64, len_min: u64) -> io::Result<std::fs::File> {
    // MFD_NOEXEC_SEAL says that the file holds no code. Kernels before Linux 6.3 do not know the flag.
    let wanted = [libc::MFD_NOEXEC_SEAL, 0].map(|flag| libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING | flag);
    let mut last = io::Error::from_raw_os_error(libc::EINVAL);
    for flags in wanted {
        // SAFETY: the name is a C string.
        match check(unsafe { libc::memfd_create(name.as_ptr(), flags) }) {
            Ok(fd) => {
                // SAFETY: a descriptor just made, which nobody else knows.
                let file = std::fs::File::from(unsafe { OwnedFd::from_raw_fd(fd) });
                file.set_permissions(Permissions::from_mode(0o600))?;
                let is_whole = with_file_sizes(len, || file.set_len(len)).transpose()?.is_some();
                if !is_whole {
                    file.set_len(len_min)?;
                }
                // If the file does not have its full length yet, a process with a higher limit may extend it.
                let grow = if is_whole { libc::F_SEAL_GROW } else { 0 };
                let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_SEAL | grow;
                // SAFETY: a descriptor of this process's, and a number.
                check(unsafe { libc::fcntl(fd, libc::F_ADD_SEALS, seals) })?;
                return Ok(file);
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Whether nobody can shrink the file, so that its mappings stay valid.
pub fn keeps_its_length(file: &impl AsRawFd) -> bool {
    // Only tmpfs and the file system of huge pages have seals. The latter may have no huge page left to fill a hole
    // with.
    // SAFETY: a descriptor of this process's; the result is whole, and all zeroes are valid for it.
    let (seals, is_tmpfs) = unsafe {
        let seals = libc::fcntl(file.as_raw_fd(), libc::F_GET_SEALS);
        let mut of_system: libc::statfs = std::mem::zeroed();
        let found = libc::fstatfs(file.as_raw_fd(), &raw mut of_system);
        (seals, found == 0 && of_system.f_type == libc::TMPFS_MAGIC)
    };
    is_tmpfs && seals >= 0 && seals & libc::F_SEAL_SHRINK != 0
}

/// Calls `f` with a limit on file sizes of at least `bytes`. None, without a call, if the limit cannot be so high.
fn with_file_sizes<R>(bytes: u64, f: impl FnOnce() -> R) -> Option<R> {
    let (soft, hard) = resource_limit(libc::RLIMIT_FSIZE);
    if soft >= bytes {
        return Some(f());
    }
    if hard < bytes {
        return None;
    }
    let set = |soft| {
        let limit = libc::rlimit64 { rlim_cur: soft, rlim_max: hard };
        // SAFETY: the structure is whole.
        check(unsafe { libc::setrlimit64(libc::RLIMIT_FSIZE, &raw const limit) }).is_ok()
    };
    let result = set(hard).then(f);
    set(soft);
    result
}

/// Soft and hard limit of a resource. `u64::MAX` means unlimited.
pub fn resource_limit(resource: libc::__rlimit_resource_t) -> (u64, u64) {
    let mut out = libc::rlimit64 { rlim_cur: u64::MAX, rlim_max: u64::MAX };
    // SAFETY: `out` is a whole `rlimit64`. A failure (unknown resource) leaves "no limit".
    unsafe { libc::getrlimit64(resource, &mut out) };
    (out.rlim_cur, out.rlim_max)
}

/// Calls `f` with the soft limit of a resource raised to the hard one.
pub fn with_hard_limit<R>(resource: libc::__rlimit_resource_t, f: impl FnOnce() -> R) -> R {
    let (soft, hard) = resource_limit(resource);
    let set = |soft| {
        // SAFETY: the kernel reads a whole structure. A failure leaves the limit as it is.
        unsafe { libc::setrlimit64(resource, &libc::rlimit64 { rlim_cur: soft, rlim_max: hard }) }
    };
    set(hard);
    let result = f();
    set(soft);
    result
}

/// Duplicates a descriptor to the lowest free number from `lowest` on. The duplicate is close-on-exec.
pub fn raise_descriptor(fd: &impl AsRawFd, lowest: c_int) -> io::Result<OwnedFd> {
    // SAFETY: duplicates a descriptor that the caller holds open.
    let fd = check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_DUPFD_CLOEXEC, lowest) })?;
    // SAFETY: a descriptor just made, which nobody else knows.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// The inode number of the file behind a descriptor.
pub fn inode(fd: &impl AsRawFd) -> io::Result<u64> {
    file_identity(fd).map(|(_, inode)| inode)
}

/// Device and inode number of an open file.
pub fn file_identity(fd: &impl AsRawFd) -> io::Result<(u64, u64)> {
    let mut stat = MaybeUninit::<libc::stat>::zeroed();
    // SAFETY: `stat` is whole, and all zeroes are valid for it.
    check(unsafe { libc::fstat(fd.as_raw_fd(), stat.as_mut_ptr()) })?;
    // SAFETY: as above.
    let stat = unsafe { stat.assume_init() };
    Ok((stat.st_dev, stat.st_ino))
}

/// The time of day here, such as `14:02:31`.
pub fn local_time() -> String {
    // SAFETY: `time` takes no buffer; the result of `localtime_r` is whole, and all zeroes are valid for it.
    let now = unsafe {
        let now = libc::time(std::ptr::null_mut());
        let mut out: libc::tm = std::mem::zeroed();
        libc::localtime_r(&raw const now, &raw mut out);
        out
    };
    format!("{:02}:{:02}:{:02}", now.tm_hour, now.tm_min, now.tm_sec)
}

/// The kernel's release, such as `6.1.0-18-amd64`, and its machine.
pub fn kernel() -> (String, String) {
    let mut out = MaybeUninit::<libc::utsname>::zeroed();
    // SAFETY: `out` is a whole `utsname`.
    unsafe { libc::uname(out.as_mut_ptr()) };
    // SAFETY: all zeroes are valid, and the kernel terminates each field.
    let out = unsafe { out.assume_init() };
    let text = |field: &[libc::c_char]| {
        let bytes: Vec<u8> = field.iter().take_while(|byte| **byte != 0).map(|byte| *byte as u8).collect();
        String::from_utf8_lossy(&bytes).into_owned()
    };
    (text(&out.release), text(&out.machine))
}

/// The set of all signals except `out_of_it`.
pub fn all_signals_but(out_of_it: &[c_int]) -> libc::sigset_t {
    let mut set = MaybeUninit::<libc::sigset_t>::zeroed();
    // SAFETY: `sigfillset` initialises the whole set; `sigdelset` changes one bit of it.
    unsafe {
        libc::sigfillset(set.as_mut_ptr());
        for signal in out_of_it {
            libc::sigdelset(set.as_mut_ptr(), *signal);
        }
        set.assume_init()
    }
}

/// The set of these signals.
pub fn signals(members: impl IntoIterator<Item = c_int>) -> libc::sigset_t {
    let mut set = MaybeUninit::<libc::sigset_t>::zeroed();
    // SAFETY: `sigemptyset` initialises the whole set; `sigaddset` changes one bit of it.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        for signal in members {
            libc::sigaddset(set.as_mut_ptr(), signal);
        }
        set.assume_init()
    }
}

/// The set of one signal.
pub fn one_signal(signal: c_int) -> libc::sigset_t {
    signals([signal])
}

/// Whether a signal is ignored.
pub fn is_ignored(signal: c_int) -> bool {
    // SAFETY: `old` is a whole `sigaction`; nothing is changed.
    unsafe {
        let mut old: libc::sigaction = std::mem::zeroed();
        libc::sigaction(signal, std::ptr::null(), &mut old) == 0 && old.sa_sigaction == libc::SIG_IGN
    }
}

/// Opens a descriptor of a process. Unlike the process number, it never comes to mean another process.
pub fn process_descriptor(pid: i32) -> io::Result<OwnedFd> {
    // SAFETY: makes a descriptor.
    let fd = check(unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) } as c_int)?;
    // SAFETY: a descriptor just made, which nobody else knows.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Whether the process of a descriptor has ended.
pub fn has_ended(process: &OwnedFd) -> bool {
    let mut poll = libc::pollfd { fd: process.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one whole structure; the call does not wait.
    unsafe { libc::poll(&raw mut poll, 1, 0) == 1 }
}

/// Wakes every thread that waits at `word`, in this process and in others that map it.
pub fn futex_wake_all(word: &AtomicU32) {
    // SAFETY: the word is mapped; the call does not change it.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, c_int::MAX) };
}

/// Waits while `word` is `expected`. Other processes may map the word, too. Waits at most `patience`, if given, and may
/// return early.
pub fn futex_wait(word: &AtomicU32, expected: u32, patience: Option<Duration>) {
    let time = patience.map(|patience| libc::timespec {
        tv_sec: patience.as_secs() as libc::time_t,
        tv_nsec: patience.subsec_nanos() as libc::c_long,
    });
    let time = time.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: the word is mapped, and the time is whole or null.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAIT, expected, time) };
}

/// Whether two processes share one address space; none if the kernel does not say.
pub fn shares_memory(one: i32, other: i32) -> Option<bool> {
    const KCMP_VM: c_int = 1;
    // SAFETY: compares what two processes have.
    match unsafe { libc::syscall(libc::SYS_kcmp, one, other, KCMP_VM, 0, 0) } {
        0 => Some(true),
        order if order > 0 => Some(false),
        _ => None,
    }
}

/// Blocks (`SIG_BLOCK`) or unblocks (`SIG_UNBLOCK`) signals for this thread. Returns the previous mask.
pub fn change_mask(how: c_int, set: &libc::sigset_t) -> libc::sigset_t {
    let mut old = MaybeUninit::<libc::sigset_t>::zeroed();
    // SAFETY: the set is initialised, and `old` is a whole set, for which all zeroes are valid.
    unsafe {
        libc::sigprocmask(how, set, old.as_mut_ptr());
        old.assume_init()
    }
}

/// Gives a signal its default action. Returns true if it was ignored before.
pub fn default_action(signal: c_int) -> bool {
    // SAFETY: an all-zero `sigaction` is SIG_DFL without flags; `old` is a whole `sigaction`.
    unsafe {
        let new: libc::sigaction = std::mem::zeroed();
        let mut old: libc::sigaction = std::mem::zeroed();
        libc::sigaction(signal, &new, &mut old) == 0 && old.sa_sigaction == libc::SIG_IGN
    }
}
fn clock_ns(clock: libc::clockid_t) -> Option<u64> {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel fills the whole structure.
    let result = unsafe { libc::clock_gettime(clock, &raw mut time) };
    (result == 0).then_some(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}

/// Processor time of this thread.
pub fn thread_time_ns() -> u64 {
    clock_ns(libc::CLOCK_THREAD_CPUTIME_ID).unwrap_or(0)
}

/// Processor time of a process, with that of its threads that have ended.
pub fn process_time_ns(pid: i32) -> Option<u64> {
    // The clock of a process, as clock_getcpuclockid(3) makes it.
    const SCHEDULER: libc::clockid_t = 2;
    clock_ns((!pid << 3) | SCHEDULER)
}

/// Ticks of processor time in a second, as `/proc` counts it.
pub fn ticks_per_second() -> u64 {
    // SAFETY: asks for a number.
    let ticks = unsafe { libc::sysconf(libc::_SC_CLK_TCK) };
    u64::try_from(ticks).unwrap_or(100).max(1)
}
