//! `ebb`'s end of the lifeline: if anything ends `ebb` early, it also ends every process that `ebb` started.
//!
//! Only this process holds the write end of a pipe. The agent in each process asks the kernel for SIGKILL when the pipe
//! closes (`ebb-agent`, `lifeline`). If the program ends by itself, processes that it left in the background must go
//! on. So the write end is sent to the keeper, a socket that those processes hold, and stays open there.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use crate::base::sys::check;
use crate::run::launch::pipe;

/// The pipe and the keeper, with both ends of each.
pub struct Lifeline {
    line: OwnedFd,
    keeper: OwnedFd,
    held: Held,
}

/// The ends that stay in this process.
pub struct Held {
    writer: OwnedFd,
    release: OwnedFd,
}

impl Lifeline {
    /// Makes pipe and keeper, all close-on-exec.
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

    /// Splits into the two descriptors for the program, and the ends to hold until it has ended.
    pub fn split(self) -> ([OwnedFd; 2], Held) {
        ([self.line, self.keeper], self.held)
    }
}

impl Held {
    /// The number of the write end in this process. The tree's processes open the pipe anew by that number's entry in
    /// `/proc`.
    pub fn number(&self) -> RawFd {
        self.writer.as_raw_fd()
    }

    /// Lets the remaining processes live on.
    pub fn let_go(self) {
        let mut byte = 0u8;
        let mut part = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
        // Control messages need this alignment.
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
        // Refused: no process is left to hold the keeper. After any other error, such as too many descriptors in
        // flight, a child of `ebb` holds the line for as long as a process has its read end.
        let refused = [Some(libc::ECONNREFUSED), Some(libc::ECONNRESET), Some(libc::EPIPE), Some(libc::ENOTCONN)];
        if sent < 0 && !refused.contains(&io::Error::last_os_error().raw_os_error()) {
            self.hold();
        }
    }

    /// Forks a child that holds the line until its last reader is gone.
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
