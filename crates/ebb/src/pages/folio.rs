//! Large folios: a unit of 2 MiB whose memory is one huge page.
//!
//! A program has fewer faults and misses in the TLB with huge pages, and one MOVE takes such a page out, or brings it back, for the
//! price of a single small one. So a unit can come in whole, go to staging whole, and come back from there whole. Its 512 state
//! words stay what they are: whoever maps or unmaps a folio has claimed all of them.
//!
//! The kernel makes no huge page of managed memory by itself, because that is MADV_NOHUGEPAGE. Ebb has it make them elsewhere, and
//! moves them in.
//!
//! What is known of a unit is a hint, because the kernel parts the mapping of a huge page as it likes (mprotect, fork). But a unit
//! that may have a part of a huge page is marked. To drop a part of a huge page gives no memory back before all of it is gone.
//! So a marked unit goes out as a whole, or is *split* first: the kernel turns the huge page into small ones. That takes
//! half a millisecond, so it is for pages that the program itself has parted.
//!
//! The kernel splits a huge page to swap a part of it out, too, and delays that as long as it can (*THP swap: delay splitting*).

use crate::base::uapi::Errno;
use crate::base::{PAGE, uapi};
use crate::counters::stats::{self, Thp};
use crate::groups::table::Index;
use crate::memory::region::{Attr, Region};
use crate::memory::table::{ADDR_END, UNIT_BYTES, UNIT_PAGES, Unit};
use crate::pages::claims::NOT_CLAIMED;
use crate::pages::sharing;
use crate::places::folios::New;
use crate::places::staging::{BUNDLE_FRAMES, Part};
use crate::protocols::gate::Held;
use crate::protocols::page::{PageWord, State};
use crate::space::Space;
use core::sync::atomic::Ordering::Relaxed;
use linux_raw_sys::general as g;

/// In [`Unit::folio`]: what is mapped in the unit may belong to a huge page.
const MAPPED: u32 = 1;
/// A sweep has met a system call that used a page of the folio.
const USED: u32 = 2;
/// The unit got pages by a mapping that moved: all of a huge page, or a part of one, or small pages.
const DOUBTFUL: u32 = 4;
/// Most of the unit's pages were in memory when it last went out, page by page.
const USED_WHOLE: u32 = 8;
/// The unit's pages came in together, so that they are in memory says nothing of their use.
const CAME_WHOLE: u32 = 16;
/// So many are most.
const USED_WHOLE_MIN: u32 = UNIT_PAGES as u32 / 4 * 3;

/// A MOVE of a huge page takes two microseconds, one of as many small pages fifty, and one that has to split a huge page five hundred.
/// A unit that may have moved pages of any kind was one huge page if that took less than this.
const DOUBTFUL_NS: u64 = 20_000;
/// Any other unit was one unless it took longer than this. Then the thread may also have lost its processor: such a huge page gives
/// its memory back a little later than the account says.
const SPLIT_NS: u64 = 300_000;

/// One part in so many of what a process may expect is enough for a folio.
const SHARE: usize = 64;

/// True if what is mapped in the unit may belong to a huge page.
pub(crate) fn is_mapped(unit: &Unit) -> bool {
    unit.folio.load(Relaxed) & MAPPED != 0
}

/// True if the unit may have pages of any kind, from a mapping that moved.
fn is_doubtful(unit: &Unit) -> bool {
    unit.folio.load(Relaxed) & DOUBTFUL != 0
}

/// Whether what was moved out of the unit at `start`, in so much time, was one huge page.
pub(crate) fn was_huge(space: &Space, start: usize, took_ns: u64) -> bool {
    let is_doubtful = space.table.unit(start).is_some_and(is_doubtful);
    took_ns < if is_doubtful { DOUBTFUL_NS } else { SPLIT_NS }
}

/// Marks a unit whose memory is one huge page now, or a unit that got a part of one. Before any claim on its pages ends.
pub(crate) fn mark(space: &Space, unit: &Unit) {
    space.places.folios.note();
    unit.folio.fetch_or(MAPPED | CAME_WHOLE, Relaxed);
}

