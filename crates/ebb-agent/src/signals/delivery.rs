//! Delivering a signal: the frame that the kernel would have built, and the way back.

use crate::base::action::{Action, SA_ONSTACK, SA_RESTORER, SIG_DFL, SIG_IGN};
use crate::base::frame::{self, AltStack, Context, Frame, SigInfo};
use crate::base::signum::{self, SIGSEGV, SIGSYS, SS_DISABLE, UNBLOCKABLE};
use crate::base::{copy, user};
use crate::signals::masks;
use crate::threads::actions::set_kernel_action;
use crate::threads::thread::ThreadBlock;
use core::cell::Cell;
use core::ptr;
use ebb::uapi;
use linux_raw_sys::errno as e;

const EFAULT: i64 = -(e::EFAULT as i64);

const EINVAL: i64 = -(e::EINVAL as i64);

const SS_ONSTACK: i32 = 1;
const SS_AUTODISARM: i32 = i32::MIN;
const MINSIGSTKSZ: u64 = 2048;

const SI_KERNEL: i32 = 0x80;

/// What must be sent again to have its default action: every signal but a fault, which happens again by itself. A call
/// that a seccomp filter trapped does not happen again, because it is over.
pub(crate) fn comes_again(info: &SigInfo) -> Option<&SigInfo> {
    (!info.is_fault() || info.signo == SIGSYS).then_some(info)
}

/// Enters the program's handler from `uc`, whose mask becomes the handler's. `base` is the mask that is in effect now,
/// `old` the one to return to.
pub(crate) fn deliver(b: &ThreadBlock, info: &SigInfo, uc: &mut Context, base: u64, old: u64) {
    let sig = info.signo;
    let action = b.table().take(sig);
    match action.handler {
        SIG_IGN => return,
        SIG_DFL => return die(sig, comes_again(info)),
        _ => {}
    }
    if !push_frame(b, info, uc, &action, old) {
        if sig == SIGSEGV {
            return die(sig, Some(info));
        }
        let segv = SigInfo { signo: SIGSEGV, code: SI_KERNEL, ..SigInfo::ZERO };
        return deliver(b, &segv, uc, base, old);
    }
    masks::set_program_mask(b, uc, action.mask_during(sig, base));
}

/// True when `sp` lies on the program's alternate stack, as `on_sig_stack` in the kernel has it.
fn is_on(alt: &AltStack, sp: u64) -> bool {
    alt.flags & SS_AUTODISARM == 0 && sp > alt.sp && sp - alt.sp <= alt.size
}

/// Where a handler's frame begins: at the top of the alternate stack, or below the red zone.
pub(crate) fn frame_top(alt: &AltStack, flags: u64, sp: u64) -> u64 {
    let below = sp.wrapping_sub(frame::RED_ZONE_BYTES);
    if flags & SA_ONSTACK != 0 && alt.size != 0 && !is_on(alt, below) { alt.sp + alt.size } else { below }
}

/// Builds the frame that the kernel would build, and points `uc` at the handler. False when the stack cannot take it.
fn push_frame(b: &ThreadBlock, info: &SigInfo, uc: &mut Context, action: &Action, old: u64) -> bool {
    if action.flags & SA_RESTORER == 0 {
        return false;
    }
    let fpstate = uc.regs.fpstate;
    // SAFETY: the kernel wrote at least the legacy area there, on the agent's stack.
    let bytes = if fpstate == 0 { 0 } else { frame::fpstate_bytes(unsafe { &*(fpstate as *const [u8; 512]) }) };
    let top = frame_top(&b.alt.get(), action.flags, uc.regs.sp);
    let place = frame::place(top, bytes);
    let enters =
        top == b.alt.get().sp.wrapping_add(b.alt.get().size) && action.flags & SA_ONSTACK != 0 && b.alt.get().size != 0;
    if (enters || is_on(&b.alt.get(), uc.regs.sp))
        && !(place.frame > b.alt.get().sp && place.frame - b.alt.get().sp <= b.alt.get().size)
    {
        return false;
    }
    let mut shown = Frame { restorer: action.restorer, context: *uc, info: *info };
    shown.context.link = 0;
    shown.context.stack = b.alt.get();
    shown.context.mask = old;
    shown.context.regs.oldmask = old;
    shown.context.regs.fpstate = place.fpstate;
    // SAFETY: the kernel wrote `bytes` there; the program's stack below its pointer is the handler's to use.
    if bytes > 0 && !unsafe { copy::copy(place.fpstate, fpstate, bytes) } {
        return false;
    }
    if user::write(place.frame, &shown).is_err() {
        return false;
    }
    uc.regs.enter_handler(action.handler, info.signo, place.frame);
    if b.alt.get().flags & SS_AUTODISARM != 0 {
        // The engine is not told, and goes on to take that stack for another than the one that the thread left for it.
        b.alt.set(AltStack { sp: 0, flags: SS_DISABLE, pad: 0, size: 0 });
    }
    true
}

/// Has the kernel itself perform the default action of `sig`, so that exit status and core dump are as without the
/// agent. A fault happens again when the agent returns; another signal is sent again.
#[cold]
#[inline(never)]
pub fn die(sig: i32, again: Option<&SigInfo>) {
    /// In a static, because nothing there is ever evicted.
    static DEFAULT: Action = Action { handler: SIG_DFL, flags: 0, restorer: 0, mask: 0 };
    let _ = set_kernel_action(sig, &DEFAULT);
    if let Some(info) = again {
        masks::raise(info);
    }
}

