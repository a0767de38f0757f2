//! Unmaps the pages that a sweep has claimed: by MOVE where they lie together, by copy where they are scattered.

use crate::base::events::{self, Kind, Out};
use crate::base::uapi::uffd::UffdError;
use crate::base::{PAGE, clock, uapi};
use crate::counters::stats;
use crate::groups::cost::Cost;
use crate::groups::table::Index;
use crate::memory::region::Attr;
use crate::memory::table::UNIT_PAGES;
use crate::pages::account;
use crate::pages::claims::{self, NOT_CLAIMED};
use crate::pages::drivers::{self, PINNED_SKIP};
use crate::pages::tally::Tally;
use crate::pages::{folio, kept, sharing, stock};
use crate::places::staging::{BUNDLE_FRAMES, BUNDLES};
use crate::protocols::gate::Held;
use crate::protocols::page::{State, Tag};
use crate::space::Space;
use crate::way_out::give_back::{Loose, next_run};
use core::ops::Range;
use core::sync::atomic::Ordering::Relaxed;

/// The units and pages that a sweep leaves alone.
#[derive(Clone, Copy)]
pub(crate) struct Leaves {
    /// Hot units.
    pub hot: bool,
    /// Pages that were used since the last sweep.
    pub used: bool,
}

/// The pages that a sweep takes.
#[derive(Clone, Copy)]
pub(crate) struct Scope {
    /// Also pages that another process has in common.
    pub(crate) takes_shared: bool,
    pub(crate) leaves: Leaves,
    /// Only pages of one group.
    pub(crate) only: Option<Only>,
    /// Only pages between these addresses, from the first on. Without a range the sweep begins where the last one ended.
    pub(crate) range: Option<(usize, usize)>,
}

/// Sweeps take the marks of referenced pages of a unit no more often than this, so a page that was used stays at least as long.
/// Under pressure a small process is swept a hundred times a second, and would lose the buffers with which it answers requests.
pub(crate) const REFERENCED_MS: u64 = 100;

/// The limits of a sweep or a swap-out for a group.
#[derive(Clone, Copy)]
pub struct Only {
    pub group: Index,
    /// Most pages that one step takes.
    pub most: usize,
}

/// Pages that runs must have on average for MOVE to be cheaper than copying. MOVE flushes the TLB once a run, which
/// interrupts the other processors the program runs on (11 us on two processors). Copying costs 1.1 us a page and
/// flushes once a segment.
const MOVE_RUN_MIN: usize = 8;

/// Most pages that a sweep copies at once. Who wants one of them waits meanwhile.
const COPY_PAGES: usize = 32;

/// The largest hole, in pages, that is claimed with the pages around it where shared pages stay. There most of a unit is
/// shared, and a sweep finds only a few pages. A claim and its end cost some 12 ns, a further range of an unmapping call 0.7
/// us.
const SHARED_HOLE_MAX: usize = 48;

/// The way in which a segment is unmapped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Way {
    Move,
    Copy,
    /// By copy too: some of the segment is shared with another process since a fork.
    CopyShared,
}

/// The outcome of claiming pages of a unit.
pub(crate) struct Claimed {
    pub(crate) present: usize,
    /// Pages that were left because they were used lately.
    pub(crate) referenced: u64,
    /// The address where the claiming ended.
    pub(crate) end: usize,
}

/// Neighbouring claimed pages of a unit with the same attributes: page numbers in the unit.
pub(crate) struct Segment {
    pub first: usize,
    pub end: usize,
    pub(crate) attr: Attr,
}

