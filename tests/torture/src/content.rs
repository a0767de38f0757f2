//! What a page holds: a keyed pseudo-random function of a stamp, so that any page found in memory says whose it is.
//!
//! A *stamp* names one writing of one page: owner (worker), area, page number in the area, version. The first word of
//! every page is the stamp itself, encoded reversibly; the other words follow from it. So a page that is not what was
//! expected can be told apart: zero (lost), an older version of the same page (stale), another page's content
//! (swapped), or a mixture (torn).

use crate::rng::{GOLDEN, mix};
use core::fmt;
use core::sync::atomic::{AtomicU64, Ordering};

/// Bytes of a page.
pub const PAGE: usize = 4096;
/// 64-bit words of a page.
pub const WORDS: usize = PAGE / 8;
/// One page of content, outside the memory under test.
pub type Words = [u64; WORDS];

/// The run's key: contents of different runs never look alike.
static KEY: AtomicU64 = AtomicU64::new(0);

const MULTIPLIER: u64 = 0xd6e8_feb8_6659_fd93;

/// Sets the key; once, before the first page is written.
pub fn set_key(seed: u64) {
    KEY.store(mix(seed.wrapping_add(GOLDEN)), Ordering::Relaxed);
}

/// Names one writing of one page.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Stamp(pub u64);

impl Stamp {
    /// Owner 8 bits, area 14, page 20, version 22; each is cut to its width.
    pub fn new(owner: usize, area: u32, page: usize, version: u32) -> Self {
        let owner = (owner as u64 & 0xff) << 56;
        let area = (u64::from(area) & 0x3fff) << 42;
        let page = (page as u64 & 0xf_ffff) << 22;
        Self(owner | area | page | (u64::from(version) & 0x3f_ffff))
    }

    fn place(self) -> u64 {
        self.0 >> 22
    }

    fn encode(self) -> u64 {
        self.0.wrapping_mul(MULTIPLIER) ^ KEY.load(Ordering::Relaxed)
    }

    fn decode(word: u64) -> Self {
        let mut inverse = MULTIPLIER;
        // Newton's iteration doubles the correct low bits: 3, 6, 12, 24, 48, 96.
        for _ in 0..5 {
            inverse = inverse.wrapping_mul(2u64.wrapping_sub(MULTIPLIER.wrapping_mul(inverse)));
        }
        Self((word ^ KEY.load(Ordering::Relaxed)).wrapping_mul(inverse))
    }
}

impl fmt::Display for Stamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "owner {} area {} page {} version {}",
            self.0 >> 56,
            (self.0 >> 42) & 0x3fff,
            (self.0 >> 22) & 0xf_ffff,
            self.0 & 0x3f_ffff
        )
    }
}

/// Fills `out` with the content of `stamp`. Which kind of content (incompressible, compressible, same-filled, sparse)
/// follows from the stamp too.
pub fn generate(stamp: Stamp, out: &mut Words) {
    let first = stamp.encode();
    let seed = mix(first);
    match seed % 8 {
        0 | 1 => {
            for (i, word) in out.iter_mut().enumerate() {
                *word = mix(seed.wrapping_add((i as u64).wrapping_mul(GOLDEN)));
            }
        }
        2..=4 => {
            for (i, word) in out.iter_mut().enumerate() {
                *word = mix(seed.wrapping_add((i as u64 % 24).wrapping_mul(GOLDEN))) ^ (i as u64 / 96);
            }
        }
        5 => out.fill(first),
        6 => {
            out.fill(0);
            out[WORDS - 1] = first ^ 1;
            out[1 + (seed >> 8) as usize % (WORDS - 2)] = seed;
        }
        _ => {
            for (i, word) in out.iter_mut().enumerate() {
                *word = if i % 4 == 3 { mix(seed ^ i as u64) } else { seed };
            }
        }
    }
    out[0] = first;
}

/// What a page should hold.
#[derive(Clone, Copy)]
pub enum Expect {
    /// Nothing but zeroes.
    Zero,
    /// The content of a stamp.
    Data(Stamp),
    /// The content of a stamp, or zeroes (after `MADV_FREE`).
    Either(Stamp),
}

/// Whether `found` is what it should be.
pub fn matches(found: &Words, expect: Expect) -> bool {
    let is = |stamp| {
        let mut wanted = [0; WORDS];
        generate(stamp, &mut wanted);
        *found == wanted
    };
    match expect {
        Expect::Zero => is_zero(found),
        Expect::Data(stamp) => is(stamp),
        Expect::Either(stamp) => is_zero(found) || is(stamp),
    }
}

