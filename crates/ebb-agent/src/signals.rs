//! Signals as the program sees them, on top of signals as the agent needs them.
//!
//! The agent can never do without SIGBUS (faults), SIGSYS (system calls) and SIGSEGV (its own accesses to program
//! memory); these are [`OURS`]. The kernel never blocks them, and always delivers them to the agent; whether the
//! program blocked, ignored or handles them is virtual. Every other signal is blocked and ignored by the kernel as the
//! program says, but its handlers are entered through the agent too: the kernel delivers on the agent's stack, and
//! [`deliver`] builds the frame that the kernel would have built on the program's. That gives the program's handler
//! the context, mask and stack it would have, wherever the signal found the thread.
//!
//! Invariants:
//! * a mask that the kernel sees never has a bit of [`OURS`] (but for the length of an execve);
//! * the program's mask is the kernel's plus `ThreadBlock::blocked`;
//! * a program handler runs only when no agent code of its thread is on any stack, except an interposed function that
//!   is outside the engine;
//! * the agent's handlers run with everything blocked but SIGBUS and SIGSEGV, and those of these two with everything
//!   blocked until they turn to the program's memory: so they nest no deeper than two, however many signals are sent.

use crate::actions::{Action, SA_ONSTACK, SA_RESTORER, SIG_DFL, SIG_IGN, set_kernel_action};
use crate::entry::{self, InnerAt, StubAt, handler_entry};
use crate::frame::{self, AltStack, Context, Frame, SigInfo};
use crate::thread::{self, ThreadBlock};
use crate::traced;
use crate::trap;
pub use crate::trap::settle;
use crate::uprobe;
use crate::user;
use core::mem::size_of;
use core::ptr;
use core::sync::atomic::Ordering::Relaxed;
use ebb::uapi;
use linux_raw_sys::errno as e;
use linux_raw_sys::general as g;

/// Highest signal number.
pub const SIGNALS: i32 = 64;
pub const SIGKILL: i32 = 9;
pub const SIGSTOP: i32 = 19;
pub const SIGILL: i32 = 4;
pub const SIGTRAP: i32 = 5;
pub const SIGBUS: i32 = 7;
pub const SIGSEGV: i32 = 11;
pub const SIGSYS: i32 = 31;

const SS_ONSTACK: i32 = 1;
/// `sigaltstack`: there is none.
pub const SS_DISABLE: i32 = 2;
const SS_AUTODISARM: i32 = i32::MIN;
const MINSIGSTKSZ: u64 = 2048;

const SI_KERNEL: i32 = 0x80;
const SYS_USER_DISPATCH: i32 = 2;

/// The signals that the agent holds for itself.
pub const OURS: u64 = bit(SIGBUS) | bit(SIGSEGV) | bit(SIGSYS);
/// What is blocked while agent code runs: all but what its own accesses to program memory may raise.
pub const FULL_MASK: u64 = !(bit(SIGBUS) | bit(SIGSEGV));
/// Nobody blocks or handles these.
pub const UNBLOCKABLE: u64 = bit(SIGKILL) | bit(SIGSTOP);

/// [`block_all`] found that the agent's handler runs, where everything is blocked already.
const IN_HANDLER: u64 = u64::MAX;

/// A signal's bit in a mask.
pub const fn bit(sig: i32) -> u64 {
    1 << (sig - 1)
}

/// The part of a mask that the kernel is given.
pub const fn kernel_part(mask: u64) -> u64 {
    mask & !OURS & !UNBLOCKABLE
}

/// The part of a mask that is virtual.
pub const fn virtual_part(mask: u64) -> u64 {
    mask & OURS
}

/// In a handler of SIGBUS or SIGSEGV, before it turns to the program's memory.
pub fn allow_faults() {
    set_kernel_mask(FULL_MASK);
}

/// Sets the calling thread's mask; the old one. Not on a stack of the program's: see [`exchange_mask`].
pub fn set_kernel_mask(mask: u64) -> u64 {
    let mut old = 0u64;
    // SAFETY: the kernel reads and writes one mask each.
    unsafe { exchange_mask(&mask, &mut old) };
    old
}

