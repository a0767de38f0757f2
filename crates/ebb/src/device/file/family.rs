//! A file that a family of processes shares: its owner, and the processes that were forked from it and still need its
//! slots.
//!
//! Only the owner allocates. In memory of its own it has a bit for each slot that it needs itself, and a bit for each
//! slot that it gave up while others may still hold it. The other processes have their bits in a table that all of them
//! map (see [`crate::protocols::holders`]). The owner scans that table for slots that nobody holds. It looks for many
//! at a time, because a scan visits every page of the table. Locks show which processes of the family are alive
//! ([`Lives`]).

use super::SpillFile;
use crate::base::PAGE;
use crate::base::uapi::{self, Errno};
use crate::budget::Budget;
use crate::device::lives::{self, Lives};
use crate::protocols::gate::Exclusive;
use crate::protocols::holders::{self, Bits, Head, Holders, PAGE_SLOTS, PAGE_WORDS};
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use ebb_slots::{Slot, TableEntry};

/// Pages of the table beyond those that depend on the size of the file: one for each process that there can be.
const PAGES_MIN: usize = 4096;
/// Processes that can hold slots in every chunk of the file.
const PAGES_PER_CHUNK: usize = 16;
/// A scan is worth it once `FREED_MIN` slots were given up since the last scan, and `FREED_PER_PAGE` more for each page
/// that it visits.
const FREED_MIN: u32 = 512;
const FREED_PER_PAGE: u32 = 8;
/// How often to look for slots that came free while their owner did nothing.
const COLLECT_EVERY_NS: u64 = 100_000_000;

/// What the family shares besides the table.
#[repr(C)]
struct Shared {
    head: Head,
    /// Not 0 when the kernel keeps the file's content in its page cache unless it is told not to.
    is_cached: AtomicU32,
}

/// The page of a chunk in the table, plus 1; 0 for none.
type PageOf = UnsafeCell<u32>;

/// The books of who holds which slots.
pub(super) struct Family {
    lives: &'static Lives,
    shared: *const Shared,
    names: *const AtomicU64,
    ever: *const Bits,
    pages: *const Bits,
    /// Slots that the owner needs, and slots that it gave up and has not taken back.
    own: *const Bits,
    freed: *const Bits,
    /// The pages of this process, if it is not the owner, and of the child that is being made.
    own_pages: *const PageOf,
    child_pages: *const PageOf,
    nr_chunks: usize,
    nr_pages: usize,
    /// The life that this process's pages are named for, and the child's life.
    life: u64,
    child: UnsafeCell<u64>,
    /// This process, or the child, holds some slots for which it has no bit of its own.
    is_unknown: bool,
    child_is_unknown: UnsafeCell<bool>,
    /// Slots that the owner gave up and has not taken back, and how many slots it gave up since its last scan.
    nr_freed: AtomicU32,
    nr_freed_since: AtomicU32,
    collected_ns: AtomicU64,
    /// The table is in use: this process has forked, or is a fork's child.
    is_shared: AtomicBool,
}

/// The place of a slot: its chunk, the word in it, and the bit in that word.
fn place(slot: u32) -> (usize, usize, u64) {
    let (chunk, rest) = (slot / PAGE_SLOTS, slot % PAGE_SLOTS);
    (chunk as usize, rest as usize / 64, 1 << (rest % 64))
}

/// Where each part of a mapping begins, and the mapping's bytes.
fn layout<const N: usize>(bytes: [usize; N]) -> ([usize; N], usize) {
    let mut end = 0;
    let starts = bytes.map(|bytes| {
        let start = end;
        end += bytes.next_multiple_of(PAGE);
        start
    });
    (starts, end)
}

fn nr_chunks(nr_slots: u32) -> usize {
    nr_slots.div_ceil(PAGE_SLOTS).max(1) as usize
}

fn nr_pages(nr_chunks: usize) -> usize {
    PAGES_MIN + PAGES_PER_CHUNK * nr_chunks
}

fn shared_layout(nr_slots: u32) -> ([usize; 4], usize) {
    let chunks = nr_chunks(nr_slots);
    let pages = nr_pages(chunks);
    layout([size_of::<Shared>(), pages * size_of::<AtomicU64>(), chunks * PAGE, pages * PAGE])
}

