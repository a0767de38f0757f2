//! Pool objects on the move: the coldest to a file, and others out of sparse blocks.

use super::content::{NO_OBJECT, POOL_OBJECT_MAX};
use super::location::{handle_of, location_moved};
use super::{MOVING, NOT_LOCKED, SwapSpace};
use crate::budget::Budget;
use crate::counters::stats::{self, Shared};
use crate::device::file::{BATCH, OBJECTS, Packing, SLOT_BYTES, packing};
use crate::device::flights::Flights;
use crate::device::list::Writer;
use crate::protocols::gate::Held;
use core::cell::Cell;
use core::ops::Range;
use core::sync::atomic::Ordering;
use ebb_pool::{Handle, Owners};
use ebb_slots::{Locked, Slot, Stored, TableEntry};

/// Which objects are written back to a file.
#[derive(Clone, Copy)]
pub enum WriteBack {
    /// The objects evicted longest ago, as far as one round over the slots finds them.
    Oldest,
    /// Objects that save next to no RAM and were evicted at least so many evictions ago (see [`SwapSpace::misplaced_age`]), as far
    /// as a short search finds them.
    Misplaced(u32),
    /// Objects that were evicted before the eviction clock said `before`, as far as a search of `looks` slots finds them.
    Aged { before: u32, looks: u32 },
}

/// Most slots that one search for objects to write back visits. A search for misplaced objects visits fewer, because it
/// must lock each slot to look at its object.
const WRITE_BACK_LOOKS: u32 = 65_536;
const MISPLACED_LOOKS: u32 = 4096;

/// Slots of a file that a batch of objects takes.
const SLOTS: usize = BATCH / 2;

/// Objects on their way to a file, whose slots are locked.
struct Batch {
    packing: Packing,
    slots: [Slot; OBJECTS],
    was: [Locked; OBJECTS],
    locations: [u64; OBJECTS],
    lens: [u16; OBJECTS],
    n: usize,
    /// There was an object more for which there was no room.
    is_full: bool,
}

impl Default for Batch {
    fn default() -> Self {
        let (slots, was, locations) = ([Slot(0); OBJECTS], [NOT_LOCKED; OBJECTS], [0; OBJECTS]);
        Self { packing: Packing::default(), slots, was, locations, lens: [0; OBJECTS], n: 0, is_full: false }
    }
}

impl SwapSpace {
    /// Writes pool objects back to a file, as many as `data` has room for, in two batches of at most [`OBJECTS`]; returns
    /// how many. The device takes the first batch while the second is gathered.
    pub fn write_back(
        &self,
        writer: Writer<'_>,
        which: WriteBack,
        budget: &Budget,
        stats: &Shared,
        data: &mut [u8],
        flights: &mut Flights<'_>,
    ) -> usize {
        if !self.has_file() || self.content_pages.load(Ordering::Relaxed) == 0 {
            return 0;
        }
        // A run of half the buffer is found more easily than a longer one, and objects of a third of a page fill it.
        let half = (SLOTS * SLOT_BYTES).min(data.len());
        let (data, other) = data.split_at_mut(half);
        let Some(batch) = self.gather_batch(writer.held, which, data) else { return 0 };
        let Ok(flight) = self.begin_packed(writer, &batch.packing, data, flights, 0) else {
            return self.end_write_back(writer.held, budget, stats, &batch, false);
        };
        let Some(flight) = flight else {
            let written = self.write_packed(writer, budget, &batch.packing, data).is_ok();
            return self.end_write_back(writer.held, budget, stats, &batch, written);
        };
        let next = if other.is_empty() { None } else { self.gather_batch(writer.held, which, other) };
        let mut next_flight = None;
        if let Some(next) = &next {
            next_flight = Some(self.begin_packed(writer, &next.packing, other, flights, 1));
        }
        let written = self.finish_packed(writer, budget, &batch.packing, data, flights, flight).is_ok();
        let mut n = self.end_write_back(writer.held, budget, stats, &batch, written);
        if let Some((next, flight)) = next.zip(next_flight) {
            let result = match flight {
                Ok(Some(flight)) => self.finish_packed(writer, budget, &next.packing, other, flights, flight),
                Ok(None) => self.write_packed(writer, budget, &next.packing, other),
                Err(error) => Err(error),
            };
            n += self.end_write_back(writer.held, budget, stats, &next, result.is_ok());
        }
        n
    }

