//! State words and unit descriptors of the whole address space, in leaves that exist where something is managed.
//!
//! Owns the top table (one entry per GiB of address space), the leaves, and the marks that say which units were ever
//! managed. Address space for a leaf is taken when the first region in its GiB is added, under the exclusive gate, and
//! is never given back. A leaf is inaccessible until the first page in it is looked up, and a search for content passes
//! over such a leaf. So a GiB that the program reserves and never touches costs eight bytes. Looking up a page is two
//! loads, takes no lock and never fails half-way.

use crate::base::PAGE;
use crate::base::uapi::{self, Errno};
use crate::protocols::gate::{Exclusive, Held};
use crate::protocols::page::PageWord;
use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// First address that user space cannot have.
pub const ADDR_END: usize = 1 << 47;
/// Pages of a unit: 2 MiB, so that even a unit with few present pages unmaps a batch.
pub const UNIT_PAGES: usize = 512;
/// Bytes of a unit.
pub const UNIT_BYTES: usize = UNIT_PAGES * PAGE;

const LEAF_SHIFT: u32 = 30;
const LEAF_PAGES: usize = 1 << (LEAF_SHIFT - 12);
const LEAF_UNITS: usize = LEAF_PAGES / UNIT_PAGES;
const LEAF_BYTES: usize = size_of::<Leaf>().next_multiple_of(PAGE);
const NR_LEAVES: usize = ADDR_END >> LEAF_SHIFT;
/// Words of marks for a leaf, with a bit for each unit; and leaves whose marks share a page.
const LEAF_MARKS: usize = LEAF_UNITS / 64;
const MARKS_PAGE: usize = PAGE / (LEAF_MARKS * 8);

/// Most leaves that are made one by one, beside other threads.
const BESIDE_MAX: usize = 16;
/// [`PageTable::cover_beside`] covers ranges of this length, wherever they begin.
pub const BESIDE_BYTES: usize = (BESIDE_MAX - 1) << LEAF_SHIFT;

/// In an entry of the top table, beside the leaf's address. `MANAGED`: a region once covered the whole leaf, so its
/// units are not marked one by one. `MARKED`: some units are marked. `OPEN`: the leaf is accessible.
const MANAGED: usize = 1;
const MARKED: usize = 2;
const OPEN: usize = 4;
const ADDRESS: usize = !(PAGE - 1);

/// Units whose descriptors share a page.
const UNITS_PAGE: usize = PAGE / size_of::<Unit>();

/// What is known of one unit.
#[derive(Debug)]
#[repr(C, align(128))]
pub struct Unit {
    /// Pages of the unit in the page table.
    pub present: AtomicU32,
    /// Pages of the unit with any content: present, staged or swapped.
    pub content: AtomicU32,
    /// 1 while the unit is in the ring of units to sweep.
    pub queued: AtomicU32,
    /// Passes for which reclaim still leaves the unit alone.
    pub skip: AtomicU32,
    /// Passes for which the unit was left alone when it was last judged hot: 1, 3, 7, then 15 each time. 0 when it was not hot.
    pub generation: AtomicU32,
    /// Pages that the last sweep unmapped.
    pub swept: AtomicU32,
    /// Of these, pages that came back from staging, or from swap so soon that they would be staged still.
    pub returned: AtomicU32,
    /// 1 while sweeps evict scattered pages in place (see [`crate::way_out::in_place`]).
    pub in_place: AtomicU32,
    /// Other near refaults since the last sweep.
    pub refaulted: AtomicU32,
    /// The page of the unit behind those that the last fault in it brought in, and how many pages that fault might bring in.
    pub next: AtomicU32,
    pub window: AtomicU32,
    /// How many of these came ahead of a walk, and the device whose read-ahead they tell of: see [`crate::way_in::window`].
    pub ahead: AtomicU32,
    /// First touches in the unit that were not a step of a walk.
    pub touches: AtomicU32,
    /// 1 once the memory of the unit's words is charged. And, in the first unit in a page of descriptors, 1 once that page is.
    charged: AtomicU32,
    page_charged: AtomicU32,
    /// Page of the unit where the next sweep begins.
    pub cursor: AtomicU32,
    /// Clean pages of the unit.
    pub clean: AtomicU32,
    /// Swap-ins for reading that still must leave no clean pages, because such pages were written to soon.
    pub written: AtomicU32,
    /// Pages of the unit that are marked shared since a fork. May be too high.
    pub shared: AtomicU32,
    /// Of these, pages that were this process's alone when it last looked; and when that was, as
    /// [`crate::base::clock::stamp`]. A hint.
    pub deserted: AtomicU32,
    pub deserted_seen: AtomicU32,
    /// When a sweep last took the marks of referenced pages, as [`crate::base::clock::stamp`].
    pub unmarked: AtomicU32,
    /// When a page of the unit was last seen in use, as [`crate::base::clock::stamp`].
    pub touched: AtomicU32,
    /// Not 0 when the unit has, or had, pages from before they were managed. The kernel may have been lent these pages,
    /// and may still read them (vmsplice, MSG_ZEROCOPY), so no frame of the unit is written with another page. Or a
    /// driver may have pinned them, so they go by MOVE only: see [`crate::pages::drivers`]. It is set, too, when the
    /// kernel refuses to move a page of the unit.
    pub lent: AtomicU32,
    /// When the kernel first refused to move a page of the unit, as [`crate::base::clock::stamp`]; 0 for never.
    pub refused: AtomicU32,
    /// When ageing last looked whether the unit is in use, as [`crate::base::clock::tick`]; 0 for never.
    pub aged: AtomicU32,
    /// Periods for which ageing still leaves the unit alone.
    pub rests: AtomicU32,
    /// Pages that no place took, and that were mapped again, since ageing last looked.
    pub unstored: AtomicU32,
    /// What is known of the unit as a folio, see [`crate::pages::folio`].
    pub folio: AtomicU32,
}

