//! The way out to a file: a batch gets slots, is encrypted, and is written. All of it or nothing.

use super::faults::Meaning;
use super::transfer::{LATE, Torn, Undone};
use super::{
    BATCH, FileError, NO_FOLIO, NO_OWNER, Packing, Place, RECLAIM_CLUSTERS, REST_NS, SLOT_BYTES, SpillFile, Taker,
};
use crate::base::uapi::{self, Errno};
use crate::counters::stats;
use crate::counters::writes::Grant;
use crate::device::contexts::Lease;
use crate::protocols::seal::Seal;
use core::ops::Range;
use core::sync::atomic::Ordering;
use ebb_slots::{Shadow, Slot};

/// A batch that is encrypted for slots of its own.
pub struct Sealed {
    pub(super) slots: [Slot; BATCH],
    /// Whether the file system had given space to a slot before.
    had_space: [bool; BATCH],
    pub(super) n: usize,
    /// What was taken of the directory's allowance.
    pub(super) grant: Grant,
    /// Which flight writes it, if it flies.
    pub(super) which: usize,
}

impl Sealed {
    /// The end of the run of neighbouring slots that begins with slot `first` of the batch.
    pub(super) fn run_end(&self, first: usize) -> usize {
        let slots = &self.slots[..self.n];
        (first + 1..self.n).find(|i| slots[*i].0 != slots[*i - 1].0 + 1).unwrap_or(self.n)
    }
}

impl SpillFile {
    /// Writes the objects of a batch, whose content is in `data`, which is encrypted in place. `placed` is told each
    /// object's owner, a slot of the swap space, and its place. All or nothing; and then, unless the error is
    /// [`FileError::Corrupt`], `data` has the objects as before.
    pub fn write(
        &self,
        taker: Taker<'_>,
        packing: &Packing,
        data: &mut [u8],
        placed: impl FnMut(Slot, Place),
    ) -> Result<(), FileError> {
        let n = packing.nr_slots();
        assert!(self.owner && n <= BATCH);
        if self.closed().is_some() {
            return Err(FileError::Closed);
        }
        if self.is_late() {
            return Err(FileError::Late);
        }
        let data = &mut data[..n * SLOT_BYTES];
        packing.finish(data);
        let mut result = self.write_once(taker, packing, data);
        if let Err(FileError::Io(errno)) = result
            && self.note_failed_write(errno)
        {
            result = self.write_once(taker, packing, data);
            if let Err(FileError::Io(errno)) = result {
                self.note_failed_write(errno);
            }
        }
        let sealed = result.inspect_err(|error| self.rest(*error))?;
        self.commit(taker, packing, data.len(), &sealed, placed);
        Ok(())
    }

    /// Has other files asked first for a while, because this one took nothing. Not if its budget is spent: that is looked up each time.
    pub(super) fn rest(&self, error: FileError) {
        if error != FileError::Held {
            self.rest_until_ns.store(uapi::now_ns() + REST_NS, Ordering::Relaxed);
        }
    }

    /// Hands out what was written: `placed` is told each object's owner and its place.
    pub(super) fn commit(
        &self,
        taker: Taker<'_>,
        packing: &Packing,
        bytes: usize,
        sealed: &Sealed,
        mut placed: impl FnMut(Slot, Place),
    ) {
        let slots = &sealed.slots[..sealed.n];
        self.used.fetch_add(sealed.n as u32, Ordering::Relaxed);
        self.objects.fetch_add(packing.nr_objects() as u32, Ordering::Relaxed);
        stats::add(&taker.stats.file_object_bytes, packing.bytes());
        stats::add(&taker.stats.file_bytes, bytes as u64);
        // The slots leave their cache below; the objects' owners are locked by the caller, so nobody looks for them yet.
        let mut owners = [NO_OWNER; BATCH];
        for (owner, place) in packing.places(slots) {
            if !place.is_packed()
                && let Some(i) = slots.iter().position(|slot| slot.0 == place.slot)
            {
                owners[i] = Shadow(owner.0);
            }
            placed(owner, place);
        }
        for (i, (slot, owner)) in slots.iter().zip(owners).enumerate() {
            if owner == NO_OWNER {
                self.count(slot.0).store(packing.objects_in(i), Ordering::Relaxed);
            }
            // One reference, that of this process. The objects of a slot with several share it.
            let _ = self.slots.dup(*slot);
            self.slots.cache_del(*slot, owner);
        }
    }

