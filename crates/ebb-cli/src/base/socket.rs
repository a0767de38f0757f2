//! A connection that carries whole messages: a local socket of type SOCK_SEQPACKET.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

use crate::base::sys::check;

/// One end of a connection.
#[derive(Debug)]
pub struct Socket(OwnedFd);

impl Socket {
    /// Connects to the socket file at `path`. Waits at most `patience` if the listener's queue is full.
    pub fn connect(path: &Path, patience: Duration) -> io::Result<Self> {
        // SAFETY: all zeroes are a valid address.
        let mut address: libc::sockaddr_un = unsafe { MaybeUninit::zeroed().assume_init() };
        address.sun_family = libc::AF_UNIX as libc::sa_family_t;
        let bytes = path.as_os_str().as_bytes();
        // The last byte stays zero, to end the path.
        if bytes.len() >= address.sun_path.len() {
            return Err(io::Error::from_raw_os_error(libc::ENAMETOOLONG));
        }
        for (to, from) in address.sun_path.iter_mut().zip(bytes) {
            *to = *from as libc::c_char;
        }
        let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
        // SAFETY: makes a socket.
        let fd = check(unsafe { libc::socket(libc::AF_UNIX, kind, 0) })?;
        // SAFETY: a descriptor just made, which nobody else knows.
        let socket = Self(unsafe { OwnedFd::from_raw_fd(fd) });
        socket.set_patience(libc::SO_SNDTIMEO, patience)?;
        let len = size_of::<libc::sockaddr_un>() as libc::socklen_t;
        // SAFETY: the address is whole.
        check(unsafe { libc::connect(fd, (&raw const address).cast(), len) })?;
        Ok(socket)
    }

    /// Limits each wait for a message from now on.
    pub fn set_receive_patience(&self, patience: Duration) -> io::Result<()> {
        self.set_patience(libc::SO_RCVTIMEO, patience)
    }

    fn set_patience(&self, option: libc::c_int, patience: Duration) -> io::Result<()> {
        let time = libc::timeval {
            tv_sec: patience.as_secs() as libc::time_t,
            tv_usec: libc::suseconds_t::from(patience.subsec_micros()),
        };
        let len = size_of::<libc::timeval>() as libc::socklen_t;
        // SAFETY: the option's value is a whole `timeval`.
        check(unsafe { libc::setsockopt(self.0.as_raw_fd(), libc::SOL_SOCKET, option, (&raw const time).cast(), len) })
            .map(drop)
    }

