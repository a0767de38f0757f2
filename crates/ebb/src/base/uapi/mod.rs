//! Raw system calls: the only room of the engine that talks to the kernel.
//!
//! Every wrapper turns an errno into [`Errno`]. No wrapper allocates or touches thread-local storage, and all may be
//! called from a signal handler. Numbers and structures come from `linux-raw-sys`.

pub mod aio;
pub mod cache;
pub mod fd;
pub mod kernel;
pub mod later;
pub mod own;
pub mod pagemap;
pub mod record_lock;
pub mod stderr;
pub mod thread;
pub mod uffd;

use core::arch::asm;
use core::sync::atomic::AtomicU32;
use linux_raw_sys::general as g;

/// A kernel error number, positive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Errno(pub i32);

impl core::fmt::Display for Errno {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "errno {}", self.0)
    }
}

impl core::error::Error for Errno {}

impl Errno {
    /// Operation not permitted.
    pub const PERM: Self = Self(linux_raw_sys::errno::EPERM as i32);
    /// No such entry; for userfaultfd: the range is not registered.
    pub const NOENT: Self = Self(linux_raw_sys::errno::ENOENT as i32);
    /// The file does not know the request.
    pub const NOTTY: Self = Self(linux_raw_sys::errno::ENOTTY as i32);
    /// Nothing there; for a seek: no data follows in the file.
    pub const NXIO: Self = Self(linux_raw_sys::errno::ENXIO as i32);
    /// Interrupted.
    pub const INTR: Self = Self(linux_raw_sys::errno::EINTR as i32);
    /// Bad descriptor.
    pub const BADF: Self = Self(linux_raw_sys::errno::EBADF as i32);
    /// No such system call.
    pub const NOSYS: Self = Self(linux_raw_sys::errno::ENOSYS as i32);
    /// Try again.
    pub const AGAIN: Self = Self(linux_raw_sys::errno::EAGAIN as i32);
    /// Out of memory.
    pub const NOMEM: Self = Self(linux_raw_sys::errno::ENOMEM as i32);
    /// Busy; for MOVE: the page is shared or pinned.
    pub const BUSY: Self = Self(linux_raw_sys::errno::EBUSY as i32);
    /// Exists; for COPY: the page is mapped already.
    pub const EXIST: Self = Self(linux_raw_sys::errno::EEXIST as i32);
    /// Invalid argument.
    pub const INVAL: Self = Self(linux_raw_sys::errno::EINVAL as i32);
    /// The file is larger than it may be.
    pub const FBIG: Self = Self(linux_raw_sys::errno::EFBIG as i32);
    /// Input/output error.
    pub const IO: Self = Self(linux_raw_sys::errno::EIO as i32);
    /// The user's quota is used up.
    pub const DQUOT: Self = Self(linux_raw_sys::errno::EDQUOT as i32);
    /// Memory that the kernel cannot reach.
    pub const FAULT: Self = Self(linux_raw_sys::errno::EFAULT as i32);
    /// The time is up.
    pub const TIMEDOUT: Self = Self(linux_raw_sys::errno::ETIMEDOUT as i32);
    /// The process has as many descriptors as it may have.
    pub const MFILE: Self = Self(linux_raw_sys::errno::EMFILE as i32);
    /// The system has as many open files as it can have.
    pub const NFILE: Self = Self(linux_raw_sys::errno::ENFILE as i32);
    /// No space left on the device.
    pub const NOSPC: Self = Self(linux_raw_sys::errno::ENOSPC as i32);
    /// No buffer space.
    pub const NOBUFS: Self = Self(linux_raw_sys::errno::ENOBUFS as i32);
    /// The file system is read-only.
    pub const ROFS: Self = Self(linux_raw_sys::errno::EROFS as i32);
}

/// Performs system call `nr`; returns the kernel's raw answer (negative errno on failure).
///
/// # Safety
/// The arguments must be valid for that call, and its effects on memory must be sound for the caller.
#[inline(always)]
pub unsafe fn syscall(nr: u64, a: [u64; 6]) -> i64 {
    let ret: i64;
    // SAFETY: the caller vouches for the call; the kernel preserves everything but rax, rcx and r11.
    unsafe {
        asm!("syscall", inlateout("rax") nr => ret, in("rdi") a[0], in("rsi") a[1], in("rdx") a[2],
             in("r10") a[3], in("r8") a[4], in("r9") a[5], lateout("rcx") _, lateout("r11") _, options(nostack));
    }
    ret
}

/// Splits a raw answer into value and errno.
#[inline]
pub fn check(ret: i64) -> Result<u64, Errno> {
    if (-4095..0).contains(&ret) { Err(Errno(-ret as i32)) } else { Ok(ret as u64) }
}

/// # Safety
/// As [`syscall`].
#[inline]
unsafe fn call(nr: u32, a: [u64; 6]) -> Result<u64, Errno> {
    // SAFETY: forwarded contract.
    check(unsafe { syscall(nr as u64, a) })
}