fn private_layout(nr_slots: u32) -> ([usize; 4], usize) {
    let chunks = nr_chunks(nr_slots);
    let table = chunks * size_of::<PageOf>();
    layout([chunks * PAGE, chunks * PAGE, table, table])
}

impl Family {
    /// Bytes of address space for a file of `nr_slots` slots.
    pub(super) fn metadata_bytes(nr_slots: u32) -> usize {
        shared_layout(nr_slots).1 + private_layout(nr_slots).1
    }

    /// The books of a file that this process owns. `map` is asked for the memory of this process and for the memory of
    /// the family. That memory must live as long as the books.
    pub(super) fn new(
        nr_slots: u32,
        lives: &'static Lives,
        mut map: impl FnMut(usize, fn(usize) -> Result<*mut u8, Errno>) -> Result<*mut u8, Errno>,
    ) -> Result<Self, Errno> {
        let ([head, names, ever, pages], len) = shared_layout(nr_slots);
        let shared = map(len, uapi::reserve_shared)? as usize;
        let ([own, freed, own_pages, child_pages], len) = private_layout(nr_slots);
        let private = map(len, uapi::reserve)? as usize;
        let nr_chunks = nr_chunks(nr_slots);
        Ok(Self {
            lives,
            shared: (shared + head) as *const Shared,
            names: (shared + names) as *const AtomicU64,
            ever: (shared + ever) as *const Bits,
            pages: (shared + pages) as *const Bits,
            own: (private + own) as *const Bits,
            freed: (private + freed) as *const Bits,
            own_pages: (private + own_pages) as *const PageOf,
            child_pages: (private + child_pages) as *const PageOf,
            nr_chunks,
            nr_pages: nr_pages(nr_chunks),
            life: lives::NONE,
            child: UnsafeCell::new(lives::NONE),
            is_unknown: false,
            child_is_unknown: UnsafeCell::new(false),
            nr_freed: AtomicU32::new(0),
            nr_freed_since: AtomicU32::new(0),
            collected_ns: AtomicU64::new(0),
            is_shared: AtomicBool::new(false),
        })
    }

    pub(super) fn is_shared(&self) -> bool {
        self.is_shared.load(Ordering::Relaxed)
    }

    fn shared(&self) -> &Shared {
        // SAFETY: mapped for as long as the file, atomics only.
        unsafe { &*self.shared }
    }

    fn holders(&self) -> Holders<'_> {
        // SAFETY: mapped for as long as the file, with these lengths; atomics only, of which zero is a valid value.
        unsafe {
            Holders {
                head: &self.shared().head,
                names: core::slice::from_raw_parts(self.names, self.nr_pages),
                pages: core::slice::from_raw_parts(self.pages, self.nr_pages),
                ever: core::slice::from_raw_parts(self.ever, self.nr_chunks),
            }
        }
    }

    /// The bits of a chunk for slots that the owner needs itself.
    fn own(&self, chunk: usize) -> &Bits {
        assert!(chunk < self.nr_chunks);
        // SAFETY: checked index; as above.
        unsafe { &*self.own.add(chunk) }
    }

    fn freed(&self, chunk: usize) -> &Bits {
        assert!(chunk < self.nr_chunks);
        // SAFETY: checked index; as above.
        unsafe { &*self.freed.add(chunk) }
    }

    fn own_page(&self, chunk: usize) -> Option<u32> {
        assert!(chunk < self.nr_chunks);
        // SAFETY: checked index. The word changes only in fork's child, and when the file goes.
        let page = unsafe { *(*self.own_pages.add(chunk)).get() };
        (page as usize).checked_sub(1).filter(|page| *page < self.nr_pages).map(|page| page as u32)
    }

    /// Sets the page of a chunk that the child will have.
    fn set_child_page(&self, _exclusive: &Exclusive<'_>, chunk: usize, page: Option<u32>) {
        assert!(chunk < self.nr_chunks);
        // SAFETY: checked index; under the exclusive gate nobody else is here.
        unsafe { *(*self.child_pages.add(chunk)).get() = page.map_or(0, |page| page + 1) };
    }

    fn child_page(&self, chunk: usize) -> Option<u32> {
        assert!(chunk < self.nr_chunks);
        // SAFETY: as above.
        unsafe { *(*self.child_pages.add(chunk)).get() }.checked_sub(1)
    }

    /// Whether the kernel keeps the file's content in its page cache.
    pub(super) fn is_cached(&self) -> bool {
        self.shared().is_cached.load(Ordering::Relaxed) != 0
    }

    pub(super) fn set_cached(&self) {
        self.shared().is_cached.store(1, Ordering::Relaxed);
    }
}

