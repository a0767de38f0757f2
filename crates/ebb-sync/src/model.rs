//! The only import of atomics, cells and waiting: `core` in earnest, loom's or shuttle's when a model runs.
//!
//! Model types are larger than what they model and are not valid as zeroed bytes, so what lives in zeroed memory is
//! built in place by [`materialise`] there, which does nothing in earnest.

pub use imp::{AtomicU32, AtomicU64, AtomicUsize, Ordering, UnsafeCell, fence, materialise, relax};

#[cfg(not(any(loom, shuttle)))]
mod imp {
    pub use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};

    /// Turns of a waiting loop before the holder is taken to be preempted: about two microseconds, and a lock is held
    /// for well under one.
    const SPINS_MAX: u32 = 100;

    /// One turn of a waiting loop.
    pub fn relax(spins: &mut u32) {
        if *spins < SPINS_MAX {
            *spins += 1;
        } else if let Some(hooks) = crate::hooks::hooks() {
            (hooks.yield_now)();
            return;
        }
        core::hint::spin_loop();
    }

    /// `core::cell::UnsafeCell` with the interface of loom's.
    #[repr(transparent)]
    #[derive(Debug, Default)]
    pub struct UnsafeCell<T>(core::cell::UnsafeCell<T>);

    impl<T> UnsafeCell<T> {
        pub const fn new(value: T) -> Self {
            Self(core::cell::UnsafeCell::new(value))
        }

        #[inline(always)]
        pub fn with<R>(&self, f: impl FnOnce(*const T) -> R) -> R {
            f(self.0.get())
        }

        #[inline(always)]
        pub fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
            f(self.0.get())
        }
    }

    /// Zeroed bytes already are what `make` would build.
    ///
    /// # Safety
    /// `at` points to `len` values' worth of zeroed bytes, for which zero is what `make` builds.
    pub unsafe fn materialise<T>(_at: *mut T, _len: usize, _make: fn() -> T) {}
}

#[cfg(loom)]
mod imp {
    pub use loom::cell::UnsafeCell;
    pub use loom::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};

    pub fn relax(_spins: &mut u32) {
        loom::thread::yield_now();
    }

    /// # Safety
    /// `at` points to writable memory for `len` values.
    pub unsafe fn materialise<T>(at: *mut T, len: usize, make: fn() -> T) {
        for index in 0..len {
            // SAFETY: within what the caller gave.
            unsafe { at.add(index).write(make()) };
        }
    }
}

#[cfg(shuttle)]
mod imp {
    pub use shuttle::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};

    pub fn relax(_spins: &mut u32) {
        shuttle::thread::yield_now();
    }

    #[repr(transparent)]
    #[derive(Debug, Default)]
    pub struct UnsafeCell<T>(core::cell::UnsafeCell<T>);

    impl<T> UnsafeCell<T> {
        pub const fn new(value: T) -> Self {
            Self(core::cell::UnsafeCell::new(value))
        }

        pub fn with<R>(&self, f: impl FnOnce(*const T) -> R) -> R {
            f(self.0.get())
        }

        pub fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
            f(self.0.get())
        }
    }

    /// # Safety
    /// `at` points to writable memory for `len` values.
    pub unsafe fn materialise<T>(at: *mut T, len: usize, make: fn() -> T) {
        for index in 0..len {
            // SAFETY: within what the caller gave.
            unsafe { at.add(index).write(make()) };
        }
    }
}
