//! Size classes: which object sizes there are, and which one a length belongs to.
//!
//! A class is defined by how many objects a block holds. Its object size is a block's bytes divided by that number,
//! rounded down to whole grains, so almost nothing is lost at a block's end. Sizes of neighbouring classes differ by a
//! sixteenth or less in the range that pages usually compress to. `examples/codecs.rs` prints what the choice costs on
//! real pages.

use crate::handle::GRAIN;
use crate::object::HEADER_BYTES;

#[cfg(not(loom))]
mod sizes {
    /// Pages in a block. Large enough that 4 KiB objects leave little over at the end, small enough that the one
    /// part-filled block of each class does not weigh.
    pub const BLOCK_PAGES: usize = 16;
    /// Bytes in a block.
    pub const BLOCK_BYTES: usize = BLOCK_PAGES * 4096;
    /// The longest object: a page that would not compress.
    pub const OBJECT_MAX: usize = 4096;
    /// Objects a block holds, class by class, largest objects first.
    pub(super) const OBJECTS: [usize; 58] = [
        15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 32, 34, 36, 38, 40, 42, 45, 48, 51, 54, 58, 62,
        66, 70, 75, 80, 85, 91, 97, 104, 112, 120, 130, 140, 152, 165, 180, 196, 215, 237, 262, 292, 327, 372, 431,
        512, 630, 819, 1024, 1365, 1638, 2048,
    ];
}

#[cfg(loom)]
mod sizes {
    /// Pages in a block.
    pub const BLOCK_PAGES: usize = 1;
    /// Bytes in a block: room for two objects, so far less than a page.
    pub const BLOCK_BYTES: usize = 256;
    /// The longest object, in bytes.
    pub const OBJECT_MAX: usize = 32;
    pub(super) const OBJECTS: [usize; 1] = [2];
}

pub use sizes::{BLOCK_BYTES, BLOCK_PAGES, OBJECT_MAX};

/// How many size classes there are.
pub const NR_CLASSES: usize = sizes::OBJECTS.len();

/// At least one class in so many gets blocks, however few blocks there are.
const STEP_MAX: usize = 8;
/// A store looks for a free place in so many classes of larger objects before it takes a new block: in a pool of fewer
/// blocks than there are classes, and in one of fewer than [`SMALL_POOL`].
const LARGER: [usize; 2] = [8, 3];
/// In a pool of so many blocks or more, free places in part-filled blocks weigh little, and rounding to a larger class
/// costs more than it saves.
const SMALL_POOL: usize = 8 * NR_CLASSES;

/// The index of a size class; classes of larger objects come first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ClassId(u8);

/// The class for each length, counted in grains and rounded up.
const BY_GRAINS: [u8; OBJECT_MAX / GRAIN + 1] = by_grains();

impl ClassId {
    /// The class with the smallest objects that `len` bytes fit in; none for no bytes and for more than
    /// [`OBJECT_MAX`].
    #[inline]
    pub fn for_len(len: usize) -> Option<Self> {
        if len == 0 || len > OBJECT_MAX {
            return None;
        }
        Some(Self(BY_GRAINS[len.div_ceil(GRAIN)]))
    }

    /// The classes that may have a place for an object of this one in a pool of `blocks` blocks: this class, then those
    /// of larger objects. Each class has part-filled blocks. In a small pool, what is free in them is worth more than
    /// what an object leaves unused in a place that is a few sixteenths too large.
    #[inline]
    pub fn or_larger(self, blocks: u32) -> impl Iterator<Item = Self> {
        let larger = match blocks as usize {
            0..NR_CLASSES => LARGER[0],
            NR_CLASSES..SMALL_POOL => LARGER[1],
            _ => 0,
        };
        (0..=larger.min(self.index())).map(move |step| Self(self.0 - step as u8))
    }

    /// The class that a new block is for, in a pool of `blocks` blocks: while there are fewer of these than classes,
    /// only some classes get any.
    #[inline]
    pub fn of_new_block(self, blocks: u32) -> Self {
        let mut step = 1;
        while step < STEP_MAX && (blocks as usize) < NR_CLASSES / step {
            step *= 2;
        }
        // Round to larger objects.
        Self(self.0 - self.0 % step as u8)
    }

    #[inline]
    pub fn from_index(index: usize) -> Option<Self> {
        if index < NR_CLASSES { Some(Self(index as u8)) } else { None }
    }