impl Unit {
    /// True once the memory of the unit's words is charged.
    #[inline]
    pub fn is_charged(&self) -> bool {
        self.charged.load(Ordering::Relaxed) != 0
    }
}

#[repr(C)]
struct Leaf {
    words: [AtomicU64; LEAF_PAGES],
    units: [Unit; LEAF_UNITS],
}

const _: () = assert!(PAGE.is_multiple_of(size_of::<Unit>()) && LEAF_UNITS.is_multiple_of(UNITS_PAGE));

/// The top table and the marks, and through them the leaves.
pub struct PageTable {
    top: *const AtomicUsize,
    marks: *const AtomicU64,
}

// SAFETY: both tables are arrays of atomics that live as long as the space; leaves hold atomics only.
unsafe impl Sync for PageTable {}
// SAFETY: as above.
unsafe impl Send for PageTable {}

impl PageTable {
    /// Reserves the top table and the marks.
    pub fn new() -> Result<Self, Errno> {
        let top = uapi::reserve(NR_LEAVES * size_of::<AtomicUsize>())?.cast();
        Ok(Self { top, marks: uapi::reserve_closed(NR_LEAVES * LEAF_MARKS * 8)? as *const AtomicU64 })
    }

    /// Start address of the unit that holds `addr`.
    pub fn unit_start(&self, addr: usize) -> usize {
        addr & !(UNIT_BYTES - 1)
    }

    #[inline]
    fn entry(&self, addr: usize) -> Option<&AtomicUsize> {
        // SAFETY: the index is below NR_LEAVES.
        (addr < ADDR_END).then(|| unsafe { &*self.top.add(addr >> LEAF_SHIFT) })
    }

    /// The leaf of an entry that is [`OPEN`].
    #[inline]
    fn open_leaf(&self, entry: usize) -> &Leaf {
        debug_assert!(entry & OPEN != 0);
        // SAFETY: an open leaf is zeroed memory that stays mapped; zero is a valid value of every field.
        unsafe { &*((entry & ADDRESS) as *const Leaf) }
    }

    /// The leaf of `addr`, accessible; none when there is no leaf.
    #[inline]
    fn leaf(&self, addr: usize) -> Option<&Leaf> {
        let entry = self.entry(addr)?;
        let seen = entry.load(Ordering::Acquire);
        if seen & OPEN == 0 && !self.open(entry, seen) {
            return None;
        }
        Some(self.open_leaf(entry.load(Ordering::Acquire)))
    }

    /// Makes a leaf accessible that is used for the first time. False when there is no leaf. Several threads may do so at once.
    #[cold]
    fn open(&self, entry: &AtomicUsize, seen: usize) -> bool {
        let at = seen & ADDRESS;
        if at == 0 {
            return false;
        }
        let opened = uapi::open_reserved(at, LEAF_BYTES);
        assert!(opened.is_ok(), "no memory for tables of the program's memory: raise vm.max_map_count");
        entry.fetch_or(OPEN, Ordering::AcqRel);
        true
    }

