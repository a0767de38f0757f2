//! Signals as they come in: delivered at once where the program runs, held back where the agent runs.

use crate::base::action::SIG_IGN;
use crate::base::frame::{Context, SigInfo};
use crate::base::signum::{self, FULL_MASK, OURS, SIGSYS};
use crate::base::{copy, user};
use crate::signals::{delivery, first, masks, syscalls, traced};
use crate::syscalls::{trap, uprobe};
use crate::threads::entry::{self, InnerAt, StubAt, handler_entry};
use crate::threads::thread::{self, ThreadBlock, at};
use core::arch::global_asm;
use core::sync::atomic::Ordering::Relaxed;
use linux_raw_sys::{errno as e, general as g};

handler_entry!(
    /// The kernel's entry for every signal that the program handles and the agent does not need.
    on_signal,
    signal
);

unsafe extern "C" fn signal(_sig: i32, info: *const SigInfo, uc: *mut Context) {
    // SAFETY: the kernel calls with its own frame; the block is the calling thread's.
    let (b, info, uc) = unsafe { (&*thread::on_stack(), &*info, &mut *uc) };
    if b.is_passing.get() && uprobe::end(b, info, uc) {
        return;
    }
    arrive(b, info, uc);
}

/// Handles a signal for the program that arrived at `uc`.
pub fn arrive(b: &ThreadBlock, info: &SigInfo, uc: &mut Context) {
    let from_another = first::handed_over(b, info);
    let info = from_another.as_ref().unwrap_or(info);
    let sig = info.signo;
    if info.is_fault()
        && let Some(ip) = copy::fixup(uc.regs.ip).or_else(|| entry::current_fixup(uc.regs.ip))
    {
        uc.regs.ip = ip;
        return;
    }
    if b.owns(uc.regs.sp) || (masks::is_inside(uc) && !info.is_fault()) {
        hold(b, info, uc);
        return;
    }
    masks::note_open(b, uc);
    if b.asks_to_be_traced.get() && traced::at_signal(b, info) {
        return;
    }
    let at = entry::stub_at(uc.regs.ip);
    let interrupted = at == StubAt::After && uc.regs.ax as i64 == -(e::EINTR as i64);
    let old = masks::program_mask(b, uc);
    let base = if interrupted && b.call.has_mask.get() { b.call.mask.get() } else { old };
    let is_ignored = b.table().get(sig).handler == SIG_IGN;
    if info.is_fault() {
        if base & signum::bit(sig) != 0 || is_ignored {
            // The kernel ends a thread that blocks or ignores its own fault.
            delivery::die(sig, delivery::comes_again(info));
            return;
        }
    } else if signum::bit(sig) & OURS != 0 && (base & signum::bit(sig) != 0 || is_ignored) {
        let waits_for_it = interrupted
            && b.call.nr.get() == g::__NR_rt_sigtimedwait as u64
            && user::read::<u64>(b.call.args.get()[0]).is_ok_and(|set| set & signum::bit(sig) != 0);
        if waits_for_it {
            trap::finish(b, uc, syscalls::dequeue(b.call.args.get()[1], info));
        } else {
            if !is_ignored {
                b.queue().push(info);
            }
            if interrupted {
                trap::rewind(b, uc);
            }
        }
        return;
    } else if !interrupted && !is_ignored && first::hand_over(b, info) {
        return;
    }
    normalise(b, uc);
    let mut shown = *info;
    if at != StubAt::Outside && sig == SIGSYS && info.is_fault() {
        // A seccomp filter trapped the call in the stub. To the program, its own instruction made it.
        shown.addr = uc.regs.ip;
    }
    delivery::deliver(b, &shown, uc, base, old);
}

/// Holds back a signal that found agent code on the agent's own stack, or inside the engine. A fault there is the
/// agent's failure.
fn hold(b: &ThreadBlock, info: &SigInfo, uc: &mut Context) {
    if info.is_fault() {
        crash(info, uc);
        return;
    }
    b.queue().deferred.store(1, Relaxed);
    if entry::is_leaving(uc.regs.ip) {
        uc.regs.ip = entry::restorer();
    }
    let at = entry::inner_at(uc.regs.ip);
    if at == InnerAt::Before {
        // The kernel itself restarts a call that had a timeout; rbx keeps that call's number.
        let resumes = uc.regs.ax == g::__NR_restart_syscall as u64 && uc.regs.bx != uc.regs.ax;
        uc.regs.ax = if resumes { -(e::EINTR as i64) } else { entry::ERESTARTSYS } as u64;
        uc.regs.ip = entry::inner_after();
    }
    if signum::bit(info.signo) & OURS != 0 {
        b.queue().push(info);
    } else {
        // Everything is blocked from here on, so a second signal never comes.
        b.queue().hold(info);
    }
    if b.owns(uc.regs.sp) {
        // An inner call and a wait of the engine have some open.
        uc.mask |= FULL_MASK;
    }
}

