//! Codecs: turn a page into fewer bytes, and back.
//!
//! `docs/codecs.md` says how they were chosen. Each is a pair of functions that allocate nothing and may run in a
//! signal handler. Decoders stay within their buffers, whatever they read. They notice that an object is damaged only
//! if a length is wrong, so objects that leave RAM are authenticated as well.

#[cfg(feature = "lz4")]
mod lz4;
mod same;
mod trials;
mod words;
#[cfg(feature = "zstd")]
mod zstd;

#[cfg(feature = "lz4")]
pub use lz4::{Lz4State, lz4_compress, lz4_decompress};
pub use same::{SAME_TAG, fill, same_compress, same_decompress, same_filled};
pub use trials::Trials;
pub use words::{WORDS_TAG, has_words, words_compress, words_decompress};
#[cfg(feature = "zstd")]
pub use zstd::{ZSTD_SLACK, ZstdDecoder, ZstdEncoder, zstd_compress, zstd_decompress};

/// Bytes of a page.
pub const PAGE_BYTES: usize = 4096;

/// A page's content.
pub type Page = [u8; PAGE_BYTES];

/// First byte of an object of the cold tier, which zstd makes. [`decompress`] refuses it.
pub const COLD_TAG: u8 = 3;

/// A compressed object that no page compresses to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{len} compressed bytes do not decode to a page")]
pub struct Corrupt {
    /// Length of the object that did not decode.
    pub len: usize,
}

/// Longest object of [`words_compress`] for which lz4 is tried, too. In such a page, a word takes half a byte for its
/// class and little more than one byte besides, so the page is mostly zeros and repetitions. lz4 sees repetitions as a
/// whole, and is quick if they are long.
#[cfg(feature = "lz4")]
const REPETITIVE_MAX: usize = PAGE_BYTES / 5;

/// Compresses a page into the start of `dst`, by the codec that fits. Returns how many bytes that took; none if `dst`
/// is too short.
#[cfg(feature = "lz4")]
#[inline]
pub fn compress(work: &mut Lz4State, src: &Page, dst: &mut [u8]) -> Option<usize> {
    let Some(len) = words_compress(src, dst) else { return lz4_compress(work, src, dst) };
    if len <= REPETITIVE_MAX {
        let (words, rest) = dst.split_at_mut(len);
        let room = rest.len().min(len - 1);
        if let Some(less) = lz4_compress(work, src, &mut rest[..room]) {
            words[..less].copy_from_slice(&rest[..less]);
            return Some(less);
        }
    }
    Some(len)
}

/// Decompresses what [`compress`] or [`same_compress`] made of a page, and not what [`zstd_compress`] made. After an error, the content of `dst` is
/// unspecified.
#[cfg(feature = "lz4")]
#[inline]
pub fn decompress(src: &[u8], dst: &mut Page) -> Result<(), Corrupt> {
    match src.first() {
        Some(&WORDS_TAG) => words_decompress(src, dst),
        Some(&SAME_TAG) => same_decompress(src, dst),
        // A cold object needs a decoder.
        Some(&COLD_TAG) => Err(Corrupt { len: src.len() }),
        _ => lz4_decompress(src, dst),
    }
}

#[cfg(all(test, feature = "lz4"))]
mod tests {
    use super::*;

    /// A page of a few words that repeat again and again.
    fn repetitive() -> Page {
        core::array::from_fn(|index| [0x11, 0x99, 0, 0, 0, 0xdd, 0, 0][index / 2 % 8])
    }

    #[test]
    fn what_repeats_itself_takes_what_lz4_makes_of_it() {
        let (mut state, mut dst, mut other) = (Lz4State::new(), [0; PAGE_BYTES], [0; PAGE_BYTES]);
        let len = compress(&mut state, &repetitive(), &mut dst).unwrap();
        let by_lz4 = lz4_compress(&mut state, &repetitive(), &mut other).unwrap();
        let by_words = words_compress(&repetitive(), &mut [0; PAGE_BYTES]).unwrap();
        assert!(by_lz4 < by_words);
        assert_eq!(dst[..len], other[..by_lz4]);
    }

    #[test]
    fn what_has_words_of_its_own_takes_what_words_make_of_it() {
        let page: Page = core::array::from_fn(|index| if index % 8 < 2 { (index * index / 64) as u8 } else { 0 });
        let (mut state, mut dst, mut other) = (Lz4State::new(), [0; PAGE_BYTES], [0; PAGE_BYTES]);
        let len = compress(&mut state, &page, &mut dst).unwrap();
        let by_words = words_compress(&page, &mut other).unwrap();
        assert_eq!(dst[..len], other[..by_words]);
    }
}
