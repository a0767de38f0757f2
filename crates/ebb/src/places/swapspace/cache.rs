//! The swap cache: who may bring in, move or give up the content of a slot, and what the slot is to the page that has
//! it.

use super::SwapSpace;
use super::content::LoadError;
use super::location::{self, file_of};
use crate::base::uapi;
use crate::budget::Budget;
use crate::counters::stats::Shared;
use crate::protocols::gate::Exclusive;
use crate::protocols::gate::Held;
use core::sync::atomic::Ordering;
use ebb_slots::{EvictError, Folio, LockError, Locked, Order, Shadow, Slot, TableEntry};

/// Most references to a slot. More would need the overflow table. That table may be full just when a clean page, which
/// has no reference, is evicted and must get one.
const SHARED_MAX: u32 = 28;

impl SwapSpace {
    /// Lets the locked slot out of the cache. Its content is stored, and one page refers to it.
    pub fn commit(&self, slot: Slot) {
        let now = self.clock.fetch_add(1, Ordering::Relaxed);
        // The count goes up before the lock ends, so that the slot is never free in between.
        let _ = self.slots.dup(slot);
        self.slots.cache_del(slot, Shadow(now));
    }

    /// Frees a locked slot whose content is stored, and which no page needs any more but the caller's.
    pub fn discard(&self, held: &Held, budget: &Budget, stats: &Shared, slot: Slot) {
        self.free_content(held, budget, stats, slot);
        self.slots.free_run(slot, Order::ZERO);
    }

    /// Leaves the locked slot in the cache without a reference: its content is stored, and the page `folio` is mapped
    /// clean with equal content.
    pub fn adopt(&self, held: &Held, slot: Slot, folio: Folio) {
        self.slots.cache_replace(slot, folio);
        self.mark_in_file(held, slot, true);
        self.slots.unlock(slot);
    }

    /// Adds a reference to a slot that a page has. False when the slot has as many as it may have.
    pub fn duplicate(&self, _exclusive: &Exclusive<'_>, slot: Slot) -> bool {
        let count = match self.slots.get(slot) {
            TableEntry::Stored(stored) => stored.count,
            TableEntry::Cached { count, .. } => count,
            _ => return false,
        };
        count < SHARED_MAX && self.slots.dup(slot).is_ok()
    }

    /// Locks `slot` for the page `folio`, for a swap-in or to give the slot up. Waits while its content is being moved.
    pub fn claim(&self, slot: Slot, folio: Folio) -> Result<Locked, LoadError> {
        loop {
            match self.slots.lock(slot, folio) {
                Ok(was) => return Ok(was),
                // Writeback or compaction has it: they take microseconds, and never wait for a page.
                Err(LockError::Locked) => uapi::sched_yield(),
                Err(_) => return Err(LoadError::Lost),
            }
        }
    }

    /// Locks `slot` for the page `folio` if nobody else has it locked; never waits.
    pub fn try_claim(&self, slot: Slot, folio: Folio) -> Option<Locked> {
        self.slots.lock(slot, folio).ok()
    }

    /// Unlocks `slot` as it `was` before, except that its content may be in another place.
    pub fn unclaim(&self, held: &Held, slot: Slot, was: Locked) {
        match was {
            Locked::Stored(stored) => {
                self.slots.cache_del(slot, stored.shadow);
            }
            Locked::Resident(_) => {
                self.mark_in_file(held, slot, true);
                self.slots.unlock(slot);
            }
        }
    }

    /// Unlocks `slot` after the page that locked it was mapped clean. The page's reference becomes residence; if
    /// another page is resident already, it stays a reference.
    pub fn keep(&self, held: &Held, slot: Slot, was: Locked) {
        match was {
            Locked::Stored(_) => {
                self.mark_in_file(held, slot, true);
                self.slots.settle(slot);
            }
            Locked::Resident(_) => self.slots.unlock(slot),
        }
    }

    /// Gives up what the page `folio` has of the locked `slot`, its reference or its residence, and unlocks the slot.
    /// If nothing else needs the slot, its content is freed too. [`Self::frees`] does the same for many slots.
    pub fn release(&self, held: &Held, budget: &Budget, stats: &Shared, slot: Slot, folio: Folio, was: Locked) {
        match was.is_last(folio) {
            true => self.discard(held, budget, stats, slot),
            false => self.release_shared(held, slot, folio, was),
        }
    }

    /// The same for a slot that something else needs.
    pub(super) fn release_shared(&self, held: &Held, slot: Slot, folio: Folio, was: Locked) {
        let shadow = match was {
            Locked::Resident(resident) if resident.folio == folio => {
                self.mark_in_file(held, slot, false);
                Shadow(self.clock.load(Ordering::Relaxed))
            }
            Locked::Resident(_) => {
                self.slots.put(slot);
                return self.slots.unlock(slot);
            }
            Locked::Stored(stored) => {
                self.slots.put(slot);
                stored.shadow
            }
        };
        self.slots.cache_del(slot, shadow);
    }

    /// Evicts the clean page `folio`, which the caller has `BUSY`: from here on only `slot` has its content.
    pub fn evict(&self, held: &Held, slot: Slot, folio: Folio) {
        let is_resident = |entry| matches!(entry, TableEntry::Cached { folio: of, .. } if of == folio);
        // A page that shares the slot with the resident page has a reference already.
        if !is_resident(self.slots.get(slot)) {
            return;
        }
        let shadow = Shadow(self.clock.fetch_add(1, Ordering::Relaxed));
        loop {
            let result = if self.location(slot).load(Ordering::Acquire) & location::KIND == location::FILE {
                self.evict_in_file(held, slot, folio, shadow)
            } else {
                self.slots.evict(slot, shadow)
            };
            match result {
                Err(EvictError::Locked) => uapi::sched_yield(),
                // The count cannot overflow: `duplicate` stops at `SHARED_MAX`.
                other => return debug_assert!(other.is_ok(), "a clean page's slot: {other:?}"),
            }
        }
    }

    fn evict_in_file(&self, held: &Held, slot: Slot, folio: Folio, shadow: Shadow) -> Result<(), EvictError> {
        match self.slots.lock(slot, folio) {
            Ok(_) => {
                self.mark_in_file(held, slot, false);
                let counted = self.slots.dup(slot);
                self.slots.cache_del(slot, shadow);
                counted.map_err(|_| EvictError::CountOverflow)
            }
            Err(LockError::Locked) => Err(EvictError::Locked),
            Err(_) => Err(EvictError::NotCached),
        }
    }

    /// Tells the file that has the content of the locked slot whether memory has it too. This is a hint for the file:
    /// the slot itself decides (see `pages::clean::reclaim_cache_only`).
    fn mark_in_file(&self, held: &Held, slot: Slot, is_resident: bool) {
        let loc = self.location(slot).load(Ordering::Acquire);
        if let Some((file, at)) = file_of(loc)
            && let Some(file) = self.devices.file(held, file)
        {
            file.mark(at, slot, is_resident);
        }
    }
}