/// Reserves `len` bytes of private anonymous memory that costs nothing until it is touched.
pub fn reserve(len: usize) -> Result<*mut u8, Errno> {
    reserve_aligned(len, 4096)
}

/// Maps `len` bytes of private anonymous memory for a short time, at an address of the kernel's choice.
pub fn map_for_now(len: usize) -> Result<*mut u8, Errno> {
    let flags = (g::MAP_PRIVATE | g::MAP_ANONYMOUS | g::MAP_NORESERVE) as u64;
    let prot = (g::PROT_READ | g::PROT_WRITE) as u64;
    // SAFETY: a fresh mapping at an address of the kernel's choice disturbs nobody.
    unsafe { call(g::__NR_mmap, [0, len as u64, prot, flags, u64::MAX, 0]) }.map(|at| at as *mut u8)
}

/// Maps private anonymous memory of zeros over what is mapped at `at`.
///
/// # Safety
/// Nobody needs what is there.
pub unsafe fn map_private_over(at: usize, len: usize, prot: u32) -> Result<(), Errno> {
    let flags = (g::MAP_PRIVATE | g::MAP_ANONYMOUS | g::MAP_FIXED) as u64;
    // SAFETY: the caller's contract.
    unsafe { call(g::__NR_mmap, [at as u64, len as u64, prot as u64, flags, u64::MAX, 0]) }.map(drop)
}

/// Reserves `len` bytes aligned to `align` (a power of two, at least a page).
pub fn reserve_aligned(len: usize, align: usize) -> Result<*mut u8, Errno> {
    let len = len.next_multiple_of(4096);
    let at = later::map(len, align, g::MAP_PRIVATE)?;
    keep_small(at as usize, len);
    Ok(at)
}

/// Reserves `len` bytes of private anonymous memory that is inaccessible until parts of it are opened.
pub fn reserve_closed(len: usize) -> Result<usize, Errno> {
    let len = len.next_multiple_of(4096);
    let at = later::reserve_nothing(len)?;
    keep_small(at, len);
    Ok(at)
}

/// Makes whole pages of a [`reserve_closed`] range accessible. They read as zeros, and cost nothing until they are written.
pub fn open_reserved(at: usize, len: usize) -> Result<(), Errno> {
    mprotect(at, len, g::PROT_READ | g::PROT_WRITE)
}

/// Keeps Ebb's own memory out of core dumps, because most of it is never used, and out of huge pages, which nobody
/// would have charged. A failure only costs memory.
fn keep_small(at: usize, len: usize) {
    let _ = madvise(at, len, g::MADV_DONTDUMP);
    let _ = madvise(at, len, g::MADV_NOHUGEPAGE);
}

/// Maps `len` bytes of `fd` shared and writable.
pub fn map_shared(fd: i32, len: usize) -> Result<*mut u8, Errno> {
    let prot = (g::PROT_READ | g::PROT_WRITE) as u64;
    // SAFETY: a fresh mapping at an address of the kernel's choice disturbs nobody.
    let at = unsafe { call(g::__NR_mmap, [0, len as u64, prot, g::MAP_SHARED as u64, fd as u64, 0]) }?;
    let _ = madvise(at as usize, len, g::MADV_DONTDUMP);
    Ok(at as *mut u8)
}

/// As [`map_shared`], but from `offset` on, over what is mapped at `at`.
///
/// # Safety
/// The range must be the caller's.
pub unsafe fn map_shared_over(at: usize, fd: i32, offset: u64, len: usize) -> Result<(), Errno> {
    let (prot, flags) = ((g::PROT_READ | g::PROT_WRITE) as u64, (g::MAP_SHARED | g::MAP_FIXED) as u64);
    // SAFETY: the caller's contract.
    unsafe { call(g::__NR_mmap, [at as u64, len as u64, prot, flags, fd as u64, offset]) }?;
    let _ = madvise(at, len, g::MADV_DONTDUMP);
    Ok(())
}

/// Replaces a range by an inaccessible mapping, so that nobody else's mapping comes there.
///
/// # Safety
/// The range must be the caller's, and not used any more.
pub unsafe fn map_nothing_over(at: usize, len: usize) -> Result<(), Errno> {
    let flags = (g::MAP_PRIVATE | g::MAP_ANONYMOUS | g::MAP_NORESERVE | g::MAP_FIXED) as u64;
    // SAFETY: the caller's contract.
    unsafe { call(g::__NR_mmap, [at as u64, len as u64, g::PROT_NONE as u64, flags, u64::MAX, 0]) }.map(drop)
}

/// Reserves `len` bytes of anonymous memory that fork shares instead of copying.
pub fn reserve_shared(len: usize) -> Result<*mut u8, Errno> {
    let at = later::map(len, 4096, g::MAP_SHARED)?;
    // Otherwise a core dump would have all of it, holes included.
    let _ = madvise(at as usize, len, g::MADV_DONTDUMP);
    Ok(at)
}

