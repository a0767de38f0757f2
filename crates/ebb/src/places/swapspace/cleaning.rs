//! Cleaning a file: what is left in a cluster of which few slots are in use moves elsewhere, as runs, so that the cluster is
//! free for runs again.
//!
//! As in an evacuation, each slot of the swap space is locked while its content moves, as a swap-in would lock it. A file knows the slot
//! whose content it has from its own table, and that is a hint: the location word decides.

use super::location::{file_of, location_in_file};
use super::{MOVING, NOT_LOCKED, SwapSpace};
use crate::budget::Budget;
use crate::counters::stats;
use crate::device::file::{BATCH, SLOT_BYTES, SpillFile, Taker};
use crate::device::list::Writer;
use crate::protocols::gate::Held;
use core::ops::Range;
use core::sync::atomic::Ordering;
use ebb_slots::{Locked, Shard, Slot};

/// Most reads of one step: with the locks on slots that it holds meanwhile, it must not take long.
const READS_MAX: usize = 8;

/// Content on its way out of a cluster: the slots of the swap space, which are locked, and where each was in the file.
struct Gathered {
    slots: [Slot; BATCH],
    were: [Locked; BATCH],
    at: [u32; BATCH],
    lens: [u16; BATCH],
    n: usize,
}

impl SwapSpace {
    /// Moves a batch out of the emptiest cluster of a file in which runs found no room. False if there is nothing to move. `data`
    /// is page-aligned, and has room for a batch.
    pub fn clean_step(&self, writer: Writer<'_>, budget: &Budget, data: &mut [u8]) -> bool {
        let mut files = self.devices.own(writer.held).filter(|(_, file)| file.wants_cleaning());
        files.any(|(i, file)| file.clean_sparsest(|slots| self.clean_slots(writer, budget, (i, file), slots, data)))
    }

    /// Moves the content of a batch of these slots elsewhere in the file. Returns of how many; none if the write fails.
    fn clean_slots(
        &self,
        writer: Writer<'_>,
        budget: &Budget,
        (index, file): (usize, &SpillFile),
        slots: Range<u32>,
        data: &mut [u8],
    ) -> usize {
        let most = (data.len() / SLOT_BYTES).min(BATCH);
        let (slot, at) = ([Slot(0); BATCH], [0; BATCH]);
        let mut all = Gathered { slots: slot, were: [NOT_LOCKED; BATCH], at, lens: [0; BATCH], n: 0 };
        let (mut next, mut reads) = (slots.start, 0);
        while next < slots.end && all.n < most && reads < READS_MAX {
            let span = next..slots.end.min(next + (most - all.n) as u32);
            next = span.end;
            let first = all.n;
            self.lock_owners(writer.held, (index, file), span, &mut all);
            if all.n == first {
                continue;
            }
            reads += 1;
            if !self.read_gathered(writer, file, &mut all, first, data) {
                break;
            }
        }
        let n = all.n;
        let (slots, mut to) = (&all.slots[..n], [0; BATCH]);
        let taker = Taker { shard: Shard(writer.shard), reclaim: writer.reclaim, stats: writer.stats };
        let is_written =
            n > 0 && file.write(taker, slots, &mut data[..n * SLOT_BYTES], &all.lens[..n], &mut to[..n]).is_ok();
        if is_written {
            self.settle_in_file(writer.held, budget, index, slots, &to[..n]);
            file.free_all(&all.at[..n]);
            stats::add(&writer.stats.cleaned_pages, n as u64);
        }
        for (slot, was) in slots.iter().zip(all.were) {
            self.unclaim(writer.held, *slot, was);
        }
        if is_written { n } else { 0 }
    }

    /// Locks the slots of the swap space whose content is in `span` of the file. What another thread has locked stays where it is:
    /// whoever has a slot locked waits for no other.
    fn lock_owners(&self, held: &Held, (index, file): (usize, &SpillFile), span: Range<u32>, all: &mut Gathered) {
        for at in span {
            let Some(slot) = file.owner_of(at) else { continue };
            let is_there = || self.location(slot).load(Ordering::Acquire) == location_in_file(index, at);
            let Some(was) = is_there().then(|| self.slots.lock(slot, MOVING).ok()).flatten() else { continue };
            // Only the thread that has the slot locked changes its location. It may be in another file by now, at the same place.
            if !is_there() {
                self.unclaim(held, slot, was);
                continue;
            }
            (all.slots[all.n], all.were[all.n], all.at[all.n]) = (slot, was, at);
            all.n += 1;
        }
    }

    /// Reads the content of what was gathered from number `first` on, with one read for all of it and the gaps, which others may write
    /// to meanwhile. Ends the locks on slots whose content cannot be read. False if the read fails.
    fn read_gathered(
        &self,
        writer: Writer<'_>,
        file: &SpillFile,
        all: &mut Gathered,
        first: usize,
        data: &mut [u8],
    ) -> bool {
        let found = first..core::mem::replace(&mut all.n, first);
        let start = all.at[first];
        let span = (all.at[found.end - 1] + 1 - start) as usize;
        let is_read = file.read_run(start, &mut data[first * SLOT_BYTES..(first + span) * SLOT_BYTES]).is_ok();
        for i in found {
            let (slot, was, at) = (all.slots[i], all.were[i], all.at[i]);
            let from = (first + (at - start) as usize) * SLOT_BYTES;
            let to = all.n * SLOT_BYTES;
            data.copy_within(from..from + SLOT_BYTES, to);
            let page = (&mut data[to..to + SLOT_BYTES]).try_into().ok();
            let len = page.filter(|_| is_read).and_then(|page| file.open(at, page).ok());
            let Some(len) = len else {
                self.unclaim(writer.held, slot, was);
                continue;
            };
            (all.slots[all.n], all.were[all.n], all.at[all.n], all.lens[all.n]) = (slot, was, at, len as u16);
            all.n += 1;
        }
        is_read
    }

    /// How many reads bring in the content of neighbouring pages that is in files: one for what lies together there. `slots` are those of
    /// the pages.
    pub fn nr_reads(&self, slots: impl Iterator<Item = Slot>) -> usize {
        let mut next = None;
        let places = slots.filter_map(|slot| file_of(self.location(slot).load(Ordering::Relaxed)));
        places.filter(|(file, at)| next.replace((*file, at + 1)) != Some((*file, *at))).count()
    }
}
