//! A spin lock around the data it protects. Zeroed bytes are an unlocked lock around zeroed data.
//!
//! Every lock of this crate is held for a few instructions and never across a call to foreign code, so waiting is
//! spinning, and yielding once the holder seems to be preempted.

use super::{AtomicU32, Ordering, UnsafeCell, relax};
use core::ops::{Deref, DerefMut};

const FREE: u32 = 0;
const HELD: u32 = 1;

#[repr(C)]
pub(crate) struct Lock<T> {
    /// Taken with Acquire and given back with Release: what one holder wrote, the next one sees.
    held: AtomicU32,
    value: UnsafeCell<T>,
}

// SAFETY: the value is reached through a guard only, and one guard exists at a time.
unsafe impl<T: Send> Sync for Lock<T> {}

impl<T> Lock<T> {
    pub(crate) fn new(value: T) -> Self {
        Self { held: AtomicU32::new(FREE), value: UnsafeCell::new(value) }
    }

    #[inline]
    pub(crate) fn try_lock(&self) -> Option<Guard<'_, T>> {
        match self.held.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed) {
            Ok(_) => Some(Guard { lock: self }),
            Err(_) => None,
        }
    }

    #[inline]
    pub(crate) fn lock(&self) -> Guard<'_, T> {
        match self.try_lock() {
            Some(guard) => guard,
            None => self.wait(),
        }
    }

    #[cold]
    fn wait(&self) -> Guard<'_, T> {
        let mut spins = 0;
        loop {
            relax(&mut spins);
            // Look before taking: a failing exchange would pull the cache line from the holder on each turn.
            if self.held.load(Ordering::Relaxed) == FREE
                && let Some(guard) = self.try_lock()
            {
                return guard;
            }
        }
    }
}

pub(crate) struct Guard<'a, T> {
    lock: &'a Lock<T>,
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: a guard exists only while its lock is held, and by one holder.
        self.lock.value.with(|value| unsafe { &*value })
    }
}

impl<T> DerefMut for Guard<'_, T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above; the guard is borrowed mutably for as long as the reference lives.
        self.lock.value.with_mut(|value| unsafe { &mut *value })
    }
}

impl<T> Drop for Guard<'_, T> {
    #[inline(always)]
    fn drop(&mut self) {
        self.lock.held.store(FREE, Ordering::Release);
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn a_held_lock_refuses_a_try() {
        let lock = Lock::new(7);
        let guard = lock.lock();
        assert!(lock.try_lock().is_none());
        drop(guard);
        assert_eq!(lock.try_lock().map(|guard| *guard), Some(7));
    }

    #[test]
    fn no_increment_under_the_lock_is_lost() {
        let turns = if cfg!(miri) { 50 } else { 20_000 };
        let lock = Arc::new(Lock::new(0));
        let threads: std::vec::Vec<_> = (0..3)
            .map(|_| {
                let lock = lock.clone();
                std::thread::spawn(move || {
                    for _ in 0..turns {
                        *lock.lock() += 1;
                    }
                })
            })
            .collect();
        for thread in threads {
            thread.join().unwrap();
        }
        assert_eq!(*lock.lock(), 3 * turns);
    }

    #[test]
    fn a_long_wait_calls_the_hook_that_was_set_first() {
        static CALLS: AtomicU32 = AtomicU32::new(0);
        fn hook() {
            CALLS.fetch_add(1, Ordering::Relaxed);
            std::thread::yield_now();
        }
        assert!(crate::set_yield_hook(hook));
        assert!(!crate::set_yield_hook(|| ()));
        let lock = Lock::new(());
        let guard = lock.lock();
        std::thread::scope(|scope| {
            scope.spawn(|| drop(lock.lock()));
            while CALLS.load(Ordering::Relaxed) == 0 {
                std::thread::yield_now();
            }
            drop(guard);
        });
        assert!(CALLS.load(Ordering::Relaxed) > 0);
    }
}