/// Sets the calling thread's mask to `new`, and `old`, unless that is null, to what it was.
///
/// The kernel refuses a mask on a page that is out, and has then blocked what it does not tell. So both are where
/// nothing is ever evicted: a program's stack may be.
///
/// # Safety
/// The pointers are valid for the kernel to read and write.
unsafe fn exchange_mask(new: *const u64, old: *mut u64) {
    // SAFETY: the caller's contract.
    let ret = unsafe {
        entry::raw_syscall(
            g::__NR_rt_sigprocmask as u64,
            &[g::SIG_SETMASK as u64, new as u64, old as u64, size_of::<u64>() as u64, 0, 0],
        )
    };
    debug_assert_eq!(ret, 0);
}

/// [`FULL_MASK`] and no signal at all, where nothing is ever evicted.
static BLOCKED: u64 = FULL_MASK;
static OPEN: u64 = 0;

/// Blocks every signal but those of [`FULL_MASK`], before a call into the engine. Give the answer to [`restore`].
///
/// # Safety
/// `block` is the calling thread's.
pub unsafe fn block_all(block: *mut ThreadBlock) -> u64 {
    let here = 0u8;
    // SAFETY: the calling thread's own block.
    let b = unsafe { &mut *block };
    if b.owns(ptr::from_ref(&here) as u64) {
        return IN_HANDLER;
    }
    // SAFETY: a static, and a word of the thread's own block. Until it is read every signal is blocked that could come
    // here a second time.
    unsafe { exchange_mask(&BLOCKED, &raw mut b.kernel_mask) };
    settle(b);
    b.kernel_mask
}

/// Ends what [`block_all`] began.
///
/// # Safety
/// `block` is the calling thread's.
pub unsafe fn restore(block: *mut ThreadBlock, mask: u64) {
    if mask == IN_HANDLER {
        return;
    }
    // SAFETY: the calling thread's own block.
    let b = unsafe { &mut *block };
    b.kernel_mask = mask;
    // SAFETY: a word of the thread's own block; every signal is blocked until the kernel has read it.
    unsafe { exchange_mask(&raw const b.kernel_mask, ptr::null_mut()) };
    if b.queue().deferred.swap(0, Relaxed) != 0 {
        // Outside a handler there is no frame to change: have the signals arrive once more.
        while let Some(info) = b.queue().pop(!b.blocked) {
            raise(&info);
        }
    }
}

/// Sends the calling thread a signal with all its details.
pub fn raise(info: &SigInfo) {
    let at = ptr::from_ref(info);
    loop {
        // SAFETY: a valid reference. On a stack of the program's this brings the pages in that the kernel reads next.
        let signo = unsafe {
            (&raw const (*at).rest[11]).read_volatile();
            (&raw const (*at).signo).read_volatile()
        };
        // SAFETY: the kernel reads one siginfo.
        let ret = unsafe {
            entry::raw_syscall(g::__NR_rt_tgsigqueueinfo as u64, &[getpid(), gettid(), signo as u64, at as u64, 0, 0])
        };
        // The page is out again: nothing was sent.
        if ret != EFAULT {
            return;
        }
    }
}

/// The calling process's number.
pub fn getpid() -> u64 {
    // SAFETY: no effect on memory.
    unsafe { entry::raw_syscall(g::__NR_getpid as u64, &[0; 6]) as u64 }
}

/// The calling thread's number.
pub fn gettid() -> u64 {
    // SAFETY: no effect on memory.
    unsafe { entry::raw_syscall(g::__NR_gettid as u64, &[0; 6]) as u64 }
}

/// The program's mask of the thread whose context this is.
pub fn program_mask(b: &ThreadBlock, uc: &Context) -> u64 {
    uc.mask | b.blocked
}

