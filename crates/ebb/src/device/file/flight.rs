//! Batches that are written while their thread prepares the next one.

use super::place::Place;
use super::write::Sealed;
use super::{FileError, Packing, SLOT_BYTES, SpillFile, Taker};
use crate::base::uapi::aio::Request;
use crate::base::uapi::{self, Errno};
use crate::counters::stats;
use crate::device::flights::{Ended, Flights, REQUESTS_MAX};
use ebb_slots::Slot;

impl SpillFile {
    /// Begins to write the objects of a batch, as [`Self::write`] does. None if it does not begin: then [`Self::write`] may
    /// say why, and `data` has the objects as before, unless the error is [`FileError::Corrupt`]. Otherwise `data` must
    /// stay as it is until [`Self::finish`].
    pub fn begin(
        &self,
        taker: Taker<'_>,
        packing: &Packing,
        data: &mut [u8],
        flights: &mut Flights<'_>,
        which: usize,
    ) -> Result<Option<Sealed>, FileError> {
        if !flights.can_begin() || !self.may_fly() || self.closed().is_some() || self.is_resting() || self.is_paused() {
            return Ok(None);
        }
        let n = packing.nr_slots();
        let data = &mut data[..n * SLOT_BYTES];
        packing.finish(data);
        let mut sealed = match self.seal(taker, packing, data) {
            Err(FileError::Corrupt) => return Err(FileError::Corrupt),
            Err(_) => return Ok(None),
            Ok(sealed) => sealed,
        };
        let slots = &sealed.slots[..n];
        let (mut requests, mut nr_requests, mut first) = ([Request::default(); REQUESTS_MAX], 0, 0);
        while first < n && nr_requests < REQUESTS_MAX {
            let end = sealed.run_end(first);
            let bytes = &data[first * SLOT_BYTES..end * SLOT_BYTES];
            let offset = u64::from(slots[first].0) * SLOT_BYTES as u64;
            requests[nr_requests] = Request::write(self.fd(), bytes, offset, bytes.len() as u64);
            nr_requests += 1;
            first = end;
        }
        self.faults.begin();
        let begun = uapi::unsignalled(|| {
            if first < n {
                return Ok(false);
            }
            // SAFETY: the caller's contract: until the flight has ended, nobody touches `data`.
            let begin = || unsafe { flights.begin(which, &mut requests[..nr_requests], self.faults.patience()) };
            let begun = self.faults.bound(begin);
            // As a call that waits would say it.
            if flights.is_too_long(which) { Err(Errno::FBIG) } else { Ok(begun) }
        });
        if begun == Ok(true) {
            sealed.which = which;
            return Ok(Some(sealed));
        }
        // In too many pieces, or not at all: it is written in the usual way, from the beginning.
        let _ = flights.end(which, |lease| {
            lease.wait();
            true
        });
        self.faults.end();
        let got = if begun == Ok(false) { 0 } else { flights.transferred(which) };
        self.unseal(taker, data, &sealed, got).map(|()| None)
    }

    /// Ends a write that [`Self::begin`] began. All or nothing, as [`Self::write`]; and nothing if the device does not
    /// answer and others wait for the calling thread.
    pub fn finish(
        &self,
        taker: Taker<'_>,
        packing: &Packing,
        data: &mut [u8],
        flights: &mut Flights<'_>,
        mut sealed: Sealed,
        placed: impl FnMut(Slot, Place),
    ) -> Result<(), FileError> {
        let data = &mut data[..packing.nr_slots() * SLOT_BYTES];
        let ended = flights.end(sealed.which, |lease| self.wait_or_give(lease, data));
        if let Ended::Late(lease) = ended {
            let n = sealed.n;
            return Err(self.leave_write(taker, lease, &sealed, 0..n));
        }
        self.faults.end();
        if let Ended::Good = ended {
            stats::add(&taker.stats.flown_slots, packing.nr_slots() as u64);
        } else {
            stats::add(&taker.stats.failed_flights, 1);
            // The usual way says why not, if it is so still.
            let in_vain = flights.transferred(sealed.which);
            let result = self.put_again(taker, data, &mut sealed, in_vain);
            if let Err(FileError::Io(errno)) = result {
                self.note_failed_write(errno);
            }
            result.inspect_err(|error| self.rest(*error))?;
        }
        self.commit(taker, packing, data.len(), &sealed, placed);
        Ok(())
    }

    /// Writes a batch of which the device has got so many bytes in vain, which the allowance must bear once more.
    fn put_again(
        &self,
        taker: Taker<'_>,
        data: &mut [u8],
        sealed: &mut Sealed,
        in_vain: usize,
    ) -> Result<(), FileError> {
        let slots = in_vain.div_ceil(SLOT_BYTES).min(sealed.n);
        if slots > 0 && self.take_allowance(taker.stats, slots).is_none() {
            return self.unseal(taker, data, sealed, in_vain).and(Err(FileError::Held));
        }
        self.put(taker, data, sealed)
    }
}