/// Notes that a sweep is about to take pages of the unit one by one, of which so many are in memory.
pub(crate) fn note_small_out(unit: &Unit, present: u32) {
    if unit.folio.load(Relaxed) & CAME_WHOLE != 0 {
        unit.folio.fetch_and(!CAME_WHOLE, Relaxed);
    } else if present >= USED_WHOLE_MIN {
        unit.folio.fetch_or(USED_WHOLE, Relaxed);
    }
}

/// True if nothing of the unit is in memory, and most of it was used when its pages last came in one by one. True once: how much of a
/// folio is used, nobody knows, so the pages of this unit come in one by one the time after.
pub(crate) fn take_used_whole(unit: &Unit) -> bool {
    unit.folio.load(Relaxed) & USED_WHOLE != 0
        && unit.present.load(Relaxed) == 0
        && unit.folio.fetch_and(!USED_WHOLE, Relaxed) & USED_WHOLE != 0
}

/// Notes that a system call uses a page of the folio. True if it was so before.
pub(crate) fn note_used(unit: &Unit) -> bool {
    unit.folio.fetch_or(USED, Relaxed) & USED != 0
}

/// Notes that the unit has nothing in common with a huge page any more.
pub(crate) fn unmark(unit: &Unit) {
    unit.folio.fetch_and(USED_WHOLE | CAME_WHOLE, Relaxed);
}

/// Notes that the unit went out as one huge page: nobody knows how much of it was used.
pub(crate) fn note_whole_out(unit: &Unit) {
    unit.folio.store(0, Relaxed);
}

/// True if memory with these attributes is to have folios.
pub(crate) fn is_wanted(space: &Space, attr: Attr) -> bool {
    match space.thp() {
        Thp::Never => false,
        Thp::Advise => attr.is_huge_advised(),
        Thp::Always => !attr.is_huge_refused(),
    }
}

/// True if all of the unit at `start` is in the region, and may be one folio that Ebb moves.
pub(crate) fn may_be_whole(space: &Space, region: &Region, start: usize) -> bool {
    region.has(start, start + UNIT_BYTES)
        && region.attr.is_plain()
        && !region.attr.is_kept()
        && !region.attr.is_changing()
        && space.kernel.can_move()
}

/// Claims all pages of the unit at `start`, if each is in a state that it is `meant` to be in. Saves the states. If one is not, or
/// another thread has it, no page is claimed.
pub(crate) fn claim_unit(
    space: &Space,
    start: usize,
    saved: &mut [u64; UNIT_PAGES],
    is_meant: impl Fn(usize, State) -> bool,
) -> bool {
    for i in 0..UNIT_PAGES {
        let claimed = space.table.word(start + i * PAGE).and_then(|word| {
            let state = word.load();
            (is_meant(i, state) && word.try_claim(state)).then_some(state)
        });
        match claimed {
            Some(state) => saved[i] = state.to_raw(),
            None => {
                finish(space, start, i, |page| State::from_raw(saved[page]));
                saved[..i].fill(NOT_CLAIMED);
                return false;
            }
        }
    }
    true
}

/// Ends the claims on the first `n` pages of the unit at `start`.
pub(crate) fn finish(space: &Space, start: usize, n: usize, state: impl Fn(usize) -> State) {
    for i in 0..n {
        if let Some(word) = space.table.word(start + i * PAGE) {
            word.finish(state(i));
        }
    }
}

/// Has the kernel free the page table of an empty unit, which is the caller's: it moves a huge page only to where there is none. To be
/// called right before that, because a thread that faults there makes the kernel add one. False if it refuses.
pub(crate) fn free_table(start: usize) -> bool {
    uapi::madvise(start, UNIT_BYTES, g::MADV_DONTNEED).is_ok()
}

/// The state words of the unit at `start`.
pub(crate) fn words(space: &Space, start: usize) -> impl Iterator<Item = PageWord<'_>> {
    (start..start + UNIT_BYTES).step_by(PAGE).filter_map(|at| space.table.word(at))
}

/// The states of the pages of the unit at `start`.
pub(crate) fn states(space: &Space, start: usize) -> impl Iterator<Item = State> {
    words(space, start).map(|word| word.load())
}

