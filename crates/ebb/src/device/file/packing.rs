//! Packing: several compressed objects in one slot, so that the file has about as many bytes as the objects have.
//!
//! A slot is read, decrypted and authenticated as a whole. In a slot with several objects, the objects come first, one
//! after the other, and a directory comes last, from the end of the slot backwards: the number of objects (2 bytes), and
//! for each of them its owner (4 bytes), its start and its length (2 bytes each), little-endian. The owner is the slot
//! of the swap space whose content the object is. Whoever cleans the file finds by it what is left in a slot.
//!
//! Which objects share a slot is decided for a few at a time, the longest of them first: each goes into the first of the
//! slots last begun that has room for it (*first-fit decreasing*). The objects of a batch were pages side by side, so they
//! stay close together in the file.

use super::{BATCH, Place, SLOT_BYTES};
use core::cmp::Reverse;
use core::ops::Range;
use ebb_slots::Slot;

/// Most objects that one call writes. More of them than slots, because they are small.
pub const OBJECTS: usize = 2 * BATCH;
/// Most objects in a slot.
const OBJECTS_MAX: usize = 63;
/// Objects that are sorted together: as many as the pages of a window.
const GROUP: usize = 16;
/// Slots last begun that are still filled.
const OPEN_SLOTS: usize = 16;
/// In place of a slot's number.
const NO_ROOM: u8 = u8::MAX;
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
    /// The first object that is in it.
    first: u8,
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

/// Which slot of at most `slots_max` each object of a batch goes into, by the objects' lengths; [`NO_ROOM`] for those that find
/// none. The first object in a slot comes before the first in the next.
fn arrange(lens: &[u16], slots_max: usize) -> [u8; OBJECTS] {
    let (mut slot_of, mut slots, mut n) = ([NO_ROOM; OBJECTS], [Filled::default(); BATCH], 0usize);
    for (group, lens) in lens.chunks(GROUP).enumerate() {
        let mut order: [u8; GROUP] = core::array::from_fn(|i| i as u8);
        let order = &mut order[..lens.len()];
        order.sort_unstable_by_key(|i| (Reverse(lens[usize::from(*i)]), *i));
        for i in order.iter().map(|i| usize::from(*i)) {
            let mut open = n.saturating_sub(OPEN_SLOTS)..n;
            let has_room = open.find(|slot| slots[*slot].has_room(usize::from(lens[i])));
            let Some(slot) = has_room.or((n < slots_max.min(BATCH)).then_some(n)) else { continue };
            n = n.max(slot + 1);
            slots[slot].bytes += lens[i];
            slots[slot].objects += 1;
            slot_of[group * GROUP + i] = slot as u8;
        }
    }
    let (mut names, mut named) = ([NO_ROOM; BATCH], 0);
    for slot in slot_of[..lens.len()].iter_mut().filter(|slot| **slot != NO_ROOM) {
        let name = &mut names[usize::from(*slot)];
        if *name == NO_ROOM {
            (*name, named) = (named, named + 1);
        }
        *slot = *name;
    }
    slot_of
}

impl Packing {
    /// Makes a batch of objects in the first `slots_max` slots of a buffer: of those with these lengths as many, from the first
    /// on, as there is room for. Calls `put` for each, with its number and where in the buffer it belongs.
    pub fn fill(owners: &[Slot], lens: &[u16], slots_max: usize, mut put: impl FnMut(usize, Range<usize>)) -> Self {
        assert!(lens.len() <= OBJECTS && owners.len() == lens.len());
        let (mut this, mut n) = (Self::default(), lens.len());
        let slot_of = loop {
            let slot_of = arrange(&lens[..n], slots_max);
            match slot_of[..n].iter().filter(|slot| **slot == NO_ROOM).count() {
                0 => break slot_of,
                left => n -= left,
            }
        };
        for i in 0..n {
            put(i, this.add(i, owners[i], lens[i], slot_of[i]).range());
        }
        this
    }

