//! In what share of the time at least one thread of a tree waited for swap: "some" of the kernel's pressure stall information (PSI).
//!
//! Time that threads wait does not add up to that: two that wait at once count once. So the clock has instants, two million cycles
//! apart, and each of them has a bit. Whoever has waited across an instant sets its bit, and the share of bits that are set is an
//! unbiased estimate of the share of the time. A wait of microseconds seldom crosses an instant, so nearly all faults pay for one
//! comparison and write nothing.
//!
//! A word has the bits of 32 instants that follow each other, and the number of its 32: a ring of them needs nobody who clears it. A
//! wait counts when it ends. That of a thread that is killed meanwhile never does, and leaves nothing behind.
//!
//! Whoever is the first to set the bit of an instant counts it for good, so the time in which somebody waited is known from the
//! beginning on, too.

use crate::protocols::primitive::{AtomicU64, Ordering};

/// Cycles from one instant to the next, as a power of two: 0.4 to 2 ms.
pub const INSTANT_SHIFT: u32 = 21;
/// Instants of one word, as a power of two.
const WORD_SHIFT: u32 = 5;
const PER_WORD: u64 = 1 << WORD_SHIFT;
/// Words of the ring: 13 seconds at 5 GHz, and longer on slower clocks.
const WORDS: usize = 1024;
/// Instants that are remembered for sure: the word of the current ones may have just begun.
pub const INSTANTS_MAX: u64 = (WORDS as u64 - 1) * PER_WORD;

/// The bits of 32 instants below the number of these 32.
#[repr(transparent)]
#[derive(Debug, Default)]
pub struct Word(AtomicU64);

impl Word {
    /// Sets `bits` of the instants with this number, and returns how many were not set yet. Those of an earlier number make room; for a
    /// later one it is too late.
    pub fn set(&self, number: u32, bits: u32) -> u32 {
        let merged = |old: u64| {
            let (its, marked) = ((old >> 32) as u32, old as u32);
            // One that is further ahead is none: anything may have been written there. And 0 nobody has set.
            let is_later = old != 0 && (1..=WORDS as u32).contains(&its.wrapping_sub(number));
            let marked = if its == number { marked } else { 0 };
            (!is_later).then_some(u64::from(number) << 32 | u64::from(marked | bits))
        };
        // The bits say nothing of other memory.
        match self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, merged) {
            Ok(old) if (old >> 32) as u32 == number => (bits & !(old as u32)).count_ones(),
            Ok(_) => bits.count_ones(),
            Err(_) => 0,
        }
    }

    /// The bits of the instants with this number.
    pub fn bits(&self, number: u32) -> u32 {
        let word = self.0.load(Ordering::Relaxed);
        if (word >> 32) as u32 == number { word as u32 } else { 0 }
    }
}

/// The instants of the last seconds.
#[repr(C)]
#[derive(Debug)]
pub struct Stalls {
    words: [Word; WORDS],
    /// Instants across which somebody waited, ever.
    total: AtomicU64,
}

/// The bits from one to another, both included, of 32.
fn from_to(first: u64, last: u64) -> u32 {
    (u32::MAX << first) & (u32::MAX >> (PER_WORD - 1 - last))
}

/// Calls `f` with each word of the instants from `first` to `last`: its place, its number, and the bits of these instants.
fn each_word(first: u64, last: u64, mut f: impl FnMut(usize, u32, u32)) {
    for number in first >> WORD_SHIFT..=last >> WORD_SHIFT {
        let begin = number << WORD_SHIFT;
        let bits = from_to(first.max(begin) - begin, last.min(begin + PER_WORD - 1) - begin);
        f(number as usize % WORDS, number as u32, bits);
    }
}

impl Stalls {
    /// Notes that a thread waited from `begin` to `end`, in cycles.
    #[inline]
    pub fn note(&self, begin: u64, end: u64) {
        let (before, last) = (begin >> INSTANT_SHIFT, end >> INSTANT_SHIFT);
        if before < last {
            self.mark(before + 1, last);
        }
    }

    #[cold]
    fn mark(&self, first: u64, last: u64) {
        let first = first.max(last.saturating_sub(INSTANTS_MAX - 1));
        each_word(first, last, |place, number, bits| {
            let new = self.words[place].set(number, bits);
            // A sum says nothing of other memory.
            self.total.fetch_add(u64::from(new), Ordering::Relaxed);
        });
    }

