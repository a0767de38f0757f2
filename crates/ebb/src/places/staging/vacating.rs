//! Vacating: frames that hold nothing any more give their memory back, even if their part still holds something else.

use super::{BUNDLE_FRAMES, BUNDLES, Part, Staging};
use crate::base::PAGE;
use crate::memory::table::UNIT_PAGES;
use core::sync::atomic::Ordering;

/// A look for vacated frames is due when there are more than after the last look, by 1/`VACATED_PART` of what staging
/// aims to hold.
const VACATED_PART: usize = 8;

/// Fewest vacated frames that make a bundle worth its part of a call, which flushes the TLB.
pub(super) const VACATED_MIN: usize = BUNDLE_FRAMES / 8;

impl Staging {
    /// Vacated frames: they have memory behind them, and no page needs them any more. Leaves out `kept` ones, which are
    /// in the stock.
    fn vacated(&self, kept: usize) -> usize {
        self.held.load(Ordering::Relaxed).saturating_sub(self.staged.load(Ordering::Relaxed) + kept as u64) as usize
    }

    /// True when a look for vacated frames is worth while. `kept` frames are in the stock, and do not count.
    pub fn has_vacated(&self, kept: usize) -> bool {
        let (vacated, passed) = (self.vacated(kept), self.passed.load(Ordering::Relaxed));
        if vacated < passed {
            self.passed.store(vacated, Ordering::Relaxed);
        }
        vacated >= passed.min(vacated) + (self.target.load(Ordering::Relaxed) / VACATED_PART).max(BUNDLE_FRAMES)
    }

    /// Begins a look for vacated frames; false while another thread is at it.
    pub fn begin_vacating(&self) -> bool {
        !self.is_vacating.swap(true, Ordering::Acquire)
    }

    /// Ends the look. The frames that are still vacated were looked at, so the next look waits for more.
    pub fn end_vacating(&self, kept: usize) {
        self.passed.store(self.vacated(kept), Ordering::Relaxed);
        self.is_vacating.store(false, Ordering::Release);
    }

    /// Drops the vacated frames of each bundle that has many of them; returns how many pages that freed. The caller has
    /// taken `part` out of the queue. `drop` is given ranges (address, length in bytes) and says how many of them, from
    /// the first on, are gone.
    pub fn vacate(&self, part: Part, drop: impl FnOnce(&[(usize, usize)]) -> usize) -> usize {
        let b = self.block(part.block());
        let (mut ranges, mut nr_ranges) = ([(0, 0); UNIT_PAGES / 2], 0);
        // For each bundle, the pages that are freed, and how many ranges must be gone for that.
        let mut freed = [(0, 0); BUNDLES];
        for (bundle, freed) in part.bundles().zip(&mut freed) {
            let first = self.frame(part.block(), bundle * BUNDLE_FRAMES);
            // Acquire pairs with `put_frame`: whatever was copied out of the frame was copied before.
            let is_empty = |i: usize| self.owner(first + i as u32).load(Ordering::Acquire) == 0;
            let (mut empty, before, mut start) = (0, nr_ranges, nr_ranges);
            for i in 0..BUNDLE_FRAMES {
                if !is_empty(i) {
                    start = nr_ranges;
                    continue;
                }
                empty += 1;
                if start == nr_ranges {
                    ranges[nr_ranges] = (self.addr(first + i as u32), 0);
                    nr_ranges += 1;
                }
                ranges[nr_ranges - 1].1 += PAGE;
            }
            let filled = b.filled[bundle].load(Ordering::Relaxed) as usize;
            let pages = filled.saturating_sub(BUNDLE_FRAMES - empty);
            if pages < VACATED_MIN {
                nr_ranges = before;
                continue;
            }
            *freed = (pages, nr_ranges);
        }
        if nr_ranges == 0 {
            return 0;
        }
        let gone = drop(&ranges[..nr_ranges]);
        let mut all = 0;
        for (bundle, (pages, needed)) in part.bundles().zip(freed) {
            // Also after a failed call, because nobody knows what it dropped.
            if pages > 0 {
                b.unfit.fetch_or(1 << bundle, Ordering::Relaxed);
            }
            if pages > 0 && needed <= gone {
                b.filled[bundle].fetch_sub(pages as u32, Ordering::Relaxed);
                all += pages;
            }
        }
        self.held.fetch_sub(all as u64, Ordering::Relaxed);
        all
    }
}
