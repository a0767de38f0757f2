//! Locks on bytes of a file.
//!
//! Record locks (POSIX) belong to a process. The kernel releases them when the process dies. Nobody inherits them; exec
//! keeps them. A process loses all of them when it closes *any* descriptor of the file.
//!
//! Description locks belong to what one open(2) made. All descriptors that were duplicated from that one have the lock,
//! also those that a fork copied. The last of them to be closed releases it.

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

/// Locks a byte for this process without waiting. False when another process has locked it, or the file cannot be locked.
pub fn try_lock(fd: i32, at: u64) -> bool {
    fcntl(fd, g::F_SETLK, g::F_WRLCK, at).is_ok()
}

/// Unlocks a byte of this process.
pub fn unlock(fd: i32, at: u64) {
    let _ = fcntl(fd, g::F_SETLK, g::F_UNLCK, at);
}

/// The number of another process that has locked a byte. It is 0 where that process is in a pid namespace not seen from here.
pub fn holder(fd: i32, at: u64) -> Option<i32> {
    let lock = fcntl(fd, g::F_GETLK, g::F_WRLCK, at).ok()?;
    (lock.kind != g::F_UNLCK as i16).then_some(lock.pid)
}

/// Locks a byte for the file description behind `fd` without waiting. False when another description has locked it, or
/// the file cannot be locked.
pub fn try_lock_description(fd: i32, at: u64) -> bool {
    fcntl(fd, g::F_OFD_SETLK, g::F_WRLCK, at).is_ok()
}

/// Whether anybody but the file description behind `fd` has locked a byte. Also true when the kernel does not say.
pub fn is_locked(fd: i32, at: u64) -> bool {
    fcntl(fd, g::F_OFD_GETLK, g::F_WRLCK, at).map_or(true, |lock| lock.kind != g::F_UNLCK as i16)
}
