//! Cleaning a file: what is left in a cluster of which few slots are in use moves elsewhere, as runs, so that the cluster is
//! free for runs again.
//!
//! As in an evacuation, each slot of the swap space is locked while its content moves, as a swap-in would lock it. A file knows the slot
//! whose content it has from its own table, and that is a hint: the location word decides.

use super::location::{file_of, location_in_file};
use super::{MOVING, NOT_LOCKED, SwapSpace};
use crate::budget::Budget;
use crate::counters::stats;
use crate::device::file::{BATCH, SLOT_BYTES, SpillFile};
use crate::device::list::Writer;
use core::ops::Range;
use core::sync::atomic::Ordering;
use ebb_slots::{Locked, Slot};

/// A locked slot whose content is about to move.
#[derive(Clone, Copy)]
struct Found {
    slot: Slot,
    was: Locked,
    /// Its slot in the file.
    at: u32,
}

/// Content on its way out of a cluster.
struct Gathered {
    found: [Found; BATCH],
    n: usize,
}

impl Default for Gathered {
    fn default() -> Self {
        Self { found: [Found { slot: Slot(0), was: NOT_LOCKED, at: 0 }; BATCH], n: 0 }
    }
}

impl SwapSpace {
    /// Cleans one cluster of a file in which runs found no room. False if there is none to clean. `data` is page-aligned, and
    /// has room for what is written at a time.
    pub fn clean_one(&self, writer: Writer<'_>, budget: &Budget, data: &mut [u8]) -> bool {
        let mut files = self.devices.own(writer.held).filter(|(_, file)| file.wants_cleaning());
        files.any(|(i, file)| file.clean_sparsest(|slots| self.clean_slots(writer, budget, (i, file), slots, data)))
    }

    fn clean_slots(
        &self,
        writer: Writer<'_>,
        budget: &Budget,
        from: (usize, &SpillFile),
        slots: Range<u32>,
        data: &mut [u8],
    ) -> usize {
        let most = (data.len() / SLOT_BYTES).min(BATCH);
        let (mut gathered, mut moved) = (Gathered::default(), 0);
        for at in slots {
            let Some(slot) = from.1.owner_of(at) else { continue };
            let place = location_in_file(from.0, at);
            let is_there = || self.location(slot).load(Ordering::Acquire) == place;
            // Whoever has a slot locked waits for no other. What another thread has stays.
            let Some(was) = is_there().then(|| self.slots.lock(slot, MOVING).ok()).flatten() else { continue };
            // Only the thread that has the slot locked changes its location.
            if !is_there() {
                self.unclaim(writer.held, slot, was);
                continue;
            }
            gathered.found[gathered.n] = Found { slot, was, at };
            gathered.n += 1;
            if gathered.n == most {
                moved += self.move_on(writer, budget, from.1, &gathered, data);
                gathered.n = 0;
            }
        }
        moved + self.move_on(writer, budget, from.1, &gathered, data)
    }

    /// Writes the content of locked slots elsewhere, and unlocks them. What fails stays where it is. Returns how many moved.
    fn move_on(
        &self,
        writer: Writer<'_>,
        budget: &Budget,
        file: &SpillFile,
        gathered: &Gathered,
        data: &mut [u8],
    ) -> usize {
        let found = &gathered.found[..gathered.n];
        let (mut slots, mut lens, mut to) = ([Slot(0); BATCH], [0; BATCH], [0; BATCH]);
        let mut n = 0;
        // What lies together is read together. Nothing that follows a failure moves.
        while n < found.len() {
            let run = found[n..].iter().zip(found[n].at..).take_while(|(one, at)| one.at == *at).count();
            let part = &mut data[n * SLOT_BYTES..(n + run) * SLOT_BYTES];
            if file.read_run(found[n].at, part).is_err() {
                break;
            }
            let opened = part.as_chunks_mut().0.iter_mut().zip(&found[n..]).map_while(|(page, one)| {
                let len = file.open(one.at, page).ok()?;
                Some((one.slot, len as u16))
            });
            let mut came = 0;
            for (slot, len) in opened {
                (slots[n + came], lens[n + came]) = (slot, len);
                came += 1;
            }
            n += came;
            if came < run {
                break;
            }
        }
        let stored = (n > 0)
            .then(|| {
                self.devices.write(writer, &slots[..n], &mut data[..n * SLOT_BYTES], &lens[..n], &mut to[..n]).ok()
            })
            .flatten();
        let moved = if stored.is_some() { n } else { 0 };
        if let Some(index) = stored {
            self.settle_in_file(writer.held, budget, index, &slots[..n], &to[..n]);
            found[..n].iter().for_each(|one| file.free(one.at));
            stats::add(&writer.stats.cleaned_pages, n as u64);
        }
        found.iter().for_each(|one| self.unclaim(writer.held, one.slot, one.was));
        moved
    }

    /// How many reads bring in the content of `slots` that is in files: one for each run of neighbours.
    pub fn nr_reads(&self, slots: impl Iterator<Item = Slot>) -> usize {
        let mut next = None;
        let begins = slots.filter(|slot| {
            let place = file_of(self.location(*slot).load(Ordering::Relaxed));
            let follows = place.is_some() && place == next;
            next = place.map(|(file, at)| (file, at + 1));
            place.is_some() && !follows
        });
        begins.count()
    }
}
