//! MADV_WILLNEED: brings in at once what the program says it will need soon, as far as there is room.
//!
//! As in the kernel this is advice: pages that were never touched are not created, and pages that come in may be evicted again.
//! Nothing is reclaimed for it, because pages that are needed soon are worth no more than pages in use now. So it ends where
//! background reclaim would begin, and for the pages of a group where the group would be reclaimed.

use crate::base::events::{self, Ahead, Kind};
use crate::space::Space;
use crate::threads::ctx::ThreadCtx;
use crate::way_in::prefetch::{self, Until};

/// Brings in the pages from `start` to `end` that are staged or swapped, until room becomes short. Outside the gate.
pub(crate) fn will_need(space: &Space, ctx: &ThreadCtx, start: usize, end: usize) {
    space.tree().look();
    events::record(Kind::Ahead, 0, 0, Ahead::WillNeed.of(ctx.shard()));
    let mut at = start;
    while at < end && !events::is_filtering() {
        let came = prefetch::bring_range(space, ctx, at, end, false, Until::AskedFor);
        if came.stopped && (!space.groups.exist() || space.budget.is_above_high()) {
            return;
        }
        at = came.end;
        if came.stopped {
            // The next region may belong to another group.
            let inside = space.threads.enter(ctx);
            at = space.regions.find(&inside, at).map_or(end, |region| region.end.min(end));
            drop(inside);
        }
    }
}
