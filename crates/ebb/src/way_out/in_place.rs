//! Eviction in place: scattered pages of a unit that proved cold are stored where they are and dropped, without staging.
//!
//! Staging distinguishes pages in use from others. Runs go to staging by MOVE, which costs next to nothing a page. Scattered
//! pages have to be copied, which costs a third of what it takes to compress them, and is wasted if none of them comes back.
//! So a unit evicts such pages directly if few pages came back after its last sweep. Ebb knows what comes back either way: a
//! page's shadow says whether staging would still have the page.
//!
//! A page is claimed and write-protected from before it is compressed until it is dropped. Who writes to it meanwhile takes it
//! back, see `give_back`. So the stored content of a page that is dropped is its last content. Readers still find the page.

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
use crate::way_out::give_back::{Loose, next_run};
use crate::way_out::store::{self, Taken};
use crate::way_out::unmap::{self, Segment, Way};
use core::sync::atomic::Ordering::Relaxed;
use ebb_slots::{Entry, Slot};
use linux_raw_sys::general::MADV_DONTNEED;

/// Most pages that a sweep evicts in place. They share two TLB flushes.
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
/// The claims on them end. Pages that were taken back stay. If there are [`IN_PLACE_PAGES`] scattered pages, the claims on all
/// pages after them end, too, for the next sweep. Other claimed pages, and pages that no device takes, stay as they were.
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

/// The pages of a segment that are stored and not dropped yet.
struct Batch {
    all: [Stored; IN_PLACE_PAGES],
    len: usize,
}

impl Batch {
    fn stored(&self) -> &[Stored] {
        &self.all[..self.len]
    }

    /// The stored pages in the order of their addresses. What goes to a file is stored after the rest.
    fn in_order(&mut self) -> &[Stored] {
        self.all[..self.len].sort_unstable_by_key(|stored| stored.page);
        self.stored()
    }

    fn add(&mut self, page: usize, slot: Slot) {
        self.all[self.len] = Stored { page, slot };
        self.len += 1;
    }

    /// Takes a page out again. Returns its slot, if the page is stored.
    fn remove(&mut self, page: usize) -> Option<Slot> {
        let at = self.stored().iter().position(|stored| stored.page == page)?;
        let slot = self.all[at].slot;
        self.all.copy_within(at + 1..self.len, at);
        self.len -= 1;
        Some(slot)
    }
}

/// Stores and drops the pages of a segment. The claims on it end, unless some of its pages could not go. Returns how many went.
fn evict_segment(
    space: &Space,
    held: &Held,
    ctx: &ThreadCtx,
    unit: usize,
    segment: &Segment,
    work: &mut Work,
) -> usize {
    let (start, len) = (unit + segment.first * PAGE, (segment.end - segment.first) * PAGE);
    // From here on a thread that writes faults, finds the page busy and waits, or takes it back once the claim is loose.
    if space.uffd().write_protect(start, len, true).is_err() {
        return 0;
    }
    let pages_of = || segment.first..segment.end;
    let loose = Loose::new(space, unit, pages_of(), &mut work.saved);
    let mut batch = Batch { all: [Stored { page: 0, slot: Slot(0) }; IN_PLACE_PAGES], len: 0 };
    let mut at = segment.first;
    let mut takes_more = true;
    while takes_more {
        let room = work.batch().min(IN_PLACE_PAGES - batch.len);
        let mut pages = [0; BATCH];
        let mut n = 0;
        while at < segment.end && n < room {
            if is_present(work.saved[at]) {
                pages[n] = at;
                n += 1;
            }
            at += 1;
        }
        takes_more = store_in_place(space, held, ctx, (unit, &pages[..n]), &loose, work, &mut batch) && n > 0;
    }
    loose.firm_up(space, unit, pages_of(), &mut work.saved, |page| {
        if let Some(slot) = batch.remove(page) {
            space.swap.discard(held, &space.budget, space.stats, slot);
            tally::uncharge_swap_at(space, held, unit + page * PAGE);
        }
    });
    let evicted = drop_stored(space, held, unit, segment, &mut work.saved, &mut batch);
    account::uncount_present(space, unit, evicted);
    space.budget.uncharge(evicted);
    if !work.saved[segment.first..segment.end].iter().any(|raw| is_present(*raw)) {
        unmap::unclaim(space, unit, segment.first, segment.end, &mut work.saved);
    }
    evicted
}