/// Unmaps the claimed present pages of the unit into `block`. Returns how many went; if none did, `block` is given back.
///
/// With `is_whole` all pages of the unit are claimed, and may be one folio.
pub(crate) fn stage(
    space: &Space,
    held: &Held,
    unit: usize,
    block: u32,
    is_whole: bool,
    saved: &mut [u64; UNIT_PAGES],
) -> usize {
    if is_whole {
        // The kernel moves a huge page only to where it has no page table. It frees that of a range that is dropped as a whole.
        space.places.staging.drop_frames(space.places.staging.frame(block, 0), UNIT_PAGES);
    }
    let mut filled = [0u32; BUNDLES];
    let (mut at, mut refused) = (0, 0);
    let began_ns = if is_whole { uapi::now_ns() } else { 0 };
    let is_move_only = drivers::is_move_only(space, unit);
    while let Some(segment) = next_segment(space, held, unit, at, saved) {
        at = segment.end;
        if is_move_only {
            refused += unmap_by_move_only(space, unit, block, &segment, saved);
        } else {
            unmap(space, unit, block, &segment, saved);
        }
    }
    if refused > 0
        && let Some(unit) = space.table.unit(unit)
    {
        unit.skip.fetch_max(if refused * 4 > UNIT_PAGES { PINNED_SKIP } else { 0 }, Relaxed);
    }
    let was_huge = is_whole && folio::was_huge(space, unit, uapi::now_ns() - began_ns);
    // The pages that went have their new states in `saved` now.
    let mut swept = 0;
    let mut tally = Tally::new(space, held);
    for (i, raw) in saved.iter().enumerate() {
        if *raw != NOT_CLAIMED && State::from_raw(*raw).tag() == Tag::Staged && is_frame_of(*raw, block) {
            events::record(Kind::Out, unit + i * PAGE, 1, Out::Staged as u64);
            filled[i / BUNDLE_FRAMES] += 1;
            swept += 1;
            space.places.staging.owner(State::from_raw(*raw).payload() as u32).store((unit + i * PAGE) as u64, Relaxed);
            tally.add(unit + i * PAGE, Cost::STAGED);
        }
    }
    if swept == 0 {
        space.places.staging.give_back_unused(block);
        return 0;
    }
    if was_huge && swept == UNIT_PAGES {
        space.places.staging.fill_whole(block);
        stats::add(&space.stats.thp_unmapped, 1);
    } else {
        space.places.staging.fill(block, &filled);
    }
    if swept == UNIT_PAGES {
        // Also if the kernel had split it: that all of it was in memory says nothing of its use, and its pages come in anew.
        let note = if is_whole { folio::note_whole_out } else { folio::unmark };
        space.table.unit(unit).iter().for_each(|unit| note(unit));
    }
    if stock::may_be_lent(space, unit) {
        space.places.staging.keep_none(block);
    }
    account::uncount_present(space, unit, swept);
    stats::add(&space.stats.unmap_pages, swept as u64);
    swept
}

fn is_frame_of(raw: u64, block: u32) -> bool {
    State::from_raw(raw).payload() as u32 / UNIT_PAGES as u32 == block
}

