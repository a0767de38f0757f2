//! What the pool needs from [`ebb_sync`], and two types of its own that models look into.
//!
//! In the real build, every type here is valid when its bytes are zero, so untouched metadata needs no set-up. Loom's
//! types are not, so under loom [`Pool::init`](crate::Pool::init) sets them up one by one.

use core::sync::atomic::AtomicUsize;
pub(crate) use ebb_sync::{AtomicU32, AtomicU64, Lock, Ordering, UnsafeCell};

/// A number that need not be exact at any instant, such as where the next search begins. Not an atomic of loom's,
/// because no outcome may depend on it.
#[repr(transparent)]
pub(crate) struct Hint(AtomicUsize);

impl Hint {
    pub const fn new() -> Self {
        Self(AtomicUsize::new(0))
    }

    #[inline]
    pub fn get(&self) -> usize {
        self.0.load(core::sync::atomic::Ordering::Relaxed)
    }

    #[inline]
    pub fn set(&self, value: usize) {
        self.0.store(value, core::sync::atomic::Ordering::Relaxed);
    }
}

/// Stands for an object's bytes, so that loom finds two accesses to them that nothing orders. Empty in the real build.
#[repr(transparent)]
pub(crate) struct Touch(#[cfg(loom)] UnsafeCell<()>);

impl Touch {
    #[cfg(loom)]
    pub fn new() -> Self {
        Self(UnsafeCell::new(()))
    }

    #[inline]
    pub fn read(&self) {
        #[cfg(loom)]
        self.0.with(|_| ());
    }

    #[inline]
    pub fn write(&self) {
        #[cfg(loom)]
        self.0.with_mut(|_| ());
    }
}
