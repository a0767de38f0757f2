//! Clean pages: present, write-protected, and with a swap slot that still holds the same content (see `protocols::page`).
//!
//! Clean pages make it cheap to evict what is only read: no copy into staging, no compression, no writing. In return their
//! content takes room in pool or file while it is in memory too. `swapin` decides which pages are worth that.
//!
//! A clean page ends in one of two ways. *Opened*, it becomes an ordinary present page and its slot is freed: it was written
//! to or used by a system call, or its unit proved hot. *Dropped*, it becomes a swapped page: it was evicted.

use crate::base::PAGE;
use crate::base::events::{self, Kind, Out};
use crate::base::runs::Runs;
use crate::base::uapi::{self};
use crate::counters::stats;
use crate::device::file::Place;
use crate::groups::cost::Cost;
use crate::memory::table::UNIT_PAGES;
use crate::pages::claims;
use crate::pages::clean_folio;
use crate::pages::tally::Tally;
use crate::pages::{account, kept, sharing, stock};
use crate::places::staging::BUNDLE_FRAMES;
use crate::places::swapspace::{folio_at, slot_of};
use crate::protocols::gate::{Exclusive, Held};
use crate::protocols::page::{PageWord, State, Tag};
use crate::space::Space;
use core::sync::atomic::Ordering::Relaxed;
use ebb_slots::{Slot, TableEntry};
use linux_raw_sys::general as g;

/// Most pages that one fault opens.
pub(crate) const OPEN_MAX: usize = 16;
/// After a write to a clean page, this many faults that bring in pages of its unit leave no clean pages.
const WRITTEN_PENALTY: u32 = 8;

/// The reason why pages are opened.
#[derive(Clone, Copy)]
enum How {
    /// To be written: clean pages, and at most `max_shared` shared ones.
    ForWrite { max_shared: usize },
    /// To free the slots of clean pages. `waits`: for a slot that another thread has locked.
    ForSlots { waits: bool },
}

/// The outcome of opening pages.
#[derive(Clone, Copy, Default)]
pub(crate) struct Opened {
    pub pages: usize,
    /// Pages by which the tree's memory grew, because opened pages were shared.
    pub broken: usize,
}

/// Frees the slot of a clean page that the caller owns.
fn free_clean(space: &Space, held: &Held, addr: usize, state: State) {
    let (slot, folio) = (slot_of(state), folio_at(addr));
    if let Ok(was) = space.swap.claim(slot, folio) {
        space.swap.release(held, &space.budget, space.stats, slot, folio, was);
    }
}

/// Frees the cache-only `slot` by opening its resident clean page, and clean pages that follow it. False if nothing was opened.
///
/// Does nothing unless the slot's content is at `at` of a file, because what is known of the file may be old. Never waits, so it
/// may be called with slots locked and pages claimed.
pub(crate) fn reclaim_cache_only(space: &Space, held: &Held, slot: Slot, at: Place) -> bool {
    if !space.swap.is_in_file(slot, at) {
        return false;
    }
    let TableEntry::Cached { count: 0, folio, locked: false, .. } = space.swap.entry(slot) else { return false };
    let addr = folio.get() as usize * PAGE;
    let Some(word) = space.table.word(addr) else { return false };
    let state = word.load();
    let how = How::ForSlots { waits: false };
    let opened =
        state.is_clean() && slot_of(state) == slot && open(space, held, addr, word, state, usize::MAX, how).pages > 0;
    stats::add(&space.stats.cache_only_reclaimed, opened as u64);
    opened
}

/// Opens the protected page at `addr`, seen in `state`, and protected pages that follow it below `end`, with one call. Then
/// they may be written.
///
/// Opens at most `max_shared` shared pages, and none at all if another thread was faster.
pub(crate) fn open_run(
    space: &Space,
    held: &Held,
    addr: usize,
    word: PageWord<'_>,
    state: State,
    end: usize,
    max_shared: usize,
) -> Opened {
    open(space, held, addr, word, state, end, How::ForWrite { max_shared })
}

