//! Packing: several compressed objects in one slot, so that the file has about as many bytes as the objects have.
//!
//! A slot is read, decrypted and authenticated as a whole. In a slot with several objects, the objects come first, one
//! after the other, and a directory comes last, from the end of the slot backwards: the number of objects (2 bytes), and
//! for each of them its owner (4 bytes), its start and its length (2 bytes each), little-endian. The owner is the slot
//! of the swap space whose content the object is. Whoever cleans the file finds by it what is left in a slot.
//!
//! An object goes into the first of the slots last begun that has room for it. The objects of a batch were pages side by
//! side, so they stay close together in the file.

use super::{BATCH, Place, SLOT_BYTES};
use core::ops::Range;
use ebb_slots::Slot;

/// Most objects that one call writes. More of them than slots, because they are small.
pub const OBJECTS: usize = 2 * BATCH;
/// Slots last begun that are still filled.
const OPEN_SLOTS: usize = 16;
/// Most objects in a slot.
const OBJECTS_MAX: usize = 63;
/// Bytes of the directory: the number of objects, and an entry.
const COUNT_BYTES: usize = 2;
const ENTRY_BYTES: usize = 8;

/// A batch of objects: which slot each is in. The content is in a buffer of the caller's.
pub struct Packing {
    slots: [Filled; BATCH],
    nr_slots: usize,
    objects: [Object; OBJECTS],
    nr_objects: usize,
}

#[derive(Clone, Copy, Default)]
struct Filled {
    bytes: u16,
    objects: u8,
}

#[derive(Clone, Copy)]
struct Object {
    owner: Slot,
    start: u16,
    len: u16,
    slot: u8,
    number: u8,
}

impl Filled {
    /// Room for one more object of `len` bytes, and its entry in the directory.
    fn has_room(self, len: usize) -> bool {
        let directory = COUNT_BYTES + ENTRY_BYTES * (usize::from(self.objects) + 1);
        usize::from(self.objects) < OBJECTS_MAX && usize::from(self.bytes) + len + directory <= SLOT_BYTES
    }
}

impl Object {
    /// Where it is in the buffer.
    fn range(self) -> Range<usize> {
        let start = usize::from(self.slot) * SLOT_BYTES + usize::from(self.start);
        start..start + usize::from(self.len)
    }
}

impl Default for Packing {
    fn default() -> Self {
        let object = Object { owner: Slot(0), start: 0, len: 0, slot: 0, number: 0 };
        Self { slots: [Filled::default(); BATCH], nr_slots: 0, objects: [object; OBJECTS], nr_objects: 0 }
    }
}

impl Packing {
    /// Adds an object to the batch in `data`. False if there is no room for it.
    pub fn push(&mut self, owner: Slot, object: &[u8], data: &mut [u8]) -> bool {
        let Some(range) = self.place(owner, object.len(), data.len() / SLOT_BYTES) else { return false };
        data[range].copy_from_slice(object);
        true
    }

    /// Makes a batch of objects: object `i` is the first `lens[i]` bytes of the `i`-th slot of `data`. The objects move to
    /// the first slots of `data`.
    pub fn pack(owners: &[Slot], lens: &[u16], data: &mut [u8]) -> Self {
        assert!(lens.len() <= BATCH && owners.len() == lens.len() && data.len() >= lens.len() * SLOT_BYTES);
        let mut this = Self::default();
        for (i, (owner, len)) in owners.iter().zip(lens).enumerate() {
            let (from, len) = (i * SLOT_BYTES, usize::from(*len));
            // It goes to a slot at or before its own. So nothing is overwritten that has not moved yet.
            let to = this.place(*owner, len, BATCH).map_or(from, |range| range.start);
            if to != from {
                data.copy_within(from..from + len, to);
            }
        }
        this
    }

    /// Moves the objects that [`Self::pack`] moved back to where they were.
    pub fn unpack(&self, data: &mut [u8]) {
        // The last first: those before it lie before its place.
        for (i, object) in self.objects[..self.nr_objects].iter().enumerate().rev() {
            if object.range().start != i * SLOT_BYTES {
                data.copy_within(object.range(), i * SLOT_BYTES);
            }
        }
    }

