//! State words and unit descriptors of the whole address space, in leaves that exist where something is managed.
//!
//! Owns the top table (one pointer per GiB of address space) and the leaves. A leaf is reserved when the first region
//! in its GiB is added, under the exclusive gate, and never goes away; its memory costs nothing until pages in it are
//! used. So looking up a page is two loads, takes no lock and never fails half-way.

use crate::page::PageWord;
use crate::uapi::{self, Errno};
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

/// Bytes of a page.
pub const PAGE: usize = 4096;
/// First address that user space cannot have.
pub const ADDR_END: usize = 1 << 47;
/// Pages of a unit: 2 MiB, so that a unit of which little is present still unmaps a batch.
pub const UNIT_PAGES: usize = 512;
/// Bytes of a unit.
pub const UNIT_BYTES: usize = UNIT_PAGES * PAGE;

const LEAF_SHIFT: u32 = 30;
const LEAF_PAGES: usize = 1 << (LEAF_SHIFT - 12);
const LEAF_UNITS: usize = LEAF_PAGES / UNIT_PAGES;
const NR_LEAVES: usize = ADDR_END >> LEAF_SHIFT;

/// What is known of one unit.
#[derive(Debug)]
#[repr(C)]
pub struct Unit {
    /// Pages of the unit in the page table.
    pub present: AtomicU32,
    /// Pages of the unit with any content: present, staged or swapped.
    pub content: AtomicU32,
    /// 1 while the unit is in the ring of units to sweep.
    pub queued: AtomicU32,
    /// Passes that reclaim still leaves the unit alone.
    pub skip: AtomicU32,
    /// Passes it was left alone for when it proved hot last: doubled each time, 0 when it did not.
    pub generation: AtomicU32,
    /// Pages the last sweep unmapped.
    pub swept: AtomicU32,
    /// Of these, pages that came back from staging, or from swap as soon as that.
    pub returned: AtomicU32,
    /// 1 while sweeps evict scattered pages in place (see [`crate::in_place`]).
    pub in_place: AtomicU32,
    /// Other near refaults since the last sweep.
    pub refaulted: AtomicU32,
    /// 1 when a region ever covered part of the unit.
    pub managed: AtomicU32,
    /// Page of the unit after those that the last fault in it brought in, and how many it might bring.
    pub next: AtomicU32,
    pub window: AtomicU32,
    /// First touches in the unit that were no step of a walk.
    pub touches: AtomicU32,
    /// 1 once the memory of the unit's words is charged.
    pub charged: AtomicU32,
    /// Page of the unit where the next sweep begins.
    pub cursor: AtomicU32,
    /// Clean pages of the unit.
    pub clean: AtomicU32,
    /// Swap-ins for reading that shall not leave clean pages, because such pages were written to soon.
    pub written: AtomicU32,
    /// Pages of the unit that are marked shared since a fork, or more.
    pub shared: AtomicU32,
    /// Of these, pages that were this process's alone when it last looked, and when that was, as [`crate::clock::stamp`]. A hint.
    pub deserted: AtomicU32,
    pub deserted_seen: AtomicU32,
    /// When a sweep last took the marks of referenced pages, as [`crate::clock::stamp`].
    pub unmarked: AtomicU32,
    /// When a page of the unit was last seen in use, as [`crate::clock::stamp`].
    pub touched: AtomicU32,
    /// Not 0 when it has, or had, pages from before they were managed. The kernel may have been lent these, and may read them
    /// still (vmsplice, MSG_ZEROCOPY): no frame of the unit is written with another page.
    pub lent: AtomicU32,
}

#[repr(C)]
struct Leaf {
    /// 1 when a region ever covered the whole leaf: then its units are not marked one by one.
    managed: AtomicU32,
    words: [AtomicU64; LEAF_PAGES],
    units: [Unit; LEAF_UNITS],
}

/// The top table.
pub struct PageTable {
    top: *const AtomicPtr<Leaf>,
}

// SAFETY: the top table is an array of atomics that lives as long as the space; leaves hold atomics only.
unsafe impl Sync for PageTable {}
// SAFETY: as above.
unsafe impl Send for PageTable {}

