//! A file that a family of processes shares: its owner, and those that were forked from it and still need its slots.
//!
//! Only the owner allocates. It has a bit for each slot that it needs itself, and one for each that it gave up while others may still
//! hold it, in memory of its own; the others have theirs in a table that all map (see [`crate::protocols::holders`]). The owner looks there for
//! slots that nobody holds, many at a time, since a look visits every page of the table. Who of the family lives is known
//! by their locks ([`Lives`]).

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

/// Pages of the table beside those that go by the size of the file: one for each process that there can be.
const PAGES_MIN: usize = 4096;
/// Processes that can hold slots of all of the file.
const PAGES_PER_CHUNK: usize = 16;
/// Slots given up since the last look after which another is worth it, and as many more for each page that it visits.
const FREED_MIN: u32 = 512;
const FREED_PER_PAGE: u32 = 8;
/// How often slots are looked for that came free while their owner did nothing.
const COLLECT_EVERY_NS: u64 = 100_000_000;

/// What the family shares beside the table.
#[repr(C)]
struct Shared {
    head: Head,
    /// The kernel keeps the file's content in its page cache, unless it is told not to.
    is_cached: AtomicU32,
}

/// A chunk's page in the table, more by one; 0 for none.
type PageOf = UnsafeCell<u32>;

/// The books of who holds what.
pub(super) struct Family {
    lives: &'static Lives,
    shared: *const Shared,
    names: *const AtomicU64,
    ever: *const Bits,
    pages: *const Bits,
    /// Slots that the owner needs, and those that it gave up and has not taken back.
    own: *const Bits,
    freed: *const Bits,
    /// Pages of this process, which is not the owner, and of the child that is being made.
    own_pages: *const PageOf,
    child_pages: *const PageOf,
    nr_chunks: usize,
    nr_pages: usize,
    /// The life that this process's pages are of, and the child's.
    life: u64,
    child: UnsafeCell<u64>,
    /// Something that this process holds, or the child, has no bit of its own by which it could be told.
    is_unknown: bool,
    child_is_unknown: UnsafeCell<bool>,
    /// Slots that the owner gave up and has not taken back, and how many of them since it looked last.
    nr_freed: AtomicU32,
    nr_freed_since: AtomicU32,
    collected_ns: AtomicU64,
    /// This process forked, or is a fork's child: the table is in use.
    is_shared: AtomicBool,
}

/// Slots of a chunk, by word and bit.
fn place(slot: u32) -> (usize, usize, u64) {
    let (chunk, rest) = (slot / PAGE_SLOTS, slot % PAGE_SLOTS);
    (chunk as usize, rest as usize / 64, 1 << (rest % 64))
}

