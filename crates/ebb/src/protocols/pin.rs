//! Pins: the ranges that system calls in flight use, published per thread like hazard pointers.
//!
//! A thread publishes a range and then looks whether its pages are present. Eviction claims pages, then looks for pins
//! that cover them, and gives the pinned pages back. Both sides write first and read second, sequentially consistently,
//! so one always sees the other. Publishing touches only the thread's own cache lines, and a call whose buffers are
//! resident takes no lock at all.
//!
//! A signal handler may interrupt a call and make calls of its own. So a thread has a short stack of records, each with
//! the stack pointer of its call. A call that was left by `longjmp` never ends; its record is dropped when a later call
//! begins higher up on the stack.

use crate::protocols::primitive::{AtomicU32, AtomicU64, Ordering, fence};
use core::sync::atomic::compiler_fence;

/// Bytes of a page.
const PAGE: u64 = 4096;

/// Records of one thread: for a call, and for handlers that interrupted it and each other.
const DEPTH: usize = if cfg!(loom) { 2 } else { 4 };
/// Ranges of one call that are kept apart; further ones widen the last.
const RANGES: usize = if cfg!(loom) { 2 } else { 16 };

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
    /// Begins a call made with stack pointer `sp`, and drops the records of calls that can no longer return.
    ///
    /// `same_stack` says whether a call made with the stack pointer that it is given was on the stack of this call.
    /// Only then does a lower stack pointer mean that the other call was left.
    pub fn begin(&self, sp: u64, same_stack: impl Fn(u64) -> bool) {
        let mut depth = self.depth.load(Ordering::Relaxed) as usize;
        while depth > 0 {
            // Calls nested deeper than there are records share the last record, with the stack pointer of the first of
            // them. If that call was left, so were the calls inside it.
            let at = depth.min(DEPTH) - 1;
            let old = self.records[at].sp.load(Ordering::Relaxed);
            // Zero: handlers interrupted that call before it had noted its stack pointer.
            if old == 0 || old > sp || !same_stack(old) {
                break;
            }
            depth = at;
            self.drop_to(depth);
        }
        // The record has its stack pointer whenever the depth counts it. So if a handler leaves the call at this
        // moment, its record is dropped like any other. The stack pointer is stored once more afterwards, because a
        // handler that interrupts in between uses this record, and clears it.
        if let Some(record) = self.records.get(depth) {
            record.sp.store(sp, Ordering::Relaxed);
        }
        compiler_fence(Ordering::SeqCst);
        self.depth.store(depth as u32 + 1, Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
        if let Some(record) = self.records.get(depth) {
            record.sp.store(sp, Ordering::Relaxed);
        }
    }

    /// Lowers the depth, and then clears the record that this gives up. The order matters: a handler may interrupt in
    /// between and never come back, and a record that is counted but has no stack pointer would never be dropped. A
    /// record that still names ranges is used, and cleared, by the next call of its depth.
    fn drop_to(&self, depth: usize) {
        self.depth.store(depth as u32, Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
        if depth < DEPTH {
            self.clear(depth);
        }
    }

    /// Publishes `[start, end)` for the call begun last. The caller looks at the pages afterwards. False, and nothing
    /// is published, when the ranges are used up and the last would have to span more than `span_max` bytes.
    #[must_use]
    pub fn add(&self, start: u64, end: u64, span_max: u64) -> bool {
        let depth = (self.depth.load(Ordering::Relaxed) as usize).max(1);
        let record = &self.records[depth.min(DEPTH) - 1];
        for i in 0..RANGES {
            let (s, e) = (record.start[i].load(Ordering::Relaxed), record.end[i].load(Ordering::Relaxed));
            if s != e && !(i == RANGES - 1 || start <= e && s <= end) {
                continue;
            }
            if s == e {
                // Empty until its end is stored. Release, because this hides the store by which the last call let go of
                // the range.
                record.end[i].store(0, Ordering::Release);
                record.start[i].store(start, Ordering::Release);
                record.end[i].store(end, Ordering::Release);
            } else {
                if end.max(e) - start.min(s) > span_max.max(e - s) && i == RANGES - 1 {
                    return false;
                }
                // At every moment a superset of what was published.
                record.start[i].store(start.min(s), Ordering::Release);
                record.end[i].store(end.max(e), Ordering::Release);
            }
            break;
        }
        fence(Ordering::SeqCst);
        true
    }

    /// Ends the call begun last.
    pub fn end(&self) {
        let depth = self.depth.load(Ordering::Relaxed) as usize;
        if depth == 0 {
            return;
        }
        // The shared last record is cleared only when the first of its calls ends.
        self.drop_to(depth - 1);
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
        record.sp.store(0, Ordering::Relaxed);
        for i in 0..RANGES {
            // Release: the kernel's use of the buffer happens before the pin is seen gone.
            record.end[i].store(0, Ordering::Release);
            record.start[i].store(0, Ordering::Release);
        }
    }

    /// Pages of all published ranges. A range counts for `range_max` pages at most.
    pub fn pages(&self, range_max: u64) -> u64 {
        let depth = (self.depth.load(Ordering::Relaxed) as usize).min(DEPTH);
        let ranges = self.records[..depth].iter().flat_map(|record| record.start.iter().zip(&record.end));
        let pages = |start: u64, end: u64| end.div_ceil(PAGE).saturating_sub(start / PAGE).min(range_max);
        ranges.map(|(start, end)| pages(start.load(Ordering::Relaxed), end.load(Ordering::Relaxed))).sum()
    }

    /// Calls `f` with the part in `[start, end)` of every published range that meets it. Eviction calls this after it
    /// has claimed pages.
    pub fn for_each_overlap(&self, start: u64, end: u64, mut f: impl FnMut(u64, u64)) {
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
        pins.begin(1000, |_| true);
        assert!(pins.add(4096, 8192, u64::MAX));
        pins.begin(2000, |_| true);
        assert_eq!(seen(&pins), 0);
    }

    #[test]
    fn a_handlers_call_keeps_the_interrupted_calls_pin() {
        let pins = Pins::default();
        pins.begin(1000, |_| true);
        assert!(pins.add(4096, 8192, u64::MAX));
        pins.begin(500, |_| true);
        assert!(pins.add(16384, 20480, u64::MAX));
        pins.end();
        assert_eq!(seen(&pins), 1);
    }

    #[test]
    fn a_handler_on_a_stack_above_keeps_the_interrupted_calls_pin() {
        let pins = Pins::default();
        pins.begin(1000, |_| true);
        assert!(pins.add(4096, 8192, u64::MAX));
        pins.begin(9000, |_| false);
        assert_eq!(seen(&pins), 1);
    }

    #[test]
    fn calls_nested_deeper_than_records_end_in_order() {
        let pins = Pins::default();
        for i in 0..7 {
            pins.begin(1000 - i, |_| true);
            assert!(pins.add((i + 1) * 100_000, (i + 1) * 100_000 + 10, u64::MAX));
        }
        for _ in 0..3 {
            pins.end();
        }
        let mut covered = false;
        pins.for_each_overlap(400_000, 400_010, |_, _| covered = true);
        assert!(covered);
        for _ in 0..4 {
            pins.end();
        }
        assert_eq!(seen(&pins), 0);
    }

    #[test]
    fn calls_nested_deeper_than_records_are_dropped_when_all_are_left() {
        let pins = Pins::default();
        for i in 0..7 {
            pins.begin(1000 - i, |_| true);
            assert!(pins.add((i + 1) * 100_000, (i + 1) * 100_000 + 10, u64::MAX));
        }
        pins.begin(2000, |_| true);
        assert_eq!(seen(&pins), 0);
        assert!(pins.add(4096, 8192, u64::MAX));
        pins.end();
        assert_eq!((seen(&pins), pins.depth.load(Ordering::Relaxed)), (0, 0));
    }

    #[test]
    fn ranges_beyond_the_record_widen_the_last_one() {
        let pins = Pins::default();
        pins.begin(1000, |_| true);
        for i in 0..20u64 {
            assert!(pins.add(i * 100_000, i * 100_000 + 10, u64::MAX));
        }
        for i in 0..20u64 {
            let mut covered = false;
            pins.for_each_overlap(i * 100_000, i * 100_000 + 10, |s, e| covered |= s == i * 100_000 && e == s + 10);
            assert!(covered);
        }
    }
}
