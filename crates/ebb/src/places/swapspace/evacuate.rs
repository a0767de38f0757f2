//! Emptying a device: its content moves to another device or to the pool, while the program runs.
//!
//! A location word belongs to its slot, so nobody looks for pages (the kernel's swapoff walks page tables). A walk over
//! the slots in use locks each slot whose content is on the device, as a swap-in would, and changes its location word.

use super::content::POOL_OBJECT_MAX;
use super::location::file_of;
use super::{MOVING, NOT_LOCKED, SwapSpace};
use crate::budget::Budget;
use crate::counters::stats::Shared;
use crate::device::file::{BATCH, FileError, Place, SLOT_BYTES};
use crate::device::list::Writer;
use crate::device::list::{Files, bit};
use crate::protocols::gate::Held;
use core::sync::atomic::Ordering;
use ebb_slots::{LockError, Locked, Slot};

/// Slots that one step visits at most.
const LOOKS: usize = 8192;

/// 1/`POOL_RESERVE` of the pool stays free of content that comes from a device.
const POOL_RESERVE: usize = 8;

/// A step moved less than it found, because neither a device nor the pool takes the content.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stuck;

/// A locked slot whose content is on its way to another place.
#[derive(Clone, Copy)]
struct Found {
    slot: Slot,
    was: Locked,
    file: usize,
    at: Place,
    len: u16,
}

/// What became of a slot that a step visited.
enum Claim {
    /// Its content is in another place, or gone.
    Passed,
    /// Another thread has it locked: the next step begins with it.
    Taken,
    Found(Found),
}

/// The devices that are being emptied, and what the work is charged to.
#[derive(Clone, Copy)]
pub struct Evacuation<'a> {
    pub writer: Writer<'a>,
    pub budget: &'a Budget,
    pub stats: &'a Shared,
    /// The files to empty, a bit each. Nobody writes to them any more.
    pub leaving: Files,
}

/// What one step did.
pub struct Step {
    /// Where the next step begins; none after the last slot.
    pub next: Option<Slot>,
    /// Slots whose content moved.
    pub moved: usize,
    /// Why the content of a slot stays: it cannot be read.
    pub unreadable: Option<FileError>,
}

impl SwapSpace {
    /// Moves the content of slots, from slot `from` on, out of the files that are being emptied: of as many as `data` has
    /// room for, and at most [`BATCH`].
    pub fn evacuate(&self, job: &Evacuation<'_>, from: Slot, data: &mut [u8]) -> Result<Step, Stuck> {
        let held = job.writer.held;
        let mut found = [Found { slot: Slot(0), was: NOT_LOCKED, file: 0, at: Place::alone(0), len: 0 }; BATCH];
        let mut n = 0;
        let mut unreadable = None;
        let mut next = Some(from);
        for _ in 0..LOOKS {
            next = next.and_then(|slot| self.slots.next_used(slot));
            let Some(slot) = next else { break };
            match self.claim_in_file(held, slot, job.leaving, n == 0, &mut data[n * SLOT_BYTES..(n + 1) * SLOT_BYTES]) {
                Ok(Claim::Passed) => {}
                Ok(Claim::Taken) => break,
                Ok(Claim::Found(one)) => {
                    found[n] = one;
                    n += 1;
                }
                // What else there is can still be saved: in the next step, because a read that fails may take long.
                Err(e) => {
                    unreadable = Some(e);
                    next = Some(Slot(slot.0 + 1));
                    break;
                }
            }
            next = Some(Slot(slot.0 + 1));
            if n == data.len() / SLOT_BYTES {
                break;
            }
        }
        let found = &found[..n];
        let moved = if n > 0 { self.store_elsewhere(job, found, data) } else { 0 };
        for one in &found[..moved] {
            if let Some(file) = self.devices.file(held, one.file) {
                file.free_all(&[one.at]);
            }
        }
        for one in found {
            self.unclaim(held, one.slot, one.was);
        }
        if moved == n { Ok(Step { next, moved, unreadable }) } else { Err(Stuck) }
    }

