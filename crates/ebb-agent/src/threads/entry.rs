//! The assembly: how system calls leave, how handlers return, how threads begin and end.
//!
//! Owns every instruction sequence whose addresses mean something to a signal handler:
//!
//! * `ebb_stub`: where a caught system call is really made, with the program's registers, stack and signal mask. The
//!   SIGSYS handler returns into it. Nothing of the agent is on any stack while the call waits. A signal that finds the
//!   thread in the stub gets a context in the program: before the program's own system-call instruction, or after it
//!   (`handlers::signal::normalise`). So calls are interrupted, restarted and cancelled as without the agent.
//! * `ebb_inner`: a system call that is made from within the SIGSYS handler, with the program's mask for its length. A
//!   signal that finds the thread there is held back until the handler leaves (`handlers::signal::hold`).
//! * `ebb_restorer`, where every handler of the agent ends. Its code is in `handlers::signal`, beside the code for the
//!   signals that it looks for.
//! * the entries of the agent's signal handlers ([`handler_entry`]). They switch the alignment check off: the kernel
//!   leaves it as the program has it, and compiled code does not expect it.
//!
//! The kernel lets system calls of this library's code through, in the range that
//! [`calls::arm`](crate::base::calls::arm) gives it. Every other system call of the process traps.

use crate::base::arguments::load_arguments;
use crate::threads::thread::{self, ThreadBlock, at};
use core::arch::global_asm;
use linux_raw_sys::general as g;

