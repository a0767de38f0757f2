//! A sum that is expensive to count: a cheap upper bound of it.

use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// An upper bound of a sum. It grows with everything that is added, and shrinks only when the sum is counted.
#[derive(Debug, Default)]
pub struct Bound(AtomicUsize);

impl Bound {
    /// Adds `n` if the sum is at most `limit` then; false if not. Counts only if the bound alone would pass the limit:
    /// `count` returns the sum without these `n`.
    pub fn try_add(&self, n: usize, limit: usize, count: impl FnOnce() -> usize) -> bool {
        let bound = self.0.fetch_add(n, Relaxed) + n;
        if bound <= limit {
            return true;
        }
        let beside = count();
        let fits = beside + n <= limit;
        let counted = if fits { beside + n } else { beside };
        // Additions of other threads since then stay in the bound.
        self.0.fetch_sub(bound.saturating_sub(counted), Relaxed);
        fits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_below_the_limit_for_sure_is_not_counted() {
        let bound = Bound::default();
        assert!((0..4).all(|_| bound.try_add(25, 100, || panic!("counted"))));
    }

    #[test]
    fn what_went_away_is_found_by_counting_once() {
        let bound = Bound::default();
        assert!(bound.try_add(100, 100, || panic!("counted")));
        assert!(bound.try_add(10, 100, || 0));
        assert!(bound.try_add(90, 100, || panic!("counted")));
    }

    #[test]
    fn what_is_refused_leaves_what_was_counted() {
        let bound = Bound::default();
        assert!(!bound.try_add(101, 100, || 40));
        assert!(bound.try_add(60, 100, || panic!("counted")));
        assert!(!bound.try_add(1, 100, || 100));
    }
}
