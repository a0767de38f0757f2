//! The sweep: unmaps the present pages of one unit, intact, into staging.
//!
//! Pages are claimed, and the holes between those that are close together, so that one unmapping call may cover both:
//! nobody can map a page in between. Pages that were used since the last sweep get a second chance. Pages that a system
//! call uses (pins), that must stay, or that somebody else has claimed split the unit into segments; each segment is
//! unmapped by one MOVE, or by write-protect, copy and one drop. Clean pages go first, by one drop and without staging: their
//! content is where it was before they came in. Scattered pages of a unit that proved cold need no staging either, see
//! `in_place`. Of pages that somebody may have pinned for long the kernel is asked by MOVE, and only by MOVE, see `pages::drivers`.

use crate::base::{PAGE, clock};
use crate::counters::stats;
use crate::memory::table::{UNIT_PAGES, Unit};
use crate::pages::account;
use crate::pages::claims::{self, NOT_CLAIMED};
use crate::pages::{clean, drivers, in_use, sharing};
use crate::places::work::Work;
use crate::protocols::gate::Held;
use crate::protocols::primitive::{Ordering as ModelOrdering, fence};
use crate::space::Space;
use crate::threads::ctx::ThreadCtx;
use crate::way_out::in_place;
use crate::way_out::unmap::Only;
use crate::way_out::unmap::{self, Claimed, Leaves, Scope};
use core::sync::atomic::Ordering::Relaxed;
/// Sweeps that found nothing but such pages before they are taken all the same: each looks at all of a unit.
const FRUITLESS_MAX: u32 = 8;

/// What became of one look at the ring.
enum Look {
    /// The ring is empty.
    Empty,
    /// The unit was left alone.
    Passed,
    /// Nothing was unmapped, because pages were used lately.
    Spared,
    /// So many pages were unmapped.
    Swept(usize),
}

/// Sweeps the unit at `unit` into staging; also where the look at it ended. `saved` keeps the states of
/// claimed pages.
fn sweep(space: &Space, held: &Held, ctx: &ThreadCtx, unit: usize, scope: Scope, work: &mut Work) -> (Look, usize) {
    let pages = UNIT_PAGES;
    let is_move_only = drivers::is_move_only(space, unit);
    if is_move_only && drivers::has_driver(space) {
        // To drop a page that is only read asks nobody. No more of them come.
        clean::open_unit(space, held, unit);
    }
    let saved = &mut work.saved;
    saved.fill(NOT_CLAIMED);
    let Claimed { present, referenced, end } = unmap::claim_unit(space, held, unit, pages, scope, saved);
    stats::add(&space.stats.referenced_pages, referenced);
    if present == 0 {
        unmap::unclaim(space, unit, 0, pages, saved);
        return (if referenced > 0 { Look::Spared } else { Look::Swept(0) }, end);
    }
    // Claims come first, then the look at the pins: see `pin`.
    fence(ModelOrdering::SeqCst);
    in_use::for_each_used(space, unit, unit + pages * PAGE, |start, end| {
        unmap::unclaim(space, unit, (start - unit) / PAGE, (end - unit).div_ceil(PAGE), saved);
    });
    let has_clean = space.table.unit(unit).is_some_and(|u| u.clean.load(Relaxed) > 0);
    let dropped = if has_clean { clean::drop_clean(space, held, unit, saved, NOT_CLAIMED) } else { 0 };
    let evicts_in_place = scope.range.is_none() && !is_move_only && in_place::evicts_in_place(space, unit);
    let in_place = if evicts_in_place { in_place::evict_in_place(space, held, ctx, unit, work) } else { 0 };
    let saved = &mut work.saved;
    let block = if saved.iter().any(|raw| claims::is_present(*raw)) { space.places.staging.take() } else { None };
    let staged = block.map_or(0, |block| unmap::stage(space, held, unit, block, saved));
    let swept = dropped + in_place + staged;
    if scope.only.is_none() && scope.range.is_none() {
        space.eviction.add_evicted(swept as u64);
    }
    if let Some(u) = space.table.unit(unit)
        && swept > 0
    {
        u.swept.store(swept as u32, Relaxed);
        u.returned.store(0, Relaxed);
        stats::add(&space.stats.sweeps, 1);
    }
    unmap::unclaim(space, unit, 0, pages, saved);
    if let (Some(block), true) = (block, staged > 0) {
        space.places.staging.enqueue(block);
    }
    (Look::Swept(swept), end)
}

