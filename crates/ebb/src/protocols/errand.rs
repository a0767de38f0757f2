//! What one process asks another to do with some of its pages, and whether that is done.
//!
//! All of a request is in one word, so that no two requests mix, and a process that is killed leaves no half of one. A request is
//! offered in a free word, taken by the process that it is for, and ends. Whoever offered it sees its end by a count: there is
//! one request at a time, so the next one that ends is its own. It may withdraw the request as long as nobody has taken it.

use crate::protocols::primitive::{AtomicU32, AtomicU64, Ordering};

/// What to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u64)]
pub enum What {
    /// MADV_COLD.
    Cold = 1,
    /// MADV_PAGEOUT.
    PageOut = 2,
}

/// The word of a request that was taken.
const TAKEN: u64 = 3;
const WHAT_BITS: u32 = 2;
const FIRST_BITS: u32 = 35;

/// What to do with which pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    /// What to do.
    pub what: What,
    /// Number of the first page: its address by its size.
    pub first: u64,
    /// Number of pages.
    pub pages: u64,
}

impl Request {
    /// Most pages of a request.
    pub const PAGES_MAX: u64 = (1 << (64 - WHAT_BITS - FIRST_BITS)) - 1;

    fn to_bits(self) -> u64 {
        debug_assert!(self.first >> FIRST_BITS == 0 && self.pages <= Self::PAGES_MAX);
        self.pages << (WHAT_BITS + FIRST_BITS) | self.first << WHAT_BITS | self.what as u64
    }

    fn of_bits(bits: u64) -> Option<Self> {
        let what = match bits & ((1 << WHAT_BITS) - 1) {
            1 => What::Cold,
            2 => What::PageOut,
            _ => return None,
        };
        let first = bits >> WHAT_BITS & ((1 << FIRST_BITS) - 1);
        Some(Self { what, first, pages: bits >> (WHAT_BITS + FIRST_BITS) })
    }
}

/// How far a request is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stage {
    /// Nobody has taken it.
    Offered,
    /// The process is at it.
    Taken,
    /// It was done.
    Done,
    /// The process is gone.
    Lost,
}

/// A request that somebody has offered.
#[derive(Clone, Copy, Debug)]
pub struct Offer {
    bits: u64,
    /// Requests that had ended before.
    before: u32,
}

/// The place for a request to one process. Zeroed memory is a free one.
#[derive(Debug)]
#[repr(C)]
pub struct Errand {
    word: AtomicU64,
    /// Requests that have ended.
    ended: AtomicU32,
}

impl Default for Errand {
    fn default() -> Self {
        Self { word: AtomicU64::new(0), ended: AtomicU32::new(0) }
    }
}

impl Errand {
    /// Offers a request; none while there is another one.
    pub fn offer(&self, request: Request) -> Option<Offer> {
        let bits = request.to_bits();
        // Acquire: what has ended before the word was free is counted.
        self.word.compare_exchange(0, bits, Ordering::AcqRel, Ordering::Relaxed).ok()?;
        Some(Offer { bits, before: self.ended.load(Ordering::Relaxed) })
    }

    /// True if there seems to be a request that nobody has taken.
    #[inline]
    pub fn is_offered(&self) -> bool {
        Request::of_bits(self.word.load(Ordering::Relaxed)).is_some()
    }

    /// Takes the request, for the process that it is for.
    pub fn take(&self) -> Option<Request> {
        let bits = self.word.load(Ordering::Relaxed);
        let request = Request::of_bits(bits)?;
        self.word.compare_exchange(bits, TAKEN, Ordering::AcqRel, Ordering::Relaxed).is_ok().then_some(request)
    }

    /// Ends the request that was taken.
    pub fn end(&self) {
        self.ended.fetch_add(1, Ordering::Release);
        let _ = self.word.compare_exchange(TAKEN, 0, Ordering::Release, Ordering::Relaxed);
    }

    /// How far a request is.
    pub fn stage(&self, offer: Offer) -> Stage {
        let word = self.word.load(Ordering::Acquire);
        if self.ended.load(Ordering::Acquire) != offer.before {
            return Stage::Done;
        }
        match word {
            TAKEN => Stage::Taken,
            _ if word == offer.bits => Stage::Offered,
            _ => Stage::Lost,
        }
    }

    /// Takes a request back. False if it is too late for that.
    pub fn withdraw(&self, offer: Offer) -> bool {
        self.word.compare_exchange(offer.bits, 0, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// The word that [`Self::end`] changes, to wait for.
    pub fn ended(&self) -> &AtomicU32 {
        &self.ended
    }

    /// Forgets the request, for another process that gets the place.
    pub fn clear(&self) {
        self.word.store(0, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const REQUEST: Request = Request { what: What::PageOut, first: (1 << 35) - 1, pages: Request::PAGES_MAX };

    #[test]
    fn a_request_goes_through_its_stages() {
        let errand = Errand::default();
        assert!(errand.take().is_none() && !errand.is_offered());
        let offer = errand.offer(REQUEST).unwrap();
        assert!(errand.offer(REQUEST).is_none() && errand.is_offered());
        assert_eq!(errand.stage(offer), Stage::Offered);
        assert_eq!(errand.take(), Some(REQUEST));
        assert_eq!((errand.stage(offer), errand.withdraw(offer), errand.take()), (Stage::Taken, false, None));
        errand.end();
        assert_eq!(errand.stage(offer), Stage::Done);
        // The same once more, by another process: the first still sees its own end.
        let other = errand.offer(REQUEST).unwrap();
        assert_eq!((errand.stage(offer), errand.stage(other)), (Stage::Done, Stage::Offered));
        assert!(errand.withdraw(other) && errand.take().is_none());
        let lost = errand.offer(Request { what: What::Cold, first: 7, pages: 1 }).unwrap();
        errand.clear();
        assert_eq!((errand.stage(lost), errand.withdraw(lost)), (Stage::Lost, false));
    }

    #[test]
    fn whatever_the_word_says_is_a_request_or_none() {
        for bits in [0, 3, u64::MAX, 1, 2, 1 << 63 | 1] {
            let errand = Errand { word: AtomicU64::new(bits), ended: AtomicU32::new(0) };
            let found = errand.take();
            assert_eq!(found.is_some(), matches!(bits % 4, 1 | 2), "{bits:x}");
            assert!(found.is_none_or(|request| request.to_bits() == bits));
        }
    }
}