/// Claims pages of the unit, from where its last sweep ended, until it has as many present pages as one sweep takes.
///
/// If a group may have no more swap, only its clean pages are claimed: their swap is charged already.
pub(crate) fn claim_unit(
    space: &Space,
    held: &Held,
    unit: usize,
    scope: Scope,
    saved: &mut [u64; UNIT_PAGES],
) -> Claimed {
    let Scope { takes_shared, leaves, only, range } = scope;
    let most = only.map_or(space.sweep_max(), |only| only.most);
    let Some((cursor, unmarked, deserted)) = space.table.unit(unit).map(|u| (&u.cursor, &u.unmarked, &u.deserted))
    else {
        return Claimed { present: 0, referenced: 0, end: unit + UNIT_PAGES * PAGE };
    };
    let unmarks = clock::is_forbidden() || clock::ms_since(unmarked.load(Relaxed)) >= REFERENCED_MS;
    if unmarks {
        unmarked.store(clock::stamp(), Relaxed);
    }
    // Pages that are marked shared, but that the others have given up, may go.
    let takes_deserted = deserted.load(Relaxed) > 0;
    // With a driver clean pages stay: they would be dropped, not moved.
    let keeps_clean = drivers::has_driver(space);
    let is_in_common = |at, state: State| state.is_shared() && (!takes_deserted || space.tree().is_shared(at));
    let hole_max = if takes_shared { UNIT_PAGES } else { SHARED_HOLE_MAX } * PAGE;
    let whole = (unit + cursor.load(Relaxed) as usize % UNIT_PAGES * PAGE, unit + UNIT_PAGES * PAGE);
    let (mut at, end) = range.unwrap_or(whole);
    let move_cursor = |page: usize| {
        if range.is_none() {
            cursor.store(page as u32, Relaxed);
        }
    };
    let (mut present, mut referenced) = (0, 0);
    while let Some(region) = space.regions.first_in(held, at, end) {
        at = region.start.max(at);
        let stop = region.end.min(end);
        let group = region.group;
        let is_wanted = only.is_none_or(|only| space.groups.is_within(group, only.group));
        let may_stage = group.is_root() || space.groups.may_swap(group);
        // The start of the hole that may be claimed together with the next page.
        let mut hole = None;
        while at < stop && is_wanted && region.attr.is_readable() && !region.attr.is_kept() {
            if let Some(word) = space.table.word(at) {
                let state = word.load();
                let stays = state.is_pinned() || !takes_shared && is_in_common(at, state);
                let may_go = !stays && (may_stage && !state.is_clean() || state.is_clean() && !keeps_clean);
                match state.tag() {
                    Tag::Present if may_go && leaves.used && state.is_referenced() => {
                        if unmarks {
                            word.set_referenced(state, false);
                        }
                        referenced += 1;
                        hole = None;
                    }
                    Tag::Present if may_go && word.try_claim(state) => {
                        saved[(at - unit) / PAGE] = state.to_raw();
                        present += 1;
                        if let Some(start) = hole {
                            claim_holes(space, unit, (start - unit) / PAGE..(at - unit) / PAGE, saved);
                        }
                        hole = Some(at + PAGE);
                    }
                    Tag::Present | Tag::Busy => hole = None,
                    _ if hole.is_some_and(|start| at - start >= hole_max) => hole = None,
                    _ => {}
                }
            }
            at += PAGE;
            if present >= most {
                move_cursor((at - unit) / PAGE % UNIT_PAGES);
                return Claimed { present, referenced, end: at };
            }
        }
        at = stop;
    }
    move_cursor(0);
    Claimed { present, referenced, end }
}

/// Claims those of these pages that are not mapped, as far as nobody else has claimed them.
pub(crate) fn claim_holes(space: &Space, unit: usize, pages: Range<usize>, saved: &mut [u64; UNIT_PAGES]) {
    for page in pages {
        if let Some(word) = space.table.word(unit + page * PAGE) {
            let state = word.load();
            if state.tag() != Tag::Present && word.try_claim(state) {
                saved[page] = state.to_raw();
            }
        }
    }
}

/// Ends the claims on pages `first..end` of the unit. They get the states in `saved`.
pub(crate) fn unclaim(space: &Space, unit: usize, first: usize, end: usize, saved: &mut [u64; UNIT_PAGES]) {
    for (i, raw) in saved.iter_mut().enumerate().take(end).skip(first) {
        if *raw != NOT_CLAIMED {
            if let Some(word) = space.table.word(unit + i * PAGE) {
                word.finish(State::from_raw(*raw));
            }
            *raw = NOT_CLAIMED;
        }
    }
}

/// The next run of claimed pages of one region from page `at` on, cut to its present pages.
pub(crate) fn next_segment(
    space: &Space,
    held: &Held,
    unit: usize,
    mut at: usize,
    saved: &[u64; UNIT_PAGES],
) -> Option<Segment> {
    let is_present = |i: usize| claims::is_present(saved[i]);
    while at < UNIT_PAGES && !is_present(at) {
        at += 1;
    }
    let region = space.regions.find(held, unit + at * PAGE).filter(|_| at < UNIT_PAGES)?;
    let limit = UNIT_PAGES.min((region.end - unit) / PAGE);
    let mut end = at;
    let mut last = at;
    while end < limit && saved[end] != NOT_CLAIMED {
        if is_present(end) {
            last = end;
        }
        end += 1;
    }
    Some(Segment { first: at, end: last + 1, attr: region.attr })
}

