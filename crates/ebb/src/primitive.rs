//! The engine's only import of atomics and of waiting, swapped for loom's when a model runs.
//!
//! [`wait_on`] and [`wake_all`] are a futex in the real build and a yield in the model, where every wait must be
//! able to end on its own because some other thread changes the word.

#[cfg(loom)]
pub use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

#[cfg(not(loom))]
pub use core::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

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
    crate::uapi::sched_yield();
}

/// Sleeps while the low half of `word` equals that of `expected`; may return early.
#[cfg(not(loom))]
pub fn wait_on(word: &AtomicU64, expected: u64) {
    // SAFETY: on little-endian the low half of the word is at its address, aligned; the kernel reads it atomically.
    let low = unsafe { &*(word as *const AtomicU64).cast::<AtomicU32>() };
    crate::uapi::futex_wait(low, expected as u32, None);
}

/// Wakes everybody who sleeps in [`wait_on`] on this word.
#[cfg(not(loom))]
pub fn wake_all(word: &AtomicU64) {
    // SAFETY: as in `wait_on`.
    let low = unsafe { &*(word as *const AtomicU64).cast::<AtomicU32>() };
    crate::uapi::futex_wake(low, i32::MAX as u32);
}

/// The model's wait: lets another thread run.
#[cfg(loom)]
pub fn wait_on(_word: &AtomicU64, _expected: u64) {
    loom::thread::yield_now();
}

/// The model's wake: waits end by themselves.
#[cfg(loom)]
pub fn wake_all(_word: &AtomicU64) {}
