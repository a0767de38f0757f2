//! What lies together in a file: neighbouring slots that one read brings, with the content of several pages.
//!
//! The pages may be in another order than their content, several may be in one slot, and between their slots may be some that
//! nobody wants now. A few of these cost less than another read.

use crate::device::file::{BATCH, Place};
use crate::memory::table::UNIT_PAGES;
use core::ops::Range;

/// Slots that nobody wants, of which a span may have as many as it has pages, and these.
const GAP_MAX: u32 = 12;

/// Neighbouring slots of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Span {
    /// The number of the file.
    pub(super) file: usize,
    /// The first slot, and the one after the last.
    pub(super) first: u32,
    end: u32,
    /// Pages whose content is there.
    pub pages: usize,
}

impl Span {
    /// The slot of one page.
    pub fn new((file, place): (usize, Place)) -> Self {
        Self { file, first: place.slot, end: place.slot + 1, pages: 1 }
    }

    /// Adds a page, if it lies together with the others, and all are in at most `slots_max` slots.
    pub fn add(&mut self, (file, place): (usize, Place), slots_max: usize) -> bool {
        let (first, end) = (self.first.min(place.slot), self.end.max(place.slot + 1));
        let most = (2 * (self.pages as u32 + 1) + GAP_MAX).min(slots_max.min(BATCH) as u32);
        let is_near = file == self.file && end - first <= most;
        if is_near {
            (self.first, self.end) = (first, end);
            self.pages += 1;
        }
        is_near
    }

    /// The number of the file.
    pub fn file(&self) -> usize {
        self.file
    }

    /// Its slots.
    pub fn slots(&self) -> Range<u32> {
        self.first..self.end
    }

    /// Number of slots.
    pub fn nr_slots(&self) -> usize {
        (self.end - self.first) as usize
    }
}

/// Some of the pages of a unit, or of a shorter run, by their numbers in it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PageSet([u64; UNIT_PAGES / 64]);

impl PageSet {
    /// Adds a page.
    pub fn insert(&mut self, page: usize) {
        self.0[page / 64] |= 1 << (page % 64);
    }

    /// Whether a page is one of them.
    pub fn has(&self, page: usize) -> bool {
        self.0[page / 64] >> (page % 64) & 1 != 0
    }

    /// Takes the pages of `other` away.
    pub fn remove_all(&mut self, other: &Self) {
        self.0.iter_mut().zip(other.0).for_each(|(word, other)| *word &= !other);
    }

    /// The pages in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = usize> + Clone {
        let words = self.0;
        (0..UNIT_PAGES / 64).flat_map(move |i| {
            let mut word = words[i];
            core::iter::from_fn(move || {
                let bit = (word != 0).then(|| word.trailing_zeros() as usize)?;
                word &= word - 1;
                Some(i * 64 + bit)
            })
        })
    }
}

/// The reads that bring in pages whose content is in files, one after the other.
pub struct Reads<P> {
    /// Where the content of a page is, if a file has it.
    place: P,
    left: PageSet,
}

impl<P: Fn(usize) -> Option<(usize, Place)>> Reads<P> {
    /// The reads for those of `n` pages whose content is in files, where `place` says it is.
    pub fn new(n: usize, place: P) -> Self {
        let mut left = PageSet::default();
        (0..n).filter(|page| place(*page).is_some()).for_each(|page| left.insert(page));
        Self { place, left }
    }

    /// Leaves pages out.
    pub fn leave_out(&mut self, pages: &PageSet) {
        self.left.remove_all(pages);
    }

    /// What the next read brings, of at most `slots_max` slots: what lies together with the first page that is left.
    pub fn next(&mut self, slots_max: usize) -> Option<(Span, PageSet)> {
        let mut pages = self.left.iter();
        let first = pages.next()?;
        let (mut span, mut found) = (Span::new((self.place)(first)?), PageSet::default());
        found.insert(first);
        for page in pages {
            if (self.place)(page).is_some_and(|place| span.add(place, slots_max)) {
                found.insert(page);
            }
        }
        self.left.remove_all(&found);
        Some((span, found))
    }

    /// Whether all pages are taken.
    pub fn is_done(&self) -> bool {
        self.left == PageSet::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(slot: u32) -> (usize, Place) {
        (1, Place::alone(slot))
    }

    #[test]
    fn a_span_has_what_is_near_in_any_order() {
        let mut span = Span::new(at(100));
        for slot in [101, 101, 99, 104, 100] {
            assert!(span.add(at(slot), BATCH));
        }
        assert_eq!((span.first, span.nr_slots(), span.pages), (99, 6, 6));
        assert!(!span.add((2, Place::alone(100)), BATCH), "another file");
        assert!(!span.add(at(200), BATCH), "far away");
        assert_eq!((span.nr_slots(), span.pages), (6, 6));
    }

    #[test]
    fn a_span_is_no_longer_than_what_there_is_room_for() {
        for most in [1, 16, BATCH, 4 * BATCH] {
            let mut span = Span::new(at(0));
            let added = (1..1000).take_while(|slot| span.add(at(*slot), most)).count();
            assert_eq!((added + 1, span.nr_slots()), (most.min(BATCH), most.min(BATCH)));
        }
    }

    #[test]
    fn gaps_are_no_more_than_pages_and_a_few() {
        let mut span = Span::new(at(0));
        assert!(!span.add(at(16), BATCH));
        assert!(span.add(at(15), BATCH));
    }

    #[test]
    fn each_page_in_a_file_is_read_once_with_what_lies_together() {
        // Two places that alternate, a page in RAM now and then, and one far away.
        let place = |page: usize| match page {
            5 | 70 => None,
            100 => Some(at(9000)),
            _ if page.is_multiple_of(2) => Some(at(page as u32 / 4)),
            _ => Some(at(500 + page as u32 / 4)),
        };
        let mut reads = Reads::new(128, place);
        let mut all = PageSet::default();
        let mut spans = Vec::new();
        while let Some((span, pages)) = reads.next(BATCH) {
            assert!(pages.iter().all(|page| !all.has(page)));
            assert_eq!(pages.iter().count(), span.pages);
            pages.iter().for_each(|page| all.insert(page));
            spans.push((span.first, span.nr_slots()));
        }
        assert!(reads.is_done());
        assert!((0..128).all(|page| all.has(page) == place(page).is_some()));
        assert_eq!(spans, [(0, 32), (500, 32), (9000, 1)]);
    }
}