/// Sets the program's mask, for when `uc` is returned to.
pub fn set_program_mask(b: &mut ThreadBlock, uc: &mut Context, mask: u64) {
    uc.mask = kernel_part(mask);
    b.blocked = virtual_part(mask);
    b.queue().poke(!b.blocked);
}

handler_entry!(
    /// The kernel's entry for every signal that the program handles and the agent does not need.
    on_signal,
    signal
);

unsafe extern "C" fn signal(_sig: i32, info: *const SigInfo, uc: *mut Context) {
    // SAFETY: the kernel calls with its own frame; the block is the calling thread's.
    let (b, info, uc) = unsafe { (&mut *thread::on_stack(), &*info, &mut *uc) };
    if b.is_passing && uprobe::end(b, info, uc) {
        return;
    }
    arrive(b, info, uc);
}

/// True when `uc` is inside the engine, or on the way in or out: no mask of the program's has SIGSYS for the kernel.
pub fn is_inside(uc: &Context) -> bool {
    uc.mask & bit(SIGSYS) != 0
}

/// A signal that is the program's arrived at `uc`.
pub fn arrive(b: &mut ThreadBlock, info: &SigInfo, uc: &mut Context) {
    let sig = info.signo;
    if info.is_fault()
        && let Some(ip) = entry::copy_fixup(uc.regs.ip)
    {
        uc.regs.ip = ip;
        return;
    }
    if b.owns(uc.regs.sp) || (is_inside(uc) && !info.is_fault()) {
        hold(b, info, uc);
        return;
    }
    if b.asks_to_be_traced && traced::at_signal(b, info) {
        return;
    }
    let at = entry::stub_at(uc.regs.ip);
    let interrupted = at == StubAt::After && uc.regs.ax as i64 == -(e::EINTR as i64);
    let old = program_mask(b, uc);
    let base = if interrupted && b.call.has_mask { b.call.mask } else { old };
    let is_ignored = b.table().get(sig).handler == SIG_IGN;
    if info.is_fault() {
        if base & bit(sig) != 0 || is_ignored {
            // The kernel ends a thread that blocks or ignores its own fault.
            die(sig, comes_again(info));
            return;
        }
    } else if bit(sig) & OURS != 0 && (base & bit(sig) != 0 || is_ignored) {
        let waits_for_it = interrupted
            && b.call.nr == g::__NR_rt_sigtimedwait as u64
            && user::read::<u64>(b.call.args[0]).is_ok_and(|set| set & bit(sig) != 0);
        if waits_for_it {
            trap::finish(b, uc, dequeue(b.call.args[1], info));
        } else {
            if !is_ignored {
                b.queue().push(info);
            }
            if interrupted {
                trap::rewind(b, uc);
            }
        }
        return;
    }
    normalise(b, uc);
    let mut shown = *info;
    if at != StubAt::Outside && sig == SIGSYS && info.is_fault() {
        // A seccomp filter trapped the call, which to the program is its own instruction.
        shown.addr = uc.regs.ip;
    }
    deliver(b, &shown, uc, base, old);
}

/// What must be sent anew to have its default action: all but a fault, which happens anew. A call that a seccomp filter
/// trapped does not: it is over.
fn comes_again(info: &SigInfo) -> Option<&SigInfo> {
    (!info.is_fault() || info.signo == SIGSYS).then_some(info)
}

/// A signal that found agent code on the agent's own stack, or inside the engine.
fn hold(b: &mut ThreadBlock, info: &SigInfo, uc: &mut Context) {
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
        // The kernel's own restart of a call that had a timeout; its number is kept in rbx.
        let resumes = uc.regs.ax == g::__NR_restart_syscall as u64 && uc.regs.bx != uc.regs.ax;
        uc.regs.ax = if resumes { -(e::EINTR as i64) } else { entry::ERESTARTSYS } as u64;
        uc.regs.ip = entry::inner_after();
    }
    if bit(info.signo) & OURS != 0 {
        b.queue().push(info);
    } else {
        // Everything is blocked from here on, so there is never a second.
        b.queue().hold(info);
    }
    if at != InnerAt::Outside {
        uc.mask = FULL_MASK;
    }
}

