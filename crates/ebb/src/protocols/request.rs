//! Requests in flight: ranges that the kernel goes on using when the system call that named them has returned
//! (io_submit), until the program is told that the request is done.
//!
//! They are pins without a thread, and are published like pins (see `pin`): first the range, then the look at the
//! pages. Eviction claims first, and then looks for ranges. Looking takes no lock. A request is known by what the
//! kernel calls it when it is done: its context, and the address of its control block.
//!
//! A control block may be submitted again before its first request is done, and a program may read the ring of events
//! by itself, so that nothing tells what is done. So a block counts how often it was submitted, and its ranges stay
//! until it was reported as often. A request may reach a context that another thread is about to destroy, and never be
//! reported. Such a request keeps its range until the memory is unmapped.

use crate::protocols::primitive::{AtomicU32, AtomicU64, Ordering, fence};
use ebb_sync::{Class, Lock};

/// Most ranges at a time. A range that finds no place is made resident for good.
pub const RANGES_MAX: usize = if cfg!(loom) { 2 } else { 4096 };

/// A published range of bytes; empty where there is none.
#[derive(Debug, Default)]
struct Range {
    start: AtomicU64,
    end: AtomicU64,
}

/// The request that the range at the same place belongs to.
#[derive(Clone, Copy, Default, Debug)]
struct Entry {
    context: u64,
    /// Address of the control block; 0 while the place is free.
    block: u64,
    /// Requests with this control block that are not done.
    requests: u32,
    /// Its context is about to be destroyed. Another context may get the same number before the destruction is seen to be done.
    leaves: bool,
}

impl Entry {
    /// True when its range counts as in flight. A block that came again before it was reported may have been done long ago.
    fn counts(&self) -> bool {
        self.requests == 1
    }

    fn is_of(&self, context: u64, block: u64) -> bool {
        self.block == block && self.context == context
    }
}

/// What is known of the ranges beside their ends.
#[derive(Debug)]
struct Book {
    entries: [Entry; RANGES_MAX],
    /// Bytes in all ranges that count.
    bytes: u64,
    /// Bytes that are about to be in ranges.
    reserved: u64,
    /// Requests that found no place when they began, and are not done.
    unplaced: u64,
}

struct RequestsLock;
impl Class for RequestsLock {
    const NAME: &'static str = "requests";
}

/// All ranges of requests in flight. Zeroed memory is an empty table.
///
/// A request has a place from its beginning on. The range at that place is empty until the request has one.
pub struct Requests {
    /// Places at or above this are free.
    high_water: AtomicU32,
    ranges: [Range; RANGES_MAX],
    book: Lock<Book, RequestsLock>,
}

impl Requests {
    fn high_water(&self) -> usize {
        self.high_water.load(Ordering::SeqCst) as usize
    }

