//! A spin lock around the data it protects. Zeroed bytes are an unlocked lock around zeroed data.
//!
//! The lock is held for a few instructions and never across a call to foreign code. So a waiter spins, and gives up the
//! processor once the holder seems to be preempted.

use crate::hooks::hooks;
use crate::model::UnsafeCell;
use core::cell::Cell;
use core::marker::PhantomData;
use core::ops::{Deref, DerefMut};
use core::panic::Location;

/// Names the locks of one kind in the statistics.
pub trait Class {
    /// The name that contention statistics print for these locks, such as `swap cluster`.
    const NAME: &'static str;
}

/// A spin lock of class `C` around a `T`. Outside models, zeroed bytes are an unlocked lock. In a loom model it spins
/// only with the feature `spins`.
#[repr(C)]
#[derive(Debug)]
pub struct Lock<T, C> {
    held: Held,
    value: UnsafeCell<T>,
    class: PhantomData<C>,
}

// SAFETY: the value is reached through a guard only, and one guard exists at a time.
unsafe impl<T: Send, C> Sync for Lock<T, C> {}
// SAFETY: the class is only a name.
unsafe impl<T: Send, C> Send for Lock<T, C> {}

impl<T, C: Class> Lock<T, C> {
    /// An unlocked lock around `value`.
    #[cfg(not(any(loom, shuttle)))]
    pub const fn new(value: T) -> Self {
        Self { held: Held::new(), value: UnsafeCell::new(value), class: PhantomData }
    }

    /// An unlocked lock around `value`.
    #[cfg(any(loom, shuttle))]
    pub fn new(value: T) -> Self {
        Self { held: Held::new(), value: UnsafeCell::new(value), class: PhantomData }
    }

    /// Takes the lock if it is free; none if it is held. Does not wait.
    #[inline]
    pub fn try_lock(&self) -> Option<Guard<'_, T, C>> {
        self.held.try_take().map(|token| Guard::new(self, token))
    }

    /// Takes the lock. Spins while it is held, and reports the wait to the [`Hooks`](crate::Hooks).
    #[inline]
    #[track_caller]
    pub fn lock(&self) -> Guard<'_, T, C> {
        // Trying first would give a model more to explore, and it would find no more.
        if cfg!(loom) {
            return Guard::new(self, self.held.take());
        }
        match self.try_lock() {
            Some(guard) => guard,
            None => self.wait(Location::caller()),
        }
    }

    /// Frees the lock: in fork's child, where its holder does not exist, or after its guard was given up on purpose.
    ///
    /// # Safety
    /// The guard that holds the lock will never be dropped, and the data is as the lock promises.
    #[cfg(not(any(loom, shuttle)))]
    pub unsafe fn reset(&self) {
        self.held.reset();
    }

    #[cold]
    fn wait(&self, caller: &'static Location<'static>) -> Guard<'_, T, C> {
        let hooks = hooks();
        let begin_ns = hooks.map_or(0, |hooks| (hooks.now_ns)());
        let guard = Guard::new(self, self.held.take());
        if let Some(hooks) = hooks {
            let wait_ns = (hooks.now_ns)().saturating_sub(begin_ns);
            (hooks.contended)(C::NAME, caller, wait_ns);
        }
        guard
    }
}

/// Holds the lock while it lives.
pub struct Guard<'a, T, C> {
    lock: &'a Lock<T, C>,
    _token: Token<'a>,
    /// A guard shared between threads would share the data.
    value: PhantomData<Cell<T>>,
}

// SAFETY: through a shared guard the data is only shared.
unsafe impl<T: Sync, C> Sync for Guard<'_, T, C> {}

impl<'a, T, C> Guard<'a, T, C> {
    #[inline(always)]
    fn new(lock: &'a Lock<T, C>, token: Token<'a>) -> Self {
        Self { lock, _token: token, value: PhantomData }
    }
}

impl<T, C> Deref for Guard<'_, T, C> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: a guard exists only while its lock is held, and by one holder.
        self.lock.value.with(|value| unsafe { &*value })
    }
}

impl<T, C> DerefMut for Guard<'_, T, C> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above; the guard is borrowed mutably for as long as the reference lives.
        self.lock.value.with_mut(|value| unsafe { &mut *value })
    }
}

use held::{Held, Token};

#[cfg(not(loom))]
mod held {
    use crate::model::relax;
    use crate::model::{AtomicU32, Ordering};

    const FREE: u32 = 0;
    const HELD: u32 = 1;

    /// Taken with Acquire and given back with Release: what one holder wrote, the next one sees.
    #[repr(transparent)]
    #[derive(Debug)]
    pub struct Held(AtomicU32);