/// Ends the process by SIGABRT, whatever the program does about that signal.
#[cfg_attr(test, expect(dead_code, reason = "tests have their own panic handler"))]
pub fn abort() -> ! {
    const SIGABRT: i32 = 6;
    die(SIGABRT, Some(&SigInfo { signo: SIGABRT, code: -6, ..SigInfo::ZERO }));
    // Another signal that came first would have this one wait.
    static OTHERS: u64 = !signum::bit(SIGABRT);
    // SAFETY: a static.
    unsafe { masks::exchange_mask(&OTHERS, ptr::null_mut()) };
    uapi::exit_group(134)
}

/// Changes `alt` as sigaltstack does for `new`, in a thread whose stack pointer is `sp`. Returns 0 or the negative errno.
pub(crate) fn alt_set(alt: &Cell<AltStack>, new: &AltStack, sp: u64) -> i64 {
    if is_on(&alt.get(), sp) {
        return -(e::EPERM as i64);
    }
    let mode = new.flags & !SS_AUTODISARM;
    if mode != SS_DISABLE && mode != SS_ONSTACK && mode != 0 {
        return EINVAL;
    }
    if mode == SS_DISABLE {
        alt.set(AltStack { sp: 0, flags: new.flags, pad: 0, size: 0 });
    } else if new.size < MINSIGSTKSZ {
        return -(e::ENOMEM as i64);
    } else {
        alt.set(AltStack { sp: new.sp, flags: new.flags, pad: 0, size: new.size });
    }
    0
}

/// sigaltstack(2). The kernel keeps the agent's stack; the program's is used when frames are built.
pub fn sigaltstack(b: &ThreadBlock, sp: u64, a: &[u64; 6]) -> i64 {
    let mut old = b.alt.get();
    let state = if old.size == 0 {
        SS_DISABLE
    } else if is_on(&old, sp) {
        SS_ONSTACK
    } else {
        0
    };
    old.flags = state | (old.flags & SS_AUTODISARM);
    if a[0] != 0 {
        let Ok(new) = user::read::<AltStack>(a[0]) else { return EFAULT };
        let ret = alt_set(&b.alt, &new, sp);
        if ret != 0 {
            return ret;
        }
        b.tell_alt_stack();
    }
    if a[1] != 0 && user::write(a[1], &old).is_err() { EFAULT } else { 0 }
}

/// Takes over the program's alternate stack, as the kernel had it when the process becomes a managed one.
pub fn take_over_stack(b: &ThreadBlock, old: &AltStack) {
    b.alt.set(if old.flags & SS_DISABLE != 0 {
        AltStack { sp: 0, flags: SS_DISABLE, pad: 0, size: 0 }
    } else {
        AltStack { flags: old.flags & SS_AUTODISARM, ..*old }
    });
}

/// rt_sigreturn(2): makes the program's frame the context that the agent returns to.
pub fn sigreturn(b: &ThreadBlock, uc: &mut Context) {
    if restore_frame(b, uc).is_err() {
        let old = masks::program_mask(b, uc);
        let info = SigInfo { signo: SIGSEGV, code: SI_KERNEL, ..SigInfo::ZERO };
        if old & signum::bit(SIGSEGV) != 0 {
            die(SIGSEGV, Some(&info));
        } else {
            deliver(b, &info, uc, old, old);
        }
    }
}

fn restore_frame(b: &ThreadBlock, uc: &mut Context) -> Result<(), user::Fault> {
    let mut shown: Context = user::read(uc.regs.sp)?;
    if shown.regs.fpstate != 0 {
        let legacy: [u8; 512] = user::read(shown.regs.fpstate)?;
        let bytes = frame::fpstate_bytes(&legacy);
        // SAFETY: the thread's own memory, to which nobody refers while the handler runs; `bytes` is at most its size.
        let kept = unsafe { core::slice::from_raw_parts_mut(b.fpstate.0.get().cast::<u8>(), bytes) };
        user::read_bytes(shown.regs.fpstate, kept)?;
        // The kernel must find the vector state where no page is ever missing.
        shown.regs.fpstate = b.fpstate.0.get() as u64;
    }
    uc.flags = shown.flags;
    uc.regs = shown.regs;
    // As in the kernel, a wrong stack is ignored.
    let _ = alt_set(&b.alt, &shown.stack, shown.regs.sp);
    b.tell_alt_stack();
    masks::set_program_mask(b, uc, shown.mask & !UNBLOCKABLE);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_onstack_handler_begins_at_the_top_of_the_alternate_stack() {
        let alt = AltStack { sp: 0x10000, flags: 0, pad: 0, size: 0x2000 };
        assert_eq!(frame_top(&alt, SA_ONSTACK, 0x7fff_0000), 0x12000);
    }

    #[test]
    fn a_nested_onstack_handler_goes_on_below() {
        let alt = AltStack { sp: 0x10000, flags: 0, pad: 0, size: 0x2000 };
        assert_eq!(frame_top(&alt, SA_ONSTACK, 0x11000), 0x11000 - 128);
    }

    #[test]
    fn changing_the_alternate_stack_while_on_it_is_refused() {
        let alt = Cell::new(AltStack { sp: 0x10000, flags: 0, pad: 0, size: 0x2000 });
        let new = AltStack { sp: 0x50000, flags: 0, pad: 0, size: 0x2000 };
        assert_eq!(alt_set(&alt, &new, 0x11000), -(e::EPERM as i64));
    }

    #[test]
    fn a_tiny_alternate_stack_is_refused() {
        let alt = Cell::new(AltStack::default());
        let new = AltStack { sp: 0x50000, flags: 0, pad: 0, size: 100 };
        assert_eq!(alt_set(&alt, &new, 0x11000), -(e::ENOMEM as i64));
    }
}
