//! Keeps a process that makes a trace to a few mapped pages (`base::events`).

use crate::base::events;
use crate::space::Space;
use crate::threads::ctx::ThreadCtx;
use crate::way_out::{swapout, sweep};

/// Pages of one sweep: few, so that pages go one after the other.
const SWEEP_PAGES: usize = 16;

/// Unmaps pages until few enough are mapped. Outside the gate.
///
/// Units and pages go in turn, however much they are used. Most stay staged, because there is plenty of memory for that.
pub(crate) fn unmap_to_filter(space: &Space, ctx: &ThreadCtx) {
    space.eviction.set_sweep_max(SWEEP_PAGES);
    while events::is_over_filter() {
        let mut work = space.places.work.lease(&space.budget, ctx);
        if space.places.staging.is_scarce() {
            let _ = swapout::swap_out_oldest(space, ctx, &mut work);
        }
        if sweep::sweep_in_turn(space, ctx, &mut work).is_none() {
            return;
        }
    }
}
