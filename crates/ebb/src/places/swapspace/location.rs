//! The location word of a slot: the kind of place in the low three bits, the place from bit 8 on. Of an object of the pool, the bits
//! between say what cooling knows of it, and a mark above its place says that its content was read ahead.

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

/// Of a pool object: it is cold, as its tag says too.
pub const COLD: u64 = 1 << 3;
/// Of a pool object: cooling has tried it, and it does not get clearly smaller.
pub const KEPT: u64 = 1 << 4;
/// Where a word that names a pool object has the mark of what was read ahead: the number of the file it was read from, and 1.
const AHEAD_SHIFT: u32 = 8 + Handle::BITS;
const _: () = assert!(FILES_MAX < 1 << (u64::BITS - AHEAD_SHIFT), "a mark has room for each file");
/// The bits of a pool object's handle.
const HANDLE: u64 = ((1 << Handle::BITS) - 1) << 8;

/// The location word of a pool object that nobody has tried to make smaller.
pub fn location_of(handle: Handle) -> u64 {
    POOL | handle.to_bits() << 8
}

/// The location word of a pool object, marked as read ahead from the file numbered `index`.
pub fn marked_ahead(loc: u64, index: usize) -> u64 {
    loc | (index as u64 + 1) << AHEAD_SHIFT
}

/// The same word without the mark.
pub fn not_ahead(loc: u64) -> u64 {
    loc & !(u64::MAX << AHEAD_SHIFT)
}

/// The pool object that a location word names, if it names one.
pub fn handle_of(loc: u64) -> Option<Handle> {
    Handle::from_bits((loc & HANDLE) >> 8).filter(|_| loc & KIND == POOL)
}

/// The location word of the pool object that `loc` names, when it is at `handle`.
pub fn location_moved(loc: u64, handle: Handle) -> u64 {
    loc & !HANDLE | handle.to_bits() << 8
}

/// True for a pool object that is cold, or that was tried in vain.
pub fn is_settled(loc: u64) -> bool {
    loc & (COLD | KEPT) != 0
}

/// The number of the file from which the object of a location word was read ahead, if it was.
pub fn ahead_of(loc: u64) -> Option<usize> {
    let mark = (loc >> AHEAD_SHIFT) as usize;
    mark.checked_sub(1).filter(|_| loc & KIND == POOL)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_says_from_which_file_and_leaves_the_object() {
        let handle = Handle::from_bits((1 << Handle::BITS) - 1).expect("the largest handle");
        assert_eq!((handle_of(location_of(handle)), ahead_of(location_of(handle))), (Some(handle), None));
        for index in [0, 1, FILES_MAX - 1] {
            let loc = marked_ahead(location_of(handle), index);
            assert_eq!((handle_of(loc), ahead_of(loc), file_of(loc)), (Some(handle), Some(index), None));
            assert_eq!(not_ahead(loc), location_of(handle));
        }
        let in_file = location_in_file(FILES_MAX - 1, Place::from_bits((1 << Place::BITS) - 1));
        assert_eq!((handle_of(in_file), ahead_of(in_file)), (None, None));
        assert_eq!(
            file_of(in_file).map(|(index, place)| (index, place.to_bits())),
            Some((FILES_MAX - 1, (1 << 40) - 1))
        );
        assert_eq!((handle_of(u64::MAX << 8 | WORD), ahead_of(u64::MAX << 8 | WORD)), (None, None));
    }

    #[test]
    fn an_object_that_moves_stays_what_it_was() {
        let [from, to] = [1, (1 << Handle::BITS) - 1].map(|bits| Handle::from_bits(bits).expect("a handle"));
        for flags in [0, COLD, KEPT] {
            let loc = location_of(from) | flags;
            assert_eq!((location_moved(loc, to), is_settled(loc)), (location_of(to) | flags, flags != 0));
            let marked = marked_ahead(loc, FILES_MAX - 1);
            let moved = location_moved(marked, to);
            assert_eq!((handle_of(moved), ahead_of(moved)), (Some(to), Some(FILES_MAX - 1)));
            assert_eq!(not_ahead(moved), location_of(to) | flags);
        }
    }
}
