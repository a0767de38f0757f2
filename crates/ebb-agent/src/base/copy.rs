//! Copies from and to the program's memory. A fault that the program would have suffered ends the copy.

use core::arch::global_asm;

global_asm!(
    ".pushsection .text.ebb_entry,\"ax\",@progbits",
    // rdi: to, rsi: from, rdx: bytes. Answers 0, or 1 after a fault.
    ".p2align 4",
    ".cfi_startproc",
    ".globl ebb_copy",
    ".hidden ebb_copy",
    ".type ebb_copy,@function",
    "ebb_copy:",
    "mov rcx, rdx",
    "xor eax, eax",
    ".globl ebb_copy_begin",
    ".hidden ebb_copy_begin",
    "ebb_copy_begin:",
    "rep movsb",
    ".globl ebb_copy_end",
    ".hidden ebb_copy_end",
    "ebb_copy_end:",
    "ret",
    ".globl ebb_copy_fault",
    ".hidden ebb_copy_fault",
    "ebb_copy_fault:",
    "mov eax, 1",
    "ret",
    ".cfi_endproc",
    ".size ebb_copy, . - ebb_copy",
    ".popsection",
);

unsafe extern "C" {
    fn ebb_copy(to: u64, from: u64, bytes: u64) -> u64;
    fn ebb_copy_begin();
    fn ebb_copy_end();
    fn ebb_copy_fault();
}

/// Copies `bytes` bytes between the agent's memory and the program's. False when a part of the program's side is not
/// accessible.
///
/// # Safety
/// The agent's side must be valid for `bytes`. On the program's side, what the copy overwrites must be the program's to lose.
#[inline]
pub unsafe fn copy(to: u64, from: u64, bytes: usize) -> bool {
    // SAFETY: the caller's contract for one side; faults on the other end the copy.
    unsafe { ebb_copy(to, from, bytes as u64) == 0 }
}

/// Where a copy that faulted at `ip` goes on; none for an `ip` in other code.
pub fn fixup(ip: u64) -> Option<u64> {
    let addr = |f: unsafe extern "C" fn()| f as usize as u64;
    (ip >= addr(ebb_copy_begin) && ip < addr(ebb_copy_end)).then(|| addr(ebb_copy_fault))
}
