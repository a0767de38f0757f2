//! Codecs: a page to fewer bytes, and back.
//!
//! `docs/codecs.md` says how they were chosen. Each is a pair of functions that allocate nothing and may run in a
//! signal handler; decoders trust no byte of what they read.

#[cfg(feature = "lz4")]
mod lz4;
mod same;
mod words;

#[cfg(feature = "lz4")]
pub use lz4::{Lz4State, lz4_compress, lz4_decompress};
pub use same::{fill, same_filled};
pub use words::{WORDS_TAG, words_compress, words_decompress};

/// Bytes of what is compressed.
pub const PAGE_BYTES: usize = 4096;

/// A page's content.
pub type Page = [u8; PAGE_BYTES];

/// A compressed object is not what any page compresses to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{len} compressed bytes do not decode to a page")]
pub struct Corrupt {
    /// Length of the object that did not decode.
    pub len: usize,
}

/// Compresses a page into the start of `dst`, by the codec that fits, and returns how many bytes that took; none if they are
/// more than `dst` has.
#[cfg(feature = "lz4")]
#[inline]
pub fn compress(work: &mut Lz4State, src: &Page, dst: &mut [u8]) -> Option<usize> {
    words_compress(src, dst).or_else(|| lz4_compress(work, src, dst))
}

/// Makes the page of what [`compress`] made of it. What the page holds after an error is unspecified.
#[cfg(feature = "lz4")]
#[inline]
pub fn decompress(src: &[u8], dst: &mut Page) -> Result<(), Corrupt> {
    match src.first() {
        Some(&WORDS_TAG) => words_decompress(src, dst),
        _ => lz4_decompress(src, dst),
    }
}
