//! Brings a unit in whole, as one folio of 2 MiB: at its first touch, from staging, or from swap.
//!
//! Whatever stands in the way, the page comes in alone or with some of its neighbours instead.

use crate::base::PAGE;
use crate::base::events::{self, Kind};
use crate::base::uapi::uffd::UffdError;
use crate::counters::stats;
use crate::counters::stats::Thp;
use crate::groups::cost::Cost;
use crate::groups::table::Index;
use crate::memory::region::Region;
use crate::memory::table::{UNIT_BYTES, UNIT_PAGES, Unit};
use crate::pages::clean_folio::{self, Fingerprint};
use crate::pages::folio::{self, Memory};
use crate::pages::{account, kept};
use crate::places::swapspace::{NOT_LOCKED, Reads, slot_of};
use crate::places::work::Work;
use crate::protocols::gate::Held;
use crate::protocols::page::{State, Tag};
use crate::space::Space;
use crate::threads::ctx::ThreadCtx;
use crate::way_in::charged::{self, Charge};
use crate::way_in::load::{self, READS_MAX};
use crate::way_in::readahead::{self, Limits};
use crate::way_in::swapin::{self, Want};
use crate::way_in::window;
use crate::way_out::reclaim;
use core::sync::atomic::Ordering::Relaxed;

/// Most steps of reclaim that a walk makes for a folio.
pub(super) const STEPS: usize = 16;

/// Pages with content that make it worth while to bring a unit in whole. The others are zeros.
const USED_MIN: usize = UNIT_PAGES / 2;

/// What to do for a folio if there is no memory for it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Reclaims {
    /// Nothing.
    No,
    /// Reclaim.
    Alone,
    /// Reclaim, and have the background thread help: for a thread that walks.
    WithHelp,
}

/// What a fault is about.
#[derive(Clone, Copy)]
pub(super) struct Touch<'a> {
    pub space: &'a Space,
    pub ctx: &'a ThreadCtx,
    pub page: usize,
    /// Start of the page's unit.
    pub start: usize,
    pub write: bool,
}

/// Why a unit comes in from swap.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Come {
    /// For a walk that has got there.
    ForWalk,
    /// For a walk that will get there.
    AheadOfWalk,
    /// For a single touch.
    Alone,
}

/// A folio that came in.
pub(crate) struct Folio {
    /// Where it was.
    pub tag: Tag,
    /// Its region's group and end.
    pub group: Index,
    pub end: usize,
    /// A walk goes on behind it, as far as one can tell.
    pub is_walk: bool,
}

/// Brings in all of the unit of `page`, seen with tag `tag`, if it is to be a folio. None if only some of it can come in. Outside the
/// gate.
pub(crate) fn bring(space: &Space, ctx: &ThreadCtx, page: usize, tag: Tag, write: bool) -> Option<Folio> {
    let may_be = match tag {
        Tag::None | Tag::Swapped => space.thp() != Thp::Never,
        _ => space.places.folios.have_been(),
    };
    if !may_be || events::is_filtering() {
        return None;
    }
    let touch = Touch { space, ctx, page, start: space.table.unit_start(page), write };
    match tag {
        Tag::None => first_touch(touch),
        Tag::Staged => from_staging(touch),
        Tag::Swapped if is_walk(touch) => from_swap(touch, Come::ForWalk, Reclaims::WithHelp),
        Tag::Swapped if was_used_whole(touch) => from_swap(touch, Come::Alone, Reclaims::No),
        _ => None,
    }
}

/// True if the walk that `page` is a step of began before its unit, at whose start it is.
fn is_walk(touch: Touch<'_>) -> bool {
    let Touch { space, ctx, page, start, .. } = touch;
    let is_after = |before: &Unit| before.next.load(Relaxed) as usize == UNIT_PAGES && before.window.load(Relaxed) > 1;
    page == start
        && (space.table.unit(start.wrapping_sub(PAGE)).is_some_and(is_after)
            || window::walked_from(space, ctx, page).is_some())
}

/// True if the page of `touch` will not be the only one of its unit, as far as one can tell.
fn was_used_whole(touch: Touch<'_>) -> bool {
    let Touch { space, start, .. } = touch;
    space.table.unit(start).is_some_and(folio::take_used_whole)
}

/// The region of a unit that may be whole, and should be.
fn region_of(touch: Touch<'_>, held: &Held) -> Option<Region> {
    let space = touch.space;
    let region = space.regions.find(held, touch.page)?;
    (folio::may_be_whole(space, &region, touch.start) && folio::is_wanted(space, region.attr)).then_some(region)
}