impl SpillFile {
    /// The chunks in which any slot was ever written.
    fn used_chunks(&self) -> core::ops::Range<usize> {
        let chunks = self.high_water.load(Ordering::Relaxed).div_ceil(PAGE_SLOTS) as usize;
        0..chunks.min(self.family.nr_chunks)
    }

    /// Slots whose content this process may still want. Takes no lock: if the process forked meanwhile, the child would
    /// have a lock that nobody releases.
    pub fn nr_used(&self) -> u32 {
        self.used.load(Ordering::Relaxed)
    }

    /// Recounts [`Self::nr_used`]. None where the books do not say, in a process that holds slots for which it has no
    /// bit.
    fn count_used(&self, _exclusive: &Exclusive<'_>) -> Option<u32> {
        let family = &self.family;
        if !family.is_shared() {
            return Some(self.slots.nr_used().saturating_sub(self.faults.left_slots()));
        }
        let bits_of = |chunk| match self.owner {
            true => Some(family.own(chunk)),
            false => family.own_page(chunk).map(|page| family.holders().page(page)),
        };
        let count = |bits: &Bits| bits.iter().map(|word| word.load(Ordering::Relaxed).count_ones()).sum::<u32>();
        let held = self.used_chunks().filter_map(bits_of).map(count).sum();
        (!family.is_unknown).then_some(held)
    }

    /// True when nothing of this process is in the file.
    pub fn is_unused(&self, exclusive: &Exclusive<'_>) -> bool {
        self.nr_used() == 0 && self.count_used(exclusive).unwrap_or(0) == 0
    }

    /// The number of slots that are counted as used and the number that are, if the two differ.
    pub fn miscounted(&self, exclusive: &Exclusive<'_>) -> Option<(u32, u32)> {
        let (kept, counted) = (self.nr_used(), self.count_used(exclusive)?);
        (kept != counted).then_some((kept, counted))
    }

    /// Notes that this process, which owns the file, needs a slot that it has just taken. Nobody else holds the slot.
    pub(super) fn hold(&self, slot: u32) {
        if self.family.is_shared() {
            let (chunk, word, bit) = place(slot);
            self.family.own(chunk)[word].fetch_or(bit, Ordering::Relaxed);
        }
    }

    /// Whether any other process needs slots of the file, as far as is known.
    pub(super) fn has_other_holders(&self) -> bool {
        self.family.is_shared() && {
            self.collect_sometimes();
            self.family.holders().has_any()
        }
    }

    /// Takes [`Self::hold`] back, because the slot was not written after all.
    pub(super) fn unhold(&self, slot: u32) {
        if self.family.is_shared() {
            let (chunk, word, bit) = place(slot);
            self.family.own(chunk)[word].fetch_and(!bit, Ordering::Relaxed);
        }
    }

    /// Whether another process needs a slot, or may need it.
    pub fn is_held_by_others(&self, slot: u32) -> bool {
        let (chunk, word, bit) = place(slot);
        self.family.is_shared() && self.family.holders().is_held(chunk as u32, word, bit)
    }