    /// True when no range is published.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.high_water() == 0
    }

    /// Bytes in flight, and reserved for ranges to come, as far as is known.
    pub fn bytes(&self) -> u64 {
        let book = self.book.lock();
        book.bytes + book.reserved
    }

    /// Reserves bytes for ranges to come, if [`Self::bytes`] still is what was `seen`. False, and nothing is reserved,
    /// otherwise.
    #[must_use]
    pub fn reserve(&self, bytes: u64, seen: u64) -> bool {
        let mut book = self.book.lock();
        let is_so = book.bytes + book.reserved == seen;
        if is_so {
            book.reserved += bytes;
        }
        is_so
    }

    /// Ends a reservation: its ranges are published, or will not be.
    pub fn unreserve(&self, bytes: u64) {
        self.book.lock().reserved -= bytes;
    }

    /// Notes that the program is about to submit these control blocks. Ranges of them follow.
    pub fn begin(&self, context: u64, blocks: &[u64]) {
        let mut book = self.book.lock();
        for &block in blocks.iter().filter(|block| **block != 0) {
            let mut is_new = true;
            for at in 0..self.high_water() {
                let entry = &mut book.entries[at];
                if entry.is_of(context, block) && !entry.leaves {
                    let counted = entry.counts();
                    entry.requests = entry.requests.saturating_add(1);
                    if counted {
                        book.bytes -= self.ranges[at].bytes();
                    }
                    is_new = false;
                }
            }
            // Without a place all ranges of the request stay resident for good. As long as there are such requests, a
            // block that is not in the table may belong to one of them, and gets no place either.
            let entry = Entry { context, block, requests: 1, leaves: false };
            if is_new && (book.unplaced > 0 || self.take(&mut book, entry).is_none()) {
                book.unplaced += 1;
            }
        }
    }

    fn take(&self, book: &mut Book, entry: Entry) -> Option<usize> {
        let at = book.entries.iter().position(|entry| entry.block == 0)?;
        book.entries[at] = entry;
        if at >= self.high_water() {
            self.high_water.store(at as u32 + 1, Ordering::SeqCst);
        }
        Some(at)
    }

    /// Publishes `[start, end)` for a control block that has begun. The caller looks at the pages afterwards. False,
    /// and nothing is published, when the block has no place or all places are taken.
    #[must_use]
    pub fn add(&self, context: u64, block: u64, start: u64, end: u64) -> bool {
        let mut book = self.book.lock();
        let (mut own, mut empty) = (None, None);
        for (at, entry) in book.entries[..self.high_water()].iter().enumerate() {
            if entry.is_of(context, block) && !entry.leaves {
                let (s, e) = self.ranges[at].ends();
                if s <= start && end <= e {
                    fence(Ordering::SeqCst);
                    return true;
                }
                own = Some(*entry);
                empty = empty.or((s == e).then_some(at));
            }
        }
        let Some(own) = own else { return false };
        let Some(at) = empty.or_else(|| self.take(&mut book, own)) else { return false };
        if own.counts() {
            book.bytes += end - start;
        }
        self.ranges[at].publish(start, end);
        fence(Ordering::SeqCst);
        true
    }

    /// Notes that requests with these control blocks are done, or were not made.
    pub fn end(&self, context: u64, blocks: &[u64]) {
        let mut book = self.book.lock();
        for &block in blocks.iter().filter(|block| **block != 0) {
            let mut is_placed = false;
            // What was submitted since a context began to leave is of another context with this number. If there is
            // any, the report is for that.
            let is_new = |entry: &Entry| entry.is_of(context, block) && !entry.leaves;
            let has_new = book.entries[..self.high_water()].iter().any(is_new);
            for at in 0..self.high_water() {
                let entry = &mut book.entries[at];
                if entry.is_of(context, block) && entry.leaves != has_new {
                    is_placed = true;
                    if entry.requests == 1 {
                        self.free(&mut book, at);
                        continue;
                    }
                    entry.requests -= 1;
                    if entry.counts() {
                        book.bytes += self.ranges[at].bytes();
                    }
                }
            }
            if !is_placed {
                book.unplaced = book.unplaced.saturating_sub(1);
            }
        }
        self.lower(&mut book);
    }

    /// Notes that a context is about to be destroyed. If it stays after all, its requests lose nothing: they are only
    /// told apart from those that come later.
    pub fn leave(&self, context: u64) {
        let mut book = self.book.lock();
        book.entries[..self.high_water()].iter_mut().filter(|e| e.context == context).for_each(|e| e.leaves = true);
    }

    /// Notes that a context that was about to be destroyed is gone. The kernel is done with all that was submitted to it.
    pub fn left(&self, context: u64) {
        let mut book = self.book.lock();
        for at in 0..self.high_water() {
            let entry = &book.entries[at];
            if entry.block != 0 && entry.context == context && entry.leaves {
                self.free(&mut book, at);
            }
        }
        self.lower(&mut book);
    }

    /// Notes that what was mapped from `start` to `end` is gone. Requests go on with pages that are the kernel's alone.
    pub fn trim(&self, start: u64, end: u64) {
        if self.is_empty() {
            return;
        }
        let mut book = self.book.lock();
        for at in 0..self.high_water() {
            let range = &self.ranges[at];
            let (s, e) = range.ends();
            if s >= e || e <= start || end <= s {
                continue;
            }
            match (start <= s, e <= end) {
                (true, true) => range.clear(),
                (true, false) => range.start.store(end, Ordering::Release),
                (false, true) => range.end.store(start, Ordering::Release),
                // The range stays larger than needed, which does no harm.
                (false, false) => {}
            }
            if book.entries[at].counts() {
                book.bytes -= (e - s) - range.bytes();
            }
        }
    }

    fn free(&self, book: &mut Book, at: usize) {
        if book.entries[at].counts() {
            book.bytes -= self.ranges[at].bytes();
        }
        book.entries[at] = Entry::default();
        self.ranges[at].clear();
    }

    fn lower(&self, book: &mut Book) {
        let high = book.entries[..self.high_water()].iter().rposition(|entry| entry.block != 0);
        self.high_water.store(high.map_or(0, |at| at as u32 + 1), Ordering::SeqCst);
    }

    /// Calls `f` with the part in `[start, end)` of every published range that meets it. Eviction calls this after it
    /// has claimed pages. A range that is being published may be seen larger than it is.
    pub fn for_each_overlap(&self, start: u64, end: u64, mut f: impl FnMut(u64, u64)) {
        for range in &self.ranges[..self.high_water()] {
            let (s, e) = (range.start.load(Ordering::Acquire), range.end.load(Ordering::Acquire));
            if s < e && s < end && start < e {
                f(s.max(start), e.min(end));
            }
        }
    }
}