    /// Allocates `slots`, all of them or none. While the file must not grow, only slots that need no more space.
    fn take_slots(&self, taker: Taker<'_>, slots: &mut [Slot]) -> bool {
        let n = slots.len();
        if !self.is_paused() {
            let mut got = self.alloc(taker, slots);
            if got < n && self.collect() > 0 {
                got += self.alloc(taker, &mut slots[got..]);
            }
            if got < n {
                self.unalloc(&slots[..got]);
            }
            return got == n;
        }
        let mut got = self.alloc_with_space(slots);
        if got < n && self.collect() > 0 {
            got += self.alloc_with_space(&mut slots[got..]);
        }
        if got < n {
            let mut left = n - got;
            self.slots.reclaim_full(RECLAIM_CLUSTERS, |slot, folio| {
                let is_freed = left > 0 && self.reclaim(slot, folio, taker.reclaim);
                left -= usize::from(is_freed);
                is_freed
            });
            got += self.alloc_with_space(&mut slots[got..]);
        }
        if got < n {
            self.unalloc(&slots[..got]);
        }
        got == n
    }

    /// Allocates slots that the file system has given space; then, if it is not full but the file is too long, those before its end.
    fn alloc_with_space(&self, slots: &mut [Slot]) -> usize {
        let n = self.slots.alloc_wanted(NO_FOLIO, slots, |slot| self.has_space(slot));
        let end = self.too_long_from.load(Ordering::Relaxed);
        if n == slots.len() || end == u32::MAX {
            return n;
        }
        n + self.slots.alloc_wanted(NO_FOLIO, &mut slots[n..], |slot| slot.0 < end)
    }

    /// Tries to write the slots of a batch once. If that fails with another error than [`FileError::Corrupt`], `data` holds
    /// their content as before.
    fn write_once(&self, taker: Taker<'_>, packing: &Packing, data: &mut [u8]) -> Result<Sealed, FileError> {
        let mut sealed = self.seal(taker, packing, data)?;
        self.put(taker, data, &mut sealed)?;
        Ok(sealed)
    }

    /// Takes slots for a batch, and encrypts it in place for them.
    pub(super) fn seal(&self, taker: Taker<'_>, packing: &Packing, data: &mut [u8]) -> Result<Sealed, FileError> {
        let n = packing.nr_slots();
        let grant = self.take_allowance(taker.stats, n).ok_or(FileError::Held)?;
        let mut sealed = Sealed { slots: [Slot(0); BATCH], had_space: [false; BATCH], n, grant, which: 0 };
        if !self.take_slots(taker, &mut sealed.slots[..sealed.n]) {
            self.give_back(taker.stats, grant, n, 0);
            return Err(FileError::Full);
        }
        for (i, Slot(slot)) in sealed.slots[..sealed.n].iter().copied().enumerate() {
            sealed.had_space[i] = self.has_space(Slot(slot));
            let len = packing.bytes_in(i);
            let part = &mut data[i * SLOT_BYTES..][..len];
            let nonce = self.nonce.fetch_add(1, Ordering::Relaxed);
            self.seals.set(slot, self.cipher.seal(nonce, slot, part)?);
            self.hold(slot);
            self.high_water.fetch_max(slot + 1, Ordering::Relaxed);
        }
        Ok(sealed)
    }