/// The memory of a folio that is about to come in.
pub(crate) enum Memory<'a> {
    /// New, of zeros. It is not charged.
    New(New<'a>),
    /// Kept frames of this block, with any content. They are charged.
    Kept(u32),
}

impl Memory<'_> {
    /// Where the folio is.
    pub(crate) fn addr(&self, space: &Space) -> usize {
        match self {
            Self::New(new) => new.addr(),
            Self::Kept(block) => space.places.staging.addr(space.places.staging.frame(*block, 0)),
        }
    }

    /// Fills it with zeros.
    pub(crate) fn clear(&self, space: &Space) {
        if let Self::Kept(_) = self {
            // SAFETY: the frames belong to this thread, and are mapped for writing.
            unsafe { core::ptr::write_bytes(self.addr(space) as *mut u8, 0, UNIT_BYTES) };
        }
    }

    /// Moves the folio to the unit at `start`, all of whose pages the caller has claimed, and none of which is mapped. Returns how
    /// many pages are mapped: all but for a kernel that is short of memory.
    pub(crate) fn place(self, space: &Space, start: usize) -> usize {
        self.place_or(space, start, |_, _, _| ())
    }

    /// As [`Self::place`]. Calls `left` with what could not be moved, before it is given up: where it is, where it was to go, and
    /// its length.
    pub(crate) fn place_or(self, space: &Space, start: usize, left: impl FnOnce(usize, usize, usize)) -> usize {
        let moved = match space.uffd().move_resident(start, self.addr(space), UNIT_BYTES) {
            Ok(()) => UNIT_PAGES,
            Err((bytes, _)) => {
                stats::add(&space.stats.move_refused, 1);
                left(self.addr(space) + bytes, start + bytes, UNIT_BYTES - bytes);
                bytes / PAGE
            }
        };
        match self {
            Self::New(_) => {}
            Self::Kept(block) => {
                let first = space.places.staging.frame(block, 0);
                space.places.staging.frames_left(first, moved as u32);
                if moved < UNIT_PAGES {
                    space.places.staging.drop_kept(first + moved as u32, (UNIT_PAGES - moved) as u32);
                    space.budget.uncharge(UNIT_PAGES - moved);
                }
            }
        }
        moved
    }

    /// Gives up what is no longer whole.
    pub(crate) fn give_up(self, space: &Space) {
        if let Self::Kept(block) = self {
            let first = space.places.staging.frame(block, 0);
            space.places.staging.drop_kept(first, UNIT_PAGES as u32);
            space.budget.uncharge(UNIT_PAGES);
        }
    }

    /// Gives it back unused.
    pub(crate) fn put_back(self, space: &Space) {
        if let Self::Kept(block) = self {
            space.budget.add_stocked(UNIT_PAGES as i64);
            space.places.folios.keep(block);
        }
    }
}

/// Takes a kept folio. Inside the gate.
pub(crate) fn take_kept(space: &Space) -> Option<Memory<'static>> {
    if space.budget.is_stock_too_large() {
        return None;
    }
    let block = space.places.folios.take_kept()?;
    space.budget.add_stocked(-(UNIT_PAGES as i64));
    Some(Memory::Kept(block))
}

/// Drops a kept folio. Returns how many pages that frees. Inside the gate.
pub(crate) fn drop_kept(space: &Space) -> usize {
    let Some(block) = space.places.folios.take_kept() else { return 0 };
    space.budget.add_stocked(-(UNIT_PAGES as i64));
    Memory::Kept(block).give_up(space);
    UNIT_PAGES
}

