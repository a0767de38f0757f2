//! Eviction in place: scattered pages of a unit that proved cold are stored where they are and dropped, without staging.
//!
//! Staging distinguishes pages in use from others. Runs go to staging by MOVE, which costs next to nothing a page. Scattered
//! pages have to be copied, which costs a third of what it takes to compress them, and is wasted if none of them comes back.
//! So a unit evicts such pages directly if few pages came back after its last sweep. Ebb knows what comes back either way: a
//! page's shadow says whether staging would still have the page.
//!
//! A page is claimed and write-protected from before it is compressed until it is dropped. Nobody writes to it meanwhile, so
//! the stored content is its last content. Readers still find the page.

use crate::base::events::{self, Kind, Out};
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

/// Most pages that a sweep evicts in place. A thread that writes to the first page waits until the last is compressed, a
/// quarter of a millisecond. The pages share two TLB flushes.
pub(crate) const IN_PLACE_PAGES: usize = 64;
/// From this average run length on MOVE is cheaper than eviction in place. MOVE flushes the TLB once a run.
const RUN_MAX: usize = 32;
/// A copy to staging pays if at least a fifth of a sweep's pages come back. The copy and its drop take some 1.3 us a page.
/// Without the copy, a page that comes back takes 5.5 us more: it is compressed for nothing, and decompressed.
const COLD_PART: u32 = 5;

/// A page that is stored and not dropped yet.
#[derive(Clone, Copy)]
struct Stored {
    page: usize,
    slot: Slot,
}

/// Whether so few of a sweep's pages came back soon that the next sweep of the unit can do without staging.
pub(crate) fn is_cold(swept: u32, returned: u32) -> bool {
    returned * COLD_PART < swept
}

/// Whether sweeps of the unit at `unit` evict scattered pages in place.
pub(crate) fn evicts_in_place(space: &Space, unit: usize) -> bool {
    space.table.unit(unit).is_some_and(|unit| unit.in_place.load(Relaxed) > 0)
}

/// Stores and drops the first scattered pages that a sweep of the unit has claimed. Returns how many.
///
/// `work.saved` gets their new states. If there are [`IN_PLACE_PAGES`] of them, the claims on all pages after them end, for the
/// next sweep. Other claimed pages, and pages that no device takes, stay as they were.
pub(crate) fn evict_in_place(space: &Space, held: &Held, ctx: &ThreadCtx, unit: usize, work: &mut Work) -> usize {
    if let Some(end) = end_of_first_scattered(space, held, unit, &work.saved) {
        unmap::unclaim(space, unit, end, UNIT_PAGES, &mut work.saved);
        if let Some(unit) = space.table.unit(unit) {
            unit.cursor.store((end % UNIT_PAGES) as u32, Relaxed);
        }
    }
    let (mut at, mut evicted) = (0, 0);
    while let Some(segment) = unmap::next_segment(space, held, unit, at, &work.saved) {
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

/// The page after the last scattered one that this sweep evicts in place, if there are [`IN_PLACE_PAGES`] of them.
fn end_of_first_scattered(space: &Space, held: &Held, unit: usize, saved: &[u64; UNIT_PAGES]) -> Option<usize> {
    let (mut at, mut left) = (0, IN_PLACE_PAGES);
    while let Some(segment) = unmap::next_segment(space, held, unit, at, saved) {
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
    // From here on a thread that writes faults, finds the page busy and waits.
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
    // If all present pages are stored, one call can drop the segment: the rest of it is claimed pages that are not mapped.
    let nr_present = work.saved[segment.first..segment.end].iter().filter(|raw| is_present(**raw)).count();
    let drop = |start: usize, len: usize| uapi::madvise(start, len, MADV_DONTNEED).is_ok();
    let are_gone = nr_stored == nr_present && drop(start, len);
    let mut evicted = 0;
    let mut tally = Tally::new(space, held);
    for Stored { page, slot } in stored {
        let addr = unit + page * PAGE;
        // After a failure some pages may be gone. Dropping them one by one shows which.
        if are_gone || drop(addr, PAGE) {
            space.swap.commit(*slot);
            tally.add(addr, Cost::RAM.taken());
            work.saved[*page] = State::swapped(Entry { device: 0, slot: *slot }.to_bits()).to_raw();
            events::record(Kind::Out, addr, 1, Out::InPlace as u64);
            evicted += 1;
        } else {
            space.swap.discard(held, &space.budget, space.stats, *slot);
            tally.add(addr, Cost::SWAP.taken());
            work.saved[*page] = kept::kept(space, addr, State::from_raw(work.saved[*page])).to_raw();
        }
    }
    if evicted < nr_present {
        for page in (segment.first..segment.end).filter(|page| is_present(work.saved[*page])) {
            // A failure leaves a page protected whose state says it is open. A write will find that out, see `spurious`.
            let _ = space.uffd().write_protect(unit + page * PAGE, PAGE, false);
        }
    }
    evicted
}

/// Stores claimed and protected pages of a unit, at most a batch, and charges their groups. Returns how many, and lists them in
/// `stored`.
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
