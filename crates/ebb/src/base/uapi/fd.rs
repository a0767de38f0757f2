//! Ebb's own descriptors, in a table that the program uses too.
//!
//! The kernel gives a new descriptor the lowest free number. There the program may put or close a file of its own at
//! any moment (`dup2`, `closefrom`). While only one thread runs, it is enough to move the descriptor up at once
//! ([`raise`]). Beside a running program, numbers change hands inside [`change`]. Calls of the program that close or
//! replace a number wait meanwhile ([`wait_unchanged`]), and calls that had begun before get time to end. A thread of
//! the program can be held up for longer between its look and its call. So [`place`] also asks whether a number still
//! is the file that was opened, and closes nothing else.
//!
//! Where the hard limit is above the soft limit, and the soft limit is at most `TABLE_MAX`, Ebb's numbers begin at the
//! soft limit ([`lowest`]), which the program never reaches. They then take nothing from what the program may open, and
//! a table that the program has filled still has room for Ebb.

use super::{Errno, call, close, futex_wait, futex_wake, with_own_memory};
use core::ffi::CStr;
use core::sync::atomic::{AtomicU32, Ordering};
use linux_raw_sys::general as g;

/// Which file: device and inode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Identity(pub u64, pub u64);

impl Identity {
    /// Device and inode as two words.
    pub fn to_raw(self) -> [u64; 2] {
        [self.0, self.1]
    }
}

fn identity(stat: &[u64; 18]) -> Identity {
    Identity(stat[0], stat[1])
}

/// Says which file is behind a descriptor.
pub fn identity_of(fd: i32) -> Result<Identity, Errno> {
    let mut stat = [0u64; 18];
    // SAFETY: the kernel writes one `struct stat`, 144 bytes.
    unsafe { call(g::__NR_fstat, [fd as u64, stat.as_mut_ptr() as u64, 0, 0, 0, 0]) }?;
    Ok(identity(&stat))
}

/// Length in bytes of the file behind a descriptor.
pub fn bytes(fd: i32) -> Result<u64, Errno> {
    const ST_SIZE_AT: usize = 6;
    let mut stat = [0u64; 18];
    // SAFETY: the kernel writes one `struct stat`, 144 bytes.
    unsafe { call(g::__NR_fstat, [fd as u64, stat.as_mut_ptr() as u64, 0, 0, 0, 0]) }?;
    Ok(stat[ST_SIZE_AT])
}

/// What kind of file is behind a descriptor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A character device.
    Character {
        /// The device's major number, as `major` of libc gives it.
        major: u32,
        /// The device's minor number, as `minor` of libc gives it.
        minor: u32,
    },
    /// A file without a type. The kernel hands out such files, which have no name in any file system.
    Nameless,
    /// Any other kind.
    Other,
}

/// Says what kind of file is behind a descriptor. May be called on the program's stack; see [`with_own_memory`].
pub fn kind_of(fd: i32) -> Result<Kind, Errno> {
    const ST_MODE_AT: usize = 3;
    const ST_RDEV_AT: usize = 5;
    let mut stat = [[0u8; 8]; 18];
    // SAFETY: the kernel writes one `struct stat`, 144 bytes.
    let fstat = |stat: &mut [u8]| unsafe { call(g::__NR_fstat, [fd as u64, stat.as_mut_ptr() as u64, 0, 0, 0, 0]) };
    with_own_memory(stat.as_flattened_mut(), fstat)?;
    let word = |at: usize| u64::from_ne_bytes(stat[at]);
    let device = word(ST_RDEV_AT);
    Ok(match word(ST_MODE_AT) as u32 & g::S_IFMT {
        g::S_IFCHR => Kind::Character {
            major: (device >> 8 & 0xfff) as u32 | (device >> 32 & !0xfff) as u32,
            minor: (device & 0xff | device >> 12 & !0xff) as u32,
        },
        0 => Kind::Nameless,
        _ => Kind::Other,
    })
}

/// Finds the first data at or after offset `at` of the file behind a descriptor; none when no data follows.
pub fn next_data(fd: i32, at: u64) -> Result<Option<u64>, Errno> {
    match seek(fd, at, g::SEEK_DATA) {
        Err(Errno::NXIO) => Ok(None),
        found => found.map(Some),
    }
}

/// Finds the first hole at or after offset `at` of the file behind a descriptor.
pub fn next_hole(fd: i32, at: u64) -> Result<u64, Errno> {
    seek(fd, at, g::SEEK_HOLE)
}

/// Moves the descriptor's file position, which nobody uses to read Ebb's files.
fn seek(fd: i32, at: u64, whence: u32) -> Result<u64, Errno> {
    // SAFETY: numbers only.
    unsafe { call(g::__NR_lseek, [fd as u64, at, whence as u64, 0, 0, 0]) }
}

/// Says which file has the name `path`. Follows no symbolic link at its end.
pub fn identity_of_path(path: &CStr) -> Result<Identity, Errno> {
    let mut stat = [0u64; 18];
    // SAFETY: the path is NUL-terminated and only read; the kernel writes one `struct stat`, 144 bytes.
    unsafe { call(g::__NR_lstat, [path.as_ptr() as u64, stat.as_mut_ptr() as u64, 0, 0, 0, 0]) }?;
    Ok(identity(&stat))
}

/// Highest soft limit at which Ebb's numbers begin: the kernel's table is as long as its highest number.
const TABLE_MAX: u64 = 4096;
/// Numbers that Ebb takes below a soft limit that it cannot pass.
const OWN_MAX: u64 = 40;

/// Whether the program can have a descriptor with this number. The kernel answers EBADF to a call that asks for any other.
pub fn is_below_limit(fd: i32) -> bool {
    u64::try_from(fd).is_ok_and(|fd| fd < super::limit(g::RLIMIT_NOFILE, u64::MAX).rlim_cur)
}

