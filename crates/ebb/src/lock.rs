//! A spin lock for a few instructions, that yields the processor when its holder is not running.

use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicU32, Ordering};

/// Turns of spinning before yielding.
const SPINS: u32 = 100;

/// Data behind a lock. Holders have every signal blocked, so a holder can be preempted but not interrupted.
#[derive(Debug, Default)]
pub struct SpinLock<T> {
    held: AtomicU32,
    data: UnsafeCell<T>,
}

// SAFETY: the lock hands the data to one thread at a time.
unsafe impl<T: Send> Sync for SpinLock<T> {}

/// Access to the data while it lives.
pub struct Guard<'a, T>(&'a SpinLock<T>);

impl<T> SpinLock<T> {
    /// An open lock.
    pub const fn new(data: T) -> Self {
        Self { held: AtomicU32::new(0), data: UnsafeCell::new(data) }
    }

    /// Waits for the lock.
    pub fn lock(&self) -> Guard<'_, T> {
        let mut turns = 0;
        // Acquire pairs with the release in `Guard::drop`.
        while self.held.compare_exchange_weak(0, 1, Ordering::Acquire, Ordering::Relaxed).is_err() {
            turns += 1;
            if turns > SPINS { crate::uapi::sched_yield() } else { core::hint::spin_loop() }
        }
        Guard(self)
    }
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: the guard holds the lock.
        unsafe { &*self.0.data.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the guard holds the lock.
        unsafe { &mut *self.0.data.get() }
    }
}

impl<T> Drop for Guard<'_, T> {
    fn drop(&mut self) {
        self.0.held.store(0, Ordering::Release);
    }
}
