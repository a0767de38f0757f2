//! Writes in flight: a thread goes on with the next batch while the device takes the last one.
//!
//! A thread that writes has two *flights* at most, each a transfer by a context of its own (`contexts.rs`). They end, or
//! are left to the kernel, before the thread leaves the gate. So whoever closes the gate finds nothing in flight that
//! anybody waits for.
//!
//! AIO is the older of the kernel's two interfaces. It is as fast as io_uring for batches of this size, containers
//! allow it, and its completions never interrupt a call of the program's. A flight that cannot begin or does not end
//! well costs nothing: its transfer is made again, in the usual way.

use crate::base::uapi::aio::{Request, SUBMIT_MAX};
use crate::device::contexts::{Contexts, Lease};

/// Most flights of one thread at a time.
pub const FLIGHTS: usize = 2;
/// Most requests of one flight.
pub const REQUESTS_MAX: usize = SUBMIT_MAX;

/// The flights of one thread that is inside the gate.
pub struct Flights<'a> {
    contexts: Option<&'a Contexts>,
    flights: [Option<Lease<'a>>; FLIGHTS],
    /// Bytes that each transferred that has ended.
    transferred: [usize; FLIGHTS],
    /// All flights count as failed, for tests.
    fails: bool,
}

/// How a flight ended.
pub enum Ended<'a> {
    /// Everything was transferred.
    Good,
    /// Something was not.
    Failed,
    /// It has not ended, and is no longer waited for.
    Late(Lease<'a>),
}

impl<'a> Flights<'a> {
    /// With no contexts, nothing ever flies.
    pub fn new(contexts: Option<&'a Contexts>) -> Self {
        let contexts = contexts.filter(|contexts| contexts.can_fly());
        Self {
            contexts,
            flights: [None, None],
            transferred: [0; FLIGHTS],
            fails: contexts.is_some_and(Contexts::fails_now),
        }
    }

    /// Whether anything can fly.
    pub fn can_begin(&self) -> bool {
        self.contexts.is_some()
    }

    /// Begins a flight, which is waited for as the `patience` of the file says. False if it did not begin.
    ///
    /// # Safety
    /// Each request has its length for a token. Until [`Self::end`], nobody touches the memory that they read or write.
    pub unsafe fn begin(&mut self, which: usize, requests: &mut [Request], patience: u32) -> bool {
        debug_assert!(self.flights[which].is_none());
        let Some(mut lease) = self.contexts.and_then(Contexts::lease) else { return false };
        lease.set_patience(patience);
        // SAFETY: the caller's contract.
        let has_begun = unsafe { lease.begin(requests) } > 0;
        self.flights[which] = Some(lease);
        has_begun
    }

    /// Whether the kernel refused a request of the flight because of RLIMIT_FSIZE: a signal is pending then.
    pub fn is_too_long(&self, which: usize) -> bool {
        self.flights[which].as_ref().is_some_and(Lease::is_too_long)
    }

    /// How many bytes of a flight that has ended were transferred.
    pub fn transferred(&self, which: usize) -> usize {
        self.transferred[which]
    }

    /// Has `wait` wait until a flight has ended; it returns false if it has not.
    pub fn end(&mut self, which: usize, wait: impl FnOnce(&mut Lease<'a>) -> bool) -> Ended<'a> {
        self.transferred[which] = 0;
        let Some(mut lease) = self.flights[which].take() else { return Ended::Failed };
        if !wait(&mut lease) {
            return Ended::Late(lease);
        }
        self.transferred[which] = lease.transferred();
        if lease.is_good() && !self.fails { Ended::Good } else { Ended::Failed }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::uapi;

    #[repr(align(4096))]
    struct Pages([u8; 2 * 4096]);

    fn wait(lease: &mut Lease<'_>) -> bool {
        lease.wait();
        true
    }

    #[test]
    fn each_flight_ends_by_itself() {
        let contexts = Contexts::new().expect("memory");
        if contexts.lease().is_none() {
            return;
        }
        let fd = uapi::open_tmpfile(c"/var/tmp").expect("a file");
        let data = Pages([5; 2 * 4096]);
        let request = |page: usize, fd| Request::write(fd, &data.0[page * 4096..][..4096], page as u64 * 4096, 4096);
        let mut flights = Flights::new(Some(contexts));
        // SAFETY: nobody writes to the pages.
        unsafe {
            assert!(flights.begin(0, &mut [request(0, fd)], 0) && flights.begin(1, &mut [request(1, fd)], 0));
            assert!(matches!(flights.end(1, wait), Ended::Good));
            assert!(!flights.begin(1, &mut [request(1, -1)], 0));
            assert!(matches!(flights.end(1, wait), Ended::Failed) && flights.transferred(1) == 0);
            assert!(matches!(flights.end(0, wait), Ended::Good) && flights.transferred(0) == 4096);
        }
        uapi::close(fd);
    }

    #[test]
    fn some_flights_fail_on_demand() {
        let contexts = Contexts::new().expect("memory");
        contexts.force(true, false);
        let fail = |_| Flights::new(Some(contexts)).fails;
        assert_eq!((0..6).map(fail).collect::<Vec<_>>(), [true, false, false, true, false, false]);
    }

    #[test]
    fn without_a_context_nothing_flies() {
        let mut flights = Flights::new(None);
        assert!(!flights.can_begin());
        // SAFETY: there is no request.
        assert!(!unsafe { flights.begin(0, &mut [], 0) });
        assert!(matches!(flights.end(0, wait), Ended::Failed));
    }
}
