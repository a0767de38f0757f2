//! Slots that are given up together.
//!
//! Pages that go together mostly had neighbouring slots, and nothing else needs these. Such slots stay locked until a
//! batch of them is complete. Then their contents are freed: objects of the pool by size class, slots of a file by the
//! word of its books. The slots go back to their clusters with one lock for each row of neighbours, and whatever counts
//! pages is changed once. A slot that something else needs leaves the batch at once, unlocked.
//!
//! Invariant: a thread that has a batch waits for no other slot and for no page. So it ends the batch before it waits.
//! Nobody waits for a slot of a batch but for as long as the batch takes: some ten microseconds.

use super::SwapSpace;
use super::content::NO_OBJECT;
use super::location::{ahead_of, file_of, handle_of};
use crate::budget::Budget;
use crate::counters::stats::Shared;
use crate::device::file::Place;
use crate::protocols::gate::Held;
use core::sync::atomic::Ordering;
use ebb_slots::{Folio, Locked, Slot};

/// Most slots that are freed at once.
const MOST: usize = 128;

/// Slots that their pages give up. Drop frees those that are left.
pub struct Frees<'a> {
    swap: &'a SwapSpace,
    held: &'a Held,
    budget: &'a Budget,
    stats: &'a Shared,
    /// The first `n` are locked, and nothing but their pages needs them.
    slots: [Slot; MOST],
    n: usize,
}

/// Places in one file, whose contents are freed together.
struct InFile {
    file: usize,
    at: [Place; MOST],
    n: usize,
}

impl SwapSpace {
    /// An empty batch.
    pub fn frees<'a>(&'a self, held: &'a Held, budget: &'a Budget, stats: &'a Shared) -> Frees<'a> {
        Frees { swap: self, held, budget, stats, slots: [Slot(0); MOST], n: 0 }
    }

    /// Frees the contents of locked slots, wherever they are.
    #[inline(never)]
    fn free_contents(&self, held: &Held, budget: &Budget, stats: &Shared, slots: &[Slot]) {
        debug_assert!(slots.len() <= MOST);
        let (mut objects, mut nr_objects) = ([NO_OBJECT; MOST], 0);
        let mut in_file = InFile { file: 0, at: [Place::default(); MOST], n: 0 };
        for slot in slots {
            let place = self.location(*slot);
            // Only the thread that has the slot locked changes the word.
            let loc = place.load(Ordering::Acquire);
            place.store(0, Ordering::Release);
            if let Some((file, at)) = file_of(loc) {
                if file != in_file.file {
                    self.free_in_file(held, in_file.file, &in_file.at[..in_file.n]);
                    (in_file.file, in_file.n) = (file, 0);
                }
                in_file.at[in_file.n] = at;
                in_file.n += 1;
            } else if let Some(handle) = handle_of(loc) {
                self.forget_settled(loc, handle);
                // What is given up with its mark was read ahead for nothing.
                if let Some(file) = ahead_of(loc) {
                    self.devices.note_ahead(file, 0, 1);
                }
                objects[nr_objects] = handle;
                nr_objects += 1;
            }
        }
        self.free_in_file(held, in_file.file, &in_file.at[..in_file.n]);
        self.free_objects(budget, stats, &objects[..nr_objects]);
    }
}

impl Frees<'_> {
    /// Gives up what the page `folio` has of the locked `slot`, which `was` that before, as [`SwapSpace::release`] does.
    /// If nothing else needs the slot, it stays locked until the batch is freed.
    pub fn add(&mut self, slot: Slot, folio: Folio, was: Locked) {
        if !was.is_last(folio) {
            return self.swap.release_shared(self.held, slot, folio, was);
        }
        self.slots[self.n] = slot;
        self.n += 1;
        if self.n == MOST {
            self.free();
        }
    }

    /// Locks `slot` for the page `folio` and gives it up. Waits for the slot if another thread has it. False if the slot
    /// is gone.
    pub fn claim(&mut self, slot: Slot, folio: Folio) -> bool {
        let mut was = self.swap.try_claim(slot, folio);
        if was.is_none() {
            self.free();
            was = self.swap.claim(slot, folio).ok();
        }
        if let Some(was) = was {
            self.add(slot, folio, was);
        }
        was.is_some()
    }

    /// Frees the batch. From here on it is empty, and its owner may wait.
    pub fn free(&mut self) {
        match &self.slots[..core::mem::take(&mut self.n)] {
            [] => {}
            [slot] => self.swap.discard(self.held, self.budget, self.stats, *slot),
            slots => {
                self.swap.free_contents(self.held, self.budget, self.stats, slots);
                self.swap.slots.free_all(slots);
            }
        }
    }
}

impl Drop for Frees<'_> {
    fn drop(&mut self) {
        self.free();
    }
}
