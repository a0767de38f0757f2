//! The directory of a file's slot with several objects, on any bytes: it names objects inside the slot, or none. And what is packed is
//! found.
//!
//! `cargo +nightly fuzz run packed_slot`
#![no_main]

use ebb_slots::Slot;
use libfuzzer_sys::fuzz_target;
use packing::{OBJECTS, Packing, object};

// The engine keeps these to itself, so they are compiled here once more.
#[allow(dead_code)]
#[path = "../../crates/ebb/src/device/file/packing.rs"]
mod packing;
#[allow(dead_code)]
#[path = "../../crates/ebb/src/device/file/place.rs"]
mod place;

use place::Place;

const BATCH: usize = 64;
const SLOT_BYTES: usize = 4096;
/// Bytes of the directory for so many objects.
const fn directory_bytes(objects: usize) -> usize {
    2 + 8 * objects
}

fuzz_target!(|data: &[u8]| {
    // The end of a slot is its directory.
    let mut slot = [0; SLOT_BYTES];
    let len = data.len().min(SLOT_BYTES);
    slot[SLOT_BYTES - len..].copy_from_slice(&data[..len]);
    let count = usize::from(u16::from_le_bytes([slot[SLOT_BYTES - 2], slot[SLOT_BYTES - 1]]));
    for number in 0..=u8::MAX {
        if let Some((_, range)) = object(&slot, number) {
            assert!(usize::from(number) < count && range.start < range.end);
            assert!(range.end <= SLOT_BYTES - directory_bytes(count));
        }
    }

    // Two bytes make the length of an object.
    let mut room = vec![0xee; 8 * SLOT_BYTES];
    let pairs = data.as_chunks::<2>().0.iter().take(OBJECTS);
    let lens: Vec<u16> = pairs.map(|bytes| u16::from_le_bytes(*bytes) % SLOT_BYTES as u16 + 1).collect();
    let owners: Vec<Slot> = (0..lens.len() as u32).map(Slot).collect();
    let packing = Packing::fill(&owners, &lens, 8, |i, range| room[range].fill(i as u8));
    packing.finish(&mut room);
    let slots: Vec<Slot> = (0..BATCH as u32).map(Slot).collect();
    for (i, (owner, place)) in packing.places(&slots).enumerate() {
        let (at, len): (&[u8; SLOT_BYTES], _) = (&room.as_chunks().0[place.slot as usize], usize::from(lens[i]));
        let range = place.number().map_or(Some((owner, 0..len)), |number| object(at, number)).map(|(of, range)| {
            assert_eq!(of, Slot(i as u32));
            range
        });
        let found = &at[range.expect("what was packed is found")];
        assert!(found.len() == len && found.iter().all(|byte| *byte == i as u8));
    }
});
