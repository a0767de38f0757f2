//! Faults of a device: what an error of the kernel means, and when a file is no longer written to.
//!
//! Slots that the device did not take are retired for good. That does not help against a device that takes nothing at all. So failed writes
//! are counted, and after [`FAILURES_MAX`] of them within [`WINDOW_NS`] the file is *closed*: this process writes nothing more to it. What
//! is there is still read. After as many failed reads the file is *doubted*: for as long as that, other devices are asked first. It is
//! not closed, because a program that bears the loss of some pages does not bear that there is no swap.
//!
//! The numbers are a compromise. A disk with a few bad spots fails now and then, and each time loses at most a batch of slots. A disk
//! that dies fails with every transfer, but each may take half a minute, because the kernel tries again and again. So the time is long:
//! eight such failures in a row are over before it is.
//!
//! Owns these counts. They belong to the process that writes to the file: what its children read does not count.

use super::{FileError, SpillFile};
use crate::base::uapi::{self, Errno};
use crate::protocols::gate;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// A file is closed after so many failed writes within [`WINDOW_NS`], and doubted after so many failed reads.
pub const FAILURES_MAX: u32 = 8;
/// As above.
pub const WINDOW_NS: u64 = 600_000_000_000;

/// A transfer that takes longer than this hangs, as far as one can tell: on a network file system whose server is gone, for example.
const STUCK_NS: u64 = 2_000_000_000;
/// A thread that others wait for waits for at most [`STUCK_NS`] times a power of two: this one.
const PATIENCE_MAX: u32 = 5;
/// One that nobody waits for waits so many times as long: it may have other things to do, as the background thread has.
const UNAWAITED_TIMES: u64 = 4;

/// After a read of several slots failed, slots are read alone for so many times as long as that read took.
const SINGLY_TIMES: u64 = 16;

/// What an error means for a write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Meaning {
    /// There is no room: neither the slots nor the device are to blame.
    NoRoom,
    /// It may pass by itself.
    Passing,
    /// Nothing can be written to the file system any more.
    ReadOnly,
    /// The device does not take it there.
    Faulty,
}

impl Meaning {
    pub(super) fn of(errno: Errno) -> Self {
        match errno {
            Errno::NOSPC | Errno::FBIG | Errno::DQUOT => Self::NoRoom,
            errno if is_passing(errno) => Self::Passing,
            Errno::ROFS => Self::ReadOnly,
            // Whatever else there may be: what was written is not known to be there.
            _ => Self::Faulty,
        }
    }
}

/// Whether an error says only that the kernel could not do it now.
pub fn is_passing(errno: Errno) -> bool {
    matches!(errno, Errno::INTR | Errno::AGAIN | Errno::NOMEM | Errno::NOBUFS)
}

/// Whether an error leaves open how much was written before.
pub fn may_have_written(errno: Errno) -> bool {
    Meaning::of(errno) == Meaning::Faulty
}

/// Failures of one kind.
#[derive(Default)]
struct Failures {
    /// How many since `since_ns`.
    n: AtomicU32,
    since_ns: AtomicU64,
}

impl Failures {
    /// Counts a failure at `now_ns`. True if there are too many.
    fn count(&self, now_ns: u64) -> bool {
        let since = self.since_ns.load(Ordering::Relaxed);
        if since == 0 || now_ns.saturating_sub(since) > WINDOW_NS {
            self.since_ns.store(now_ns, Ordering::Relaxed);
            self.n.store(0, Ordering::Relaxed);
        }
        self.n.fetch_add(1, Ordering::Relaxed) + 1 >= FAILURES_MAX
    }
}

/// The failures of one file.
#[derive(Default)]
pub(super) struct Faults {
    writes: Failures,
    reads: Failures,
    /// The slot whose read failed last, plus 1: a page that is touched again and again is one failure.
    last_read: AtomicU32,
    /// Until when the file is doubted; 0 for no such moment.
    doubted_until_ns: AtomicU64,
    /// Until when no slot is read for its neighbours' sake; 0 for no such moment.
    singly_until_ns: AtomicU64,
    /// Why the file is closed: an error number; 0 while it is open.
    closed: AtomicU32,
    /// Nobody has told the user yet that it is closed.
    is_unsaid: AtomicBool,
    /// Transfers that threads wait for, and since when none of them has ended.
    in_flight: AtomicU32,
    waiting_since_ns: AtomicU64,
    /// Those of them that nobody waits for any more, and the slots that they may write to.
    left: AtomicU32,
    left_slots: AtomicU32,
    /// Threads that wait inside the gate and cannot give up.
    bound: AtomicU32,
    /// How often a thread has given up waiting since a transfer last ended in time.
    patience: AtomicU32,
}

