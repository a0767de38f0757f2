//! The sweep: unmaps the present pages of one unit, intact, into staging.
//!
//! Pages are claimed, and the holes between those that are close together, so that one unmapping call may cover both:
//! nobody can map a page in between. Pages that were used since the last sweep get a second chance. Pages that a system
//! call uses (pins), that must stay, or that somebody else has claimed split the unit into segments; each segment is
//! unmapped by one MOVE, or by write-protect, copy and one drop. Clean pages go first, by one drop and without staging: their
//! content is where it was before they came in. Scattered pages of a unit that proved cold need no staging either, see
//! `in_place`. Of pages that somebody may have pinned for long the kernel is asked by MOVE, and only by MOVE, see `longterm`.

use crate::clock;
use crate::ctx::ThreadCtx;
use crate::groups::{Cost, Only, Tally};
use crate::in_place;
use crate::longterm::PINNED_SKIP;
use crate::page::{State, Tag};
use crate::primitive::{Ordering as ModelOrdering, fence};
use crate::region::Attr;
use crate::space::Space;
use crate::staging::{GROUP_FRAMES, GROUPS};
use crate::stats;
use crate::table::{PAGE, UNIT_PAGES, Unit};
use crate::uapi::{self, uffd::UffdError};
use crate::work::Work;
use core::sync::atomic::Ordering::Relaxed;

/// A page of the unit that the sweep did not claim.
const NOT_CLAIMED: u64 = u64::MAX;

/// Pages that runs must have on average for MOVE to be cheaper than copying. MOVE flushes the TLB once a run, which
/// interrupts the other processors the program runs on (11 us on two processors); copying costs 1.1 us a page and
/// flushes once a segment.
const MOVE_RUN_MIN: usize = 8;

/// Pages of a hole that is claimed with the pages around it, where most of a unit is shared and stays, so that a sweep finds
/// a few pages only. A claim and its end cost some 12 ns, a further range of an unmapping call 0.7 us.
const SHARED_HOLE_MAX: usize = 48;

/// How long a page that was used stays at least: a sweep takes its mark no sooner after the last one. Under pressure a
/// small process is swept a hundred times a second, and would lose the buffers it answers requests with.
const REFERENCED_MS: u64 = 100;
/// Sweeps that found nothing but such pages before they are taken all the same: each looks at all of a unit.
const FRUITLESS_MAX: u32 = 8;

/// What a sweep leaves alone.
#[derive(Clone, Copy)]
pub(crate) struct Leaves {
    /// Hot units.
    pub hot: bool,
    /// Pages that were used since the last sweep.
    pub used: bool,
}

/// What a sweep takes.
#[derive(Clone, Copy)]
struct Scope {
    /// Also pages that another process has in common.
    takes_shared: bool,
    leaves: Leaves,
    /// What of a unit belongs to one group, and no more.
    only: Option<Only>,
    /// Addresses that it keeps to, from the first on, instead of going on where the last sweep ended.
    range: Option<(usize, usize)>,
}

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

/// Which way a segment is unmapped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Way {
    Move,
    Copy,
    /// Also that some of it is shared with another process since a fork.
    CopyShared,
}

/// What a look at a unit claimed.
struct Claimed {
    present: usize,
    /// Pages that it left because they were used lately.
    referenced: u64,
    /// Where it ended.
    end: usize,
}

/// Claimed pages of a unit next to each other, with the same attributes.
pub(crate) struct Segment {
    pub first: usize,
    pub end: usize,
    attr: Attr,
}