/// # Safety
/// Nobody may use the range afterwards.
pub unsafe fn munmap(at: usize, len: usize) -> Result<(), Errno> {
    // Before the call: what is mapped there afterwards may be the program's.
    own::remove(at);
    // SAFETY: the caller gives the range up.
    unsafe { call(g::__NR_munmap, [at as u64, len as u64, 0, 0, 0, 0]).map(drop) }
}

/// Takes back one blocked, pending signal of the calling thread.
pub fn take_pending_signal(signal: u32) {
    let set = 1u64 << (signal - 1);
    let now = g::__kernel_timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel reads an 8-byte mask and a timespec.
    let _ = unsafe { call(g::__NR_rt_sigtimedwait, [&raw const set as u64, 0, &raw const now as u64, 8, 0, 0]) };
}

/// Gives advice about a range that the engine owns or holds busy.
pub fn madvise(at: usize, len: usize, advice: u32) -> Result<(), Errno> {
    // SAFETY: callers pass only ranges whose content they own or have saved; other advice changes no content.
    unsafe { call(g::__NR_madvise, [at as u64, len as u64, advice as u64, 0, 0, 0]).map(drop) }
}

/// Unlocks a range.
pub fn munlock(at: usize, len: usize) -> Result<(), Errno> {
    // SAFETY: changes no content.
    unsafe { call(g::__NR_munlock, [at as u64, len as u64, 0, 0, 0, 0]).map(drop) }
}

/// Locks each page of a range when it comes in.
pub fn mlock_on_fault(at: usize, len: usize) -> Result<(), Errno> {
    // SAFETY: changes no content.
    unsafe { call(g::__NR_mlock2, [at as u64, len as u64, g::MLOCK_ONFAULT as u64, 0, 0, 0]).map(drop) }
}

/// Changes the protection of a range that the caller owns, or whose users can bear the change.
pub fn mprotect(at: usize, len: usize, prot: u32) -> Result<(), Errno> {
    // SAFETY: protection changes no content.
    unsafe { call(g::__NR_mprotect, [at as u64, len as u64, prot as u64, 0, 0, 0]).map(drop) }
}

/// Drops the content of ranges `(address, length)` that the engine holds busy, of the first 256 at most, with one call
/// and one flush. Returns the number of bytes dropped, from the first range on. Works on the caller's own process since
/// Linux 6.13, with `PIDFD_SELF` since 6.14.
pub fn drop_vectored(ranges: &[(usize, usize)]) -> Result<usize, Errno> {
    let mut parts = [[0u64; 2]; 256];
    let parts = &mut parts[..ranges.len().min(256)];
    for (part, (at, len)) in parts.iter_mut().zip(ranges) {
        *part = [*at as u64, *len as u64];
    }
    let own = g::PIDFD_SELF_THREAD_GROUP as i64 as u64;
    let advice = g::MADV_DONTNEED as u64;
    // SAFETY: callers pass only ranges whose content they have saved; the kernel reads the parts.
    unsafe { call(g::__NR_process_madvise, [own, parts.as_ptr() as u64, parts.len() as u64, advice, 0, 0]) }
        .map(|bytes| bytes as usize)
}

/// Sleeps while `*word == expected`, at most `timeout_ns` if given. Returns on any wake, also a spurious one.
pub fn futex_wait(word: &AtomicU32, expected: u32, timeout_ns: Option<u64>) {
    let time = timeout_ns
        .map(|ns| g::__kernel_timespec { tv_sec: (ns / 1_000_000_000) as i64, tv_nsec: (ns % 1_000_000_000) as i64 });
    let op = (g::FUTEX_WAIT | g::FUTEX_PRIVATE_FLAG) as u64;
    let timeout = time.as_ref().map_or(0, |t| t as *const _ as u64);
    // SAFETY: the kernel only reads the word and the timeout, both alive here.
    let _ = unsafe { call(g::__NR_futex, [word as *const _ as u64, op, expected as u64, timeout, 0, 0]) };
}

/// Wakes up to `n` sleepers on `word`; the kernel takes `n` as a signed number.
pub fn futex_wake(word: &AtomicU32, n: u32) {
    debug_assert!(n <= i32::MAX as u32);
    let op = (g::FUTEX_WAKE | g::FUTEX_PRIVATE_FLAG) as u64;
    // SAFETY: the kernel only uses the word's address.
    let _ = unsafe { call(g::__NR_futex, [word as *const _ as u64, op, n as u64, 0, 0, 0]) };
}

/// Wakes everybody who sleeps on `word`, also in other processes.
pub fn futex_wake_shared(word: &AtomicU32) {
    // SAFETY: the kernel only uses the word's address.
    let _ = unsafe { call(g::__NR_futex, [word as *const _ as u64, g::FUTEX_WAKE as u64, i32::MAX as u64, 0, 0, 0]) };
}