impl PageTable {
    /// Reserves the top table.
    pub fn new() -> Result<Self, Errno> {
        Ok(Self { top: uapi::reserve(NR_LEAVES * core::mem::size_of::<AtomicPtr<Leaf>>())?.cast() })
    }

    /// Start address of the unit that holds `addr`.
    pub fn unit_start(&self, addr: usize) -> usize {
        addr & !(UNIT_BYTES - 1)
    }

    fn slot(&self, addr: usize) -> Option<&AtomicPtr<Leaf>> {
        // SAFETY: the index is below NR_LEAVES.
        (addr < ADDR_END).then(|| unsafe { &*self.top.add(addr >> LEAF_SHIFT) })
    }

    #[inline]
    fn leaf(&self, addr: usize) -> Option<&Leaf> {
        let leaf = self.slot(addr)?.load(Ordering::Acquire);
        // SAFETY: a published leaf is zeroed memory that stays mapped; zero is a valid value of every field.
        unsafe { leaf.as_ref() }
    }

    /// Makes sure that leaves exist for `[start, end)` and marks its units. Under the exclusive gate.
    pub fn cover(&self, start: usize, end: usize) -> Result<(), Errno> {
        let mut at = start >> LEAF_SHIFT << LEAF_SHIFT;
        while at < end {
            let slot = self.slot(at).ok_or(Errno::NOMEM)?;
            if slot.load(Ordering::Relaxed).is_null() {
                let leaf = uapi::reserve(core::mem::size_of::<Leaf>())?;
                slot.store(leaf.cast(), Ordering::Release);
            }
            at += 1 << LEAF_SHIFT;
        }
        let mut at = self.unit_start(start);
        while at < end {
            let leaf = self.leaf(at).ok_or(Errno::NOMEM)?;
            let leaf_bytes = 1usize << LEAF_SHIFT;
            if at.is_multiple_of(leaf_bytes) && end - at >= leaf_bytes {
                leaf.managed.store(1, Ordering::Relaxed);
                at += leaf_bytes;
            } else {
                leaf.units[self.unit_index(at)].managed.store(1, Ordering::Relaxed);
                at += UNIT_BYTES;
            }
        }
        Ok(())
    }

    /// False when nothing in the unit that holds `addr` was ever managed. True says nothing.
    #[inline]
    pub fn may_be_managed(&self, addr: usize) -> bool {
        self.leaf(addr).is_some_and(|leaf| {
            leaf.units[self.unit_index(addr)].managed.load(Ordering::Relaxed) != 0
                || leaf.managed.load(Ordering::Relaxed) != 0
        })
    }

    fn unit_index(&self, addr: usize) -> usize {
        (addr >> 12 & (LEAF_PAGES - 1)) / UNIT_PAGES
    }

    /// The state word of the page that holds `addr`, if its leaf exists.
    #[inline]
    pub fn word(&self, addr: usize) -> Option<PageWord<'_>> {
        let leaf = self.leaf(addr)?;
        Some(PageWord(&leaf.words[addr >> 12 & (LEAF_PAGES - 1)]))
    }

    /// The descriptor of the unit that holds `addr`, if its leaf exists.
    #[inline]
    pub fn unit(&self, addr: usize) -> Option<&Unit> {
        let leaf = self.leaf(addr)?;
        Some(&leaf.units[self.unit_index(addr)])
    }

    /// False when no page of the leaf at `addr` has content.
    pub fn has_content(&self, addr: usize) -> bool {
        self.leaf(addr).is_some_and(|leaf| leaf.units.iter().any(|unit| unit.content.load(Ordering::Acquire) != 0))
    }

    /// Calls `f(page address, word)` for every page of `[start, end)` that may have content, skipping empty leaves
    /// and empty units.
    pub fn for_each_content(&self, start: usize, end: usize, f: impl FnMut(usize, PageWord<'_>)) {
        self.for_each_in(start, end, |unit| unit.content.load(Ordering::Acquire) != 0, f);
    }

    /// The same for pages that may be protected.
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
            let Some(leaf) = self.leaf(at) else {
                at = (at >> LEAF_SHIFT << LEAF_SHIFT) + (1 << LEAF_SHIFT);
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
