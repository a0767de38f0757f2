//! A bare kernel thread for background work: no libc, no thread-local storage of its own, every signal blocked.

use super::Errno;
use core::arch::asm;
use linux_raw_sys::general as g;

/// Bytes of a background thread's stack.
pub const STACK_BYTES: usize = 256 << 10;

/// What a new thread shares with the thread that makes it.
pub const CLONE_FLAGS: u64 =
    (g::CLONE_VM | g::CLONE_FS | g::CLONE_FILES | g::CLONE_SIGHAND | g::CLONE_THREAD | g::CLONE_SYSVSEM) as u64;

/// Starts `entry(arg)` on a new thread of this process; returns its number. The thread shares the caller's thread-local
/// storage, so it must never call into libc. It inherits the caller's signal mask, so the caller must have every signal
/// blocked.
///
/// # Safety
/// `stack` must be [`STACK_BYTES`] of memory that belongs to the new thread for as long as it lives; `entry` must
/// never return.
pub unsafe fn spawn(stack: *mut u8, entry: extern "C" fn(usize) -> !, arg: usize) -> Result<i32, Errno> {
    // SAFETY: the caller's contract.
    unsafe { clone_onto(CLONE_FLAGS as u32, stack, entry, arg) }
}

/// Runs `entry(arg)` in a separate process that shares this one's memory, while the caller waits. Returns the number of
/// that process, which must be waited for with `__WALL`. Its end sends its parent no signal.
///
/// # Safety
/// As [`spawn`]; the caller must have every signal blocked.
pub unsafe fn run_apart(stack: *mut u8, entry: extern "C" fn(usize) -> !, arg: usize) -> Result<i32, Errno> {
    // SAFETY: the caller's contract.
    unsafe { clone_onto(g::CLONE_VM | g::CLONE_VFORK, stack, entry, arg) }
}

/// # Safety
/// As [`spawn`].
unsafe fn clone_onto(flags: u32, stack: *mut u8, entry: extern "C" fn(usize) -> !, arg: usize) -> Result<i32, Errno> {
    // SAFETY: inside the caller's stack memory.
    let top = unsafe { stack.add(STACK_BYTES) } as usize & !15;
    let ret: i64;
    // SAFETY: the child starts on its own stack with registers as in the parent, and leaves through `entry`, which
    // never returns; the parent sees only rax, rcx and r11 change.
    unsafe {
        asm!(
            "syscall",
            "test rax, rax",
            "jnz 2f",
            "xor ebp, ebp",
            "mov rdi, r13",
            "call r12",
            "ud2",
            "2:",
            inlateout("rax") g::__NR_clone as u64 => ret,
            in("rdi") flags as u64,
            in("rsi") top,
            in("rdx") 0u64,
            in("r10") 0u64,
            in("r8") 0u64,
            in("r12") entry as usize,
            in("r13") arg,
            lateout("rcx") _,
            lateout("r11") _,
        );
    }
    super::check(ret).map(|tid| tid as i32)
}

/// Names the calling thread, as `ps -L` and `top -H` show it. At most 15 bytes.
pub fn set_name(name: &core::ffi::CStr) {
    const PR_SET_NAME: u64 = 15;
    // SAFETY: the name is NUL-terminated and only read.
    let _ = unsafe { super::call(g::__NR_prctl, [PR_SET_NAME, name.as_ptr() as u64, 0, 0, 0, 0]) };
}

/// Ends the calling thread only.
pub fn exit() -> ! {
    loop {
        // SAFETY: ends this thread; its stack stays mapped.
        let _ = unsafe { super::syscall(g::__NR_exit as u64, [0; 6]) };
    }
}

/// Blocks every signal in the calling thread; returns the old mask.
pub fn block_signals() -> u64 {
    let all = u64::MAX;
    let mut old = 0u64;
    // SAFETY: the kernel reads and writes one 8-byte mask each.
    let _ = unsafe {
        super::call(
            g::__NR_rt_sigprocmask,
            [g::SIG_SETMASK as u64, &raw const all as u64, &raw mut old as u64, 8, 0, 0],
        )
    };
    old
}

/// Leaves only `signals` open in the calling thread; returns the old mask. A kernel that refuses that leaves all blocked, as they are.
pub fn open_only(signals: u64) -> u64 {
    // As [`block_signals`] has it: a seccomp filter that admits one may refuse another way to change the mask.
    let (others, mut old) = (!signals, u64::MAX);
    // SAFETY: the kernel reads and writes one 8-byte mask each.
    let _ = unsafe {
        super::call(
            g::__NR_rt_sigprocmask,
            [g::SIG_SETMASK as u64, &raw const others as u64, &raw mut old as u64, 8, 0, 0],
        )
    };
    old
}

/// Restores a mask that [`block_signals`] or [`open_only`] returned.
pub fn restore_signals(mask: u64) {
    // SAFETY: the kernel reads one 8-byte mask.
    let _ = unsafe { super::call(g::__NR_rt_sigprocmask, [g::SIG_SETMASK as u64, &raw const mask as u64, 0, 8, 0, 0]) };
}
