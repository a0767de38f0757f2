//! The assembly of a dormant process: where libc's patched sites lead, and calls that must be caught.
//!
//! * A *slot* for each site. The jump replaces the `mov eax, NUMBER` in front of a `syscall` instruction. The way back leads to
//!   that very instruction, so that libc's code makes the call: once the process is managed, it is caught there like any other.
//! * The *trampoline* behind the slots counts what brk, mmap and mremap ask for, and goes back at once while that is
//!   little. Like a system call, it changes rax, rcx and r11 only. It touches no stack.
//! * Every other call takes the *slow* way: signals are blocked, all registers and the vector state are kept, and
//!   [`on_call`](crate::wake::growing::on_call) decides on a stack of the agent's. One such stack and one place for the state
//!   are enough: the process has one thread, signals are blocked, and a parent that waits for its vfork child uses neither.
//! * The section `ebb_outside` holds system calls that Syscall User Dispatch does not let pass. Among them are those of libc's
//!   `syscall`, `execveat` and the like, which programs call by name only, so that no page of libc need be patched for them.
//!
//! Unwinders find the program's frame through the trampoline as through a signal frame: its stack pointer is the stack
//! pointer, and its instruction is the `syscall` to go back to.

use crate::base::relocations;
use crate::dormant::trampoline::{
    CALL_FORK, CALL_REPLACED, Frame, IN_CHILD, SITES_MAX, Site, TRAMPOLINE, Trampoline, VECTORS_BYTES, WAKE,
};
use crate::wake::growing;
use core::arch::{global_asm, naked_asm};
use core::cell::UnsafeCell;
use core::mem::offset_of;
use core::sync::atomic::AtomicU64;
use linux_raw_sys::general as g;

/// Bytes of the slow way's stack.
const STACK_BYTES: usize = 64 << 10;
#[repr(C, align(64))]
struct Bytes<const N: usize>(UnsafeCell<[u8; N]>);
// SAFETY: used by assembly that runs with signals blocked in a process of one thread.
unsafe impl<const N: usize> Sync for Bytes<N> {}
static STACK: Bytes<STACK_BYTES> = Bytes(UnsafeCell::new([0; STACK_BYTES]));
static VECTORS: Bytes<VECTORS_BYTES> = Bytes(UnsafeCell::new([0; VECTORS_BYTES]));
/// Every signal, the agent's own included: the program may have them blocked and waiting.
static FULL: AtomicU64 = AtomicU64::new(u64::MAX);

/// The calls that take the slow way when libc's `syscall` makes them, one bit each: those that make threads and
/// processes, start programs, ask for what the agent refuses, or set limits that it would run into later.
static NOTICED: [u64; 8] = noticed(&[
    g::__NR_clone,
    g::__NR_clone3,
    g::__NR_fork,
    g::__NR_execve,
    g::__NR_execveat,
    g::__NR_prctl,
    g::__NR_seccomp,
    g::__NR_io_uring_setup,
    g::__NR_io_setup,
    g::__NR_mlockall,
    g::__NR_setrlimit,
    g::__NR_prlimit64,
    g::__NR_chroot,
    g::__NR_pivot_root,
    g::__NR_unshare,
    g::__NR_setns,
    g::__NR_mmap,
    g::__NR_mremap,
    g::__NR_brk,
]);

const fn noticed(numbers: &[u32]) -> [u64; 8] {
    let mut bits = [0u64; 8];
    let mut i = 0;
    while i < numbers.len() {
        bits[numbers[i] as usize / 64] |= 1 << (numbers[i] % 64);
        i += 1;
    }
    bits
}

