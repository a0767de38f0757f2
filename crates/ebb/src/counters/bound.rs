//! A sum that is expensive to count: a cheap upper bound of it.

use crate::protocols::gate::Held;
use core::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use ebb_sync::Lock;

ebb_sync::lock_classes! {
    /// The lock of a bound.
    BoundLock = "bound";
}

/// What a sum that nobody has counted yet is taken for: more than any limit.
const UNKNOWN: usize = usize::MAX / 4;

/// An upper bound of a sum. It grows with everything that is added, and shrinks only when the sum is counted.
pub struct Bound {
    /// The sum when it was counted last, and additions since then.
    counted: AtomicUsize,
    /// Additions that are granted, but may not be in the sum yet.
    granted: AtomicUsize,
    /// Held by the one thread that counts.
    counts: Lock<(), BoundLock>,
}

/// An addition that may not be in the sum yet. When it is dropped, it is in the sum.
#[must_use = "the addition counts as made when this goes"]
pub struct Adding<'a> {
    bound: &'a Bound,
    n: usize,
}

impl Default for Bound {
    fn default() -> Self {
        Self { counted: AtomicUsize::new(0), granted: AtomicUsize::new(0), counts: Lock::new(()) }
    }
}

impl Bound {
    /// Grants the addition of `n` if the sum is at most `limit` then; none if not. Counts only if the bound alone would pass
    /// the limit. `count` returns two parts of the sum: what is added once more now, and everything else.
    pub fn try_add(
        &self,
        _held: &Held,
        n: usize,
        limit: usize,
        count: impl FnOnce() -> (usize, usize),
    ) -> Option<Adding<'_>> {
        let _one = self.counts.lock();
        let adding = || {
            self.granted.fetch_add(n, SeqCst);
            Some(Adding { bound: self, n })
        };
        let before = self.counted.load(SeqCst);
        if self.granted.load(SeqCst) + self.counted.load(SeqCst) + n <= limit {
            return adding();
        }
        let (again, beside) = count();
        // Additions that were made meanwhile may be in the count or not: they stay in the bound.
        self.counted.fetch_add((again + beside).wrapping_sub(before), SeqCst);
        // Granted first: an addition that is made between the two looks is seen twice rather than never.
        let granted = self.granted.load(SeqCst);
        let made = self.counted.load(SeqCst) - (again + beside);
        if beside + made + granted + n > limit { None } else { adding() }
    }

    /// In fork's child: the sum is another one, and nobody goes on with an addition.
    pub fn forget(&self) {
        self.granted.store(0, SeqCst);
        self.counted.store(UNKNOWN, SeqCst);
    }
}

impl Drop for Adding<'_> {
    fn drop(&mut self) {
        self.bound.counted.fetch_add(self.n, SeqCst);
        self.bound.granted.fetch_sub(self.n, SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocols::gate::tests::alone;

    /// Adds, and says whether that was granted.
    fn adds(bound: &Bound, n: usize, counted: (usize, usize)) -> bool {
        bound.try_add(&alone(), n, 100, || counted).is_some()
    }

    fn adds_uncounted(bound: &Bound, n: usize) -> bool {
        bound.try_add(&alone(), n, 100, || panic!("counted")).is_some()
    }

    #[test]
    fn what_is_below_the_limit_for_sure_is_not_counted() {
        let bound = Bound::default();
        assert!((0..4).all(|_| adds_uncounted(&bound, 25)));
    }

    #[test]
    fn what_went_away_is_found_by_counting_once() {
        let bound = Bound::default();
        assert!(adds_uncounted(&bound, 100));
        assert!(adds(&bound, 10, (0, 0)));
        assert!(adds_uncounted(&bound, 90));
    }

    #[test]
    fn what_is_refused_leaves_what_was_counted() {
        let bound = Bound::default();
        assert!(!adds(&bound, 101, (0, 40)));
        assert!(adds_uncounted(&bound, 60));
        assert!(!adds(&bound, 1, (0, 100)));
    }

    #[test]
    fn what_is_added_once_more_counts_once() {
        let bound = Bound::default();
        assert!(adds_uncounted(&bound, 60));
        assert!(adds(&bound, 60, (60, 0)));
        assert!(!adds(&bound, 60, (0, 60)));
    }

    #[test]
    fn what_is_granted_and_not_in_the_sum_yet_counts() {
        let bound = Bound::default();
        let first = bound.try_add(&alone(), 60, 100, || panic!("counted")).expect("room");
        // A count finds nothing of it.
        assert!(!adds(&bound, 60, (0, 0)));
        let second = bound.try_add(&alone(), 30, 100, || panic!("counted")).expect("room");
        assert!(!adds(&bound, 20, (0, 0)));
        drop((first, second));
        assert!(adds(&bound, 10, (0, 90)));
    }

    #[test]
    fn what_is_made_during_a_count_is_not_lost() {
        let bound = Bound::default();
        let first = bound.try_add(&alone(), 60, 100, || panic!("counted")).expect("room");
        // The count passes by before the first addition is made.
        let second = bound.try_add(&alone(), 50, 100, || {
            drop(first);
            (0, 0)
        });
        assert!(second.is_none());
        assert!(!adds(&bound, 50, (0, 60)));
        assert!(adds(&bound, 40, (0, 60)));
    }

    #[test]
    fn what_is_forgotten_is_counted() {
        let bound = Bound::default();
        core::mem::forget(bound.try_add(&alone(), 60, 100, || panic!("counted")));
        bound.forget();
        assert!(adds(&bound, 70, (0, 30)));
    }

    #[test]
    fn two_who_count_lose_nothing() {
        let bound = Bound::default();
        assert!(adds_uncounted(&bound, 100));
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| assert!(adds(&bound, 10, (0, 60))));
            }
        });
        assert!(!adds(&bound, 21, (0, 80)));
    }
}
