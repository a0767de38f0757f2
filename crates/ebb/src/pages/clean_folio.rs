//! Clean folios: units of 2 MiB that came in whole for a walk that reads. All of their pages are clean (see `pages::clean`), and they
//! are write-protected as one.
//!
//! To protect or open a part of a huge page parts its mapping, and the kernel moves what is parted page by page. So the first write
//! opens all of a clean folio, and it is dropped as a whole.
//!
//! MOVE cannot protect what it maps. A folio is protected right afterwards, and then compared with what was put there, by a
//! hash of 128 bits. If a thread wrote to it in between, it is an ordinary folio.

use crate::base::{PAGE, uapi};
use crate::counters::stats;
use crate::groups::cost::Cost;
use crate::memory::table::{UNIT_BYTES, UNIT_PAGES, Unit};
use crate::pages::claims::NOT_CLAIMED;
use crate::pages::tally::Tally;
use crate::pages::{account, clean, folio, stock};
use crate::places::staging::BUNDLES;
use crate::places::swapspace::{folio_at, slot_of};
use crate::protocols::gate::Held;
use crate::protocols::page::{State, Tag};
use crate::space::Space;
use crate::threads::ctx::ThreadCtx;
use core::sync::atomic::Ordering::Relaxed;
use ebb_slots::{Entry, Slot};
use linux_raw_sys::general as g;
use xxhash_rust::xxh3::xxh3_128;

/// Slots that are allocated at a time.
const SLOTS: usize = 32;

/// The hash of what a folio holds.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Fingerprint(u128);

impl Fingerprint {
    pub(crate) fn of(pages: &[u8]) -> Self {
        Self(xxh3_128(pages))
    }
}

/// True if the unit may be a clean folio.
pub(crate) fn is_clean(unit: &Unit) -> bool {
    folio::is_mapped(unit) && unit.clean.load(Relaxed) > 0
}

/// Gives those pages of the claimed unit at `start` slots that have no content, as if pages of zeros had been swapped out. Nobody is
/// charged, so the unit must be the root group's. Returns false if there are not enough slots.
pub(crate) fn store_zeros(space: &Space, ctx: &ThreadCtx, start: usize, entries: &mut [State; UNIT_PAGES]) -> bool {
    let mut at = 0;
    while let Some(first) = (at..UNIT_PAGES).find(|i| entries[*i] == State::NONE) {
        let wanted = (first..UNIT_PAGES).filter(|i| entries[*i] == State::NONE).take(SLOTS).count();
        let mut slots = [Slot(0); SLOTS];
        let n = space.swap.alloc(ctx.shard(), &space.budget, space.stats, &mut slots[..wanted]);
        at = first;
        for slot in &slots[..n] {
            space.swap.store_zeros(*slot);
            space.swap.commit(*slot);
            entries[at] = State::swapped(Entry { device: 0, slot: *slot }.to_bits());
            account::count_content(space, start + at * PAGE, 1);
            at = (at..UNIT_PAGES).find(|i| entries[*i] == State::NONE).unwrap_or(UNIT_PAGES);
        }
        if n < wanted {
            return false;
        }
    }
    true
}

/// Protects the folio that was just mapped at `start`, whose pages the caller has claimed. False if that failed, or if it no longer
/// holds what has this fingerprint. It is open then.
pub(crate) fn protect(space: &Space, start: usize, fingerprint: Fingerprint) -> bool {
    let is_protected = stock::protect(space, start, UNIT_BYTES);
    // SAFETY: the folio is mapped and readable, and as long as its pages are claimed nobody unmaps it. If the protection failed, what
    // is found is of no account.
    let found = unsafe { core::slice::from_raw_parts(start as *const u8, UNIT_BYTES) };
    let is_clean = is_protected && Fingerprint::of(found) == fingerprint;
    if !is_clean {
        // A failure leaves pages protected whose states say they are open. A write will find that out, see `spurious`.
        let _ = space.uffd().write_protect(start, UNIT_BYTES, false);
    }
    is_clean
}

