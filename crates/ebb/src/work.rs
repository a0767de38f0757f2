//! Work buffers: what compressing, writing and wide swap-in need beyond a stack frame.
//!
//! A few for the whole space, because threads are many and processors are few. Reclaim waits for one outside the gate;
//! a fault only tries, and does with a page of its own otherwise, so nobody waits for a buffer inside the gate.

use crate::ctx::WINDOW_MAX;
use crate::group::Group;
use crate::stock::RUN_MAX;
use crate::uapi::{self, Errno};
use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicU32, Ordering};
use ebb_pool::codec::Lz4State;

/// Buffers of a space.
const BUFFERS: usize = 8;

/// One work buffer.
#[repr(C, align(4096))]
pub struct Work {
    /// Pages on their way in, or to a file.
    pub pages: [u8; RUN_MAX * 4096],
    /// One compressed page.
    pub out: [u8; 4352],
    /// The compressor's state.
    pub lz4: Lz4State,
    /// State words of a unit under the broom.
    pub saved: [u64; 512],
    /// Of `pages`, how many beyond [`WINDOW_MAX`] have been used, and are charged.
    pub charged: usize,
}

impl Work {
    /// Has so many pages of it charged, which are used now.
    pub fn charge(&mut self, pages: usize, group: &Group) {
        let beyond = pages.saturating_sub(WINDOW_MAX);
        if beyond > self.charged {
            group.charge_meta((beyond - self.charged) * 4096);
            self.charged = beyond;
        }
    }
}

/// All work buffers.
pub struct WorkPool {
    at: *const UnsafeCell<Work>,
    used: AtomicU32,
}

// SAFETY: a buffer is reached only through its lease, which one thread holds.
unsafe impl Sync for WorkPool {}
// SAFETY: as above.
unsafe impl Send for WorkPool {}

/// A buffer in use.
pub struct Lease<'a> {
    pool: &'a WorkPool,
    index: usize,
}

impl WorkPool {
    /// Reserves them.
    pub fn new() -> Result<Self, Errno> {
        let at = uapi::reserve_aligned(BUFFERS * core::mem::size_of::<Work>(), 4096)?.cast();
        Ok(Self { at, used: AtomicU32::new(0) })
    }

    /// A buffer, if one is free.
    pub fn try_lease(&self) -> Option<Lease<'_>> {
        let mut used = self.used.load(Ordering::Relaxed);
        loop {
            let index = (!used).trailing_zeros() as usize;
            if index >= BUFFERS {
                return None;
            }
            match self.used.compare_exchange_weak(used, used | 1 << index, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return Some(Lease { pool: self, index }),
                Err(now) => used = now,
            }
        }
    }

    /// A buffer; waits until one is free. Outside the gate only.
    pub fn lease(&self) -> Lease<'_> {
        loop {
            if let Some(lease) = self.try_lease() {
                return lease;
            }
            uapi::sched_yield();
        }
    }

    /// After fork, in the child: the buffers of threads that did not come along are free.
    pub fn reset(&self) {
        self.used.store(0, Ordering::Relaxed);
    }
}

impl Deref for Lease<'_> {
    type Target = Work;
    fn deref(&self) -> &Work {
        // SAFETY: the lease is the only way to this buffer; any bytes are a valid value.
        unsafe { &*(*self.pool.at.add(self.index)).get() }
    }
}

impl DerefMut for Lease<'_> {
    fn deref_mut(&mut self) -> &mut Work {
        // SAFETY: as in `deref`.
        unsafe { &mut *(*self.pool.at.add(self.index)).get() }
    }
}

impl Drop for Lease<'_> {
    fn drop(&mut self) {
        self.pool.used.fetch_and(!(1 << self.index), Ordering::Release);
    }
}
