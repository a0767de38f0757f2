//! SIGINT and SIGTERM as events to wait for beside a connection, so that `ebb` can take back what it has begun.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

use crate::base::sys::{self, check};

/// The signals that ask `ebb` to give up.
const SIGNALS: [libc::c_int; 2] = [libc::SIGINT, libc::SIGTERM];

/// What ended a wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    Signal(libc::c_int),
    /// The other side has sent something, or has ended.
    Message,
    /// Nothing came in time.
    Nothing,
}

/// Blocks signals, both of these unless others are named, except one that was ignored when `ebb` started: that one stays ignored.
pub struct Interrupts {
    arrived: OwnedFd,
    held: libc::sigset_t,
}

impl Interrupts {
    pub fn hold() -> io::Result<Self> {
        Self::hold_these(SIGNALS)
    }

    /// The same for other signals.
    pub fn hold_these(signals: impl IntoIterator<Item = libc::c_int>) -> io::Result<Self> {
        let held = sys::signals(signals.into_iter().filter(|signal| !sys::is_ignored(*signal)));
        // SAFETY: the set is initialised.
        let fd = check(unsafe { libc::signalfd(-1, &held, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) })?;
        sys::change_mask(libc::SIG_BLOCK, &held);
        // SAFETY: a descriptor just made, which nobody else knows.
        Ok(Self { arrived: unsafe { OwnedFd::from_raw_fd(fd) }, held })
    }

    /// Waits until `other` has something to read or a signal arrives, at most `patience` if there is one.
    pub fn wait(&self, other: &impl AsFd, patience: Option<Duration>) -> io::Result<Event> {
        let timeout_ms = patience.map_or(-1, |patience| patience.as_millis() as libc::c_int);
        let wanted = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        let mut both = [wanted(self.arrived.as_raw_fd()), wanted(other.as_fd().as_raw_fd())];
        loop {
            // SAFETY: the array is whole, and its length given.
            match check(unsafe { libc::poll(both.as_mut_ptr(), both.len() as libc::nfds_t, timeout_ms) }) {
                Ok(_) => {
                    let otherwise = if both[1].revents == 0 { Event::Nothing } else { Event::Message };
                    return Ok(self.take().map_or(otherwise, Event::Signal));
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Waits at most `patience` for a signal.
    pub fn wait_for(&self, patience: Duration) -> io::Result<Option<libc::c_int>> {
        let mut arrived = libc::pollfd { fd: self.arrived.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one whole structure.
        match check(unsafe { libc::poll(&raw mut arrived, 1, patience.as_millis() as libc::c_int) }) {
            Ok(_) => Ok(self.take()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn take(&self) -> Option<libc::c_int> {
        let mut info = MaybeUninit::<libc::signalfd_siginfo>::zeroed();
        let len = size_of::<libc::signalfd_siginfo>();
        // SAFETY: the buffer is one whole structure.
        let got = unsafe { libc::read(self.arrived.as_raw_fd(), info.as_mut_ptr().cast(), len) };
        // SAFETY: all zeroes are valid for it, and the kernel fills it as a whole.
        (got == len as isize).then(|| unsafe { info.assume_init() }.ssi_signo as libc::c_int)
    }

    /// Unblocks the signals: another one ends `ebb` at once.
    pub fn release(&self) {
        sys::change_mask(libc::SIG_UNBLOCK, &self.held);
    }
}

impl AsRawFd for Interrupts {
    fn as_raw_fd(&self) -> RawFd {
        self.arrived.as_raw_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::socket::Socket;

    #[test]
    fn a_signal_or_a_message_ends_the_wait() {
        // In a thread of its own, because the signal mask ends with the thread.
        let thread = std::thread::spawn(|| {
            let interrupts = Interrupts::hold().unwrap();
            let (one, other) = Socket::pair().unwrap();
            one.send(b"x").unwrap();
            let by_message = interrupts.wait(&other, None).unwrap();
            assert_eq!(interrupts.wait_for(Duration::from_millis(1)).unwrap(), None);
            // SAFETY: sends a signal to this thread, which holds it back.
            unsafe { libc::pthread_kill(libc::pthread_self(), libc::SIGTERM) };
            let in_time = interrupts.wait(&one, Some(Duration::from_secs(100))).unwrap();
            (by_message, interrupts.wait(&one, Some(Duration::from_millis(1))).unwrap(), in_time)
        });
        assert_eq!(thread.join().unwrap(), (Event::Message, Event::Nothing, Event::Signal(libc::SIGTERM)));
    }
}
