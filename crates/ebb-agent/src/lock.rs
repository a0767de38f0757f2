//! A spin lock for the agent's few shared tables.
//!
//! Held for a few instructions or one short system call, always with every signal blocked, never across a touch of the
//! program's memory. Fork takes every such lock first, so that the child finds them free.

use core::sync::atomic::{AtomicU32, Ordering};

const SPINS: u32 = 100;

/// The lock.
pub struct Lock(AtomicU32);

/// Unlocks when it goes.
pub struct Guard<'a>(&'a Lock);

impl Lock {
    /// A free lock.
    pub const fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    /// Frees the lock for good: in a child of fork, where its holder does not exist.
    pub fn reset(&self) {
        self.0.store(0, Ordering::Relaxed);
    }

    /// Waits for the lock and takes it.
    pub fn lock(&self) -> Guard<'_> {
        let mut turns = 0;
        // Acquire pairs with the release in `drop`.
        while self.0.compare_exchange_weak(0, 1, Ordering::Acquire, Ordering::Relaxed).is_err() {
            turns += 1;
            if turns > SPINS {
                ebb::uapi::sched_yield();
            } else {
                core::hint::spin_loop();
            }
        }
        Guard(self)
    }
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        self.0.0.store(0, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dropped_guard_frees_the_lock() {
        let lock = Lock::new();
        drop(lock.lock());
        drop(lock.lock());
    }
}
