//! The only import of atomics, cells and waiting: `core` in earnest, loom's or shuttle's when a model runs.
//!
//! Model types are larger than what they model and are not valid as zeroed bytes, so metadata is built in place by
//! [`materialise`] there, which does nothing in earnest.

mod lock;

pub(crate) use imp::{AtomicU32, AtomicU64, Ordering, UnsafeCell, materialise, relax};
pub(crate) use lock::{Guard, Lock};

#[cfg(not(any(loom, shuttle)))]
pub use imp::set_yield_hook;

#[cfg(not(any(loom, shuttle)))]
mod imp {
    use core::sync::atomic::AtomicPtr;
    pub(crate) use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

    /// Turns of a waiting loop before the holder is taken to be preempted.
    const SPINS_MAX: u32 = 100;

    /// Set once, to a `fn()`; null means that nobody set it.
    static YIELD_HOOK: AtomicPtr<()> = AtomicPtr::new(core::ptr::null_mut());

    /// Says what to do while a lock stays held for long: a lock's holder may have been preempted, and on few processors
    /// spinning only keeps it from running. Can be set once in a process; false if it was set before.
    pub fn set_yield_hook(hook: fn()) -> bool {
        // Release, so that whatever the hook relies on is set up for every thread that calls it.
        YIELD_HOOK
            .compare_exchange(core::ptr::null_mut(), hook as *mut (), Ordering::Release, Ordering::Relaxed)
            .is_ok()
    }

    /// One turn of a waiting loop.
    pub(crate) fn relax(spins: &mut u32) {
        if *spins < SPINS_MAX {
            *spins += 1;
            core::hint::spin_loop();
            return;
        }
        let hook = YIELD_HOOK.load(Ordering::Acquire);
        if hook.is_null() {
            core::hint::spin_loop();
        } else {
            // SAFETY: a value other than null was stored by set_yield_hook, from a `fn()`.
            let hook: fn() = unsafe { core::mem::transmute::<*mut (), fn()>(hook) };
            hook();
        }
    }

    /// `core::cell::UnsafeCell` with the interface of loom's.
    #[repr(transparent)]
    pub(crate) struct UnsafeCell<T>(core::cell::UnsafeCell<T>);

    impl<T> UnsafeCell<T> {
        pub(crate) const fn new(value: T) -> Self {
            Self(core::cell::UnsafeCell::new(value))
        }

        #[inline(always)]
        pub(crate) fn with<R>(&self, f: impl FnOnce(*const T) -> R) -> R {
            f(self.0.get())
        }

        #[inline(always)]
        pub(crate) fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
            f(self.0.get())
        }
    }

    /// Zeroed bytes already are what `make` would build.
    ///
    /// # Safety
    /// `at` points to `len` values' worth of zeroed bytes, for which zero is what `make` builds.
    pub(crate) unsafe fn materialise<T>(_at: *mut T, _len: usize, _make: fn() -> T) {}
}

#[cfg(loom)]
mod imp {
    pub(crate) use loom::cell::UnsafeCell;
    pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering};

    pub(crate) fn relax(_spins: &mut u32) {
        loom::thread::yield_now();
    }

    /// # Safety
    /// `at` points to writable memory for `len` values.
    pub(crate) unsafe fn materialise<T>(at: *mut T, len: usize, make: fn() -> T) {
        for index in 0..len {
            // SAFETY: within what the caller gave.
            unsafe { at.add(index).write(make()) };
        }
    }
}

#[cfg(shuttle)]
mod imp {
    pub(crate) use shuttle::sync::atomic::{AtomicU32, AtomicU64, Ordering};

    pub(crate) fn relax(_spins: &mut u32) {
        shuttle::thread::yield_now();
    }

    #[repr(transparent)]
    pub(crate) struct UnsafeCell<T>(core::cell::UnsafeCell<T>);

    impl<T> UnsafeCell<T> {
        pub(crate) const fn new(value: T) -> Self {
            Self(core::cell::UnsafeCell::new(value))
        }

        pub(crate) fn with<R>(&self, f: impl FnOnce(*const T) -> R) -> R {
            f(self.0.get())
        }

        pub(crate) fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
            f(self.0.get())
        }
    }

    /// # Safety
    /// `at` points to writable memory for `len` values.
    pub(crate) unsafe fn materialise<T>(at: *mut T, len: usize, make: fn() -> T) {
        for index in 0..len {
            // SAFETY: within what the caller gave.
            unsafe { at.add(index).write(make()) };
        }
    }
}