    /// Across how many instants somebody has waited so far.
    pub fn total(&self) -> u64 {
        self.total.load(Ordering::Relaxed)
    }

    /// At how many of the last `instants` instants before `now`, in cycles, somebody waited. At most [`INSTANTS_MAX`] are looked at.
    pub fn count(&self, now: u64, instants: u64) -> u64 {
        let last = now >> INSTANT_SHIFT;
        let first = (last + 1).saturating_sub(instants.clamp(1, INSTANTS_MAX));
        let mut count = 0;
        each_word(first, last, |place, number, bits| {
            count += u64::from((self.words[place].bits(number) & bits).count_ones());
        });
        count
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::boxed::Box;

    fn stalls() -> Box<Stalls> {
        // SAFETY: zero is a valid word.
        unsafe { Box::new(core::mem::zeroed()) }
    }

    const fn at(instant: u64) -> u64 {
        instant << INSTANT_SHIFT
    }

    /// Instants long after the clock began, so that no number is that of an untouched word.
    const BEGIN: u64 = 1 << 30;

    #[test]
    fn a_wait_counts_at_the_instants_that_it_crosses() {
        let stalls = stalls();
        stalls.note(at(BEGIN) + 1, at(BEGIN + 1) - 1);
        assert_eq!(stalls.count(at(BEGIN + 1), 100), 0, "it crosses none");
        stalls.note(at(BEGIN + 1) - 1, at(BEGIN + 1));
        stalls.note(at(BEGIN + 40) + 5, at(BEGIN + 140) + 5);
        assert_eq!(stalls.count(at(BEGIN + 140) + 9, 1000), 101);
        assert_eq!([1, 10, 100, 101, 139, 140].map(|n| stalls.count(at(BEGIN + 140), n)), [1, 10, 100, 100, 100, 101]);
        assert_eq!(stalls.count(at(BEGIN + 240), 150), 50);
        assert_eq!(stalls.total(), 101);
    }

    #[test]
    fn waits_at_one_time_count_once_in_whatever_order_they_end() {
        let stalls = stalls();
        (10..50).for_each(|i| stalls.note(at(BEGIN + i), at(BEGIN + i + 1)));
        stalls.note(at(BEGIN + 20), at(BEGIN + 100));
        stalls.note(at(BEGIN), at(BEGIN + 60));
        assert_eq!((stalls.count(at(BEGIN + 100), 1000), stalls.total()), (100, 100));
    }

    #[test]
    fn the_ring_comes_round_and_forgets() {
        let stalls = stalls();
        let round = WORDS as u64 * PER_WORD;
        stalls.note(at(BEGIN), at(BEGIN + 10 * round));
        let end = BEGIN + 10 * round;
        assert_eq!((stalls.count(at(end), u64::MAX), stalls.total()), (INSTANTS_MAX, INSTANTS_MAX));
        assert_eq!(stalls.count(at(end + 1000), INSTANTS_MAX), INSTANTS_MAX - 1000);
        assert_eq!(stalls.count(at(end + round), INSTANTS_MAX), 0);
        // What ends so late that its place is another's is left out.
        stalls.note(at(end + round), at(end + round + 3));
        stalls.note(at(end), at(end + 3));
        assert_eq!((stalls.count(at(end + round + 3), 1000), stalls.total()), (3, INSTANTS_MAX + 3));
    }

    #[test]
    fn the_first_instants_of_a_clock_and_numbers_that_wrap_are_instants_too() {
        let stalls = stalls();
        stalls.note(0, at(3));
        assert_eq!(stalls.count(at(3), 1000), 3);
        let last = (1 << (WORD_SHIFT + 32)) + 7;
        stalls.note(at(last - 20), at(last));
        assert_eq!(stalls.count(at(last), 1000), 20);
    }

    #[test]
    fn what_a_broken_process_wrote_there_is_overwritten() {
        let stalls = stalls();
        for word in &stalls.words {
            word.0.store(u64::MAX, Ordering::Relaxed);
        }
        stalls.note(at(BEGIN), at(BEGIN + 64));
        assert_eq!(stalls.count(at(BEGIN + 64), 1000), 64);
    }
}
