//! The location word of a slot: kind in the low three bits, where the content is above.

use ebb_pool::Handle;

/// The kind of a location.
pub const KIND: u64 = 7;
/// Half a word of 32 bits, which is all of the page, over and over.
pub const SAME: u64 = 1;
/// An object of the pool.
pub const POOL: u64 = 2;
/// A slot of a file.
pub const FILE: u64 = 3;
/// A repeated word of at most 56 bits: small numbers and pointers.
pub const WORD: u64 = 4;

/// The location word of slot `at` of a file.
pub fn location_in_file(index: usize, at: u32) -> u64 {
    FILE | (at as u64) << 8 | (index as u64) << 40
}

/// File and slot of a location word that names a file.
pub fn file_of(loc: u64) -> Option<(usize, u32)> {
    (loc & KIND == FILE).then_some(((loc >> 40 & 0xff) as usize, (loc >> 8) as u32))
}

/// The location word of a pool object.
pub fn location_of(handle: Handle) -> u64 {
    POOL | handle.to_bits() << 8
}
