//! Who pages out, and what the background thread does for them.

use crate::base::uapi;
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::{Acquire, Relaxed};

/// For so long nothing may have been stored before the call ends: one step may only have met a slow reader, or everything that
/// is staged is in the hands of other threads, which store it.
pub(crate) const PATIENCE_NS: u64 = 50_000_000;

/// A moment, to let those go on.
pub(crate) const WAIT_NS: u64 = 100_000;

/// Who pages out.
#[derive(Default)]
pub struct PageOut {
    /// Threads that do.
    pub(crate) threads: AtomicU32,
    /// Twice the parts that the background thread stored for them, and one while it stores one.
    pub(crate) parts: AtomicU32,
}

impl PageOut {
    /// Whether a thread pages out.
    pub fn is_under_way(&self) -> bool {
        self.threads.load(Relaxed) > 0
    }

    /// Waits for the part that the background thread stores just now.
    pub(crate) fn wait(&self) {
        let (parts, since) = (self.parts.load(Acquire), uapi::now_ns());
        while parts % 2 == 1 && self.parts.load(Acquire) == parts && uapi::now_ns() - since < PATIENCE_NS {
            uapi::futex_wait(&self.parts, parts, Some(WAIT_NS));
        }
    }

    /// In fork's child, whose one thread does not.
    pub fn reset(&self) {
        self.threads.store(0, Relaxed);
        self.parts.store(0, Relaxed);
    }
}
