//! Masks: what the program blocks, what the kernel is told of that, and how signals are blocked around a call of the engine.

use crate::base::calls;
use crate::base::frame::{Context, SigInfo};
use crate::base::signum::{self, FULL_MASK, SIGSYS};
use crate::threads::thread::{self, ThreadBlock};
use core::mem::size_of;
use core::ptr;
use core::sync::atomic::Ordering::Relaxed;
use linux_raw_sys::{errno as e, general as g};

const SYS_USER_DISPATCH: i32 = 2;

/// What [`block_all`] returns in a handler of the agent, where everything is blocked already.
const IN_HANDLER: u64 = u64::MAX;

/// Opens SIGBUS and SIGSEGV in a handler of either, before the handler turns to the program's memory.
pub fn allow_faults() {
    set_kernel_mask(FULL_MASK);
}

/// Sets the calling thread's mask and returns the old one. Not for code on the program's stack: see [`exchange_mask`].
pub fn set_kernel_mask(mask: u64) -> u64 {
    let mut old = 0u64;
    // SAFETY: the kernel reads and writes one mask each.
    unsafe { exchange_mask(&mask, &mut old) };
    old
}

/// Sets the calling thread's mask to `new`, and `old`, unless that is null, to what it was.
///
/// When a mask is on a page that is out, the kernel refuses the call, but may have changed the mask without telling the
/// old one. So both must be where nothing is ever evicted. A program's stack may be evicted.
///
/// # Safety
/// The pointers must be valid for the kernel to read and write.
pub(crate) unsafe fn exchange_mask(new: *const u64, old: *mut u64) {
    // SAFETY: the caller's contract.
    let ret = unsafe {
        calls::raw_syscall(
            g::__NR_rt_sigprocmask as u64,
            &[g::SIG_SETMASK as u64, new as u64, old as u64, size_of::<u64>() as u64, 0, 0],
        )
    };
    debug_assert_eq!(ret, 0);
}

/// [`FULL_MASK`], where nothing is ever evicted.
static BLOCKED: u64 = FULL_MASK;

/// Blocks every signal of [`FULL_MASK`] before a call into the engine. The result is for [`restore`].
///
/// # Safety
/// `block` must be the calling thread's.
pub unsafe fn block_all(block: *mut ThreadBlock) -> u64 {
    let here = 0u8;
    // SAFETY: the calling thread's own block.
    let b = unsafe { &*block };
    if b.owns(ptr::from_ref(&here) as u64) {
        return IN_HANDLER;
    }
    // SAFETY: a static, and a word of the thread's own block. Until the word is read, every signal is blocked that
    // could come here a second time.
    unsafe { exchange_mask(&BLOCKED, b.kernel_mask.as_ptr()) };
    b.open.store(!b.kernel_mask.get(), Relaxed);
    end_pins(b);
    b.kernel_mask.get()
}

/// Ends what [`block_all`] began.
///
/// # Safety
/// `block` must be the calling thread's.
pub unsafe fn restore(block: *mut ThreadBlock, mask: u64) {
    if mask == IN_HANDLER {
        return;
    }
    // SAFETY: the calling thread's own block.
    let b = unsafe { &*block };
    b.kernel_mask.set(mask);
    // SAFETY: a word of the thread's own block; every signal is blocked until the kernel has read it.
    unsafe { exchange_mask(b.kernel_mask.as_ptr().cast_const(), ptr::null_mut()) };
    if b.queue().deferred.swap(0, Relaxed) != 0 {
        // Outside a handler there is no frame to change: make the signals arrive once more.
        while let Some(info) = b.queue().pop(!b.blocked.get()) {
            raise(&info);
        }
    }
}

/// Sends the calling thread a signal with all its details.
pub fn raise(info: &SigInfo) {
    let at = ptr::from_ref(info);
    loop {
        // SAFETY: a valid reference. On the program's stack, this brings in the pages that the kernel reads next.
        let signo = unsafe {
            (&raw const (*at).rest[11]).read_volatile();
            (&raw const (*at).signo).read_volatile()
        };
        // SAFETY: the kernel reads one siginfo.
        let ret = unsafe {
            calls::raw_syscall(
                g::__NR_rt_tgsigqueueinfo as u64,
                &[calls::getpid(), calls::gettid(), signo as u64, at as u64, 0, 0],
            )
        };
        // The page is out again: nothing was sent.
        if ret != EFAULT {
            return;
        }
    }
}

/// The program's mask in the thread whose context is `uc`.
pub fn program_mask(b: &ThreadBlock, uc: &Context) -> u64 {
    uc.mask | b.blocked.get()
}

/// Takes note of what the program's mask lets through, in a thread that enters the agent from `uc`, which is not agent code.
#[inline]
pub fn note_open(b: &ThreadBlock, uc: &Context) {
    b.open.store(!uc.mask, Relaxed);
}

/// The signals that a wait of the engine may let through: those that end or stop the process by their default action, as far as the
/// program does not block them. None in an Ebb thread.
///
/// A process that shares its parent's memory, as between vfork and exec, lets none through: it might leave the engine of its parent
/// half changed. Nor does a child that is to be traced first (see `traced`), a thread with `uprobe` at work, or one for which a
/// signal is held back: there is room for one.
///
/// If another thread gives one of these signals a handler meanwhile, that is held back until the agent leaves
/// (`handlers::signal`).
pub fn fatal() -> u64 {
    let Some(b) = thread::on_own_stack() else { return 0 };
    let is_exempt = b.foreign.get() || b.asks_to_be_traced.get() || b.is_passing.get() || b.queue().has_held();
    if is_exempt { 0 } else { b.open.load(Relaxed) & b.table().fatal() }
}

/// Sets the program's mask, which takes effect on the return to `uc`.
pub fn set_program_mask(b: &ThreadBlock, uc: &mut Context, mask: u64) {
    uc.mask = signum::kernel_part(mask);
    note_open(b, uc);
    b.blocked.set(signum::virtual_part(mask));
    b.queue().poke(!b.blocked.get());
}

/// True when `uc` is inside the engine, or on the way in or out. Only there does the kernel have SIGSYS blocked: no
/// mask of the program's that it gets blocks SIGSYS.
pub fn is_inside(uc: &Context) -> bool {
    uc.mask & signum::bit(SIGSYS) != 0
}

const EFAULT: i64 = -(e::EFAULT as i64);

const _: () = assert!(SYS_USER_DISPATCH == 2);

/// Ends the pins of a call that has returned to the program since.
#[inline]
pub fn end_pins(b: &ThreadBlock) {
    // A handler that runs between load and swap has ended the pins itself.
    if b.call.pinned.load(Relaxed)
        && b.call.pinned.swap(false, Relaxed)
        && let Some(space) = crate::base::here::space()
    {
        space.pin_end(b.ctx());
    }
}
