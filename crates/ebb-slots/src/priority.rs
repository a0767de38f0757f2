//! Which device an allocation asks first: the one with the highest priority, and devices of equal priority in turn.
//!
//! A list of device numbers, read by every allocation and changed when a device comes or goes. Readers take no lock:
//! they read again if a change came in between (a sequence lock).
//!
//! This follows the kernel (`swapon(2)`, `swap_active_head`), with one difference: the kernel gives up a large folio
//! after one device. Here a caller knows the whole order, so it may try each device before it splits what it stores.

use ebb_sync::{AtomicU32, Lock, Ordering, fence, relax};

/// The most devices that there can be.
pub const DEVICES_MAX: usize = if cfg!(any(loom, shuttle)) { 3 } else { 32 };

ebb_sync::lock_classes! {
    /// Changes of the list.
    PrioritiesLock = "swap priorities";
}

/// The devices in use, by priority. Zeroed memory is an empty list.
#[derive(Debug)]
pub struct Priorities {
    lock: Lock<(), PrioritiesLock>,
    /// Odd while the entries change.
    version: AtomicU32,
    /// Highest priority first: priority, as an unsigned number in the same order, in the upper half; device plus 1 in
    /// the lower. 0 after the last.
    entries: [AtomicU32; DEVICES_MAX],
}

impl Default for Priorities {
    fn default() -> Self {
        Self::new()
    }
}

fn entry(device: u8, priority: i16) -> u32 {
    ((priority as u16 ^ 0x8000) as u32) << 16 | (u32::from(device) + 1)
}

impl Priorities {
    /// An empty list.
    pub fn new() -> Self {
        Self { lock: Lock::new(()), version: AtomicU32::new(0), entries: core::array::from_fn(|_| AtomicU32::new(0)) }
    }

    /// Adds a device after those of the same priority. False if it is there already, or if the list is full.
    pub fn add(&self, device: u8, priority: i16) -> bool {
        let _guard = self.lock.lock();
        let (mut entries, n) = self.read();
        if n == DEVICES_MAX || entries[..n].iter().any(|entry| device_of(*entry) == device) {
            return false;
        }
        let new = entry(device, priority);
        let at = entries[..n].iter().position(|entry| *entry >> 16 < new >> 16).unwrap_or(n);
        entries.copy_within(at..n, at + 1);
        entries[at] = new;
        self.write(&entries);
        true
    }

    /// Removes a device; false if it is not there.
    pub fn remove(&self, device: u8) -> bool {
        let _guard = self.lock.lock();
        let (mut entries, n) = self.read();
        let Some(at) = entries[..n].iter().position(|entry| device_of(*entry) == device) else { return false };
        entries.copy_within(at + 1..n, at);
        entries[n - 1] = 0;
        self.write(&entries);
        true
    }

    /// The priority of a device.
    pub fn priority(&self, device: u8) -> Option<i16> {
        let (entries, n) = self.read();
        let entry = entries[..n].iter().find(|entry| device_of(**entry) == device)?;
        Some(((entry >> 16) as u16 ^ 0x8000) as i16)
    }

    /// Writes the devices to `out` in the order in which an allocation asks them. Returns how many there are. Devices
    /// of one priority begin with another one for each `turn`. A caller that raises `turn` after about a cluster's
    /// worth of slots keeps together what is written together.
    pub fn order(&self, turn: u32, out: &mut [u8; DEVICES_MAX]) -> usize {
        let (entries, n) = self.read();
        let mut at = 0;
        for group in entries[..n].chunk_by(|a, b| a >> 16 == b >> 16) {
            let first = turn as usize % group.len();
            for entry in group[first..].iter().chain(&group[..first]) {
                out[at] = device_of(*entry);
                at += 1;
            }
        }
        n
    }

    fn read(&self) -> ([u32; DEVICES_MAX], usize) {
        let mut spins = 0;
        loop {
            // Acquire, and the fence below: everything read in between is of one version, or the version differs.
            let version = self.version.load(Ordering::Acquire);
            if version.is_multiple_of(2) {
                let mut entries = [0; DEVICES_MAX];
                for (to, from) in entries.iter_mut().zip(&self.entries) {
                    *to = from.load(Ordering::Relaxed);
                }
                fence(Ordering::Acquire);
                if self.version.load(Ordering::Relaxed) == version {
                    let n = entries.iter().position(|entry| *entry == 0).unwrap_or(DEVICES_MAX);
                    return (entries, n);
                }
            }
            relax(&mut spins);
        }
    }

    /// Under the lock.
    fn write(&self, entries: &[u32; DEVICES_MAX]) {
        let version = self.version.load(Ordering::Relaxed);
        self.version.store(version + 1, Ordering::Relaxed);
        // No entry is seen before the version is odd.
        fence(Ordering::Release);
        for (to, from) in self.entries.iter().zip(entries) {
            to.store(*from, Ordering::Relaxed);
        }
        self.version.store(version.wrapping_add(2), Ordering::Release);
    }
}

fn device_of(entry: u32) -> u8 {
    (entry as u16 - 1) as u8
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use std::vec::Vec;

    fn order(list: &Priorities, turn: u32) -> Vec<u8> {
        let mut out = [0; DEVICES_MAX];
        let n = list.order(turn, &mut out);
        out[..n].to_vec()
    }

    #[test]
    fn the_highest_priority_comes_first_and_equals_take_turns() {
        let list = Priorities::new();
        for (device, priority) in [(0, -2), (1, 5), (2, 5), (3, 32_767), (4, 5)] {
            assert!(list.add(device, priority));
        }
        assert_eq!(order(&list, 0), [3, 1, 2, 4, 0]);
        assert_eq!(order(&list, 1), [3, 2, 4, 1, 0]);
        assert_eq!(order(&list, 5), [3, 4, 1, 2, 0]);
        assert_eq!((list.priority(0), list.priority(4), list.priority(9)), (Some(-2), Some(5), None));
    }

    #[test]
    fn devices_come_and_go() {
        let list = Priorities::new();
        assert!(list.add(7, 0) && !list.add(7, 3) && !list.remove(8));
        assert!(list.add(8, 1) && list.remove(7));
        assert_eq!(order(&list, 3), [8]);
        assert!(list.remove(8));
        assert_eq!(order(&list, 3), []);
        for device in 0..DEVICES_MAX as u8 {
            assert!(list.add(device, i16::from(device)));
        }
        assert!(!list.add(200, 0));
        assert_eq!(order(&list, 0).len(), DEVICES_MAX);
    }
}
