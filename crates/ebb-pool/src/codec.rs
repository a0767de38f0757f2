//! Codecs: a page to fewer bytes, and back.
//!
//! `docs/codecs.md` says how they were chosen. Each is a pair of functions that allocate nothing and may run in a
//! signal handler; decoders trust no byte of what they read.

#[cfg(feature = "lz4")]
mod lz4;
mod same;

#[cfg(feature = "lz4")]
pub use lz4::{Lz4State, lz4_compress, lz4_decompress};
pub use same::{fill, same_filled};

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
