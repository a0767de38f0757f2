//! What the program said is cold (MADV_COLD), until the next sweep takes it. `way_out::cold` notes it and takes it.

use crate::base::PAGE;
use crate::base::ring::Ring;
use crate::base::uapi::Errno;
use crate::memory::table::{UNIT_BYTES, UNIT_PAGES};
use core::ops::Range;
use core::sync::atomic::AtomicUsize;
use core::sync::atomic::Ordering::Relaxed;

/// Most notes at a time.
const NOTES_MAX: usize = 4096;

/// Pages of one unit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Note {
    /// The unit's address.
    pub(crate) unit: usize,
    /// Its first page that is cold, and its last.
    first: usize,
    last: usize,
}

impl Note {
    const PAGE_BITS: u32 = UNIT_PAGES.ilog2();

    /// The pages from `start` to `end`, which lie in the unit at `unit`.
    pub(crate) fn new(unit: usize, start: usize, end: usize) -> Self {
        debug_assert!(unit <= start && start < end && end <= unit + UNIT_BYTES);
        Self { unit, first: (start - unit) / PAGE, last: (end - 1 - unit) / PAGE }
    }

    /// The addresses.
    pub(crate) fn range(self) -> Range<usize> {
        self.unit + self.first * PAGE..self.unit + (self.last + 1) * PAGE
    }

    /// True if all of the unit is cold.
    pub(crate) fn is_whole(self) -> bool {
        self.last - self.first + 1 == UNIT_PAGES
    }

    /// The address of a unit leaves room for both pages.
    fn to_bits(self) -> u64 {
        self.unit as u64 | (self.first as u64) << Self::PAGE_BITS | self.last as u64
    }

    fn from_bits(bits: u64) -> Self {
        let page = |bits: u64| bits as usize % UNIT_PAGES;
        let unit = bits as usize / UNIT_BYTES * UNIT_BYTES;
        Self { unit, first: page(bits >> Self::PAGE_BITS), last: page(bits) }
    }
}

const _: () = assert!(1 << (2 * Note::PAGE_BITS) <= UNIT_BYTES);

/// The notes, in the order in which they were made.
pub struct Cold {
    notes: Ring,
    /// How many there are, or a few more: whoever sweeps looks without the ring's lock.
    nr: AtomicUsize,
}

impl Cold {
    /// Nothing is cold yet.
    pub fn new() -> Result<Self, Errno> {
        Ok(Self { notes: Ring::new(NOTES_MAX)?, nr: AtomicUsize::new(0) })
    }

    /// True if there seems to be a note.
    #[inline]
    pub fn has_notes(&self) -> bool {
        self.nr.load(Relaxed) > 0
    }

    /// Notes that pages are cold: after other notes, or as the next. There may be no room for it. Inside the gate.
    pub(crate) fn note(&self, note: Note, is_next: bool) {
        let bits = note.to_bits();
        // Counted first, so that the count never says that there is none while there is one.
        self.nr.fetch_add(1, Relaxed);
        let has_room = if is_next { self.notes.push_first(bits) } else { self.notes.push(bits) };
        if !has_room {
            self.nr.fetch_sub(1, Relaxed);
        }
    }

    /// Takes the oldest note. Inside the gate.
    pub(crate) fn take(&self) -> Option<Note> {
        let bits = self.notes.pop()?;
        self.nr.fetch_sub(1, Relaxed);
        Some(Note::from_bits(bits))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_says_which_pages_of_which_unit() {
        let cold = Cold::new().expect("memory");
        let unit = 0x7f12_3460_0000;
        let (all, some) = (Note::new(unit, unit, unit + UNIT_BYTES), Note::new(unit, unit + 7 * PAGE, unit + 9 * PAGE));
        assert!(all.is_whole() && !some.is_whole() && !cold.has_notes());
        cold.note(all, false);
        cold.note(some, false);
        assert!(cold.has_notes());
        assert_eq!(cold.take(), Some(all));
        cold.note(all, true);
        assert_eq!([cold.take(), cold.take(), cold.take()], [Some(all), Some(some), None]);
        assert_eq!((some.range(), all.range()), (unit + 7 * PAGE..unit + 9 * PAGE, unit..unit + UNIT_BYTES));
        assert!(!cold.has_notes());
    }

    #[test]
    fn what_finds_no_room_is_forgotten() {
        let cold = Cold::new().expect("memory");
        let note = |i: usize| Note::new(i * UNIT_BYTES, i * UNIT_BYTES, i * UNIT_BYTES + PAGE);
        (1..=NOTES_MAX + 5).for_each(|i| cold.note(note(i), false));
        assert!((1..=NOTES_MAX).all(|i| cold.take() == Some(note(i))));
        assert_eq!((cold.take(), cold.has_notes()), (None, false));
    }
}
