//! Threads that page out (MADV_PAGEOUT), and what the background thread does for them.

use crate::base::uapi;
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::{Acquire, Relaxed};

/// The call ends once nothing has been stored for this long. Not sooner: a single step may only have met a slow reader,
/// or other threads may be storing all that is staged.
pub(crate) const PATIENCE_NS: u64 = 50_000_000;

/// How long to wait at a time for those threads.
pub(crate) const WAIT_NS: u64 = 100_000;

/// Threads that page out.
#[derive(Default)]
pub struct PageOut {
    /// How many threads page out now.
    pub(crate) threads: AtomicU32,
    /// Twice the number of parts that the background thread has stored for them, and one more while it stores one.
    pub(crate) parts: AtomicU32,
}

impl PageOut {
    /// True while a thread pages out.
    pub fn is_under_way(&self) -> bool {
        self.threads.load(Relaxed) > 0
    }

    /// Waits for the part that the background thread is storing, at most [`PATIENCE_NS`].
    pub(crate) fn wait(&self) {
        let (parts, since) = (self.parts.load(Acquire), uapi::now_ns());
        while parts % 2 == 1 && self.parts.load(Acquire) == parts && uapi::now_ns() - since < PATIENCE_NS {
            uapi::futex_wait(&self.parts, parts, Some(WAIT_NS));
        }
    }

    /// Begins anew in fork's child, whose only thread does not page out.
    pub fn reset(&self) {
        self.threads.store(0, Relaxed);
        self.parts.store(0, Relaxed);
    }
}
