//! Bringing in ranges that nobody waits for: the rest of a walk's window, what comes after it, what the program says that it will
//! need. Piece by piece, each charged before or moved in, and nothing is reclaimed for any but frames of the stock: it ends where room is short, also that of a group.

use crate::base::{PAGE, clock};
use crate::memory::table::UNIT_BYTES;
use crate::pages::stock;
use crate::places::frames::RUN_MAX;
use crate::protocols::gate::Held;
use crate::protocols::page::Tag;
use crate::space::Space;
use crate::threads::ctx::{ThreadCtx, WINDOW_MAX};
use crate::way_in::charged::{self, Brought, Charge};
use crate::way_in::swapin::{In, Want};
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

/// Brings in what is staged or swapped of a range that is likely to be used. Outside the gate.
pub(crate) fn bring_range(space: &Space, ctx: &ThreadCtx, start: usize, end: usize, write: bool, until: Until) -> Came {
    let mut all = Came { end: start, pages: 0, stopped: false };
    while all.end < end {
        let is_short = match until {
            Until::RoomIsShort => space.budget.is_above_high(),
            Until::RoomIsHalfUsed => space.budget.is_far_above_high(),
        };
        if is_short {
            return Came { stopped: true, ..all };
        }
        let moved = bring_next(space, ctx, all.end, end, write, true);
        let Some(came) = moved.or_else(|| bring_next(space, ctx, all.end, end, write, false)) else {
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
fn bring_next(space: &Space, ctx: &ThreadCtx, at: usize, end: usize, write: bool, by_move: bool) -> Option<Came> {
    let charge = if by_move { 0 } else { WINDOW_MAX };
    if !charged::charge_ahead(space, ctx, charge) {
        return None;
    }
    let inside = space.threads.enter(ctx);
    let mut charge = Charge::take(space, ctx, &inside);
    let came = bring_run(space, &inside, ctx, at, end, write, by_move);
    charge.spend(came.map_or(0, |came| came.pages));
    came
}

/// Brings in the next run of pages from `at` on, of [`WINDOW_MAX`] that are charged, or none `by_move`; none where that cannot
/// be.
fn bring_run(
    space: &Space,
    held: &Held,
    ctx: &ThreadCtx,
    at: usize,
    end: usize,
    write: bool,
    by_move: bool,
) -> Option<Came> {
    let until = |end| Came { end, pages: 0, stopped: false };
    let Some(region) = space.regions.first_in(held, at, end) else { return Some(until(end)) };
    let mut at = at.max(region.start);
    let region_end = region.end.min(end);
    // What cannot be read where it is cannot be swept there: it would not go again.
    if !region.attr.is_readable() {
        return Some(until(region_end));
    }
    let stopped = |at| Came { stopped: true, ..until(at) };
    if space.groups.above_high(region.group).is_some() {
        return Some(stopped(at));
    }
    let stop = region_end.min(space.table.unit_start(at) + UNIT_BYTES);
    // The words of what was never touched have no memory, and get none.
    let Some(unit) = space.table.unit(at).filter(|unit| unit.content.load(Acquire) > 0) else {
        return Some(until(stop));
    };
    while at < stop {
        let Some(word) = space.table.word(at) else { break };
        let state = word.load();
        if !matches!(state.tag(), Tag::Staged | Tag::Swapped) {
            at += PAGE;
            continue;
        }
        let may_move = region.attr.is_plain() && stock::may_move_in(space, at, state, (stop - at) / PAGE);
        if by_move && !(may_move && stock::has_frames_for(space, state)) {
            return None;
        }
        let window = if by_move { ((stop - at) / PAGE).min(RUN_MAX) } else { WINDOW_MAX };
        let want = Want { window, end: stop, used: 0, write, ahead: true, group: region.group, force: false, by_move };
        return Some(match charged::bring_charged(space, held, ctx, at, word, state, want) {
            Brought::In(In::NotByMove) => return None,
            // Its group may have room for less.
            Brought::Over(_) if by_move => return None,
            Brought::In(In::Mapped(n)) if n > 0 => {
                if may_move {
                    stock::note_demand(space, n, state);
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