    /// Finds a place for one more object of `len` bytes, in at most `slots_max` slots.
    fn place(&mut self, owner: Slot, len: usize, slots_max: usize) -> Option<Range<usize>> {
        debug_assert!((1..=SLOT_BYTES).contains(&len));
        if self.nr_objects == OBJECTS {
            return None;
        }
        let open = self.nr_slots.saturating_sub(OPEN_SLOTS);
        let has_room = self.slots[open..self.nr_slots].iter().position(|slot| slot.has_room(len));
        let next = (self.nr_slots < slots_max.min(BATCH)).then_some(self.nr_slots);
        let slot = has_room.map(|i| open + i).or(next)?;
        self.nr_slots = self.nr_slots.max(slot + 1);
        let filled = &mut self.slots[slot];
        let (start, number) = (filled.bytes, filled.objects);
        let object = Object { owner, start, len: len as u16, slot: slot as u8, number };
        filled.bytes += len as u16;
        filled.objects += 1;
        self.objects[self.nr_objects] = object;
        self.nr_objects += 1;
        Some(object.range())
    }

    /// Clears what is behind the objects of each slot, and writes the directories.
    pub(super) fn finish(&self, data: &mut [u8]) {
        for (content, filled) in data.as_chunks_mut::<SLOT_BYTES>().0.iter_mut().zip(&self.slots[..self.nr_slots]) {
            content[usize::from(filled.bytes)..].fill(0);
            if filled.objects > 1 {
                content[SLOT_BYTES - COUNT_BYTES..].copy_from_slice(&u16::from(filled.objects).to_le_bytes());
            }
        }
        for object in &self.objects[..self.nr_objects] {
            let slot = usize::from(object.slot);
            if self.slots[slot].objects > 1 {
                let entry = &mut data[slot * SLOT_BYTES..][entry_at(usize::from(object.number))];
                entry[..4].copy_from_slice(&object.owner.0.to_le_bytes());
                entry[4..6].copy_from_slice(&object.start.to_le_bytes());
                entry[6..].copy_from_slice(&object.len.to_le_bytes());
            }
        }
    }

    /// Number of objects.
    pub fn nr_objects(&self) -> usize {
        self.nr_objects
    }

    /// Number of slots.
    pub fn nr_slots(&self) -> usize {
        self.nr_slots
    }

    /// Bytes of the objects.
    pub(super) fn bytes(&self) -> u64 {
        self.slots[..self.nr_slots].iter().map(|slot| u64::from(slot.bytes)).sum()
    }

    /// Number of objects in slot `i`.
    pub(super) fn objects_in(&self, i: usize) -> u8 {
        self.slots[i].objects
    }

    /// Bytes of slot `i` that have content.
    pub(super) fn bytes_in(&self, i: usize) -> usize {
        let Filled { bytes, objects } = self.slots[i];
        if objects > 1 { SLOT_BYTES } else { usize::from(bytes) }
    }

    /// The owner of each object, and its place when the slots of the batch are `slots` of the file.
    pub(super) fn places(&self, slots: &[Slot]) -> impl Iterator<Item = (Slot, Place)> {
        self.objects[..self.nr_objects].iter().map(|object| {
            let (slot, i) = (slots[usize::from(object.slot)].0, usize::from(object.slot));
            let is_alone = self.slots[i].objects == 1;
            (object.owner, if is_alone { Place::alone(slot) } else { Place::packed(slot, object.number) })
        })
    }
}

/// Where entry `number` of a slot's directory is.
fn entry_at(number: usize) -> Range<usize> {
    let end = SLOT_BYTES - COUNT_BYTES - number * ENTRY_BYTES;
    end - ENTRY_BYTES..end
}