global_asm!(
    ".pushsection .text.ebb_entry,\"ax\",@progbits",
    ".p2align 6",
    // The unwinder finds the program's frame through the stub: the caller's stack pointer is the stack pointer, and the
    // SIGSYS handler left the return address for the unwinder below the red zone.
    ".cfi_startproc simple",
    ".cfi_signal_frame",
    ".cfi_def_cfa rsp, 0",
    ".cfi_offset rip, -{hint}",
    ".globl ebb_stub",
    ".hidden ebb_stub",
    ".type ebb_stub,@function",
    "ebb_stub:",
    "syscall",
    ".globl ebb_stub_after",
    ".hidden ebb_stub_after",
    "ebb_stub_after:",
    "mov rdi, gs:[{args}]",
    "mov rsi, gs:[{args} + 8]",
    "mov rdx, gs:[{args} + 16]",
    "mov r10, gs:[{args} + 24]",
    "mov r8, gs:[{args} + 32]",
    "mov r9, gs:[{args} + 40]",
    // Tell EFAULT from other answers without touching the flags, which the kernel preserves.
    "lea rcx, [rax + {efault}]",
    "jrcxz 2f",
    "mov rcx, gs:[{ip}]",
    "jmp rcx",
    "2: movabs rcx, 0x8000000000000000",
    ".globl ebb_stub_efault",
    ".hidden ebb_stub_efault",
    "ebb_stub_efault:",
    // This is no valid address: the load faults, and the SIGSEGV handler takes over.
    "mov rcx, [rcx]",
    // The stub for a call after which the agent has more to do, such as to end pins that are too many to be left
    // behind: the handler takes over in any case.
    ".p2align 4",
    ".globl ebb_stub_asking",
    ".hidden ebb_stub_asking",
    "ebb_stub_asking:",
    "syscall",
    "movabs rcx, 0x8000000000000000",
    ".globl ebb_stub_asks",
    ".hidden ebb_stub_asks",
    "ebb_stub_asks:",
    "mov rcx, [rcx]",
    ".globl ebb_stub_end",
    ".hidden ebb_stub_end",
    "ebb_stub_end:",
    "ud2",
    ".cfi_endproc",
    ".size ebb_stub, . - ebb_stub",
    // rdi: number, rsi: six arguments, rdx: the mask for the length of the call.
    ".p2align 4",
    ".cfi_startproc",
    ".globl ebb_inner",
    ".hidden ebb_inner",
    ".type ebb_inner,@function",
    "ebb_inner:",
    "push rbx",
    ".cfi_adjust_cfa_offset 8",
    ".cfi_rel_offset rbx, 0",
    "push r12",
    ".cfi_adjust_cfa_offset 8",
    ".cfi_rel_offset r12, 0",
    "mov rbx, rdi",
    "mov r12, rsi",
    "mov edi, {setmask}",
    "mov rsi, rdx",
    "xor edx, edx",
    "mov r10d, 8",
    "mov eax, {sigprocmask}",
    "syscall",
    ".globl ebb_inner_begin",
    ".hidden ebb_inner_begin",
    "ebb_inner_begin:",
    "mov rax, rbx",
    load_arguments!("r12"),
    ".globl ebb_inner_call",
    ".hidden ebb_inner_call",
    "ebb_inner_call:",
    "syscall",
    ".globl ebb_inner_after",
    ".hidden ebb_inner_after",
    "ebb_inner_after:",
    "mov rbx, rax",
    "mov edi, {setmask}",
    "lea rsi, [rip + ebb_full_mask]",
    "xor edx, edx",
    "mov r10d, 8",
    "mov eax, {sigprocmask}",
    "syscall",
    ".globl ebb_inner_end",
    ".hidden ebb_inner_end",
    "ebb_inner_end:",
    "mov rax, rbx",
    "pop r12",
    ".cfi_adjust_cfa_offset -8",
    ".cfi_restore r12",
    "pop rbx",
    ".cfi_adjust_cfa_offset -8",
    ".cfi_restore rbx",
    "ret",
    ".cfi_endproc",
    ".size ebb_inner, . - ebb_inner",
    // The calling thread's block, or 0, for code on the program's stack. See `thread::current`.
    ".p2align 4",
    ".cfi_startproc",
    ".globl ebb_current",
    ".hidden ebb_current",
    ".type ebb_current,@function",
    "ebb_current:",
    "cmp dword ptr [rip + {has_fsgsbase}], 0",
    "je 3f",
    "rdgsbase rax",
    "mov ecx, eax",
    "and ecx, {block_bytes} - 1",
    "cmp ecx, {head_at}",
    "jne 2f",
    ".globl ebb_current_begin",
    ".hidden ebb_current_begin",
    "ebb_current_begin:",
    "cmp [rax], rax",
    "jne 2f",
    "mov rcx, [rax + {check_at}]",
    "cmp rcx, [rip + {check}]",
    "jne 2f",
    "rdfsbase rcx",
    "cmp rcx, [rax + {fs_base}]",
    "jne 2f",
    ".globl ebb_current_end",
    ".hidden ebb_current_end",
    "ebb_current_end:",
    "ret",
    ".globl ebb_current_none",
    ".hidden ebb_current_none",
    "ebb_current_none:",
    "2: xor eax, eax",
    "ret",
    // Here the program cannot have a GS base of its own.
    "3: mov rax, gs:[0]",
    "ret",
    ".cfi_endproc",
    ".size ebb_current, . - ebb_current",
    // rdi: status, rsi: the word that says that the block is in use. Once the word is cleared, the stack is somebody else's.
    ".p2align 4",
    ".cfi_startproc",
    ".globl ebb_exit_thread",
    ".hidden ebb_exit_thread",
    ".type ebb_exit_thread,@function",
    "ebb_exit_thread:",
    "mov dword ptr [rsi], 0",
    "2: mov eax, {exit}",
    "syscall",
    "jmp 2b",
    ".cfi_endproc",
    ".size ebb_exit_thread, . - ebb_exit_thread",
    ".popsection",
    ".pushsection .rodata.ebb_full_mask,\"a\",@progbits",
    ".p2align 3",
    "ebb_full_mask: .quad {full}",
    ".popsection",
    hint = const HINT_BYTES,
    args = const at::CALL_ARGS,
    ip = const at::CALL_IP,
    check_at = const at::CHECK,
    fs_base = const at::FS_BASE,
    check = sym thread::CHECK,
    has_fsgsbase = sym thread::HAS_FSGSBASE,
    block_bytes = const thread::BLOCK_BYTES,
    head_at = const thread::HEAD_AT,
    efault = const linux_raw_sys::errno::EFAULT,
    setmask = const g::SIG_SETMASK,
    sigprocmask = const g::__NR_rt_sigprocmask,
    exit = const g::__NR_exit,
    full = const crate::base::signum::FULL_MASK as i64,
);

// The core library names a personality in its unwind tables. The agent has nothing to clean up, so a forced unwinding
// passes on (_URC_CONTINUE_UNWIND).
#[cfg(not(test))]
global_asm!(
    ".pushsection .text.ebb_entry,\"ax\",@progbits",
    ".cfi_startproc",
    ".globl rust_eh_personality",
    ".hidden rust_eh_personality",
    ".type rust_eh_personality,@function",
    "rust_eh_personality:",
    "mov eax, 8",
    "ret",
    ".cfi_endproc",
    ".size rust_eh_personality, . - rust_eh_personality",
    ".popsection",
);