/// The lowest number for Ebb's descriptors.
pub fn lowest() -> i32 {
    let limit = super::limit(g::RLIMIT_NOFILE, 1024);
    let is_beyond = limit.rlim_cur < limit.rlim_max && limit.rlim_cur <= TABLE_MAX;
    if is_beyond { limit.rlim_cur as i32 } else { limit.rlim_cur.min(1024).saturating_sub(OWN_MAX) as i32 }
}

/// Moves `fd` to the first free number from [`lowest`] on, or to another where none is free there; close-on-exec. On
/// failure `fd` stays what it was.
pub fn raise(fd: i32) -> Result<i32, Errno> {
    let new = duplicate(fd)?;
    close(fd);
    Ok(new)
}

/// Duplicates `fd` to a number from [`lowest`] on, or to another where none is free there; close-on-exec.
pub fn duplicate(fd: i32) -> Result<i32, Errno> {
    let from = |lowest: i32| {
        // SAFETY: descriptors are numbers; this one is the caller's own.
        unsafe { call(g::__NR_fcntl, [fd as u64, g::F_DUPFD_CLOEXEC as u64, lowest as u64, 0, 0, 0]) }
    };
    let lowest = lowest();
    super::with_hard_limit(g::RLIMIT_NOFILE, || from(lowest).or_else(|_| from(3))).map(|fd| fd as i32)
}

/// Runs `open`. If it finds no free number, runs it again with the soft limit raised to the hard limit.
pub fn beyond_limit<T>(mut open: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    match open() {
        Err(Errno::MFILE) => super::with_hard_limit(g::RLIMIT_NOFILE, open),
        result => result,
    }
}

/// Whether `n` more descriptors, at most 8, can be opened as [`beyond_limit`] opens them.
pub fn has_room(n: usize) -> bool {
    let mut spare = [-1; 8];
    let n = n.min(spare.len());
    // SAFETY: creates a descriptor, touches no memory.
    let first = beyond_limit(|| unsafe { call(g::__NR_eventfd2, [0, g::O_CLOEXEC as u64, 0, 0, 0, 0]) });
    let Ok(first) = first else { return false };
    spare[0] = first as i32;
    let has_all = (1..n).all(|i| match duplicate(first as i32) {
        Ok(fd) => {
            spare[i] = fd;
            true
        }
        Err(_) => false,
    });
    spare.into_iter().filter(|fd| *fd >= 0).for_each(close);
    has_all
}

/// Whether fork's child can close its descriptor `fd` and open another, as [`beyond_limit`] does.
pub fn is_replaceable(fd: i32) -> bool {
    let limit = super::limit(g::RLIMIT_NOFILE, 1024);
    if (fd as u64) < limit.rlim_max {
        return true;
    }
    // SAFETY: descriptors are numbers; this one is the caller's own.
    match unsafe { call(g::__NR_fcntl, [fd as u64, g::F_DUPFD_CLOEXEC as u64, 0, 0, 0, 0]) } {
        Ok(spare) => {
            close(spare as i32);
            true
        }
        Err(_) => false,
    }
}

/// 1 while Ebb changes numbers.
static CHANGING: AtomicU32 = AtomicU32::new(0);
/// How long a call of the program may take from its look at [`wait_unchanged`] to its end.
const GRACE_NS: u64 = 5_000_000;
/// How long a waiter sleeps at a time.
const STEP_NS: u64 = 1_000_000;

/// Waits while Ebb changes numbers. Must precede each call of the program that closes or replaces a number.
#[inline(always)]
pub fn wait_unchanged() {
    while CHANGING.load(Ordering::Acquire) != 0 {
        futex_wait(&CHANGING, 1, Some(STEP_NS));
    }
}

/// Runs `f`, which changes numbers, while nobody else changes any. Not with the gate closed: `f` may close the gate.
pub fn change<R>(f: impl FnOnce() -> R) -> R {
    exclude(|| {
        futex_wait(&AtomicU32::new(0), 0, Some(GRACE_NS));
        f()
    })
}

/// As [`change`], but gives other calls no time to end. For a call of the program that has just looked itself.
pub fn exclude<R>(f: impl FnOnce() -> R) -> R {
    while CHANGING.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_err() {
        wait_unchanged();
    }
    let result = f();
    CHANGING.store(0, Ordering::Release);
    futex_wake(&CHANGING, i32::MAX as u32);
    result
}

/// For fork's child, where nobody goes on with a change that was under way.
pub fn reset_in_child() {
    CHANGING.store(0, Ordering::Relaxed);
}

/// Moves `fd` to the first free number at or above `lowest`, close-on-exec. Must run inside [`change`].
///
/// `publish` is told the new number at once, so that the program is kept away from it, and then -1 if the file is not
/// there. `is_ours` says whether a number is the file that was opened. On failure `fd` is closed too, if it is still ours.
pub fn place(fd: i32, lowest: i32, publish: impl Fn(i32), is_ours: impl Fn(i32) -> bool) -> Result<i32, Errno> {
    let duplicate = || {
        // SAFETY: descriptors are numbers; at worst this duplicates a file of the program's.
        unsafe { call(g::__NR_fcntl, [fd as u64, g::F_DUPFD_CLOEXEC as u64, lowest as u64, 0, 0, 0]) }
    };
    let new = super::with_hard_limit(g::RLIMIT_NOFILE, duplicate);
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
    // If `fd` is no longer ours, it is a file of the program's, or a file of Ebb's that made room for one. It stays open.
    if is_ours(fd) {
        close(fd);
    }
    if !placed {
        publish(-1);
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
