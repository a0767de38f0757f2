//! Eviction in place: scattered pages of a unit that proved cold are stored where they are and dropped, without staging.
//!
//! Staging tells pages in use from others. Runs go there by MOVE, next to nothing a page; scattered pages have to be copied,
//! which costs a third of what it takes to compress them, and is for nothing where none of them comes back. So a unit to which
//! few pages came back after its last sweep gives up such pages directly. What came back is known either way: the shadow of
//! a page tells whether it would be staged still.
//!
//! A page is claimed and write-protected from before it is compressed until it is dropped. So what is stored is what was
//! there last: nobody writes to it, and who reads it finds it.

use crate::base::{PAGE, uapi};
use crate::counters::stats;
use crate::device::file::BATCH;
use crate::device::list::Writer;
use crate::groups::cost::Cost;
use crate::memory::table::UNIT_PAGES;
use crate::pages::account;
use crate::pages::claims::is_present;
use crate::pages::tally::{self, Tally};
use crate::pages::{clean, kept};
use crate::places::work::Work;
use crate::protocols::gate::Held;
use crate::protocols::page::State;
use crate::space::Space;
use crate::threads::ctx::ThreadCtx;
use crate::way_out::swapout;
use crate::way_out::unmap::{self, Segment, Way};
use core::sync::atomic::Ordering::Relaxed;
use ebb_slots::{Entry, Slot};
use linux_raw_sys::general::MADV_DONTNEED;

/// Pages that a sweep evicts in place: a writer of the first waits until the last is compressed, a quarter of a
/// millisecond; and two flushes of the TLB are shared by so many.
pub(crate) const IN_PLACE_PAGES: usize = 64;
/// Pages that runs have on average for MOVE to be cheaper all the same: it flushes the TLB once a run.
const RUN_MAX: usize = 32;
/// The part of the pages of a sweep that comes back where copying pays. A copy and its drop take some 1.3 us; without it, what
/// comes back takes 5.5 us more: to be compressed for nothing, and to be decompressed.
const COLD_PART: u32 = 5;

/// A page that is stored, and not yet dropped.
#[derive(Clone, Copy)]
struct Stored {
    page: usize,
    slot: Slot,
}

/// Whether so few of the pages that a sweep took came back soon that the next one does without staging.
pub(crate) fn is_cold(swept: u32, returned: u32) -> bool {
    returned * COLD_PART < swept
}

/// Whether sweeps of the unit at `unit` evict scattered pages in place.
pub(crate) fn evicts_in_place(space: &Space, unit: usize) -> bool {
    space.table.unit(unit).is_some_and(|unit| unit.in_place.load(Relaxed) > 0)
}

/// Stores the scattered pages of those that a sweep of the unit has claimed, and drops them, the first few; how many.
/// `work.saved` gets their new states. What is claimed behind them is let go, for the next sweep; others, and what no
/// device takes, is left as it was.
pub(crate) fn evict_in_place(space: &Space, held: &Held, ctx: &ThreadCtx, unit: usize, work: &mut Work) -> usize {
    if let Some(end) = end_of_first_scattered(space, held, unit, &work.saved) {
        unmap::unclaim(space, unit, end, UNIT_PAGES, &mut work.saved);
        if let Some(unit) = space.table.unit(unit) {
            unit.cursor.store((end % UNIT_PAGES) as u32, Relaxed);
        }
    }
    let (mut at, mut evicted) = (0, 0);
    while let Some(segment) = unmap::next_segment(space, held, unit, at, UNIT_PAGES, &work.saved) {
        at = segment.end;
        if unmap::way_of(space, &segment, &work.saved, RUN_MAX) == Way::Copy {
            evicted += evict_segment(space, held, ctx, unit, &segment, work);
        }
    }
    account::uncount_present(space, unit, evicted);
    space.budget.uncharge(evicted);
    stats::add(&space.stats.unmap_pages, evicted as u64);
    stats::add(&space.stats.in_place_pages, evicted as u64);
    evicted
}

/// The page behind the scattered ones that one sweep evicts in place, if there are so many.
fn end_of_first_scattered(space: &Space, held: &Held, unit: usize, saved: &[u64; UNIT_PAGES]) -> Option<usize> {
    let (mut at, mut left) = (0, IN_PLACE_PAGES);
    while let Some(segment) = unmap::next_segment(space, held, unit, at, UNIT_PAGES, saved) {
        at = segment.end;
        if unmap::way_of(space, &segment, saved, RUN_MAX) != Way::Copy {
            continue;
        }
        for page in (segment.first..segment.end).filter(|page| is_present(saved[*page])) {
            left -= 1;
            if left == 0 {
                return Some(page + 1);
            }
        }
    }
    None
}