/// Shows the program's own context where the thread was found in the stub: before its system call, or after it.
fn normalise(b: &mut ThreadBlock, uc: &mut Context) {
    match entry::stub_at(uc.regs.ip) {
        StubAt::Outside => {}
        StubAt::Before => {
            let restart = g::__NR_restart_syscall as u64;
            if uc.regs.ax == restart && b.call.nr != restart {
                trap::finish(b, uc, -(e::EINTR as i64));
            } else {
                trap::rewind(b, uc);
            }
        }
        StubAt::After | StubAt::Asks => {
            trap::returned(b, uc);
            // The call is to be made once more: after the handler.
            if entry::stub_at(uc.regs.ip) != StubAt::Outside {
                trap::rewind(b, uc);
            }
        }
    }
}

/// Enters the program's handler from `uc`, whose mask becomes the handler's. `base` is the mask now in effect, `old`
/// the one to come back to.
fn deliver(b: &mut ThreadBlock, info: &SigInfo, uc: &mut Context, base: u64, old: u64) {
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
    set_program_mask(b, uc, action.mask_during(sig, base));
}

/// True when `sp` lies on the program's alternate stack, as `on_sig_stack` in the kernel has it.
fn is_on(alt: &AltStack, sp: u64) -> bool {
    alt.flags & SS_AUTODISARM == 0 && sp > alt.sp && sp - alt.sp <= alt.size
}

/// Where a handler's frame begins.
fn frame_top(alt: &AltStack, flags: u64, sp: u64) -> u64 {
    let below = sp.wrapping_sub(frame::RED_ZONE_BYTES);
    if flags & SA_ONSTACK != 0 && alt.size != 0 && !is_on(alt, below) { alt.sp + alt.size } else { below }
}

/// Builds the frame that the kernel would build, and points `uc` at the handler. False when the stack cannot take it.
fn push_frame(b: &mut ThreadBlock, info: &SigInfo, uc: &mut Context, action: &Action, old: u64) -> bool {
    if action.flags & SA_RESTORER == 0 {
        return false;
    }
    let fpstate = uc.regs.fpstate;
    // SAFETY: the kernel wrote at least the legacy area there, on the agent's stack.
    let bytes = if fpstate == 0 { 0 } else { frame::fpstate_bytes(unsafe { &*(fpstate as *const [u8; 512]) }) };
    let top = frame_top(&b.alt, action.flags, uc.regs.sp);
    let place = frame::place(top, bytes);
    let enters = top == b.alt.sp.wrapping_add(b.alt.size) && action.flags & SA_ONSTACK != 0 && b.alt.size != 0;
    if (enters || is_on(&b.alt, uc.regs.sp)) && !(place.frame > b.alt.sp && place.frame - b.alt.sp <= b.alt.size) {
        return false;
    }
    let mut shown = Frame { restorer: action.restorer, context: *uc, info: *info };
    shown.context.link = 0;
    shown.context.stack = b.alt;
    shown.context.mask = old;
    shown.context.regs.oldmask = old;
    shown.context.regs.fpstate = place.fpstate;
    // SAFETY: the kernel wrote `bytes` there; the program's stack below its pointer is the handler's to use.
    if bytes > 0 && !unsafe { entry::copy(place.fpstate, fpstate, bytes) } {
        return false;
    }
    if user::write(place.frame, &shown).is_err() {
        return false;
    }
    uc.regs.enter_handler(action.handler, info.signo, place.frame);
    if b.alt.flags & SS_AUTODISARM != 0 {
        // The engine goes on to take that stack for another than the one that was left for it.
        b.alt = AltStack { sp: 0, flags: SS_DISABLE, pad: 0, size: 0 };
    }
    true
}

