//! Content on its way between memory and a file, past the kernel's page cache.
//!
//! A page that the cache keeps is RAM that nobody has allowed, so the file is opened for direct I/O. A file system may
//! refuse that at the start, or at the first transfer (if its blocks are larger than a slot). It may also accept direct
//! I/O and use the cache all the same (as ext4 does when it journals data). In these cases Ebb waits until each write
//! is on the disk, and drops each transfer from the cache. The cache then holds at most one transfer for each thread at
//! work. A file in memory has no other place than the cache, so there Ebb does neither.

use super::faults::{Faults, is_passing};
use super::{SLOT_BYTES, SpillFile};
use crate::base::uapi::aio::Request;
use crate::base::uapi::{self, Errno, cache};
use crate::device::contexts::{Contexts, Lease};
use crate::device::flights::REQUESTS_MAX;
use crate::device::kind::Kind;
use core::cell::Cell;
use core::ops::Range;
use core::sync::atomic::{AtomicU32, Ordering};
use ebb_slots::Slot;
use linux_raw_sys::general::MADV_DONTNEED;

/// Most tries in a row of a transfer whose error may pass by itself, and the pause after the first of them. Each pause is twice as
/// long as the one before: 31 ms in all, in which the thread keeps others from closing the gate.
const TRIES_MAX: u32 = 6;
const PAUSE_NS: u64 = 1_000_000;

/// A transfer that ended early.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Torn {
    /// Bytes of whole slots that were transferred before.
    pub done: usize,
    pub errno: Errno,
}

/// Why a transfer did not end well.
pub(super) enum Undone<'a> {
    Torn(Torn),
    /// The device does not answer, and others wait for the thread to leave the gate. The buffer has other memory now. Once
    /// nobody needs to know any more which slots are being written, the caller leaves them: [`SpillFile::leave`].
    Late(Lease<'a>),
}

/// What a call of [`transfer`]'s returns when its transfer goes on without it, or cannot begin because it could not be left. No
/// device says that: see [`SpillFile::outcome`].
pub(super) const LATE: Errno = Errno::TIME;

/// A read that began inside the gate and ends there, and that waits for the device outside.
#[derive(Clone, Copy, Debug)]
pub struct Early {
    /// The file's descriptor.
    pub fd: i32,
    /// Where the slot begins, in bytes.
    pub offset: u64,
    /// Which file it is of: another may have its number by the time that the read ends.
    serial: u32,
}

/// Transfers `len` bytes, from byte `from` on. `call` transfers some from a byte on, and returns how many; 0 at the end of the file.
///
/// A call may transfer less than it is asked to. Then the next one goes on from there, and if the file takes no part of a slot, from the
/// beginning of that slot.
fn transfer(from: usize, len: usize, mut call: impl FnMut(usize) -> Result<usize, Errno>) -> Result<(), Torn> {
    let (mut at, mut done, mut tries) = (from, from, 0);
    while at < len {
        let errno = match call(at) {
            Ok(0) => return Err(Torn { done, errno: Errno::IO }),
            Ok(n) => {
                at += n;
                if at >= done + SLOT_BYTES {
                    (done, tries) = (at / SLOT_BYTES * SLOT_BYTES, 0);
                }
                continue;
            }
            Err(errno) => errno,
        };
        let is_within = errno == Errno::INVAL && at > done;
        tries += 1;
        if tries == TRIES_MAX || !(is_passing(errno) || is_within) {
            return Err(Torn { done, errno: if is_within { Errno::IO } else { errno } });
        }
        at = done;
        if !is_within && errno != Errno::INTR {
            uapi::futex_wait(&AtomicU32::new(0), 0, Some(PAUSE_NS << (tries - 1)));
        }
    }
    Ok(())
}

impl SpillFile {
    /// Decides how the file's content comes and goes: past the page cache, if `may_be` allows that and the file system
    /// can do it. Call it before the file's first use.
    pub(super) fn begin_transfers(&self, may_be: bool) {
        if self.kind == Kind::Ram && cache::is_in_memory(self.fd()) {
            // The cache is the only place that such a file has. There is nothing to wait for and nothing to drop.
            return self.is_proved.store(true, Ordering::Relaxed);
        }
        cache::read_no_further(self.fd());
        if !may_be || cache::set_direct(self.fd(), true).is_err() {
            self.family.set_cached();
        }
    }

    /// Whether transfers may be made by AIO: the first write has shown that the content stays out of the page cache.
    pub fn may_fly(&self) -> bool {
        self.kind != Kind::Ram && self.is_proved.load(Ordering::Relaxed) && !self.family.is_cached()
    }