    /// The leaf of `addr`, if any page in it was ever looked up.
    fn used_leaf(&self, addr: usize) -> Option<&Leaf> {
        let entry = self.entry(addr)?.load(Ordering::Acquire);
        (entry & OPEN != 0).then(|| self.open_leaf(entry))
    }

    /// Makes sure that there are leaves for `[start, end)` and marks its units.
    pub fn cover(&self, _exclusive: &Exclusive<'_>, start: usize, end: usize) -> Result<(), Errno> {
        let mut at = start >> LEAF_SHIFT << LEAF_SHIFT;
        while at < end {
            let entry = self.entry(at).ok_or(Errno::NOMEM)?;
            if entry.load(Ordering::Relaxed) & ADDRESS != 0 {
                at += 1 << LEAF_SHIFT;
                continue;
            }
            // All missing leaves up to the next one that exists, with one call.
            let lacks = |at: &usize| {
                *at < end && self.entry(*at).is_some_and(|entry| entry.load(Ordering::Relaxed) & ADDRESS == 0)
            };
            let leaves = (at..).step_by(1 << LEAF_SHIFT).take_while(lacks).count();
            let first = uapi::reserve_closed(leaves * LEAF_BYTES)?;
            for leaf in 0..leaves {
                let entry = self.entry(at).ok_or(Errno::NOMEM)?;
                entry.fetch_or(first + leaf * LEAF_BYTES, Ordering::Release);
                at += 1 << LEAF_SHIFT;
            }
        }
        self.mark_units(start, end)
    }

    /// Marks the units of a range that has leaves. Several threads may do so at once.
    fn mark_units(&self, start: usize, end: usize) -> Result<(), Errno> {
        let mut at = self.unit_start(start);
        while at < end {
            let entry = self.entry(at).ok_or(Errno::NOMEM)?;
            let leaf_bytes = 1usize << LEAF_SHIFT;
            if at.is_multiple_of(leaf_bytes) && end - at >= leaf_bytes {
                entry.fetch_or(MANAGED, Ordering::Relaxed);
                at += leaf_bytes;
                continue;
            }
            if entry.load(Ordering::Relaxed) & MARKED == 0 {
                let page = self.marks as usize + (at >> LEAF_SHIFT) / MARKS_PAGE * PAGE;
                uapi::open_reserved(page, PAGE)?;
            }
            let (word, bit) = self.mark(at);
            word.fetch_or(bit, Ordering::Relaxed);
            entry.fetch_or(MARKED, Ordering::Release);
            at += UNIT_BYTES;
        }
        Ok(())
    }

    /// As [`Self::cover`], beside other threads. False if that fails, or needs so many leaves that one call for all is better.
    pub fn cover_beside(&self, _held: &Held, start: usize, end: usize) -> bool {
        let leaves = (start >> LEAF_SHIFT << LEAF_SHIFT..end).step_by(1 << LEAF_SHIFT);
        let mut missing = 0;
        let mut has_leaf = |at| {
            let Some(entry) = self.entry(at) else { return false };
            missing += (entry.load(Ordering::Acquire) & ADDRESS == 0) as usize;
            missing <= BESIDE_MAX && add_leaf(entry)
        };
        leaves.into_iter().all(&mut has_leaf) && self.mark_units(start, end).is_ok()
    }

    /// The word and the bit that mark the unit around `addr`, which must be below [`ADDR_END`]. The page of the word is
    /// accessible once the entry is [`MARKED`].
    fn mark(&self, addr: usize) -> (&AtomicU64, u64) {
        let unit = self.unit_index(addr);
        // SAFETY: the index is within the marks.
        let word = unsafe { &*self.marks.add((addr >> LEAF_SHIFT) * LEAF_MARKS + unit / 64) };
        (word, 1 << (unit % 64))
    }

    /// False when nothing in the unit around `addr` was ever managed. True says nothing.
    #[inline]
    pub fn may_be_managed(&self, addr: usize) -> bool {
        let Some(entry) = self.entry(addr) else { return false };
        let entry = entry.load(Ordering::Acquire);
        if entry & (MANAGED | MARKED) != MARKED {
            return entry & MANAGED != 0;
        }
        let (word, bit) = self.mark(addr);
        word.load(Ordering::Relaxed) & bit != 0
    }

