//! Pages that repeat one word, mostly zero pages. They are kept as that word, without any memory if the caller has room
//! for it, or as an object of a tag byte and the word.

use super::{Corrupt, PAGE_BYTES, Page};

/// First byte of an object that stands for a repeated word; see [`WORDS_TAG`](super::WORDS_TAG).
pub const SAME_TAG: u8 = 2;
/// Bytes of such an object.
const OBJECT_BYTES: usize = 1 + size_of::<u64>();

const WORDS: usize = PAGE_BYTES / 8;

/// Words compared at a time, without a branch, so that the compiler vectorises it.
const RUN: usize = 16;

/// The word that the page repeats, if it does; like zram's `page_same_filled`.
///
/// Most pages that do not are recognised by their last or middle word, before the rest is read.
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

/// Fills the page with `word`: the inverse of [`same_filled`].
#[inline]
pub fn fill(page: &mut Page, word: u64) {
    let (words, _) = page.as_chunks_mut::<8>();
    words.fill(word.to_ne_bytes());
}

/// Makes an object at the start of `dst` from the word that a page repeats. Returns how many bytes that took; none if
/// `dst` is too short.
pub fn same_compress(word: u64, dst: &mut [u8]) -> Option<usize> {
    let [tag, bytes @ ..]: &mut [u8; OBJECT_BYTES] = dst.first_chunk_mut()?;
    *tag = SAME_TAG;
    *bytes = word.to_ne_bytes();
    Some(OBJECT_BYTES)
}

/// Decompresses what [`same_compress`] made of a page's word.
pub fn same_decompress(src: &[u8], dst: &mut Page) -> Result<(), Corrupt> {
    match <&[u8; OBJECT_BYTES]>::try_from(src) {
        Ok([SAME_TAG, bytes @ ..]) => {
            fill(dst, u64::from_ne_bytes(*bytes));
            Ok(())
        }
        _ => Err(Corrupt { len: src.len() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_repeated_word_comes_back_from_its_object() {
        let (word, mut object, mut page) = (0x0123_4567_89ab_cdef, [0; OBJECT_BYTES + 1], [0xaa; PAGE_BYTES]);
        let len = same_compress(word, &mut object).unwrap();
        assert_eq!(same_decompress(&object[..len], &mut page), Ok(()));
        assert_eq!(same_filled(&page), Some(word));
        assert_eq!(same_compress(word, &mut object[..len - 1]), None);
    }

    #[test]
    fn an_object_of_another_length_or_kind_is_corrupt() {
        let (mut object, mut page) = ([0; OBJECT_BYTES + 1], [0; PAGE_BYTES]);
        let len = same_compress(7, &mut object).unwrap();
        for other in [0, 1, len - 1, len + 1] {
            assert_eq!(same_decompress(&object[..other], &mut page), Err(Corrupt { len: other }));
        }
        object[0] = super::super::WORDS_TAG;
        assert_eq!(same_decompress(&object[..len], &mut page), Err(Corrupt { len }));
    }

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
