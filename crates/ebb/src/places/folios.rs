//! Where folios of 2 MiB come from: the kept frames of one that went out whole, or a nursery, where the kernel makes a new one.
//!
//! In memory that is registered the kernel makes no page by itself, so it makes huge pages in the nursery, which is not. From there
//! they are moved to where they belong.

use crate::base::ring::Ring;
use crate::base::uapi::{self, Errno};
use crate::base::{PAGE, clock};
use crate::counters::stats::Thp;
use crate::memory::table::UNIT_BYTES;
use crate::places::frames::Demand;
use crate::protocols::gate::Exclusive;
use core::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use linux_raw_sys::general as g;

/// Folios that may be in the nursery at once: one for each thread that makes one.
const NURSERY: usize = 32;
/// For so long no folio is asked of the kernel after it had none.
const REFUSED_MS: u64 = 100;
/// Most folios of demand that are remembered.
const DEMAND_MAX: i64 = 8;

/// The folios of a space.
pub struct Folios {
    /// A [`Thp`]: what this process gets at most. It may have said so, or the kernel has no huge pages.
    limit: AtomicU32,
    nursery: usize,
    /// Places of the nursery in use, a bit each.
    used: AtomicU32,
    /// When the kernel last had no folio, as [`clock::stamp`], and a low bit that says that it ever had none.
    refused: AtomicU64,
    /// Blocks of staging whose frames are one folio that no page needs.
    kept: Ring,
    nr_kept: AtomicI64,
    /// Folios that came in, less those that were kept.
    demand: Demand,
    have_been: AtomicBool,
    /// A unit of small pages that proved hot; 0 for none.
    suggested: AtomicUsize,
}

/// A new folio in the nursery, all zeros. Its place is given back when this ends.
pub(crate) struct New<'a> {
    folios: &'a Folios,
    place: u32,
}

impl New<'_> {
    /// Where it is.
    pub(crate) fn addr(&self) -> usize {
        self.folios.place(self.place)
    }
}

impl Drop for New<'_> {
    fn drop(&mut self) {
        // Also if all of it was moved away: if the kernel has split it for that, it has left a page table, and would make no folio here
        // any more.
        let dropped = uapi::madvise(self.addr(), UNIT_BYTES, g::MADV_DONTNEED);
        assert!(dropped.is_ok(), "the kernel drops Ebb's own memory");
        self.folios.used.fetch_and(!(1 << self.place), Ordering::Release);
    }
}

/// True if the kernel makes folios in the nursery, frees the page table of an empty range (a folio is moved to where there is none), and
/// keeps the protection of pages of zeros when it splits a folio. From Linux 6.12 to 6.17 it may drop that, and writes to such pages
/// would go unseen (fixed by *mm/rmap: fix soft-dirty and uffd-wp bit loss when remapping zero-filled mTHP subpage to shared zeropage*).
fn is_possible(nursery: usize) -> bool {
    uapi::kernel::is_at_least(6, 18) && uapi::madvise(nursery, NURSERY * UNIT_BYTES, g::MADV_HUGEPAGE).is_ok()
}

impl Folios {
    /// No folios yet, and room to keep `blocks` of them.
    pub fn new(blocks: usize) -> Result<Self, Errno> {
        let nursery = uapi::reserve_aligned(NURSERY * UNIT_BYTES, UNIT_BYTES)? as usize;
        let is_possible = is_possible(nursery);
        Ok(Self {
            limit: AtomicU32::new(if is_possible { Thp::Always } else { Thp::Never } as u32),
            nursery,
            used: AtomicU32::new(0),
            refused: AtomicU64::new(0),
            kept: Ring::new(blocks)?,
            nr_kept: AtomicI64::new(0),
            demand: Demand::default(),
            have_been: AtomicBool::new(false),
            suggested: AtomicUsize::new(0),
        })
    }

    /// What this process gets at most, whatever its tree may have.
    pub fn limit(&self) -> Thp {
        Thp::of(self.limit.load(Ordering::Relaxed))
    }