/// The owner of object `number` of a slot with several, and its bytes; none if there is no such object.
pub fn object(slot: &[u8; SLOT_BYTES], number: u8) -> Option<(Slot, Range<usize>)> {
    let count = usize::from(u16::from_le_bytes([slot[SLOT_BYTES - 2], slot[SLOT_BYTES - 1]]));
    let number = usize::from(number);
    if !(2..=OBJECTS_MAX).contains(&count) || number >= count {
        return None;
    }
    let entry = &slot[entry_at(number)];
    let owner = u32::from_le_bytes([entry[0], entry[1], entry[2], entry[3]]);
    let start = usize::from(u16::from_le_bytes([entry[4], entry[5]]));
    let end = start + usize::from(u16::from_le_bytes([entry[6], entry[7]]));
    let is_inside = start < end && end <= SLOT_BYTES - COUNT_BYTES - count * ENTRY_BYTES;
    is_inside.then_some((Slot(owner), start..end))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn objects(lens: &[u16]) -> Vec<Vec<u8>> {
        let object = |(i, len): (usize, &u16)| (0..usize::from(*len)).map(|at| (at * 7 + i * 13) as u8).collect();
        lens.iter().enumerate().map(object).collect()
    }

    fn owner(i: usize) -> Slot {
        Slot(1000 + i as u32)
    }

    fn slot(data: &[u8], i: u32) -> &[u8; SLOT_BYTES] {
        &data.as_chunks().0[i as usize]
    }

    /// Each object is where its place says.
    fn assert_found(packing: &Packing, data: &[u8], objects: &[Vec<u8>]) {
        let slots: Vec<_> = (0..BATCH as u32).map(Slot).collect();
        assert_eq!(packing.nr_objects(), objects.len());
        for (i, (of, place)) in packing.places(&slots).enumerate() {
            assert_eq!(of, owner(i));
            let range = match place.number() {
                None => 0..packing.bytes_in(place.slot as usize),
                Some(number) => {
                    let (of, range) = object(slot(data, place.slot), number).expect("an object");
                    assert_eq!(of, owner(i));
                    range
                }
            };
            assert_eq!(&slot(data, place.slot)[range], &objects[i]);
        }
    }

    fn sizes() -> impl Strategy<Value = Vec<u16>> {
        prop::collection::vec(prop_oneof![1u16..=4096, 1u16..=300], 1..=BATCH)
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn what_is_packed_is_found_and_unpacked(lens in sizes()) {
            let (objects, owners) = (objects(&lens), (0..lens.len()).map(owner).collect::<Vec<_>>());
            let mut data = vec![0xee; lens.len() * SLOT_BYTES];
            for (object, slot) in objects.iter().zip(data.chunks_mut(SLOT_BYTES)) {
                slot[..object.len()].copy_from_slice(object);
            }
            let packing = Packing::pack(&owners, &lens, &mut data);
            packing.finish(&mut data);
            assert_found(&packing, &data, &objects);
            let bytes = lens.iter().map(|len| usize::from(*len)).sum::<usize>();
            prop_assert!(packing.nr_slots() <= lens.len() && packing.nr_slots() >= bytes.div_ceil(SLOT_BYTES));
            prop_assert_eq!(packing.bytes(), bytes as u64);
            packing.unpack(&mut data);
            for (object, slot) in objects.iter().zip(data.chunks(SLOT_BYTES)) {
                prop_assert_eq!(&slot[..object.len()], &object[..]);
            }
        }

        #[test]
        fn what_is_added_is_found_until_there_is_no_room(lens in prop::collection::vec(1u16..=2000, 1..300), slots in 1..=BATCH) {
            let all = objects(&lens);
            let (mut packing, mut data) = (Packing::default(), vec![0xee; slots * SLOT_BYTES]);
            let n = all.iter().enumerate().take_while(|(i, object)| packing.push(owner(*i), object, &mut data)).count();
            packing.finish(&mut data);
            assert_found(&packing, &data, &all[..n]);
            prop_assert!(packing.nr_slots() <= slots && (n == all.len() || n == OBJECTS || packing.nr_slots() == slots));
        }

        #[test]
        fn a_directory_of_any_bytes_names_objects_inside_the_slot_or_none(
            bytes in prop::collection::vec(any::<u8>(), 600), count in 0u16..70, number in any::<u8>()
        ) {
            let mut slot = [0; SLOT_BYTES];
            slot[SLOT_BYTES - 600..].copy_from_slice(&bytes);
            slot[SLOT_BYTES - 2..].copy_from_slice(&count.to_le_bytes());
            if let Some((_, range)) = object(&slot, number) {
                prop_assert!(range.start < range.end && range.end <= SLOT_BYTES - 2 - usize::from(count) * 8);
            }
        }
    }

    #[test]
    fn objects_like_a_heap_s_take_little_more_than_their_bytes() {
        // Sizes that lz4 makes of a heap's pages.
        let lens: Vec<u16> = (0..OBJECTS).map(|i| 300 + (i * 7919 % 1900) as u16).collect();
        let (mut packing, mut data) = (Packing::default(), vec![0; BATCH * SLOT_BYTES]);
        let all = objects(&lens);
        let n = all.iter().enumerate().take_while(|(i, object)| packing.push(owner(*i), object, &mut data)).count();
        let (slots, bytes) = (packing.nr_slots() * SLOT_BYTES, packing.bytes() as usize);
        assert!(n > BATCH && slots * 100 <= bytes * 115, "{slots} bytes in slots for {bytes}");
    }
}