/// Opens all of the clean folio at `start`: frees the slots of its pages, and lifts the protection. False if some of the unit is not
/// present, or is shared, or another thread has claimed it; and if a call is about to change a part of its range: who finds the range
/// before the call begins is waited for.
pub(crate) fn open(space: &Space, held: &Held, start: usize) -> bool {
    let region = space.regions.find(held, start);
    let is_one = region.is_some_and(|region| region.has(start, start + UNIT_BYTES) && !region.attr.is_changing());
    if !is_one || !space.table.unit(start).is_some_and(is_clean) {
        return false;
    }
    let mut saved = [0; UNIT_PAGES];
    let is_meant = |state: State| state.tag() == Tag::Present && !state.is_shared();
    if !folio::claim_unit(space, start, &mut saved, |_, state| is_meant(state)) {
        return false;
    }
    // The slots go first: once the pages can be written, nothing may rely on the content of the slots.
    let states = saved.map(State::from_raw);
    let mut tally = Tally::new(space, held);
    let mut frees = space.swap.frees(held, &space.budget, space.stats);
    for (i, state) in states.iter().enumerate().filter(|(_, state)| state.is_clean()) {
        let addr = start + i * PAGE;
        frees.claim(slot_of(*state), folio_at(addr));
        tally.add(addr, Cost::SWAP.taken());
    }
    drop(frees);
    account::uncount_clean(space, start, states.iter().filter(|state| state.is_clean()).count());
    // A failure leaves pages protected whose states say they are open. A write will find that out, see `spurious`.
    let _ = space.uffd().write_protect(start, UNIT_BYTES, false);
    folio::finish(space, start, UNIT_PAGES, |i| match states[i] {
        state if state.is_clean() => State::PRESENT.pinned_as(state),
        state => state,
    });
    true
}

/// Unmaps the unit at `start`, if all of it is claimed and clean. Returns how many pages went: all or none. `saved` holds the states of
/// the pages and gets the new ones.
pub(crate) fn drop_whole(space: &Space, held: &Held, start: usize, saved: &mut [u64; UNIT_PAGES]) -> usize {
    let is_clean =
        |raw: u64| raw != NOT_CLAIMED && State::from_raw(raw).is_clean() && !State::from_raw(raw).is_shared();
    if !saved.iter().all(|raw| is_clean(*raw)) {
        return 0;
    }
    stats::add(&space.stats.unmap_calls, 1);
    let is_kept = keep(space, start);
    if !is_kept && uapi::madvise(start, UNIT_BYTES, g::MADV_DONTNEED).is_err() {
        return 0;
    }
    let mut tally = Tally::new(space, held);
    for (i, raw) in saved.iter_mut().enumerate() {
        *raw = clean::evict_clean(space, held, start + i * PAGE, State::from_raw(*raw), &mut tally).to_raw();
    }
    space.table.unit(start).iter().for_each(|unit| folio::note_whole_out(unit));
    account::uncount_clean(space, start, UNIT_PAGES);
    account::uncount_present(space, start, UNIT_PAGES);
    if !is_kept {
        space.budget.uncharge(UNIT_PAGES);
    }
    for (count, n) in [
        (&space.stats.dropped_clean_pages, UNIT_PAGES as u64),
        (&space.stats.unmap_pages, UNIT_PAGES as u64),
        (&space.stats.thp_unmapped, 1),
    ] {
        stats::add(count, n);
    }
    UNIT_PAGES
}

/// Moves the folio at `start` into the stock, if there is a use for it. Where that fails some of it may be gone, as if it had been dropped.
fn keep(space: &Space, start: usize) -> bool {
    let is_wanted = stock::folio_room(space) >= UNIT_PAGES && space.places.folios.is_wanted();
    if !is_wanted || stock::may_be_lent(space, start) {
        return false;
    }
    let Some(block) = space.places.staging.take() else { return false };
    let first = space.places.staging.frame(block, 0);
    let to = space.places.staging.addr(first);
    // The kernel moves a huge page only to where it has no page table. It frees that of a range that is dropped as a whole.
    space.places.staging.drop_frames(first, UNIT_PAGES);
    stats::add(&space.stats.unmap_move_calls, 1);
    let began_ns = uapi::now_ns();
    let is_moved = space.uffd().move_pages(to, start, UNIT_BYTES).is_ok();
    let was_huge = folio::was_huge(space, start, uapi::now_ns() - began_ns);
    // A page that the kernel itself had swapped out keeps its protection. And nobody may look into a frame that the kernel has lost.
    let is_fit = is_moved
        && was_huge
        && space.uffd().write_protect(to, UNIT_BYTES, false).is_ok()
        && uapi::are_resident(to, UNIT_PAGES);
    if !is_fit {
        space.places.staging.give_back_unused(block);
        return false;
    }
    space.places.staging.hold_bundles(block, (1 << BUNDLES) - 1, |_| ());
    space.places.folios.meet_demand();
    space.budget.add_stocked(UNIT_PAGES as i64);
    space.places.folios.keep(block);
    true
}