fn is_zero(found: &Words) -> bool {
    found.iter().all(|&word| word == 0)
}

/// Says in words what a wrong page is; formats without allocating.
pub struct Verdict<'a> {
    pub found: &'a Words,
    pub expect: Expect,
}

impl fmt::Display for Verdict<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let wanted_stamp = match self.expect {
            Expect::Zero => {
                f.write_str("expected zeroes; ")?;
                None
            }
            Expect::Data(stamp) => {
                write!(f, "expected {stamp}; ")?;
                Some(stamp)
            }
            Expect::Either(stamp) => {
                write!(f, "expected {stamp} or zeroes; ")?;
                Some(stamp)
            }
        };
        if is_zero(self.found) {
            return f.write_str("LOST: found nothing but zeroes");
        }
        let claimed = Stamp::decode(self.found[0]);
        let mut content = [0; WORDS];
        generate(claimed, &mut content);
        if content == *self.found {
            return match wanted_stamp {
                Some(wanted) if wanted.place() == claimed.place() => {
                    write!(f, "STALE: found {claimed}")
                }
                Some(_) => write!(f, "SWAPPED: found {claimed}"),
                None => write!(f, "RETURNED: found {claimed}, which was dropped"),
            };
        }
        let mut wanted = [0; WORDS];
        if let Some(stamp) = wanted_stamp {
            generate(stamp, &mut wanted);
        }
        let wrong = |i: &usize| self.found[*i] != wanted[*i];
        let first = (0..WORDS).find(wrong).unwrap_or(0);
        let last = (0..WORDS).rev().find(wrong).unwrap_or(0);
        let count = (0..WORDS).filter(wrong).count();
        let zeroes = (0..WORDS).filter(wrong).all(|i| self.found[i] == 0);
        write!(
            f,
            "TORN: {count} of {WORDS} words differ, at offsets {:#x}..{:#x}; first differing word {:#018x}, expected {:#018x}{}; \
             word 0 reads as {claimed}",
            first * 8,
            last * 8 + 8,
            self.found[first],
            wanted[first],
            if zeroes { "; all differing words are zero" } else { "" },
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(stamp: Stamp) -> Words {
        let mut words = [0; WORDS];
        generate(stamp, &mut words);
        words
    }

    fn verdict(found: &Words, expect: Expect) -> String {
        Verdict { found, expect }.to_string()
    }

    #[test]
    fn every_page_names_its_stamp_in_its_first_word() {
        for n in 0..5000 {
            let stamp = Stamp::new(n % 7, n as u32, n * 3, n as u32 * 5);
            assert!(Stamp::decode(page(stamp)[0]) == stamp);
        }
    }

    #[test]
    fn a_page_of_zeroes_is_lost() {
        let stamp = Stamp::new(1, 2, 3, 4);
        assert!(verdict(&[0; WORDS], Expect::Data(stamp)).contains("LOST"));
    }

    #[test]
    fn an_older_version_is_stale() {
        let found = page(Stamp::new(1, 2, 3, 4));
        assert!(verdict(&found, Expect::Data(Stamp::new(1, 2, 3, 5))).contains("STALE"));
    }

    #[test]
    fn another_page_is_swapped() {
        let found = page(Stamp::new(1, 2, 4, 4));
        assert!(verdict(&found, Expect::Data(Stamp::new(1, 2, 3, 4))).contains("SWAPPED"));
    }

    #[test]
    fn half_a_page_is_torn() {
        let stamp = Stamp::new(1, 2, 3, 4);
        let mut found = page(stamp);
        found[WORDS / 2..].fill(0x55);
        assert!(verdict(&found, Expect::Data(stamp)).contains("TORN"));
    }

    #[test]
    fn content_where_zeroes_belong_is_returned() {
        let found = page(Stamp::new(1, 2, 3, 4));
        assert!(verdict(&found, Expect::Zero).contains("RETURNED"));
    }

    #[test]
    fn either_accepts_both_and_nothing_else() {
        let stamp = Stamp::new(1, 2, 3, 4);
        assert!(matches(&page(stamp), Expect::Either(stamp)));
        assert!(matches(&[0; WORDS], Expect::Either(stamp)));
        assert!(!matches(&page(Stamp::new(1, 2, 3, 5)), Expect::Either(stamp)));
    }
}
