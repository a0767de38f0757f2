//! Contexts of Linux AIO (`aio` in `base/uapi`): one for each transfer in flight.
//!
//! Who waits for a transfer inside the gate need not wait for ever. A device may not answer: a network file system
//! whose server is gone. Then the thread *leaves* the transfer to the kernel and goes on without it. What it was to read
//! into or write from is the kernel's from then on; the caller has other pages there. What it was to write has its slots
//! until the kernel is done with it, which whoever looks next finds out ([`Contexts::reap`]).

use crate::base::killable;
use crate::base::uapi::aio::{Context, Event, Request, SUBMIT_MAX};
use crate::base::uapi::{self, Errno};
use crate::device::file::BATCH;
use crate::device::file::faults::may_have_written;
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use ebb_slots::Slot;

/// Most transfers in flight at a time, with those that were left: many times as many as there are buffers for them.
pub const CONTEXTS_MAX: usize = 128;

/// How long to wait for completions before the next look at whether to go on waiting.
const LOOK_NS: u64 = 100_000_000;
/// The same where the kernel does not let the thread wait for completions.
const SHORT_LOOK_NS: u64 = 50_000;

/// One transfer in so many is left at once, for tests. What follows takes its time.
const LATE_EVERY: u32 = 16;

/// States of an entry. Nobody has it; it has a context if it ever had one.
const FREE: u32 = 0;
/// A thread has it.
const USED: u32 = 1;
/// A transfer of a file is in flight that nobody waits for.
const LEFT: u32 = 2;
/// As [`LEFT`], of a file that is gone.
const ORPHAN: u32 = 3;

/// Slots that a transfer was to write that was left.
#[derive(Clone, Copy)]
struct Left {
    slots: [Slot; BATCH],
    n: u8,
}

struct Entry {
    state: AtomicU32,
    /// The context's number, or 0.
    context: AtomicU64,
    /// Of what was left: the file, as its number of all times, and the requests that have not ended.
    serial: AtomicU32,
    requests: AtomicU32,
    /// Belongs to the thread that has the entry; of what is left, to who takes the entry next.
    left: UnsafeCell<Left>,
}

/// The contexts of a process.
pub struct Contexts {
    entries: [Entry; CONTEXTS_MAX],
    is_grounded: AtomicBool,
    /// The kernel has no more contexts, or none at all.
    is_refused: AtomicBool,
    /// For tests: some flights count as failed; some transfers are left at once; no completion is noticed.
    are_failing: AtomicBool,
    are_late: AtomicBool,
    are_held: AtomicBool,
    nr: AtomicU32,
    /// Transfers that were left and have ended since; the count wraps.
    nr_reaped: AtomicU32,
}

// SAFETY: `left` belongs to the thread that has brought the entry from one state to another; the rest is atomics.
unsafe impl Sync for Contexts {}

