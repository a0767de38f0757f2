//! Masks: what the program blocks, what of it the kernel is told, and blocking everything around a call of the engine.

use crate::base::calls;
use crate::base::frame::{Context, SigInfo};
use crate::base::signum::{self, FULL_MASK, SIGSYS};
use crate::threads::thread::ThreadBlock;
use core::mem::size_of;
use core::ptr;
use core::sync::atomic::Ordering::Relaxed;
use linux_raw_sys::{errno as e, general as g};

const SYS_USER_DISPATCH: i32 = 2;

/// [`block_all`] found that the agent's handler runs, where everything is blocked already.
const IN_HANDLER: u64 = u64::MAX;

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

/// [`FULL_MASK`] and no signal at all, where nothing is ever evicted.
static BLOCKED: u64 = FULL_MASK;
pub(crate) static OPEN: u64 = 0;

/// Blocks every signal but those of [`FULL_MASK`], before a call into the engine. Give the answer to [`restore`].
///
/// # Safety
/// `block` is the calling thread's.
pub unsafe fn block_all(block: *mut ThreadBlock) -> u64 {
    let here = 0u8;
    // SAFETY: the calling thread's own block.
    let b = unsafe { &*block };
    if b.owns(ptr::from_ref(&here) as u64) {
        return IN_HANDLER;
    }
    // SAFETY: a static, and a word of the thread's own block. Until it is read every signal is blocked that could come
    // here a second time.
    unsafe { exchange_mask(&BLOCKED, b.kernel_mask.as_ptr()) };
    end_pins(b);
    b.kernel_mask.get()
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
    let b = unsafe { &*block };
    b.kernel_mask.set(mask);
    // SAFETY: a word of the thread's own block; every signal is blocked until the kernel has read it.
    unsafe { exchange_mask(b.kernel_mask.as_ptr().cast_const(), ptr::null_mut()) };
    if b.queue().deferred.swap(0, Relaxed) != 0 {
        // Outside a handler there is no frame to change: have the signals arrive once more.
        while let Some(info) = b.queue().pop(!b.blocked.get()) {
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

/// The program's mask of the thread whose context this is.
pub fn program_mask(b: &ThreadBlock, uc: &Context) -> u64 {
    uc.mask | b.blocked.get()
}

/// Sets the program's mask, for when `uc` is returned to.
pub fn set_program_mask(b: &ThreadBlock, uc: &mut Context, mask: u64) {
    uc.mask = signum::kernel_part(mask);
    b.blocked.set(signum::virtual_part(mask));
    b.queue().poke(!b.blocked.get());
}

/// True when `uc` is inside the engine, or on the way in or out: no mask of the program's has SIGSYS for the kernel.
pub fn is_inside(uc: &Context) -> bool {
    uc.mask & signum::bit(SIGSYS) != 0
}

const EFAULT: i64 = -(e::EFAULT as i64);

const _: () = assert!(SYS_USER_DISPATCH == 2);

/// Ends the pins of a call that has returned to the program since.
#[inline]
pub fn end_pins(b: &ThreadBlock) {
    // A handler that comes between the two has ended them itself.
    if b.call.pinned.load(Relaxed)
        && b.call.pinned.swap(false, Relaxed)
        && let Some(space) = crate::base::here::space()
    {
        space.pin_end(b.ctx());
    }
}
