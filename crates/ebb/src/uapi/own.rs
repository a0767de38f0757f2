//! Where Ebb's own mappings are, so that a program that looks at all its memory can be shown its own.
//!
//! What `later` set aside is one range; whatever was mapped before that, or found no room in it, has an entry of its own. Of
//! more than fit the rest is not known: then the program sees them.

use core::sync::atomic::{
    AtomicUsize,
    Ordering::{Acquire, Relaxed, Release},
};

const RANGES_MAX: usize = 256;
/// The start of an entry that is being written.
const TAKEN: usize = 1;

/// Start and end of each range; a start of 0 is a free entry. The end is stored before the start, which publishes it.
static RANGES: [[AtomicUsize; 2]; RANGES_MAX] = [const { [const { AtomicUsize::new(0) }; 2] }; RANGES_MAX];

/// Adds a range.
pub fn add(start: usize, len: usize) {
    for [from, to] in &RANGES {
        if from.load(Relaxed) == 0 && from.compare_exchange(0, TAKEN, Acquire, Relaxed).is_ok() {
            to.store((start + len).next_multiple_of(4096), Relaxed);
            return from.store(start, Release);
        }
    }
}

/// Takes back a range that was added, if it was.
pub(super) fn remove(start: usize) {
    for [from, _] in &RANGES {
        if from.load(Relaxed) == start {
            from.store(0, Release);
        }
    }
}

/// Calls `f` with the parts of `[start, end)` that are none of Ebb's, in order.
pub fn for_each_other(start: usize, end: usize, mut f: impl FnMut(usize, usize)) {
    let mut at = start;
    while at < end {
        // The range that comes first; at most one more turn for each.
        let mut next = (end, end);
        for [from, to] in &RANGES {
            let (from, to) = (from.load(Acquire), to.load(Relaxed));
            if from > TAKEN && from < end && to > at && from < next.0 {
                next = (from, to);
            }
        }
        if next.0 > at {
            f(at, next.0);
        }
        at = next.1.max(next.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn others(start: usize, end: usize) -> Vec<(usize, usize)> {
        let mut parts = Vec::new();
        for_each_other(start, end, |start, end| parts.push((start, end)));
        parts
    }

    #[test]
    fn what_is_ebbs_is_left_out() {
        let base = 0x10_0000_0000usize;
        add(base + 0x3000, 0x1000);
        add(base + 0x1000, 0x1000);
        add(base + 0x4000, 0x800);
        assert_eq!(
            others(base, base + 0x6000),
            [(base, base + 0x1000), (base + 0x2000, base + 0x3000), (base + 0x5000, base + 0x6000)]
        );
        assert_eq!(others(base + 0x1000, base + 0x2000), []);
        assert_eq!(others(base + 0x3800, base + 0x4800), []);
        assert_eq!(others(base + 0x1800, base + 0x2800), [(base + 0x2000, base + 0x2800)]);
        remove(base + 0x1000);
        assert_eq!(others(base, base + 0x3000), [(base, base + 0x3000)]);
        remove(base + 0x3000);
        remove(base + 0x4000);
    }
}
