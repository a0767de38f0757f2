//! Bringing in ranges that nobody waits for: the rest of a walk's window, what comes after it, what the program says that it will
//! need. Piece by piece, each charged before or moved in, and nothing is reclaimed for any but frames of the stock: it ends where room is short, also that of a group.

use crate::clock;
use crate::ctx::{ThreadCtx, WINDOW_MAX};
use crate::groups::Brought;
use crate::page::Tag;
use crate::space::Space;
use crate::stock::RUN_MAX;
use crate::swapin::{In, Want};
use crate::table::{PAGE, UNIT_BYTES};
use core::sync::atomic::Ordering::{Acquire, Relaxed};

/// When to stop bringing in what nobody waits for.
#[derive(Clone, Copy)]
pub(crate) enum Until {
    /// When there is so little room that background reclaim begins.
    RoomIsShort,
    /// When half of what is still free then is used.
    RoomIsHalfUsed,
}

/// What became of a range.
#[derive(Clone, Copy)]
pub(crate) struct Came {
    /// It was looked through up to here.
    pub end: usize,
    /// Pages that came.
    pub pages: usize,
    /// There was no room for more.
    pub stopped: bool,
}

impl Space {
    /// Brings in what is staged or swapped of a range that is likely to be used. Outside the gate.
    pub(crate) fn bring_range(&self, ctx: &ThreadCtx, start: usize, end: usize, write: bool, until: Until) -> Came {
        let mut all = Came { end: start, pages: 0, stopped: false };
        while all.end < end {
            let is_short = match until {
                Until::RoomIsShort => self.group.is_above_high(),
                Until::RoomIsHalfUsed => self.group.is_far_above_high(),
            };
            if is_short {
                return Came { stopped: true, ..all };
            }
            let moved = self.bring_next(ctx, all.end, end, write, true);
            let Some(came) = moved.or_else(|| self.bring_next(ctx, all.end, end, write, false)) else {
                return Came { stopped: true, ..all };
            };
            all = Came { pages: all.pages + came.pages, ..came };
            if came.stopped {
                break;
            }
        }
        all
    }

    /// Brings in the next run of pages from `at` on: by MOVE, none where that cannot be; or charged, none where there is no room.
    /// Looks through one unit at most. Outside the gate.
    fn bring_next(&self, ctx: &ThreadCtx, at: usize, end: usize, write: bool, by_move: bool) -> Option<Came> {
        let charge = if by_move { 0 } else { WINDOW_MAX };
        if !self.charge_ahead(ctx, charge) {
            return None;
        }
        self.gate.enter(&ctx.gate);
        ctx.in_flight.store(0, Relaxed);
        let came = self.bring_run(ctx, at, end, write, by_move);
        self.group.uncharge(charge - came.map_or(0, |came| came.pages).min(charge));
        self.gate.leave(&ctx.gate);
        came
    }

    /// Brings in the next run of pages from `at` on, of [`WINDOW_MAX`] that are charged, or none `by_move`; none where that cannot
    /// be. Inside the gate.
    fn bring_run(&self, ctx: &ThreadCtx, at: usize, end: usize, write: bool, by_move: bool) -> Option<Came> {
        let until = |end| Came { end, pages: 0, stopped: false };
        let Some(region) = self.regions.first_in(at, end) else { return Some(until(end)) };
        let mut at = at.max(region.start);
        let region_end = region.end.min(end);
        // What cannot be read where it is cannot be swept there: it would not go again.
        if !region.attr.is_readable() {
            return Some(until(region_end));
        }
        let stopped = |at| Came { stopped: true, ..until(at) };
        if self.groups.above_high(region.group).is_some() {
            return Some(stopped(at));
        }
        let stop = region_end.min(self.table.unit_start(at) + UNIT_BYTES);
        // The words of what was never touched have no memory, and get none.
        let Some(unit) = self.table.unit(at).filter(|unit| unit.content.load(Acquire) > 0) else {
            return Some(until(stop));
        };
        while at < stop {
            let Some(word) = self.table.word(at) else { break };
            let state = word.load();
            if !matches!(state.tag(), Tag::Staged | Tag::Swapped) {
                at += PAGE;
                continue;
            }
            let may_move = region.attr.is_plain() && self.may_move_in(at, state, (stop - at) / PAGE);
            if by_move && !(may_move && self.has_frames_for(state)) {
                return None;
            }
            let window = if by_move { ((stop - at) / PAGE).min(RUN_MAX) } else { WINDOW_MAX };
            let want = Want { window, end: stop, used: 0, write, ahead: true, group: region.group, by_move };
            return Some(match self.bring_charged(ctx, at, word, state, want, false) {
                Brought::In(In::NotByMove) => return None,
                // Its group may have room for less.
                Brought::Over(_) if by_move => return None,
                Brought::In(In::Mapped(n)) if n > 0 => {
                    if may_move {
                        self.note_demand(n, state);
                    }
                    // Not the first to be asked for by others, and none of the old in a sweep.
                    unit.touched.store(clock::stamp(), Relaxed);
                    Came { pages: n, ..until(at + n * PAGE) }
                }
                Brought::In(In::NoMemory) | Brought::Over(_) => stopped(at),
                // Somebody else is at it, or it cannot be had: who touches it will see.
                Brought::In(_) => until(at + PAGE),
            });
        }
        Some(until(stop))
    }
}
