//! Counts that do not fit a word: a small hash table of fixed size, open addressing, linear probing.
//!
//! A slot is here exactly while its word's count field shows the overflow mark, and then its count is larger than what
//! a word holds. The whole table is behind one leaf lock; it is for the rare page that very many places share.

use crate::id::Slot;

/// A power of two. Small in models, so that filling it is part of them.
pub(crate) const OVERFLOW_CAPACITY: usize = if cfg!(any(loom, shuttle)) { 2 } else { 512 };

const MASK: usize = OVERFLOW_CAPACITY - 1;
const _: () = assert!(OVERFLOW_CAPACITY.is_power_of_two());

#[derive(Clone, Copy)]
struct Record {
    /// Slot plus 1; 0 is a vacant place, so that zeroed bytes are an empty table. A device of 2^32 - 1 slots at most
    /// has no slot for which that overflows.
    key: u32,
    count: u32,
}

const VACANT: Record = Record { key: 0, count: 0 };

pub(crate) struct Overflow {
    records: [Record; OVERFLOW_CAPACITY],
    len: usize,
}

impl Overflow {
    pub(crate) fn new() -> Self {
        Self { records: [VACANT; OVERFLOW_CAPACITY], len: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn is_full(&self) -> bool {
        self.len == OVERFLOW_CAPACITY
    }

    pub(crate) fn count(&self, slot: Slot) -> Option<u32> {
        self.find(slot).map(|place| self.records[place].count)
    }

    /// The count of a slot that is here, to be changed.
    pub(crate) fn count_mut(&mut self, slot: Slot) -> Option<&mut u32> {
        self.find(slot).map(|place| &mut self.records[place].count)
    }

    /// The slot must not be here yet, and the table not full.
    pub(crate) fn insert(&mut self, slot: Slot, count: u32) {
        assert!(!self.is_full());
        debug_assert!(self.find(slot).is_none());
        let mut place = home(key(slot));
        // Ends: the table is not full.
        while self.records[place].key != 0 {
            place = (place + 1) & MASK;
        }
        self.records[place] = Record { key: key(slot), count };
        self.len += 1;
    }

    /// Removes a slot, and moves back the records that were pushed past its place, so that no probe ends early.
    pub(crate) fn remove(&mut self, slot: Slot) {
        let Some(mut hole) = self.find(slot) else {
            debug_assert!(false, "the overflow table does not hold {slot:?}");
            return;
        };
        let mut next = hole;
        for _ in 1..OVERFLOW_CAPACITY {
            next = (next + 1) & MASK;
            let record = self.records[next];
            if record.key == 0 {
                break;
            }
            // The record may fill the hole unless its home lies after the hole, on the way to the record's place.
            let from_home = next.wrapping_sub(home(record.key)) & MASK;
            let from_hole = next.wrapping_sub(hole) & MASK;
            if from_home >= from_hole {
                self.records[hole] = record;
                hole = next;
            }
        }
        self.records[hole] = VACANT;
        self.len -= 1;
    }

    fn find(&self, slot: Slot) -> Option<usize> {
        let mut place = home(key(slot));
        for _ in 0..OVERFLOW_CAPACITY {
            let record = &self.records[place];
            if record.key == key(slot) {
                return Some(place);
            }
            if record.key == 0 {
                return None;
            }
            place = (place + 1) & MASK;
        }
        None
    }
}

fn key(slot: Slot) -> u32 {
    slot.0 + 1
}

/// Multiplicative hashing: neighbouring slots must not pile up.
fn home(key: u32) -> usize {
    (key.wrapping_mul(0x9e37_79b9) >> 16) as usize & MASK
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn it_agrees_with_a_map_while_filling_and_emptying() {
        let mut table = Overflow::new();
        let mut model = BTreeMap::new();
        let mut seed = 1_u32;
        for _ in 0..if cfg!(miri) { 600 } else { 50_000 } {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let slot = Slot((seed >> 16) % 700);
            let known = model.contains_key(&slot);
            assert_eq!(table.count(slot), model.get(&slot).copied());
            assert_eq!(table.is_full(), model.len() == OVERFLOW_CAPACITY);
            if known {
                table.remove(slot);
                model.remove(&slot);
            } else if !table.is_full() {
                table.insert(slot, seed);
                model.insert(slot, seed);
            }
        }
        assert_eq!(table.len(), model.len());
        for (slot, count) in &model {
            assert_eq!(table.count(*slot), Some(*count));
        }
    }

    #[test]
    fn a_full_table_still_finds_what_is_and_what_is_not_there() {
        let mut table = Overflow::new();
        for slot in 0..OVERFLOW_CAPACITY as u32 {
            table.insert(Slot(slot), slot + 100);
        }
        assert!(table.is_full());
        assert_eq!(table.count(Slot(3)), Some(103));
        assert_eq!(table.count(Slot(u32::MAX - 1)), None);
        table.remove(Slot(3));
        table.insert(Slot(u32::MAX - 1), 1);
        assert_eq!(table.count(Slot(u32::MAX - 1)), Some(1));
    }
}
