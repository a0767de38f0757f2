//! How near a process is to what it may hold: where background reclaim begins and ends, and when there is plenty of
//! room.

use super::{Budget, sweep_max};
use crate::base::uapi::now_ns;
use core::sync::atomic::Ordering::Relaxed;

/// One part in so many of a budget is plenty of room: several times what background reclaim keeps free.
const PLENTY_PART: usize = 8;

/// How long a kernel that had no memory is taken to have none, in nanoseconds.
const KERNEL_SHORT_NS: u64 = 10_000_000_000;

/// How many times smaller than its maximum the gap may become.
pub(super) const GAP_SPAN: i64 = 8;

/// One part in so many of the gap is taken away by a round of background reclaim for which no thread had to wait. A
/// thread that reclaims itself doubles the gap. So that happens in one of some twenty rounds.
pub(super) const GAP_DECAY: i64 = 32;

impl Budget {
    /// Pages below the budget where background reclaim begins; it ends at twice as many. No more than faults need while
    /// background reclaim works: what is kept free is missing elsewhere, and comes back by a fault.
    pub(super) fn gap(&self) -> i64 {
        let most = gap_max(self.limit()) as i64;
        self.gap.load(Relaxed).clamp(most / GAP_SPAN, most)
    }

    /// Widens the gap: background reclaim began too late, and a thread found no room.
    pub fn widen_gap(&self) {
        self.gap.store(self.gap() * 2, Relaxed);
    }

    /// Narrows the gap: background reclaim made room again, and no thread had to wait.
    pub fn narrow_gap(&self) {
        let gap = self.gap();
        self.gap.store(gap - (gap / GAP_DECAY).max(1), Relaxed);
    }

    /// Pages that could come in without reclaim, as far as is known: room in the budget, and the stock.
    pub(super) fn free(&self) -> i64 {
        self.room() + self.stocked.load(Relaxed)
    }

    /// True when background reclaim should work.
    #[inline]
    pub fn is_above_high(&self) -> bool {
        self.free() < self.gap() || self.is_stock_too_large()
    }

    /// True when half of what background reclaim is to keep free is used up.
    pub fn is_far_above_high(&self) -> bool {
        self.free() < self.gap() / 2
    }

    /// True when there is less room than a large piece of work that charges more may need.
    pub fn is_tight(&self) -> bool {
        self.room() < gap_max(self.limit()) as i64
    }

    /// True when there is so much room that RAM is not short, and will not be for a while.
    pub fn has_plenty(&self) -> bool {
        let is_short_elsewhere = || {
            let until = self.kernel_short_until_ns.load(Relaxed);
            if until > 0 && now_ns() >= until {
                // Unless the kernel has just been short again.
                let _ = self.kernel_short_until_ns.compare_exchange(until, 0, Relaxed, Relaxed);
                return false;
            }
            until > 0
        };
        self.room() > (self.limit() / PLENTY_PART) as i64 && !is_short_elsewhere()
    }

    /// Notes that the kernel had no memory although the budget has room.
    pub fn note_kernel_short(&self) {
        self.kernel_short_until_ns.store(now_ns() + KERNEL_SHORT_NS, Relaxed);
    }

    /// True when background reclaim may rest.
    pub fn is_below_low(&self) -> bool {
        self.free() > 2 * self.gap()
    }
}

/// The largest gap in a budget of `limit` pages.
pub(super) fn gap_max(limit: usize) -> usize {
    (limit / 64).max(2 * sweep_max(limit)).min(limit / 4)
}
