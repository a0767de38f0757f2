//! Code that Syscall User Dispatch does not let pass: a system call made here is caught once the process is managed.

use crate::base::arguments::load_arguments;
use core::arch::global_asm;

global_asm!(
    // rdi: number, rsi: six arguments. Answers as the kernel does. The call is caught once the process is managed.
    ".pushsection ebb_outside,\"ax\",@progbits",
    ".p2align 4",
    ".cfi_startproc",
    ".globl ebb_outside_call",
    ".hidden ebb_outside_call",
    ".type ebb_outside_call,@function",
    "ebb_outside_call:",
    "mov rax, rdi",
    "mov r11, rsi",
    load_arguments!("r11"),
    "syscall",
    "ret",
    ".cfi_endproc",
    ".size ebb_outside_call, . - ebb_outside_call",
    ".popsection",
);

unsafe extern "C" {
    fn ebb_outside_call(nr: u64, args: *const u64) -> i64;
    #[link_name = "__start_ebb_outside"]
    static OUTSIDE_START: u8;
    #[link_name = "__stop_ebb_outside"]
    static OUTSIDE_END: u8;
}

/// Address range of the code whose calls are caught.
pub fn outside() -> (u64, u64) {
    (&raw const OUTSIDE_START as u64, &raw const OUTSIDE_END as u64)
}

/// Makes a system call of the program's where it is caught once the process is managed. Returns the kernel's answer.
///
/// # Safety
/// The call must be the program's own.
#[inline]
pub unsafe fn call_outside(nr: u64, args: &[u64; 6]) -> i64 {
    // SAFETY: forwarded contract.
    unsafe { ebb_outside_call(nr, args.as_ptr()) }
}
