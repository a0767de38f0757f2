//! The sweep: unmaps the present pages of one unit, intact, into staging.
//!
//! A sweep claims present pages, and the holes between pages that are close together. So one unmapping call may cover both:
//! nobody can map a page in between. Where it compresses or copies the pages first, it lets the holes go meanwhile, and claims them
//! again for that call. Pages that were used since the last sweep get a second chance.
//!
//! Some pages split the unit into segments: those that a system call uses (pins), those that must stay, and those that another
//! thread has claimed. Each segment is unmapped by one MOVE, or by write-protect, copy and one drop.
//!
//! * Clean pages go first, by one drop and without staging: their content is where it was before they came in.
//! * Scattered pages of a unit that proved cold need no staging either, see `in_place`.
//! * Pages that a driver may have pinned for long go by MOVE only, because MOVE alone asks the kernel, see `pages::drivers`.

use crate::base::{PAGE, clock, events};
use crate::counters::stats::{self, Thp};
use crate::memory::table::{UNIT_PAGES, Unit};
use crate::pages::account;
use crate::pages::claims::{self, NOT_CLAIMED};
use crate::pages::{clean, clean_folio, drivers, folio, in_use, sharing};
use crate::places::work::Work;
use crate::protocols::gate::Held;
use crate::protocols::primitive::{Ordering as ModelOrdering, fence};
use crate::space::Space;
use crate::threads::ctx::ThreadCtx;
use crate::way_out::cold;
use crate::way_out::in_place;
use crate::way_out::unmap::Only;
use crate::way_out::unmap::{self, Claimed, Leaves, Scope};
use crate::way_out::whole::{self, Claim};
use core::sync::atomic::Ordering::Relaxed;
/// After this many sweeps that found nothing but pages used since the last sweep, such pages are taken too. Each of these
/// sweeps looks at all of a unit.
const FRUITLESS_MAX: u32 = 8;

/// Periods for which ageing leaves a unit alone at most that proved hot. So what was in use for long and is no longer leaves
/// after six periods at the latest.
const HOT_RESTS: u32 = 3;
/// The same for a unit most of whose pages no place took.
const UNSTORED_RESTS: u32 = 15;
/// A unit that ageing has not seen for so many periods had no pages in memory.
const AWAY_PERIODS: u32 = 3;

/// The outcome of one look at the ring.
enum Look {
    /// The ring is empty.
    Empty,
    /// The unit was left alone.
    Passed,
    /// Nothing was unmapped, because all pages that could go were used lately.
    Spared,
    /// This many pages were unmapped.
    Swept(usize),
}

