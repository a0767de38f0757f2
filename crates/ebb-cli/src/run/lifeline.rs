//! `ebb`'s end of the lifeline: whatever ends `ebb` before its time ends every process it started.
//!
//! The write end of a pipe is held here alone; the agent in each process asks the kernel for SIGKILL when it closes
//! (`ebb-agent`, `lifeline`). When the program has ended by itself, what it left running in the background must go on:
//! the write end is sent to the keeper, a socket that those processes hold, and stays open there.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use crate::base::sys::check;
use crate::run::launch::pipe;

/// Both ends of pipe and keeper.
pub struct Lifeline {
    line: OwnedFd,
    keeper: OwnedFd,
    held: Held,
}

/// What stays in this process.
pub struct Held {
    writer: OwnedFd,
    release: OwnedFd,
}

impl Lifeline {
    /// Makes them, all close-on-exec.
    pub fn create() -> io::Result<Self> {
        let (line, writer) = pipe()?;
        let mut ends = [0; 2];
        let kind = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC;
        // SAFETY: `ends` has room for both descriptors.
        check(unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, ends.as_mut_ptr()) })?;
        // SAFETY: descriptors just made, which nobody else knows.
        let [keeper, release] = ends.map(|fd| unsafe { OwnedFd::from_raw_fd(fd) });
        Ok(Self { line, keeper, held: Held { writer, release } })
    }

    /// The two descriptors for the program, and what to hold until it has ended.
    pub fn split(self) -> ([OwnedFd; 2], Held) {
        ([self.line, self.keeper], self.held)
    }
}

impl Held {
    /// The number of the write end here: by its name in `/proc` the processes open the pipe anew.
    pub fn number(&self) -> RawFd {
        self.writer.as_raw_fd()
    }

    /// Lets the processes that are left live on.
    pub fn let_go(self) {
        let mut byte = 0u8;
        let mut part = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
        // Aligned as a control message must be.
        let mut control = [0u64; 8];
        // SAFETY: all zeroes are a valid message.
        let mut message: libc::msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
        message.msg_iov = &raw mut part;
        message.msg_iovlen = 1;
        message.msg_control = control.as_mut_ptr().cast();
        // SAFETY: arithmetic only.
        message.msg_controllen = unsafe { libc::CMSG_SPACE(size_of::<libc::c_int>() as u32) } as usize;
        // SAFETY: the control buffer is larger than one message with one descriptor.
        let sent = unsafe {
            let header = libc::CMSG_FIRSTHDR(&raw const message);
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            (*header).cmsg_len = libc::CMSG_LEN(size_of::<libc::c_int>() as u32) as usize;
            libc::CMSG_DATA(header).cast::<libc::c_int>().write_unaligned(self.writer.as_raw_fd());
            libc::sendmsg(self.release.as_raw_fd(), &raw const message, libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT)
        };
        // Refused: nobody is left to hold the other end. Anything else, such as too many descriptors under way, leaves
        // it to a process of `ebb`'s to hold the line as long as somebody hangs on it.
        let refused = [Some(libc::ECONNREFUSED), Some(libc::ECONNRESET), Some(libc::EPIPE), Some(libc::ENOTCONN)];
        if sent < 0 && !refused.contains(&io::Error::last_os_error().raw_os_error()) {
            self.hold();
        }
    }

    /// Holds the line in a child until its last reader is gone.
    fn hold(&self) {
        // SAFETY: this process has one thread; the child waits, and ends.
        unsafe {
            if libc::fork() == 0 {
                for fd in 0..=2 {
                    libc::close(fd);
                }
                let mut line = libc::pollfd { fd: self.writer.as_raw_fd(), events: 0, revents: 0 };
                while line.revents & libc::POLLERR == 0 {
                    libc::poll(&raw mut line, 1, -1);
                }
                libc::_exit(0);
            }
        }
    }
}