global_asm!(
    ".pushsection .text.ebb_entry,\"ax\",@progbits",
    ".p2align 6",
    ".globl ebb_slots",
    ".hidden ebb_slots",
    ".type ebb_slots,@function",
    "ebb_slots:",
    ".set ebb_slot, 0",
    ".rept {sites}",
    ".p2align 4",
    "mov eax, ebb_slot",
    "jmp ebb_gate",
    ".set ebb_slot, ebb_slot + 1",
    ".endr",
    ".size ebb_slots, . - ebb_slots",
    // eax: the slot's number.
    ".p2align 6",
    ".cfi_startproc simple",
    ".cfi_signal_frame",
    ".cfi_def_cfa rsp, 0",
    ".cfi_register rip, r11",
    ".type ebb_gate,@function",
    "ebb_gate:",
    "lea r11, [rip + {trampoline}]",
    "shl eax, 4",
    "lea rcx, [r11 + rax]",
    "mov eax, [rcx + {sites_nr}]",
    "mov r11, [rcx + {sites_after}]",
    // eax: the call's number; r11: where it is made.
    ".globl ebb_gate_call",
    ".hidden ebb_gate_call",
    "ebb_gate_call:",
    "cmp dword ptr [rip + {trampoline}], 1",
    "jne 9f",
    "cmp eax, {mmap}",
    "je 2f",
    "cmp eax, {brk}",
    "je 3f",
    "cmp eax, {mremap}",
    "jne ebb_slow",
    "mov rcx, rdx",
    "sub rcx, rsi",
    "jbe 9f",
    "jmp 4f",
    // Only private anonymous memory counts: that is what will be managed.
    "2: mov ecx, r10d",
    "and ecx, {kind}",
    "cmp ecx, {anonymous}",
    "jne 9f",
    "mov rcx, rsi",
    "jmp 4f",
    "3: mov rcx, rdi",
    "sub rcx, [rip + {trampoline} + {trampoline_brk}]",
    "jbe 9f",
    "mov [rip + {trampoline} + {trampoline_brk}], rdi",
    "4: add rcx, [rip + {trampoline} + {trampoline_gross}]",
    "jc ebb_slow",
    "mov [rip + {trampoline} + {trampoline_gross}], rcx",
    "cmp rcx, [rip + {trampoline} + {trampoline_limit}]",
    "ja ebb_slow",
    "9: jmp r11",
    // eax: the call's number; r11: where it is made.
    "ebb_slow:",
    "lea rsp, [rsp - {red_zone}]",
    ".cfi_adjust_cfa_offset {red_zone}",
    "pushfq",
    ".cfi_adjust_cfa_offset 8",
    "push r11",
    ".cfi_adjust_cfa_offset 8",
    ".cfi_rel_offset rip, 0",
    "push rax",
    ".cfi_adjust_cfa_offset 8",
    "push rdi",
    ".cfi_adjust_cfa_offset 8",
    "push rsi",
    ".cfi_adjust_cfa_offset 8",
    "push rdx",
    ".cfi_adjust_cfa_offset 8",
    "push r10",
    ".cfi_adjust_cfa_offset 8",
    "push r8",
    ".cfi_adjust_cfa_offset 8",
    "push r9",
    ".cfi_adjust_cfa_offset 8",
    "push rbx",
    ".cfi_adjust_cfa_offset 8",
    ".cfi_rel_offset rbx, 0",
    "push rbp",
    ".cfi_adjust_cfa_offset 8",
    ".cfi_rel_offset rbp, 0",
    "lea rsp, [rsp - {frame_bp}]",
    ".cfi_adjust_cfa_offset {frame_bp}",
    "mov rbp, rsp",
    ".cfi_def_cfa_register rbp",
    // Compiled code does not expect the alignment check.
    "pushfq",
    "and dword ptr [rsp], ~{alignment}",
    "popfq",
    "5: mov edi, {setmask}",
    "lea rsi, [rip + {full}]",
    "lea rdx, [rip + {trampoline} + {trampoline_mask}]",
    "mov r10d, 8",
    "mov eax, {sigprocmask}",
    "syscall",
    "lea rsp, [rip + {stack} + {stack_bytes}]",
    "lea rcx, [rip + {vectors}]",
    "mov eax, -1",
    "mov edx, -1",
    "xsave64 [rcx]",
    "cld",
    // What follows may read relocated data.
    "call {relocate}",
    "mov rdi, rbp",
    "call {on_call}",
    "mov rbx, rax",
    "lea rcx, [rip + {vectors}]",
    "mov eax, -1",
    "mov edx, -1",
    "xrstor64 [rcx]",
    "mov rsp, rbp",
    "mov edi, {setmask}",
    "lea rsi, [rip + {trampoline} + {trampoline_mask}]",
    "xor edx, edx",
    "mov r10d, 8",
    "mov eax, {sigprocmask}",
    "syscall",
    "cmp ebx, {call_replaced}",
    "jb 8f",
    "je 6f",
    "cmp ebx, {call_fork}",
    "jne 7f",
    "mov rdi, [rbp + {frame_di}]",
    "mov rsi, [rbp + {frame_si}]",
    "mov rdx, [rbp + {frame_dx}]",
    "mov r10, [rbp + {frame_r10}]",
    "mov r8, [rbp + {frame_r8}]",
    "mov r9, [rbp + {frame_r9}]",
    "mov rax, [rbp + {frame_nr}]",
    // A signal handler may have made the process a managed one just now: then the call must be caught.
    "call ebb_outside_bare",
    "mov [rbp + {frame_answer}], rax",
    "test rax, rax",
    "jnz 7f",
    "mov qword ptr [rbp + {frame_nr}], {in_child}",
    "jmp 5b",
    "6: mov rdi, [rbp]",
    "mov rsi, [rbp + 8]",
    "mov rdx, [rbp + 16]",
    "mov r10, [rbp + 24]",
    "mov r8, [rbp + 32]",
    "mov r9, [rbp + 40]",
    "mov rax, [rbp + {frame_nr}]",
    "call ebb_outside_bare",
    "mov [rbp + {frame_answer}], rax",
    // Go on behind the instruction, with the answer.
    "7: add qword ptr [rbp + {frame_after}], 2",
    "mov rax, [rbp + {frame_answer}]",
    "mov [rbp + {frame_nr}], rax",
    "8: lea rsp, [rbp + {frame_bp}]",
    ".cfi_def_cfa rsp, {frame_rest} + {red_zone}",
    "pop rbp",
    ".cfi_adjust_cfa_offset -8",
    ".cfi_same_value rbp",
    "pop rbx",
    ".cfi_adjust_cfa_offset -8",
    ".cfi_same_value rbx",
    "pop r9",
    ".cfi_adjust_cfa_offset -8",
    "pop r8",
    ".cfi_adjust_cfa_offset -8",
    "pop r10",
    ".cfi_adjust_cfa_offset -8",
    "pop rdx",
    ".cfi_adjust_cfa_offset -8",
    "pop rsi",
    ".cfi_adjust_cfa_offset -8",
    "pop rdi",
    ".cfi_adjust_cfa_offset -8",
    "pop rax",
    ".cfi_adjust_cfa_offset -8",
    "pop r11",
    ".cfi_adjust_cfa_offset -8",
    ".cfi_register rip, r11",
    "popfq",
    ".cfi_adjust_cfa_offset -8",
    "lea rsp, [rsp + {red_zone}]",
    ".cfi_def_cfa_offset 0",
    "jmp r11",
    ".cfi_endproc",
    ".size ebb_gate, . - ebb_gate",
    // Has `on_call` make a dormant process a managed one, at the request of the program. The way back leads to the two bytes
    // where a call would be.
    ".p2align 4",
    ".cfi_startproc",
    ".globl ebb_wake",
    ".hidden ebb_wake",
    ".type ebb_wake,@function",
    "ebb_wake:",
    "mov rax, {wake}",
    "lea r11, [rip + 1f]",
    "jmp ebb_slow",
    "1: xchg ax, ax",
    "ret",
    ".cfi_endproc",
    ".size ebb_wake, . - ebb_wake",
    // The handlers that were installed for the slow way return here.
    ".p2align 4",
    "nop",
    ".globl ebb_dormant_restorer",
    ".hidden ebb_dormant_restorer",
    "ebb_dormant_restorer:",
    "mov eax, {sigreturn}",
    "syscall",
    ".popsection",
    // A system call with number and arguments where the kernel expects them.
    ".pushsection ebb_outside,\"ax\",@progbits",
    ".p2align 4",
    ".cfi_startproc",
    ".type ebb_outside_bare,@function",
    "ebb_outside_bare:",
    "syscall",
    "ret",
    ".cfi_endproc",
    ".size ebb_outside_bare, . - ebb_outside_bare",
    ".popsection",
    sites = const SITES_MAX,
    trampoline = sym TRAMPOLINE,
    sites_nr = const offset_of!(Trampoline, sites) + offset_of!(Site, nr),
    sites_after = const offset_of!(Trampoline, sites) + offset_of!(Site, after),
    trampoline_brk = const offset_of!(Trampoline, brk),
    trampoline_gross = const offset_of!(Trampoline, gross),
    trampoline_limit = const offset_of!(Trampoline, limit),
    trampoline_mask = const offset_of!(Trampoline, mask),
    frame_bp = const offset_of!(Frame, bp),
    frame_rest = const size_of::<Frame>() - offset_of!(Frame, bp),
    frame_di = const offset_of!(Frame, di),
    frame_si = const offset_of!(Frame, si),
    frame_dx = const offset_of!(Frame, dx),
    frame_r10 = const offset_of!(Frame, r10),
    frame_r8 = const offset_of!(Frame, r8),
    frame_r9 = const offset_of!(Frame, r9),
    frame_nr = const offset_of!(Frame, nr),
    frame_after = const offset_of!(Frame, after),
    frame_answer = const offset_of!(Frame, answer),
    call_replaced = const CALL_REPLACED,
    call_fork = const CALL_FORK,
    in_child = const IN_CHILD as i64,
    wake = const WAKE as i64,
    red_zone = const crate::base::frame::RED_ZONE_BYTES,
    alignment = const crate::base::frame::FLAG_ALIGNMENT,
    kind = const g::MAP_ANONYMOUS | 0x0f,
    anonymous = const g::MAP_ANONYMOUS | g::MAP_PRIVATE,
    mmap = const g::__NR_mmap,
    brk = const g::__NR_brk,
    mremap = const g::__NR_mremap,
    setmask = const g::SIG_SETMASK,
    sigprocmask = const g::__NR_rt_sigprocmask,
    sigreturn = const g::__NR_rt_sigreturn,
    full = sym FULL,
    stack = sym STACK,
    stack_bytes = const STACK_BYTES,
    relocate = sym relocations::apply,
    vectors = sym VECTORS,
    on_call = sym growing::on_call,
);