/// Releases a drained block that one folio filled. Keeps it if there is a use for it. Returns how many pages that gained. Inside the
/// gate.
pub(crate) fn release(space: &Space, part: Part, room: usize) -> usize {
    let keeps = room >= UNIT_PAGES && space.places.folios.is_wanted();
    let mut kept = 0;
    let freed = space.places.staging.release_whole(
        part,
        |block| {
            // Nobody may look into a frame that the kernel has lost.
            let first = space.places.staging.addr(space.places.staging.frame(block, 0));
            let is_kept = keeps && uapi::are_resident(first, UNIT_PAGES);
            if is_kept {
                kept = UNIT_PAGES;
                space.places.folios.meet_demand();
                space.budget.add_stocked(UNIT_PAGES as i64);
                space.places.folios.keep(block);
            }
            is_kept
        },
        |first, n| {
            // Bundle by bundle: what is broken counts for this process until it is uncharged.
            let frames = first..first + BUNDLE_FRAMES as u32;
            sharing::break_frames(space, first, frames.map(|frame| space.places.staging.addr(frame)));
            space.budget.uncharge(n);
        },
    );
    freed + kept
}

/// Makes small pages of what may be a huge page in the unit at `start`, or a part of one, so that each of them can go alone.
///
/// The kernel splits a huge page if it is told that a part of it is cold (madvise). It says nothing of whether it did; it does not
/// while another process has the page, or for a moment while it moves the page itself. What is left of such a page holds more
/// memory than its pages until they are gone. It does not split what is locked, which stays anyhow.
pub(crate) fn split(space: &Space, held: &Held, start: usize) {
    let Some(unit) = space.table.unit(start).filter(|unit| is_mapped(unit)) else { return };
    unmark(unit);
    let end = start + UNIT_BYTES;
    let mut at = start;
    while let Some(region) = space.regions.first_in(held, at, end) {
        let stop = region.end.min(end);
        at = at.max(region.start);
        while at < stop {
            // Never all of a huge page: that would not be split.
            let part = (stop - at).min(UNIT_BYTES / 2);
            if uapi::madvise(at, part, g::MADV_COLD) == Err(Errno::INVAL) {
                mark(space, unit);
            }
            at += part;
        }
    }
    stats::add(&space.stats.thp_split_page, 1);
}

/// Calls `f` with the start of each unit of the range whose memory may be a huge page, or have a part of one.
fn for_each_mapped(space: &Space, start: usize, end: usize, mut f: impl FnMut(usize, &Unit)) {
    if !space.places.folios.have_been() {
        return;
    }
    let mut at = start;
    while at < end {
        let (unit, next) = space.table.used_unit(at);
        if let Some(unit) = unit.filter(|unit| is_mapped(unit)) {
            f(space.table.unit_start(at), unit);
        }
        at = next;
    }
}

/// Notes that the memory of the range is gone. Splits the huge pages of which it had a part only.
pub(crate) fn forget(space: &Space, held: &Held, start: usize, end: usize) {
    for_each_mapped(space, start, end, |at, unit| {
        if start <= at && at + UNIT_BYTES <= end {
            unmark(unit);
        } else {
            split(space, held, at);
        }
    });
}

/// Splits the first huge page from `at` on. Returns where to go on, or none if there is no more.
pub(crate) fn split_next(space: &Space, held: &Held, at: usize) -> Option<usize> {
    let mut at = at;
    while let Some(region) = space.regions.first_in(held, at, ADDR_END) {
        at = at.max(region.start);
        while at < region.end {
            let (unit, next) = space.table.used_unit(at);
            if unit.is_some_and(is_mapped) {
                split(space, held, space.table.unit_start(at));
                return Some(next);
            }
            at = next;
        }
    }
    None
}

/// Notes that the memory of the `len` bytes at `old` is at `new` now. Before anything is known of it there.
pub(crate) fn follow(space: &Space, old: usize, new: usize, len: usize) {
    for_each_mapped(space, old, old + len, |at, _| {
        let (first, end) = (at.max(old), (at + UNIT_BYTES).min(old + len));
        for page in [first, end - PAGE] {
            if let Some(unit) = space.table.unit(new + (page - old)) {
                mark(space, unit);
                unit.folio.fetch_or(DOUBTFUL, Relaxed);
            }
        }
    });
}

/// True if there is enough in the budget for folios, and in this group.
pub(crate) fn fit(space: &Space, group: Index) -> bool {
    let share = if space.kernel.force().always_huge { 8 } else { SHARE };
    space.budget.expected().min(space.groups.ram_max(group)) >= share * UNIT_PAGES
}
