//! MADV_WILLNEED: what the program says it will need soon is brought in at once, as far as there is room.
//!
//! As in the kernel it is advice: nothing that was never touched is made, and what comes in may go again. Nothing goes for it: to
//! be needed soon is no more than to be in use now, so it ends where background reclaim would begin, and for the pages of a group
//! where that would be reclaimed.

use crate::clock;
use crate::ctx::{ThreadCtx, WINDOW_MAX};
use crate::groups::Brought;
use crate::page::Tag;
use crate::space::Space;
use crate::swapin::{In, Want};
use crate::table::{PAGE, UNIT_BYTES};
use core::sync::atomic::Ordering::{Acquire, Relaxed};

/// When to stop bringing in what nobody waits for.
#[derive(Clone, Copy)]
pub(crate) enum Until {
    /// When there is so little room that background reclaim begins.
    RoomIsShort,
    /// When more would have to be made.
    RoomIsUsed,
}

impl Space {
    /// Brings in the pages from `start` to `end` that are staged or swapped, until room becomes short. Outside the gate.
    pub(crate) fn will_need(&self, ctx: &ThreadCtx, start: usize, end: usize) {
        self.tree().look();
        self.bring_range(ctx, start, end, false, Until::RoomIsShort);
    }

    /// The same for what is likely to be used: where it ended, and how many pages came.
    pub(crate) fn bring_range(
        &self,
        ctx: &ThreadCtx,
        start: usize,
        end: usize,
        write: bool,
        until: Until,
    ) -> (usize, usize) {
        let (mut at, mut all) = (start, 0);
        let may_go_on = || matches!(until, Until::RoomIsUsed) || !self.group.is_above_high();
        while at < end && may_go_on() && self.charge_ahead(ctx, WINDOW_MAX) {
            self.gate.enter(&ctx.gate);
            ctx.in_flight.store(0, Relaxed);
            let (next, used) = self.bring_next(ctx, at, end, write);
            self.group.uncharge(WINDOW_MAX - used);
            self.gate.leave(&ctx.gate);
            (at, all) = (next, all + used);
        }
        (at, all)
    }

    /// Brings in the next run of pages from `at` on, of which [`WINDOW_MAX`] are charged: where to go on, and how many came.
    /// Looks through one unit at most. Inside the gate.
    fn bring_next(&self, ctx: &ThreadCtx, at: usize, end: usize, write: bool) -> (usize, usize) {
        let Some(region) = self.regions.first_in(at, end) else { return (end, 0) };
        let region_end = region.end.min(end);
        // What cannot be read where it is cannot be swept there: it would not go again.
        if !region.attr.is_readable() || self.groups.above_high(region.group).is_some() {
            return (region_end, 0);
        }
        let mut at = at.max(region.start);
        let stop = region_end.min(self.table.unit_start(at) + UNIT_BYTES);
        // The words of what was never touched have no memory, and get none.
        let Some(unit) = self.table.unit(at).filter(|unit| unit.content.load(Acquire) > 0) else { return (stop, 0) };
        while at < stop {
            let Some(word) = self.table.word(at) else { break };
            let state = word.load();
            if !matches!(state.tag(), Tag::Staged | Tag::Swapped) {
                at += PAGE;
                continue;
            }
            let want = Want { window: WINDOW_MAX, end: stop, used: 0, write, ahead: true, group: region.group };
            return match self.bring_charged(ctx, at, word, state, want, false) {
                Brought::In(In::Mapped(n)) if n > 0 => {
                    // Not the first to be asked for by others, and none of the old in a sweep.
                    unit.touched.store(clock::stamp(), Relaxed);
                    (at + n * PAGE, n)
                }
                Brought::In(In::NoMemory) => (end, 0),
                Brought::Over(_) => (region_end, 0),
                // Somebody else is at it, or it cannot be had: who touches it will see.
                Brought::In(_) => (at + PAGE, 0),
            };
        }
        (stop, 0)
    }
}