    /// Gathers a batch of objects in `data`; none if there are no such objects.
    fn gather_batch(&self, held: &Held, which: WriteBack, data: &mut [u8]) -> Option<Batch> {
        let batch = match which {
            WriteBack::Oldest => self.gather_oldest(held, data),
            WriteBack::Aged { before, looks } => {
                let is_before = |shadow: u32| (before.wrapping_sub(shadow) as i32) > 0;
                self.gather(held, data, looks, |slot| self.shadow(slot).is_some_and(is_before), |_| true)
            }
            // What saves next to no RAM takes a slot alone.
            WriteBack::Misplaced(age_min) => {
                let is_old = |slot| age_min == 0 || self.is_old(slot, age_min);
                self.gather(held, data, MISPLACED_LOOKS, is_old, |object| object.len() > POOL_OBJECT_MAX)
            }
        };
        if !batch.is_full
            && let WriteBack::Misplaced(1..) = which
        {
            // A search that finds fewer than it takes is not worth another one soon.
            self.looked_for_cold.store(self.clock.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        (batch.n > 0).then_some(batch)
    }

    /// Lets the objects of a batch go, if they were written, and their slots in any case. Returns how many were written.
    fn end_write_back(&self, held: &Held, budget: &Budget, stats: &Shared, batch: &Batch, written: bool) -> usize {
        let n = batch.n;
        if written {
            let mut handles = [NO_OBJECT; OBJECTS];
            for (to, loc) in handles.iter_mut().zip(&batch.locations[..n]) {
                let Some(handle) = handle_of(*loc) else { continue };
                self.forget_settled(*loc, handle);
                *to = handle;
            }
            self.free_objects(budget, stats, &handles[..n]);
        } else {
            self.memory.set_refused();
        }
        for i in 0..n {
            self.unclaim(held, batch.slots[i], batch.was[i]);
        }
        if !written {
            return 0;
        }
        stats::add(&stats.writeback_pages, n as u64);
        n
    }

    /// True if the slot's page went out at least `age_min` evictions ago, and is still out.
    pub(super) fn is_old(&self, slot: Slot, age_min: u32) -> bool {
        let now = self.clock.load(Ordering::Relaxed);
        self.shadow(slot).is_some_and(|shadow| now.wrapping_sub(shadow) >= age_min)
    }

    /// What the eviction clock said when the slot's page went out, if it is still out.
    fn shadow(&self, slot: Slot) -> Option<u32> {
        match self.slots.get(slot) {
            TableEntry::Stored(Stored { shadow, .. }) => Some(shadow.0),
            // A slot whose page is in memory, clean, was of use lately.
            _ => None,
        }
    }

    /// Slots that a round over all of them visits, and how many were visited so far; the count wraps.
    pub fn writeback_round(&self) -> (u32, u32) {
        (self.high_water.load(Ordering::Relaxed), self.writeback_at.load(Ordering::Relaxed))
    }

    fn gather_oldest(&self, held: &Held, data: &mut [u8]) -> Batch {
        // Old means evicted half a filling of the pool ago: at least half as many evictions as the pool has objects.
        let age_min = (self.content_pages.load(Ordering::Relaxed) / 2) as u32;
        let is_unlocked =
            |slot| matches!(self.slots.get(slot), TableEntry::Stored(_) | TableEntry::Cached { locked: false, .. });
        // At most two rounds over the slots.
        let old = self.gather(held, data, WRITE_BACK_LOOKS, |slot| self.is_old(slot, age_min), |_| true);
        if old.n > 0 { old } else { self.gather(held, data, WRITE_BACK_LOOKS, is_unlocked, |_| true) }
    }

    /// Locks slots that `is_wanted` chooses and whose pool objects `takes` accepts, and copies the objects to `data`.
    /// Stops once there are enough of them to fill `data`, or after `looks` slots from where the last search ended.
    fn gather(
        &self,
        held: &Held,
        data: &mut [u8],
        looks: u32,
        is_wanted: impl Fn(Slot) -> bool,
        takes: impl Fn(&[u8]) -> bool,
    ) -> Batch {
        let (mut batch, mut bytes, mut found_at) = (Batch::default(), 0, [0; OBJECTS + 1]);
        let top = self.high_water.load(Ordering::Relaxed);
        for _ in 0..top.min(looks) {
            let at = self.writeback_at.fetch_add(1, Ordering::Relaxed);
            let slot = Slot(at % top.max(1));
            if handle_of(self.location(slot).load(Ordering::Relaxed)).is_none() || !is_wanted(slot) {
                continue;
            }
            let Ok(locked) = self.slots.lock(slot, MOVING) else { continue };
            let loc = self.location(slot).load(Ordering::Acquire);
            // What was read ahead and not used yet is passed over once.
            if self.note_if_ahead(slot, loc, false) {
                self.unclaim(held, slot, locked);
                continue;
            }
            // SAFETY: the slot is locked, which keeps the object in its place.
            let object = handle_of(loc).map(|handle| unsafe { self.pool.load(handle) });
            let Some(object) = object.filter(|object| takes(object)) else {
                self.unclaim(held, slot, locked);
                continue;
            };
            let n = batch.n;
            found_at[n] = at;
            bytes += packing::bytes_with_entry(object.len());
            if n == OBJECTS || bytes > data.len() {
                batch.is_full = true;
                self.unclaim(held, slot, locked);
                break;
            }
            (batch.slots[n], batch.was[n], batch.locations[n]) = (slot, locked, loc);
            batch.lens[n] = object.len() as u16;
            batch.n += 1;
        }
        let slots_max = data.len() / SLOT_BYTES;
        let put = |i: usize, range: Range<usize>| {
            if let Some(handle) = handle_of(batch.locations[i]) {
                // SAFETY: the slot is locked, which keeps the object in its place.
                data[range].copy_from_slice(unsafe { self.pool.load(handle) });
            }
        };
        batch.packing = Packing::fill(&batch.slots[..batch.n], &batch.lens[..batch.n], slots_max, put);
        // The others are the first of the next batch: so neighbours stay together.
        let found = core::mem::replace(&mut batch.n, batch.packing.nr_objects());
        (batch.n..found).for_each(|i| self.unclaim(held, batch.slots[i], batch.was[i]));
        batch.is_full |= batch.n < found;
        if batch.is_full {
            let passed = self.writeback_at.load(Ordering::Relaxed).wrapping_sub(found_at[batch.n]);
            self.writeback_at.fetch_sub(passed, Ordering::Relaxed);
        }
        batch
    }

    /// Moves up to `objects_max` pool objects out of sparse blocks; returns how many.
    pub fn compact(&self, held: &Held, budget: &Budget, stats: &Shared, objects_max: usize) -> usize {
        let owners = SlotOwners { space: self, held, was: Cell::new(NOT_LOCKED) };
        let charging = self.memory.charging(budget, stats);
        let moved = self.pool.compact(&charging, &owners, objects_max);
        stats::add(&stats.compacted_objects, moved as u64);
        moved
    }
}

/// The slots as owners of pool objects: compaction locks a slot as a swap-in would.
struct SlotOwners<'a> {
    space: &'a SwapSpace,
    held: &'a Held,
    was: Cell<Locked>,
}

impl Owners for SlotOwners<'_> {
    fn try_claim(&self, owner: u32, handle: Handle) -> bool {
        let Ok(was) = self.space.slots.lock(Slot(owner), MOVING) else { return false };
        let here = handle_of(self.space.location(Slot(owner)).load(Ordering::Acquire)) == Some(handle);
        if !here {
            self.space.unclaim(self.held, Slot(owner), was);
        }
        self.was.set(was);
        here
    }

    fn moved(&self, owner: u32, _old: Handle, new: Handle) {
        // Only the thread that has the slot locked changes the word.
        let location = self.space.location(Slot(owner));
        location.store(location_moved(location.load(Ordering::Relaxed), new), Ordering::Release);
    }

    fn unclaim(&self, owner: u32) {
        self.space.unclaim(self.held, Slot(owner), self.was.get());
    }
}