/// Picks the next unit and sweeps it; how many pages that unmapped, or none when there is nothing to sweep.
/// `takes_shared`: also pages that another process has in common.
pub(crate) fn sweep_next(space: &Space, ctx: &ThreadCtx, takes_shared: bool, work: &mut Work) -> Option<usize> {
    // Bounded: once around the ring, with patience for hot units only the first time.
    let inside = space.threads.enter(ctx);
    let units = if space.places.staging.has_room() { space.eviction.units.len() } else { 0 };
    drop(inside);
    if units == 0 {
        return None;
    }
    let mut looks = 2 * units + 2;
    let patience = looks / 2;
    let mut fruitless = 0;
    while looks > 0 {
        looks -= 1;
        let hot = looks > patience;
        let leaves = Leaves { hot, used: hot && fruitless < FRUITLESS_MAX };
        let scope = Scope { takes_shared, leaves, only: None, range: None };
        let inside = space.threads.enter(ctx);
        let look = sweep_one(space, &inside, ctx, scope, work);
        drop(inside);
        match look {
            Look::Empty => return None,
            Look::Passed | Look::Swept(0) => {}
            Look::Spared => fruitless += 1,
            Look::Swept(pages) => return Some(pages),
        }
    }
    None
}

/// Looks at the unit at the head of the ring.
fn sweep_one(space: &Space, held: &Held, ctx: &ThreadCtx, scope: Scope, work: &mut Work) -> Look {
    let Some(addr) = space.eviction.units.pop() else { return Look::Empty };
    let addr = addr as usize;
    let Some(unit) = space.table.unit(addr) else { return Look::Passed };
    if unit.present.load(Relaxed) == 0 {
        // Cleared first and looked at again, so that a page that comes in now queues the unit, or we do.
        unit.queued.store(0, core::sync::atomic::Ordering::SeqCst);
        if unit.present.load(core::sync::atomic::Ordering::SeqCst) > 0
            && unit.queued.swap(1, core::sync::atomic::Ordering::SeqCst) == 0
        {
            account::queue_unit(space, addr);
        }
        return Look::Passed;
    }
    let look = sweep_unless_hot(space, held, ctx, addr, unit, scope, work);
    account::queue_unit(space, addr);
    look
}

/// Sweeps what a group has of the unit at `addr`; how many pages that unmapped.
pub(crate) fn sweep_unit_of(
    space: &Space,
    held: &Held,
    ctx: &ThreadCtx,
    addr: usize,
    only: Only,
    leaves: Leaves,
    work: &mut Work,
) -> usize {
    let scope = Scope { takes_shared: true, leaves, only: Some(only), range: None };
    match space.table.unit(addr).map(|unit| sweep_unless_hot(space, held, ctx, addr, unit, scope, work)) {
        Some(Look::Swept(pages)) => pages,
        _ => 0,
    }
}

/// Sweeps what one sweep takes of the pages from `range.0` to `range.1`, all in the unit at `addr`, however much they are
/// used; where it ended.
pub(crate) fn sweep_range(
    space: &Space,
    held: &Held,
    ctx: &ThreadCtx,
    addr: usize,
    range: (usize, usize),
    work: &mut Work,
) -> usize {
    if let Some(unit) = space.table.unit(addr) {
        sharing::look_for_deserted(space, addr, unit);
    }
    let scope =
        Scope { takes_shared: false, leaves: Leaves { hot: false, used: false }, only: None, range: Some(range) };
    sweep(space, held, ctx, addr, scope, work).1
}

fn sweep_unless_hot(
    space: &Space,
    held: &Held,
    ctx: &ThreadCtx,
    addr: usize,
    unit: &Unit,
    scope: Scope,
    work: &mut Work,
) -> Look {
    judge(unit);
    if !scope.takes_shared {
        sharing::look_for_deserted(space, addr, unit);
        if sharing::is_all_shared(space, unit) {
            return Look::Passed;
        }
    }
    let skip = unit.skip.load(Relaxed);
    let young_ms = space.eviction.young_ms();
    let is_young = young_ms > 0 && clock::ms_since(unit.touched.load(Relaxed)) < young_ms;
    if !scope.leaves.hot || skip == 0 && !is_young {
        return sweep(space, held, ctx, addr, scope, work).0;
    }
    if skip == 0 {
        stats::add(&space.stats.sweeps_skipped, 1);
        return Look::Passed;
    }
    unit.skip.store(skip - 1, Relaxed);
    // What proved hot more than once stays: slots of its pages are of use to others.
    if unit.generation.load(Relaxed) > 1 && unit.clean.load(Relaxed) > 0 {
        clean::open_unit(space, held, addr);
    }
    stats::add(&space.stats.sweeps_skipped, 1);
    Look::Passed
}

/// Generations: a unit half of whose pages came back from staging is hot, and left alone for longer each time. One
/// that other reasons say is in use, pages that came back or near refaults, gets one more pass.
fn judge(unit: &Unit) {
    let swept = unit.swept.swap(0, Relaxed);
    if swept == 0 {
        return;
    }
    let returned = unit.returned.swap(0, Relaxed);
    let refaulted = unit.refaulted.swap(0, Relaxed);
    unit.in_place.store(in_place::is_cold(swept, returned) as u32, Relaxed);
    let generation = if returned * 2 >= swept { (unit.generation.load(Relaxed) * 2 + 1).min(15) } else { 0 };
    unit.generation.store(generation, Relaxed);
    let in_use = (returned + refaulted) * 4 >= swept;
    unit.skip.store(generation.max(in_use as u32), Relaxed);
}