    /// Writes a sealed batch, and waits for it. If that fails, `data` is as before it was sealed, unless it is
    /// [`FileError::Corrupt`], and the slots are given back, as is what the device did not get of the allowance.
    pub(super) fn put(&self, taker: Taker<'_>, data: &mut [u8], sealed: &mut Sealed) -> Result<(), FileError> {
        let (mut first, n) = (0, sealed.n);
        while first < n {
            let end = sealed.run_end(first);
            let Sealed { slots, had_space, .. } = sealed;
            let written = self.transfer_out(slots[first].0, &mut data[first * SLOT_BYTES..end * SLOT_BYTES]);
            if let Err(Undone::Late(lease)) = written {
                return Err(self.leave_write(taker, lease, sealed, first..end));
            }
            if let Err(Undone::Torn(Torn { done, errno })) = written {
                match errno {
                    Errno::FBIG => {
                        let fits = slots[first].0 + (done / SLOT_BYTES) as u32;
                        self.too_long_from.fetch_min(fits, Ordering::Relaxed);
                    }
                    LATE => {}
                    _ => self.too_long_from.store(u32::MAX, Ordering::Relaxed),
                }
                // Which of the slots are bad the kernel does not say. To try each of them may take minutes.
                let is_faulty = errno != LATE && Meaning::of(errno) == Meaning::Faulty;
                let bad = if is_faulty { first + done / SLOT_BYTES..end } else { 0..0 };
                // What was written keeps its space, also where the rest of the run found none.
                had_space[..first + done / SLOT_BYTES].fill(true);
                // A device that fails may have got all of it, and so may one behind the page cache, whatever the kernel says.
                let is_unknown = is_faulty || self.family.is_cached();
                let got = if is_unknown { end * SLOT_BYTES } else { first * SLOT_BYTES + done };
                self.give_back(taker.stats, sealed.grant, n, got);
                let restored = self.unseal_but(data, sealed, bad.clone());
                if is_faulty {
                    stats::add(&taker.stats.device_write_errors, 1);
                    stats::add(&taker.stats.retired_slots, bad.len() as u64);
                }
                let error = if errno == LATE { FileError::Late } else { FileError::Io(errno) };
                return Err(restored.err().unwrap_or(error));
            }
            first = end;
        }
        Ok(())
    }

    /// Undoes [`Self::seal`] for a batch that is not written. The device may have got so many `bytes` of it.
    pub(super) fn unseal(
        &self,
        taker: Taker<'_>,
        data: &mut [u8],
        sealed: &Sealed,
        bytes: usize,
    ) -> Result<(), FileError> {
        self.give_back(taker.stats, sealed.grant, sealed.n, bytes);
        self.unseal_but(data, sealed, 0..0)
    }

    /// As [`Self::unseal`], and retires slots.
    fn unseal_but(&self, data: &mut [u8], sealed: &Sealed, bad: Range<usize>) -> Result<(), FileError> {
        let slots = &sealed.slots[..sealed.n];
        slots.iter().for_each(|slot| self.unhold(slot.0));
        // Before the slots are given back, because their seals are needed.
        let restored = self.restore(data, slots);
        for (slot, _) in slots.iter().zip(sealed.had_space).filter(|(_, had_space)| !had_space) {
            self.forget_seal(*slot);
        }
        self.unalloc(&slots[..bad.start]);
        slots[bad.clone()].iter().for_each(|slot| self.slots.retire(*slot));
        self.unalloc(&slots[bad.end..]);
        restored
    }

    /// Leaves the write of those slots of a batch that `late` names to the kernel, and gives back the others.
    pub(super) fn leave_write(
        &self,
        taker: Taker<'_>,
        lease: Lease<'_>,
        sealed: &Sealed,
        late: Range<usize>,
    ) -> FileError {
        let slots = &sealed.slots[..sealed.n];
        for (i, (slot, had_space)) in slots.iter().zip(sealed.had_space).enumerate() {
            self.unhold(slot.0);
            // What was written before has its space.
            if !had_space && i >= late.start {
                self.forget_seal(*slot);
            }
        }
        self.give_back(taker.stats, sealed.grant, sealed.n, late.end * SLOT_BYTES);
        self.unalloc(&slots[..late.start]);
        self.unalloc(&slots[late.end..]);
        self.leave(lease, &slots[late]);
        stats::add(&taker.stats.late_transfers, 1);
        FileError::Left
    }

    /// Decrypts again what was encrypted for `slots`, which are the caller's alone.
    fn restore(&self, data: &mut [u8], slots: &[Slot]) -> Result<(), FileError> {
        for (slot, part) in slots.iter().zip(data.chunks_exact_mut(SLOT_BYTES)) {
            let part = part.try_into().map_err(|_| FileError::Corrupt)?;
            self.cipher.open(self.seals.get(slot.0), slot.0, part)?;
        }
        Ok(())
    }

    /// Whether the file system has given space to a slot: it has been written, and not punched since. The slot is the caller's
    /// alone, or free in a cluster that the caller has locked.
    fn has_space(&self, slot: Slot) -> bool {
        self.seals.get(slot.0).nonce() != 0
    }

    /// Forgets that a slot that is the caller's alone has space, because it could not be written.
    fn forget_seal(&self, slot: Slot) {
        self.seals.set(slot.0, Seal::default());
    }
}
