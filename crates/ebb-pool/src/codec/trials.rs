//! Whether to try to compress a page at all.
//!
//! Where memory holds what is compressed or encrypted already, page after page is tried in vain, and that costs more than
//! to encrypt the page and write it. So after some failures in a row, pages that look random are passed over, and only one
//! in sixteen of them is tried. The first page that shrinks ends this. A page that repeats a stretch of random bytes looks
//! random, too: of such pages, if they follow each other, fifteen are missed at most.
//!
//! The idea is the heuristic of btrfs (`fs/btrfs/compression.c`), which looks at samples of the bytes.

use super::{PAGE_BYTES, Page};

/// Failures in a row after which pages are passed over.
const FAILURES_MIN: u32 = 8;
/// Pages that are passed over before one that looks random is tried.
const PASSED_MAX: u32 = 15;

/// Words that are looked at, and the distance from one to the next.
const SAMPLES: usize = 32;
const STEP_BYTES: usize = PAGE_BYTES / SAMPLES;
/// Of the samples' bytes, how many of a random page have their top bit set: half of them, and hardly ever as few or as
/// many (four standard deviations).
const TOP_BITS: core::ops::RangeInclusive<u32> = 96..=160;
/// Of the samples, how many of a random page have the same first byte as the one before, or the same last byte, at most.
const ALIKE_MAX: usize = 3;

/// How the attempts to compress pages went that came one after the other. Any content is valid, so zeroed memory can be
/// used as one.
#[derive(Clone, Copy, Default, Debug)]
#[repr(C)]
pub struct Trials {
    failures: u32,
    passed: u32,
}

impl Trials {
    /// Whether to try to compress `page`, which comes next.
    #[inline]
    pub fn is_worth_it(&mut self, page: &Page) -> bool {
        if self.failures < FAILURES_MIN || !looks_random(page) {
            return true;
        }
        let is_tried = self.passed >= PASSED_MAX;
        self.passed = if is_tried { 0 } else { self.passed + 1 };
        is_tried
    }

    /// Notes whether a page shrank enough that was tried.
    #[inline]
    pub fn note(&mut self, shrank: bool) {
        self.failures = if shrank { 0 } else { self.failures.saturating_add(1) };
    }
}

/// Whether a page looks as if its bytes were random: text, numbers, pointers and most else that is in memory does not.
fn looks_random(page: &Page) -> bool {
    let word = |i: usize| u64::from_le_bytes(core::array::from_fn(|byte| page[i * STEP_BYTES + byte]));
    let (mut top_bits, mut last_alike, mut first_alike) = (0, 0, 0);
    let mut before = !word(0);
    for i in 0..SAMPLES {
        let word = word(i);
        top_bits += (word & 0x8080_8080_8080_8080).count_ones();
        last_alike += usize::from(word >> 56 == before >> 56);
        first_alike += usize::from(word as u8 == before as u8);
        before = word;
    }
    TOP_BITS.contains(&top_bits) && last_alike <= ALIKE_MAX && first_alike <= ALIKE_MAX
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes without a pattern (SplitMix64).
    fn random(seed: u64) -> Page {
        let mut state = seed;
        let mut page = [0; PAGE_BYTES];
        for word in page.as_chunks_mut::<8>().0 {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = state;
            z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
            *word = (z ^ z >> 31).to_le_bytes();
        }
        page
    }

    fn words(word: impl Fn(u64) -> u64) -> Page {
        let mut page = [0; PAGE_BYTES];
        (0..).zip(page.as_chunks_mut().0).for_each(|(i, to)| *to = word(i).to_le_bytes());
        page
    }

    #[test]
    fn random_pages_look_random() {
        let missed = (0..10_000).filter(|seed| !looks_random(&random(*seed << 32))).count();
        assert!(missed < 10, "{missed} of 10,000");
    }

    #[test]
    fn what_programs_hold_does_not() {
        let text = b"In the beginning the Universe was created. This has made a lot of people very angry. ";
        assert!(!looks_random(&core::array::from_fn(|i| text[i % text.len()])));
        let bytes = random(1);
        assert!(
            !looks_random(&core::array::from_fn(|i| b"etaoin shrdlu"[bytes[i] as usize % 13])),
            "letters at random"
        );
        assert!(!looks_random(&core::array::from_fn(|i| b"\xd0\xb0\xd0\xbe\xd1\x80"[i % 6])), "letters of two bytes");
        let at = |i: u64| u64::from_le_bytes(bytes[i as usize % 512 * 8..][..8].try_into().expect("eight"));
        assert!(!looks_random(&words(|i| 0x7f00_0000_0000 | at(i) >> 32)), "pointers");
        assert!(!looks_random(&words(|i| (at(i) as f64 / 1e16).to_bits())), "floating point");
        assert!(!looks_random(&words(|i| at(i) << 16)), "low bytes of zero");
        assert!(!looks_random(&[0; PAGE_BYTES]) && !looks_random(&[0xff; PAGE_BYTES]));
        assert!(!looks_random(&core::array::from_fn(|i| (i * i / 64) as u8)));
    }

    #[test]
    fn after_a_row_of_failures_one_page_in_sixteen_is_tried() {
        let mut trials = Trials::default();
        let mut tried = 0;
        for seed in 0..8 + 16 * 10 {
            if trials.is_worth_it(&random(seed << 32)) {
                tried += 1;
                trials.note(false);
            }
        }
        assert_eq!(tried, 8 + 10);
    }

    #[test]
    fn hard_pages_that_do_not_look_random_keep_no_others_from_their_trial() {
        let mut trials = Trials { failures: FAILURES_MIN, passed: 0 };
        let mut tried = 0;
        for seed in 0..16 * 10 {
            // As an array of random doubles: always tried, always in vain.
            assert!(trials.is_worth_it(&words(|i| i << 48 | 7)));
            trials.note(false);
            if trials.is_worth_it(&random(seed << 32)) {
                tried += 1;
                trials.note(false);
            }
        }
        assert_eq!(tried, 10);
    }

    #[test]
    fn a_page_that_shrinks_ends_it_and_one_that_does_not_look_random_is_tried() {
        let mut trials = Trials { failures: FAILURES_MIN, passed: 0 };
        assert!(!trials.is_worth_it(&random(1)) && !trials.is_worth_it(&random(2)));
        assert!(trials.is_worth_it(&words(|i| i)));
        trials.note(true);
        assert!((0..10).all(|seed| trials.is_worth_it(&random(seed << 32))));
    }

    #[test]
    fn anything_may_be_where_it_lies() {
        let mut trials = Trials { failures: u32::MAX, passed: u32::MAX };
        assert!(trials.is_worth_it(&random(1)));
        trials.note(false);
        assert_eq!(trials.failures, u32::MAX);
        assert!(!trials.is_worth_it(&random(1)));
    }
}