fn first_touch(touch: Touch<'_>) -> Option<Folio> {
    let Touch { space, start, .. } = touch;
    let is_walk = is_walk(touch);
    let is_empty = space.table.unit(start).is_some_and(|unit| unit.content.load(Relaxed) == 0);
    if !is_empty || !is_walk && !space.budget.has_plenty() {
        return None;
    }
    let Region { group, end, .. } = wanted_region(touch)?;
    let reclaims = if is_walk { Reclaims::WithHelp } else { Reclaims::No };
    let mapped = with_memory(touch, reclaims, |held, memory| place_zeros(touch, held, memory))?;
    let folio = Folio { tag: Tag::None, group, end, is_walk: is_walk || touch.page == start };
    (mapped == UNIT_PAGES).then_some(folio)
}

/// The region of a unit that may be whole and should be, if there is enough of everything for that. Outside the gate.
fn wanted_region(touch: Touch<'_>) -> Option<Region> {
    let Touch { space, ctx, start, .. } = touch;
    let inside = space.threads.enter(ctx);
    let region = region_of(touch, &inside).filter(|region| folio::fit(space, region.group));
    drop(inside);
    // What is locked cannot be dropped, not even where there is nothing.
    region.filter(|_| !space.kernel.has_locked() || !kept::is_locked(start, UNIT_BYTES))
}