fn open(space: &Space, held: &Held, addr: usize, word: PageWord<'_>, state: State, end: usize, how: How) -> Opened {
    let mut nr_shared = 0;
    let mut is_meant = |state: State| match how {
        How::ForWrite { max_shared } => {
            nr_shared += state.is_shared() as usize;
            state.is_protected() && nr_shared <= max_shared
        }
        How::ForSlots { .. } => state.is_clean(),
    };
    if !is_meant(state) {
        return Opened::default();
    }
    if state.is_clean() && space.table.unit(addr).is_some_and(clean_folio::is_clean) {
        // It opens as a whole, and may have to wait for one of its slots.
        if matches!(how, How::ForSlots { waits: false }) {
            return Opened::default();
        }
        let unit = space.table.unit_start(addr);
        if clean_folio::open(space, held, unit) {
            let end = end.min(unit + UNIT_PAGES * PAGE);
            return Opened { pages: (end - addr) / PAGE, broken: 0 };
        }
    }
    let mut states = [state; OPEN_MAX];
    let limit = end.min(space.table.unit_start(addr) + UNIT_PAGES * PAGE).min(addr + OPEN_MAX * PAGE);
    let n = claims::claim_run(space, addr, word, state, limit, |i, seen| {
        states[i] = seen;
        is_meant(seen)
    });
    if n == 0 {
        return Opened::default();
    }
    // The slots go first: once the pages can be written, nothing may rely on the content of the slots.
    let mut done = 0;
    let mut tally = Tally::new(space, held);
    let mut frees = space.swap.frees(held, &space.budget, space.stats);
    for (i, state) in states[..n].iter().enumerate() {
        if state.is_clean() {
            let (slot, folio) = (slot_of(*state), folio_at(addr + i * PAGE));
            match how {
                How::ForSlots { waits: false } => match space.swap.try_claim(slot, folio) {
                    Some(was) => frees.add(slot, folio, was),
                    None => break,
                },
                _ => _ = frees.claim(slot, folio),
            }
            tally.add(addr + i * PAGE, Cost::SWAP.taken());
        }
        done += 1;
    }
    drop(frees);
    // The other pages stay as they are.
    for (i, state) in states[..n].iter().enumerate().skip(done) {
        if let Some(word) = space.table.word(addr + i * PAGE) {
            word.finish(*state);
        }
    }
    let states = &states[..done];
    account::uncount_clean(space, addr, states.iter().filter(|state| state.is_clean()).count());
    // Shared pages stay protected, unless they are to be written.
    let stays = |state: &State| state.is_shared() && matches!(how, How::ForSlots { .. });
    let (mut first, mut broken) = (0, 0);
    for (i, state) in states.iter().enumerate().filter(|(_, state)| !stays(state)) {
        broken += sharing::break_if_shared(space, addr + i * PAGE, *state);
    }
    for run in states.chunk_by(|a, b| stays(a) == stays(b)) {
        if !stays(&run[0]) {
            // A failure leaves pages protected whose states say they are open. A write will find that out, see `spurious`.
            let _ = space.uffd().write_protect(addr + first * PAGE, run.len() * PAGE, false);
        }
        first += run.len();
    }
    for (i, state) in states.iter().enumerate() {
        if let Some(word) = space.table.word(addr + i * PAGE) {
            let open = State::PRESENT.pinned_as(*state);
            word.finish(if stays(state) { state.without_slot() } else { open });
        }
    }
    Opened { pages: done, broken }
}

/// Serves the first write to the protected page at `addr`, for which `charged` pages are charged. Returns how many of them it
/// used.
pub(crate) fn open_for_write(
    space: &Space,
    held: &Held,
    addr: usize,
    word: PageWord<'_>,
    state: State,
    end: usize,
    charged: usize,
) -> usize {
    let opened = open_run(space, held, addr, word, state, end, charged);
    if opened.pages > 0 {
        stats::add(&space.stats.faults_protected, 1);
        events::record(Kind::Opened, addr, opened.pages, 0);
        if let (Some(unit), true) = (space.table.unit(addr), state.is_clean()) {
            unit.written.store(WRITTEN_PENALTY, Relaxed);
        }
    }
    sharing::use_charge(space, opened.broken, charged)
}

/// Opens the clean pages of the unit at `unit`, which is to stay in memory. Returns how many. Their slots are of use to other
/// pages.
pub(crate) fn open_unit(space: &Space, held: &Held, unit: usize) -> usize {
    let end = unit + UNIT_PAGES * PAGE;
    let (mut at, mut sum) = (unit, 0);
    while at < end {
        let Some(word) = space.table.word(at) else { break };
        let state = word.load();
        let opened = open(space, held, at, word, state, end, How::ForSlots { waits: true }).pages;
        sum += opened;
        at += opened.max(1) * PAGE;
    }
    sum
}

/// Opens clean pages of some units, because neither pool nor file takes more. False if there are none.
///
/// The slots of clean pages can go, because they hold content that is in memory too.
pub(crate) fn open_some(space: &Space, held: &Held) -> bool {
    let mut opened = 0;
    let mut looks = if space.eviction.nr_clean() > 0 { space.eviction.units.len() } else { 0 };
    while looks > 0 && opened < UNIT_PAGES {
        looks -= 1;
        let Some(addr) = space.eviction.units.pop() else { break };
        if space.table.unit(addr as usize).is_some_and(|unit| unit.clean.load(Relaxed) > 0) {
            opened += open_unit(space, held, addr as usize);
        }
        account::queue_unit(space, addr as usize);
    }
    opened > 0
}

/// Opens every protected page.
pub(crate) fn open_all(space: &Space, exclusive: &Exclusive<'_>) {
    for region in space.regions.all(exclusive) {
        open_range(space, exclusive, region.start, region.end);
    }
}

