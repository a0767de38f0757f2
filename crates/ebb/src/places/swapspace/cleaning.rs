//! Cleaning a file: what is left in a cluster of which few slots are in use moves elsewhere, as runs, so that the cluster is
//! free for runs again.
//!
//! As in an evacuation, each slot of the swap space is locked while its content moves, as a swap-in would lock it. A file knows the slot
//! whose content it has from its own table, and that is a hint: the location word decides.

use super::location::location_in_file;
use super::{MOVING, NOT_LOCKED, SwapSpace};
use crate::budget::Budget;
use crate::counters::stats;
use crate::device::file::{BATCH, FileError, Packing, Place, SLOT_BYTES, SpillFile, Taker, packing};
use crate::device::list::Writer;
use crate::protocols::gate::Held;
use core::ops::Range;
use core::sync::atomic::Ordering;
use ebb_slots::{Locked, Shard, Slot};

/// Most reads of one step: with the locks on slots that it holds meanwhile, it must not take long.
const READS_MAX: usize = 8;

/// Most slots with several objects that one read brings.
const PACKED_MAX: usize = 16;

/// Content on its way out of a cluster: the slots of the swap space, which are locked, and where each was in the file.
struct Gathered {
    slots: [Slot; BATCH],
    were: [Locked; BATCH],
    at: [Place; BATCH],
    lens: [u16; BATCH],
    n: usize,
}

impl SwapSpace {
    /// Moves a batch out of the emptiest cluster of a file in which runs found no room. False if there is nothing to move. `data`
    /// is page-aligned, and has room for a batch.
    pub fn clean_step(&self, writer: Writer<'_>, budget: &Budget, data: &mut [u8]) -> bool {
        let mut files = self.devices.own(writer.held).filter(|(_, file)| file.wants_cleaning(writer.stats));
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
        let (slot, at) = ([Slot(0); BATCH], [Place::default(); BATCH]);
        let mut all = Gathered { slots: slot, were: [NOT_LOCKED; BATCH], at, lens: [0; BATCH], n: 0 };
        let (mut next, mut reads, mut is_full) = (slots.start, 0, false);
        while next < slots.end && all.n < most && reads < READS_MAX && !is_full {
            let span = next..slots.end.min(next + (most - all.n) as u32);
            next = span.end;
            let first = all.n;
            self.lock_owners(writer.held, (index, file), span.clone(), &mut all);
            if all.n > first {
                reads += 1;
                if !self.read_gathered(writer, file, &mut all, first, data) {
                    break;
                }
            }
            // What is packed has no owner in the file's table: the directories must be read.
            let data = &mut data[..most * SLOT_BYTES];
            let mut packed = span.filter(|at| file.is_packed(*at)).peekable();
            while let Some(first) = packed.next_if(|_| !is_full && reads < READS_MAX) {
                let mut end = first + 1;
                let group = ((most - all.n) / 2).clamp(1, PACKED_MAX) as u32;
                while end < first + group && packed.next_if_eq(&end).is_some() {
                    end += 1;
                }
                reads += 1;
                is_full = !self.gather_packed(writer.held, (index, file), first..end, &mut all, data);
            }
        }
        let n = all.n;
        let slots = &all.slots[..n];
        let taker = Taker { shard: Shard(writer.shard), reclaim: writer.reclaim, stats: writer.stats };
        let packing = Packing::pack(slots, &all.lens[..n], data);
        let placed = |slot, place| self.set_in_file(index, slot, place);
        let written = (n > 0).then(|| file.write(taker, &packing, data, placed));
        if let Some(Err(error)) = written
            && error != FileError::Held
        {
            self.devices.note_failure(file);
        }
        let is_written = matches!(written, Some(Ok(())));
        if is_written {
            self.charge_file(writer.held, budget, index);
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
            let place = Place::alone(at);
            let Some(was) = self.lock_owner(held, index, place, slot) else { continue };
            (all.slots[all.n], all.were[all.n], all.at[all.n]) = (slot, was, place);
            all.n += 1;
        }
    }

    /// Locks a slot of the swap space, if its content is at that place of the file and nobody else has it locked.
    pub(super) fn lock_owner(&self, held: &Held, index: usize, place: Place, slot: Slot) -> Option<Locked> {
        if slot.0 >= self.nr_slots {
            return None;
        }
        let is_there = || self.location(slot).load(Ordering::Acquire) == location_in_file(index, place);
        let was = is_there().then(|| self.slots.lock(slot, MOVING).ok()).flatten()?;
        // Only the thread that has the slot locked changes its location. It may be in another file by now, at the same place.
        if !is_there() {
            self.unclaim(held, slot, was);
            return None;
        }
        Some(was)
    }

    /// Reads neighbouring slots with several objects, with one read, and gathers those objects whose owners it can lock. What cannot be read
    /// is passed over. False once there is no room for more.
    fn gather_packed(
        &self,
        held: &Held,
        (index, file): (usize, &SpillFile),
        span: Range<u32>,
        all: &mut Gathered,
        data: &mut [u8],
    ) -> bool {
        // The slots are read to the end of the buffer, and the objects go to its beginning.
        let first = data.len() / SLOT_BYTES - span.len();
        if all.n > first {
            return false;
        }
        if file.read_run(span.start, &mut data[first * SLOT_BYTES..]).is_err() {
            return true;
        }
        for (i, at) in (first..).zip(span) {
            let pages = data.as_chunks_mut::<SLOT_BYTES>().0;
            if file.open(at, &mut pages[i]).is_err() {
                continue;
            }
            let content = pages[i];
            for number in 0..=u8::MAX {
                let Some((slot, range)) = packing::object(&content, number) else { break };
                let place = Place::packed(at, number);
                // The slots that are still to come stay as they are.
                if all.n > i {
                    return false;
                }
                let Some(was) = self.lock_owner(held, index, place, slot) else { continue };
                let n = all.n;
                pages[n][..range.len()].copy_from_slice(&content[range.clone()]);
                (all.slots[n], all.were[n], all.at[n], all.lens[n]) = (slot, was, place, range.len() as u16);
                all.n += 1;
            }
        }
        true
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
        let start = all.at[first].slot;
        let span = (all.at[found.end - 1].slot + 1 - start) as usize;
        let is_read = file.read_run(start, &mut data[first * SLOT_BYTES..(first + span) * SLOT_BYTES]).is_ok();
        for i in found {
            let (slot, was, place) = (all.slots[i], all.were[i], all.at[i]);
            let at = place.slot;
            let from = (first + (at - start) as usize) * SLOT_BYTES;
            let to = all.n * SLOT_BYTES;
            data.copy_within(from..from + SLOT_BYTES, to);
            let page = (&mut data[to..to + SLOT_BYTES]).try_into().ok();
            let len = page.filter(|_| is_read).and_then(|page| file.open(at, page).ok());
            let Some(len) = len else {
                self.unclaim(writer.held, slot, was);
                continue;
            };
            (all.slots[all.n], all.were[all.n], all.at[all.n], all.lens[all.n]) = (slot, was, place, len as u16);
            all.n += 1;
        }
        is_read
    }
}
