//! Several threads store one block of staging, step by step.
//!
//! Who has taken a block out of the queue offers it. Then this thread and all others that reclaim take steps of it, each frame once,
//! until none is left. A step may last longer than the offer: who offered it must not take a step that was taken for done.

use crate::protocols::primitive::{AtomicU64, Ordering};
use core::ops::Range;

/// Frames of a block.
pub const FRAMES: u32 = 512;
/// Bits of the number of the next frame. All above is the number of the block, plus 1; 0 if none is on offer.
const NEXT_BITS: u32 = 16;

/// The block on offer, and the next of its frames that nobody has taken.
#[derive(Debug)]
pub struct Together(AtomicU64);

impl Default for Together {
    fn default() -> Self {
        Self(AtomicU64::new(0))
    }
}

impl Together {
    /// Offers `block`, which is the caller's. False if another one is on offer.
    pub fn offer(&self, block: u32) -> bool {
        let offered = (block as u64 + 1) << NEXT_BITS;
        self.0.compare_exchange(0, offered, Ordering::Release, Ordering::Relaxed).is_ok()
    }

    /// Takes up to `n` frames of the block on offer. Returns the block and the frames' numbers in it.
    pub fn take(&self, n: u32) -> Option<(u32, Range<u32>)> {
        let mut seen = self.0.load(Ordering::Relaxed);
        loop {
            let (block, next) = (seen >> NEXT_BITS, seen as u32 & ((1 << NEXT_BITS) - 1));
            if block == 0 || next >= FRAMES {
                return None;
            }
            let end = (next + n).min(FRAMES);
            let taken = block << NEXT_BITS | end as u64;
            match self.0.compare_exchange_weak(seen, taken, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return Some((block as u32 - 1, next..end)),
                Err(now) => seen = now,
            }
        }
    }

    /// Ends the offer. For who made it, or when no other thread runs.
    pub fn end(&self) {
        self.0.store(0, Ordering::Relaxed);
    }
}
