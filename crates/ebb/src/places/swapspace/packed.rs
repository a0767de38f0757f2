//! Objects that share a slot of a file with others.
//!
//! The file's own table names one owner for a slot. So what needs to know all owners of such a slot goes by the slots of the
//! swap space, or reads the slot's directory.

use super::SwapSpace;
use super::location::file_of;
use crate::device::file::{BATCH, Place, Reclaim, SpillFile};
use crate::device::list::FILES_MAX;
use crate::places::inconsistency::Inconsistency;
use crate::protocols::gate::{Exclusive, Held};
use core::sync::atomic::Ordering;
use ebb_slots::{Slot, TableEntry};

/// Slots of the swap space that one search visits.
const LOOKS: u32 = 4096;
/// Copies after which a search is over.
const MOST: usize = 2 * BATCH;

impl SwapSpace {
    /// Gives up copies, packed in files that this process writes to, of pages that are clean in memory, as far as a short search
    /// finds them: of those whose slots go with them, or of `any`. Returns how many, about [`MOST`] at most. Never waits.
    pub fn reclaim_packed(&self, held: &Held, reclaim: Reclaim<'_>, any: bool) -> usize {
        let top = self.high_water.load(Ordering::Relaxed);
        let looks = top.min(LOOKS);
        let first = self.packed_at.fetch_add(looks, Ordering::Relaxed);
        let mut freed = 0;
        for slot in (0..looks).map(|i| Slot(first.wrapping_add(i) % top)) {
            if freed >= MOST {
                break;
            }
            let found = file_of(self.location(slot).load(Ordering::Relaxed));
            let is_ours = |(file, place): &(usize, Place)| place.is_packed() && self.devices.priority(*file).is_some();
            let Some((file, place)) = found.filter(is_ours) else { continue };
            // What another process of the family needs stays in the file all the same.
            let frees = |file: &SpillFile| {
                file.closed().is_none() && (any || file.is_last(place)) && !file.is_held_by_others(place.slot)
            };
            if !self.devices.file(held, file).is_some_and(frees) {
                continue;
            }
            let is_copy = matches!(self.slots.get(slot), TableEntry::Cached { count: 0, locked: false, .. });
            freed += usize::from(is_copy && reclaim(slot, place));
        }
        freed
    }

    /// Recounts the objects that this process has in each file.
    pub(super) fn validate_objects(&self, exclusive: &Exclusive<'_>) -> Result<(), Inconsistency> {
        let mut counted = [0u32; FILES_MAX];
        let mut next = self.slots.next_used(Slot(0));
        while let Some(slot) = next {
            if let Some((file, _)) = file_of(self.location(slot).load(Ordering::Relaxed)) {
                counted[file] += 1;
            }
            next = self.slots.next_used(Slot(slot.0 + 1));
        }
        self.devices.all(exclusive).try_for_each(|(file, of)| match (of.nr_objects(), counted[file]) {
            (kept, counted) if kept != counted => Err(Inconsistency::FileObjects { file, kept, counted }),
            _ => Ok(()),
        })
    }
}