/// Where the parts of a mapping begin, and its bytes.
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
    /// Bytes of address space for a file of so many slots.
    pub(super) fn metadata_bytes(nr_slots: u32) -> usize {
        shared_layout(nr_slots).1 + private_layout(nr_slots).1
    }

    /// The books of a file that this process owns. `map` is asked for the memory of this process and for that of the
    /// family, which is to be as long-lived as they are.
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

    /// The owner's own bits of a chunk.
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
        // SAFETY: checked index; it changes only in fork's child, and when the file goes.
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
    /// Chunks that have ever been written to.
    fn used_chunks(&self) -> core::ops::Range<usize> {
        let chunks = self.high_water.load(Ordering::Relaxed).div_ceil(PAGE_SLOTS) as usize;
        0..chunks.min(self.family.nr_chunks)
    }

    /// Slots whose content this process may still want. Takes no lock: a process that forks meanwhile would leave its
    /// child one that nobody opens.
    pub fn nr_used(&self) -> u32 {
        self.used.load(Ordering::Relaxed)
    }

    /// The same, counted: none where the books do not say, in a process that holds slots without a bit.
    fn count_used(&self, _exclusive: &Exclusive<'_>) -> Option<u32> {
        let family = &self.family;
        if !family.is_shared() {
            return Some(self.slots.nr_used());
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

    /// Slots that are counted as used, and those that are, where these differ.
    pub fn miscounted(&self, exclusive: &Exclusive<'_>) -> Option<(u32, u32)> {
        let (kept, counted) = (self.nr_used(), self.count_used(exclusive)?);
        (kept != counted).then_some((kept, counted))
    }

    /// This process, which owns the file, needs a slot that it has just taken. Nobody else holds it.
    pub(super) fn hold(&self, slot: u32) {
        if self.family.is_shared() {
            let (chunk, word, bit) = place(slot);
            self.family.own(chunk)[word].fetch_or(bit, Ordering::Relaxed);
        }
    }

    /// It has not come to that.
    pub(super) fn unhold(&self, slot: u32) {
        if self.family.is_shared() {
            let (chunk, word, bit) = place(slot);
            self.family.own(chunk)[word].fetch_and(!bit, Ordering::Relaxed);
        }
    }

    /// Whether another process may need a slot.
    pub(super) fn is_held_by_others(&self, slot: u32) -> bool {
        let (chunk, word, bit) = place(slot);
        self.family.is_shared() && self.family.holders().is_held(chunk as u32, word, bit)
    }

    /// This process needs the slot no more.
    pub fn free(&self, slot: u32) {
        if self.rest_until_ns.load(Ordering::Relaxed) != 0 {
            self.rest_until_ns.store(0, Ordering::Relaxed);
        }
        self.used.fetch_sub(1, Ordering::Relaxed);
        let family = &self.family;
        if !family.is_shared() {
            self.put(Slot(slot));
            return;
        }
        let (chunk, word, bit) = place(slot);
        if !self.owner {
            if let Some(page) = family.own_page(chunk) {
                holders::clear(family.holders().page(page), word, bit);
            }
            return;
        }
        holders::clear(family.own(chunk), word, bit);
        // Counted first: who takes it back counts it off.
        family.nr_freed.fetch_add(1, Ordering::Relaxed);
        family.nr_freed_since.fetch_add(1, Ordering::Relaxed);
        family.freed(chunk)[word].fetch_or(bit, Ordering::Release);
    }

    /// Takes one slot back that this process gave up, if nobody holds it any more.
    pub(super) fn collect_slot(&self, slot: u32) {
        let (chunk, word, bit) = place(slot);
        if self.family.is_shared() && !self.is_held_by_others(slot) {
            self.take_back(chunk, word, bit);
        }
    }

    /// Takes back slots that this process gave up and that nobody else holds any more; how many.
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

    /// Gives those of some slots back to the allocator that this process has given up, and nobody has given back since; how many.
    fn take_back(&self, chunk: usize, word: usize, bits: u64) -> u32 {
        let mut mine = self.family.freed(chunk)[word].fetch_and(!bits, Ordering::AcqRel) & bits;
        let taken = mine.count_ones();
        while mine != 0 {
            self.put(Slot(chunk as u32 * PAGE_SLOTS + word as u32 * 64 + mine.trailing_zeros()));
            mine &= mine - 1;
        }
        self.family.nr_freed.fetch_sub(taken, Ordering::Relaxed);
        taken
    }

    /// [`Self::collect`], if there is enough to take back for what it costs.
    pub(super) fn collect_if_many(&self) {
        let since = self.family.nr_freed_since.load(Ordering::Relaxed);
        if since > FREED_MIN && since > FREED_MIN + FREED_PER_PAGE * self.family.holders().nr_pages() as u32 {
            self.collect();
        }
    }

    /// Slots that this process gave up and that another still holds, or may have: who dies says nothing.
    pub fn nr_given_up(&self) -> u32 {
        self.family.nr_freed.load(Ordering::Relaxed)
    }

    /// True when so many were given up since the last look who still holds them that another is worth it, and it is time for one.
    pub(super) fn has_given_up_many(&self) -> bool {
        self.family.nr_freed_since.load(Ordering::Relaxed) > FREED_MIN && self.is_time_to_collect()
    }

    fn is_time_to_collect(&self) -> bool {
        uapi::now_ns().saturating_sub(self.family.collected_ns.load(Ordering::Relaxed)) >= COLLECT_EVERY_NS
    }

    /// [`Self::collect`], if that is some time ago: others may have ended since.
    pub(super) fn collect_sometimes(&self) {
        if self.family.nr_freed.load(Ordering::Relaxed) > 0 && self.is_time_to_collect() {
            self.collect();
        }
    }

    /// Before fork: the child, whose life is `child`, holds all slots this process holds.
    pub fn adopt(&self, exclusive: &Exclusive<'_>, child: u64) {
        let family = &self.family;
        if !family.is_shared() {
            // Until the first fork nobody needed the bits: they start with the slots in use.
            for slot in 0..self.high_water.load(Ordering::Relaxed) {
                if matches!(self.slots.get(Slot(slot)), TableEntry::Stored(_) | TableEntry::Cached { .. }) {
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
            // What has no bit here is held for ever, for the child too.
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

    /// After a fork that failed: takes [`Self::adopt`] back, but what is held for ever.
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

    /// After fork, in the child: this process is that one, and only reads.
    pub fn inherit(&mut self, budget: &Budget) {
        let chunks = self.used_chunks();
        // Its parent is charged for those pages.
        budget.uncharge_meta(self.family_pages() * PAGE);
        let family = &mut self.family;
        family.life = *family.child.get_mut();
        core::mem::swap(&mut family.own_pages, &mut family.child_pages);
        if self.owner {
            // What its parent needs and gave up is not this process's affair.
            let (at, end) = (family.own as usize, (family.own_pages as usize).min(family.child_pages as usize));
            let _ = budget.drop_books(at, end - at);
        }
        (self.owner, family.nr_freed) = (false, AtomicU32::new(0));
        family.is_unknown = *family.child_is_unknown.get_mut();
        budget.charge_meta(chunks.filter(|chunk| family.own_page(*chunk).is_some()).count() * PAGE);
    }

    /// Pages of the family's memory that this process is charged for.
    pub fn family_pages(&self) -> usize {
        let pages = || self.used_chunks().filter(|chunk| self.family.own_page(*chunk).is_some()).count();
        if self.owner { 0 } else { pages() }
    }

    /// Gives the pages of this process back, which needs nothing of the file.
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
