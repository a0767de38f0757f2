//! The protocols' only import of atomics and of waiting, swapped for loom's when a model runs.
//!
//! [`wait_on`] and [`wake_all`] are a futex. The model has one bucket for all words: a lock under which a sleeper looks
//! at its word before it sleeps, and which a waker takes. So a wake-up that the code loses is a deadlock of the model.

#[cfg(not(loom))]
use crate::base::{
    killable,
    outlived::{self, SLEEP_NS},
    uapi::{futex_wait, now_ns},
};
#[cfg(not(loom))]
pub use core::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering, fence};
#[cfg(not(loom))]
pub(crate) use ebb_sync::waiting;
#[cfg(loom)]
pub use loom::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering, fence};

/// One turn of a short wait.
#[inline]
pub fn spin() {
    #[cfg(loom)]
    loom::thread::yield_now();
    #[cfg(not(loom))]
    core::hint::spin_loop();
}

/// Lets other threads run: for waits that may last longer than a spin.
#[inline]
pub fn yield_now() {
    #[cfg(loom)]
    loom::thread::yield_now();
    #[cfg(not(loom))]
    crate::base::outlived::yield_now();
}

/// Most waits are shorter than this, and need not be killable.
#[cfg(not(loom))]
const SHORT_NS: u64 = 50_000_000;

/// Sleeps while the low half of `word` equals the low half of `expected`; may return early.
#[cfg(not(loom))]
pub fn wait_on(word: &AtomicU64, expected: u64) {
    // SAFETY: on little-endian the low half of the word is at its address, aligned; the kernel reads it atomically.
    let low = unsafe { &*(word as *const AtomicU64).cast::<AtomicU32>() };
    let begin_ns = now_ns();
    futex_wait(low, expected as u32, Some(SHORT_NS));
    if now_ns().saturating_sub(begin_ns) < SHORT_NS {
        return;
    }
    killable::wait(|| futex_wait(low, expected as u32, Some(SLEEP_NS)));
    if now_ns().saturating_sub(begin_ns) >= SLEEP_NS {
        outlived::look();
    }
}

/// Wakes everybody who sleeps in [`wait_on`] on this word.
#[cfg(not(loom))]
pub fn wake_all(word: &AtomicU64) {
    // SAFETY: as in `wait_on`.
    let low = unsafe { &*(word as *const AtomicU64).cast::<AtomicU32>() };
    crate::base::uapi::futex_wake(low, i32::MAX as u32);
}

/// Waits. The model counts no waits.
#[cfg(loom)]
pub(crate) fn waiting<R>(_class: &'static str, wait: impl FnOnce() -> R) -> R {
    wait()
}

#[cfg(loom)]
loom::lazy_static! {
    static ref BUCKET: (loom::sync::Mutex<()>, loom::sync::Condvar) = Default::default();
}

/// The model's futex: sleeps until [`wake_all`] on any word.
#[cfg(loom)]
pub fn wait_on(word: &AtomicU64, expected: u64) {
    let held = BUCKET.0.lock();
    if word.load(Ordering::Relaxed) as u32 == expected as u32
        && let Ok(held) = held
    {
        drop(BUCKET.1.wait(held));
    }
}

/// The model's wake.
#[cfg(loom)]
pub fn wake_all(_word: &AtomicU64) {
    let _held = BUCKET.0.lock();
    BUCKET.1.notify_all();
}

/// Puts the sequentially consistent accesses before and after it in one order for the model. Loom takes these accesses for
/// acquire and release only, but it has fences. Does nothing in the real build, where the accesses themselves are enough.
#[inline]
pub fn model_fence() {
    #[cfg(loom)]
    fence(Ordering::SeqCst);
}
