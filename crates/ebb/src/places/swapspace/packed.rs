//! Objects that share a slot of a file with others.
//!
//! The file's own table names one owner for a slot. So what needs to know all owners of such a slot goes by the slots of the
//! swap space, or reads the slot's directory.

use super::SwapSpace;
use super::location::file_of;
use crate::device::file::Reclaim;
use crate::device::list::FILES_MAX;
use crate::places::inconsistency::Inconsistency;
use crate::protocols::gate::{Exclusive, Held};
use core::sync::atomic::Ordering;
use ebb_slots::{Slot, TableEntry};

/// Slots of the swap space that one search visits.
const LOOKS: u32 = 4096;

impl SwapSpace {
    /// Gives up copies, packed in files that this process writes to, of pages that are clean in memory, as far as a short search
    /// finds them. Returns how many. Never waits.
    pub fn reclaim_packed(&self, _held: &Held, reclaim: Reclaim<'_>) -> usize {
        let top = self.high_water.load(Ordering::Relaxed);
        let mut freed = 0;
        for _ in 0..top.min(LOOKS) {
            let slot = Slot(self.packed_at.fetch_add(1, Ordering::Relaxed) % top);
            let found = file_of(self.location(slot).load(Ordering::Relaxed));
            let Some((_, place)) =
                found.filter(|(file, place)| place.is_packed() && self.devices.priority(*file).is_some())
            else {
                continue;
            };
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
