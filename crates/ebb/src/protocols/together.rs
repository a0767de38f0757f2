//! Several threads store one block of staging, step by step.
//!
//! Who has taken a block out of the queue offers it. Then this thread and all others that reclaim take steps of it, each frame once,
//! until none is left. A step may last longer than the offer: who offered it must not take a step that was taken for done.

use crate::protocols::primitive::{AtomicU64, Ordering};
use core::ops::Range;

/// Frames of a block.
pub const FRAMES: u32 = 512;
/// Bits of the number of the next frame, and of [`FAILED`]. All above is the number of the block, plus 1; 0 if none is on offer.
const NEXT_BITS: u32 = 16;
/// Some of what was taken could not be stored.
const FAILED: u64 = 1 << 15;

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
            let (block, next) = (seen >> NEXT_BITS, (seen & (FAILED - 1)) as u32);
            if block == 0 || next >= FRAMES {
                return None;
            }
            let end = (next + n).min(FRAMES);
            let taken = block << NEXT_BITS | seen & FAILED | end as u64;
            match self.0.compare_exchange_weak(seen, taken, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return Some((block as u32 - 1, next..end)),
                Err(now) => seen = now,
            }
        }
    }

    /// True if some of a block can be taken.
    pub fn has_more(&self) -> bool {
        let seen = self.0.load(Ordering::Relaxed);
        seen != 0 && seen & (FAILED - 1) < FRAMES as u64
    }

    /// Notes that some of the frames that the caller took of `block` could not be stored. The block may no longer be on offer.
    pub fn fail(&self, block: u32) {
        let mut seen = self.0.load(Ordering::Relaxed);
        while seen >> NEXT_BITS == block as u64 + 1 {
            match self.0.compare_exchange_weak(seen, seen | FAILED, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => seen = now,
            }
        }
    }

    /// Ends the offer. True if nothing is known to have failed. For who made it, or when no other thread runs.
    pub fn end(&self) -> bool {
        self.0.swap(0, Ordering::Relaxed) & FAILED == 0
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_taken_to_its_end_and_its_owner_hears_of_a_failure() {
        let together = Together::default();
        assert!(together.take(64).is_none() && !together.has_more());
        assert!(together.offer(7) && !together.offer(8));
        assert_eq!(together.take(500), Some((7, 0..500)));
        assert!(together.has_more());
        assert_eq!(together.take(500), Some((7, 500..FRAMES)));
        assert!(together.take(1).is_none() && !together.has_more());
        assert!(together.end());
        // A failure is that of the block on offer, or nobody's.
        together.fail(7);
        assert!(together.offer(0));
        together.fail(7);
        assert_eq!(together.take(64), Some((0, 0..64)));
        together.fail(0);
        assert_eq!(together.take(64), Some((0, 64..128)));
        assert!(!together.end());
        assert!(together.offer(u32::MAX) && together.has_more() && together.end());
    }
}