// The common part of libc's functions: rax is the call, and all else is as the kernel expects it. The first way in
// checks whether the call is to be noticed, the second notices it in any case. `errno` is set as libc does.
global_asm!(
    ".pushsection ebb_outside,\"ax\",@progbits",
    ".p2align 4",
    ".cfi_startproc",
    ".globl ebb_call",
    ".hidden ebb_call",
    ".type ebb_call,@function",
    "ebb_call:",
    "cmp rax, {numbers}",
    "jae 1f",
    "lea rcx, [rip + {noticed}]",
    "bt [rcx], rax",
    "jnc 1f",
    ".globl ebb_noticed_call",
    ".hidden ebb_noticed_call",
    "ebb_noticed_call:",
    "lea r11, [rip + 1f]",
    "jmp ebb_gate_call",
    "1: syscall",
    "cmp rax, -4095",
    "jae 2f",
    "ret",
    "2: neg eax",
    "push rax",
    ".cfi_adjust_cfa_offset 8",
    "call qword ptr [rip + __errno_location@GOTPCREL]",
    "pop rcx",
    ".cfi_adjust_cfa_offset -8",
    "mov [rax], ecx",
    "mov rax, -1",
    "ret",
    ".cfi_endproc",
    ".size ebb_call, . - ebb_call",
    ".popsection",
    numbers = const NOTICED.len() * 64,
    noticed = sym NOTICED,
);

