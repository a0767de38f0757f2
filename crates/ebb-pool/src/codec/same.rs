//! Pages that repeat one word: zero pages above all. They are kept as that word, without any memory.

use super::{PAGE_BYTES, Page};

const WORDS: usize = PAGE_BYTES / 8;

/// Words compared in one go; without a branch in it, the compiler makes vector code of it.
const RUN: usize = 16;

/// The word that the page repeats, if it does: as zram's `page_same_filled`.
///
/// Most pages that do not are found out by their last word, before the rest is read.
#[inline]
pub fn same_filled(page: &Page) -> Option<u64> {
    let (words, _) = page.as_chunks::<8>();
    let first = u64::from_ne_bytes(words[0]);
    if u64::from_ne_bytes(words[WORDS - 1]) != first || u64::from_ne_bytes(words[WORDS / 2]) != first {
        return None;
    }
    let (runs, _) = words.as_chunks::<RUN>();
    let same = runs.iter().all(|run| run.iter().fold(0, |diff, word| diff | (u64::from_ne_bytes(*word) ^ first)) == 0);
    same.then_some(first)
}

/// Makes the page repeat `word`: the way back from [`same_filled`].
#[inline]
pub fn fill(page: &mut Page, word: u64) {
    let (words, _) = page.as_chunks_mut::<8>();
    words.fill(word.to_ne_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filled_page_is_known_by_its_word() {
        let mut page = [0xaa; PAGE_BYTES];
        fill(&mut page, 0x0123_4567_89ab_cdef);
        assert_eq!(same_filled(&page), Some(0x0123_4567_89ab_cdef));
    }

    #[test]
    fn a_zero_page_is_filled_with_zero() {
        assert_eq!(same_filled(&[0; PAGE_BYTES]), Some(0));
    }

    #[test]
    fn one_different_byte_anywhere_is_noticed() {
        let mut page = [7; PAGE_BYTES];
        for index in (0..PAGE_BYTES).step_by(if cfg!(miri) { 97 } else { 1 }) {
            page[index] = 8;
            assert_eq!(same_filled(&page), None, "byte {index}");
            page[index] = 7;
        }
    }
}