/// Sweeps the unit at `unit` into staging. Also returns the address where the sweep ended. `work.saved` keeps the states of
/// claimed pages.
fn sweep(space: &Space, held: &Held, ctx: &ThreadCtx, unit: usize, scope: Scope, work: &mut Work) -> (Look, usize) {
    let is_move_only = drivers::is_move_only(space, unit);
    if is_move_only && drivers::has_driver(space) {
        // Dropping a clean page would not ask the kernel whether it is pinned. No new clean pages come while there is a driver.
        clean::open_unit(space, held, unit);
    }
    let saved = &mut work.saved;
    saved.fill(NOT_CLAIMED);
    let present_before = space.table.unit(unit).map_or(0, |unit| unit.present.load(Relaxed));
    let whole = match space.table.unit(unit) {
        Some(at) => whole::claim(space, held, unit, at, scope, saved),
        None => Claim::Parted,
    };
    let unit_end = unit + UNIT_PAGES * PAGE;
    let Claimed { present, referenced, end } = match whole {
        Claim::All => Claimed { present: UNIT_PAGES, referenced: 0, end: unit_end },
        Claim::InUse => Claimed { present: 0, referenced: UNIT_PAGES as u64, end: unit_end },
        Claim::NotWanted => return (Look::Passed, unit_end),
        Claim::Parted => unmap::claim_unit(space, held, unit, scope, saved),
    };
    let is_whole = matches!(whole, Claim::All);
    stats::add(&space.stats.referenced_pages, referenced);
    if present == 0 {
        unmap::unclaim(space, unit, 0, UNIT_PAGES, saved);
        return (if referenced > 0 { Look::Spared } else { Look::Swept(0) }, end);
    }
    // The claims come first, then the look at the pins, see `protocols::pin`.
    fence(ModelOrdering::SeqCst);
    let mut is_used = false;
    in_use::for_each_used(space, unit, unit_end, |start, end| {
        is_used = true;
        unmap::unclaim(space, unit, (start - unit) / PAGE, (end - unit).div_ceil(PAGE), saved);
    });
    if is_whole && is_used {
        unmap::unclaim(space, unit, 0, UNIT_PAGES, saved);
        whole::keep_used(space, held, unit, scope.leaves);
        return (Look::Spared, end);
    }
    let has_clean = space.table.unit(unit).is_some_and(|u| u.clean.load(Relaxed) > 0);
    let dropped = match has_clean {
        false => 0,
        true if is_whole && clean_folio::drop_whole(space, held, unit, saved) > 0 => UNIT_PAGES,
        true => clean::drop_clean(space, held, unit, saved, NOT_CLAIMED),
    };
    let evicts_in_place = scope.range.is_none()
        && !is_whole
        && !is_move_only
        && !events::is_filtering()
        && in_place::evicts_in_place(space, unit);
    let in_place = if evicts_in_place { in_place::evict_in_place(space, held, ctx, unit, work) } else { 0 };
    let saved = &mut work.saved;
    let block = if saved.iter().any(|raw| claims::is_present(*raw)) { space.places.staging.take() } else { None };
    let staged = block.map_or(0, |block| unmap::stage(space, held, unit, block, is_whole, saved));
    let swept = dropped + in_place + staged;
    if scope.only.is_none() && scope.range.is_none() {
        space.eviction.add_evicted(swept as u64);
    }
    if let Some(u) = space.table.unit(unit)
        && swept > 0
    {
        u.swept.store(swept as u32, Relaxed);
        u.returned.store(0, Relaxed);
        if !is_whole {
            folio::note_small_out(u, present_before);
        }
        stats::add(&space.stats.sweeps, 1);
    }
    unmap::unclaim(space, unit, 0, UNIT_PAGES, saved);
    if let (Some(block), true) = (block, staged > 0) {
        space.places.staging.enqueue(block);
    }
    (Look::Swept(swept), end)
}

