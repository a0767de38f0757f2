//! Descriptors of Ebb's own in a table that the program uses too.
//!
//! A new descriptor comes with the lowest free number, where a program may put or close its own at any moment
//! (`dup2`, `closefrom`). While one thread runs, moving it up at once is enough ([`super::raise_fd`]). Beside a running
//! program, [`place`] asks at each step whether the number still is the file that was opened, and closes nothing
//! that is not.

use super::{Errno, call, close};
use core::ffi::CStr;
use linux_raw_sys::general as g;

/// Device and inode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Identity(u64, u64);

fn identity(stat: &[u64; 18]) -> Identity {
    Identity(stat[0], stat[1])
}

/// Which file is behind a descriptor.
pub fn identity_of(fd: i32) -> Result<Identity, Errno> {
    let mut stat = [0u64; 18];
    // SAFETY: the kernel writes one `struct stat`, 144 bytes.
    unsafe { call(g::__NR_fstat, [fd as u64, stat.as_mut_ptr() as u64, 0, 0, 0, 0]) }?;
    Ok(identity(&stat))
}

/// Which file has a name.
pub fn identity_of_path(path: &CStr) -> Result<Identity, Errno> {
    let mut stat = [0u64; 18];
    // SAFETY: the path is NUL-terminated and only read; the kernel writes one `struct stat`, 144 bytes.
    unsafe { call(g::__NR_lstat, [path.as_ptr() as u64, stat.as_mut_ptr() as u64, 0, 0, 0, 0]) }?;
    Ok(identity(&stat))
}

/// Moves `fd` to the first free number at or above `lowest`, close-on-exec, beside a program that may close or replace
/// any number it does not know to be taken. `publish` is told the new number at once, so that the program is kept away
/// from it, and -1 if that comes to nothing. `is_ours` says whether a number is the file that was opened.
pub fn place(fd: i32, lowest: i32, publish: impl Fn(i32), is_ours: impl Fn(i32) -> bool) -> Result<i32, Errno> {
    // SAFETY: descriptors are numbers; at worst this duplicates a file of the program's.
    let new = unsafe { call(g::__NR_fcntl, [fd as u64, g::F_DUPFD_CLOEXEC as u64, lowest as u64, 0, 0, 0]) };
    let new = match new {
        Ok(new) => new as i32,
        Err(e) => {
            if is_ours(fd) {
                close(fd);
            }
            return Err(e);
        }
    };
    publish(new);
    let placed = is_ours(new);
    // What the program has put in the old place meanwhile is the program's.
    if is_ours(fd) {
        close(fd);
    }
    if !placed {
        publish(-1);
        close(new);
        return Err(Errno::BADF);
    }
    Ok(new)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::os::fd::IntoRawFd;

    fn open() -> (i32, Identity) {
        let fd = tempfile_in("/tmp");
        (fd, identity_of(fd).expect("it is open"))
    }

    fn tempfile_in(dir: &str) -> i32 {
        use std::os::unix::fs::OpenOptionsExt;
        let mut options = std::fs::OpenOptions::new();
        let file = options.read(true).write(true).custom_flags(g::O_TMPFILE as i32).open(dir).expect("a file");
        file.into_raw_fd()
    }

    #[test]
    fn what_is_ours_gets_the_new_number() {
        let (fd, id) = open();
        let published = Cell::new(0);
        let new = place(fd, 700, |n| published.set(n), |n| identity_of(n) == Ok(id)).expect("it moves");
        assert!(new >= 700 && published.get() == new);
        assert_eq!(identity_of(new), Ok(id));
        assert_ne!(identity_of(fd), Ok(id));
        close(new);
    }

    #[test]
    fn a_file_that_took_the_number_stays_open_and_in_its_place() {
        let (fd, id) = open();
        let (other, other_id) = open();
        // SAFETY: both are this test's own.
        unsafe { call(g::__NR_dup2, [other as u64, fd as u64, 0, 0, 0, 0]) }.expect("it replaces");
        let published = Cell::new(0);
        assert_eq!(place(fd, 700, |n| published.set(n), |n| identity_of(n) == Ok(id)), Err(Errno::BADF));
        assert_eq!(published.get(), -1);
        assert_eq!(identity_of(fd), Ok(other_id));
        close(fd);
        close(other);
    }

    #[test]
    fn a_number_that_was_closed_is_told() {
        let (fd, id) = open();
        close(fd);
        assert_eq!(place(fd, 700, |_| {}, |n| identity_of(n) == Ok(id)), Err(Errno::BADF));
    }
}