    /// A context for a transfer, so that the thread that waits for it can leave it; none where the file's transfers cannot be
    /// left. Late if all contexts are in use.
    fn context(&self) -> Result<Option<Lease<'_>>, Errno> {
        let Some(contexts) = self.contexts.filter(|_| self.may_fly()) else { return Ok(None) };
        match contexts.lease() {
            Some(mut lease) => {
                lease.set_patience(self.faults.patience());
                Ok(Some(lease))
            }
            None if contexts.are_used_up() => Err(LATE),
            None => Ok(None),
        }
    }

    /// Waits for a transfer from or to `buffer`, which is page-aligned, but no longer than others can bear. False if the
    /// transfer goes on: then the buffer has other memory, of zeros.
    pub(super) fn wait_or_give(&self, lease: &mut Lease<'_>, buffer: &mut [u8]) -> bool {
        let patience = lease.patience();
        let has_ended = lease.end(|waited_ns| Faults::may_wait(patience, waited_ns));
        if !has_ended && !give_away(buffer) {
            lease.wait();
            return true;
        }
        if has_ended {
            self.faults.note_answer();
        }
        has_ended
    }

    /// How a transfer ended that was one request.
    fn outcome(lease: &Lease<'_>) -> Result<usize, Errno> {
        lease.result().map_err(|errno| if errno == LATE { Errno::TIMEDOUT } else { errno })
    }

    /// Writes at `offset`, by one call or one request. What follows it in `late` goes on.
    fn call_out<'a>(
        &'a self,
        data: &mut [u8],
        done: usize,
        offset: u64,
        late: &Cell<Option<Lease<'a>>>,
    ) -> Result<usize, Errno> {
        let part = &data[done..];
        let wait = || self.faults.bound(|| uapi::pwrite(self.fd(), part, offset));
        let Some(mut lease) = self.context()? else { return wait() };
        let mut request = [Request::write(self.fd(), part, offset, 0).at_once()];
        // SAFETY: nobody else has the buffer, and it has other memory if the transfer goes on.
        if self.faults.bound(|| unsafe { lease.begin(&mut request) }) == 0 {
            return wait();
        }
        if self.wait_or_give(&mut lease, data) {
            return Self::outcome(&lease);
        }
        late.set(Some(lease));
        Err(LATE)
    }

    /// Writes neighbouring slots, from slot `first` on. `data` is page-aligned.
    pub(super) fn transfer_out(&self, first: u32, data: &mut [u8]) -> Result<(), Undone<'_>> {
        self.faults.begin();
        let result = self.write_out(first, data);
        if !matches!(result, Err(Undone::Late(_))) {
            self.faults.end();
        }
        result
    }

    fn write_out(&self, first: u32, data: &mut [u8]) -> Result<(), Undone<'_>> {
        debug_assert!(data.as_ptr().addr().is_multiple_of(SLOT_BYTES) && data.len().is_multiple_of(SLOT_BYTES));
        let at = u64::from(first) * SLOT_BYTES as u64;
        let late = Cell::new(None);
        let write = |data: &mut [u8], from: usize| {
            transfer(from, data.len(), |done| uapi::unsignalled(|| self.call_out(data, done, at + done as u64, &late)))
        };
        let mut written = write(data, 0);
        if let Some(lease) = late.take() {
            return Err(Undone::Late(lease));
        }
        if let Err(Torn { done, errno: Errno::INVAL }) = written
            && self.give_up_direct()
        {
            written = write(data, done);
        }
        self.settle_write(at, data, written).map_err(Undone::Torn)
    }

    /// Does what is left to do for a write at `at`: where the program's limit refused it, it is made in another way, and
    /// nothing stays in the page cache.
    fn settle_write(&self, at: u64, data: &[u8], mut written: Result<(), Torn>) -> Result<(), Torn> {
        let len = data.len() as u64;
        let mut is_cached = self.family.is_cached();
        if let Err(Torn { done, errno: Errno::FBIG }) = written {
            // The program's RLIMIT_FSIZE refused the write. That limit is meant for the program's own files.
            written =
                uapi::write_mapped(self.fd(), &data[done..], at + done as u64).map_err(|errno| Torn { done, errno });
            is_cached = true;
        } else if written.is_ok() && !is_cached && !self.is_proved.swap(true, Ordering::Relaxed) {
            // What the file system does with the first write it does with all.
            is_cached = cache::cached_pages(self.fd(), at, len).is_some_and(|pages| pages > 0);
            if is_cached {
                self.family.set_cached();
            }
        }
        written?;
        if is_cached {
            cache::write_out(self.fd(), at, len).map_err(|errno| Torn { done: 0, errno })?;
            cache::drop_behind(self.fd(), at, len);
        }
        Ok(())
    }

    /// Reads neighbouring slots, from slot `first` on. `out` is page-aligned. None if the device does not answer, and others
    /// wait for the thread to leave the gate.
    pub(super) fn transfer_in(&self, first: u32, out: &mut [u8]) -> Option<Result<(), Errno>> {
        if self.is_late() && !self.family.is_cached() {
            return None;
        }
        self.faults.begin();
        let late = Cell::new(None);
        let result = self.read_in(first, out, &late);
        match late.take() {
            Some(lease) => {
                self.leave(lease, &[]);
                None
            }
            None => {
                self.faults.end();
                (result != Err(LATE)).then_some(result)
            }
        }
    }

    /// Leaves a transfer to the kernel. The `slots` that it writes, if it writes, are this file's until it has ended, and
    /// the file is [late](Self::is_late) as long.
    pub(super) fn leave(&self, lease: Lease<'_>, slots: &[Slot]) {
        // The transfer still counts as one that is waited for, so that the file counts as stuck.
        self.faults.note_left(lease.patience(), slots.len());
        lease.leave(self.serial, slots);
    }

    /// Whether transfers were left that have not ended yet. Such a file takes nothing, and is not read inside the gate.
    pub fn is_late(&self) -> bool {
        if !self.faults.has_left() {
            return false;
        }
        if let Some(contexts) = self.contexts {
            contexts.reap(self.serial, |slots| self.end_left(slots));
        }
        self.faults.has_left()
    }

    /// Takes back what was left of a transfer that has ended, or that is no longer this process's.
    pub fn end_left(&self, slots: &[Slot]) {
        self.unalloc(slots);
        self.faults.end_left(slots.len());
    }

    fn call_in<'a>(
        &'a self,
        out: &mut [u8],
        done: usize,
        offset: u64,
        late: &Cell<Option<Lease<'a>>>,
    ) -> Result<usize, Errno> {
        let part = &mut out[done..];
        let Some(mut lease) = self.context()? else {
            return self.faults.bound(|| uapi::pread(self.fd(), part, offset));
        };
        let mut request = [Request::read(self.fd(), part.as_mut_ptr(), part.len(), offset, 0)];
        // SAFETY: nobody else has the buffer, and it has other memory if the transfer goes on.
        if self.faults.bound(|| unsafe { lease.begin(&mut request) }) == 0 {
            return self.faults.bound(|| uapi::pread(self.fd(), part, offset));
        }
        if self.wait_or_give(&mut lease, out) {
            return Self::outcome(&lease);
        }
        late.set(Some(lease));
        Err(LATE)
    }

    /// Begins to read the slots of `spans`, each neighbours, one after the other into `out`, while the caller goes on. None if that
    /// does not begin.
    ///
    /// # Safety
    /// Nobody may touch `out`, which is page-aligned, until [`Self::end_read`], or until the lease says that the read has ended.
    pub unsafe fn begin_read(&self, spans: &[Range<u32>], out: &mut [u8]) -> Option<Lease<'static>> {
        let contexts = self.contexts.filter(|_| self.may_fly() && !self.is_late() && !self.is_stuck())?;
        let mut requests = [Request::default(); REQUESTS_MAX];
        let mut rest = out;
        for (request, span) in requests.iter_mut().zip(spans) {
            assert!(span.end <= self.nr_slots);
            let (part, after) = rest.split_at_mut(span.len() * SLOT_BYTES);
            let offset = u64::from(span.start) * SLOT_BYTES as u64;
            *request = Request::read(self.fd(), part.as_mut_ptr(), part.len(), offset, part.len() as u64);
            rest = after;
        }
        let mut lease = contexts.lease()?;
        lease.set_patience(self.faults.patience());
        // SAFETY: the caller's contract.
        (self.faults.bound(|| unsafe { lease.begin(&mut requests[..spans.len()]) }) > 0).then_some(lease)
    }

    /// Ends a read that [`Self::begin_read`] began. False if `out` does not have what it was to bring; it is the caller's again in any
    /// case.
    pub fn end_read(&self, mut lease: Lease<'static>, out: &mut [u8]) -> bool {
        // The device is not waited for once for each of several reads.
        let is_late = self.is_late();
        self.faults.begin();
        if is_late && !lease.end(|_| false) && give_away(out) || !self.wait_or_give(&mut lease, out) {
            self.leave(lease, &[]);
            return false;
        }
        self.faults.end();
        lease.is_good() && !self.contexts.is_some_and(Contexts::fails_now)
    }

    /// Begins a read of `slot` outside the gate, past this file: the caller reads it as it is, with one call, and then
    /// ends it. None where the file goes through the page cache, because what is read there must be dropped.
    pub fn begin_early(&self, slot: u32) -> Option<Early> {
        if self.family.is_cached() {
            return None;
        }
        self.faults.begin();
        Some(Early { fd: self.fd(), offset: u64::from(slot) * SLOT_BYTES as u64, serial: self.serial })
    }

    /// Ends such a read, if it was one of this file.
    pub fn end_early(&self, early: Early) {
        if early.serial == self.serial {
            self.faults.end();
        }
    }

    fn read_in<'a>(&'a self, first: u32, out: &mut [u8], late: &Cell<Option<Lease<'a>>>) -> Result<(), Errno> {
        debug_assert!(out.as_ptr().addr().is_multiple_of(SLOT_BYTES) && out.len().is_multiple_of(SLOT_BYTES));
        let (at, len) = (u64::from(first) * SLOT_BYTES as u64, out.len());
        let mut read = |from: usize| transfer(from, len, |done| self.call_in(out, done, at + done as u64, late));
        let mut read_all = read(0);
        if let Err(Torn { done, errno: Errno::INVAL }) = read_all
            && self.give_up_direct()
        {
            read_all = read(done);
        }
        if self.family.is_cached() {
            cache::drop_behind(self.fd(), at, len as u64);
        }
        read_all.map_err(|torn| torn.errno)
    }

    /// Gives up direct I/O, because the file system does not take it for slots. False when direct I/O was off already.
    fn give_up_direct(&self) -> bool {
        let was_direct = !self.family.is_cached();
        // The whole family shares one open file description, and so this flag.
        let _ = cache::set_direct(self.fd(), false);
        self.family.set_cached();
        was_direct
    }
}