    /// Makes a batch of objects: object `i` is the first `lens[i]` bytes of the `i`-th slot of `data`. The objects move to
    /// the first slots of `data`.
    pub fn pack(owners: &[Slot], lens: &[u16], data: &mut [u8]) -> Self {
        assert!(lens.len() <= BATCH && owners.len() == lens.len() && data.len() >= lens.len() * SLOT_BYTES);
        let (mut this, slot_of) = (Self::default(), arrange(lens, BATCH));
        // Each joins the first object of its slot behind that, where nothing else is.
        for (i, (owner, len)) in owners.iter().zip(lens).enumerate() {
            let object = this.add(i, *owner, *len, slot_of[i]);
            let to = this.home_of(object);
            if to.start != i * SLOT_BYTES {
                data.copy_within(i * SLOT_BYTES..i * SLOT_BYTES + usize::from(*len), to.start);
            }
        }
        // Then the slots move together. Each goes to where no slot is any more that was filled.
        for (i, slot) in this.slots[..this.nr_slots].iter().enumerate() {
            let from = usize::from(slot.first) * SLOT_BYTES;
            if from != i * SLOT_BYTES {
                data.copy_within(from..from + usize::from(slot.bytes), i * SLOT_BYTES);
            }
        }
        this
    }

    /// Moves the objects that [`Self::pack`] moved back to where they were.
    pub fn unpack(&self, data: &mut [u8]) {
        for (i, slot) in self.slots[..self.nr_slots].iter().enumerate().rev() {
            let to = usize::from(slot.first) * SLOT_BYTES;
            if to != i * SLOT_BYTES {
                data.copy_within(i * SLOT_BYTES..i * SLOT_BYTES + usize::from(slot.bytes), to);
            }
        }
        for (i, object) in self.objects[..self.nr_objects].iter().enumerate() {
            let from = self.home_of(*object);
            if from.start != i * SLOT_BYTES {
                data.copy_within(from, i * SLOT_BYTES);
            }
        }
    }

    /// Adds object `i` to the objects of `slot`.
    fn add(&mut self, i: usize, owner: Slot, len: u16, slot: u8) -> Object {
        debug_assert!((1..=SLOT_BYTES).contains(&usize::from(len)));
        self.nr_slots = self.nr_slots.max(usize::from(slot) + 1);
        let filled = &mut self.slots[usize::from(slot)];
        if filled.objects == 0 {
            filled.first = i as u8;
        }
        let object = Object { owner, start: filled.bytes, len, slot, number: filled.objects };
        filled.bytes += len;
        filled.objects += 1;
        self.objects[self.nr_objects] = object;
        self.nr_objects += 1;
        object
    }

    /// Where an object is while its slot's objects are with the first of them.
    fn home_of(&self, object: Object) -> Range<usize> {
        Object { slot: self.slots[usize::from(object.slot)].first, ..object }.range()
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
        let Filled { bytes, objects, .. } = self.slots[i];
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

/// Bytes of a slot that an object of `len` bytes takes among others.
pub fn bytes_with_entry(len: usize) -> usize {
    len + ENTRY_BYTES
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

    /// Puts as many of these objects as have room into `slots` slots of `data`.
    fn fill(all: &[Vec<u8>], slots: usize, data: &mut [u8]) -> Packing {
        let (owners, lens): (Vec<_>, Vec<_>) =
            (0..).zip(all).map(|(i, object)| (owner(i), object.len() as u16)).unzip();
        Packing::fill(&owners, &lens, slots, |i, range| data[range].copy_from_slice(&all[i]))
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
        fn what_fills_a_batch_is_found(lens in prop::collection::vec(1u16..=4096, 1..=OBJECTS), slots in 1..=BATCH) {
            let (all, mut data) = (objects(&lens), vec![0xee; slots * SLOT_BYTES]);
            let packing = fill(&all, slots, &mut data);
            packing.finish(&mut data);
            let n = packing.nr_objects();
            assert_found(&packing, &data, &all[..n]);
            prop_assert!(packing.nr_slots() <= slots && n >= slots.min(lens.len()));
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
        let packing = fill(&objects(&lens), BATCH, &mut vec![0; BATCH * SLOT_BYTES]);
        let (slots, bytes) = (packing.nr_slots() * SLOT_BYTES, packing.bytes() as usize);
        assert!(slots * 100 <= bytes * 107, "{slots} bytes in slots for {bytes}");
        assert_eq!(packing.nr_objects(), OBJECTS);
    }
}
