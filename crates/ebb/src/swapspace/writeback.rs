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

/// Slots that one look for objects to write back goes through at most; fewer where only some objects will do, which costs a claim
/// each.
const WRITE_BACK_LOOKS: u32 = 65_536;
const MISPLACED_LOOKS: u32 = 4096;

/// Objects on their way to a file, whose slots are claimed.
struct Batch {
    slots: [Slot; BATCH],
    was: [Locked; BATCH],
    lens: [u16; BATCH],
    handles: [Option<Handle>; BATCH],
    n: usize,
}

impl Default for Batch {
    fn default() -> Self {
        Self { slots: [Slot(0); BATCH], was: [NOT_LOCKED; BATCH], lens: [0; BATCH], handles: [None; BATCH], n: 0 }
    }
}

impl SwapSpace {
    /// Writes up to [`BATCH`] pool objects back to the file, those evicted longest ago that a round over the slots
    /// finds; how many. `data` needs room for a batch.
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
        let now = self.clock.load(Ordering::Relaxed);
        // Older than half of what was evicted since the pool was filled once.
        let age_min = (self.content_pages.load(Ordering::Relaxed) / 2) as u32;
        let mut batch = Batch::default();
        // Bounded: one look at up to 64 Ki slots a call, twice around at most.
        for round in 0..2 {
            let is_wanted = |slot| match self.slots.get(slot) {
                TableEntry::Stored(Stored { shadow, .. }) => round > 0 || now.wrapping_sub(shadow.0) >= age_min,
                // What is in memory, clean, was of use lately.
                TableEntry::Cached { locked: false, .. } => round > 0,
                _ => false,
            };
            self.gather(&mut batch, data, WRITE_BACK_LOOKS, is_wanted, |_| true);
            if batch.n > 0 {
                break;
            }
        }
        self.move_to_file(&batch, shard, group, stats, data, reclaim)
    }

    /// The same of objects that a file would rather have, see [`Self::has_misplaced`], as far as a short look finds any.
    pub fn write_back_misplaced(
        &self,
        shard: usize,
        group: &Group,
        stats: &Shared,
        data: &mut [u8],
        reclaim: Reclaim<'_>,
    ) -> usize {
        let mut batch = Batch::default();
        let is_large = |object: &[u8]| object.len() > POOL_OBJECT_MAX;
        self.gather(&mut batch, data, MISPLACED_LOOKS, |_| true, is_large);
        self.move_to_file(&batch, shard, group, stats, data, reclaim)
    }

    /// Claims objects of the pool, of slots and of a kind that are wanted, and copies them to `data`: a batch at most, of so many
    /// slots from where the last look ended.
    fn gather(
        &self,
        batch: &mut Batch,
        data: &mut [u8],
        looks: u32,
        is_wanted: impl Fn(Slot) -> bool,
        takes: impl Fn(&[u8]) -> bool,
    ) {
        let top = self.high_water.load(Ordering::Relaxed);
        for _ in 0..top.min(looks) {
            let slot = Slot(self.writeback_at.fetch_add(1, Ordering::Relaxed) % top.max(1));
            let is_in_pool = |loc: u64| loc & location::KIND == location::POOL;
            if !is_in_pool(self.location(slot).load(Ordering::Relaxed)) || !is_wanted(slot) {
                continue;
            }
            let Ok(locked) = self.slots.lock(slot, MOVING) else { continue };
            let loc = self.location(slot).load(Ordering::Acquire);
            let handle = Handle::from_bits(loc >> 8).filter(|_| is_in_pool(loc));
            // SAFETY: the claim keeps the object in its place.
            let object = handle.map(|handle| unsafe { self.pool.load(handle) });
            let Some(object) = object.filter(|object| takes(object)) else {
                self.unclaim(slot, locked);
                continue;
            };
            let n = batch.n;
            data[n * SLOT_BYTES..n * SLOT_BYTES + object.len()].copy_from_slice(object);
            (batch.slots[n], batch.was[n], batch.handles[n]) = (slot, locked, handle);
            batch.lens[n] = object.len() as u16;
            batch.n += 1;
            if batch.n == BATCH {
                return;
            }
        }
    }

    /// Stores what a batch has in a file, and lets go of it; how many objects.
    fn move_to_file(
        &self,
        batch: &Batch,
        shard: usize,
        group: &Group,
        stats: &Shared,
        data: &mut [u8],
        reclaim: Reclaim<'_>,
    ) -> usize {
        let n = batch.n;
        if n == 0 {
            return 0;
        }
        let written = self.store_file(group, shard, &batch.slots[..n], &batch.lens[..n], data, reclaim).is_ok();
        for i in 0..n {
            if let (true, Some(handle)) = (written, batch.handles[i]) {
                self.free_object(group, stats, handle);
            }
            self.unclaim(batch.slots[i], batch.was[i]);
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