fn evict_segment(
    space: &Space,
    held: &Held,
    ctx: &ThreadCtx,
    unit: usize,
    segment: &Segment,
    work: &mut Work,
) -> usize {
    let (start, len) = (unit + segment.first * PAGE, (segment.end - segment.first) * PAGE);
    // From here on a writer faults, finds the page busy and waits.
    if space.uffd().write_protect(start, len, true).is_err() {
        return 0;
    }
    let mut all = [Stored { page: 0, slot: Slot(0) }; IN_PLACE_PAGES];
    let mut nr_stored = 0;
    let mut at = segment.first;
    let mut takes_more = true;
    while takes_more {
        let room = BATCH.min(IN_PLACE_PAGES - nr_stored);
        let mut pages = [0; BATCH];
        let mut n = 0;
        while at < segment.end && n < room {
            if is_present(work.saved[at]) {
                pages[n] = at;
                n += 1;
            }
            at += 1;
        }
        let stored = store_in_place(space, held, ctx, unit, &pages[..n], work, &mut all[nr_stored..]);
        nr_stored += stored;
        takes_more = stored == n && n > 0;
    }
    let stored = &all[..nr_stored];
    stats::add(&space.stats.unmap_calls, 1);
    // Between them is nothing but claimed pages that are not there, if none stays.
    let nr_present = work.saved[segment.first..segment.end].iter().filter(|raw| is_present(**raw)).count();
    let drop = |start: usize, len: usize| uapi::madvise(start, len, MADV_DONTNEED).is_ok();
    let are_gone = nr_stored == nr_present && drop(start, len);
    let mut evicted = 0;
    let mut tally = Tally::new(space, held);
    for Stored { page, slot } in stored {
        let addr = unit + page * PAGE;
        // After a failure some may be gone: only one by one is it sure which.
        if are_gone || drop(addr, PAGE) {
            space.swap.commit(*slot);
            tally.add(addr, Cost::RAM.taken());
            work.saved[*page] = State::swapped(Entry { device: 0, slot: *slot }.to_bits()).to_raw();
            evicted += 1;
        } else {
            space.swap.discard(held, &space.budget, space.stats, *slot);
            tally.add(addr, Cost::SWAP.taken());
            work.saved[*page] = kept::kept(space, addr, State::from_raw(work.saved[*page])).to_raw();
        }
    }
    if evicted < nr_present {
        for page in (segment.first..segment.end).filter(|page| is_present(work.saved[*page])) {
            // A failure leaves it protected and open in the books: a write finds that out, see `spurious`.
            let _ = space.uffd().write_protect(unit + page * PAGE, PAGE, false);
        }
    }
    evicted
}

/// Stores claimed and protected pages of a unit, at most a batch; how many, which `stored` tells of. Their group is charged.
fn store_in_place(
    space: &Space,
    held: &Held,
    ctx: &ThreadCtx,
    unit: usize,
    pages: &[usize],
    work: &mut Work,
    stored: &mut [Stored],
) -> usize {
    let mut slots = [Slot(0); BATCH];
    let nr_slots = space.swap.alloc(ctx.shard(), &space.budget, space.stats, &mut slots[..pages.len()]);
    let (mut contents, mut nr_paid) = ([0usize; BATCH], 0);
    while nr_paid < nr_slots && tally::charge_swap_at(space, held, unit + pages[nr_paid] * PAGE) {
        contents[nr_paid] = unit + pages[nr_paid] * PAGE;
        nr_paid += 1;
    }
    slots[nr_paid..nr_slots].iter().for_each(|slot| space.swap.unalloc(*slot));
    let reclaim = |slot, at| clean::reclaim_cache_only(space, held, slot, at);
    let writer = Writer { held, shard: ctx.shard(), reclaim: &reclaim };
    let mut n = 0;
    swapout::store_pages(space, writer, &contents[..nr_paid], &slots[..nr_paid], work, |i, is_stored| {
        if is_stored {
            stored[n] = Stored { page: pages[i], slot: slots[i] };
            n += 1;
        } else {
            space.swap.unalloc(slots[i]);
            tally::uncharge_swap_at(space, held, contents[i]);
        }
    });
    n
}
