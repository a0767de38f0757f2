//! The swap cache: who may bring a slot's content in, move it or give it up, and what a slot is to the page that has it.

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

/// Most references to a slot. Further ones would need the overflow table, which may be full when a clean page, which has no
/// reference, is evicted and must have one.
const SHARED_MAX: u32 = 28;

impl SwapSpace {
    /// The claimed slot's content is stored and one page refers to it: lets it out of the cache.
    pub fn commit(&self, slot: Slot) {
        let now = self.clock.fetch_add(1, Ordering::Relaxed);
        // The count goes up before the claim ends, so that the slot is never free in between.
        let _ = self.slots.dup(slot);
        self.slots.cache_del(slot, Shadow(now));
    }

    /// Gives back a claimed slot whose content is stored, and which no page refers to after all.
    pub fn discard(&self, held: &Held, budget: &Budget, stats: &Shared, slot: Slot) {
        self.free_content(held, budget, stats, slot);
        self.slots.free_run(slot, Order::ZERO);
    }

    /// The claimed slot's content is stored and the page `folio` is mapped clean, with the same content: lets the slot stay
    /// in the cache, without a reference.
    pub fn adopt(&self, held: &Held, slot: Slot, folio: Folio) {
        self.slots.cache_replace(slot, folio);
        self.mark_in_file(held, slot, true);
        self.slots.unlock(slot);
    }

    /// One page more refers to the slot that a page has. False when as many do as may.
    pub fn duplicate(&self, _exclusive: &Exclusive<'_>, slot: Slot) -> bool {
        let count = match self.slots.get(slot) {
            TableEntry::Stored(stored) => stored.count,
            TableEntry::Cached { count, .. } => count,
            _ => return false,
        };
        count < SHARED_MAX && self.slots.dup(slot).is_ok()
    }

    /// Locks `slot` for the page `folio`: for a swap-in, or to give it up. Waits while its content is being moved.
    pub fn claim(&self, slot: Slot, folio: Folio) -> Result<Locked, LoadError> {
        loop {
            match self.slots.lock(slot, folio) {
                Ok(was) => return Ok(was),
                // Writeback or compaction: microseconds, and it never waits for a page.
                Err(LockError::Locked) => uapi::sched_yield(),
                Err(_) => return Err(LoadError::Lost),
            }
        }
    }

    /// The same without waiting.
    pub fn try_claim(&self, slot: Slot, folio: Folio) -> Option<Locked> {
        self.slots.lock(slot, folio).ok()
    }

    /// Ends a claim; everything is as it `was`, but perhaps in another place.
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

    /// The page that claimed `slot` is mapped clean: its reference becomes residence, unless another page is resident
    /// already; then it stays a reference. Ends the claim.
    pub fn keep(&self, held: &Held, slot: Slot, was: Locked) {
        match was {
            Locked::Stored(_) => {
                self.mark_in_file(held, slot, true);
                self.slots.settle(slot);
            }
            Locked::Resident(_) => self.slots.unlock(slot),
        }
    }

    /// The page `folio` needs the claimed `slot` no more: its reference goes, or its residence. With the last one the content
    /// goes too. Ends the claim.
    pub fn release(&self, held: &Held, budget: &Budget, stats: &Shared, slot: Slot, folio: Folio, was: Locked) {
        // Counts of claimed slots change by who has the claim, or under the exclusive gate.
        let is_last = match was {
            Locked::Resident(resident) if resident.folio == folio => resident.count == 0,
            Locked::Resident(_) => {
                self.slots.put(slot);
                return self.slots.unlock(slot);
            }
            Locked::Stored(stored) => {
                self.slots.put(slot);
                stored.count == 1
            }
        };
        if is_last {
            self.free_content(held, budget, stats, slot);
            return self.slots.free_run(slot, Order::ZERO);
        }
        let shadow = match was {
            Locked::Stored(stored) => stored.shadow,
            Locked::Resident(_) => {
                self.mark_in_file(held, slot, false);
                Shadow(self.clock.load(Ordering::Relaxed))
            }
        };
        self.slots.cache_del(slot, shadow);
    }

    /// The clean page `folio`, which the caller has `BUSY`, was evicted: `slot` alone has its content now.
    pub fn evict(&self, held: &Held, slot: Slot, folio: Folio) {
        let is_resident = |entry| matches!(entry, TableEntry::Cached { folio: of, .. } if of == folio);
        // One that shares the slot with a resident page has a reference already.
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
                // Snapshots keep counts far below the limit.
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

    /// Tells the file that has the claimed slot's content whether memory has it too. A hint: what it means is decided by the
    /// slot itself (see [`Space::reclaim_cache_only`](crate::Space)).
    fn mark_in_file(&self, held: &Held, slot: Slot, is_resident: bool) {
        let loc = self.location(slot).load(Ordering::Acquire);
        if let Some((file, at)) = file_of(loc)
            && let Some(file) = self.devices.file(held, file)
        {
            file.mark(at, slot, is_resident);
        }
    }
}
