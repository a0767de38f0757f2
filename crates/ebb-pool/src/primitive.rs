//! The only import of atomics, cells and locks, swapped for loom's when a model runs.
//!
//! In the real build every type here is valid when its bytes are zero, so untouched metadata needs no set-up. Loom's
//! types are not, so under loom [`Pool::init`](crate::Pool::init) sets them up one by one.

pub use imp::set_yield_hook;
pub(crate) use imp::{AtomicU32, AtomicU64, Hint, Lock, Ordering, Shared, Touch};

/// What a spinning thread calls after [`SPINS_BEFORE_YIELD`] vain looks at a lock.
pub type YieldHook = fn();

#[cfg(not(loom))]
mod imp {
    use super::YieldHook;
    use core::cell::UnsafeCell;
    use core::sync::atomic::{AtomicPtr, AtomicUsize};
    pub(crate) use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

    /// A lock is held for well under a microsecond unless its holder lost the processor; this is about two.
    const SPINS_BEFORE_YIELD: u32 = 100;

    static YIELD_HOOK: AtomicPtr<()> = AtomicPtr::new(core::ptr::null_mut());

    /// Sets what a thread calls that has spun in vain for a while: the holder may need this processor. Without one,
    /// it keeps spinning.
    pub fn set_yield_hook(hook: YieldHook) {
        YIELD_HOOK.store(hook as *mut (), Ordering::Release);
    }

    #[cold]
    fn yield_now() {
        let hook = YIELD_HOOK.load(Ordering::Acquire);
        if hook.is_null() {
            core::hint::spin_loop();
            return;
        }
        // SAFETY: the only non-null value ever stored is a `YieldHook`.
        let hook = unsafe { core::mem::transmute::<*mut (), YieldHook>(hook) };
        hook();
    }

    /// A spin lock: one word, zero when free.
    #[repr(transparent)]
    pub(crate) struct Lock(AtomicU32);

    /// Holds a [`Lock`] until dropped.
    pub(crate) struct Guard<'a>(&'a AtomicU32);

    impl Lock {
        #[inline]
        pub fn lock(&self) -> Guard<'_> {
            // Acquire pairs with the Release of the drop: what the last holder wrote is seen.
            while self.0.compare_exchange_weak(0, 1, Ordering::Acquire, Ordering::Relaxed).is_err() {
                self.wait();
            }
            Guard(&self.0)
        }

        /// Waits until the lock looks free; only reading, so that the waiters leave the holder its cache line.
        #[cold]
        fn wait(&self) {
            let mut spins = 0;
            while self.0.load(Ordering::Relaxed) != 0 {
                if spins < SPINS_BEFORE_YIELD {
                    spins += 1;
                    core::hint::spin_loop();
                } else {
                    yield_now();
                }
            }
        }
    }

    impl Drop for Guard<'_> {
        #[inline]
        fn drop(&mut self) {
            self.0.store(0, Ordering::Release);
        }
    }

    /// Memory that some lock or claim protects.
    #[repr(transparent)]
    pub(crate) struct Shared<T>(UnsafeCell<T>);

    impl<T> Shared<T> {
        #[inline]
        pub fn with<R>(&self, f: impl FnOnce(*const T) -> R) -> R {
            f(self.0.get())
        }

        #[inline]
        pub fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
            f(self.0.get())
        }
    }

    /// A number that need not be exact at any instant, such as where the next search begins.
    #[repr(transparent)]
    pub(crate) struct Hint(AtomicUsize);

    impl Hint {
        pub const fn new() -> Self {
            Self(AtomicUsize::new(0))
        }

        #[inline]
        pub fn get(&self) -> usize {
            self.0.load(Ordering::Relaxed)
        }

        #[inline]
        pub fn set(&self, value: usize) {
            self.0.store(value, Ordering::Relaxed);
        }
    }

    /// Tells loom of an access to an object's bytes; nothing in the real build.
    #[repr(transparent)]
    pub(crate) struct Touch(());

    impl Touch {
        #[inline]
        pub fn read(&self) {}

        #[inline]
        pub fn write(&self) {}
    }
}

#[cfg(loom)]
mod imp {
    use super::YieldHook;
    use loom::cell::UnsafeCell;
    pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering};
    use loom::sync::{Mutex, MutexGuard};

    /// No model yields through a hook.
    pub fn set_yield_hook(_hook: YieldHook) {}

    /// Loom's own lock: a model of spinning would have no end.
    pub(crate) struct Lock(Mutex<()>);

    pub(crate) type Guard<'a> = MutexGuard<'a, ()>;

    impl Lock {
        pub fn new() -> Self {
            Self(Mutex::new(()))
        }

        pub fn lock(&self) -> Guard<'_> {
            self.0.lock().expect("no model panics while it holds a lock")
        }
    }

    /// Memory that some lock or claim protects; loom checks that it does.
    pub(crate) struct Shared<T>(UnsafeCell<T>);

    impl<T> Shared<T> {
        pub fn new(value: T) -> Self {
            Self(UnsafeCell::new(value))
        }

        pub fn with<R>(&self, f: impl FnOnce(*const T) -> R) -> R {
            self.0.with(f)
        }

        pub fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
            self.0.with_mut(f)
        }
    }

    /// Not an atomic of loom's: no outcome may depend on it.
    pub(crate) struct Hint(core::sync::atomic::AtomicUsize);

    impl Hint {
        pub fn new() -> Self {
            Self(core::sync::atomic::AtomicUsize::new(0))
        }

        pub fn get(&self) -> usize {
            self.0.load(core::sync::atomic::Ordering::Relaxed)
        }

        pub fn set(&self, value: usize) {
            self.0.store(value, core::sync::atomic::Ordering::Relaxed);
        }
    }

    /// Stands for an object's bytes, so that loom finds two uses of them that nothing orders.
    pub(crate) struct Touch(UnsafeCell<()>);

    impl Touch {
        pub fn new() -> Self {
            Self(UnsafeCell::new(()))
        }

        pub fn read(&self) {
            self.0.with(|_| ());
        }

        pub fn write(&self) {
            self.0.with_mut(|_| ());
        }
    }
}
