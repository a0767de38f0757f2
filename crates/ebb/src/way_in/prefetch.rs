//! Brings in ranges that nobody waits for.
//!
//! These are the rest of a walk's window, the pages after it, and what the program says it will need. They come in piece by
//! piece. Each piece is charged first, or moved in. Nothing is reclaimed for a piece, except that the stock gives up frames.
//! So a range ends where room is short, in the budget or in a group.

use crate::base::{PAGE, clock};
use crate::memory::table::{UNIT_BYTES, UNIT_PAGES};
use crate::pages::stock;
use crate::places::frames::RUN_MAX;
use crate::places::swapspace::slot_of;
use crate::protocols::gate::Held;
use crate::protocols::page::{State, Tag};
use crate::space::Space;
use crate::threads::ctx::{ThreadCtx, WINDOW_MAX};
use crate::threads::strides::Rows;
use crate::way_in::charged::{self, Brought, Charge};
use crate::way_in::extent;
use crate::way_in::swapin::{In, Want};
use crate::way_in::whole::{self, Reclaims};
use core::ops::Range;
use core::sync::atomic::Ordering::{Acquire, Relaxed};

/// When to stop bringing in pages that nobody waits for.
#[derive(Clone, Copy)]
pub(crate) enum Until {
    /// When so little room is left that background reclaim begins.
    RoomIsShort,
    /// When half of the room that is left when background reclaim begins is used too.
    RoomIsHalfUsed,
    /// When so little room is left that background reclaim begins. The program has asked for the pages, so a disk seeks for them.
    AskedFor,
}

/// How much of a range came in.
#[derive(Clone, Copy)]
pub(crate) struct Came {
    /// The range was looked through up to here.
    pub end: usize,
    /// Pages that came in.
    pub pages: usize,
    /// There was no room for more.
    pub stopped: bool,
}

/// Brings in the staged and swapped pages of a range that is likely to be used. Outside the gate.
pub(crate) fn bring_range(space: &Space, ctx: &ThreadCtx, start: usize, end: usize, write: bool, until: Until) -> Came {
    let mut all = Came { end: start, pages: 0, stopped: false };
    while all.end < end {
        let is_short = match until {
            Until::RoomIsShort | Until::AskedFor => space.budget.is_above_high(),
            Until::RoomIsHalfUsed => space.budget.is_far_above_high(),
        };
        if is_short {
            return Came { stopped: true, ..all };
        }
        if end - all.end >= UNIT_BYTES && whole::bring_ahead(space, ctx, all.end, write, Reclaims::No) {
            all = Came { end: all.end + UNIT_BYTES, pages: all.pages + UNIT_PAGES, stopped: false };
            continue;
        }
        let is_asked = matches!(until, Until::AskedFor);
        let moved = bring_next(space, ctx, all.end, end, write, is_asked, true);
        let Some(came) = moved.or_else(|| bring_next(space, ctx, all.end, end, write, is_asked, false)) else {
            return Came { stopped: true, ..all };
        };
        all = Came { pages: all.pages + came.pages, ..came };
        if came.stopped {
            break;
        }
    }
    all
}

/// Brings in the staged and swapped pages of the rows that a walk with a stride comes to next, as far as they are `within` the
/// walk's region. Outside the gate.
pub(crate) fn bring_rows(space: &Space, ctx: &ThreadCtx, rows: Rows, within: Range<usize>, write: bool) {
    // As many as are charged, so that no thread waits long to close the gate.
    let most = (rows.n as usize * if rows.width > 0 { 2 } else { 1 }).min(WINDOW_MAX);
    if space.budget.is_far_above_high() || !charged::charge_ahead(space, ctx, most) {
        return;
    }
    let inside = space.threads.enter(ctx);
    let mut charge = Charge::take(space, ctx, &inside);
    let starts = (1..=rows.n as isize).map(|row| rows.at.wrapping_add_signed(row * rows.stride));
    let pages = starts.flat_map(|start| (start & !(PAGE - 1)..start.saturating_add(rows.width + 1)).step_by(PAGE));
    for page in pages.filter(|page| within.contains(page)).take(most) {
        let came = bring_run(space, &inside, ctx, page, page + PAGE, write, false, (WINDOW_MAX, false));
        charge.spend(came.map_or(0, |came| came.pages));
        if came.is_none_or(|came| came.stopped) {
            break;
        }
    }
}

