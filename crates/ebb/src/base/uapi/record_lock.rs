//! Locks on bytes of a file.
//!
//! Record locks (POSIX) belong to a process: the kernel lets go of them when the process dies, and nobody inherits them. exec keeps
//! them. A process loses all of them when it closes *any* descriptor of the file.
//!
//! Locks of a description belong to what one open(2) made: all descriptors that were duplicated from that one have it, also those
//! that a fork copied, and it goes with the last of them.

use super::{Errno, call};
use linux_raw_sys::general as g;

const SEEK_SET: i16 = 0;

/// `struct flock`.
#[repr(C)]
struct Flock {
    kind: i16,
    whence: i16,
    start: i64,
    len: i64,
    pid: i32,
}

fn fcntl(fd: i32, command: u32, kind: u32, at: u64) -> Result<Flock, Errno> {
    let mut lock = Flock { kind: kind as i16, whence: SEEK_SET, start: at as i64, len: 1, pid: 0 };
    // SAFETY: the kernel reads and writes the structure given.
    unsafe { call(g::__NR_fcntl, [fd as u64, command as u64, &raw mut lock as u64, 0, 0, 0]) }?;
    Ok(lock)
}

/// Locks a byte for this process without waiting. False when another process has it, or the file cannot be locked.
pub fn try_lock(fd: i32, at: u64) -> bool {
    fcntl(fd, g::F_SETLK, g::F_WRLCK, at).is_ok()
}

/// Lets go of a byte.
pub fn unlock(fd: i32, at: u64) {
    let _ = fcntl(fd, g::F_SETLK, g::F_UNLCK, at);
}

/// The other process that has locked a byte; its number is 0 where it is in a pid namespace that is not seen from here.
pub fn holder(fd: i32, at: u64) -> Option<i32> {
    let lock = fcntl(fd, g::F_GETLK, g::F_WRLCK, at).ok()?;
    (lock.kind != g::F_UNLCK as i16).then_some(lock.pid)
}

/// Locks a byte for the file description behind `fd` without waiting. False when another one has it, or the file cannot be
/// locked.
pub fn try_lock_description(fd: i32, at: u64) -> bool {
    fcntl(fd, g::F_OFD_SETLK, g::F_WRLCK, at).is_ok()
}

/// Whether somebody has locked a byte who is not the file description behind `fd`. True, too, when the kernel does not say.
pub fn is_locked(fd: i32, at: u64) -> bool {
    fcntl(fd, g::F_OFD_GETLK, g::F_WRLCK, at).map_or(true, |lock| lock.kind != g::F_UNLCK as i16)
}
