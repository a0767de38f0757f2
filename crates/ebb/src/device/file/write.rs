//! The way out to a file: a batch gets slots, is encrypted, and is written. All of it or nothing.

use super::faults::Meaning;
use super::seals::nonce_of;
use super::transfer::Torn;
use super::{
    BATCH, FileError, NO_FOLIO, NO_OWNER, Packing, Place, RECLAIM_CLUSTERS, REST_NS, SLOT_BYTES, SpillFile, Taker,
};
use crate::base::uapi::{self, Errno};
use crate::counters::stats;
use crate::protocols::seal::Seal;
use aes_gcm::aead::AeadInOut;
use core::sync::atomic::Ordering;
use ebb_slots::{Shadow, Slot};

impl SpillFile {
    /// Writes the objects of a batch, whose content is in `data`, which is encrypted in place. `placed` is told each
    /// object's owner, a slot of the swap space, and its place. All or nothing; and then, unless the error is
    /// [`FileError::Corrupt`], `data` has the objects as before.
    pub fn write(
        &self,
        taker: Taker<'_>,
        packing: &Packing,
        data: &mut [u8],
        mut placed: impl FnMut(Slot, Place),
    ) -> Result<(), FileError> {
        let n = packing.nr_slots();
        assert!(self.owner && n <= BATCH);
        if self.closed().is_some() {
            return Err(FileError::Closed);
        }
        let data = &mut data[..n * SLOT_BYTES];
        packing.finish(data);
        let mut slots = [Slot(0); BATCH];
        let slots = &mut slots[..n];
        let mut result = self.write_once(taker, packing, data, slots);
        if let Err(FileError::Io(errno)) = result
            && self.note_failed_write(errno)
        {
            result = self.write_once(taker, packing, data, slots);
            if let Err(FileError::Io(errno)) = result {
                self.note_failed_write(errno);
            }
        }
        if result.is_err() {
            self.rest_until_ns.store(uapi::now_ns() + REST_NS, Ordering::Relaxed);
            return result;
        }
        self.used.fetch_add(n as u32, Ordering::Relaxed);
        self.objects.fetch_add(packing.nr_objects() as u32, Ordering::Relaxed);
        stats::add(&taker.stats.file_object_bytes, packing.bytes());
        stats::add(&taker.stats.file_bytes, data.len() as u64);
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
        Ok(())
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
    fn write_once(
        &self,
        taker: Taker<'_>,
        packing: &Packing,
        data: &mut [u8],
        slots: &mut [Slot],
    ) -> Result<(), FileError> {
        let n = slots.len();
        if !self.take_slots(taker, slots) {
            return Err(FileError::Full);
        }
        let mut had_space = [false; BATCH];
        for (i, Slot(slot)) in slots.iter().copied().enumerate() {
            had_space[i] = self.has_space(Slot(slot));
            let len = packing.bytes_in(i);
            let part = &mut data[i * SLOT_BYTES..][..len];
            let nonce = self.nonce.fetch_add(1, Ordering::Relaxed);
            let tag = self
                .cipher()
                .encrypt_inout_detached(&nonce_of(nonce), &slot.to_le_bytes(), part.into())
                .map_err(|_| FileError::Corrupt)?;
            self.seals.set(slot, Seal::new(nonce, len, tag.into()));
            self.hold(slot);
            self.high_water.fetch_max(slot + 1, Ordering::Relaxed);
        }
        let mut first = 0;
        while first < n {
            let mut end = first + 1;
            while end < n && slots[end].0 == slots[end - 1].0 + 1 {
                end += 1;
            }
            if let Err(Torn { done, errno }) =
                self.transfer_out(slots[first].0, &data[first * SLOT_BYTES..end * SLOT_BYTES])
            {
                match errno {
                    Errno::FBIG => _ = self.too_long_from.fetch_min(slots[first].0, Ordering::Relaxed),
                    _ => self.too_long_from.store(u32::MAX, Ordering::Relaxed),
                }
                slots.iter().for_each(|slot| self.unhold(slot.0));
                // Before the slots are given back, because their seals are needed.
                let restored = self.restore(data, slots);
                for (slot, _) in slots[first..n].iter().zip(&had_space[first..n]).filter(|(_, had_space)| !**had_space)
                {
                    self.forget_seal(*slot);
                }
                // Which of the slots are bad the kernel does not say. To try each of them may take minutes.
                let is_faulty = Meaning::of(errno) == Meaning::Faulty;
                let bad = if is_faulty { first + done / SLOT_BYTES..end } else { 0..0 };
                self.unalloc(&slots[..bad.start]);
                slots[bad.clone()].iter().for_each(|slot| self.slots.retire(*slot));
                self.unalloc(&slots[bad.end..]);
                if is_faulty {
                    stats::add(&taker.stats.device_write_errors, 1);
                    stats::add(&taker.stats.retired_slots, bad.len() as u64);
                }
                return Err(restored.err().unwrap_or(FileError::Io(errno)));
            }
            first = end;
        }
        Ok(())
    }

    /// Decrypts again what was encrypted for `slots`, which are the caller's alone.
    fn restore(&self, data: &mut [u8], slots: &[Slot]) -> Result<(), FileError> {
        for (slot, part) in slots.iter().zip(data.chunks_exact_mut(SLOT_BYTES)) {
            let part = part.try_into().map_err(|_| FileError::Corrupt)?;
            self.open_with(self.seals.get(slot.0), slot.0, part)?;
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