    pub struct Token<'a>(&'a AtomicU32);

    impl Held {
        #[cfg(not(shuttle))]
        pub const fn new() -> Self {
            Self(AtomicU32::new(FREE))
        }

        #[cfg(shuttle)]
        pub fn new() -> Self {
            Self(AtomicU32::new(FREE))
        }

        #[cfg(not(shuttle))]
        pub fn reset(&self) {
            self.0.store(FREE, Ordering::Release);
        }

        #[inline]
        pub fn try_take(&self) -> Option<Token<'_>> {
            let taken = self.0.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).is_ok();
            taken.then(|| Token(&self.0))
        }

        pub fn take(&self) -> Token<'_> {
            let mut spins = 0;
            loop {
                relax(&mut spins);
                // Look before taking: a failing exchange would pull the cache line from the holder on each turn.
                if self.0.load(Ordering::Relaxed) == FREE
                    && let Some(token) = self.try_take()
                {
                    return token;
                }
            }
        }
    }

    impl Drop for Token<'_> {
        #[inline(always)]
        fn drop(&mut self) {
            self.0.store(FREE, Ordering::Release);
        }
    }
}

#[cfg(all(loom, not(feature = "spins")))]
mod held {
    use loom::sync::{Mutex, MutexGuard};

    /// Loom's own lock, because a model of spinning may never end. A try waits if another thread is first, and so hides
    /// what follows from a try that fails. Where that matters, models are built with the feature `spins`.
    #[derive(Debug)]
    pub struct Held(Mutex<()>);

    pub type Token<'a> = MutexGuard<'a, ()>;

    impl Held {
        pub fn new() -> Self {
            Self(Mutex::new(()))
        }

        pub fn try_take(&self) -> Option<Token<'_>> {
            self.0.try_lock().ok()
        }

        pub fn take(&self) -> Token<'_> {
            self.0.lock().expect("no model panics while it holds a lock")
        }
    }
}

#[cfg(all(loom, feature = "spins"))]
mod held {
    use loom::sync::atomic::{AtomicU32, Ordering};

    /// A word that is exchanged, as outside models.
    #[derive(Debug)]
    pub struct Held(AtomicU32);

    pub struct Token<'a>(&'a AtomicU32);

    impl Held {
        pub fn new() -> Self {
            Self(AtomicU32::new(0))
        }

        pub fn try_take(&self) -> Option<Token<'_>> {
            self.0.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_ok().then(|| Token(&self.0))
        }

        pub fn take(&self) -> Token<'_> {
            loop {
                if let Some(token) = self.try_take() {
                    return token;
                }
                loom::thread::yield_now();
            }
        }
    }

    impl Drop for Token<'_> {
        fn drop(&mut self) {
            self.0.store(0, Ordering::Release);
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::{Hooks, set_hooks};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    crate::lock_classes! {
        Test = "test";
    }

    #[test]
    fn a_held_lock_refuses_a_try() {
        let lock = Lock::<_, Test>::new(7);
        let guard = lock.lock();
        assert!(lock.try_lock().is_none());
        drop(guard);
        assert_eq!(lock.try_lock().map(|guard| *guard), Some(7));
    }

    #[test]
    fn no_increment_under_the_lock_is_lost() {
        let turns = if cfg!(miri) { 50 } else { 20_000 };
        let lock = Arc::new(Lock::<_, Test>::new(0));
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
    fn a_wait_is_told_with_class_place_and_time() {
        static CLOCK: AtomicU64 = AtomicU64::new(0);
        static WAITS: AtomicU64 = AtomicU64::new(0);
        static HOOKS: Hooks = Hooks {
            yield_now: std::thread::yield_now,
            now_ns: || CLOCK.fetch_add(5, Ordering::Relaxed),
            contended: |class, caller, wait_ns| {
                assert_eq!(class, "test");
                assert!(caller.file().ends_with("lock.rs"));
                assert!(wait_ns >= 5);
                WAITS.fetch_add(1, Ordering::Relaxed);
            },
        };
        assert!(set_hooks(&HOOKS));
        assert!(!set_hooks(&HOOKS));
        let lock = Lock::<_, Test>::new(0);
        std::thread::scope(|scope| {
            let guard = lock.lock();
            let waiter = scope.spawn(|| *lock.lock());
            // Only the waiter reads the clock, so it has begun to wait.
            while CLOCK.load(Ordering::Relaxed) == 0 {
                std::thread::yield_now();
            }
            drop(guard);
            waiter.join().unwrap();
        });
        assert!(WAITS.load(Ordering::Relaxed) > 0);
    }
}