/// Defines libc's functions under their own names. In tests they have names of this crate only: a test must not replace
/// its own libc.
macro_rules! libc_calls {
    ($($(#[$doc:meta])* $name:ident = $nr:path;)*) => {
        $(
            $(#[$doc])*
            ///
            /// # Safety
            /// As the function of libc with this name.
            #[cfg_attr(not(test), unsafe(no_mangle))]
            #[unsafe(naked)]
            pub unsafe extern "C" fn $name() {
                naked_asm!("mov r10, rcx", "mov eax, {nr}", "jmp ebb_noticed_call", nr = const $nr);
            }
        )*
    };
}

// Programs call these by name only, so that no page of libc need be patched for them. Those after the first are rare:
// they ask for what the agent refuses, or set limits that it would run into later.
libc_calls! {
    /// execveat(2)
    execveat = g::__NR_execveat;
    /// prctl(2)
    prctl = g::__NR_prctl;
    /// setrlimit(2)
    setrlimit = g::__NR_setrlimit;
    /// setrlimit(2)
    setrlimit64 = g::__NR_setrlimit;
    /// prlimit(2)
    prlimit = g::__NR_prlimit64;
    /// prlimit(2)
    prlimit64 = g::__NR_prlimit64;
    /// mlockall(2)
    mlockall = g::__NR_mlockall;
    /// chroot(2)
    chroot = g::__NR_chroot;
    /// unshare(2)
    unshare = g::__NR_unshare;
    /// setns(2)
    setns = g::__NR_setns;
}

/// syscall(2)
///
/// # Safety
/// As the function of libc with this name.
#[cfg_attr(not(test), unsafe(no_mangle))]
#[unsafe(naked)]
pub unsafe extern "C" fn syscall() {
    naked_asm!(
        "mov rax, rdi",
        "mov rdi, rsi",
        "mov rsi, rdx",
        "mov rdx, rcx",
        "mov r10, r8",
        "mov r8, r9",
        "mov r9, [rsp + 8]",
        "jmp ebb_call",
    );
}

const _: () = assert!(offset_of!(Trampoline, is_dormant) == 0);
const _: () = assert!(size_of::<Site>() == 16);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dormant::trampoline;

    type Function = unsafe extern "C" fn();

    /// Calls one of libc's functions. Returns its errno, or 0.
    fn errno_of(function: Function, args: [u64; 4]) -> i32 {
        // SAFETY: functions of libc's with at most five arguments, of which the last is 0. They refuse these arguments,
        // or have no effect with them.
        let answer = unsafe {
            let function: unsafe extern "C" fn(u64, u64, u64, u64, u64) -> i64 = core::mem::transmute(function);
            function(args[0], args[1], args[2], args[3], 0)
        };
        if answer == -1 { std::io::Error::last_os_error().raw_os_error().unwrap_or(0) } else { 0 }
    }

    #[test]
    fn functions_by_name_answer_as_libcs() {
        let name = c"/no such directory".as_ptr() as u64;
        let none = u64::MAX;
        let cases: [(Function, [u64; 4], i32); 12] = [
            (syscall, [g::__NR_close as u64, none, 0, 0], libc::EBADF),
            (syscall, [g::__NR_getpid as u64, 0, 0, 0], 0),
            (execveat, [g::AT_FDCWD as i64 as u64, name, 0, 0], libc::ENOENT),
            (prctl, [9999, 0, 0, 0], libc::EINVAL),
            (setrlimit, [9999, name, 0, 0], libc::EINVAL),
            (setrlimit64, [9999, name, 0, 0], libc::EINVAL),
            (prlimit, [0, 9999, 0, 0], libc::EINVAL),
            (prlimit64, [0, 9999, 0, 0], libc::EINVAL),
            (mlockall, [0, 0, 0, 0], libc::EINVAL),
            (chroot, [name, 0, 0, 0], libc::ENOENT),
            (unshare, [0, 0, 0, 0], 0),
            (setns, [none, 0, 0, 0], libc::EBADF),
        ];
        for (function, args, errno) in cases {
            assert_eq!(errno_of(function, args), errno, "{args:x?}");
        }
    }

    #[test]
    fn slots_are_as_far_apart_as_their_numbers_say() {
        for i in 0..SITES_MAX {
            // SAFETY: code of this library: `mov eax, imm32`.
            let code = unsafe { (trampoline::slot(i) as *const [u8; 5]).read() };
            assert_eq!(code, [0xb8, i as u8, 0, 0, 0]);
        }
    }
}