impl Contexts {
    /// Makes room for contexts. They stay for as long as the process.
    pub fn new() -> Result<&'static Self, Errno> {
        let at = uapi::reserve(size_of::<Self>())?.cast::<Self>();
        // SAFETY: fresh memory of zeros, which is a valid value, and which is never unmapped.
        Ok(unsafe { &*at })
    }

    /// Has some flights count as failed, or leaves some transfers as soon as it is known that they have to be waited for.
    pub fn force(&self, are_failing: bool, are_late: bool) {
        self.are_failing.store(are_failing, Ordering::Relaxed);
        self.are_late.store(are_late, Ordering::Relaxed);
    }

    /// Whether every transfer looks from now on as if the device did not answer.
    pub fn hold(&self, holds: bool) {
        self.are_held.store(holds, Ordering::Relaxed);
    }

    /// No transfer begins any more, as soon as the gate has been closed once, and what is in flight is waited for without a
    /// call of AIO's.
    pub fn ground(&self) {
        self.is_grounded.store(true, Ordering::Relaxed);
    }

    /// Whether transfers may fly.
    pub fn can_fly(&self) -> bool {
        !self.is_grounded.load(Ordering::Relaxed)
    }

    /// Whether there is no context only because all are in use.
    pub fn are_used_up(&self) -> bool {
        // A thread that finds out that there is no context for an entry has it for a moment.
        let is_taken =
            |entry: &Entry| entry.context.load(Ordering::Relaxed) != 0 && entry.state.load(Ordering::Relaxed) != FREE;
        self.can_fly() && self.entries.iter().any(is_taken)
    }

    /// Whether the flights of who asks are to count as failed.
    pub fn fails_now(&self) -> bool {
        self.are_failing.load(Ordering::Relaxed) && self.nr.fetch_add(1, Ordering::Relaxed).is_multiple_of(3)
    }

    /// A context for a transfer, if there is one.
    pub fn lease(&self) -> Option<Lease<'_>> {
        if !self.can_fly() {
            return None;
        }
        let take = |entry: &Entry, from| {
            entry.state.load(Ordering::Relaxed) == from
                && entry.state.compare_exchange(from, USED, Ordering::Acquire, Ordering::Relaxed).is_ok()
        };
        for entry in &self.entries {
            let is_possible = entry.context.load(Ordering::Relaxed) != 0 || !self.is_refused.load(Ordering::Relaxed);
            if is_possible && take(entry, FREE) {
                let Some(context) = self.context_of(entry) else { continue };
                return Some(Lease::new(self, entry, context));
            }
            // What the kernel has done by now for a file that is gone.
            if take(entry, ORPHAN) {
                let is_done = self.take_completions(entry);
                entry.state.store(if is_done { FREE } else { ORPHAN }, Ordering::Release);
            }
        }
        None
    }

    /// Calls `ended` with the slots of each transfer of file `serial` that was left and that has ended.
    pub fn reap(&self, serial: u32, mut ended: impl FnMut(&[Slot])) {
        for entry in &self.entries {
            if entry.state.load(Ordering::Relaxed) != LEFT
                || entry.state.compare_exchange(LEFT, USED, Ordering::Acquire, Ordering::Relaxed).is_err()
            {
                continue;
            }
            // SAFETY: the entry is this thread's.
            let Left { slots, n } = unsafe { *entry.left.get() };
            let is_done = entry.serial.load(Ordering::Relaxed) == serial && self.take_completions(entry);
            entry.state.store(if is_done { FREE } else { LEFT }, Ordering::Release);
            if is_done {
                self.nr_reaped.fetch_add(1, Ordering::Relaxed);
                ended(&slots[..usize::from(n)]);
            }
        }
    }

    /// Transfers that were left and have been reaped since; the count wraps.
    pub fn nr_reaped(&self) -> u32 {
        self.nr_reaped.load(Ordering::Relaxed)
    }

    /// Transfers of file `serial` that were left and have ended, as far as one can see without reaping them.
    pub fn nr_ended(&self, serial: u32) -> usize {
        let has_ended = |entry: &&Entry| {
            entry.state.load(Ordering::Acquire) == LEFT
                && entry.serial.load(Ordering::Relaxed) == serial
                && !self.are_held.load(Ordering::Relaxed)
                && entry.kept().available() >= entry.requests.load(Ordering::Relaxed)
        };
        self.entries.iter().filter(has_ended).count()
    }

    /// Gives up what was left of file `serial`, because there is no such file any more. Nobody leaves or reaps any of it
    /// meanwhile.
    pub fn disown(&self, serial: u32) {
        for entry in &self.entries {
            if entry.state.load(Ordering::Acquire) == LEFT && entry.serial.load(Ordering::Relaxed) == serial {
                entry.state.store(ORPHAN, Ordering::Release);
            }
        }
    }

    /// After fork, in the child: forgets all contexts, which are the parent's. Calls `left` with the file and the slots of each
    /// transfer that was left, which no longer concerns this process.
    pub fn reset(&self, mut left: impl FnMut(u32, &[Slot])) {
        for entry in &self.entries {
            if entry.state.load(Ordering::Relaxed) == LEFT {
                // SAFETY: the calling thread is the only one.
                let Left { slots, n } = unsafe { *entry.left.get() };
                left(entry.serial.load(Ordering::Relaxed), &slots[..usize::from(n)]);
            }
            let bits = entry.context.swap(0, Ordering::Relaxed);
            if bits != 0 {
                Context::of_bits(bits).forget();
            }
            entry.state.store(FREE, Ordering::Relaxed);
        }
        self.is_refused.store(false, Ordering::Relaxed);
    }

    /// The context of an entry that is the caller's, which is made if there is none yet. Without one, the caller loses the entry.
    fn context_of(&self, entry: &Entry) -> Option<Context> {
        if entry.context.load(Ordering::Relaxed) != 0 {
            return Some(entry.kept());
        }
        let made = Context::new(SUBMIT_MAX as u32);
        match made {
            Ok(context) => entry.context.store(context.to_bits(), Ordering::Relaxed),
            Err(_) => {
                self.is_refused.store(true, Ordering::Relaxed);
                entry.state.store(FREE, Ordering::Release);
            }
        }
        made.ok()
    }

    /// Takes the completions of what was left in an entry that is the caller's. True if all of it has ended.
    fn take_completions(&self, entry: &Entry) -> bool {
        if self.are_held.load(Ordering::Relaxed) {
            return false;
        }
        let mut requests = entry.requests.load(Ordering::Relaxed);
        while requests > 0 && entry.kept().completed().is_some() {
            requests -= 1;
        }
        entry.requests.store(requests, Ordering::Relaxed);
        requests == 0
    }
}