    /// True when [`Self::may_be_managed`] is true for any unit of `[start, end)`.
    pub fn is_any_managed(&self, start: usize, end: usize) -> bool {
        let mut at = start;
        while at < end {
            let entry = self.entry(at).map_or(0, |entry| entry.load(Ordering::Acquire));
            if entry & (MANAGED | MARKED) == 0 {
                at = self.leaf_end(at);
            } else if self.may_be_managed(at) {
                return true;
            } else {
                at = self.unit_start(at) + UNIT_BYTES;
            }
        }
        false
    }

    fn unit_index(&self, addr: usize) -> usize {
        (addr >> 12 & (LEAF_PAGES - 1)) / UNIT_PAGES
    }

    /// The state word of the page that holds `addr`, if there is a leaf for it.
    #[inline]
    pub fn word(&self, addr: usize) -> Option<PageWord<'_>> {
        let leaf = self.leaf(addr)?;
        Some(PageWord(&leaf.words[addr >> 12 & (LEAF_PAGES - 1)]))
    }

    /// The descriptor of the unit that holds `addr`, if there is a leaf for it.
    #[inline]
    pub fn unit(&self, addr: usize) -> Option<&Unit> {
        let leaf = self.leaf(addr)?;
        Some(&leaf.units[self.unit_index(addr)])
    }

    /// For a caller that looks through many units: the descriptor, if the unit may have content, and the address to go on at.
    pub fn used_unit(&self, addr: usize) -> (Option<&Unit>, usize) {
        match self.used_leaf(addr) {
            Some(leaf) => (Some(&leaf.units[self.unit_index(addr)]), self.unit_start(addr) + UNIT_BYTES),
            None => (None, self.leaf_end(addr)),
        }
    }

    /// End of the address range that the leaf of `addr` describes.
    pub fn leaf_end(&self, addr: usize) -> usize {
        (addr >> LEAF_SHIFT << LEAF_SHIFT) + (1 << LEAF_SHIFT)
    }

    /// Bytes of tables that become real memory with the first content of the unit at `addr`. 0 when they were returned before.
    pub fn take_uncharged(&self, addr: usize) -> usize {
        let Some(leaf) = self.leaf(addr) else { return 0 };
        let index = self.unit_index(addr);
        let unit = &leaf.units[index];
        if unit.charged.swap(1, Ordering::Relaxed) != 0 {
            return 0;
        }
        let first = &leaf.units[index / UNITS_PAGE * UNITS_PAGE];
        let descriptors = if first.page_charged.swap(1, Ordering::Relaxed) == 0 { PAGE } else { 0 };
        UNIT_PAGES * size_of::<AtomicU64>() + descriptors
    }

    /// False when no page in the leaf of `addr` has content.
    pub fn has_content(&self, addr: usize) -> bool {
        self.used_leaf(addr).is_some_and(|leaf| leaf.units.iter().any(|unit| unit.content.load(Ordering::Acquire) != 0))
    }

    /// Calls `f(page address, word)` for every page of `[start, end)` that may have content. Skips leaves that were
    /// never used and units without content.
    pub fn for_each_content(&self, start: usize, end: usize, f: impl FnMut(usize, PageWord<'_>)) {
        self.for_each_in(start, end, |unit| unit.content.load(Ordering::Acquire) != 0, f);
    }

    /// As [`Self::for_each_content`], for pages that may be protected.
    pub fn for_each_protected(&self, start: usize, end: usize, f: impl FnMut(usize, PageWord<'_>)) {
        let has_any = |unit: &Unit| unit.clean.load(Ordering::Acquire) | unit.shared.load(Ordering::Acquire) != 0;
        self.for_each_in(start, end, has_any, f);
    }

    fn for_each_in(
        &self,
        start: usize,
        end: usize,
        wanted: impl Fn(&Unit) -> bool,
        mut f: impl FnMut(usize, PageWord<'_>),
    ) {
        let mut at = start;
        while at < end {
            let Some(leaf) = self.used_leaf(at) else {
                at = self.leaf_end(at);
                continue;
            };
            let unit_end = (self.unit_start(at) + UNIT_BYTES).min(end);
            if wanted(&leaf.units[self.unit_index(at)]) {
                while at < unit_end {
                    f(at, PageWord(&leaf.words[at >> 12 & (LEAF_PAGES - 1)]));
                    at += PAGE;
                }
            }
            at = unit_end;
        }
    }
}

/// Makes sure that an entry has a leaf. Several threads may do so at once. False if there is no address space for one.
fn add_leaf(entry: &AtomicUsize) -> bool {
    if entry.load(Ordering::Acquire) & ADDRESS != 0 {
        return true;
    }
    let Ok(leaf) = uapi::reserve_closed(LEAF_BYTES) else { return false };
    let add = |seen: usize| (seen & ADDRESS == 0).then_some(seen | leaf);
    if entry.fetch_update(Ordering::AcqRel, Ordering::Acquire, add).is_err() {
        // Another thread was faster.
        // SAFETY: the memory is new, and nobody knows of it.
        let _ = unsafe { uapi::munmap(leaf, LEAF_BYTES) };
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocols::gate::tests::alone;

    const LEAF: usize = 1 << LEAF_SHIFT;

    #[test]
    fn what_is_covered_may_be_managed_and_its_neighbours_are_not() {
        let table = PageTable::new().expect("address space");
        let (start, end) = (5 * LEAF + 3 * UNIT_BYTES, 9 * LEAF + UNIT_BYTES);
        table.cover(&alone(), start, end).expect("address space");
        for inside in [start, 6 * LEAF - PAGE, 6 * LEAF, 8 * LEAF + PAGE, 9 * LEAF - PAGE, end - PAGE] {
            assert!(table.may_be_managed(inside), "{inside:x}");
        }
        for outside in [0, 5 * LEAF, start - PAGE, end, 10 * LEAF, 100 * LEAF, ADDR_END - PAGE, ADDR_END, usize::MAX] {
            assert!(!table.may_be_managed(outside), "{outside:x}");
        }
        // Covered once more, beside what is covered and in it.
        table.cover(&alone(), 5 * LEAF, start).expect("address space");
        table.cover(&alone(), 7 * LEAF, 7 * LEAF + PAGE).expect("address space");
        assert!(table.may_be_managed(5 * LEAF) && table.may_be_managed(7 * LEAF + UNIT_BYTES));
    }

    #[test]
    fn a_leaf_is_opened_by_the_first_look_and_passed_over_until_then() {
        let table = PageTable::new().expect("address space");
        table.cover(&alone(), LEAF, 4 * LEAF).expect("address space");
        let next = |addr| (table.used_unit(addr).0.is_some(), table.used_unit(addr).1);
        assert_eq!(next(LEAF + PAGE), (false, 2 * LEAF));
        assert!(!table.has_content(LEAF));
        table.for_each_content(LEAF, 4 * LEAF, |_, _| panic!("nothing has content"));
        assert!(table.word(5 * LEAF).is_none() && table.unit(0).is_none());
        let (addr, mut seen) = (2 * LEAF + 7 * UNIT_BYTES + 5 * PAGE, Vec::new());
        table
            .word(addr)
            .expect("a leaf")
            .set_exclusive(&crate::protocols::gate::tests::alone(), crate::protocols::page::State::PRESENT);
        table.unit(addr).expect("a leaf").content.store(1, Ordering::Relaxed);
        assert_eq!((next(addr), next(LEAF)), ((true, 2 * LEAF + 8 * UNIT_BYTES), (false, 2 * LEAF)));
        table.for_each_content(LEAF, 4 * LEAF, |at, word| {
            if word.load() == crate::protocols::page::State::PRESENT {
                seen.push(at);
            }
        });
        assert_eq!(seen, [addr]);
    }

    #[test]
    fn threads_that_cover_the_same_range_make_one_leaf() {
        let table = PageTable::new().expect("address space");
        let words: Vec<_> = std::thread::scope(|scope| {
            let look = || {
                assert!(table.cover_beside(&alone(), 3 * LEAF, 5 * LEAF));
                table.word(4 * LEAF).map(|word| core::ptr::from_ref(word.0) as usize)
            };
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(look)).collect();
            threads.into_iter().map(|thread| thread.join().expect("covered")).collect()
        });
        assert!(words[0].is_some() && words.iter().all(|word| *word == words[0]));
        assert!(!table.cover_beside(&alone(), 0, 40 * LEAF), "one call makes so many");
        assert!(table.word(39 * LEAF).is_none());
    }

    #[test]
    fn tables_are_charged_once_by_the_page() {
        let table = PageTable::new().expect("address space");
        table.cover(&alone(), 0, LEAF).expect("address space");
        assert_eq!(table.take_uncharged(0), 2 * PAGE);
        assert_eq!(table.take_uncharged(PAGE), 0);
        assert_eq!(table.take_uncharged(UNIT_BYTES), PAGE);
        assert_eq!(table.take_uncharged(UNITS_PAGE * UNIT_BYTES), 2 * PAGE);
        assert!(table.unit(0).is_some_and(Unit::is_charged));
    }
}
