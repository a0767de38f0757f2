//! What read-ahead remembers: the front of the walk that asked last, and who walks.

use crate::base::clock;
use crate::threads::walker::Walker;
use core::sync::atomic::Ordering::{Relaxed, SeqCst};
use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize};

/// Windows that a walker does without help after it has lost its processor: at first and at most.
const ALONE_MIN: u32 = 8;
const ALONE_MAX: u32 = 1024;
/// Who has not walked for so long, in steps of [`clock::stamp`], walks no more.
pub(crate) const PERIOD_STAMPS: u32 = 8;

/// Where the last walk is.
#[derive(Default)]
pub struct ReadAhead {
    /// The front of the walk that asked last, and 1 when it writes; 0 for none.
    pub(crate) front: AtomicUsize,
    /// Where its region ends: stored first, and not with it, so that it may be another walk's for a moment.
    pub(crate) limit: AtomicUsize,
    /// The front that the background thread has seen last.
    pub(crate) seen: AtomicUsize,
    /// The front for which all is done that is to be done.
    pub(crate) served: AtomicUsize,
    /// Which threads walk in this period and walked in the one before, a bit each.
    pub(crate) walkers: [AtomicU64; 2],
    pub(crate) period: AtomicU32,
    /// Windows that walks go on alone.
    pub(crate) alone: AtomicU32,
    /// How many these were the last time.
    pub(crate) backoff: AtomicU32,
}

impl ReadAhead {
    /// How many threads walk now, with that of number `thread`. Two that share a bit are one.
    pub(crate) fn nr_walkers(&self, thread: usize, period: u32) -> usize {
        if clock::is_forbidden() {
            // Nobody can tell who walks no more.
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

    /// Whether a walker should ask for help with what comes next. `preempted`: how often it has lost its processor so far; `now`:
    /// as [`clock::stamp`].
    pub(crate) fn is_of_use(&self, walker: &Walker, preempted: u32, now: u32) -> bool {
        // To lose it long after the last help is not for that.
        let is_recent = now.wrapping_sub(walker.looked.swap(now, Relaxed)) < PERIOD_STAMPS;
        let is_preempted = walker.preempted.swap(preempted, Relaxed) != preempted && is_recent;
        let (alone, backoff) = (self.alone.load(Relaxed), self.backoff.load(Relaxed));
        if alone > 0 {
            // To lose it now is not for the help.
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

    /// A walk has moved, and nobody has looked at it yet.
    pub fn is_wanted(&self) -> bool {
        self.front.load(SeqCst) != self.served.load(Relaxed)
    }

    /// The front, as the background thread sees it.
    pub(crate) fn look(&self) -> usize {
        let front = self.front.load(SeqCst);
        self.seen.store(front, Relaxed);
        front
    }

    /// Nothing more is done for the walk as it was seen last, until it moves; also when there was no room or no time for all.
    pub fn rest(&self) {
        self.served.store(self.seen.load(Relaxed), Relaxed);
    }

    /// In fork's child, whose walk it is not.
    pub fn reset(&self) {
        self.look();
        self.rest();
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
        // What happened before is nobody's fault.
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
        // Long without: the next time is short again.
        let now = now - 1;
        (0..ALONE_MAX).for_each(|_| assert!(ahead.is_of_use(&walker, 190, now)));
        assert!(!ahead.is_of_use(&walker, 203, now));
        assert_eq!(ahead.backoff.load(Relaxed), ALONE_MIN);
        // And what happens between two walks is nobody's fault either.
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