/// The way in which a segment is unmapped. MOVE is worth it if runs have at least `run_min` pages on average.
pub(crate) fn way_of(space: &Space, segment: &Segment, saved: &[u64; UNIT_PAGES], run_min: usize) -> Way {
    let saved = &saved[segment.first..segment.end];
    let (present, runs) = count_runs(saved);
    // The kernel does not move pages that are mapped more than once.
    if saved.iter().any(|raw| State::from_raw(*raw).is_shared()) {
        Way::CopyShared
    } else if space.kernel.can_move() && segment.attr.is_plain() && present >= runs * run_min {
        Way::Move
    } else {
        Way::Copy
    }
}

/// Unmaps a segment. Pages that went get their staged state in `saved`.
fn unmap(space: &Space, unit: usize, block: u32, segment: &Segment, saved: &mut [u64; UNIT_PAGES]) {
    let &Segment { first, end, .. } = segment;
    if end - first == 1 {
        stats::add(&space.stats.unmap_single_calls, 1);
    }
    if way_of(space, segment, saved, MOVE_RUN_MIN) == Way::Move {
        let (refused, error) = unmap_by_move(space, unit, block, segment, false, saved);
        // A pinned page must not be copied. It may lie before the rest, so all that is left stays.
        if error != Some(UffdError::Mismatch) || refused > 0 {
            return;
        }
    }
    // The pages that moved are staged by now, and come first. The rest cannot be moved.
    if let Some(rest) = (first..end).find(|page| claims::is_present(saved[*page])) {
        unmap_by_copy(space, unit, block, rest, end, saved);
    }
}

/// Unmaps the pages of a segment that can be moved, and drops none. Returns how many are pinned.
fn unmap_by_move_only(
    space: &Space,
    unit: usize,
    block: u32,
    segment: &Segment,
    saved: &mut [u64; UNIT_PAGES],
) -> usize {
    let &Segment { first, end, attr } = segment;
    if !attr.is_plain() {
        return 0;
    }
    let is_shared = saved[first..end].iter().any(|raw| claims::is_present(*raw) && State::from_raw(*raw).is_shared());
    if is_shared {
        drivers::make_exclusive(space, unit, first, end, saved);
    }
    let (refused, error) = unmap_by_move(space, unit, block, segment, is_shared, saved);
    if error == Some(UffdError::Mismatch) {
        // Memory of the segment was locked after the last look at it.
        for (page, raw) in
            saved.iter_mut().enumerate().take(end).skip(first).filter(|(_, raw)| claims::is_present(**raw))
        {
            *raw = kept::kept(space, unit + page * PAGE, State::from_raw(*raw)).to_raw();
        }
    }
    refused
}

/// Moves the pages of a segment to their frames. Returns how many are pinned, and the error that ended it.
///
/// `are_exclusive`: the pages are exclusively this process's, so the kernel refuses none because it is mapped more than once.
fn unmap_by_move(
    space: &Space,
    unit: usize,
    block: u32,
    segment: &Segment,
    mut are_exclusive: bool,
    saved: &mut [u64; UNIT_PAGES],
) -> (usize, Option<UffdError>) {
    let &Segment { mut first, end, attr } = segment;
    let mut refused = 0;
    // Each turn but one advances by at least one page.
    loop {
        stats::add(&space.stats.unmap_calls, 1);
        stats::add(&space.stats.unmap_move_calls, 1);
        let (dst, src) = (space.places.staging.addr(space.places.staging.frame(block, first)), unit + first * PAGE);
        let result = space.uffd().move_pages(dst, src, (end - first) * PAGE);
        let done = match result {
            Ok(()) => end - first,
            Err((bytes, _)) => bytes / PAGE,
        };
        mark_staged(space, unit, block, first, first + done, saved);
        first += done;
        match result {
            Ok(()) => return (refused, None),
            Err((_, UffdError::Shared)) if !are_exclusive => {
                stats::add(&space.stats.move_refused, 1);
                drivers::make_exclusive(space, unit, first, end, saved);
                are_exclusive = true;
            }
            Err((_, UffdError::Shared)) => {
                stats::add(&space.stats.move_refused, 1);
                drivers::note_refused(space, unit);
                refused += 1;
                first += 1;
            }
            Err((_, error)) => {
                stats::add(&space.stats.move_refused, (error == UffdError::Mismatch) as u64);
                return (refused, Some(error));
            }
        }
        match trim(Segment { first, end, attr }, saved) {
            Some(rest) => first = rest.first,
            None => return (refused, None),
        }
    }
}

