//! Where Ebb's own mappings are, so that a program that looks at all its memory can be shown only the program's.
//!
//! What `later` set aside is one range. A mapping that was made before that, or found no room in it, has an entry of
//! its own. Mappings for which the table has no entry are not known, and the program sees them.

use core::sync::atomic::{
    AtomicBool, AtomicUsize,
    Ordering::{Acquire, Relaxed, Release},
};

const RANGES_MAX: usize = 256;
/// Stands for the start in an entry that is being written.
const TAKEN: usize = 1;

/// The ranges of this process.
static RANGES: Ranges = Ranges::new();
/// Start and end of the data of the library that contains the engine, if [`set_data`] was told.
static DATA: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];

struct Ranges {
    /// Start and end of each range; a start of 0 is a free entry. The end is stored before the start, which publishes it.
    entries: [[AtomicUsize; 2]; RANGES_MAX],
    /// True once a range found no entry.
    lacks_some: AtomicBool,
}

impl Ranges {
    const fn new() -> Self {
        let entries = [const { [const { AtomicUsize::new(0) }; 2] }; RANGES_MAX];
        Self { entries, lacks_some: AtomicBool::new(false) }
    }

    fn all(&self) -> impl Iterator<Item = (usize, usize)> {
        let range = |[from, to]: &[AtomicUsize; 2]| (from.load(Acquire), to.load(Relaxed));
        self.entries.iter().map(range).filter(|(from, _)| *from > TAKEN)
    }

    fn add(&self, start: usize, len: usize) {
        for [from, to] in &self.entries {
            if from.load(Relaxed) == 0 && from.compare_exchange(0, TAKEN, Acquire, Relaxed).is_ok() {
                to.store((start + len).next_multiple_of(4096), Relaxed);
                return from.store(start, Release);
            }
        }
        self.lacks_some.store(true, Relaxed);
    }

    fn remove(&self, start: usize) {
        for [from, _] in &self.entries {
            if from.load(Relaxed) == start {
                from.store(0, Release);
            }
        }
    }

    fn for_each_other(&self, start: usize, end: usize, mut f: impl FnMut(usize, usize)) {
        let mut at = start;
        while at < end {
            // The first range that is not passed yet. The loop turns once for each range, and once more at most.
            let mut next = (end, end);
            for (from, to) in self.all() {
                if from < end && to > at && from < next.0 {
                    next = (from, to);
                }
            }
            if next.0 > at {
                f(at, next.0);
            }
            at = next.1.max(next.0);
        }
    }
}

/// Adds a range.
pub fn add(start: usize, len: usize) {
    RANGES.add(start, len);
}

/// Removes the range that starts at `start`, if there is one.
pub(super) fn remove(start: usize) {
    RANGES.remove(start);
}

/// Start and end of each range, in no particular order.
pub fn all() -> impl Iterator<Item = (usize, usize)> {
    RANGES.all()
}

/// Says where the data of the library that contains the engine lies, in whole pages. That is Ebb's own memory, too, but
/// in a place that the program may know of.
pub fn set_data(start: usize, end: usize) {
    DATA[1].store(end, Relaxed);
    DATA[0].store(start, Release);
}

/// Start and end of the library's data; an empty range before [`set_data`].
pub fn data() -> (usize, usize) {
    let start = DATA[0].load(Acquire);
    (start, DATA[1].load(Relaxed))
}

/// False when Ebb has mappings that the ranges leave out.
pub fn is_complete() -> bool {
    !RANGES.lacks_some.load(Relaxed)
}

/// Calls `f` with the parts of `[start, end)` that are in none of Ebb's ranges, in order of address.
pub fn for_each_other(start: usize, end: usize, f: impl FnMut(usize, usize)) {
    RANGES.for_each_other(start, end, f);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn others(ranges: &Ranges, start: usize, end: usize) -> Vec<(usize, usize)> {
        let mut parts = Vec::new();
        ranges.for_each_other(start, end, |start, end| parts.push((start, end)));
        parts
    }

    #[test]
    fn what_is_ebbs_is_left_out() {
        let (ranges, base) = (Ranges::new(), 0x10_0000_0000usize);
        ranges.add(base + 0x3000, 0x1000);
        ranges.add(base + 0x1000, 0x1000);
        ranges.add(base + 0x4000, 0x800);
        assert_eq!(
            others(&ranges, base, base + 0x6000),
            [(base, base + 0x1000), (base + 0x2000, base + 0x3000), (base + 0x5000, base + 0x6000)]
        );
        assert_eq!(others(&ranges, base + 0x1000, base + 0x2000), []);
        assert_eq!(others(&ranges, base + 0x3800, base + 0x4800), []);
        assert_eq!(others(&ranges, base + 0x1800, base + 0x2800), [(base + 0x2000, base + 0x2800)]);
        ranges.remove(base + 0x1000);
        assert_eq!(others(&ranges, base, base + 0x3000), [(base, base + 0x3000)]);
    }

    #[test]
    fn what_finds_no_entry_is_the_programs_and_harms_no_other() {
        let (ranges, base) = (Ranges::new(), 0x10_0000_0000usize);
        (0..=RANGES_MAX).for_each(|i| ranges.add(base + i * 0x2000, 0x1000));
        assert!(ranges.lacks_some.load(Relaxed));
        assert_eq!(ranges.all().count(), RANGES_MAX);
        let end = base + RANGES_MAX * 0x2000;
        assert_eq!(others(&ranges, end - 0x2000, end + 0x1000), [(end - 0x1000, end + 0x1000)]);
        ranges.remove(base);
        ranges.add(end, 0x1000);
        assert_eq!(others(&ranges, base, base + 0x3000), [(base, base + 0x2000)]);
        assert_eq!(others(&ranges, end, end + 0x1000), []);
    }
}
