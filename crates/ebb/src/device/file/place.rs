//! Where in a file an object is.

/// A slot of a file, and which of the objects in it, if it has several.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Place {
    /// The slot.
    pub slot: u32,
    /// 0 for an object that has the slot alone; otherwise the object's number in the slot, plus 1.
    part: u8,
}

impl Place {
    /// Bits of [`Self::to_bits`].
    pub const BITS: u32 = 40;

    /// The place of an object that has a slot alone.
    pub const fn alone(slot: u32) -> Self {
        Self { slot, part: 0 }
    }

    /// The place of object `number` of a slot that has several.
    pub const fn packed(slot: u32, number: u8) -> Self {
        Self { slot, part: number + 1 }
    }

    /// The object's number in its slot, if the slot has several.
    pub fn number(self) -> Option<u8> {
        self.part.checked_sub(1)
    }

    /// True if the slot has several objects.
    pub fn is_packed(self) -> bool {
        self.part != 0
    }

    /// The place as a number.
    pub const fn to_bits(self) -> u64 {
        self.slot as u64 | (self.part as u64) << 32
    }

    /// What [`Self::to_bits`] made a number of.
    pub const fn from_bits(bits: u64) -> Self {
        Self { slot: bits as u32, part: (bits >> 32) as u8 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_the_same_after_the_trip_through_its_bits() {
        for place in [Place::alone(0), Place::alone(u32::MAX), Place::packed(7, 0), Place::packed(u32::MAX, 254)] {
            assert_eq!(Place::from_bits(place.to_bits()), place);
            assert!(place.to_bits() >> Place::BITS == 0);
        }
        assert_eq!((Place::alone(3).number(), Place::packed(3, 5).number()), (None, Some(5)));
    }
}
