//! What the processes of a tree read from each device, and what their read-ahead there was good for.
//!
//! A device is a directory and a kind. The first process that uses it takes a place, by its key; all of them write the same name there.
//! Whoever finds no place is not counted.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

/// Devices that are counted apart: as many as `ebb run` can name, and as many again for swapon.
pub const PLACES: usize = 16;
/// Longest name of a directory.
pub const DIR_BYTES: usize = 512;

/// The names of the kinds of device, each at the place of its number.
pub const KINDS: [&str; 3] = ["ssd", "hdd", "ram"];

/// What is counted for one device.
#[repr(C)]
#[derive(Debug)]
pub struct Device {
    /// 0 for a free place.
    key: AtomicU64,
    /// The number of its kind.
    kind: AtomicU64,
    dir: [AtomicU64; DIR_BYTES / 8],
    /// Reads.
    pub reads: AtomicU64,
    /// How long threads waited for them, all together.
    pub read_ns: AtomicU64,
    /// Pages that were read ahead and used.
    pub readahead_hits: AtomicU64,
    /// Pages that were read ahead and not used.
    pub readahead_misses: AtomicU64,
}

/// The devices of a tree.
#[repr(C)]
#[derive(Debug)]
pub struct Devices {
    all: [Device; PLACES],
}

impl Device {
    /// Its directory.
    pub fn dir(&self) -> [u8; DIR_BYTES] {
        let mut out = [0; DIR_BYTES];
        for (word, chunk) in self.dir.iter().zip(out.chunks_exact_mut(8)) {
            chunk.copy_from_slice(&word.load(Relaxed).to_le_bytes());
        }
        out
    }

    /// The number of its kind.
    pub fn kind(&self) -> u64 {
        self.kind.load(Relaxed)
    }

    /// The name of its kind. Any process of the tree may have written any number.
    pub fn kind_name(&self) -> &'static str {
        KINDS.get(self.kind() as usize).unwrap_or(&KINDS[0])
    }
}

impl Devices {
    /// The number of a device's place, from 1 on; 0 if there is none. The directory has no NUL.
    pub fn enter(&self, dir: &[u8], kind: u64) -> u32 {
        let key = key(dir, kind);
        for (i, device) in self.all.iter().enumerate() {
            let taken = device.key.compare_exchange(0, key, Relaxed, Relaxed);
            if taken.is_ok() || taken == Err(key) {
                for (n, word) in device.dir.iter().enumerate() {
                    let mut bytes = [0; 8];
                    let byte = |j: usize| dir.get(n * 8 + j).copied().filter(|_| n * 8 + j + 1 < DIR_BYTES);
                    bytes.iter_mut().enumerate().for_each(|(j, to)| *to = byte(j).unwrap_or(0));
                    word.store(u64::from_le_bytes(bytes), Relaxed);
                }
                device.kind.store(kind, Relaxed);
                return i as u32 + 1;
            }
        }
        0
    }

    /// The device with this number.
    pub fn get(&self, place: u32) -> Option<&Device> {
        self.all.get((place as usize).checked_sub(1)?)
    }

    /// All devices.
    pub fn iter(&self) -> impl Iterator<Item = &Device> {
        self.all.iter().filter(|device| device.key.load(Relaxed) != 0)
    }
}

/// A number that tells devices apart: FNV-1a.
fn key(dir: &[u8], kind: u64) -> u64 {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
    dir.iter().chain(&[kind as u8]).fold(0xcbf2_9ce4_8422_2325, step).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_has_one_place_whoever_enters_it() {
        // SAFETY: zero is a valid counter.
        let devices: std::boxed::Box<Devices> = unsafe { std::boxed::Box::new(core::mem::zeroed()) };
        assert_eq!([(&b"/a"[..], 0), (b"/b", 1), (b"/a", 0)].map(|(d, k)| devices.enter(d, k)), [1, 2, 1]);
        assert_eq!(devices.enter(b"/a", 1), 3, "another medium is another device");
        let names: std::vec::Vec<_> =
            devices.iter().map(|device| (device.dir()[..3].to_vec(), device.kind())).collect();
        assert_eq!(names, [(b"/a\0".to_vec(), 0), (b"/b\0".to_vec(), 1), (b"/a\0".to_vec(), 1)]);
        (0..PLACES as u8).for_each(|i| _ = devices.enter(&[b'/', b'c', i], 0));
        assert_eq!(devices.enter(b"/late", 0), 0);
        assert!(devices.get(0).is_none() && devices.get(PLACES as u32 + 1).is_none());
        // A name that is too long is cut.
        assert_eq!(devices.get(1).map(|device| device.dir()[DIR_BYTES - 1]), Some(0));
    }
}