impl Range {
    /// Start and end, as the holder of the lock finds them.
    fn ends(&self) -> (u64, u64) {
        (self.start.load(Ordering::Relaxed), self.end.load(Ordering::Relaxed))
    }

    fn bytes(&self) -> u64 {
        let (start, end) = self.ends();
        end - start
    }

    /// The range is empty until its end is stored; see `Pins::add`.
    fn publish(&self, start: u64, end: u64) {
        self.start.store(start, Ordering::Release);
        self.end.store(end, Ordering::Release);
    }

    /// Release: the kernel's use of the range happens before it is seen gone.
    fn clear(&self) {
        self.end.store(0, Ordering::Release);
        self.start.store(0, Ordering::Release);
    }
}

#[cfg(loom)]
impl Default for Requests {
    fn default() -> Self {
        Self {
            high_water: AtomicU32::new(0),
            ranges: Default::default(),
            book: Lock::new(Book { entries: Default::default(), bytes: 0, reserved: 0, unplaced: 0 }),
        }
    }
}

#[cfg(not(loom))]
mod space {
    use super::Requests;
    use crate::base::uapi::{self, Errno};

    impl Requests {
        /// Reserves an empty table.
        pub fn new() -> Result<&'static Self, Errno> {
            let at = uapi::reserve_aligned(core::mem::size_of::<Self>(), 4096)?;
            // SAFETY: zeroed memory of its size, which is never unmapped, is an empty table.
            Ok(unsafe { &*at.cast::<Self>() })
        }

