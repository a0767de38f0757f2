//! The name of a stored object.

use core::num::NonZeroU64;

/// Where an object is: not zero, and at most 48 bits wide.
///
/// It is the object's distance from the start of the arena in units of 8 bytes, plus one. So finding the object's bytes
/// reads no metadata.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
#[repr(transparent)]
pub struct Handle(NonZeroU64);

/// Objects start at multiples of this many bytes.
pub(crate) const GRAIN: usize = 8;

impl Handle {
    /// How many bits a handle needs at most.
    pub const BITS: u32 = 48;

    /// The handle as a number: not zero, less than 2^48.
    #[inline]
    pub const fn to_bits(self) -> u64 {
        self.0.get()
    }

    /// The handle that [`Handle::to_bits`] turned into `bits`; none for zero and for numbers too wide to be a handle.
    #[inline]
    pub const fn from_bits(bits: u64) -> Option<Self> {
        if bits >> Self::BITS != 0 {
            return None;
        }
        match NonZeroU64::new(bits) {
            Some(bits) => Some(Self(bits)),
            None => None,
        }
    }

    /// The handle of the object that starts `offset` bytes into the arena.
    #[inline]
    pub(crate) fn from_offset(offset: usize) -> Self {
        debug_assert!(offset.is_multiple_of(GRAIN));
        Self(NonZeroU64::MIN.saturating_add((offset / GRAIN) as u64))
    }

    /// Where in the arena the object starts.
    #[inline]
    pub(crate) fn offset(self) -> usize {
        (self.0.get() - 1) as usize * GRAIN
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_survives_the_way_through_its_bits() {
        let handle = Handle::from_offset(0x1234_5678);
        assert_eq!(Handle::from_bits(handle.to_bits()), Some(handle));
        assert_eq!(handle.offset(), 0x1234_5678);
    }

    #[test]
    fn the_first_object_of_the_arena_has_a_handle_that_is_not_zero() {
        assert_eq!(Handle::from_offset(0).to_bits(), 1);
    }

    #[test]
    fn bits_that_no_handle_has_make_none() {
        assert_eq!(Handle::from_bits(0), None);
        assert_eq!(Handle::from_bits(1 << 48), None);
    }
}
