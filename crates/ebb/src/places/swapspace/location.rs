//! The location word of a slot: the kind of place in the low three bits, the place from bit 8 on.

use ebb_pool::Handle;

/// The kind of a location.
pub const KIND: u64 = 7;
/// The page repeats one value of 32 bits.
pub const SAME: u64 = 1;
/// An object of the pool.
pub const POOL: u64 = 2;
/// A slot of a file.
pub const FILE: u64 = 3;
/// The page repeats one value of 64 bits that fits in 56 bits: small numbers and pointers.
pub const WORD: u64 = 4;

/// The location word of slot `at` of the file numbered `index`.
pub fn location_in_file(index: usize, at: u32) -> u64 {
    FILE | (at as u64) << 8 | (index as u64) << 40
}

/// The number of the file and the slot in it, if the location word names a file.
pub fn file_of(loc: u64) -> Option<(usize, u32)> {
    (loc & KIND == FILE).then_some(((loc >> 40 & 0xff) as usize, (loc >> 8) as u32))
}

/// The location word of a pool object.
pub fn location_of(handle: Handle) -> u64 {
    POOL | handle.to_bits() << 8
}
