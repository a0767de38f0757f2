//! The only import of atomics, cells and waiting: `core` in earnest, loom's or shuttle's when a model runs.
//!
//! Model types are larger than what they model and are not valid as zeroed bytes, so what lives in zeroed memory is
//! built in place by [`materialise`] there, which does nothing in earnest.

#[cfg(not(loom))]
pub use cell::UnsafeCell;
pub use imp::{AtomicU32, AtomicU64, AtomicUsize, Ordering, fence, relax};
#[cfg(loom)]
pub use loom::cell::UnsafeCell;

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
}

#[cfg(loom)]
mod imp {
    pub use loom::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};

    /// One turn of a waiting loop: another thread of the model runs.
    pub fn relax(_spins: &mut u32) {
        loom::thread::yield_now();
    }
}

#[cfg(shuttle)]
mod imp {
    pub use shuttle::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};

    /// One turn of a waiting loop: another thread of the model runs.
    pub fn relax(_spins: &mut u32) {
        shuttle::thread::yield_now();
    }
}

#[cfg(not(loom))]
mod cell {
    /// `core::cell::UnsafeCell` with the interface of loom's.
    #[repr(transparent)]
    #[derive(Debug, Default)]
    pub struct UnsafeCell<T>(core::cell::UnsafeCell<T>);

    impl<T> UnsafeCell<T> {
        /// A cell that holds `value`.
        pub const fn new(value: T) -> Self {
            Self(core::cell::UnsafeCell::new(value))
        }

        /// Calls `f` with a pointer to the value, for reading and only during the call.
        #[inline(always)]
        pub fn with<R>(&self, f: impl FnOnce(*const T) -> R) -> R {
            f(self.0.get())
        }

        /// Calls `f` with a pointer to the value, for writing and only during the call.
        #[inline(always)]
        pub fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
            f(self.0.get())
        }
    }
}

/// Builds what lives in zeroed memory, in a model. In earnest zeroed bytes already are what `make` would build.
///
/// # Safety
/// `at` points to writable memory for `len` values, zeroed; zero is what `make` builds, but in a model.
pub unsafe fn materialise<T>(at: *mut T, len: usize, make: fn() -> T) {
    if cfg!(any(loom, shuttle)) {
        for index in 0..len {
            // SAFETY: within what the caller gave.
            unsafe { at.add(index).write(make()) };
        }
    }
}