impl Space {
    /// Sweeps the unit at `unit` into staging; also where the look at it ended. Inside the gate. `saved` keeps the states of
    /// claimed pages.
    fn sweep(&self, ctx: &ThreadCtx, unit: usize, scope: Scope, work: &mut Work) -> (Look, usize) {
        let pages = UNIT_PAGES;
        let is_move_only = self.is_move_only(unit);
        if is_move_only && self.has_driver() {
            // To drop a page that is only read asks nobody. No more of them come.
            self.open_unit(unit);
        }
        let saved = &mut work.saved;
        saved.fill(NOT_CLAIMED);
        let Claimed { present, referenced, end } = self.claim_unit(unit, pages, scope, saved);
        stats::add(&self.stats.referenced_pages, referenced);
        if present == 0 {
            self.unclaim(unit, 0, pages, saved);
            return (if referenced > 0 { Look::Spared } else { Look::Swept(0) }, end);
        }
        // Claims come first, then the look at the pins: see `pin`.
        fence(ModelOrdering::SeqCst);
        self.for_each_used(unit, unit + pages * PAGE, |start, end| {
            self.unclaim(unit, (start - unit) / PAGE, (end - unit).div_ceil(PAGE), saved);
        });
        let has_clean = self.table.unit(unit).is_some_and(|u| u.clean.load(Relaxed) > 0);
        let dropped = if has_clean { self.drop_clean(unit, saved, NOT_CLAIMED) } else { 0 };
        let evicts_in_place = scope.range.is_none() && !is_move_only && self.evicts_in_place(unit);
        let in_place = if evicts_in_place { self.evict_in_place(ctx, unit, work) } else { 0 };
        let saved = &mut work.saved;
        let block = if saved.iter().any(|raw| is_present(*raw)) { self.staging.take() } else { None };
        let staged = block.map_or(0, |block| self.stage(unit, block, saved));
        let swept = dropped + in_place + staged;
        if scope.only.is_none() && scope.range.is_none() {
            self.nr_evicted.fetch_add(swept as u64, Relaxed);
        }
        if let Some(u) = self.table.unit(unit)
            && swept > 0
        {
            u.swept.store(swept as u32, Relaxed);
            u.returned.store(0, Relaxed);
            stats::add(&self.stats.sweeps, 1);
        }
        self.unclaim(unit, 0, pages, saved);
        if let (Some(block), true) = (block, staged > 0) {
            self.staging.enqueue(block);
        }
        (Look::Swept(swept), end)
    }

    /// Unmaps the claimed present pages of the unit into `block`, which is given back when none went; how many.
    fn stage(&self, unit: usize, block: u32, saved: &mut [u64; 512]) -> usize {
        let pages = UNIT_PAGES;
        let mut filled = [0u32; GROUPS];
        let (mut at, mut refused) = (0, 0);
        let is_move_only = self.is_move_only(unit);
        while let Some(segment) = self.next_segment(unit, at, pages, saved) {
            at = segment.end;
            if is_move_only {
                refused += self.unmap_by_move_only(unit, block, &segment, saved);
            } else {
                self.unmap(unit, block, &segment, saved);
            }
        }
        if refused > 0
            && let Some(unit) = self.table.unit(unit)
        {
            unit.skip.fetch_max(if refused * 4 > pages { PINNED_SKIP } else { 0 }, Relaxed);
        }
        // A page that went has its new state in `saved` now.
        let mut swept = 0;
        let mut tally = Tally::new(self);
        for (i, raw) in saved[..pages].iter().enumerate() {
            if *raw != NOT_CLAIMED && State::from_raw(*raw).tag() == Tag::Staged && self.is_frame_of(*raw, block) {
                filled[i / GROUP_FRAMES] += 1;
                swept += 1;
                self.staging.owner(State::from_raw(*raw).payload() as u32).store((unit + i * PAGE) as u64, Relaxed);
                tally.add(unit + i * PAGE, Cost::STAGED);
            }
        }
        if swept == 0 {
            self.staging.give_back_unused(block);
            return 0;
        }
        self.staging.fill(block, &filled);
        if self.may_be_lent(unit) {
            self.staging.keep_none(block);
        }
        self.uncount_present(unit, swept);
        stats::add(&self.stats.unmap_pages, swept as u64);
        swept
    }

    fn is_frame_of(&self, raw: u64, block: u32) -> bool {
        State::from_raw(raw).payload() as u32 / UNIT_PAGES as u32 == block
    }

    /// Claims what it can of the unit, from where the last sweep of it ended, until it has as many present pages as
    /// one sweep takes. Pages of a group that may have no more swap are left, but for clean ones: those have it.
    fn claim_unit(&self, unit: usize, pages: usize, scope: Scope, saved: &mut [u64; 512]) -> Claimed {
        let Scope { takes_shared, leaves, only, range } = scope;
        let most = only.map_or(self.sweep_max(), |only| only.most);
        let Some((cursor, unmarked, deserted)) = self.table.unit(unit).map(|u| (&u.cursor, &u.unmarked, &u.deserted))
        else {
            return Claimed { present: 0, referenced: 0, end: unit + pages * PAGE };
        };
        let unmarks = clock::is_forbidden() || clock::ms_since(unmarked.load(Relaxed)) >= REFERENCED_MS;
        if unmarks {
            unmarked.store(clock::stamp(), Relaxed);
        }
        // Of what is marked shared it takes what others have given up.
        let takes_deserted = deserted.load(Relaxed) > 0;
        // These could only be dropped.
        let keeps_clean = self.has_driver();
        let is_in_common = |at, state: State| state.is_shared() && (!takes_deserted || self.tree().is_shared(at));
        let hole_max = if takes_shared { UNIT_PAGES } else { SHARED_HOLE_MAX } * PAGE;
        let whole = (unit + cursor.load(Relaxed) as usize % pages * PAGE, unit + pages * PAGE);
        let (mut at, end) = range.unwrap_or(whole);
        let move_cursor = |pages: usize| {
            if range.is_none() {
                cursor.store(pages as u32, Relaxed);
            }
        };
        let (mut present, mut referenced) = (0, 0);
        while let Some(region) = self.regions.first_in(at, end) {
            at = region.start.max(at);
            let stop = region.end.min(end);
            let group = region.group;
            let is_wanted = only.is_none_or(|only| self.groups.is_within(group, only.group));
            let may_stage = group.is_root() || self.groups.may_swap(group);
            // Where the hole began that may be claimed with the next page.
            let mut hole = None;
            while at < stop && is_wanted && region.attr.is_readable() && !region.attr.is_kept() {
                if let Some(word) = self.table.word(at) {
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
                                self.claim_hole(unit, start, at, saved);
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
                    move_cursor((at - unit) / PAGE % pages);
                    return Claimed { present, referenced, end: at };
                }
            }
            at = stop;
        }
        move_cursor(0);
        Claimed { present, referenced, end }
    }