    /// The number of the process that listens.
    pub fn peer_pid(&self) -> io::Result<i32> {
        let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
        let mut len = size_of::<libc::ucred>() as libc::socklen_t;
        let fd = self.0.as_raw_fd();
        // SAFETY: `peer` is a whole `ucred`, and `len` its size.
        check(unsafe {
            libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_PEERCRED, (&raw mut peer).cast(), &raw mut len)
        })?;
        Ok(peer.pid)
    }

    /// Sends one message.
    pub fn send(&self, message: &[u8]) -> io::Result<()> {
        // SAFETY: the message is readable in its whole length.
        let sent =
            unsafe { libc::send(self.0.as_raw_fd(), message.as_ptr().cast(), message.len(), libc::MSG_NOSIGNAL) };
        if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Waits for one message; an empty one means the end of the connection. A message longer than `buffer` is an error.
    pub fn receive<'a>(&self, buffer: &'a mut [u8]) -> io::Result<&'a [u8]> {
        loop {
            // SAFETY: the buffer is writable in its whole length.
            let got =
                unsafe { libc::recv(self.0.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len(), libc::MSG_TRUNC) };
            match usize::try_from(got) {
                Ok(len) if len > buffer.len() => return Err(io::Error::from_raw_os_error(libc::EMSGSIZE)),
                Ok(len) => return Ok(&buffer[..len]),
                Err(_) => {
                    let error = io::Error::last_os_error();
                    if error.kind() != io::ErrorKind::Interrupted {
                        return Err(error);
                    }
                }
            }
        }
    }

    /// Says that nothing more will be sent. Answers still come. If the other end is gone, reading the answers shows it.
    pub fn finish(&self) {
        // SAFETY: changes a socket that is open.
        unsafe { libc::shutdown(self.0.as_raw_fd(), libc::SHUT_WR) };
    }

    /// Makes both ends of one connection.
    #[cfg(test)]
    pub fn pair() -> io::Result<(Self, Self)> {
        let mut ends = [0; 2];
        let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
        // SAFETY: `ends` has room for both descriptors.
        check(unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, ends.as_mut_ptr()) })?;
        // SAFETY: descriptors just made, which nobody else knows.
        let [one, other] = ends.map(|fd| Self(unsafe { OwnedFd::from_raw_fd(fd) }));
        Ok((one, other))
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CString;

    /// A listening socket whose file is unlinked, and a descriptor of that file.
    fn nameless_listener() -> (OwnedFd, OwnedFd) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(".ebb-control-x");
        let name = CString::new(path.as_os_str().as_bytes()).unwrap();
        // SAFETY: the address is whole and zero-terminated, the path is a C string, and the descriptors are new.
        unsafe {
            let fd = check(libc::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC, 0)).unwrap();
            let mut address: libc::sockaddr_un = MaybeUninit::zeroed().assume_init();
            address.sun_family = libc::AF_UNIX as libc::sa_family_t;
            name.as_bytes().iter().zip(&mut address.sun_path).for_each(|(from, to)| *to = *from as libc::c_char);
            let len = size_of::<libc::sockaddr_un>() as libc::socklen_t;
            check(libc::bind(fd, (&raw const address).cast(), len)).unwrap();
            let file = check(libc::open(name.as_ptr(), libc::O_PATH | libc::O_CLOEXEC)).unwrap();
            check(libc::unlink(name.as_ptr())).unwrap();
            check(libc::listen(fd, 1)).unwrap();
            (OwnedFd::from_raw_fd(fd), OwnedFd::from_raw_fd(file))
        }
    }

    #[test]
    fn a_nameless_socket_is_reached_through_a_descriptor_of_its_file() {
        let (listener, file) = nameless_listener();
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        let socket = Socket::connect(Path::new(&path), Duration::from_secs(2)).unwrap();
        assert_eq!(socket.peer_pid().unwrap(), std::process::id() as i32);
        drop(listener);
        let gone = Socket::connect(Path::new(&path), Duration::from_secs(2)).unwrap_err();
        assert_eq!(gone.raw_os_error(), Some(libc::ECONNREFUSED));
    }

    #[test]
    fn messages_stay_apart_and_an_end_is_empty() {
        let (one, other) = Socket::pair().unwrap();
        one.send(b"first").unwrap();
        one.send(b"2").unwrap();
        one.finish();
        let mut buffer = [0; 16];
        assert_eq!(other.receive(&mut buffer).unwrap(), b"first");
        assert_eq!(other.receive(&mut buffer).unwrap(), b"2");
        assert_eq!(other.receive(&mut buffer).unwrap(), b"");
        other.send(b"answer").unwrap();
        assert_eq!(one.receive(&mut buffer).unwrap(), b"answer");
    }

    #[test]
    fn a_message_too_long_is_an_error_and_so_is_a_wait_too_long() {
        let (one, other) = Socket::pair().unwrap();
        one.send(b"longer").unwrap();
        assert_eq!(other.receive(&mut [0; 4]).unwrap_err().raw_os_error(), Some(libc::EMSGSIZE));
        other.set_receive_patience(Duration::from_millis(1)).unwrap();
        assert_eq!(other.receive(&mut [0; 4]).unwrap_err().kind(), io::ErrorKind::WouldBlock);
    }
}