/// Opens every protected page of a range. The gate is closed, or the range is hidden and nobody can look its pages up.
pub(crate) fn open_range(space: &Space, held: &Held, start: usize, end: usize) {
    let mut tally = Tally::new(space, held);
    let mut runs = Runs::new(|run| {
        let _ = space.uffd().write_protect(run.start, run.len(), false);
    });
    space.table.for_each_protected(start, end, |addr, word| {
        let Some(state) = word.claim_settled_while(State::is_protected) else { return };
        if state.is_clean() {
            forget_clean(space, held, addr, state);
            tally.add(addr, Cost::SWAP.taken());
        }
        sharing::break_if_shared(space, addr, state);
        word.finish(State::PRESENT.pinned_as(state));
        runs.add(addr);
    });
}

/// Frees the slot of the clean page at `addr`, which is no longer clean. The caller has claimed the page or closed the gate, and
/// sets the word.
pub(crate) fn forget_clean(space: &Space, held: &Held, addr: usize, state: State) {
    debug_assert!(state.is_clean());
    free_clean(space, held, addr, state);
    account::uncount_clean(space, addr, 1);
}

/// Ends the residence of the claimed clean page at `addr`, which is unmapped. Returns its new state.
pub(crate) fn evict_clean(space: &Space, held: &Held, addr: usize, state: State, tally: &mut Tally<'_>) -> State {
    events::record(Kind::Out, addr, 1, Out::Clean as u64);
    space.swap.evict(held, slot_of(state), folio_at(addr));
    sharing::break_if_shared(space, addr, state);
    tally.add(addr, Cost::RAM.taken());
    State::swapped(state.payload())
}

/// Unmaps the claimed clean pages of a unit that is being swept. Returns how many.
///
/// `saved` holds the states of claimed pages and gets the new ones. The claims on pages that could not be unmapped end, and
/// these pages stay as they were.
pub(crate) fn drop_clean(
    space: &Space,
    held: &Held,
    unit: usize,
    saved: &mut [u64; UNIT_PAGES],
    not_claimed: u64,
) -> usize {
    let mut dropped = 0;
    let mut tally = Tally::new(space, held);
    let gone = stock::move_to_stock(space, held, unit, |page| {
        let state = State::from_raw(saved[page]);
        saved[page] != not_claimed && state.is_clean() && !state.is_shared()
    });
    for (page, raw) in saved.iter_mut().enumerate() {
        if gone[page / BUNDLE_FRAMES] >> (page % BUNDLE_FRAMES) & 1 != 0 {
            *raw = evict_clean(space, held, unit + page * PAGE, State::from_raw(*raw), &mut tally).to_raw();
            dropped += 1;
        }
    }
    // The pages that moved are no longer charged, or their charge went to the stock with their frames.
    let moved = dropped;
    // The first and end page of each range, and below its address and length.
    let mut ranges = [(0usize, 0usize); UNIT_PAGES / 2];
    let mut nr_ranges = 0;
    let (mut first, mut end, mut at) = (0, 0, 0);
    // Ranges run over claimed pages that are not present, up to a page that must stay.
    while at <= UNIT_PAGES {
        let raw = saved.get(at).copied().unwrap_or(not_claimed);
        let state = State::from_raw(raw);
        let is_clean = raw != not_claimed && state.is_clean();
        let is_absent = raw != not_claimed && state.tag() != Tag::Present;
        if is_clean {
            if end == first {
                first = at;
            }
            end = at + 1;
        } else if !is_absent && end > first {
            ranges[nr_ranges] = (first, end);
            nr_ranges += 1;
            (first, end) = (0, 0);
        }
        at += 1;
    }
    let ranges = &mut ranges[..nr_ranges];
    for (start, len) in ranges.iter_mut() {
        (*start, *len) = (unit + *start * PAGE, (*len - *start) * PAGE);
    }
    stats::add(&space.stats.unmap_calls, !ranges.is_empty() as u64);
    let done = space.kernel.drop_ranges(ranges);
    for (i, &(start, len)) in ranges.iter().enumerate() {
        for addr in (start..start + len).step_by(PAGE) {
            let page = (addr - unit) / PAGE;
            let state = State::from_raw(saved[page]);
            let Some(word) = space.table.word(addr) else { continue };
            if !state.is_clean() {
                continue;
            }
            // After a failure some pages of the range may be gone. Dropping them one by one shows which.
            if i < done || uapi::madvise(addr, PAGE, g::MADV_DONTNEED).is_ok() {
                saved[page] = evict_clean(space, held, addr, state, &mut tally).to_raw();
                dropped += 1;
            } else {
                word.finish(kept::kept(space, addr, state));
                saved[page] = not_claimed;
            }
        }
    }
    account::uncount_clean(space, unit, dropped);
    account::uncount_present(space, unit, dropped);
    space.budget.uncharge(dropped - moved);
    stats::add(&space.stats.dropped_clean_pages, dropped as u64);
    stats::add(&space.stats.unmap_pages, dropped as u64);
    dropped
}
