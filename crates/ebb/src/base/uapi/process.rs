//! The process: its number and its end, its limits, its pending signals, and what the machine gives it.

use super::{Errno, call, syscall};
use linux_raw_sys::general as g;

/// Takes back one blocked, pending signal of the calling thread.
pub fn take_pending_signal(signal: u32) {
    let set = 1u64 << (signal - 1);
    let now = g::__kernel_timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel reads an 8-byte mask and a timespec.
    let _ = unsafe { call(g::__NR_rt_sigtimedwait, [&raw const set as u64, 0, &raw const now as u64, 8, 0, 0]) };
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

/// The limit `resource`, or `unknown` where the kernel does not say.
pub(super) fn limit(resource: u32, unknown: u64) -> g::rlimit64 {
    let mut limit = g::rlimit64 { rlim_cur: unknown, rlim_max: unknown };
    // SAFETY: the kernel writes the structure given.
    let _ = unsafe { call(g::__NR_prlimit64, [0, resource as u64, 0, &raw mut limit as u64, 0, 0]) };
    limit
}

/// The soft limit `resource`, or `unknown` where the kernel does not say.
fn soft_limit(resource: u32, unknown: u64) -> u64 {
    limit(resource, unknown).rlim_cur
}

/// No file of this process may become longer than so many bytes, whatever the soft limit is; `u64::MAX` for no such limit.
pub fn longest_file() -> u64 {
    limit(g::RLIMIT_FSIZE, u64::MAX).rlim_max
}

/// Calls `f` with the soft limit on the size of files as high as the hard one.
pub fn with_largest_files<R>(f: impl FnOnce() -> R) -> R {
    with_hard_limit(g::RLIMIT_FSIZE, f)
}

/// Calls `f` with the soft limit `resource` as high as the hard one.
pub(super) fn with_hard_limit<R>(resource: u32, f: impl FnOnce() -> R) -> R {
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

/// True while process `pid` exists (also as a zombie).
pub fn process_exists(pid: i32) -> bool {
    // SAFETY: signal 0 delivers nothing.
    !matches!(unsafe { call(g::__NR_kill, [pid as u64, 0, 0, 0, 0, 0]) }, Err(Errno(3)))
}

/// Ends the whole process with `status`.
pub fn exit_group(status: i32) -> ! {
    loop {
        // SAFETY: ends the process.
        let _ = unsafe { syscall(g::__NR_exit_group as u64, [status as u64, 0, 0, 0, 0, 0]) };
    }
}

/// Ends the process at once, as a kill would.
pub fn kill_self() -> ! {
    loop {
        // SAFETY: ends this process.
        let _ = unsafe { call(g::__NR_kill, [getpid() as u64, g::SIGKILL as u64, 0, 0, 0, 0]) };
    }
}