/// Delivers what was held back, when a handler of the agent returns to `uc`. Not when that is agent code itself: its
/// own way out delivers. True when the restorer is to look again.
pub unsafe extern "C" fn deliver_deferred(uc: *mut Context) -> bool {
    // SAFETY: called by the restorer, with the kernel's frame and on the calling thread's block.
    let (b, uc) = unsafe { (&mut *thread::on_stack(), &mut *uc) };
    if b.owns(uc.regs.sp) || is_inside(uc) {
        return false;
    }
    allow_faults();
    b.queue().deferred.store(0, Relaxed);
    while let Some(info) = b.queue().pop(!b.blocked) {
        normalise(b, uc);
        let old = program_mask(b, uc);
        deliver(b, &info, uc, old, old);
    }
    true
}

/// The default action of `sig`, by the kernel itself, so that exit status and core dump are what they would be. A
/// fault happens anew when the agent returns; another signal is sent anew.
#[cold]
#[inline(never)]
pub fn die(sig: i32, again: Option<&SigInfo>) {
    /// Where nothing is ever evicted.
    static DEFAULT: Action = Action { handler: SIG_DFL, flags: 0, restorer: 0, mask: 0 };
    let _ = set_kernel_action(sig, &DEFAULT);
    if let Some(info) = again {
        raise(info);
    }
}

/// Ends the process by SIGABRT, whatever the program does about that.
#[cfg_attr(test, expect(dead_code, reason = "tests have their own panic handler"))]
pub fn abort() -> ! {
    const SIGABRT: i32 = 6;
    die(SIGABRT, Some(&SigInfo { signo: SIGABRT, code: -6, ..SigInfo::ZERO }));
    // SAFETY: a static.
    unsafe { exchange_mask(&OPEN, ptr::null_mut()) };
    uapi::exit_group(134)
}

/// A fault in the agent's own code. There is no way on.
fn crash(info: &SigInfo, uc: &Context) {
    let mut line = crate::text::Line::new();
    line.str("ebb: the agent itself failed: signal ").num(info.signo as u64);
    line.str(" code ").num(info.code as u64).str(" for address 0x").hex(info.addr).str(" at 0x").hex(uc.regs.ip);
    line.str(", code at 0x").hex(crate::start::text_range().0).str("; please report it\n");
    line.write();
    die(info.signo, None);
}

/// Writes a dequeued signal's details where rt_sigtimedwait wants them; that call's answer.
fn dequeue(to: u64, info: &SigInfo) -> i64 {
    if to != 0 && user::write(to, info).is_err() {
        return -(e::EFAULT as i64);
    }
    info.signo as i64
}

const EINVAL: i64 = -(e::EINVAL as i64);
const EFAULT: i64 = -(e::EFAULT as i64);

/// The mask that `how` makes of `old` and `set`; none when `how` is wrong.
fn combine(how: u32, old: u64, set: u64) -> Option<u64> {
    let mask = match how {
        g::SIG_BLOCK => old | set,
        g::SIG_UNBLOCK => old & !set,
        g::SIG_SETMASK => set,
        _ => return None,
    };
    Some(mask & !UNBLOCKABLE)
}

/// rt_sigprocmask(2).
pub fn sigprocmask(b: &mut ThreadBlock, uc: &mut Context, a: &[u64; 6]) -> i64 {
    if a[3] != 8 {
        return EINVAL;
    }
    let old = program_mask(b, uc);
    if a[1] != 0 {
        let Ok(set) = user::read::<u64>(a[1]) else { return EFAULT };
        let Some(mask) = combine(a[0] as u32, old, set) else { return EINVAL };
        set_program_mask(b, uc, mask);
    }
    if a[2] != 0 && user::write(a[2], &old).is_err() { EFAULT } else { 0 }
}

/// rt_sigpending(2).
pub fn sigpending(b: &ThreadBlock, a: &[u64; 6]) -> i64 {
    let mut set = 0u64;
    // SAFETY: the kernel writes at most one mask.
    let ret = unsafe { entry::raw_syscall(g::__NR_rt_sigpending as u64, &[&raw mut set as u64, a[1], 0, 0, 0, 0]) };
    if ret != 0 {
        return ret;
    }
    set |= b.queue().pending() & b.blocked;
    let bytes = set.to_ne_bytes();
    // SAFETY: the agent's side is `bytes`; the kernel accepted the size, which is at most a mask's.
    let copied = unsafe { entry::copy(a[0], bytes.as_ptr() as u64, (a[1] as usize).min(8)) };
    if copied { 0 } else { EFAULT }
}