/// Write-protects pages `first..end`, copies the present ones to their frames and drops the range.
fn unmap_by_copy(space: &Space, unit: usize, block: u32, first: usize, end: usize, saved: &mut [u64; UNIT_PAGES]) {
    let (start, len) = (unit + first * PAGE, (end - first) * PAGE);
    // As in `in_place`.
    if space.uffd().write_protect(start, len, true).is_err() {
        return;
    }
    stats::add(&space.stats.unmap_calls, 1);
    let drop = |start: usize, len: usize| uapi::madvise(start, len, linux_raw_sys::general::MADV_DONTNEED).is_ok();
    let frame_at = |page: usize| space.places.staging.addr(space.places.staging.frame(block, page));
    let loose = Loose::new(space, unit, first..end, saved);
    let mut ok = true;
    let mut i = first;
    while i < end && ok {
        if !claims::is_present(saved[i]) {
            i += 1;
            continue;
        }
        let run = i;
        i = loose.hold(space, unit, run..end.min(run + COPY_PAGES), saved);
        if i == run {
            // It was taken back.
            i += 1;
            continue;
        }
        ok = space.uffd().copy(frame_at(run), unit + run * PAGE, (i - run) * PAGE).is_ok();
        loose.let_go(space, unit, run..i, saved);
    }
    loose.firm_up(space, unit, first..end, saved, |page| {
        if page < i {
            drop(frame_at(page), PAGE);
        }
    });
    // One call drops what lies between two pages that are no longer claimed.
    let mut at = first;
    while ok && let Some(run) = next_run(at..end, saved) {
        at = run.end;
        if drop(unit + run.start * PAGE, run.len() * PAGE) {
            mark_staged(space, unit, block, run.start, run.end, saved);
        }
    }
    if !saved[first..end].iter().any(|raw| claims::is_present(*raw)) {
        return;
    }
    // Either there was no memory for the copies, or some of the pages are locked. If some are locked, the kernel may have
    // dropped the pages before them. So the pages are dropped one by one then, and those that the kernel does not drop stay
    // where they are.
    for i in first..end {
        if !claims::is_present(saved[i]) {
            continue;
        }
        if ok && drop(unit + i * PAGE, PAGE) {
            mark_staged(space, unit, block, i, i + 1, saved);
        } else {
            drop(frame_at(i), PAGE);
            if ok {
                saved[i] = kept::kept(space, unit + i * PAGE, State::from_raw(saved[i])).to_raw();
            }
        }
    }
    // Shared pages stay protected.
    for (i, raw) in saved.iter().enumerate().take(end).skip(first) {
        if claims::is_present(*raw) && !State::from_raw(*raw).is_shared() {
            let _ = space.uffd().write_protect(unit + i * PAGE, PAGE, false);
        }
    }
}

fn mark_staged(space: &Space, unit: usize, block: u32, first: usize, end: usize, saved: &mut [u64; UNIT_PAGES]) {
    for (i, raw) in saved.iter_mut().enumerate().take(end).skip(first) {
        let state = State::from_raw(*raw);
        if state.tag() == Tag::Present {
            sharing::break_if_shared(space, unit + i * PAGE, state);
            *raw = State::staged(space.places.staging.frame(block, i)).to_raw();
        }
    }
}

/// The segment without its leading pages that are not present. None if nothing is left.
fn trim(segment: Segment, saved: &[u64; UNIT_PAGES]) -> Option<Segment> {
    let first = (segment.first..segment.end).find(|i| State::from_raw(saved[*i]).tag() == Tag::Present)?;
    Some(Segment { first, ..segment })
}

/// The number of present pages in `saved`, and of the runs they form.
fn count_runs(saved: &[u64]) -> (usize, usize) {
    let (mut present, mut runs, mut inside) = (0, 0, false);
    for raw in saved {
        let is_present = State::from_raw(*raw).tag() == Tag::Present;
        present += is_present as usize;
        runs += (is_present && !inside) as usize;
        inside = is_present;
    }
    (present, runs)
}
