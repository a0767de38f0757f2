//! The devices of a process: the files that it writes to, in the order of their priorities, and those that it inherited
//! by fork and only reads.
//!
//! Owns the files. A location word names one by its number here, so a number is free again only when no slot's content
//! is in its file. The list changes under the exclusive gate; readers are inside the gate.

use crate::device::DEVICES_MAX;
use crate::device::file::{BATCH, FileError, Reclaim, SpillFile};
use crate::uapi::{self, Errno};
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use ebb_slots::{CLUSTER_SLOTS, Priorities, Shard, Slot};

/// Files: a process's own ones and those it inherited.
pub const FILES_MAX: usize = 32;

/// The devices of one process.
pub struct Devices {
    files: *mut MaybeUninit<Option<SpillFile>>,
    /// Entries that have a value.
    nr_files: AtomicUsize,
    priorities: Priorities,
    /// Slots written so far, for devices of one priority to take turns.
    written: AtomicU32,
}

// SAFETY: entries change only under the exclusive gate or before the space is shared; files are shared safely.
unsafe impl Sync for Devices {}
// SAFETY: as above.
unsafe impl Send for Devices {}

impl Devices {
    /// No device.
    pub fn new() -> Result<Self, Errno> {
        Ok(Self {
            files: uapi::reserve(FILES_MAX * size_of::<Option<SpillFile>>())?.cast(),
            nr_files: AtomicUsize::new(0),
            priorities: Priorities::new(),
            written: AtomicU32::new(0),
        })
    }

    /// One entry after the other, for who has the exclusive gate.
    #[expect(clippy::mut_from_ref, reason = "the exclusive gate makes the caller the only user")]
    pub fn all_mut(&self) -> &mut [Option<SpillFile>] {
        let n = self.nr_files.load(Ordering::Relaxed);
        // SAFETY: the first `nr_files` entries have a value; see the contract.
        unsafe { core::slice::from_raw_parts_mut(self.files.cast::<Option<SpillFile>>(), n) }
    }

    /// The file of a number.
    pub fn file(&self, i: usize) -> Option<&SpillFile> {
        if i >= self.nr_files.load(Ordering::Acquire) {
            return None;
        }
        // SAFETY: the entry has a value, which changes only under the exclusive gate.
        unsafe { (*self.files.add(i)).assume_init_ref().as_ref() }
    }

    /// All files, with their numbers.
    pub fn all(&self) -> impl Iterator<Item = (usize, &SpillFile)> {
        (0..self.nr_files.load(Ordering::Acquire)).filter_map(|i| self.file(i).map(|file| (i, file)))
    }

    /// The files that this process writes to.
    pub fn own(&self) -> impl Iterator<Item = (usize, &SpillFile)> {
        self.all().filter(|(i, _)| self.priorities.priority(*i as u8).is_some())
    }

    /// The priority of a file that this process writes to.
    pub fn priority(&self, i: usize) -> Option<i16> {
        self.priorities.priority(i as u8)
    }

    /// A priority below those of all files that this process writes to: -1 for the first.
    pub fn priority_below(&self) -> i16 {
        self.own().filter_map(|(i, _)| self.priority(i)).min().unwrap_or(0).min(0).saturating_sub(1)
    }

    /// True when one more device is possible.
    pub fn has_room(&self) -> bool {
        let taken = self.all().count();
        taken < FILES_MAX && self.own().count() < DEVICES_MAX
    }

    /// Adds a file to write to. Its number, or the file again when there is no room. Under the exclusive gate, or before
    /// the space is shared.
    #[expect(clippy::result_large_err, reason = "a file that finds no room is destroyed by who made it")]
    pub fn add(&self, file: SpillFile, priority: i16) -> Result<usize, SpillFile> {
        if !self.has_room() {
            return Err(file);
        }
        let n = self.nr_files.load(Ordering::Relaxed);
        let i = self.all_mut().iter().position(Option::is_none).unwrap_or(n);
        if i < n {
            self.all_mut()[i] = Some(file);
        } else {
            // SAFETY: `has_room` says that `n` is below FILES_MAX; nobody reads the entry yet.
            unsafe { self.files.add(n).write(MaybeUninit::new(Some(file))) };
            self.nr_files.store(n + 1, Ordering::Release);
        }
        self.write_to(i, priority);
        Ok(i)
    }

    /// Has file `i` written to from now on.
    pub fn write_to(&self, i: usize, priority: i16) {
        let added = self.priorities.add(i as u8, priority);
        debug_assert!(added, "a device was added twice");
    }

    /// Has file `i` written to no more. Who writes at this moment may go on, unless the gate is closed.
    pub fn write_no_more(&self, i: usize) {
        self.priorities.remove(i as u8);
    }

    /// Takes a file out that nothing refers to. Under the exclusive gate.
    pub fn remove(&self, i: usize) -> Option<SpillFile> {
        self.write_no_more(i);
        self.all_mut().get_mut(i).and_then(Option::take)
    }

    /// Writes a batch of objects (see [`SpillFile::write`]) to the first device that takes all of it; its number. The
    /// caller may try parts of the batch when none does, so that what belongs together stays together while it can.
    pub fn write(
        &self,
        shard: Shard,
        owners: &[Slot],
        data: &mut [u8],
        lens: &[u16],
        out: &mut [u32],
        reclaim: Reclaim<'_>,
    ) -> Result<usize, FileError> {
        debug_assert!(lens.len() <= BATCH);
        let turn = self.written.fetch_add(lens.len() as u32, Ordering::Relaxed) / CLUSTER_SLOTS;
        let mut order = [0; ebb_slots::DEVICES_MAX];
        let n = self.priorities.order(turn, &mut order);
        let mut error = FileError::Full;
        let mut asked = 0u32;
        // One that refused a moment ago is asked again only when no other takes it.
        for wants_rested in [true, false] {
            for i in order[..n].iter().map(|i| *i as usize) {
                if asked >> i & 1 != 0 {
                    continue;
                }
                let Some(file) = self.file(i).filter(|file| !(wants_rested && file.is_resting())) else { continue };
                asked |= 1 << i;
                match file.write(shard, owners, data, lens, out, reclaim) {
                    Ok(()) => return Ok(i),
                    // What was to be written is lost: nobody else can take it.
                    Err(FileError::Corrupt) => return Err(FileError::Corrupt),
                    Err(e) => error = e,
                }
            }
        }
        Err(error)
    }
}
