//! What read-ahead remembers: the front of the walk that asked last, and which threads walk.

use crate::base::clock;
use crate::threads::walker::Walker;
use core::sync::atomic::Ordering::{Relaxed, SeqCst};
use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize};

/// Windows that walks do without help after a walker has lost its processor: at first, and at most.
const ALONE_MIN: u32 = 8;
const ALONE_MAX: u32 = 1024;
/// A thread that has not walked for this long, in steps of [`clock::stamp`], no longer walks.
pub(crate) const PERIOD_STAMPS: u32 = 8;

/// Where the last walk is, and who walks.
#[derive(Default)]
pub struct ReadAhead {
    /// The front of the walk that asked last, with bit 0 set when it writes; 0 for none.
    pub(crate) front: AtomicUsize,
    /// Where that walk's region ends. Stored before the front, and not in one step with it: for a moment it may be
    /// another walk's.
    pub(crate) limit: AtomicUsize,
    /// The front that the background thread saw last.
    pub(crate) seen: AtomicUsize,
    /// The front for which nothing is left to do.
    pub(crate) served: AtomicUsize,
    /// Up to where what the walk needs of files has been fetched, as far as anybody knows.
    pub(crate) fetched: AtomicUsize,
    /// Threads that walk in this period, and threads that walked in the one before: one bit each.
    pub(crate) walkers: [AtomicU64; 2],
    pub(crate) period: AtomicU32,
    /// Windows that walks have yet to do without help.
    pub(crate) alone: AtomicU32,
    /// How many windows that was the last time. Falls by one with each window done with help.
    pub(crate) backoff: AtomicU32,
}

impl ReadAhead {
    /// Counts the threads that walk now, with the one of number `thread`. Two threads that share a bit count as one.
    pub(crate) fn nr_walkers(&self, thread: usize, period: u32) -> usize {
        if clock::is_forbidden() {
            // Without a clock, nobody can tell which threads no longer walk.
            return 1;
        }
        let [now, before] = &self.walkers;
        let last = self.period.swap(period, Relaxed);
        if last != period {
            let old = now.swap(0, Relaxed);
            before.store(if last.wrapping_add(1) == period { old } else { 0 }, Relaxed);
        }
        let bit = 1 << (thread % 64);
        if now.load(Relaxed) & bit == 0 {
            now.fetch_or(bit, Relaxed);
        }
        (now.load(Relaxed) | before.load(Relaxed)).count_ones() as usize
    }

    /// True when a walker should ask for help with what comes next. `preempted` is how often its thread has lost its
    /// processor so far, `now` is the time as [`clock::stamp`] gives it.
    pub(crate) fn is_of_use(&self, walker: &Walker, preempted: u32, now: u32) -> bool {
        // A processor lost long after the last help was not lost because of it.
        let is_recent = now.wrapping_sub(walker.looked.swap(now, Relaxed)) < PERIOD_STAMPS;
        let is_preempted = walker.preempted.swap(preempted, Relaxed) != preempted && is_recent;
        let (alone, backoff) = (self.alone.load(Relaxed), self.backoff.load(Relaxed));
        if alone > 0 {
            // A processor lost now is not lost because of help: there is none.
            self.alone.store(alone - 1, Relaxed);
            return false;
        }
        if !is_preempted {
            self.backoff.store(backoff.saturating_sub(1), Relaxed);
            return true;
        }
        let next = (2 * backoff).clamp(ALONE_MIN, ALONE_MAX);
        self.backoff.store(next, Relaxed);
        self.alone.store(next, Relaxed);
        false
    }

    /// True when a walk has moved and nobody has looked at it yet.
    pub fn is_wanted(&self) -> bool {
        self.front.load(SeqCst) != self.served.load(Relaxed)
    }

    /// Returns the front, and remembers it as seen by the background thread.
    pub(crate) fn look(&self) -> usize {
        let front = self.front.load(SeqCst);
        self.seen.store(front, Relaxed);
        front
    }

    /// Ends the work for the walk as it was last seen, until it moves. Also when there was no room or no time for all.
    pub fn rest(&self) {
        self.served.store(self.seen.load(Relaxed), Relaxed);
    }

    /// Begins anew in fork's child: the walk is not the child's.
    pub fn reset(&self) {
        self.look();
        self.rest();
        self.fetched.store(0, Relaxed);
        self.alone.store(0, Relaxed);
        self.backoff.store(0, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_loses_its_processor_goes_on_alone_for_longer_each_time() {
        let (ahead, walker) = (ReadAhead::default(), Walker::default());
        let mut now = 100;
        // Losses before the first look are nobody's fault.
        assert!(ahead.is_of_use(&walker, 7, now) && ahead.is_of_use(&walker, 7, now));
        let mut alone = |preempted: u32| {
            assert!(!ahead.is_of_use(&walker, preempted, now));
            let times = (0..).take_while(|_| !ahead.is_of_use(&walker, preempted, now)).count() as u32;
            now += PERIOD_STAMPS - 1;
            times
        };
        assert_eq!(alone(8), ALONE_MIN);
        assert_eq!(alone(10), 2 * (ALONE_MIN - 1));
        (2..20).for_each(|i| assert!(alone(10 * i) <= ALONE_MAX));
        assert_eq!(ahead.backoff.load(Relaxed), ALONE_MAX - 1);
        // After a long time without a loss, the next pause is short again.
        let now = now - 1;
        (0..ALONE_MAX).for_each(|_| assert!(ahead.is_of_use(&walker, 190, now)));
        assert!(!ahead.is_of_use(&walker, 203, now));
        assert_eq!(ahead.backoff.load(Relaxed), ALONE_MIN);
        // Losses between two walks are nobody's fault either.
        ahead.reset();
        assert!(ahead.is_of_use(&walker, 300, now + PERIOD_STAMPS));
    }

    #[test]
    fn who_walks_counts_until_the_next_period_ends() {
        let ahead = ReadAhead::default();
        assert_eq!([ahead.nr_walkers(3, 7), ahead.nr_walkers(3, 7), ahead.nr_walkers(4, 7)], [1, 1, 2]);
        assert_eq!([ahead.nr_walkers(4, 8), ahead.nr_walkers(4, 9)], [2, 1]);
        assert_eq!([ahead.nr_walkers(5, 9), ahead.nr_walkers(5, 11)], [2, 1]);
    }
}
