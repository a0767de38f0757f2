//! A counter of pages with a limit, and charges that go up a line of counters.
//!
//! It is the kernel's `page_counter`, but for one thing: a charge that a counter refuses leaves no trace in it at any
//! moment, because a charge is a compare-and-swap and not an addition that is taken back. So a charge that does not fit
//! never makes a charge fail that would have fitted in the same counter. Readers never see more than the limit, unless
//! a charge was forced or the limit was lowered.
//!
//! Orderings: all relaxed. A counter publishes nothing; a thread that needs sums that agree closes the gate.

use crate::protocols::primitive::AtomicU64;
use crate::protocols::primitive::Ordering::Relaxed;

/// No limit.
pub const NO_LIMIT: u64 = u64::MAX;

/// Pages charged to one group and its descendants.
#[derive(Debug)]
pub struct Counter {
    current: AtomicU64,
    peak: AtomicU64,
    max: AtomicU64,
}

impl Default for Counter {
    fn default() -> Self {
        Self::new(NO_LIMIT)
    }
}

impl Counter {
    /// A counter with nothing charged, and room for `max` pages.
    pub fn new(max: u64) -> Self {
        Self { current: AtomicU64::new(0), peak: AtomicU64::new(0), max: AtomicU64::new(max) }
    }

    /// Starts anew with a limit of `max` pages. Nobody else may use the counter meanwhile.
    pub fn reset(&self, max: u64) {
        self.current.store(0, Relaxed);
        self.peak.store(0, Relaxed);
        self.max.store(max, Relaxed);
    }

    /// Charges `n` pages. False, and nothing is charged, when that would pass the limit.
    pub fn try_charge(&self, n: u64) -> bool {
        let mut now = self.current.load(Relaxed);
        loop {
            if n > self.max.load(Relaxed).saturating_sub(now) {
                return false;
            }
            match self.current.compare_exchange_weak(now, now + n, Relaxed, Relaxed) {
                Ok(_) => break,
                Err(seen) => now = seen,
            }
        }
        self.raise_peak(now + n);
        true
    }

    /// Charges `n` pages whatever the limit.
    pub fn force_charge(&self, n: u64) {
        let now = self.current.fetch_add(n, Relaxed) + n;
        self.raise_peak(now);
    }

    /// Takes a charge back.
    pub fn uncharge(&self, n: u64) {
        let before = self.current.fetch_sub(n, Relaxed);
        debug_assert!(before >= n, "uncharged more than was charged");
    }

    fn raise_peak(&self, now: u64) {
        if self.peak.load(Relaxed) < now {
            self.peak.fetch_max(now, Relaxed);
        }
    }

    /// Pages charged now.
    pub fn current(&self) -> u64 {
        self.current.load(Relaxed)
    }

    /// Most pages that were charged at any one time.
    pub fn peak(&self) -> u64 {
        self.peak.load(Relaxed)
    }

    /// The limit in pages; [`NO_LIMIT`] for none.
    pub fn max(&self) -> u64 {
        self.max.load(Relaxed)
    }

    /// Sets the limit. What is charged already stays, even above it.
    pub fn set_max(&self, max: u64) {
        self.max.store(max, Relaxed);
    }

    /// True when not one page more may be charged.
    pub fn is_full(&self) -> bool {
        self.current() >= self.max()
    }
}

/// Charges `n` pages to every counter of a line, from a group to its topmost ancestor, or to none. The error is the
/// place in the line of the counter whose limit that would pass.
pub fn try_charge_line<'a>(line: impl Iterator<Item = &'a Counter> + Clone, n: u64) -> Result<(), usize> {
    for (i, counter) in line.clone().enumerate() {
        if !counter.try_charge(n) {
            line.take(i).for_each(|counter| counter.uncharge(n));
            return Err(i);
        }
    }
    Ok(())
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_charge_up_to_the_limit_fits_and_one_beyond_charges_nothing() {
        let counter = Counter::new(10);
        assert!(counter.try_charge(10));
        assert!(!counter.try_charge(1));
        assert_eq!((counter.current(), counter.peak()), (10, 10));
    }

    #[test]
    fn a_limit_below_what_is_charged_takes_nothing_more() {
        let counter = Counter::new(NO_LIMIT);
        counter.force_charge(10);
        counter.set_max(4);
        assert!(!counter.try_charge(1) && counter.is_full());
        counter.uncharge(7);
        assert!(counter.try_charge(1));
        assert_eq!((counter.current(), counter.peak()), (4, 10));
    }

    #[test]
    fn a_line_is_charged_as_a_whole_or_not_at_all() {
        let line = [Counter::new(10), Counter::new(5), Counter::new(7)];
        assert_eq!(try_charge_line(line.iter(), 5), Ok(()));
        assert_eq!(try_charge_line(line.iter(), 1), Err(1));
        assert_eq!(line.each_ref().map(Counter::current), [5, 5, 5]);
        assert_eq!(line.each_ref().map(Counter::peak), [6, 5, 5]);
    }
}