impl Entry {
    /// The context that the entry has.
    fn kept(&self) -> Context {
        Context::of_bits(self.context.load(Ordering::Relaxed))
    }
}

/// A context that a thread has, for one transfer at a time.
pub struct Lease<'a> {
    contexts: &'a Contexts,
    entry: &'a Entry,
    context: Context,
    /// Requests in flight.
    requests: u8,
    /// How the last request ended that was noted, and how many bytes all of them transferred.
    result: i64,
    transferred: usize,
    /// Whether all of them transferred what they were to.
    is_good: bool,
    /// Whether one of them would have made the file longer than the program may make one.
    is_too_long: bool,
    /// It is left as soon as it has to be waited for, for tests.
    is_hasty: bool,
    /// How often transfers were given up before this one: see `faults`.
    patience: u32,
}

impl<'a> Lease<'a> {
    fn new(contexts: &'a Contexts, entry: &'a Entry, context: Context) -> Self {
        let is_hasty = contexts.are_late.load(Ordering::Relaxed)
            && contexts.nr.fetch_add(1, Ordering::Relaxed).is_multiple_of(LATE_EVERY);
        let (requests, result, transferred, is_good, is_too_long, patience) = (0, 0, 0, true, false, 0);
        Self { contexts, entry, context, requests, result, transferred, is_good, is_too_long, is_hasty, patience }
    }

    /// Notes how often transfers were given up before this one.
    pub fn set_patience(&mut self, patience: u32) {
        self.patience = patience;
    }

    /// How often transfers were given up before this one.
    pub fn patience(&self) -> u32 {
        self.patience
    }

    /// Begins a transfer; returns how many of its requests began, the first of them first. Each has its length for a
    /// token.
    ///
    /// # Safety
    /// Until [`Self::end`] says that it has ended, nobody touches the memory that the requests read or write.
    pub unsafe fn begin(&mut self, requests: &mut [Request]) -> usize {
        debug_assert!(self.requests == 0 && requests.len() <= SUBMIT_MAX);
        // SAFETY: the caller's contract.
        let begun = unsafe { self.context.submit(requests) }.unwrap_or(0);
        self.requests = begun as u8;
        (self.is_good, self.is_too_long, self.transferred) = (begun == requests.len(), false, 0);
        // What the kernel refuses has ended by now.
        self.note_completed();
        begun
    }

    /// Waits until the transfer has ended. False if `may_wait`, which is told for how long the thread has waited, in
    /// nanoseconds, says no before.
    pub fn end(&mut self, may_wait: impl Fn(u64) -> bool) -> bool {
        self.note_completed();
        if self.requests == 0 {
            return true;
        }
        let began = uapi::now_ns();
        while self.requests > 0 {
            let waited = uapi::now_ns().saturating_sub(began);
            if self.is_hasty || !may_wait(waited) {
                self.note_completed();
                return self.requests == 0;
            }
            let mut events = [Event::default(); SUBMIT_MAX];
            if self.contexts.are_held.load(Ordering::Relaxed) {
                killable::sleep(LOOK_NS);
                continue;
            }
            // A filter may kill for the call by now. The completions can be seen without it.
            if !self.contexts.can_fly() {
                killable::sleep(SHORT_LOOK_NS);
                self.note_completed();
                continue;
            }
            let mut wait = || self.context.wait(&mut events, Some(LOOK_NS));
            // Most transfers end in the first wait.
            match if waited < LOOK_NS { wait() } else { killable::wait(wait) } {
                Ok(n) => events[..n].iter().for_each(|event| self.note(*event)),
                Err(Errno::INTR) => {}
                Err(_) => {
                    killable::sleep(SHORT_LOOK_NS);
                    self.note_completed();
                }
            }
        }
        true
    }