    #[inline]
    pub fn index(self) -> usize {
        self.0 as usize
    }

    /// Bytes from one object to the next, header included.
    #[inline]
    pub fn object_bytes(self) -> usize {
        object_bytes(self.index())
    }

    /// How many objects a block holds.
    #[inline]
    pub fn objects(self) -> u16 {
        sizes::OBJECTS[self.index()] as u16
    }

    /// The longest data an object holds.
    #[inline]
    pub fn data_bytes(self) -> usize {
        self.object_bytes() - HEADER_BYTES
    }
}

/// Memory that an object of `len` bytes takes, in 1/1000 of a byte. Includes its header and its share of its block's
/// end. None if no class has room for it.
pub fn class_bytes(len: usize) -> Option<u64> {
    ClassId::for_len(len).map(|class| BLOCK_BYTES as u64 * 1000 / u64::from(class.objects()))
}

const fn object_bytes(class: usize) -> usize {
    (BLOCK_BYTES / sizes::OBJECTS[class]) / GRAIN * GRAIN
}

const fn by_grains() -> [u8; OBJECT_MAX / GRAIN + 1] {
    let mut table = [0; OBJECT_MAX / GRAIN + 1];
    let mut grains = 0;
    while grains < table.len() {
        let mut class = NR_CLASSES - 1;
        while object_bytes(class) - HEADER_BYTES < grains * GRAIN {
            class -= 1;
        }
        table[grains] = class as u8;
        grains += 1;
    }
    table
}

const _: () = {
    assert!(NR_CLASSES < u8::MAX as usize);
    assert!(object_bytes(0) - HEADER_BYTES >= OBJECT_MAX);
    let mut class = 0;
    while class < NR_CLASSES {
        assert!(sizes::OBJECTS[class] >= 2 && sizes::OBJECTS[class] <= u16::MAX as usize);
        assert!(object_bytes(class) > HEADER_BYTES);
        assert!(class == 0 || sizes::OBJECTS[class - 1] < sizes::OBJECTS[class]);
        class += 1;
    }
};

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn every_length_fits_its_class_and_not_the_next_smaller_one() {
        for len in (1..=OBJECT_MAX).step_by(if cfg!(miri) { 13 } else { 1 }) {
            let class = ClassId::for_len(len).unwrap();
            assert!(class.data_bytes() >= len);
            let smaller = ClassId::from_index(class.index() + 1);
            assert!(smaller.is_none_or(|class| class.data_bytes() < len.next_multiple_of(GRAIN)));
        }
    }

    #[test]
    fn lengths_that_no_object_has_have_no_class() {
        assert_eq!(ClassId::for_len(0), None);
        assert_eq!(ClassId::for_len(OBJECT_MAX + 1), None);
    }

    #[test]
    fn the_fewer_blocks_the_fewer_classes_get_a_new_one() {
        let class = ClassId::for_len(1000).unwrap();
        let at = class.index();
        let classes = [0, 13, 14, 28, 29, 57, 58].map(|blocks| class.of_new_block(blocks).index());
        assert_eq!(classes, [at - at % 8, at - at % 8, at - at % 4, at - at % 4, at - at % 2, at - at % 2, at]);
        let all = || (0..NR_CLASSES).filter_map(ClassId::from_index);
        assert!(all().all(|class| class.of_new_block(0).data_bytes() >= class.data_bytes()));
    }

    #[test]
    fn a_place_is_looked_for_in_this_class_and_then_in_those_of_larger_objects() {
        let classes = |class: usize, blocks| {
            let found = ClassId::from_index(class).unwrap().or_larger(blocks).map(ClassId::index);
            found.fold((0, class + 1), |(count, before), index| {
                assert_eq!(index + 1, before);
                (count + 1, index)
            })
        };
        assert_eq!(classes(20, 57), (9, 12));
        assert_eq!(classes(20, 58), (4, 17));
        assert_eq!(classes(20, 463), (4, 17));
        assert_eq!(classes(20, 464), (1, 20));
        assert_eq!(classes(2, 0), (3, 0));
    }

    #[test]
    fn objects_of_half_a_page_and_more_lose_less_than_six_percent_on_average() {
        let lens = 1024..=OBJECT_MAX;
        let data: usize = lens.clone().sum();
        let taken: u64 = lens.map(|len| class_bytes(len).unwrap()).sum();
        assert!((taken as f64 / 1000.0) < data as f64 * 1.06);
    }
}
