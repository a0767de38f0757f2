//! Standard error, where messages go: only to the file that `ebb run` had there.
//!
//! A program may close descriptor 2, and the next file that it opens gets that number. A message there would damage the
//! program's data. So the file is known by device and inode. `ebb` keeps it open, so no other file gets its inode
//! meanwhile. Messages that cannot be written are counted.

use super::fd::{Identity, identity_of};
use super::{Errno, call, close, write_all};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use linux_raw_sys::general as g;

const STDERR: i32 = 2;

/// Messages go to whatever file is at descriptor 2: nobody has said which one it should be.
const ANY: u32 = 0;
/// Messages go to the known file only.
const KNOWN: u32 = 1;
/// There was no standard error.
const NONE: u32 = 2;

static WHICH: AtomicU32 = AtomicU32::new(ANY);
/// Device and inode. The first thread of the process stores them before `WHICH`.
static FILE: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];
/// Counter of messages that could not be written.
static UNSAID: AtomicPtr<AtomicU64> = AtomicPtr::new(core::ptr::null_mut());

/// The user wants messages with all that developers look at.
static HAS_DETAILS: AtomicBool = AtomicBool::new(false);

/// Has messages come with details.
pub fn want_details() {
    HAS_DETAILS.store(true, Ordering::Relaxed);
}

/// Whether messages come with details.
pub fn has_details() -> bool {
    HAS_DETAILS.load(Ordering::Relaxed)
}

/// Has messages go to this file only, or nowhere without one. Must be called before a second thread exists.
pub fn know(file: Option<Identity>) {
    if let Some(Identity(device, inode)) = file {
        FILE[0].store(device, Ordering::Relaxed);
        FILE[1].store(inode, Ordering::Relaxed);
    }
    WHICH.store(if file.is_some() { KNOWN } else { NONE }, Ordering::Release);
}

/// Has messages that cannot be written counted in `counter`.
pub fn count_in(counter: &'static AtomicU64) {
    UNSAID.store(core::ptr::from_ref(counter).cast_mut(), Ordering::Release);
}

/// Writes a message to standard error, if that still is the known file.
pub fn say(message: &[u8]) {
    if write(message).is_err() {
        // SAFETY: null, or from a reference that lives as long as the process.
        if let Some(unsaid) = unsafe { UNSAID.load(Ordering::Acquire).as_ref() } {
            unsaid.fetch_add(1, Ordering::Relaxed);
        }
    }
}

fn write(message: &[u8]) -> Result<(), Errno> {
    match WHICH.load(Ordering::Acquire) {
        ANY => write_all(STDERR, message),
        KNOWN => {
            // A duplicate: between the look and the write the program may put another file at descriptor 2.
            // SAFETY: descriptors are numbers.
            let fd = unsafe { call(g::__NR_fcntl, [STDERR as u64, g::F_DUPFD_CLOEXEC as u64, 3, 0, 0, 0]) }? as i32;
            let known = Identity(FILE[0].load(Ordering::Relaxed), FILE[1].load(Ordering::Relaxed));
            let is_known = identity_of(fd) == Ok(known);
            if is_known {
                write_all(fd, message);
            }
            close(fd);
            if !is_known {
                return Err(Errno::BADF);
            }
        }
        _ => return Err(Errno::BADF),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    static COUNTER: AtomicU64 = AtomicU64::new(0);

    #[test]
    fn what_is_not_standard_error_is_not_written_to() {
        count_in(&COUNTER);
        know(None);
        say(b"nowhere");
        assert_eq!(COUNTER.load(Ordering::Relaxed), 1);
        // A file that is not at descriptor 2.
        know(Some(Identity(0, 0)));
        say(b"not there");
        assert_eq!(COUNTER.load(Ordering::Relaxed), 2);
        know(identity_of(STDERR).ok());
        say(b"");
        assert_eq!(COUNTER.load(Ordering::Relaxed), 2);
    }
}