/// Calls `f` with the memory of a folio, inside the gate; it returns how many of its pages are mapped then. None if there is no such
/// memory. Outside the gate.
pub(super) fn with_memory(
    touch: Touch<'_>,
    reclaims: Reclaims,
    f: impl Fn(&Held, Memory<'_>) -> usize,
) -> Option<usize> {
    let Touch { space, ctx, .. } = touch;
    for _ in 0..if let Reclaims::No = reclaims { 1 } else { STEPS } {
        let inside = space.threads.enter(ctx);
        let mapped = folio::take_kept(space).map(|memory| f(&inside, memory));
        drop(inside);
        if mapped.is_some() {
            return mapped;
        }
        if space.budget.make_room(UNIT_PAGES) && charged::charge_ahead(space, ctx, UNIT_PAGES) {
            let inside = space.threads.enter(ctx);
            let mut charge = Charge::take(space, ctx, &inside);
            let mapped = space.places.folios.make().map(|new| f(&inside, Memory::New(new)));
            match mapped {
                Some(n) => charge.spend(n),
                None => stats::add(&space.stats.thp_fault_fallback, 1),
            }
            charge.end();
            drop(inside);
            return mapped;
        }
        space.places.folios.note_demand();
        match reclaims {
            Reclaims::No => return None,
            Reclaims::Alone => {}
            Reclaims::WithHelp => readahead::ask_to_help(space, ctx),
        }
        if !reclaim::reclaim_step(space, ctx) {
            return None;
        }
    }
    None
}

/// Maps a folio of zeros. Gives the memory back if the unit is not as it should be. Returns how many pages are mapped.
fn place_zeros(touch: Touch<'_>, held: &Held, memory: Memory<'_>) -> usize {
    let Touch { space, start, .. } = touch;
    let Some(region) = region_of(touch, held).filter(|region| may_charge(space, region.group)) else {
        memory.put_back(space);
        return 0;
    };
    let mut saved = [0; UNIT_PAGES];
    let is_mine = folio::claim_unit(space, start, &mut saved, |_, state| state == State::NONE);
    if is_mine {
        memory.clear(space);
    }
    if !is_mine || !folio::free_table(start) {
        if is_mine {
            folio::finish(space, start, UNIT_PAGES, |_| State::NONE);
        }
        space.groups.force(region.group, Cost::RAM.times(UNIT_PAGES as i64).taken());
        memory.put_back(space);
        return 0;
    }
    let mapped = memory.place(space, start);
    if mapped < UNIT_PAGES {
        space.groups.force(region.group, Cost::RAM.times((UNIT_PAGES - mapped) as i64).taken());
    }
    if mapped > 0 {
        account::count_content(space, start, mapped);
        account::count_present(space, start, mapped);
        stats::add(&space.stats.first_touch_pages, mapped as u64);
        space.table.unit(start).iter().for_each(|unit| folio::mark(space, unit));
    }
    folio::finish(space, start, UNIT_PAGES, |i| if i < mapped { State::PRESENT } else { State::NONE });
    if mapped == UNIT_PAGES {
        stats::add(&space.stats.thp_fault_alloc, 1);
        space.places.folios.note_demand();
    }
    events::record(
        Kind::In,
        start,
        mapped,
        events::in_detail(Tag::None as u64, touch.write, false, 0, touch.ctx.shard()),
    );
    mapped
}

/// Charges a folio to its group. False if it does not fit.
fn may_charge(space: &Space, group: Index) -> bool {
    group.is_root() || space.groups.try_charge_ram(group, UNIT_PAGES).is_ok()
}

/// Brings a unit in ahead of a walk, of which `start` is the first page, if all of it is out and should be a folio. If need be, it
/// `reclaims` for that. Returns whether it came. Outside the gate.
pub(super) fn bring_ahead(space: &Space, ctx: &ThreadCtx, start: usize, write: bool, reclaims: Reclaims) -> bool {
    if !start.is_multiple_of(UNIT_BYTES) || space.thp() == Thp::Never && !space.places.folios.have_been() {
        return false;
    }
    let touch = Touch { space, ctx, page: start, start, write };
    match space.table.word(start).map(|word| word.load().tag()) {
        Some(Tag::Staged) => from_staging(touch).is_some(),
        Some(Tag::Swapped) => from_swap(touch, Come::AheadOfWalk, reclaims).is_some(),
        _ => false,
    }
}

/// Whether a walk that comes to the unit at `start` is to bring it in whole from swap. Outside the gate.
pub(crate) fn comes_whole(space: &Space, ctx: &ThreadCtx, start: usize) -> bool {
    let touch = Touch { space, ctx, page: start, start, write: false };
    space.thp() != Thp::Never && can_come_whole(touch) && wanted_region(touch).is_some()
}

/// Whether the unit, which is swapped, can come in whole by a few reads.
fn can_come_whole(touch: Touch<'_>) -> bool {
    let Touch { space, start, .. } = touch;
    space
        .table
        .unit(start)
        .is_some_and(|unit| unit.present.load(Relaxed) == 0 && unit.content.load(Relaxed) as usize >= USED_MIN)
        && is_together(space, start)
}

/// Whether all content of the unit is in swap, and takes few reads of a device to bring in: many would keep others from closing the gate.
fn is_together(space: &Space, start: usize) -> bool {
    // A page that another thread has in hand may be swapped, too.
    let is_out = |state: State| matches!(state.tag(), Tag::Swapped | Tag::None | Tag::Busy);
    if !folio::states(space, start).all(is_out) {
        return false;
    }
    let state = |i: usize| space.table.word(start + i * PAGE).map(|word| word.load());
    let swapped = |i: usize| state(i).filter(|state| state.tag() == Tag::Swapped).map(slot_of);
    let mut reads = Reads::new(UNIT_PAGES, |i| swapped(i).and_then(|slot| space.swap.place_in_file(slot)));
    let batch = Work::batch_of(space.budget.expected());
    let _ = (0..READS_MAX).map_while(|_| reads.next(batch)).count();
    reads.is_done()
}

/// Loads all pages of a unit into one folio.
fn from_swap(touch: Touch<'_>, come: Come, reclaims: Reclaims) -> Option<Folio> {
    let Touch { space, ctx, page, write, .. } = touch;
    if !can_come_whole(touch) {
        return None;
    }
    let Region { group, end, .. } = wanted_region(touch)?;
    if come == Come::AheadOfWalk && space.groups.above_high(group).is_some() {
        return None;
    }
    let is_walk = come == Come::ForWalk;
    if is_walk {
        // The next one comes meanwhile.
        readahead::ask_next_unit(space, ctx, page, Limits { end, group, write });
    }
    let mapped = with_memory(touch, reclaims, |held, memory| load(touch, held, memory, come))?;
    (mapped == UNIT_PAGES).then_some(Folio { tag: Tag::Swapped, group, end, is_walk })
}

/// Loads all pages of a unit into `memory`, and maps that. Gives it back if the unit is not as it should be. Returns how many pages
/// are mapped.
#[inline(never)]
fn load(touch: Touch<'_>, held: &Held, memory: Memory<'_>, come: Come) -> usize {
    let Touch { space, ctx, start, write, .. } = touch;
    let is_ahead = come == Come::AheadOfWalk;
    let Some(region) = region_of(touch, held).filter(|region| may_charge(space, region.group)) else {
        memory.put_back(space);
        return 0;
    };
    let uncharge = |pages: usize| space.groups.force(region.group, Cost::RAM.times(pages as i64).taken());
    let mut saved = [0; UNIT_PAGES];
    let is_meant = |state: State| state.tag() == Tag::Swapped || state == State::NONE;
    if !folio::claim_unit(space, start, &mut saved, |_, state| is_meant(state)) {
        uncharge(UNIT_PAGES);
        memory.put_back(space);
        return 0;
    }
    let mut entries = saved.map(State::from_raw);
    let stays_clean = !write
        && come != Come::Alone
        && swapin::stays_clean(space, start, UNIT_PAGES, false, is_ahead)
        && (entries.iter().all(|entry| entry.tag() == Tag::Swapped)
            || region.group.is_root() && clean_folio::store_zeros(space, ctx, start, &mut entries));
    let end_unmapped = |from: usize| (from..UNIT_PAGES).for_each(|i| finish_one(space, start, i, entries[i]));
    let mut were = [NOT_LOCKED; UNIT_PAGES];
    // SAFETY: the memory is this thread's, and mapped for writing. No page of the unit is mapped from it yet.
    let pages = unsafe { core::slice::from_raw_parts_mut(memory.addr(space) as *mut u8, UNIT_BYTES) };
    let loaded = load::load_all(space, held, ctx, start, &entries, &mut were, pages);
    let is_loaded = loaded.n == UNIT_PAGES;
    let fingerprint = (is_loaded && stays_clean).then(|| Fingerprint::of(pages));
    if !is_loaded || !folio::free_table(start) {
        let locked = (0..loaded.locked).filter(|i| entries[*i].tag() == Tag::Swapped);
        locked.for_each(|i| space.swap.unclaim(held, slot_of(entries[i]), were[i]));
        end_unmapped(0);
        uncharge(UNIT_PAGES);
        if loaded.is_torn {
            memory.give_up(space)
        } else {
            memory.put_back(space)
        }
        return 0;
    }
    let mapped = memory.place(space, start);
    let is_clean =
        mapped == UNIT_PAGES && fingerprint.is_some_and(|fingerprint| clean_folio::protect(space, start, fingerprint));
    let want = Want {
        window: UNIT_PAGES,
        end: start + UNIT_BYTES,
        used: 0,
        write,
        ahead: is_ahead,
        by_move: true,
        group: region.group,
        force: false,
    };
    swapin::settle_all(space, held, start, &want, loaded.source, &entries, &were, mapped, is_clean);
    if mapped > 0 {
        space.table.unit(start).iter().for_each(|unit| folio::mark(space, unit));
    }
    if mapped < UNIT_PAGES {
        uncharge(UNIT_PAGES - mapped);
    }
    folio::finish(space, start, mapped, |i| if is_clean { State::clean(entries[i].payload()) } else { State::PRESENT });
    end_unmapped(mapped);
    if mapped == UNIT_PAGES {
        stats::add(&space.stats.thp_swpin, 1);
        space.places.folios.note_demand();
    }
    let detail = events::in_detail(Tag::Swapped as u64, write, is_ahead, 0, ctx.shard());
    events::record(Kind::In, start, mapped, detail);
    mapped
}

fn finish_one(space: &Space, start: usize, page: usize, state: State) {
    if let Some(word) = space.table.word(start + page * PAGE) {
        word.finish(state);
    }
}

/// Moves a folio back that went to staging whole, and that nobody has begun to store.
fn from_staging(touch: Touch<'_>) -> Option<Folio> {
    let Touch { space, ctx, page, start, .. } = touch;
    let inside = space.threads.enter(ctx);
    let region = space.regions.find(&inside, page).filter(|region| folio::may_be_whole(space, region, start))?;
    // A single page may be the only one of its unit that is in use. To bring all of it back then would keep others out.
    if !is_walk(touch) && !region.attr.is_huge_advised() && touch.page != touch.start {
        return None;
    }
    let state = space.table.word(page)?.load();
    let first = (state.payload() as u32).wrapping_sub(((page - start) / PAGE) as u32);
    let is_whole = state.tag() == Tag::Staged
        && first.is_multiple_of(UNIT_PAGES as u32)
        && space.places.staging.is_whole(first)
        && !space.places.staging.is_shared(first);
    let frame = |i: usize| State::staged(first + i as u32);
    let mut saved = [0; UNIT_PAGES];
    if !is_whole || !folio::claim_unit(space, start, &mut saved, |i, state| state == frame(i)) {
        return None;
    }
    let from = space.places.staging.addr(first);
    let (mapped, error) = match space.uffd().move_resident(start, from, UNIT_BYTES) {
        Ok(()) => (UNIT_PAGES, None),
        Err((bytes, error)) => (bytes / PAGE, Some(error)),
    };
    if error == Some(UffdError::Exists) {
        space.inconsistent(b"a staged page was mapped already");
    }
    if mapped > 0 {
        stats::add(&space.stats.moved_in_pages, mapped as u64);
        space.table.unit(start).iter().for_each(|unit| folio::mark(space, unit));
        swapin::settle_staged(space, start, first, mapped, region.group, true);
    }
    folio::finish(space, start, UNIT_PAGES, |i| if i < mapped { State::PRESENT } else { frame(i) });
    (0..mapped).for_each(|i| space.places.staging.put_frame(first + i as u32));
    if mapped == UNIT_PAGES {
        stats::add(&space.stats.thp_returned, 1);
    } else if mapped > 0 {
        space.places.staging.end_whole(first);
    }
    let detail = events::in_detail(Tag::Staged as u64, touch.write, false, 0, ctx.shard());
    events::record(Kind::In, start, mapped, detail);
    drop(inside);
    (mapped == UNIT_PAGES).then_some(Folio { tag: Tag::Staged, group: region.group, end: region.end, is_walk: false })
}
