//! The agent's own system calls, and whether the program's are caught.

use linux_raw_sys::general as g;

/// Performs a system call from anywhere in the agent. Returns the kernel's answer.
///
/// # Safety
/// The call's effects on memory must be sound.
#[inline]
pub unsafe fn raw_syscall(nr: u64, args: &[u64; 6]) -> i64 {
    // SAFETY: forwarded contract.
    unsafe { ebb::uapi::syscall(nr, *args) }
}

/// The calling process's number.
pub fn getpid() -> u64 {
    // SAFETY: no effect on memory.
    unsafe { raw_syscall(g::__NR_getpid as u64, &[0; 6]) as u64 }
}

/// The calling thread's number.
pub fn gettid() -> u64 {
    // SAFETY: no effect on memory.
    unsafe { raw_syscall(g::__NR_gettid as u64, &[0; 6]) as u64 }
}

pub(crate) const PR_SET_SYSCALL_USER_DISPATCH: u64 = 59;

/// Switches Syscall User Dispatch off for the calling thread: the kernel performs its system calls without asking.
pub fn disarm() -> Result<(), ebb::uapi::Errno> {
    // SAFETY: no effect on memory.
    ebb::uapi::check(unsafe { raw_syscall(g::__NR_prctl as u64, &[PR_SET_SYSCALL_USER_DISPATCH, 0, 0, 0, 0, 0]) })
        .map(drop)
}

/// Arms Syscall User Dispatch for the calling thread.
pub fn arm() -> Result<(), ebb::uapi::Errno> {
    const PR_SYS_DISPATCH_ON: u64 = 1;
    let (start, end) = crate::base::here::text_range();
    // No selector byte: calls outside the agent always trap.
    let args = [PR_SET_SYSCALL_USER_DISPATCH, PR_SYS_DISPATCH_ON, start, end - start, 0, 0];
    // SAFETY: no effect on memory.
    ebb::uapi::check(unsafe { raw_syscall(g::__NR_prctl as u64, &args) }).map(drop)
}