    /// Sets what this process gets at most. Nothing where the kernel has no huge pages, or makes none for this process.
    pub fn set_limit(&self, limit: Thp) {
        let is_possible = is_possible(self.nursery);
        self.limit.store(if is_possible { limit } else { Thp::Never } as u32, Ordering::Relaxed);
    }

    fn place(&self, place: u32) -> usize {
        self.nursery + place as usize * UNIT_BYTES
    }

    /// Has the kernel make a folio of zeros. None if it has none now.
    pub(crate) fn make(&self) -> Option<New<'_>> {
        let refused = self.refused.load(Ordering::Relaxed);
        if refused & 1 << 32 != 0 && clock::ms_since(refused as u32) < REFUSED_MS {
            return None;
        }
        let place = self.take_place()?;
        let new = New { folios: self, place };
        // SAFETY: the place is this thread's, mapped for reading and writing.
        unsafe { (new.addr() as *mut u8).write_volatile(0) };
        // Of a small page only the first is there.
        if uapi::is_mapped(new.addr() + UNIT_BYTES - PAGE) {
            return Some(new);
        }
        self.refused.store(1 << 32 | u64::from(clock::stamp()), Ordering::Relaxed);
        None
    }

    fn take_place(&self) -> Option<u32> {
        let mut used = self.used.load(Ordering::Relaxed);
        while used != u32::MAX {
            let place = used.trailing_ones();
            match self.used.compare_exchange_weak(used, used | 1 << place, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return Some(place),
                Err(now) => used = now,
            }
        }
        None
    }

    /// Notes that a folio came in, for which a kept one was of use whether there was one or not.
    pub(crate) fn note_demand(&self) {
        self.demand.note(1, DEMAND_MAX);
    }

    /// True if a folio that is about to be dropped should be kept.
    pub(crate) fn is_wanted(&self) -> bool {
        self.demand.now() > 0
    }

    /// Keeps a block of staging, to be used first.
    pub(crate) fn keep(&self, block: u32) {
        self.nr_kept.fetch_add(1, Ordering::Relaxed);
        let pushed = self.kept.push_first(block.into());
        assert!(pushed, "there are no more kept folios than blocks");
    }

    /// Notes that a kept folio meets demand.
    pub(crate) fn meet_demand(&self) {
        self.demand.meet(1);
    }

    /// Takes a kept block.
    pub(crate) fn take_kept(&self) -> Option<u32> {
        let block = self.kept.pop()?;
        self.nr_kept.fetch_sub(1, Ordering::Relaxed);
        Some(block as u32)
    }

    /// How many folios are kept, about.
    pub(crate) fn nr_kept(&self) -> usize {
        self.nr_kept.load(Ordering::Relaxed).max(0) as usize
    }

    /// Calls `f` with each kept block.
    pub(crate) fn for_each_kept(&self, mut f: impl FnMut(u32)) {
        self.kept.for_each(|block| f(block as u32));
    }

    /// Suggests that the unit at `start` be made a folio.
    pub(crate) fn suggest(&self, start: usize) {
        self.suggested.store(start, Ordering::Relaxed);
    }

    /// Takes the last suggestion.
    pub(crate) fn take_suggested(&self) -> Option<usize> {
        let start =
            if self.suggested.load(Ordering::Relaxed) == 0 { 0 } else { self.suggested.swap(0, Ordering::Relaxed) };
        (start != 0).then_some(start)
    }

    /// Notes that there is a folio.
    pub(crate) fn note(&self) {
        if !self.have_been() {
            self.have_been.store(true, Ordering::Relaxed);
        }
    }

    /// False if there has never been a folio in this process.
    pub(crate) fn have_been(&self) -> bool {
        self.have_been.load(Ordering::Relaxed)
    }

    /// Before fork, which splits all folios: those that it cannot split are noted again.
    pub(crate) fn reset(&self, _exclusive: &Exclusive<'_>) {
        self.have_been.store(false, Ordering::Relaxed);
    }
}