    /// Waits until the transfer has ended, whatever comes.
    pub fn wait(&mut self) {
        self.is_hasty = false;
        self.end(|_| true);
    }

    /// Whether everything was transferred, once all has ended.
    pub fn is_good(&self) -> bool {
        self.is_good
    }

    /// How many bytes were transferred, or may have been, once all has ended.
    pub fn transferred(&self) -> usize {
        self.transferred
    }

    /// Whether the kernel refused a request because of RLIMIT_FSIZE: a signal is pending then.
    pub fn is_too_long(&self) -> bool {
        self.is_too_long
    }

    /// How a transfer of one request ended: so many bytes were transferred.
    pub fn result(&self) -> Result<usize, Errno> {
        usize::try_from(self.result).map_err(|_| Errno(-self.result as i32))
    }

    /// Leaves the transfer to the kernel. `slots` of file `serial` are being written; nobody may use them until
    /// [`Contexts::reap`] gives them back. The memory that it reads or writes is not this process's any more.
    pub fn leave(self, serial: u32, slots: &[Slot]) {
        let mut left = Left { slots: [Slot(0); BATCH], n: slots.len() as u8 };
        left.slots[..slots.len()].copy_from_slice(slots);
        self.entry.serial.store(serial, Ordering::Relaxed);
        self.entry.requests.store(self.requests.into(), Ordering::Relaxed);
        // SAFETY: the entry is this thread's, until the state says otherwise.
        unsafe { *self.entry.left.get() = left };
        self.entry.state.store(LEFT, Ordering::Release);
        core::mem::forget(self);
    }

    fn note_completed(&mut self) {
        while self.requests > 0
            && !self.contexts.are_held.load(Ordering::Relaxed)
            && let Some(event) = self.context.completed()
        {
            self.note(event);
        }
    }

    fn note(&mut self, event: Event) {
        self.requests = self.requests.saturating_sub(1);
        self.result = event.result;
        self.transferred += match usize::try_from(event.result) {
            Ok(n) => n,
            Err(_) if may_have_written(Errno(-event.result as i32)) => event.data as usize,
            Err(_) => 0,
        };
        self.is_good &= u64::try_from(event.result) == Ok(event.data);
        self.is_too_long |= event.result == -i64::from(Errno::FBIG.0);
    }
}