/// Sleeps while `*word == expected`, at most `timeout_ns`. The word is in memory that other processes map too.
pub fn futex_wait_shared(word: &AtomicU32, expected: u32, timeout_ns: u64) {
    let time = g::__kernel_timespec {
        tv_sec: (timeout_ns / 1_000_000_000) as i64,
        tv_nsec: (timeout_ns % 1_000_000_000) as i64,
    };
    let args = [word as *const _ as u64, g::FUTEX_WAIT as u64, expected as u64, &raw const time as u64, 0, 0];
    // SAFETY: the kernel only reads the word and the timeout, both alive here.
    let _ = unsafe { call(g::__NR_futex, args) };
}

/// Sleeps while `*own == own_expected` and each word of `shared` has the value beside it, at most `timeout_ns` if
/// given. The words of `shared` are in memory that other processes map too. Returns on any wake, also a spurious one.
/// False where the kernel can wait for one word only.
pub fn futex_wait_any(
    own: &AtomicU32,
    own_expected: u32,
    shared: [(&AtomicU32, u32); 2],
    timeout_ns: Option<u64>,
) -> bool {
    const FUTEX_32: u64 = 2;
    const CLOCK_MONOTONIC: u64 = 1;
    // Value, address, flags, as in `struct futex_waitv`.
    let waiter = |(word, expected): (&AtomicU32, u32)| [expected as u64, word as *const _ as u64, FUTEX_32];
    let waiters = [
        [own_expected as u64, own as *const _ as u64, FUTEX_32 | g::FUTEX_PRIVATE_FLAG as u64],
        waiter(shared[0]),
        waiter(shared[1]),
    ];
    let end = timeout_ns.map(|ns| now_ns() + ns);
    let time = end
        .map(|ns| g::__kernel_timespec { tv_sec: (ns / 1_000_000_000) as i64, tv_nsec: (ns % 1_000_000_000) as i64 });
    let timeout = time.as_ref().map_or(0, |t| t as *const _ as u64);
    // SAFETY: the kernel only reads the words, the structures and the timeout, all alive here.
    let result = unsafe {
        call(g::__NR_futex_waitv, [waiters.as_ptr() as u64, waiters.len() as u64, 0, timeout, CLOCK_MONOTONIC, 0])
    };
    // False with an older kernel, or under a filter that refuses the call.
    matches!(result, Ok(_) | Err(Errno::AGAIN | Errno::INTR | Errno::TIMEDOUT))
}

/// Lets another thread run.
pub fn sched_yield() {
    // SAFETY: no arguments, no effect on memory.
    let _ = unsafe { call(g::__NR_sched_yield, [0; 6]) };
}

/// Processors this thread may run on.
pub fn nr_cpus() -> usize {
    let mut mask = [0u64; 128];
    // SAFETY: the kernel writes at most the given size.
    let got = unsafe {
        call(g::__NR_sched_getaffinity, [0, core::mem::size_of_val(&mask) as u64, mask.as_mut_ptr() as u64, 0, 0, 0])
    };
    if got.is_err() {
        return 1;
    }
    mask.iter().map(|w| w.count_ones() as usize).sum::<usize>().max(1)
}

/// Monotonic time in nanoseconds.
pub fn now_ns() -> u64 {
    clock_ns(g::CLOCK_MONOTONIC)
}

/// Nanoseconds since 1970, as the system's clock says: the same in all namespaces, but somebody may set that clock.
pub fn calendar_ns() -> u64 {
    clock_ns(g::CLOCK_REALTIME)
}