/// Brings in the next run of pages from `at` on, and looks through at most one unit for it. Outside the gate.
///
/// None `by_move` if the pages cannot be moved in. None otherwise if there is no room for the charge.
fn bring_next(
    space: &Space,
    ctx: &ThreadCtx,
    at: usize,
    end: usize,
    write: bool,
    is_asked: bool,
    by_move: bool,
) -> Option<Came> {
    let most = extent::to_run_end(space, at, if by_move { RUN_MAX } else { extent::piece_at(space, at) });
    let is_charged = |n| charged::charge_ahead(space, ctx, n);
    let window = match by_move || is_charged(most) {
        true => most,
        false if most > WINDOW_MAX && is_charged(WINDOW_MAX) => WINDOW_MAX,
        false => return None,
    };
    let inside = space.threads.enter(ctx);
    let mut charge = Charge::take(space, ctx, &inside);
    let came = bring_run(space, &inside, ctx, at, end, write, is_asked, (window, by_move));
    charge.spend(came.map_or(0, |came| came.pages));
    came
}

/// Brings in the next run of pages from `at` on, at most `window`. As many are charged, or none if it comes `by_move`. It does not begin with a
/// page for which a disk must seek, unless the program has asked for it.
///
/// None if the pages cannot be moved in.
#[expect(clippy::too_many_arguments, reason = "as for `swapin::bring`, and why")]
fn bring_run(
    space: &Space,
    held: &Held,
    ctx: &ThreadCtx,
    at: usize,
    end: usize,
    write: bool,
    is_asked: bool,
    (window, by_move): (usize, bool),
) -> Option<Came> {
    let until = |end| Came { end, pages: 0, stopped: false };
    let Some(region) = space.regions.first_in(held, at, end) else { return Some(until(end)) };
    let mut at = at.max(region.start);
    let region_end = region.end.min(end);
    // A sweep leaves pages alone that cannot be read where they are. So what came in here would not go out again.
    if !region.attr.is_readable() {
        return Some(until(region_end));
    }
    let stopped = |at| Came { stopped: true, ..until(at) };
    if space.groups.above_high(region.group).is_some() {
        return Some(stopped(at));
    }
    let stop = region_end.min(space.table.unit_start(at) + UNIT_BYTES);
    // The state words of pages that were never touched have no memory, and must not get any.
    let Some(unit) = space.table.unit(at).filter(|unit| unit.content.load(Acquire) > 0) else {
        return Some(until(stop));
    };
    while at < stop {
        let Some(word) = space.table.word(at) else { break };
        let state = word.load();
        let is_far = |state: State| state.tag() == Tag::Swapped && !is_asked && space.swap.must_seek(slot_of(state));
        if !matches!(state.tag(), Tag::Staged | Tag::Swapped) || is_far(state) {
            at += PAGE;
            continue;
        }
        let may_move = region.attr.is_plain() && stock::may_move_in(space, at, state, (stop - at) / PAGE);
        if by_move && !(may_move && stock::has_frames_for(space, state)) {
            return None;
        }
        let window = if by_move { window.min((stop - at) / PAGE) } else { window };
        let want = Want { window, end: stop, used: 0, write, ahead: true, group: region.group, force: false, by_move };
        return Some(match charged::bring_charged(space, held, ctx, at, word, state, want) {
            Brought::In(In::NotByMove) => return None,
            // The group may have room for fewer pages.
            Brought::Over(_) if by_move => return None,
            Brought::Over(_) if window > WINDOW_MAX => {
                return bring_run(space, held, ctx, at, end, write, is_asked, (WINDOW_MAX, false));
            }
            Brought::In(In::Mapped(n)) if n > 0 => {
                if may_move {
                    stock::note_demand(space, n, state);
                }
                // The unit counts as young now: it is not the first that other processes ask for, nor an old one to a sweep.
                unit.touched.store(clock::stamp(), Relaxed);
                Came { pages: n, ..until(at + n * PAGE) }
            }
            Brought::In(In::NoMemory) | Brought::Over(_) => stopped(at),
            // Another thread moves the page, or its content cannot be read. A thread that touches the page will find out.
            Brought::In(_) => until(at + PAGE),
        });
    }
    Some(until(stop))
}