/// Defines the entry of a signal handler.
macro_rules! handler_entry {
    ($(#[$doc:meta])* $name:ident, $handler:path) => {
        $(#[$doc])*
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name(sig: i32, info: *const $crate::base::frame::SigInfo, uc: *mut $crate::base::frame::Context) {
            core::arch::naked_asm!(
                "test byte ptr [rdx + {flags} + 2], {alignment} >> 16",
                "jnz 2f",
                "jmp {handler}",
                "2: pushfq",
                "and dword ptr [rsp], ~{alignment}",
                "popfq",
                "jmp {handler}",
                flags = const $crate::base::frame::FLAGS_AT,
                alignment = const $crate::base::frame::FLAG_ALIGNMENT,
                handler = sym $handler,
            );
        }
    };
}
pub(crate) use handler_entry;

/// How far below the program's stack pointer the return address is left for unwinders, in bytes: clear of the red zone.
pub const HINT_BYTES: u64 = 136;

/// Answer of [`inner_call`] when a signal came before the call was made: make the call again after the signal's handler.
pub const ERESTARTSYS: i64 = -512;

unsafe extern "C" {
    fn ebb_stub();
    fn ebb_stub_after();
    fn ebb_stub_efault();
    fn ebb_stub_asking();
    fn ebb_stub_asks();
    fn ebb_stub_end();
    fn ebb_inner(nr: u64, args: *const u64, mask: *const u64) -> i64;
    fn ebb_inner_begin();
    fn ebb_inner_call();
    fn ebb_inner_after();
    fn ebb_inner_end();
    fn ebb_restorer();
    fn ebb_restorer_end();
    fn ebb_current() -> *const core::ffi::c_void;
    fn ebb_current_begin();
    fn ebb_current_end();
    fn ebb_current_none();
    fn ebb_exit_thread(status: u64, used: *const core::sync::atomic::AtomicU32) -> !;
}

fn addr(f: unsafe extern "C" fn()) -> u64 {
    f as usize as u64
}

/// The place of an instruction pointer in the stub.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StubAt {
    /// Not in it.
    Outside,
    /// The call is still to be made.
    Before,
    /// The call was made; the accumulator holds its answer.
    After,
    /// The call was made, and the stub asks the agent to go on.
    Asks,
}

/// Finds the place of `ip` in the stub.
pub fn stub_at(ip: u64) -> StubAt {
    if ip < addr(ebb_stub) || ip >= addr(ebb_stub_end) {
        StubAt::Outside
    } else if ip < addr(ebb_stub_after) || ip == addr(ebb_stub_asking) {
        StubAt::Before
    } else if ip == addr(ebb_stub_efault) || ip == addr(ebb_stub_asks) {
        StubAt::Asks
    } else {
        StubAt::After
    }
}

/// Address of the stub that returns to the program by itself.
pub fn stub() -> u64 {
    addr(ebb_stub)
}

/// Address of the stub that asks the agent to go on after the call.
pub fn stub_asking() -> u64 {
    addr(ebb_stub_asking)
}

/// The place of an instruction pointer in the inner call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum InnerAt {
    /// Not in the part that runs with the program's mask.
    Outside,
    /// The call is still to be made.
    Before,
    /// The call was made.
    After,
}

/// Finds the place of `ip` in the inner call.
pub fn inner_at(ip: u64) -> InnerAt {
    if ip < addr(ebb_inner_begin) || ip > addr(ebb_inner_end) {
        InnerAt::Outside
    } else if ip <= addr(ebb_inner_call) {
        InnerAt::Before
    } else {
        InnerAt::After
    }
}

/// Address at which the inner call goes on after its system call.
pub fn inner_after() -> u64 {
    addr(ebb_inner_after)
}

/// Address that the agent's handlers return to.
pub fn restorer() -> u64 {
    addr(ebb_restorer)
}

/// True when `ip` is between the restorer's look for held-back signals and its return.
pub fn is_leaving(ip: u64) -> bool {
    ip >= addr(ebb_restorer) && ip <= addr(ebb_restorer_end)
}

/// Where [`current`] goes on when it faults at `ip` because of where the GS base points; none for other code.
pub fn current_fixup(ip: u64) -> Option<u64> {
    (ip >= addr(ebb_current_begin) && ip < addr(ebb_current_end)).then(|| addr(ebb_current_none))
}

/// The calling thread's block by its GS base; null when the program uses the GS base.
#[inline]
pub fn current() -> *const ThreadBlock {
    // SAFETY: changes nothing. Its reads through the GS base may fault, and such a fault is fixed up.
    unsafe { ebb_current().cast() }
}

/// Performs a system call from within the SIGSYS handler, under signal mask `mask`. A signal that has a handler ends
/// the call. The answer is [`ERESTARTSYS`] when the call had not begun, or is to be restarted.
///
/// # Safety
/// As [`calls::raw_syscall`](crate::base::calls::raw_syscall). The caller must be on the agent's stack, with every
/// signal blocked.
pub unsafe fn inner_call(nr: u64, args: &[u64; 6], mask: u64) -> i64 {
    // SAFETY: forwarded contract.
    unsafe { ebb_inner(nr, args.as_ptr(), &mask) }
}

/// Frees the block whose stack this runs on, and ends the thread.
///
/// # Safety
/// Every signal must be blocked; nobody else may use anything of the block.
pub unsafe fn exit_thread(status: u64, used: &core::sync::atomic::AtomicU32) -> ! {
    // SAFETY: forwarded contract.
    unsafe { ebb_exit_thread(status, used) }
}
