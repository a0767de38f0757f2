//! The only import of atomics, cells and waiting: those of `core`, or in a model those of loom or shuttle.
//!
//! Model types are larger than what they model, and zeroed bytes are not valid values of them. So in a model,
//! [`materialise`] builds in place what lives in zeroed memory. Outside models it does nothing.

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

/// In a model, builds what lives in zeroed memory. Outside models, the zeroed bytes already are what `make` would
/// build.
///
/// # Safety
/// `at` points to writable, zeroed memory for `len` values. Outside models, zero is what `make` builds.
pub unsafe fn materialise<T>(at: *mut T, len: usize, make: fn() -> T) {
    if cfg!(any(loom, shuttle)) {
        for index in 0..len {
            // SAFETY: within what the caller gave.
            unsafe { at.add(index).write(make()) };
        }
    }
}
