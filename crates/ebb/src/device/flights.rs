//! Transfers in flight: a thread goes on with the next batch while the device takes the last one.
//!
//! A thread that writes has two *flights* at most, by a context of Linux AIO (`aio` in `base/uapi`). All of them end
//! before the thread leaves the gate. So whoever closes the gate finds nothing in flight, and nobody else needs to know
//! of it.
//!
//! AIO is the older of the kernel's two interfaces. It is as fast as io_uring for batches of this size, containers
//! allow it, and its completions never interrupt a call of the program's. A flight that cannot begin or does not end
//! well costs nothing: its transfer is made again, in the usual way.

use crate::base::uapi::Errno;
use crate::base::uapi::aio::{Context, Event, Request, SUBMIT_MAX};
use crate::base::uapi::futex_wait;
use core::sync::atomic::AtomicU32;

/// Most flights of one thread at a time.
pub const FLIGHTS: usize = 2;
/// Most requests of one flight.
pub const REQUESTS_MAX: usize = SUBMIT_MAX;
/// Requests of a context.
pub const CONTEXT_REQUESTS: u32 = (FLIGHTS * REQUESTS_MAX) as u32;

/// How long to wait before the next look, if the kernel does not let the thread wait for completions.
const LOOK_NS: u64 = 50_000;

/// The flights of one thread that is inside the gate.
pub struct Flights {
    context: Option<Context>,
    /// Requests in flight.
    left: [u8; FLIGHTS],
    /// Bytes that were transferred.
    transferred: [usize; FLIGHTS],
    /// Whether all requests of the flight that have ended transferred everything.
    is_good: [bool; FLIGHTS],
    /// Whether one of them would have made the file longer than the program may make one.
    is_too_long: [bool; FLIGHTS],
    /// All flights count as failed, for tests.
    fails: bool,
}

impl Flights {
    /// With no context, nothing ever flies. Only the calling thread may use the context.
    pub fn new(context: Option<Context>) -> Self {
        Self {
            context,
            left: [0; FLIGHTS],
            transferred: [0; FLIGHTS],
            is_good: [false; FLIGHTS],
            is_too_long: [false; FLIGHTS],
            fails: false,
        }
    }

    /// Has all flights count as failed.
    pub fn fail(&mut self) {
        self.fails = true;
    }

    /// Whether anything can fly.
    pub fn can_begin(&self) -> bool {
        self.context.is_some()
    }

    /// What the kernel tells when the request ends: its flight, and how many bytes it is to transfer.
    pub fn token(which: usize, len: usize) -> u64 {
        (which as u64) << 32 | len as u64
    }

    /// Begins a flight. False if it did not begin.
    ///
    /// # Safety
    /// The requests have [`Self::token`]. Until [`Self::end`], nobody touches the memory that they read or write.
    pub unsafe fn begin(&mut self, which: usize, requests: &mut [Request]) -> bool {
        debug_assert!(self.left[which] == 0 && requests.len() <= REQUESTS_MAX);
        let Some(context) = self.context else { return false };
        // SAFETY: the caller's contract.
        let begun = unsafe { context.submit(requests) }.unwrap_or(0);
        (self.left[which], self.transferred[which]) = (begun as u8, 0);
        (self.is_good[which], self.is_too_long[which]) = (begun == requests.len(), false);
        // What the kernel refuses has ended by now.
        while let Some(event) = context.completed() {
            self.note(event);
        }
        begun > 0
    }

    /// Whether the kernel refused a request of the flight because of RLIMIT_FSIZE: a signal is pending then.
    pub fn is_too_long(&self, which: usize) -> bool {
        self.is_too_long[which]
    }

    /// How many bytes of a flight that has ended were transferred.
    pub fn transferred(&self, which: usize) -> usize {
        self.transferred[which]
    }

    /// Waits until a flight has ended. True if everything was transferred.
    pub fn end(&mut self, which: usize) -> bool {
        let Some(context) = self.context else { return false };
        while self.left[which] > 0 {
            if let Some(event) = context.completed() {
                self.note(event);
                continue;
            }
            let mut events = [Event::default(); CONTEXT_REQUESTS as usize];
            match context.wait(&mut events) {
                Ok(n) => events[..n].iter().for_each(|event| self.note(*event)),
                Err(Errno::INTR) => {}
                Err(_) => futex_wait(&AtomicU32::new(0), 0, Some(LOOK_NS)),
            }
        }
        self.is_good[which] && !self.fails
    }

    fn note(&mut self, event: Event) {
        let (which, len) = ((event.data >> 32) as usize % FLIGHTS, event.data as u32);
        self.left[which] = self.left[which].saturating_sub(1);
        self.transferred[which] += usize::try_from(event.result).unwrap_or(0);
        self.is_good[which] &= event.result == i64::from(len);
        self.is_too_long[which] |= event.result == -i64::from(Errno::FBIG.0);
    }
}

impl Drop for Flights {
    fn drop(&mut self) {
        // The memory is the kernel's as long as anything flies.
        (0..FLIGHTS).for_each(|which| _ = self.end(which));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::uapi;
    use std::vec::Vec;

    #[repr(align(4096))]
    struct Pages([u8; 3 * 4096]);

    #[test]
    fn each_flight_ends_by_itself_and_says_whether_all_was_transferred() {
        let Ok(context) = Context::new(CONTEXT_REQUESTS) else { return };
        let fd = uapi::open_tmpfile(c"/var/tmp").expect("a file");
        let data = Pages([5; 3 * 4096]);
        let mut flights = Flights::new(Some(context));
        let request = |which, page: usize, fd| {
            let bytes = &data.0[page * 4096..][..4096];
            Request::write(fd, bytes, page as u64 * 4096, Flights::token(which, bytes.len()))
        };
        // SAFETY: nobody writes to the pages.
        unsafe {
            assert!(flights.begin(0, &mut [request(0, 0, fd), request(0, 2, fd)]));
            assert!(flights.begin(1, &mut [request(1, 1, fd)]));
            assert!(flights.end(1));
            assert!(flights.end(0));
            // The kernel takes the first, and refuses the second.
            assert!(flights.begin(0, &mut [request(0, 0, fd), request(0, 2, -1)]));
            assert!(!flights.end(0));
            assert_eq!((flights.transferred(0), flights.transferred(1)), (4096, 4096));
            assert!(!flights.begin(0, &mut [request(0, 0, -1)]));
            assert_eq!(flights.transferred(0), 0);
        }
        let mut back = Vec::from([0; 3 * 4096]);
        assert_eq!(uapi::pread_exact(fd, &mut back, 0), Ok(()));
        assert!(back == data.0);
        drop(flights);
        context.destroy();
        uapi::close(fd);
    }

    #[test]
    fn without_a_context_nothing_flies() {
        let mut flights = Flights::new(None);
        assert!(!flights.can_begin());
        // SAFETY: there is no request.
        assert!(!unsafe { flights.begin(0, &mut []) } && !flights.end(0));
    }
}