/// Picks the next unit and sweeps it. Returns how many pages that unmapped, or none if there is nothing to sweep. Outside the
/// gate.
///
/// With `takes_shared` it also takes pages that another process has in common.
pub(crate) fn sweep_next(space: &Space, ctx: &ThreadCtx, takes_shared: bool, work: &mut Work) -> Option<usize> {
    // Bounded: twice around the ring, and only the first time with patience for hot units.
    let inside = space.threads.enter(ctx);
    let has_room = space.places.staging.has_room();
    let units = if has_room { space.eviction.units.len() } else { 0 };
    drop(inside);
    if let Some(pages) = has_room.then(|| cold::sweep_cold(space, ctx, takes_shared, work)).flatten() {
        return Some(pages);
    }
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

/// Sweeps the next unit, hot or not. Returns how many pages that unmapped, or none if there is nothing to sweep. Outside the
/// gate.
pub(crate) fn sweep_in_turn(space: &Space, ctx: &ThreadCtx, work: &mut Work) -> Option<usize> {
    let scope = Scope { takes_shared: true, leaves: Leaves { hot: false, used: false }, only: None, range: None };
    let inside = space.threads.enter(ctx);
    let looks = 2 * space.eviction.units.len() + 2;
    let swept = (0..looks).find_map(|_| match sweep_one(space, &inside, ctx, scope, work) {
        Look::Swept(pages) if pages > 0 => Some(pages),
        _ => None,
    });
    drop(inside);
    swept
}

/// Takes the unit at the head of the ring, for the caller to queue again before it leaves the gate. There is none if the ring
/// is empty, or the unit has no pages in memory.
fn take_unit(space: &Space) -> Result<(usize, &Unit), Look> {
    let Some(addr) = space.eviction.units.pop() else { return Err(Look::Empty) };
    let addr = addr as usize;
    let Some(unit) = space.table.unit(addr) else { return Err(Look::Passed) };
    if unit.present.load(Relaxed) == 0 {
        // The mark is cleared first, and then `present` is checked again. So a page that comes in now queues the unit, or this
        // thread does.
        unit.queued.store(0, core::sync::atomic::Ordering::SeqCst);
        if unit.present.load(core::sync::atomic::Ordering::SeqCst) > 0
            && unit.queued.swap(1, core::sync::atomic::Ordering::SeqCst) == 0
        {
            account::queue_unit(space, addr);
        }
        return Err(Look::Passed);
    }
    Ok((addr, unit))
}

/// Looks at the unit at the head of the ring.
fn sweep_one(space: &Space, held: &Held, ctx: &ThreadCtx, scope: Scope, work: &mut Work) -> Look {
    let (addr, unit) = match take_unit(space) {
        Ok(taken) => taken,
        Err(look) => return look,
    };
    let look = sweep_unless_hot(space, held, ctx, addr, unit, scope, work);
    account::queue_unit(space, addr);
    look
}

/// The outcome of one look of ageing.
pub(crate) enum Aged {
    /// There is nothing to look at.
    Nothing,
    /// The unit's time has not come, or it is in use.
    Passed,
    /// So many pages were unmapped.
    Unmapped(usize),
}

/// Looks at the unit at the head of the ring, and unmaps all of it if ageing left it alone for `ticks`. Outside the gate.
///
/// Nothing but staging tells whether a page is in use: see `background::ageing`.
pub(crate) fn age_unit(space: &Space, ctx: &ThreadCtx, ticks: u32, takes_shared: bool, work: &mut Work) -> Aged {
    let inside = space.threads.enter(ctx);
    let found = take_unit(space);
    let start = match found {
        Ok((addr, unit)) => {
            let is_due = is_due(space, &inside, addr, unit, ticks, takes_shared);
            account::queue_unit(space, addr);
            is_due.then_some(addr)
        }
        _ => None,
    };
    drop(inside);
    match (start, found) {
        (Some(addr), _) => Aged::Unmapped(unmap_aged(space, ctx, addr, takes_shared, work)),
        (None, Err(Look::Empty)) => Aged::Nothing,
        (None, _) => Aged::Passed,
    }
}

/// Whether ageing unmaps the unit at `addr` now.
fn is_due(space: &Space, held: &Held, addr: usize, unit: &Unit, ticks: u32, takes_shared: bool) -> bool {
    let (now, before) = (clock::tick(), unit.aged.load(Relaxed));
    let age = now.wrapping_sub(before);
    if before != 0 && age < ticks {
        return false;
    }
    // Without room it stays due.
    if before != 0 && space.places.staging.is_scarce() {
        return false;
    }
    unit.aged.store(now, Relaxed);
    if before == 0 || age >= ticks.saturating_mul(AWAY_PERIODS) {
        // Its pages have just come in. If it had some before, they did not come back soon.
        let _ = (judge(unit), unit.unstored.swap(0, Relaxed), unit.rests.swap(0, Relaxed));
        return false;
    }
    let rests = unit.rests.load(Relaxed);
    if rests > 0 {
        unit.rests.store(rests - 1, Relaxed);
        return false;
    }
    let unstored = unit.unstored.swap(0, Relaxed);
    let passes = judge(unit).unwrap_or(0);
    let rests = if 2 * unstored >= unit.present.load(Relaxed).max(1) { UNSTORED_RESTS } else { passes.min(HOT_RESTS) };
    if rests > 0 {
        unit.rests.store(rests - 1, Relaxed);
        // A clean page is dropped, and its next use is a swap-in. An open one is staged.
        if passes > 0 && unit.clean.load(Relaxed) > 0 {
            clean::open_unit(space, held, addr);
        }
        return false;
    }
    if !takes_shared {
        sharing::look_for_deserted(space, addr, unit);
    }
    takes_shared || !sharing::is_all_shared(space, unit)
}

/// Unmaps all pages of the unit at `addr` that are not in use by a system call, as far as staging has room. Returns how many.
/// Outside the gate, which it leaves after each sweep.
fn unmap_aged(space: &Space, ctx: &ThreadCtx, addr: usize, takes_shared: bool, work: &mut Work) -> usize {
    let (mut at, end, mut pages) = (addr, addr + UNIT_PAGES * PAGE, 0);
    while at < end {
        let inside = space.threads.enter(ctx);
        // The last blocks are for reclaim.
        if space.places.staging.is_scarce() {
            at = end;
        } else {
            let (n, next) = sweep_noted(space, &inside, ctx, addr, &(at..end), takes_shared, work);
            (at, pages) = (next.max(at + PAGE), pages + n);
        }
        drop(inside);
    }
    pages
}

/// Sweeps the pages that a group has in the unit at `addr`. Returns how many pages that unmapped.
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

/// Makes one sweep of the pages from `range.0` to `range.1`, all in the unit at `addr`, however much they are used. Returns
/// where it ended.
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

/// Makes one sweep of pages that are noted as cold, all in the unit at `addr`. Returns how many pages that unmapped, and where it
/// ended.
pub(crate) fn sweep_noted(
    space: &Space,
    held: &Held,
    ctx: &ThreadCtx,
    addr: usize,
    range: &core::ops::Range<usize>,
    takes_shared: bool,
    work: &mut Work,
) -> (usize, usize) {
    let range = Some((range.start, range.end));
    let scope = Scope { takes_shared, leaves: Leaves { hot: false, used: true }, only: None, range };
    let (look, end) = sweep(space, held, ctx, addr, scope, work);
    let Look::Swept(pages) = look else { return (0, end) };
    space.eviction.add_evicted(pages as u64);
    (pages, end)
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
    // A unit that proved hot more than once stays in memory. The slots of its clean pages are of use to other pages.
    if unit.generation.load(Relaxed) > 1 {
        if unit.clean.load(Relaxed) > 0 {
            clean::open_unit(space, held, addr);
        }
        if unit.present.load(Relaxed) as usize == UNIT_PAGES && !folio::is_mapped(unit) && space.thp() != Thp::Never {
            space.places.folios.suggest(addr);
        }
    }
    stats::add(&space.stats.sweeps_skipped, 1);
    Look::Passed
}

/// Judges a unit by the pages of its last sweep that came back.
///
/// If half of them came back from staging, or as soon as that, the unit is hot. It is left alone for longer each time
/// (generations). If a quarter came back, near refaults included, the unit is in use and is left alone for one pass.
///
/// Returns for how many passes it is left alone; none if it was not swept since it was last judged.
fn judge(unit: &Unit) -> Option<u32> {
    let swept = unit.swept.swap(0, Relaxed);
    if swept == 0 {
        return None;
    }
    let returned = unit.returned.swap(0, Relaxed);
    let refaulted = unit.refaulted.swap(0, Relaxed);
    unit.in_place.store(in_place::is_cold(swept, returned) as u32, Relaxed);
    let generation = if returned * 2 >= swept { (unit.generation.load(Relaxed) * 2 + 1).min(15) } else { 0 };
    unit.generation.store(generation, Relaxed);
    let in_use = (returned + refaulted) * 4 >= swept;
    let skip = generation.max(in_use as u32);
    unit.skip.store(skip, Relaxed);
    Some(skip)
}