impl Faults {
    fn close(&self, errno: Errno) {
        let code = errno.0.unsigned_abs();
        if self.closed.compare_exchange(0, code, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            self.is_unsaid.store(true, Ordering::Relaxed);
        }
    }

    /// True while other devices are to be asked first.
    pub(super) fn is_doubted(&self) -> bool {
        let end = self.doubted_until_ns.load(Ordering::Relaxed);
        end != 0 && uapi::now_ns() <= end
    }

    /// A transfer begins.
    pub(super) fn begin(&self) {
        if self.in_flight.load(Ordering::Relaxed) == 0 {
            self.waiting_since_ns.store(uapi::now_ns(), Ordering::Relaxed);
        }
        // Ordered after the time, so that nobody takes a transfer that has just begun for one that began with the last.
        self.in_flight.fetch_add(1, Ordering::Release);
    }

    /// A transfer has ended.
    pub(super) fn end(&self) {
        if self.in_flight.fetch_sub(1, Ordering::Relaxed) > 1 {
            self.waiting_since_ns.store(uapi::now_ns(), Ordering::Relaxed);
        }
    }

    /// How often threads have given up waiting since a transfer last ended in time, as [`Self::may_wait`] wants it: of the moment
    /// when a transfer begins.
    pub(super) fn patience(&self) -> u32 {
        self.patience.load(Ordering::Relaxed)
    }

    /// Whether a thread inside the gate that has waited for a transfer for so long may go on waiting. It may wait longer as
    /// long as nobody waits for it to leave.
    pub(super) fn may_wait(patience: u32, waited_ns: u64) -> bool {
        let most = STUCK_NS << patience;
        waited_ns < most || waited_ns < most * UNAWAITED_TIMES && !gate::is_awaited()
    }

    /// Calls `f`, which may wait for the device inside the gate for as long as that does not answer.
    pub(super) fn bound<T>(&self, f: impl FnOnce() -> T) -> T {
        self.bound.fetch_add(1, Ordering::Relaxed);
        let result = f();
        self.bound.fetch_sub(1, Ordering::Relaxed);
        result
    }

    /// Notes that a transfer has ended while somebody waited for it.
    pub(super) fn note_answer(&self) {
        if self.patience.load(Ordering::Relaxed) != 0 {
            self.patience.store(0, Ordering::Relaxed);
        }
    }

    /// Notes that a transfer goes on that nobody waits for, and that may write to so many slots. Those that begin from now on are
    /// waited for twice as long as this one, so that a device that is only slow gets on.
    pub(super) fn note_left(&self, patience: u32, slots: usize) {
        self.left_slots.fetch_add(slots as u32, Ordering::Relaxed);
        self.left.fetch_add(1, Ordering::Relaxed);
        self.patience.fetch_max((patience + 1).min(PATIENCE_MAX), Ordering::Relaxed);
    }

    /// Slots that they may write to.
    pub(super) fn left_slots(&self) -> u32 {
        self.left_slots.load(Ordering::Relaxed)
    }

    /// Whether there are transfers that nobody waits for.
    pub(super) fn has_left(&self) -> bool {
        self.left.load(Ordering::Relaxed) > 0
    }

    /// Notes that such a transfer has ended.
    pub(super) fn end_left(&self, slots: usize) {
        self.left_slots.fetch_sub(slots as u32, Ordering::Relaxed);
        self.left.fetch_sub(1, Ordering::Relaxed);
        self.end();
    }

    /// In fork's child: leaves it to the parent to tell the user. The threads that wait outside the gate are the
    /// parent's.
    pub(super) fn inherit(&mut self) {
        *self.is_unsaid.get_mut() = false;
        *self.in_flight.get_mut() = 0;
        *self.left.get_mut() = 0;
        *self.left_slots.get_mut() = 0;
        *self.bound.get_mut() = 0;
    }
}

impl SpillFile {
    /// Why nothing is written to the file any more; none while it is written to.
    pub fn closed(&self) -> Option<Errno> {
        let errno = self.faults.closed.load(Ordering::Relaxed);
        (errno != 0).then_some(Errno(errno as i32))
    }