fn clock_ns(clock: u32) -> u64 {
    let mut t = g::__kernel_timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel writes the timespec given.
    let _ = unsafe { call(g::__NR_clock_gettime, [u64::from(clock), &mut t as *mut _ as u64, 0, 0, 0, 0]) };
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

/// True when reading the cycle counter would be a fault (PR_SET_TSC).
pub fn counter_is_forbidden() -> bool {
    const PR_GET_TSC: u64 = 25;
    const PR_TSC_SIGSEGV: u32 = 2;
    let mut mode = 0u32;
    // SAFETY: the kernel writes one word.
    let got = unsafe { call(g::__NR_prctl, [PR_GET_TSC, &raw mut mode as u64, 0, 0, 0, 0]) };
    got.is_ok() && mode == PR_TSC_SIGSEGV
}

/// Takes this process's memory out of KSM and lets none in; false when it stays in. A page that KSM merges loses its
/// write protection without notice. The setting survives fork and exec.
pub fn leave_ksm() -> bool {
    const PR_SET_MEMORY_MERGE: u64 = 67;
    const PR_GET_MEMORY_MERGE: u64 = 68;
    // SAFETY: unmerging changes no content.
    unsafe {
        syscall(g::__NR_prctl as u64, [PR_SET_MEMORY_MERGE, 0, 0, 0, 0, 0]);
        // Kernels without the setting refuse both calls, and there is nothing to leave.
        syscall(g::__NR_prctl as u64, [PR_GET_MEMORY_MERGE, 0, 0, 0, 0, 0]) <= 0
    }
}

/// Processor time of the calling thread in nanoseconds.
pub fn thread_time_ns() -> u64 {
    let mut t = g::__kernel_timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel writes the timespec given.
    let _ = unsafe {
        call(g::__NR_clock_gettime, [g::CLOCK_THREAD_CPUTIME_ID as u64, &mut t as *mut _ as u64, 0, 0, 0, 0])
    };
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

/// What threads have used of processors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Usage {
    /// Time in nanoseconds.
    pub ran_ns: u64,
    /// How often they lost their processor although they could have run.
    pub preempted: u64,
}

/// Usage of the calling thread; none where the kernel does not tell.
pub fn usage_of_thread() -> Option<Usage> {
    usage(g::RUSAGE_THREAD as u64)
}

/// Usage of all threads that the process has and had; none where the kernel does not tell.
pub fn usage_of_process() -> Option<Usage> {
    usage(u64::from(g::RUSAGE_SELF))
}

fn usage(who: u64) -> Option<Usage> {
    // SAFETY: zero is a valid value of these integers.
    let mut usage: g::rusage = unsafe { core::mem::zeroed() };
    // SAFETY: the kernel writes the structure given.
    unsafe { call(g::__NR_getrusage, [who, &mut usage as *mut _ as u64, 0, 0, 0, 0]) }.ok()?;
    let ns = |t: g::__kernel_old_timeval| t.tv_sec as u64 * 1_000_000_000 + t.tv_usec as u64 * 1000;
    Some(Usage { ran_ns: ns(usage.ru_utime) + ns(usage.ru_stime), preempted: usage.ru_nivcsw as u64 })
}

/// How often the calling thread has lost its processor although it could have run.
pub fn times_preempted() -> u32 {
    usage_of_thread().map_or(0, |usage| usage.preempted as u32)
}

/// Fills `out` with random bytes.
pub fn getrandom(out: &mut [u8]) -> Result<(), Errno> {
    let mut done = 0;
    while done < out.len() {
        // SAFETY: the kernel writes only into the rest of `out`.
        let got = unsafe {
            call(g::__NR_getrandom, [out[done..].as_mut_ptr() as u64, (out.len() - done) as u64, 0, 0, 0, 0])
        };
        match got {
            Ok(n) => done += n as usize,
            Err(Errno::INTR) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// This process's id.
pub fn getpid() -> i32 {
    // SAFETY: no arguments, no effect on memory.
    unsafe { syscall(g::__NR_getpid as u64, [0; 6]) as i32 }
}

/// The parent's process id.
#[inline]
pub fn getppid() -> i32 {
    // SAFETY: no arguments, no effect on memory.
    unsafe { syscall(g::__NR_getppid as u64, [0; 6]) as i32 }
}

/// Whether `tid` is a thread of this process.
pub fn is_own_thread(tid: i32) -> bool {
    // SAFETY: signal 0 is never sent; the kernel only checks whether it could be.
    tid > 0 && unsafe { syscall(g::__NR_tgkill as u64, [getpid() as u64, tid as u64, 0, 0, 0, 0]) } == 0
}

/// Whether the kernel has no thread `tid` of this process any more, not even in its lists.
pub fn is_thread_gone(tid: i32) -> bool {
    // SAFETY: signal 0 is never sent; the kernel only checks whether it could be.
    let result = unsafe { call(g::__NR_tgkill, [getpid() as u64, tid as u64, 0, 0, 0, 0]) };
    matches!(result, Err(Errno(3)))
}

/// Writes to a descriptor. For messages only: failures are ignored, because no caller could do anything about them.
pub fn write_all(fd: i32, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        // SAFETY: the kernel only reads `bytes`.
        match unsafe { call(g::__NR_write, [fd as u64, bytes.as_ptr() as u64, bytes.len() as u64, 0, 0, 0]) } {
            Ok(0) => return,
            Ok(n) => bytes = &bytes[n as usize..],
            Err(Errno::INTR) => {}
            Err(_) => return,
        }
    }
}

/// Opens a nameless file in directory `dir` (NUL-terminated), mode 0600.
pub fn open_tmpfile(dir: &core::ffi::CStr) -> Result<i32, Errno> {
    let flags = g::O_TMPFILE | g::O_RDWR | g::O_CLOEXEC | g::O_EXCL;
    // SAFETY: the path is NUL-terminated and only read.
    unsafe {
        call(g::__NR_openat, [g::AT_FDCWD as i64 as u64, dir.as_ptr() as u64, flags as u64, 0o600, 0, 0])
            .map(|fd| fd as i32)
    }
}

/// Creates the file `path` (NUL-terminated), mode 0600, and removes its name at once. Also says which file had the
/// name, which nobody else knew.
pub fn open_unlinked(path: &core::ffi::CStr) -> Result<(i32, fd::Identity), Errno> {
    let flags = g::O_CREAT | g::O_EXCL | g::O_RDWR | g::O_CLOEXEC | g::O_NOFOLLOW;
    // SAFETY: the path is NUL-terminated and only read.
    let remove = || unsafe { call(g::__NR_unlink, [path.as_ptr() as u64, 0, 0, 0, 0, 0]) };
    // SAFETY: as above.
    let opened =
        unsafe { call(g::__NR_openat, [g::AT_FDCWD as i64 as u64, path.as_ptr() as u64, flags as u64, 0o600, 0, 0]) };
    let fd = match opened {
        Ok(fd) => fd as i32,
        Err(errno) => {
            // A process that may make files but not write to them (landlock) has made one.
            if errno != Errno::EXIST {
                let _ = remove();
            }
            return Err(errno);
        }
    };
    let identity = fd::identity_of_path(path);
    match remove().and(identity) {
        Ok(identity) => Ok((fd, identity)),
        Err(errno) => {
            close(fd);
            Err(errno)
        }
    }
}

/// The limit `resource`, or `unknown` where the kernel does not say.
fn limit(resource: u32, unknown: u64) -> g::rlimit64 {
    let mut limit = g::rlimit64 { rlim_cur: unknown, rlim_max: unknown };
    // SAFETY: the kernel writes the structure given.
    let _ = unsafe { call(g::__NR_prlimit64, [0, resource as u64, 0, &raw mut limit as u64, 0, 0]) };
    limit
}

/// The soft limit `resource`, or `unknown` where the kernel does not say.
fn soft_limit(resource: u32, unknown: u64) -> u64 {
    limit(resource, unknown).rlim_cur
}

/// Calls `f` with the soft limit on the size of files as high as the hard one.
pub fn with_largest_files<R>(f: impl FnOnce() -> R) -> R {
    with_hard_limit(g::RLIMIT_FSIZE, f)
}

/// Calls `f` with the soft limit `resource` as high as the hard one.
fn with_hard_limit<R>(resource: u32, f: impl FnOnce() -> R) -> R {
    let set = |limit: &g::rlimit64| {
        // SAFETY: the kernel reads the structure.
        let _ = unsafe { call(g::__NR_prlimit64, [0, resource as u64, limit as *const _ as u64, 0, 0, 0]) };
    };
    let old = limit(resource, u64::MAX);
    if old.rlim_cur >= old.rlim_max {
        return f();
    }
    let high = g::rlimit64 { rlim_cur: old.rlim_max, ..old };
    set(&high);
    let result = f();
    // The program may have changed it meanwhile: its own value stays.
    let now = limit(resource, u64::MAX);
    if (now.rlim_cur, now.rlim_max) == (high.rlim_cur, high.rlim_max) {
        set(&old);
    }
    result
}

/// Soft limit on address space in bytes; `u64::MAX` for none.
pub fn address_space_limit() -> u64 {
    soft_limit(g::RLIMIT_AS, u64::MAX)
}

/// Closes a descriptor of Ebb's own.
pub fn close(fd: i32) {
    // SAFETY: the caller owns the descriptor.
    let _ = unsafe { call(g::__NR_close, [fd as u64, 0, 0, 0, 0, 0]) };
}

/// Opens a file for reading, close-on-exec.
pub fn open_read(path: &core::ffi::CStr) -> Result<i32, Errno> {
    let at = g::AT_FDCWD as i64 as u64;
    // SAFETY: the path is a C string that the kernel reads.
    unsafe { call(g::__NR_openat, [at, path.as_ptr() as u64, (g::O_RDONLY | g::O_CLOEXEC) as u64, 0, 0, 0]) }
        .map(|fd| fd as i32)
}

/// Opens a file for reading and writing, close-on-exec.
pub fn open_read_write(path: &core::ffi::CStr) -> Result<i32, Errno> {
    let at = g::AT_FDCWD as i64 as u64;
    // SAFETY: the path is a C string that the kernel reads.
    unsafe { call(g::__NR_openat, [at, path.as_ptr() as u64, (g::O_RDWR | g::O_CLOEXEC) as u64, 0, 0, 0]) }
        .map(|fd| fd as i32)
}

/// Creates or empties a file and opens it, close-on-exec.
#[cfg(feature = "events")]
pub fn create(path: &core::ffi::CStr) -> Result<i32, Errno> {
    let flags = u64::from(g::O_CREAT | g::O_TRUNC | g::O_RDWR | g::O_CLOEXEC);
    // SAFETY: the path is a C string that the kernel reads.
    unsafe { call(g::__NR_openat, [g::AT_FDCWD as i64 as u64, path.as_ptr() as u64, flags, 0o600, 0, 0]) }
        .map(|fd| fd as i32)
}

/// Makes a nameless file in memory, close-on-exec.
pub fn memory_file(name: &core::ffi::CStr) -> Result<i32, Errno> {
    // SAFETY: the name is a C string that the kernel reads.
    let make = |flags: u32| unsafe { call(g::__NR_memfd_create, [name.as_ptr() as u64, u64::from(flags), 0, 0, 0, 0]) };
    // Some systems refuse memory files that could be executed. Before Linux 6.3 there is no such flag.
    make(g::MFD_CLOEXEC | g::MFD_NOEXEC_SEAL).or_else(|_| make(g::MFD_CLOEXEC)).map(|fd| fd as i32)
}

/// Attempts at a call whose buffer is evicted each time.
const EVICTED_TRIES_MAX: usize = 64;

/// Calls `f`, in which a system call reads or writes `memory`. Repeats `f` if that call answers EFAULT.
///
/// `memory` is the caller's own and may lie on the program's stack. That stack can be managed memory, so a page of it can be
/// evicted between its last use and the call. A touch brings the page back. Callers inside the engine do not need this:
/// they run on stacks that are never managed.
pub fn with_own_memory<R>(memory: &mut [u8], mut f: impl FnMut(&mut [u8]) -> Result<R, Errno>) -> Result<R, Errno> {
    for _ in 1..EVICTED_TRIES_MAX {
        match f(memory) {
            Err(Errno::FAULT) => touch(memory),
            result => return result,
        }
    }
    f(memory)
}

/// Writes back one byte of each page of `memory`. A read would not be enough: it can bring the page back write-protected.
fn touch(memory: &mut [u8]) {
    let len = memory.len();
    for at in (0..len).step_by(super::PAGE).chain(len.checked_sub(1)) {
        let byte = &raw mut memory[at];
        // SAFETY: a byte of the slice.
        unsafe { byte.write_volatile(byte.read_volatile()) };
    }
}

/// Reads at most `out.len()` bytes at the file's position. Returns the number of bytes; 0 at the end of the file.
pub fn read(fd: i32, out: &mut [u8]) -> Result<usize, Errno> {
    loop {
        // SAFETY: the kernel writes only into `out`.
        match unsafe { call(g::__NR_read, [fd as u64, out.as_mut_ptr() as u64, out.len() as u64, 0, 0, 0]) } {
            Err(Errno::INTR) => {}
            result => return result.map(|n| n as usize),
        }
    }
}

/// Reads at `offset` with one call; returns how many bytes came, 0 at the end of the file.
pub fn pread(fd: i32, out: &mut [u8], offset: u64) -> Result<usize, Errno> {
    // SAFETY: the kernel writes only into `out`.
    unsafe { call(g::__NR_pread64, [fd as u64, out.as_mut_ptr() as u64, out.len() as u64, offset, 0, 0]) }
        .map(|n| n as usize)
}

/// Writes at `offset` with one call; returns how many bytes were written.
pub fn pwrite(fd: i32, data: &[u8], offset: u64) -> Result<usize, Errno> {
    // SAFETY: the kernel only reads `data`.
    unsafe { call(g::__NR_pwrite64, [fd as u64, data.as_ptr() as u64, data.len() as u64, offset, 0, 0]) }
        .map(|n| n as usize)
}

/// Reads exactly `out.len()` bytes at `offset`.
pub fn pread_exact(fd: i32, out: &mut [u8], offset: u64) -> Result<(), Errno> {
    let mut done = 0;
    while done < out.len() {
        match pread(fd, &mut out[done..], offset + done as u64) {
            Ok(0) => return Err(Errno::IO),
            Ok(n) => done += n,
            Err(Errno::INTR) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// Writes all of `data` at `offset`.
pub fn pwrite_all(fd: i32, data: &[u8], offset: u64) -> Result<(), Errno> {
    let mut done = 0;
    while done < data.len() {
        match pwrite(fd, &data[done..], offset + done as u64) {
            Ok(0) => return Err(Errno::IO),
            Ok(n) => done += n,
            Err(Errno::INTR) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// Makes the file `len` bytes long; what this adds is a hole.
pub fn truncate(fd: i32, len: u64) -> Result<(), Errno> {
    // SAFETY: only the engine's own file is touched.
    unsafe { call(g::__NR_ftruncate, [fd as u64, len, 0, 0, 0, 0]).map(drop) }
}

/// Allocates memory or blocks for a range of the file. The file may become longer for it, never shorter.
pub fn allocate(fd: i32, offset: u64, len: u64) -> Result<(), Errno> {
    // SAFETY: only the engine's own file is touched.
    unsignalled(|| unsafe { call(g::__NR_fallocate, [fd as u64, 0, offset, len, 0, 0]).map(drop) })
}

/// Makes a call, and takes back the SIGXFSZ that the kernel sends beside the error when a file would pass RLIMIT_FSIZE. The file
/// is not the program's, and neither is the signal.
pub fn unsignalled<T>(call: impl FnOnce() -> Result<T, Errno>) -> Result<T, Errno> {
    let mask = thread::block_signals();
    let result = call();
    if matches!(result, Err(Errno::FBIG)) {
        take_pending_signal(g::SIGXFSZ);
    }
    thread::restore_signals(mask);
    result
}

/// Gives the space of a range of the file back to the file system. The range then reads as zeros.
pub fn punch_hole(fd: i32, offset: u64, len: u64) -> Result<(), Errno> {
    let mode = (g::FALLOC_FL_PUNCH_HOLE | g::FALLOC_FL_KEEP_SIZE) as u64;
    // SAFETY: only the engine's own file is touched.
    unsafe { call(g::__NR_fallocate, [fd as u64, mode, offset, len, 0, 0]).map(drop) }
}

/// Writes `data` at `offset` inside the file's length through a mapping, to which RLIMIT_FSIZE does not apply.
pub fn write_mapped(fd: i32, data: &[u8], offset: u64) -> Result<(), Errno> {
    // Blocks first: a store into a hole of a full file system would raise SIGBUS.
    allocate(fd, offset, data.len() as u64)?;
    let prot = (g::PROT_READ | g::PROT_WRITE) as u64;
    // SAFETY: a fresh mapping of the engine's own file, gone before anybody else could know of it.
    unsafe {
        let at = call(g::__NR_mmap, [0, data.len() as u64, prot, g::MAP_SHARED as u64, fd as u64, offset])? as *mut u8;
        // Otherwise neighbouring pages would come into the page cache, too.
        let _ = madvise(at as usize, data.len(), g::MADV_RANDOM);
        core::ptr::copy_nonoverlapping(data.as_ptr(), at, data.len());
        munmap(at as usize, data.len())
    }
}

/// True while process `pid` exists (also as a zombie).
pub fn process_exists(pid: i32) -> bool {
    // SAFETY: signal 0 delivers nothing.
    !matches!(unsafe { call(g::__NR_kill, [pid as u64, 0, 0, 0, 0, 0]) }, Err(Errno(3)))
}

/// True when the page at `at` is in memory; none when the kernel does not say.
pub fn is_resident(at: usize) -> Option<bool> {
    let mut byte = 0u8;
    // SAFETY: the kernel writes one byte for one page.
    let result = unsafe { syscall(g::__NR_mincore as u64, [at as u64, 4096, &raw mut byte as u64, 0, 0, 0]) };
    (result == 0).then_some(byte & 1 != 0)
}

/// True when all of the `n` pages from `at` on, at most 512, are in memory for sure.
pub fn are_resident(at: usize, n: usize) -> bool {
    let mut bytes = [0u8; 512];
    assert!(n <= bytes.len());
    // SAFETY: the kernel writes one byte for each page.
    let result =
        unsafe { syscall(g::__NR_mincore as u64, [at as u64, n as u64 * 4096, bytes.as_mut_ptr() as u64, 0, 0, 0]) };
    result == 0 && bytes[..n].iter().all(|byte| byte & 1 != 0)
}

/// True when the page at `at` is in memory for sure.
pub fn is_mapped(at: usize) -> bool {
    is_resident(at) == Some(true)
}

/// True when nothing is mapped at `at`.
pub fn is_hole(at: usize) -> bool {
    let mut byte = 0u8;
    // SAFETY: as above.
    check(unsafe { syscall(g::__NR_mincore as u64, [at as u64, 4096, &raw mut byte as u64, 0, 0, 0]) })
        == Err(Errno::NOMEM)
}

/// False when all of a range is mapped for sure.
pub fn may_have_hole(start: usize, len: usize) -> bool {
    // This msync has nothing to write back; it only looks at the mappings.
    // SAFETY: changes nothing.
    let result = unsafe { syscall(g::__NR_msync as u64, [start as u64, len as u64, g::MS_ASYNC as u64, 0, 0, 0]) };
    check(result).is_err()
}

/// Ends the whole process with `status`.
pub fn exit_group(status: i32) -> ! {
    loop {
        // SAFETY: ends the process.
        let _ = unsafe { syscall(g::__NR_exit_group as u64, [status as u64, 0, 0, 0, 0, 0]) };
    }
}

/// Makes an address-space call of the program's, unchanged.
///
/// # Safety
/// The caller must hold the gate exclusively and bring the engine's state in line with the result.
pub unsafe fn forward(nr: u32, a: [u64; 6]) -> Result<u64, Errno> {
    // SAFETY: forwarded contract.
    unsafe { call(nr, a) }
}

/// Ends the process at once, as a kill would.
pub fn kill_self() -> ! {
    loop {
        // SAFETY: ends this process.
        let _ = unsafe { call(g::__NR_kill, [getpid() as u64, g::SIGKILL as u64, 0, 0, 0, 0]) };
    }
}
