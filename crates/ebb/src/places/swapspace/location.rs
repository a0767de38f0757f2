//! The location word of a slot: the kind of place in the low three bits, the place from bit 8 on.

use crate::device::file::Place;
use crate::device::list::FILES_MAX;
use ebb_pool::Handle;

/// The kind of a location.
pub const KIND: u64 = 7;
/// The page repeats one value of 32 bits.
pub const SAME: u64 = 1;
/// An object of the pool.
pub const POOL: u64 = 2;
/// An object in a file.
pub const FILE: u64 = 3;
/// The page repeats one value of 64 bits that fits in 56 bits: small numbers and pointers.
pub const WORD: u64 = 4;

/// Where the number of the file is, after the kind and the place in the file.
const FILE_SHIFT: u32 = 8 + Place::BITS;
const _: () = assert!(FILE_SHIFT + FILES_MAX.ilog2() <= u64::BITS, "a location has room for the number of the file");

/// The location word of an object at `place` in the file numbered `index`.
pub fn location_in_file(index: usize, place: Place) -> u64 {
    FILE | place.to_bits() << 8 | (index as u64) << FILE_SHIFT
}

/// The number of the file and the place in it, if the location word names a file.
pub fn file_of(loc: u64) -> Option<(usize, Place)> {
    let bits = loc >> 8 & ((1 << Place::BITS) - 1);
    (loc & KIND == FILE).then_some(((loc >> FILE_SHIFT) as usize, Place::from_bits(bits)))
}

/// The location word of a pool object.
pub fn location_of(handle: Handle) -> u64 {
    POOL | handle.to_bits() << 8
}