/// rt_sigtimedwait(2), as far as a signal waits in the agent.
pub fn sigtimedwait(b: &mut ThreadBlock, a: &[u64; 6]) -> Option<i64> {
    if b.queue().pending() == 0 || a[3] != 8 {
        return None;
    }
    let set = user::read::<u64>(a[0]).ok()?;
    let info = b.queue().pop(set)?;
    Some(dequeue(a[1], &info))
}

/// What sigaltstack makes of `new` for a thread whose stack pointer is `sp`.
fn alt_set(alt: &mut AltStack, new: &AltStack, sp: u64) -> i64 {
    if is_on(alt, sp) {
        return -(e::EPERM as i64);
    }
    let mode = new.flags & !SS_AUTODISARM;
    if mode != SS_DISABLE && mode != SS_ONSTACK && mode != 0 {
        return EINVAL;
    }
    *alt = if mode == SS_DISABLE {
        AltStack { sp: 0, flags: new.flags, pad: 0, size: 0 }
    } else if new.size < MINSIGSTKSZ {
        return -(e::ENOMEM as i64);
    } else {
        AltStack { sp: new.sp, flags: new.flags, pad: 0, size: new.size }
    };
    0
}

/// sigaltstack(2). The kernel keeps the agent's stack; this one is used when frames are built.
pub fn sigaltstack(b: &mut ThreadBlock, sp: u64, a: &[u64; 6]) -> i64 {
    let mut old = b.alt;
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
        let ret = alt_set(&mut b.alt, &new, sp);
        if ret != 0 {
            return ret;
        }
        b.tell_alt_stack();
    }
    if a[1] != 0 && user::write(a[1], &old).is_err() { EFAULT } else { 0 }
}

/// The program's alternate stack as the kernel had it, when the process becomes a managed one.
pub fn take_over_stack(b: &mut ThreadBlock, old: &AltStack) {
    b.alt = if old.flags & SS_DISABLE != 0 {
        AltStack { sp: 0, flags: SS_DISABLE, pad: 0, size: 0 }
    } else {
        AltStack { flags: old.flags & SS_AUTODISARM, ..*old }
    };
}

/// rt_sigreturn(2): takes the program's frame and makes it the context that the agent returns to.
pub fn sigreturn(b: &mut ThreadBlock, uc: &mut Context) {
    if restore_frame(b, uc).is_err() {
        let old = program_mask(b, uc);
        let info = SigInfo { signo: SIGSEGV, code: SI_KERNEL, ..SigInfo::ZERO };
        if old & bit(SIGSEGV) != 0 {
            die(SIGSEGV, Some(&info));
        } else {
            deliver(b, &info, uc, old, old);
        }
    }
}

fn restore_frame(b: &mut ThreadBlock, uc: &mut Context) -> Result<(), user::Fault> {
    let mut shown: Context = user::read(uc.regs.sp)?;
    if shown.regs.fpstate != 0 {
        let legacy: [u8; 512] = user::read(shown.regs.fpstate)?;
        let bytes = frame::fpstate_bytes(&legacy);
        user::read_bytes(shown.regs.fpstate, &mut b.fpstate.0[..bytes])?;
        // The kernel must find it where no page is ever missing.
        shown.regs.fpstate = b.fpstate.0.as_ptr() as u64;
    }
    uc.flags = shown.flags;
    uc.regs = shown.regs;
    // As in the kernel, a wrong stack is ignored.
    let _ = alt_set(&mut b.alt, &shown.stack, shown.regs.sp);
    b.tell_alt_stack();
    set_program_mask(b, uc, shown.mask & !UNBLOCKABLE);
    Ok(())
}