/// Gives the memory of a buffer, which is page-aligned and lies in private memory, to whoever else has it: the kernel, which
/// transfers it. The buffer has new memory then, of zeros. False if the buffer must keep its memory.
fn give_away(buffer: &mut [u8]) -> bool {
    uapi::madvise(buffer.as_ptr().addr(), buffer.len(), MADV_DONTNEED).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::cell::RefCell;
    use std::vec::Vec;

    /// Transfers four slots by calls with these results; where each call began, and the outcome.
    fn outcome(results: &[Result<usize, Errno>]) -> (Vec<usize>, Result<(), Torn>) {
        let began = RefCell::new(Vec::new());
        let result = transfer(0, 4 * SLOT_BYTES, |at| {
            began.borrow_mut().push(at);
            results.get(began.borrow().len() - 1).copied().unwrap_or(Err(Errno::IO))
        });
        (began.into_inner(), result)
    }

    const S: usize = SLOT_BYTES;

    #[test]
    fn a_short_transfer_goes_on_where_it_ended() {
        assert_eq!(outcome(&[Ok(S), Ok(2 * S), Ok(S)]), (vec![0, S, 3 * S], Ok(())));
        assert_eq!(outcome(&[Ok(S + 512), Ok(3 * S - 512)]), (vec![0, S + 512], Ok(())));
    }

    #[test]
    fn a_file_that_takes_no_part_of_a_slot_gets_the_slot_again() {
        let calls = [Ok(S + 512), Err(Errno::INVAL), Ok(3 * S)];
        assert_eq!(outcome(&calls), (vec![0, S + 512, S], Ok(())));
        // But not for ever: and that is no sign that the file takes no direct I/O.
        let calls: Vec<_> = [Ok(512), Err(Errno::INVAL)].repeat(20);
        let (began, result) = outcome(&calls);
        assert_eq!((began.len(), result), (2 * TRIES_MAX as usize, Err(Torn { done: 0, errno: Errno::IO })));
        assert_eq!(outcome(&[Err(Errno::INVAL)]).1, Err(Torn { done: 0, errno: Errno::INVAL }));
    }

    #[test]
    fn an_error_that_may_pass_is_waited_for_but_not_for_ever() {
        for errno in [Errno::INTR, Errno::AGAIN, Errno::NOMEM] {
            assert_eq!(outcome(&[Err(errno), Err(errno), Ok(4 * S)]), (vec![0, 0, 0], Ok(())));
            let (began, result) = outcome(&[Err(errno); 20]);
            assert_eq!((began.len(), result), (TRIES_MAX as usize, Err(Torn { done: 0, errno })));
        }
    }

    #[test]
    fn a_torn_transfer_says_how_many_slots_were_whole() {
        assert_eq!(outcome(&[Ok(2 * S + 100)]), (vec![0, 2 * S + 100], Err(Torn { done: 2 * S, errno: Errno::IO })));
        assert_eq!(outcome(&[Ok(3 * S), Ok(0)]).1, Err(Torn { done: 3 * S, errno: Errno::IO }));
    }
}