    /// Gives up slots, because this process needs them no more. Of neighbours the books are changed a word at a time.
    pub(super) fn free_slots(&self, slots: &[u32]) {
        if self.rest_until_ns.load(Ordering::Relaxed) != 0 {
            self.rest_until_ns.store(0, Ordering::Relaxed);
        }
        self.used.fetch_sub(slots.len() as u32, Ordering::Relaxed);
        let family = &self.family;
        if !family.is_shared() {
            self.put_all(slots.iter().map(|slot| Slot(*slot)));
            return;
        }
        for row in slots.chunk_by(|a, b| a / u64::BITS == b / u64::BITS) {
            let (chunk, word, _) = place(row[0]);
            let bits = row.iter().fold(0, |bits, slot| bits | place(*slot).2);
            if !self.owner {
                if let Some(page) = family.own_page(chunk) {
                    holders::clear(family.holders().page(page), word, bits);
                }
                continue;
            }
            holders::clear(family.own(chunk), word, bits);
            // Counted first, because whoever takes the slots back subtracts them from the count.
            family.nr_freed.fetch_add(row.len() as u32, Ordering::Relaxed);
            family.nr_freed_since.fetch_add(row.len() as u32, Ordering::Relaxed);
            family.freed(chunk)[word].fetch_or(bits, Ordering::Release);
        }
    }

    /// Takes back one slot that this process gave up, if nobody holds it any more.
    pub(super) fn collect_slot(&self, slot: u32) {
        let (chunk, word, bit) = place(slot);
        if self.family.is_shared() && !self.is_held_by_others(slot) {
            self.take_back(chunk, word, bit);
        }
    }

    /// Takes back the slots that this process gave up and that nobody else holds any more; returns how many.
    pub(super) fn collect(&self) -> u32 {
        let family = &self.family;
        if family.nr_freed.load(Ordering::Relaxed) == 0 {
            return 0;
        }
        family.nr_freed_since.store(0, Ordering::Relaxed);
        family.collected_ns.store(uapi::now_ns(), Ordering::Relaxed);
        family.holders().bury(|life| family.lives.is_alive(life));
        let (mut taken, mut held) = (0, [0; PAGE_WORDS]);
        for chunk in self.used_chunks() {
            let freed = family.freed(chunk);
            let has_any = freed.iter().any(|word| word.load(Ordering::Relaxed) != 0);
            if !has_any || !family.holders().held(chunk as u32, &mut held) {
                continue;
            }
            for (word, held) in held.iter().enumerate() {
                let free = freed[word].load(Ordering::Acquire) & !held;
                taken += if free != 0 { self.take_back(chunk, word, free) } else { 0 };
            }
        }
        taken
    }

    /// Gives back to the allocator those of the slots `bits` of a word that this process gave up and that nobody has
    /// taken back since; returns how many.
    fn take_back(&self, chunk: usize, word: usize, bits: u64) -> u32 {
        let mine = self.family.freed(chunk)[word].fetch_and(!bits, Ordering::AcqRel) & bits;
        let taken = mine.count_ones();
        let first = chunk as u32 * PAGE_SLOTS + word as u32 * u64::BITS;
        self.put_all((0..u64::BITS).filter(|bit| mine >> bit & 1 != 0).map(|bit| Slot(first + bit)));
        self.family.nr_freed.fetch_sub(taken, Ordering::Relaxed);
        taken
    }

    /// Runs [`Self::collect`] if there is enough to take back for what a scan costs.
    pub(super) fn collect_if_many(&self) {
        let since = self.family.nr_freed_since.load(Ordering::Relaxed);
        if since > FREED_MIN && since > FREED_MIN + FREED_PER_PAGE * self.family.holders().nr_pages() as u32 {
            self.collect();
        }
    }

    /// Slots that this process gave up and has not taken back. Others hold them, or may: a process that dies does not
    /// say so.
    pub fn nr_given_up(&self) -> u32 {
        self.family.nr_freed.load(Ordering::Relaxed)
    }

    /// True when enough slots were given up since the last scan for another, and it is time for one.
    pub(super) fn has_given_up_many(&self) -> bool {
        self.family.nr_freed_since.load(Ordering::Relaxed) > FREED_MIN && self.is_time_to_collect()
    }

    fn is_time_to_collect(&self) -> bool {
        uapi::now_ns().saturating_sub(self.family.collected_ns.load(Ordering::Relaxed)) >= COLLECT_EVERY_NS
    }

    /// Runs [`Self::collect`] if the last time is long enough ago: others may have ended since.
    pub(super) fn collect_sometimes(&self) {
        if self.family.nr_freed.load(Ordering::Relaxed) > 0 && self.is_time_to_collect() {
            self.collect();
        }
    }