    /// True while threads wait for transfers of which none has ended for two seconds.
    pub fn is_stuck(&self) -> bool {
        let ended = || self.contexts.map_or(0, |contexts| contexts.nr_ended(self.serial) as u32);
        // What was left may have ended without anybody having looked.
        let ended = if self.faults.has_left() { ended() } else { 0 };
        self.faults.in_flight.load(Ordering::Acquire) > ended
            && uapi::now_ns().saturating_sub(self.faults.waiting_since_ns.load(Ordering::Relaxed)) > STUCK_NS
    }

    /// True while such threads keep others from closing the gate for as long as the device does not answer.
    pub fn is_stuck_inside(&self) -> bool {
        self.is_stuck() && self.faults.bound.load(Ordering::Relaxed) > 0
    }

    /// Whether the file is closed, and nobody has told the user yet.
    pub fn is_newly_closed(&self) -> bool {
        self.faults.is_unsaid.load(Ordering::Relaxed)
    }

    /// As [`Self::closed`], once: for whoever tells the user.
    pub fn take_closed(&self) -> Option<Errno> {
        if self.faults.is_unsaid.swap(false, Ordering::Relaxed) { self.closed() } else { None }
    }

    /// Whether a read may bring more than what somebody wants.
    pub fn may_read_windows(&self) -> bool {
        let end = self.faults.singly_until_ns.load(Ordering::Relaxed);
        end == 0 || uapi::now_ns() > end
    }

    /// Notes that such a read, which began at `began_ns`, failed: where one slot is bad, each of them may take half a minute.
    pub fn read_no_windows(&self, began_ns: u64) {
        let now = uapi::now_ns();
        let rest_ns = now.saturating_sub(began_ns).saturating_mul(SINGLY_TIMES);
        self.faults.singly_until_ns.store(now.saturating_add(rest_ns), Ordering::Relaxed);
    }

    /// Notes that a write failed. True if another try with other slots is worth it.
    pub(super) fn note_failed_write(&self, errno: Errno) -> bool {
        match Meaning::of(errno) {
            Meaning::NoRoom => {
                // Slots that were written before have their space and can be written again. The file tries to grow again
                // after a while.
                self.pause(uapi::now_ns(), errno);
            }
            Meaning::Passing => return false,
            Meaning::ReadOnly => self.faults.close(errno),
            Meaning::Faulty => {
                if self.faults.writes.count(uapi::now_ns()) {
                    self.faults.close(errno);
                }
            }
        }
        self.closed().is_none()
    }

    /// Notes that `slot` could not be read, or that its content was changed.
    pub fn note_failed_read(&self, slot: u32, error: FileError) {
        let is_faulty = match error {
            FileError::Io(errno) => !is_passing(errno),
            FileError::Corrupt => true,
            FileError::Full | FileError::Closed | FileError::Late | FileError::Left | FileError::Held => false,
        };
        let now = uapi::now_ns();
        if self.owner
            && is_faulty
            && self.faults.last_read.swap(slot + 1, Ordering::Relaxed) != slot + 1
            && self.faults.reads.count(now)
        {
            self.faults.doubted_until_ns.store(now + WINDOW_NS, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_error_means() {
        for errno in [Errno::NOSPC, Errno::DQUOT, Errno::FBIG] {
            assert_eq!(Meaning::of(errno), Meaning::NoRoom);
        }
        for errno in [Errno::INTR, Errno::AGAIN, Errno::NOMEM, Errno::NOBUFS] {
            assert_eq!(Meaning::of(errno), Meaning::Passing);
        }
        assert_eq!(Meaning::of(Errno::ROFS), Meaning::ReadOnly);
        for errno in [Errno::IO, Errno::BADF, Errno::TIMEDOUT, Errno::NXIO, Errno::INVAL] {
            assert_eq!(Meaning::of(errno), Meaning::Faulty);
        }
    }

    #[test]
    fn as_many_failures_are_too_many_only_within_the_time() {
        let failures = Failures::default();
        let mut at = 1;
        for _ in 0..5 {
            assert!((1..FAILURES_MAX).all(|_| !failures.count(at)));
            at += WINDOW_NS + 1;
        }
        assert!((1..FAILURES_MAX).all(|_| !failures.count(at)));
        assert!(failures.count(at + WINDOW_NS));
    }
}
