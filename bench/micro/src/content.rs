//! What pages hold, and whether they still hold it.
//!
//! Contents come from a bank of template pages, so that filling costs a copy and every byte can be checked later. A
//! page that is not of zeros begins with a word made of its number and the seed, then one of its number and how often
//! it was changed.

use crate::random::{Random, mix};

pub const PAGE_BYTES: usize = 4096;
const WORDS: usize = PAGE_BYTES / 8;
const TEMPLATES: usize = 256;

/// A page's content as words.
pub type Words = [u64; WORDS];

/// Kinds of data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Data {
    /// Zeros.
    Zero,
    /// One word a page, repeated.
    Same,
    /// 40 % records of pointers and small numbers, 30 % text, 20 % zeros, 10 % random: as heaps are.
    Mixed,
    /// Random: nothing to compress.
    Hard,
}

impl Data {
    pub const ALL: [(&'static str, Self); 4] =
        [("zero", Self::Zero), ("same", Self::Same), ("mixed", Self::Mixed), ("hard", Self::Hard)];

    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|(n, _)| *n == name).map(|(_, data)| data)
    }

    pub fn name(self) -> &'static str {
        Self::ALL.into_iter().find(|(_, data)| *data == self).map_or("", |(name, _)| name)
    }
}

/// What one page holds.
enum Kind {
    Zero,
    Same,
    Template(usize),
}

/// The contents of all pages of one run.
pub struct Contents {
    data: Data,
    seed: u64,
    bank: Box<[Words]>,
}

impl Contents {
    pub fn new(data: Data, seed: u64) -> Self {
        let mut random = Random::new(seed);
        let nr_templates = if matches!(data, Data::Mixed | Data::Hard) { TEMPLATES } else { 0 };
        let bank = (0..nr_templates)
            .map(|i| match (data, i % 8) {
                (Data::Mixed, 0..4) => records(&mut random),
                (Data::Mixed, 4..7) => text(&mut random),
                _ => std::array::from_fn(|_| random.next()),
            })
            .collect();
        Self { data, seed, bank }
    }

    /// The bank's memory, to be kept resident: it is no part of what is measured.
    pub fn bank(&self) -> &[Words] {
        &self.bank
    }

    fn kind(&self, page: usize) -> Kind {
        let key = mix(page as u64 ^ self.seed << 40);
        match self.data {
            Data::Zero => Kind::Zero,
            Data::Same => Kind::Same,
            Data::Mixed if key >> 32 < (1 << 32) / 5 => Kind::Zero,
            Data::Mixed | Data::Hard => Kind::Template(key as usize % TEMPLATES),
        }
    }

    /// The first two words of a page that was changed `version` times.
    #[inline]
    pub fn head(&self, page: usize, version: u8) -> [u64; 2] {
        let number = mix((page as u64) << 20 ^ self.seed);
        match self.kind(page) {
            Kind::Zero => [0, 0],
            Kind::Same => [number, number],
            Kind::Template(_) => [number, mix(number ^ version as u64)],
        }
    }

    /// Fills `to` with the content of `page`, never changed.
    #[inline]
    pub fn fill(&self, page: usize, to: &mut Words) {
        let head = self.head(page, 0);
        match self.kind(page) {
            // Stored, not skipped: reading and writing zeros is what is wanted, and the compiler cannot know it is one.
            Kind::Zero => to.fill(0),
            Kind::Same => to.fill(head[0]),
            Kind::Template(i) => {
                to.copy_from_slice(&self.bank[i]);
                to[..2].copy_from_slice(&head);
            }
        }
    }

    /// Whether `found` is the content of `page`, changed `version` times.
    pub fn is_intact(&self, page: usize, version: u8, found: &Words) -> bool {
        let head = self.head(page, version);
        let rest = match self.kind(page) {
            Kind::Zero => found[2..].iter().all(|word| *word == 0),
            Kind::Same => found[2..].iter().all(|word| *word == head[0]),
            Kind::Template(i) => found[2..] == self.bank[i][2..],
        };
        rest && found[..2] == head
    }
}

/// A page of allocated records, as an interpreter or a server has them.
fn records(random: &mut Random) -> Words {
    let heap = 0x0000_7f3a_0000_0000 | (random.next() & 0xff) << 24;
    let types: [u64; 6] = std::array::from_fn(|_| 0x0000_55d4_8a40_0000 | (random.next() & 0x3fff) << 5);
    let mut page = [0; WORDS];
    for record in page.chunks_exact_mut(8) {
        let kind = random.below(types.len());
        record[0] = 0x41;
        record[1] = 1 + random.below(3) as u64;
        record[2] = types[kind];
        record[3] = random.below(200) as u64;
        record[4] = if kind < 3 { heap | (random.next() & 0x000f_ffff) << 4 } else { 0 };
        record[5] = if kind < 1 { random.next() >> 32 } else { random.below(60) as u64 };
        record[6] = types[random.below(types.len())];
    }
    page
}

/// A page of text: lines such as logs and messages have.
fn text(random: &mut Random) -> Words {
    const WORDS_USED: [&str; 48] = [
        "the",
        "request",
        "of",
        "user",
        "and",
        "session",
        "to",
        "in",
        "was",
        "for",
        "error",
        "with",
        "value",
        "from",
        "connection",
        "status",
        "is",
        "page",
        "time",
        "memory",
        "not",
        "cache",
        "server",
        "on",
        "returned",
        "after",
        "by",
        "queue",
        "message",
        "that",
        "until",
        "process",
        "number",
        "retry",
        "which",
        "index",
        "content",
        "update",
        "has",
        "item",
        "closed",
        "at",
        "thread",
        "line",
        "handled",
        "timeout",
        "order",
        "account",
    ];
    let mut bytes = Vec::with_capacity(PAGE_BYTES + 64);
    while bytes.len() < PAGE_BYTES {
        match random.below(20) {
            0 => bytes.extend(format!("{} ", random.below(1_000_000)).bytes()),
            1 => bytes.extend(b"\n2026-01-01 INFO "),
            2 => bytes.extend(format!("{:08x} ", random.next() as u32).bytes()),
            // The product of three numbers: some words are much likelier than others.
            _ => {
                let word = WORDS_USED[random.below(48) * random.below(48) * random.below(48) / (48 * 48)];
                bytes.extend(word.bytes());
                bytes.push(b' ');
            }
        }
    }
    std::array::from_fn(|i| u64::from_le_bytes(std::array::from_fn(|j| bytes[i * 8 + j])))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filled_page_is_intact() {
        let mut page = [7; WORDS];
        for (_, data) in Data::ALL {
            let contents = Contents::new(data, 5);
            contents.fill(11, &mut page);
            assert!(contents.is_intact(11, 0, &page), "{data:?}");
        }
    }

    #[test]
    fn another_page_version_or_byte_is_not_intact() {
        let contents = Contents::new(Data::Hard, 5);
        let mut page = [0; WORDS];
        contents.fill(11, &mut page);
        assert!(!contents.is_intact(12, 0, &page));
        assert!(!contents.is_intact(11, 1, &page));
        page[400] ^= 1;
        assert!(!contents.is_intact(11, 0, &page));
    }

    #[test]
    fn a_fifth_of_mixed_pages_are_zeros() {
        let contents = Contents::new(Data::Mixed, 1);
        let zeros = (0..10_000).filter(|page| contents.head(*page, 0) == [0, 0]).count();
        assert!((1_800..2_200).contains(&zeros), "{zeros}");
    }
}
