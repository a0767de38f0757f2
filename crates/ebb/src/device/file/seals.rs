//! The seals of a file, one for each slot. [`crate::protocols::seal`] says who may read them.

use crate::protocols::seal::{Seal, SealWords};

/// The seals of a file.
pub(super) struct Seals {
    at: *const SealWords,
    nr_slots: u32,
}

impl Seals {
    /// Bytes of a seal.
    pub const BYTES: usize = size_of::<SealWords>();

    /// The seals of `nr_slots` slots, in zeroed memory at `at`.
    ///
    /// # Safety
    /// The memory has room for them, and is there for as long as the value.
    pub unsafe fn new(at: *mut u8, nr_slots: u32) -> Self {
        Self { at: at.cast(), nr_slots }
    }

    fn words(&self, slot: u32) -> &SealWords {
        assert!(slot < self.nr_slots);
        // SAFETY: checked index; atomics, of which zero is a valid value, in memory that is there for as long as `self`.
        unsafe { &*self.at.add(slot as usize) }
    }

    pub fn get(&self, slot: u32) -> Seal {
        self.words(slot).get()
    }

    /// Seals a slot that is the caller's alone.
    pub fn set(&self, slot: u32, seal: Seal) {
        self.words(slot).set(seal);
    }

    /// The address of a slot's seal.
    pub fn address(&self, slot: u32) -> usize {
        self.at as usize + slot as usize * Self::BYTES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_seal_of_a_slot_is_apart_from_its_neighbours() {
        let mut memory = [[0u64; 3]; 3];
        // SAFETY: room for three seals.
        let seals = unsafe { Seals::new(memory.as_mut_ptr().cast(), 3) };
        let seal = Seal::new(77, 300, [9; 16]);
        seals.set(1, seal);
        assert_eq!([0, 1, 2].map(|slot| seals.get(slot)), [Seal::default(), seal, Seal::default()]);
        assert_eq!(seals.address(2) - seals.address(0), 2 * Seals::BYTES);
    }
}