        /// Keeps all ranges as they are while the result lives, so that none is seen larger than it is. For callers
        /// that cannot take back what they do to used pages. Must not be held across anything that waits for the gate.
        pub(crate) fn hold(&self) -> impl Sized + '_ {
            self.book.lock()
        }

        /// Before fork: keeps the table unchanged until [`Self::thaw`], so that it is whole in the child.
        pub(crate) fn freeze(&self) {
            core::mem::forget(self.book.lock());
        }

        /// Ends [`Self::freeze`] after fork, on either side, in the thread that froze the table.
        pub(crate) fn thaw(&self) {
            // SAFETY: the guard of `freeze` is never dropped, and there is no other.
            unsafe { self.book.reset() };
        }

        /// For fork's child, which has none of its parent's requests: forgets them.
        pub(crate) fn forget_all(&self) {
            let mut book = self.book.lock();
            (0..self.high_water()).for_each(|at| self.free(&mut book, at));
            (book.reserved, book.unplaced) = (0, 0);
            self.lower(&mut book);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const CONTEXT: u64 = 0x7000;

    fn ranges(requests: &Requests) -> Vec<(u64, u64)> {
        let mut all = Vec::new();
        requests.for_each_overlap(0, u64::MAX, |start, end| all.push((start, end)));
        all
    }

    /// A request with one range.
    fn submit(requests: &Requests, context: u64, block: u64, start: u64, end: u64) -> bool {
        requests.begin(context, &[block]);
        requests.add(context, block, start, end)
    }

    #[test]
    fn a_range_stays_until_its_request_is_reported() {
        let requests = Requests::new().unwrap();
        requests.begin(CONTEXT, &[0x10, 0x20, 0]);
        assert!(requests.add(CONTEXT, 0x10, 4096, 8192) && requests.add(CONTEXT, 0x10, 16384, 20480));
        assert!(requests.add(CONTEXT, 0x20, 4096, 12288));
        let mut all = ranges(requests);
        all.sort_unstable();
        assert_eq!((all, requests.bytes()), (vec![(4096, 8192), (4096, 12288), (16384, 20480)], 16384));
        // Blocks of another context, and unknown ones.
        requests.end(CONTEXT + 1, &[0x10]);
        requests.end(CONTEXT, &[0x30, 0]);
        assert_eq!(ranges(requests).len(), 3);
        requests.end(CONTEXT, &[0x10]);
        assert_eq!(ranges(requests), [(4096, 12288)]);
        let mut met = Vec::new();
        requests.for_each_overlap(8192, 1 << 20, |start, end| met.push((start, end)));
        assert_eq!(met, [(8192, 12288)]);
        requests.end(CONTEXT, &[0x20]);
        assert!(ranges(requests).is_empty() && requests.is_empty() && requests.bytes() == 0);
    }

    #[test]
    fn a_block_that_was_submitted_twice_is_reported_twice() {
        let requests = Requests::new().unwrap();
        for range in [4096, 4096, 8192] {
            assert!(submit(requests, CONTEXT, 0x10, range, range + 4096));
        }
        // Also when the block has no range the third time.
        requests.begin(CONTEXT, &[0x10]);
        for _ in 0..4 {
            assert_eq!(ranges(requests).len(), 2);
            requests.end(CONTEXT, &[0x10]);
        }
        assert!(requests.is_empty());
    }

    #[test]
    fn a_block_that_stands_twice_in_one_call_is_reported_twice() {
        let requests = Requests::new().unwrap();
        requests.begin(CONTEXT, &[0x10, 0x10]);
        assert!(requests.add(CONTEXT, 0x10, 4096, 8192) && requests.add(CONTEXT, 0x10, 4096, 8192));
        requests.end(CONTEXT, &[0x10]);
        assert_eq!(ranges(requests), [(4096, 8192)]);
        requests.end(CONTEXT, &[0x10]);
        assert!(requests.is_empty());
    }

    #[test]
    fn what_may_be_done_long_since_does_not_count() {
        let requests = Requests::new().unwrap();
        assert!(submit(requests, CONTEXT, 0x10, 4096, 8192) && submit(requests, CONTEXT, 0x20, 8192, 16384));
        assert_eq!(requests.bytes(), 12288);
        assert!(submit(requests, CONTEXT, 0x10, 16384, 20480));
        assert_eq!(requests.bytes(), 8192);
        requests.trim(4096, 8192);
        requests.end(CONTEXT, &[0x10]);
        assert_eq!(requests.bytes(), 12288);
        assert!(requests.reserve(4096, 12288) && !requests.reserve(4096, 12288));
        assert_eq!(requests.bytes(), 16384);
        requests.unreserve(4096);
        requests.end(CONTEXT, &[0x10, 0x20]);
        assert!(requests.is_empty() && requests.bytes() == 0);
    }

    #[test]
    fn a_request_without_ranges_counts_for_the_next_with_its_block() {
        let requests = Requests::new().unwrap();
        requests.begin(CONTEXT, &[0x10]);
        assert!(submit(requests, CONTEXT, 0x10, 4096, 8192));
        requests.end(CONTEXT, &[0x10]);
        assert_eq!(ranges(requests), [(4096, 8192)]);
        requests.end(CONTEXT, &[0x10]);
        assert!(requests.is_empty());
    }

    #[test]
    fn what_finds_no_place_is_not_published() {
        let requests = Requests::new().unwrap();
        for i in 1..=RANGES_MAX as u64 {
            assert!(submit(requests, CONTEXT, i, i * 8192, i * 8192 + 4096));
        }
        assert!(!submit(requests, CONTEXT, 1 << 40, 0, 4096));
        assert!(!requests.add(CONTEXT, 7, 0, 4096));
        // A range that is covered needs no place.
        assert!(requests.add(CONTEXT, 7, 7 * 8192, 7 * 8192 + 100));
        // A block that began without a place is not published when it comes again. Nor is one that may be such a block.
        requests.end(CONTEXT, &[9]);
        assert!(!submit(requests, CONTEXT, 1 << 40, 0, 4096) && !submit(requests, CONTEXT, 10_000, 0, 4096));
        requests.end(CONTEXT, &[1 << 40, 1 << 40, 10_000]);
        assert!(submit(requests, CONTEXT, 1 << 40, 0, 4096));
        assert_eq!(ranges(requests).len(), RANGES_MAX);
        requests.freeze();
        requests.thaw();
        requests.forget_all();
        assert!(requests.is_empty() && ranges(requests).is_empty() && requests.bytes() == 0);
    }

    #[test]
    fn a_context_takes_along_what_was_submitted_to_it_before() {
        let requests = Requests::new().unwrap();
        for block in 1..4 {
            assert!(submit(requests, CONTEXT, block, block * 4096, block * 4096 + 4096));
        }
        assert!(submit(requests, CONTEXT + 1, 1, 1 << 20, 2 << 20));
        requests.leave(CONTEXT);
        requests.end(CONTEXT, &[2]);
        // Another context with the same number, before the first is seen to be gone.
        assert!(submit(requests, CONTEXT, 1, 4096, 8192));
        assert!(submit(requests, CONTEXT, 5, 5 * 4096, 6 * 4096));
        requests.end(CONTEXT, &[1]);
        assert_eq!(ranges(requests).len(), 4);
        requests.left(CONTEXT);
        assert_eq!(ranges(requests), [(1 << 20, 2 << 20), (5 * 4096, 6 * 4096)]);
        // A context that stays keeps what it has, beside what comes later.
        requests.leave(CONTEXT);
        assert!(submit(requests, CONTEXT, 5, 4096, 8192));
        assert_eq!(ranges(requests).len(), 3);
        requests.end(CONTEXT, &[5, 5]);
        requests.end(CONTEXT + 1, &[1]);
        assert!(requests.is_empty());
    }

    #[test]
    fn what_is_unmapped_leaves_the_ranges_and_not_the_count() {
        let requests = Requests::new().unwrap();
        let page = |n: u64| n * 4096;
        for (block, from, to) in [(1, 10, 20), (2, 10, 12), (3, 15, 30), (4, 5, 11), (5, 40, 41)] {
            assert!(submit(requests, CONTEXT, block, page(from), page(to)));
        }
        requests.trim(page(10), page(15));
        let left = [(5, 10), (15, 20), (15, 30), (40, 41)].map(|(from, to)| (page(from), page(to)));
        let mut all = ranges(requests);
        all.sort_unstable();
        assert_eq!((all, requests.bytes()), (left.to_vec(), page(5 + 5 + 15 + 1)));
        // In the middle of a range.
        requests.trim(page(20), page(21));
        assert_eq!(ranges(requests).len(), 4);
        requests.end(CONTEXT, &[1, 2, 3, 4, 5]);
        assert!(requests.is_empty() && requests.bytes() == 0);
    }
}