/// A call that replaces the mask while it waits: argument `at` points to the mask, the next is its size. True when the
/// arguments to use in place of `used` name the agent's copy; then the answer says whether a signal waits already that
/// the new mask lets through.
pub fn replace_mask(b: &mut ThreadBlock, used: &mut [u64; 6], at: usize) -> Result<(), i64> {
    if used[at] == 0 || used[at + 1] != 8 {
        return Ok(());
    }
    let mask = user::read::<u64>(used[at]).map_err(|_| EFAULT)?;
    set_call_mask(b, mask);
    used[at] = &raw const b.call.kernel_mask as u64;
    Ok(())
}

/// As [`replace_mask`], where argument `at` points to pointer and size.
pub fn replace_mask_arg(b: &mut ThreadBlock, used: &mut [u64; 6], at: usize) -> Result<(), i64> {
    if used[at] == 0 {
        return Ok(());
    }
    let arg = user::read::<[u64; 2]>(used[at]).map_err(|_| EFAULT)?;
    if arg[0] == 0 || arg[1] != 8 {
        return Ok(());
    }
    let mask = user::read::<u64>(arg[0]).map_err(|_| EFAULT)?;
    set_call_mask(b, mask);
    b.call.mask_arg = [&raw const b.call.kernel_mask as u64, arg[1]];
    used[at] = b.call.mask_arg.as_ptr() as u64;
    Ok(())
}

fn set_call_mask(b: &mut ThreadBlock, mask: u64) {
    b.call.has_mask = true;
    b.call.mask = mask & !UNBLOCKABLE;
    b.call.kernel_mask = kernel_part(mask);
}

/// A call with its own mask finds a signal waiting that this mask lets through: the call is over before it began.
pub fn deliver_under_call_mask(b: &mut ThreadBlock, uc: &mut Context) -> bool {
    if !b.call.has_mask || b.queue().pending() & !b.call.mask == 0 {
        return false;
    }
    let (base, old) = (b.call.mask, program_mask(b, uc));
    while let Some(info) = b.queue().pop(!base) {
        uc.regs.ax = -(e::EINTR as i64) as u64;
        deliver(b, &info, uc, base, old);
    }
    true
}

const _: () = assert!(SYS_USER_DISPATCH == 2);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filled_mask_leaves_the_agents_signals_to_the_kernel_unblocked() {
        assert_eq!(kernel_part(u64::MAX) & OURS, 0);
    }

    #[test]
    fn kernel_and_virtual_part_together_are_the_programs_mask() {
        let mask = bit(SIGBUS) | bit(2) | bit(SIGSYS);
        assert_eq!(kernel_part(mask) | virtual_part(mask), mask);
    }

    #[test]
    fn blocking_adds_and_unblocking_removes() {
        assert_eq!(combine(g::SIG_BLOCK, bit(1), bit(7)), Some(bit(1) | bit(7)));
        assert_eq!(combine(g::SIG_UNBLOCK, bit(1) | bit(7), bit(7)), Some(bit(1)));
    }

    #[test]
    fn nobody_blocks_sigkill() {
        assert_eq!(combine(g::SIG_SETMASK, 0, bit(SIGKILL) | bit(1)), Some(bit(1)));
    }

    #[test]
    fn an_unknown_way_to_change_a_mask_is_refused() {
        assert_eq!(combine(7, 0, 0), None);
    }

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
        let mut alt = AltStack { sp: 0x10000, flags: 0, pad: 0, size: 0x2000 };
        let new = AltStack { sp: 0x50000, flags: 0, pad: 0, size: 0x2000 };
        assert_eq!(alt_set(&mut alt, &new, 0x11000), -(e::EPERM as i64));
    }

    #[test]
    fn a_tiny_alternate_stack_is_refused() {
        let mut alt = AltStack::default();
        let new = AltStack { sp: 0x50000, flags: 0, pad: 0, size: 100 };
        assert_eq!(alt_set(&mut alt, &new, 0x11000), -(e::ENOMEM as i64));
    }
}
