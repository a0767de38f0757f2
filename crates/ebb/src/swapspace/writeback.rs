//! Pool objects on the move: back to a file, the coldest first, and out of sparse blocks.

use super::content::POOL_OBJECT_MAX;
use super::location::{self, location_of};
use super::{MOVING, NOT_LOCKED, SwapSpace};
use crate::device::file::{BATCH, Reclaim, SLOT_BYTES};
use crate::group::Group;
use crate::stats::{self, Shared};
use core::cell::Cell;
use core::sync::atomic::Ordering;
use ebb_pool::{Handle, Owners};
use ebb_slots::{Locked, Slot, Stored, TableEntry};

impl SwapSpace {
    /// Writes up to [`BATCH`] pool objects back to the file, those evicted longest ago that a round over the slots
    /// finds, or those that the pool should not have; how many. `data` needs room for a batch.
    pub fn write_back(
        &self,
        shard: usize,
        group: &Group,
        stats: &Shared,
        data: &mut [u8],
        reclaim: Reclaim<'_>,
    ) -> usize {
        if !self.has_file() || self.content_pages.load(Ordering::Relaxed) == 0 {
            return 0;
        }
        let only_large = !self.pool_is_full(group) && self.has_misplaced(group);
        let top = self.high_water.load(Ordering::Relaxed);
        let now = self.clock.load(Ordering::Relaxed);
        // Older than half of what was evicted since the pool was filled once.
        let age_min = (self.content_pages.load(Ordering::Relaxed) / 2) as u32;
        let mut slots = [Slot(0); BATCH];
        let mut was = [NOT_LOCKED; BATCH];
        let mut lens = [0u16; BATCH];
        let mut handles = [None; BATCH];
        let mut n = 0;
        // Bounded: one look at up to 64 Ki slots a call, twice around at most.
        for round in 0..2 {
            for _ in 0..top.min(65_536) {
                let at = self.writeback_at.fetch_add(1, Ordering::Relaxed) % top.max(1);
                let slot = Slot(at);
                let old = match self.slots.get(slot) {
                    TableEntry::Stored(Stored { shadow, .. }) => now.wrapping_sub(shadow.0) >= age_min,
                    // What is in memory, clean, was of use lately.
                    TableEntry::Cached { locked: false, .. } => false,
                    _ => continue,
                };
                if (round == 0 && !old)
                    || self.location(slot).load(Ordering::Relaxed) & location::KIND != location::POOL
                {
                    continue;
                }
                let Ok(locked) = self.slots.lock(slot, MOVING) else { continue };
                let loc = self.location(slot).load(Ordering::Acquire);
                let handle = Handle::from_bits(loc >> 8).filter(|_| loc & location::KIND == location::POOL);
                // SAFETY: the claim keeps the object in its place.
                let object = handle.map(|handle| unsafe { self.pool.load(handle) });
                let Some(object) = object.filter(|object| !only_large || object.len() > POOL_OBJECT_MAX) else {
                    self.unclaim(slot, locked);
                    continue;
                };
                data[n * SLOT_BYTES..n * SLOT_BYTES + object.len()].copy_from_slice(object);
                (slots[n], was[n], lens[n], handles[n]) = (slot, locked, object.len() as u16, handle);
                n += 1;
                if n == BATCH {
                    break;
                }
            }
            if n > 0 {
                break;
            }
        }
        if n == 0 {
            return 0;
        }
        let written = self.store_file(group, shard, &slots[..n], &lens[..n], data, reclaim).is_ok();
        for i in 0..n {
            if let (true, Some(handle)) = (written, handles[i]) {
                self.free_object(group, stats, handle);
            }
            self.unclaim(slots[i], was[i]);
        }
        if !written {
            return 0;
        }
        stats::add(&stats.writeback_pages, n as u64);
        n
    }

    /// Moves up to `objects_max` pool objects out of sparse blocks; how many.
    pub fn compact(&self, group: &Group, stats: &Shared, objects_max: usize) -> usize {
        let owners = SlotOwners { space: self, was: Cell::new(NOT_LOCKED) };
        let charging = self.memory.charging(group, stats);
        let moved = self.pool.compact(&charging, &owners, objects_max);
        stats::add(&stats.compacted_objects, moved as u64);
        moved
    }
}

/// Pool objects belong to slots: compaction claims a slot like a swap-in would.
struct SlotOwners<'a> {
    space: &'a SwapSpace,
    was: Cell<Locked>,
}

impl Owners for SlotOwners<'_> {
    fn try_claim(&self, owner: u32, handle: Handle) -> bool {
        let Ok(was) = self.space.slots.lock(Slot(owner), MOVING) else { return false };
        let here = self.space.location(Slot(owner)).load(Ordering::Acquire) == location_of(handle);
        if !here {
            self.space.unclaim(Slot(owner), was);
        }
        self.was.set(was);
        here
    }

    fn moved(&self, owner: u32, _old: Handle, new: Handle) {
        self.space.location(Slot(owner)).store(location_of(new), Ordering::Release);
    }

    fn unclaim(&self, owner: u32) {
        self.space.unclaim(Slot(owner), self.was.get());
    }
}