    /// Locks a slot whose content is in one of the files `leaving`, and reads the object as it is stored. Waits for a
    /// slot that another thread has locked only if it `may_wait`: a thread that has slots locked never waits for
    /// another slot.
    fn claim_in_file(
        &self,
        held: &Held,
        slot: Slot,
        leaving: Files,
        may_wait: bool,
        out: &mut [u8],
    ) -> Result<Claim, FileError> {
        let in_file = |loc: u64| file_of(loc).filter(|(file, _)| leaving & bit(*file) != 0);
        if in_file(self.location(slot).load(Ordering::Acquire)).is_none() {
            return Ok(Claim::Passed);
        }
        let was = match self.slots.lock(slot, MOVING) {
            Ok(was) => was,
            Err(LockError::Locked) if !may_wait => return Ok(Claim::Taken),
            Err(LockError::Locked) => match self.claim(slot, MOVING) {
                Ok(was) => was,
                Err(_) => return Ok(Claim::Passed),
            },
            // The slot was freed meanwhile.
            Err(_) => return Ok(Claim::Passed),
        };
        // Only the thread that has the slot locked changes its location.
        let result = match in_file(self.location(slot).load(Ordering::Acquire)) {
            None => Ok(Claim::Passed),
            Some((file, at)) => {
                self.read_object(held, file, at, out).map(|len| Claim::Found(Found { slot, was, file, at, len }))
            }
        };
        if !matches!(result, Ok(Claim::Found(_))) {
            self.unclaim(held, slot, was);
        }
        result
    }

    fn read_object(&self, held: &Held, file: usize, at: Place, out: &mut [u8]) -> Result<u16, FileError> {
        let file = self.devices.file(held, file).ok_or(FileError::Corrupt)?;
        let page = out.try_into().map_err(|_| FileError::Corrupt)?;
        file.read(at, page).map(|len| len as u16).inspect_err(|error| file.note_failed_read(at.slot, *error))
    }

    /// Stores the objects of locked slots on other devices or in the pool, in order, and changes their locations;
    /// returns how many. Content that was on a device is cold, so another device is tried first.
    fn store_elsewhere(&self, job: &Evacuation<'_>, objects: &[Found], data: &mut [u8]) -> usize {
        let Evacuation { writer, budget, stats, .. } = *job;
        let n = objects.len();
        let (mut slots, mut lens) = ([Slot(0); BATCH], [0; BATCH]);
        for (i, one) in objects.iter().enumerate() {
            (slots[i], lens[i]) = (one.slot, one.len);
        }
        let all = self.write_objects(writer, budget, &slots[..n], &lens[..n], &mut data[..n * SLOT_BYTES]);
        let is_held = match all {
            Ok(()) => return n,
            // The content is still where it was.
            Err(error) if error.is_lost() => return 0,
            Err(error) => error.is_for_any(),
        };
        let whole_pages = !self.has_file();
        for i in 0..n {
            let object = &mut data[i * SLOT_BYTES..(i + 1) * SLOT_BYTES];
            let len = lens[i] as usize;
            // A page that does not compress saves nothing in the pool, so it goes there only when no device takes it.
            let is_small = len <= POOL_OBJECT_MAX || whole_pages;
            if is_small && self.store_in_pool(budget, stats, slots[i], &object[..len]) {
                continue;
            }
            let (slot, len_of) = (&slots[i..i + 1], &lens[i..i + 1]);
            let written = match is_held {
                false => self.write_objects(writer, budget, slot, len_of, object),
                true => Err(FileError::Held),
            };
            match written {
                Ok(()) => {}
                Err(error) if error.is_lost() => return i,
                Err(_) if !is_small && self.store_in_pool(budget, stats, slots[i], &object[..len]) => {}
                Err(_) => return i,
            }
        }
        n
    }

    /// Stores an object of a locked slot in the pool. False when the pool is full up to its reserve. The program needs
    /// the reserve to go on: once the pool takes nothing more, the program is ended as soon as it changes its memory.
    fn store_in_pool(&self, budget: &Budget, stats: &Shared, slot: Slot, object: &[u8]) -> bool {
        let most = self.memory.pages_max(budget);
        if self.pool_pages() > most - most / POOL_RESERVE {
            return false;
        }
        let Ok(location) = self.store_object(budget, stats, slot, object) else { return false };
        self.location(slot).store(location, Ordering::Release);
        true
    }
}