/// Turns a context in the stub into one in the program: before its own system-call instruction, or after it.
fn normalise(b: &ThreadBlock, uc: &mut Context) {
    match entry::stub_at(uc.regs.ip) {
        StubAt::Outside => {}
        StubAt::Before => {
            let restart = g::__NR_restart_syscall as u64;
            if uc.regs.ax == restart && b.call.nr.get() != restart {
                trap::finish(b, uc, -(e::EINTR as i64));
            } else {
                trap::rewind(b, uc);
            }
        }
        StubAt::After | StubAt::Asks => {
            trap::returned(b, uc);
            // The call is to be made once more, after the handler.
            if entry::stub_at(uc.regs.ip) != StubAt::Outside {
                trap::rewind(b, uc);
            }
        }
    }
}

// Every handler of the agent ends here. The look for held-back signals and the return are one restartable sequence, so
// that no signal is overlooked between the two.
global_asm!(
    ".pushsection .text.ebb_entry,\"ax\",@progbits",
    // At entry the stack pointer is the context's address.
    ".p2align 4",
    ".cfi_startproc simple",
    ".cfi_signal_frame",
    // The registers of `struct ucontext`, relative to the stack pointer.
    ".cfi_def_cfa rsp, 0",
    ".cfi_offset r8, 40",
    ".cfi_offset r9, 48",
    ".cfi_offset r10, 56",
    ".cfi_offset r11, 64",
    ".cfi_offset r12, 72",
    ".cfi_offset r13, 80",
    ".cfi_offset r14, 88",
    ".cfi_offset r15, 96",
    ".cfi_offset rdi, 104",
    ".cfi_offset rsi, 112",
    ".cfi_offset rbp, 120",
    ".cfi_offset rbx, 128",
    ".cfi_offset rdx, 136",
    ".cfi_offset rax, 144",
    ".cfi_offset rcx, 152",
    ".cfi_offset rsp, 160",
    ".cfi_offset rip, 168",
    // An unwinder looks one byte before a return address.
    "nop",
    ".globl ebb_restorer",
    ".hidden ebb_restorer",
    ".type ebb_restorer,@function",
    "ebb_restorer:",
    "mov rcx, rsp",
    "and rcx, -{block_bytes}",
    "cmp dword ptr [rcx + {head_at} + {deferred}], 0",
    "jne 2f",
    "mov eax, {sigreturn}",
    ".globl ebb_restorer_end",
    ".hidden ebb_restorer_end",
    "ebb_restorer_end:",
    "syscall",
    "2: mov rdi, rsp",
    "call {deliver_deferred}",
    "test al, al",
    "jne ebb_restorer",
    // Signals that still wait are for the handler, or the engine call, that this handler interrupted.
    "mov eax, {sigreturn}",
    "syscall",
    ".cfi_endproc",
    ".size ebb_restorer, . - ebb_restorer",
    ".popsection",
    deferred = const at::DEFERRED,
    block_bytes = const thread::BLOCK_BYTES,
    head_at = const thread::HEAD_AT,
    sigreturn = const g::__NR_rt_sigreturn,
    deliver_deferred = sym deliver_deferred,
);

/// Delivers what was held back, when a handler of the agent returns to `uc`. If `uc` is in agent code itself, nothing
/// is delivered: that code delivers on its own way out. True when the restorer must look again.
pub unsafe extern "C" fn deliver_deferred(uc: *mut Context) -> bool {
    // SAFETY: called by the restorer, with the kernel's frame and on the calling thread's block.
    let (b, uc) = unsafe { (&*thread::on_stack(), &mut *uc) };
    if b.owns(uc.regs.sp) || masks::is_inside(uc) {
        return false;
    }
    masks::allow_faults();
    b.queue().deferred.store(0, Relaxed);
    while let Some(info) = b.queue().pop(!b.blocked.get()) {
        normalise(b, uc);
        let old = masks::program_mask(b, uc);
        delivery::deliver(b, &info, uc, old, old);
    }
    true
}

/// Reports a fault in the agent's own code, and ends the process: it cannot go on.
fn crash(info: &SigInfo, uc: &Context) {
    let mut line = crate::base::text::Line::new();
    line.str("ebb: the agent itself failed: signal ").num(info.signo as u64);
    line.str(" code ").num(info.code as u64).str(" for address 0x").hex(info.addr).str(" at 0x").hex(uc.regs.ip);
    line.str(", code at 0x").hex(crate::base::here::text_range().0).str("; please report this\n");
    line.write();
    delivery::die(info.signo, None);
}