impl Drop for Lease<'_> {
    fn drop(&mut self) {
        // The memory is the kernel's as long as anything flies.
        self.wait();
        self.entry.state.store(FREE, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    #[repr(align(4096))]
    struct Pages([u8; 3 * 4096]);

    fn request(data: &Pages, page: usize, fd: i32) -> Request {
        let bytes = &data.0[page * 4096..][..4096];
        Request::write(fd, bytes, page as u64 * 4096, bytes.len() as u64)
    }

    #[test]
    fn each_transfer_ends_by_itself_and_says_whether_all_was_transferred() {
        let contexts = Contexts::new().expect("memory");
        let (Some(mut first), Some(mut second)) = (contexts.lease(), contexts.lease()) else { return };
        let fd = uapi::open_tmpfile(c"/var/tmp").expect("a file");
        let data = Pages([5; 3 * 4096]);
        // SAFETY: nobody writes to the pages.
        unsafe {
            assert_eq!(first.begin(&mut [request(&data, 0, fd), request(&data, 2, fd)]), 2);
            assert_eq!(second.begin(&mut [request(&data, 1, fd)]), 1);
            assert!(second.end(|_| true) && second.is_good() && second.result() == Ok(4096));
            assert!(first.end(|_| true) && first.is_good());
            // The kernel takes the first, and refuses the second.
            assert_eq!(first.begin(&mut [request(&data, 0, fd), request(&data, 2, -1)]), 1);
            assert!(first.end(|_| true) && !first.is_good());
            assert_eq!((first.transferred(), second.transferred()), (4096, 4096));
            assert_eq!(first.begin(&mut [request(&data, 0, -1)]), 0);
        }
        let mut back = Vec::from([0; 3 * 4096]);
        assert_eq!(uapi::pread_exact(fd, &mut back, 0), Ok(()));
        assert!(back == data.0);
        uapi::close(fd);
    }

    #[test]
    fn what_is_left_has_its_slots_until_it_ends() {
        let contexts = Contexts::new().expect("memory");
        let Some(mut lease) = contexts.lease() else { return };
        let fd = uapi::open_tmpfile(c"/var/tmp").expect("a file");
        let data = Pages([6; 3 * 4096]);
        contexts.hold(true);
        // SAFETY: nobody writes to the pages.
        assert_eq!(unsafe { lease.begin(&mut [request(&data, 1, fd)]) }, 1);
        let waits = AtomicU32::new(0);
        assert!(!lease.end(|waited| waited < 1 && waits.fetch_add(1, Ordering::Relaxed) < 1));
        lease.leave(7, &[Slot(3), Slot(5)]);
        let reaped = |serial| {
            let mut all = Vec::new();
            contexts.reap(serial, |slots| all.extend_from_slice(slots));
            all
        };
        assert!(reaped(7).is_empty(), "it has not ended");
        contexts.hold(false);
        assert!(reaped(8).is_empty(), "another file's");
        let mut all = reaped(7);
        while all.is_empty() {
            all = reaped(7);
        }
        assert_eq!(all, [Slot(3), Slot(5)]);
        assert!(reaped(7).is_empty());
        uapi::close(fd);
    }

    #[test]
    fn where_there_is_no_context_none_is_used_up() {
        let contexts = Contexts::new().expect("memory");
        contexts.is_refused.store(true, Ordering::Relaxed);
        assert!(contexts.lease().is_none() && !contexts.are_used_up());
        // Another thread is about to ask for one.
        contexts.entries[0].state.store(USED, Ordering::Relaxed);
        assert!(!contexts.are_used_up());
        contexts.entries[0].state.store(FREE, Ordering::Relaxed);
        contexts.is_refused.store(false, Ordering::Relaxed);
        let Some(lease) = contexts.lease() else { return };
        contexts.is_refused.store(true, Ordering::Relaxed);
        assert!(contexts.lease().is_none() && contexts.are_used_up());
        drop(lease);
        assert!(contexts.lease().is_some() && !contexts.are_used_up());
    }

    #[test]
    fn what_is_left_of_a_file_that_is_gone_comes_free() {
        let contexts = Contexts::new().expect("memory");
        let fd = uapi::open_tmpfile(c"/var/tmp").expect("a file");
        let data = Pages([6; 3 * 4096]);
        for serial in 0..3 * CONTEXTS_MAX as u32 {
            let Some(mut lease) = contexts.lease() else {
                assert!(serial == 0, "all contexts are lost");
                return;
            };
            contexts.hold(true);
            // SAFETY: nobody writes to the pages.
            assert_eq!(unsafe { lease.begin(&mut [request(&data, 1, fd)]) }, 1);
            assert!(!lease.end(|_| false));
            lease.leave(serial, &[]);
            contexts.disown(serial);
            contexts.hold(false);
        }
        uapi::close(fd);
    }

    #[test]
    fn in_forks_child_all_are_free_and_none_after_the_last_flight() {
        let contexts = Contexts::new().expect("memory");
        let Some(lease) = contexts.lease() else { return };
        let number = lease.context.to_bits();
        core::mem::forget(lease);
        contexts.reset(|_, _| ());
        assert!(contexts.entries.iter().all(|entry| entry.state.load(Ordering::Relaxed) == FREE));
        assert_ne!(contexts.lease().map(|lease| lease.context.to_bits()), Some(number));
        contexts.ground();
        assert!(!contexts.can_fly() && contexts.lease().is_none());
        Context::of_bits(number).destroy();
    }
}