    /// Before fork: makes the child, whose life is `child`, hold all slots that this process holds.
    pub fn adopt(&self, exclusive: &Exclusive<'_>, child: u64) {
        let family = &self.family;
        if !family.is_shared() {
            // Until the first fork nobody needed the bits. They start with the slots in use. What is locked now is only being
            // written, by a transfer that nobody waits for.
            for slot in 0..self.high_water.load(Ordering::Relaxed) {
                if matches!(
                    self.slots.get(Slot(slot)),
                    TableEntry::Stored(_) | TableEntry::Cached { locked: false, .. }
                ) {
                    let (chunk, word, bit) = place(slot);
                    family.own(chunk)[word].fetch_or(bit, Ordering::Relaxed);
                }
            }
            family.is_shared.store(true, Ordering::Relaxed);
        }
        // SAFETY: under the exclusive gate.
        unsafe { *family.child.get() = child };
        let holders = family.holders();
        let (mut buried, mut is_unknown) = (false, family.is_unknown);
        for chunk in self.used_chunks() {
            let bits = match self.owner {
                true => Some(family.own(chunk)),
                false => family.own_page(chunk).map(|page| holders.page(page)),
            };
            // A slot without a bit here is held for ever, and so for the child too.
            let held = |word: usize| bits.map_or(0, |bits| bits[word].load(Ordering::Relaxed));
            let mut page = None;
            if (0..PAGE_WORDS).any(|word| held(word) != 0) {
                if child != lives::NONE {
                    page = holders.take(child, chunk as u32, held);
                    if page.is_none() && !buried {
                        buried = true;
                        holders.bury(|life| family.lives.is_alive(life));
                        page = holders.take(child, chunk as u32, held);
                    }
                }
                if page.is_none() {
                    holders.hold_for_ever(chunk as u32, held);
                    is_unknown = true;
                }
            }
            family.set_child_page(exclusive, chunk, page);
        }
        // SAFETY: as above.
        unsafe { *family.child_is_unknown.get() = is_unknown };
    }

    /// After a fork that failed: takes [`Self::adopt`] back, except for slots that are held for ever.
    pub fn disown(&self, _exclusive: &Exclusive<'_>) {
        let family = &self.family;
        // SAFETY: under the exclusive gate.
        let child = unsafe { *family.child.get() };
        for chunk in self.used_chunks() {
            if let Some(page) = family.child_page(chunk) {
                family.holders().give_back(page, child, chunk as u32);
            }
        }
    }

    /// After fork, in the child: makes this process the reader that [`Self::adopt`] prepared for.
    pub fn inherit(&mut self, budget: &Budget) {
        let chunks = self.used_chunks();
        // Those pages are charged to the parent.
        budget.uncharge_meta(self.family_pages() * PAGE);
        let family = &mut self.family;
        family.life = *family.child.get_mut();
        core::mem::swap(&mut family.own_pages, &mut family.child_pages);
        if self.owner {
            // The child has no use for the bits that say what its parent needs and gave up.
            let (at, end) = (family.own as usize, (family.own_pages as usize).min(family.child_pages as usize));
            let _ = budget.drop_books(at, end - at);
        }
        (self.owner, family.nr_freed) = (false, AtomicU32::new(0));
        self.faults.inherit();
        family.is_unknown = *family.child_is_unknown.get_mut();
        budget.charge_meta(chunks.filter(|chunk| family.own_page(*chunk).is_some()).count() * PAGE);
    }

    /// Pages of the family's memory that this process is charged for.
    pub fn family_pages(&self) -> usize {
        let pages = || self.used_chunks().filter(|chunk| self.family.own_page(*chunk).is_some()).count();
        if self.owner { 0 } else { pages() }
    }

    /// Gives back this process's pages of the family's memory. The file itself is not needed for that.
    pub(super) fn leave_family(&self, budget: &Budget) {
        let family = &self.family;
        if self.owner {
            return;
        }
        for chunk in self.used_chunks() {
            if let Some(page) = family.own_page(chunk) {
                family.holders().give_back(page, family.life, chunk as u32);
                budget.uncharge_meta(PAGE);
            }
        }
    }
}