/// Drops the stored pages of a segment, and lifts the protection of those that stay. `saved` gets their new states. Returns how
/// many went.
fn drop_stored(
    space: &Space,
    held: &Held,
    unit: usize,
    segment: &Segment,
    saved: &mut [u64; UNIT_PAGES],
    batch: &mut Batch,
) -> usize {
    let drop = |start: usize, len: usize| uapi::madvise(start, len, MADV_DONTNEED).is_ok();
    let mut tally = Tally::new(space, held);
    let (mut evicted, mut left) = (0, batch.in_order());
    let mut at = segment.first;
    // One call drops what lies between two pages that are no longer claimed.
    while let Some(run) = next_run(at..segment.end, saved) {
        at = run.end;
        let (here, rest) = left.split_at(left.iter().take_while(|stored| stored.page < run.end).count());
        left = rest;
        let nr_present = saved[run.clone()].iter().filter(|raw| is_present(**raw)).count();
        stats::add(&space.stats.unmap_calls, 1);
        let are_gone = here.len() == nr_present && drop(unit + run.start * PAGE, run.len() * PAGE);
        let mut gone = 0;
        for Stored { page, slot } in here {
            let addr = unit + page * PAGE;
            // After a failure some pages may be gone. Dropping them one by one shows which.
            if are_gone || drop(addr, PAGE) {
                space.swap.commit(*slot);
                tally.add(addr, Cost::RAM.taken());
                saved[*page] = State::swapped(Entry { device: 0, slot: *slot }.to_bits()).to_raw();
                events::record(Kind::Out, addr, 1, Out::InPlace as u64);
                gone += 1;
            } else {
                space.swap.discard(held, &space.budget, space.stats, *slot);
                tally.add(addr, Cost::SWAP.taken());
                saved[*page] = kept::kept(space, addr, State::from_raw(saved[*page])).to_raw();
            }
        }
        if gone < nr_present {
            for page in run.filter(|page| is_present(saved[*page])) {
                // A failure leaves a page protected whose state says it is open. A write will find that out, see `spurious`.
                let _ = space.uffd().write_protect(unit + page * PAGE, PAGE, false);
            }
        }
        evicted += gone;
    }
    evicted
}

/// Stores claimed and protected pages of a unit, charges their groups, and adds them to the batch. False if one could not be
/// stored for another reason than that it was taken back.
fn store_in_place(
    space: &Space,
    held: &Held,
    ctx: &ThreadCtx,
    (unit, pages): (usize, &[usize]),
    loose: &Loose,
    work: &mut Work,
    batch: &mut Batch,
) -> bool {
    let mut slots = [Slot(0); BATCH];
    let nr_slots = space.swap.alloc(ctx.shard(), &space.budget, space.stats, &mut slots[..pages.len()]);
    let (mut contents, mut nr_paid) = ([0usize; BATCH], 0);
    while nr_paid < nr_slots && tally::charge_swap_at(space, held, unit + pages[nr_paid] * PAGE) {
        contents[nr_paid] = unit + pages[nr_paid] * PAGE;
        nr_paid += 1;
    }
    slots[nr_paid..nr_slots].iter().for_each(|slot| space.swap.unalloc(*slot));
    let reclaim = |slot, at| clean::reclaim_cache_only(space, held, slot, at);
    let writer = Writer { held, shard: ctx.shard(), reclaim: &reclaim, stats: space.stats };
    let (mut n, lost_before) = (0, loose.nr_lost());
    let copy = |i: usize, to: &mut _| if loose.copy(space, contents[i], to) { Taken::Copied } else { Taken::Gone };
    let _ = store::store_pages(space, writer, &slots[..nr_paid], copy, work, |i, is_stored| {
        if is_stored {
            batch.add(pages[i], slots[i]);
            n += 1;
        } else {
            space.swap.unalloc(slots[i]);
            tally::uncharge_swap_at(space, held, contents[i]);
        }
    });
    n + loose.nr_lost() - lost_before == pages.len()
}
