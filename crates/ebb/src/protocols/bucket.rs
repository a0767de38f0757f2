//! An allowance that comes back with time: a bucket that anybody may take from, and that is full again at a moment.
//!
//! One word says all: that moment. To take is to put it off. What is in the bucket is the period less the time that is still to pass, so
//! nobody refills it, and a process that dies changes nothing. This is the generic cell rate algorithm of ATM networks (GCRA).
//!
//! The clock is read after the word. So on a clock that only goes forward, a moment more than a period ahead is never seen, however long a
//! thread stands still in between: the word was right for a time that is not later. If it is seen, then the clock was set back. The bucket
//! counts as empty from then on, and is full again after one period at most.

use crate::protocols::primitive::{AtomicU64, Ordering};

/// A bucket. All times are in nanoseconds. A period is the time in which an empty bucket fills.
#[derive(Debug, Default)]
pub struct Bucket {
    full_at: AtomicU64,
}

/// A bucket at one moment.
struct Look {
    /// The word, as it is.
    word: u64,
    /// When the bucket is full, but not before `now`.
    full_at: u64,
    now: u64,
    /// When a bucket that is empty now would be full.
    most: u64,
}

impl Look {
    /// For how long the bucket still has less than fills in `least` ns.
    fn missing(&self, least: u64) -> u64 {
        self.full_at.saturating_add(least).saturating_sub(self.most)
    }
}

impl Bucket {
    fn look(&self, period: u64, now: &impl Fn() -> u64) -> Look {
        loop {
            let word = self.full_at.load(Ordering::Acquire);
            let now = now();
            let most = now.saturating_add(period);
            if word <= most {
                return Look { word, full_at: word.max(now), now, most };
            }
            // The clock was set back.
            if self.full_at.compare_exchange(word, most, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                return Look { word: most, full_at: most, now, most };
            }
        }
    }

    /// Takes what fills in `cost` ns, if the bucket has as much as fills in `least` ns. Returns when that was.
    pub fn take(&self, (cost, least): (u64, u64), period: u64, now: impl Fn() -> u64) -> Option<u64> {
        loop {
            let look = self.look(period, &now);
            if look.missing(least.max(cost)) > 0 {
                return None;
            }
            let put_off = look.full_at + cost;
            if self.full_at.compare_exchange(look.word, put_off, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                return Some(look.now);
            }
        }
    }

    /// Gives back what fills in `cost` ns and was taken at `taken_at`. What may have come back meanwhile by itself is left out: the
    /// bucket may have been full in between.
    pub fn give_back(&self, cost: u64, taken_at: u64, now: u64) {
        let back = cost.saturating_sub(now.saturating_sub(taken_at));
        let _ = self
            .full_at
            .fetch_update(Ordering::AcqRel, Ordering::Relaxed, |full_at| Some(full_at.saturating_sub(back)));
    }

    /// How long it takes until the bucket has as much as fills in `least` ns; 0 if it has.
    pub fn missing(&self, least: u64, period: u64, now: impl Fn() -> u64) -> u64 {
        self.look(period, &now).missing(least)
    }

    /// Has `scaled` say how long it takes until the bucket is full, from how long it takes now, because it fills at another pace.
    pub fn rescale(&self, period: u64, now: impl Fn() -> u64, scaled: impl Fn(u64) -> u64) {
        loop {
            let look = self.look(period, &now);
            let full_at = look.now.saturating_add(scaled(look.full_at - look.now));
            if self.full_at.compare_exchange(look.word, full_at, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                return;
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// A bucket of a thousand, one for each ns.
    const PERIOD: u64 = 1000;

    fn take(bucket: &Bucket, cost: u64, now: u64) -> bool {
        bucket.take((cost, 100), PERIOD, || now) == Some(now)
    }

    fn missing(bucket: &Bucket, now: u64) -> u64 {
        bucket.missing(100, PERIOD, || now)
    }

    /// Takes a hundred at a time; how often that went well.
    fn take_all(bucket: &Bucket, now: u64) -> usize {
        (0..100).take_while(|_| take(bucket, 100, now)).count()
    }

    #[test]
    fn it_gives_what_it_holds_and_then_what_comes_back() {
        let bucket = Bucket::default();
        assert_eq!((take_all(&bucket, 5000), missing(&bucket, 5000)), (10, 100));
        assert!(!take(&bucket, 100, 5099));
        assert_eq!((missing(&bucket, 5099), missing(&bucket, 5100)), (1, 0));
        assert_eq!(take_all(&bucket, 5100), 1);
        assert_eq!(take_all(&bucket, 5350), 2);
        assert_eq!(take_all(&bucket, 5400), 1, "what is left of a part counts");
        assert_eq!(take_all(&bucket, 1_000_000), 10, "it holds no more, however long nobody takes");
    }

    #[test]
    fn little_is_not_taken_either_from_one_that_has_too_little_for_much() {
        let bucket = Bucket::default();
        assert_eq!(take_all(&bucket, 5000), 10);
        assert!(!take(&bucket, 1, 5099));
        assert!(take(&bucket, 1, 5100));
        assert!(!take(&bucket, 1, 5100));
    }

    #[test]
    fn what_is_given_back_can_be_taken_again_but_never_more() {
        let bucket = Bucket::default();
        assert_eq!(take_all(&bucket, 5000), 10);
        bucket.give_back(100, 5000, 5000);
        assert_eq!(take_all(&bucket, 5000), 1);
        // It may have been full since.
        assert_eq!(take_all(&bucket, 5060), 0);
        bucket.give_back(100, 5000, 5060);
        assert_eq!(take_all(&bucket, 5060), 1, "60 came back by themselves, and 40 are given back");
        bucket.give_back(100, 5000, 6060);
        assert_eq!(take_all(&bucket, 6060), 10);
        Bucket::default().give_back(100, 0, 0);
    }

    #[test]
    fn a_clock_that_is_set_back_holds_it_for_one_period_at_most() {
        let bucket = Bucket::default();
        assert_eq!(take_all(&bucket, 1_000_000), 10);
        assert_eq!(missing(&bucket, 5000), 100, "as if it had been emptied now");
        assert_eq!(take_all(&bucket, 5000), 0);
        assert_eq!(take_all(&bucket, 5100), 1);
        assert_eq!(take_all(&bucket, 6100), 10);
        // By less than what is missing.
        assert_eq!(missing(&bucket, 6050), 100);
        assert_eq!(take_all(&bucket, 7050), 10);
    }

    #[test]
    fn a_clock_that_is_set_ahead_fills_it_and_no_more() {
        let bucket = Bucket::default();
        assert_eq!(take_all(&bucket, 5000), 10);
        assert_eq!(take_all(&bucket, 1_000_000), 10);
        assert_eq!(take_all(&bucket, 1_000_000), 0);
        // And back again.
        assert_eq!((missing(&bucket, 5001), take_all(&bucket, 6001)), (100, 10));
    }

    #[test]
    fn another_pace_changes_nothing_of_what_is_spent() {
        let bucket = Bucket::default();
        assert!(take(&bucket, 400, 5000) && take(&bucket, 400, 5000));
        // Twice as much in a period: what is spent comes back in half the time.
        bucket.rescale(PERIOD, || 5100, |spent| spent / 2);
        assert_eq!(bucket.missing(PERIOD, PERIOD, || 5100), 350);
        bucket.rescale(PERIOD, || 9000, |spent| spent * 2);
        assert_eq!(take_all(&bucket, 9000), 10);
    }
}
