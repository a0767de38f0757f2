//! Pins: the ranges that system calls in flight use, published per thread like hazard pointers.
//!
//! The thread publishes a range and then looks whether its pages are present; eviction claims pages and then looks for
//! pins that cover them, and gives those back. Both sides write first and read second, sequentially consistently, so
//! one always sees the other. Publishing touches only the thread's own cache lines, and a call whose buffers are
//! resident takes no lock at all.
//!
//! A signal handler may interrupt a call and make calls of its own, so a thread has a short stack of records, each with
//! the stack pointer of its call. A call that was left by `longjmp` never ends; its record is dropped when a later
//! call begins higher up on the stack.

use crate::primitive::{AtomicU32, AtomicU64, Ordering, fence};

/// Calls in flight that one thread can have: the call, and handlers that interrupted handlers.
const DEPTH: usize = 4;
/// Ranges of one call kept apart; further ones widen the last.
const RANGES: usize = 6;

/// The pins of one call. A range of length zero is unused.
#[derive(Debug, Default)]
struct Record {
    sp: AtomicU64,
    start: [AtomicU64; RANGES],
    end: [AtomicU64; RANGES],
}

/// All pins of one thread.
#[derive(Debug, Default)]
pub struct Pins {
    depth: AtomicU32,
    records: [Record; DEPTH],
}

impl Pins {
    /// Begins a call made with stack pointer `sp`: drops records of calls that can no longer return.
    pub fn begin(&self, sp: u64) {
        let mut depth = self.depth.load(Ordering::Relaxed) as usize;
        while depth > 0 && self.records[depth - 1].sp.load(Ordering::Relaxed) <= sp {
            depth -= 1;
            self.clear(depth);
        }
        // Handlers nested deeper than records share the last one: their ranges are pinned together, and freed when
        // the outermost of them ends.
        let at = depth.min(DEPTH - 1);
        self.records[at].sp.store(sp, Ordering::Relaxed);
        self.depth.store(at as u32 + 1, Ordering::Relaxed);
    }

    /// Publishes `[start, end)` for the call begun last. The caller looks at the pages afterwards.
    pub fn add(&self, start: u64, end: u64) {
        let depth = self.depth.load(Ordering::Relaxed) as usize;
        debug_assert!(depth > 0);
        let record = &self.records[depth.clamp(1, DEPTH) - 1];
        for i in 0..RANGES {
            let (s, e) = (record.start[i].load(Ordering::Relaxed), record.end[i].load(Ordering::Relaxed));
            if s != e && !(i == RANGES - 1 || start <= e && s <= end) {
                continue;
            }
            let (start, end) = if s == e { (start, end) } else { (start.min(s), end.max(e)) };
            // Widening keeps a superset of what was published at every moment: end first when it grows from unused
            // would show [0, end), so start goes first and the range is empty until end is stored.
            if s == e {
                record.end[i].store(start, Ordering::Relaxed);
                record.start[i].store(start, Ordering::Release);
                record.end[i].store(end, Ordering::Release);
            } else {
                record.start[i].store(start, Ordering::Release);
                record.end[i].store(end, Ordering::Release);
            }
            break;
        }
        fence(Ordering::SeqCst);
    }

    /// Ends the call begun last.
    pub fn end(&self) {
        let depth = self.depth.load(Ordering::Relaxed) as usize;
        if depth > 0 {
            self.clear(depth - 1);
            self.depth.store(depth as u32 - 1, Ordering::Relaxed);
        }
    }

    /// Drops everything: for a thread that ends, and for a child after fork.
    pub fn reset(&self) {
        for i in 0..DEPTH {
            self.clear(i);
        }
        self.depth.store(0, Ordering::Relaxed);
    }

    fn clear(&self, at: usize) {
        let record = &self.records[at];
        for i in 0..RANGES {
            // Release: the kernel's use of the buffer happens before the pin is seen gone.
            record.end[i].store(0, Ordering::Release);
            record.start[i].store(0, Ordering::Release);
        }
    }

    /// Calls `f` with every published range that meets `[start, end)`. Called by eviction after it claimed pages.
    pub fn for_each_overlap(&self, start: u64, end: u64, mut f: impl FnMut(u64, u64)) {
        if self.depth.load(Ordering::Acquire) == 0 {
            return;
        }
        for record in &self.records {
            for i in 0..RANGES {
                let (s, e) = (record.start[i].load(Ordering::Acquire), record.end[i].load(Ordering::Acquire));
                if s < e && s < end && start < e {
                    f(s.max(start), e.min(end));
                }
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn seen(pins: &Pins) -> usize {
        let mut n = 0;
        pins.for_each_overlap(0, u64::MAX, |_, _| n += 1);
        n
    }

    #[test]
    fn a_call_that_was_left_by_longjmp_is_dropped_by_the_next_call_above_it() {
        let pins = Pins::default();
        pins.begin(1000);
        pins.add(4096, 8192);
        pins.begin(2000);
        assert_eq!(seen(&pins), 0);
    }

    #[test]
    fn a_handlers_call_keeps_the_interrupted_calls_pin() {
        let pins = Pins::default();
        pins.begin(1000);
        pins.add(4096, 8192);
        pins.begin(500);
        pins.add(16384, 20480);
        pins.end();
        assert_eq!(seen(&pins), 1);
    }

    #[test]
    fn ranges_beyond_the_record_widen_the_last_one() {
        let pins = Pins::default();
        pins.begin(1000);
        for i in 0..20u64 {
            pins.add(i * 100_000, i * 100_000 + 10);
        }
        for i in 0..20u64 {
            let mut covered = false;
            pins.for_each_overlap(i * 100_000, i * 100_000 + 10, |s, e| covered |= s == i * 100_000 && e == s + 10);
            assert!(covered);
        }
    }
}