    /// Claims the pages from `start` to `end`, which are not mapped, as far as it can.
    fn claim_hole(&self, unit: usize, start: usize, end: usize, saved: &mut [u64; 512]) {
        for at in (start..end).step_by(PAGE) {
            if let Some(word) = self.table.word(at) {
                let state = word.load();
                if state.tag() != Tag::Present && word.try_claim(state) {
                    saved[(at - unit) / PAGE] = state.to_raw();
                }
            }
        }
    }

    /// Ends the claims on pages `first..end` of the unit, with the states in `saved`.
    pub(crate) fn unclaim(&self, unit: usize, first: usize, end: usize, saved: &mut [u64; 512]) {
        for (i, raw) in saved.iter_mut().enumerate().take(end).skip(first) {
            if *raw != NOT_CLAIMED {
                if let Some(word) = self.table.word(unit + i * PAGE) {
                    word.finish(State::from_raw(*raw));
                }
                *raw = NOT_CLAIMED;
            }
        }
    }

    /// The next run of claimed pages of one region from page `at` on, cut to its present pages.
    pub(crate) fn next_segment(&self, unit: usize, mut at: usize, pages: usize, saved: &[u64; 512]) -> Option<Segment> {
        let is_present = |i: usize| is_present(saved[i]);
        while at < pages && !is_present(at) {
            at += 1;
        }
        let region = self.regions.find(unit + at * PAGE).filter(|_| at < pages)?;
        let limit = pages.min((region.end - unit) / PAGE);
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

    /// Which way a segment is unmapped, if MOVE is worth it for runs of so many pages.
    pub(crate) fn way_of(&self, segment: &Segment, saved: &[u64; 512], run_min: usize) -> Way {
        let saved = &saved[segment.first..segment.end];
        let (present, runs) = count_runs(saved);
        // The kernel does not move what it has mapped more than once.
        if saved.iter().any(|raw| State::from_raw(*raw).is_shared()) {
            Way::CopyShared
        } else if self.can_move.load(Relaxed) && segment.attr.is_plain() && present >= runs * run_min {
            Way::Move
        } else {
            Way::Copy
        }
    }

    /// Unmaps a segment; pages that went get their staged state in `saved`.
    fn unmap(&self, unit: usize, block: u32, segment: &Segment, saved: &mut [u64; 512]) {
        let &Segment { first, end, .. } = segment;
        if end - first == 1 {
            stats::add(&self.stats.unmap_single_calls, 1);
        }
        if self.way_of(segment, saved, MOVE_RUN_MIN) == Way::Move
            && self.unmap_by_move(unit, block, segment, false, saved).1 != Some(UffdError::Mismatch)
        {
            return;
        }
        // What has moved is staged by now, and the rest cannot be.
        if let Some(rest) = (first..end).find(|page| is_present(saved[*page])) {
            self.unmap_by_copy(unit, block, rest, end, saved);
        }
    }

    /// Unmaps what can be moved of a segment; how many pages somebody has pinned. Nothing of it is dropped.
    fn unmap_by_move_only(&self, unit: usize, block: u32, segment: &Segment, saved: &mut [u64; 512]) -> usize {
        let &Segment { first, end, attr } = segment;
        if !attr.is_plain() {
            return 0;
        }
        let is_shared = saved[first..end].iter().any(|raw| is_present(*raw) && State::from_raw(*raw).is_shared());
        if is_shared {
            self.make_exclusive(unit, first, end, saved);
        }
        let (refused, error) = self.unmap_by_move(unit, block, segment, is_shared, saved);
        if error == Some(UffdError::Mismatch) {
            // Locked, since it was looked at.
            for (page, raw) in saved.iter_mut().enumerate().take(end).skip(first).filter(|(_, raw)| is_present(**raw)) {
                *raw = self.kept(unit + page * PAGE, State::from_raw(*raw)).to_raw();
            }
        }
        refused
    }

    /// Moves the pages of a segment to their frames: how many somebody has pinned, and the error that ended it. `are_exclusive`:
    /// the kernel refuses none because it has it mapped more than once.
    fn unmap_by_move(
        &self,
        unit: usize,
        block: u32,
        segment: &Segment,
        mut are_exclusive: bool,
        saved: &mut [u64; 512],
    ) -> (usize, Option<UffdError>) {
        let &Segment { mut first, end, attr } = segment;
        let mut refused = 0;
        // Each turn gets further by a page at least, but for one.
        loop {
            stats::add(&self.stats.unmap_calls, 1);
            stats::add(&self.stats.unmap_move_calls, 1);
            let (dst, src) = (self.staging.addr(self.staging.frame(block, first)), unit + first * PAGE);
            let result = self.uffd().move_pages(dst, src, (end - first) * PAGE);
            let done = match result {
                Ok(()) => end - first,
                Err((bytes, _)) => bytes / PAGE,
            };
            self.mark_staged(unit, block, first, first + done, saved);
            first += done;
            match result {
                Ok(()) => return (refused, None),
                Err((_, UffdError::Shared)) if !are_exclusive => {
                    stats::add(&self.stats.move_refused, 1);
                    self.make_exclusive(unit, first, end, saved);
                    are_exclusive = true;
                }
                Err((_, UffdError::Shared)) => {
                    stats::add(&self.stats.move_refused, 1);
                    self.note_refused(unit);
                    refused += 1;
                    first += 1;
                }
                Err((_, error)) => {
                    stats::add(&self.stats.move_refused, (error == UffdError::Mismatch) as u64);
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
    fn unmap_by_copy(&self, unit: usize, block: u32, first: usize, end: usize, saved: &mut [u64; 512]) {
        let (start, len) = (unit + first * PAGE, (end - first) * PAGE);
        // From here on a writer faults, finds the page busy and waits.
        if self.uffd().write_protect(start, len, true).is_err() {
            return;
        }
        stats::add(&self.stats.unmap_calls, 1);
        let mut ok = true;
        let mut i = first;
        while i < end && ok {
            if !is_present(saved[i]) {
                i += 1;
                continue;
            }
            let run = i;
            while i < end && is_present(saved[i]) {
                i += 1;
            }
            let frame = self.staging.addr(self.staging.frame(block, run));
            ok = self.uffd().copy(frame, unit + run * PAGE, (i - run) * PAGE).is_ok();
        }
        let drop = |start: usize, len: usize| uapi::madvise(start, len, linux_raw_sys::general::MADV_DONTNEED).is_ok();
        if ok && drop(start, len) {
            self.mark_staged(unit, block, first, end, saved);
            return;
        }
        // Locked memory, or no memory for the copies. The kernel may have dropped what lies before the obstacle: it is
        // asked page by page, and what it does not drop stays where it is.
        for i in first..end {
            if ok && is_present(saved[i]) && drop(unit + i * PAGE, PAGE) {
                self.mark_staged(unit, block, i, i + 1, saved);
            } else {
                let frame = self.staging.addr(self.staging.frame(block, i));
                drop(frame, PAGE);
                if ok && is_present(saved[i]) {
                    saved[i] = self.kept(unit + i * PAGE, State::from_raw(saved[i])).to_raw();
                }
            }
        }
        // What is shared stays protected.
        for (i, raw) in saved.iter().enumerate().take(end).skip(first) {
            if !State::from_raw(*raw).is_shared() {
                let _ = self.uffd().write_protect(unit + i * PAGE, PAGE, false);
            }
        }
    }

    fn mark_staged(&self, unit: usize, block: u32, first: usize, end: usize, saved: &mut [u64; 512]) {
        for (i, raw) in saved.iter_mut().enumerate().take(end).skip(first) {
            let state = State::from_raw(*raw);
            if state.tag() == Tag::Present {
                self.break_if_shared(unit + i * PAGE, state);
                *raw = State::staged(self.staging.frame(block, i)).to_raw();
            }
        }
    }

    /// Picks the next unit and sweeps it; how many pages that unmapped, or none when there is nothing to sweep.
    /// `takes_shared`: also pages that another process has in common.
    pub(crate) fn sweep_next(&self, ctx: &ThreadCtx, takes_shared: bool, work: &mut Work) -> Option<usize> {
        // Bounded: once around the ring, with patience for hot units only the first time.
        self.gate.enter(&ctx.gate);
        let units = if self.staging.has_room() { self.units.len() } else { 0 };
        self.gate.leave(&ctx.gate);
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
            self.gate.enter(&ctx.gate);
            let look = self.sweep_one(ctx, scope, work);
            self.gate.leave(&ctx.gate);
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
    fn sweep_one(&self, ctx: &ThreadCtx, scope: Scope, work: &mut Work) -> Look {
        let Some(addr) = self.units.pop() else { return Look::Empty };
        let addr = addr as usize;
        let Some(unit) = self.table.unit(addr) else { return Look::Passed };
        if unit.present.load(Relaxed) == 0 {
            // Cleared first and looked at again, so that a page that comes in now queues the unit, or we do.
            unit.queued.store(0, core::sync::atomic::Ordering::SeqCst);
            if unit.present.load(core::sync::atomic::Ordering::SeqCst) > 0
                && unit.queued.swap(1, core::sync::atomic::Ordering::SeqCst) == 0
            {
                self.queue_unit(addr);
            }
            return Look::Passed;
        }
        let look = self.sweep_unless_hot(ctx, addr, unit, scope, work);
        self.queue_unit(addr);
        look
    }

    /// Sweeps what a group has of the unit at `addr`; how many pages that unmapped. Inside the gate.
    pub(crate) fn sweep_unit_of(
        &self,
        ctx: &ThreadCtx,
        addr: usize,
        only: Only,
        leaves: Leaves,
        work: &mut Work,
    ) -> usize {
        let scope = Scope { takes_shared: true, leaves, only: Some(only), range: None };
        match self.table.unit(addr).map(|unit| self.sweep_unless_hot(ctx, addr, unit, scope, work)) {
            Some(Look::Swept(pages)) => pages,
            _ => 0,
        }
    }

    /// Sweeps what one sweep takes of the pages from `range.0` to `range.1`, all in the unit at `addr`, however much they are
    /// used; where it ended. Inside the gate.
    pub(crate) fn sweep_range(&self, ctx: &ThreadCtx, addr: usize, range: (usize, usize), work: &mut Work) -> usize {
        if let Some(unit) = self.table.unit(addr) {
            self.look_for_deserted(addr, unit);
        }
        let scope =
            Scope { takes_shared: false, leaves: Leaves { hot: false, used: false }, only: None, range: Some(range) };
        self.sweep(ctx, addr, scope, work).1
    }

    fn sweep_unless_hot(&self, ctx: &ThreadCtx, addr: usize, unit: &Unit, scope: Scope, work: &mut Work) -> Look {
        self.judge(unit);
        if !scope.takes_shared {
            self.look_for_deserted(addr, unit);
            if self.is_all_shared(unit) {
                return Look::Passed;
            }
        }
        let skip = unit.skip.load(Relaxed);
        let young_ms = self.young_ms.load(Relaxed);
        let is_young = young_ms > 0 && clock::ms_since(unit.touched.load(Relaxed)) < young_ms;
        if !scope.leaves.hot || skip == 0 && !is_young {
            return self.sweep(ctx, addr, scope, work).0;
        }
        if skip == 0 {
            stats::add(&self.stats.sweeps_skipped, 1);
            return Look::Passed;
        }
        unit.skip.store(skip - 1, Relaxed);
        // What proved hot more than once stays: slots of its pages are of use to others.
        if unit.generation.load(Relaxed) > 1 && unit.clean.load(Relaxed) > 0 {
            self.open_unit(addr);
        }
        stats::add(&self.stats.sweeps_skipped, 1);
        Look::Passed
    }

    /// Generations: a unit half of whose pages came back from staging is hot, and left alone for longer each time. One
    /// that other reasons say is in use, pages that came back or near refaults, gets one more pass.
    fn judge(&self, unit: &Unit) {
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
}

/// The segment without leading pages that are not present; none when nothing is left.
fn trim(segment: Segment, saved: &[u64; 512]) -> Option<Segment> {
    let first = (segment.first..segment.end).find(|i| State::from_raw(saved[*i]).tag() == Tag::Present)?;
    Some(Segment { first, ..segment })
}

/// Whether a saved state is that of a claimed page that is mapped.
pub(crate) fn is_present(raw: u64) -> bool {
    raw != NOT_CLAIMED && State::from_raw(raw).tag() == Tag::Present
}

/// Present pages in `saved`, and the runs they form.
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
