//! Descriptors of Ebb's own in a table that the program uses too.
//!
//! A new descriptor comes with the lowest free number, where a program may put or close its own at any moment (`dup2`,
//! `closefrom`). While one thread runs, moving it up at once is enough ([`raise`]). Beside a running
//! program, numbers change hands inside [`change`]: calls of the program that close or replace a number wait
//! meanwhile ([`wait_unchanged`]), and those that had begun before have time to end. A program's thread can be held up
//! for longer between its look and its call; so [`place`] asks, too, whether a number still is the file that was
//! opened, and closes nothing that is not.
//!
//! Ebb's numbers begin at the soft limit ([`lowest`]), where the program never gets to, wherever the hard limit is higher:
//! so they take nothing away from what the program may open, and a table that the program has filled is not full to Ebb.

use super::{Errno, call, close, futex_wait, futex_wake, with_own_memory};
use core::ffi::CStr;
use core::sync::atomic::{AtomicU32, Ordering};
use linux_raw_sys::general as g;

/// Device and inode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Identity(pub u64, pub u64);

impl Identity {
    /// As two words.
    pub fn to_raw(self) -> [u64; 2] {
        [self.0, self.1]
    }
}

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

/// Bytes of the file behind a descriptor.
pub fn bytes(fd: i32) -> Result<u64, Errno> {
    const ST_SIZE_AT: usize = 6;
    let mut stat = [0u64; 18];
    // SAFETY: the kernel writes one `struct stat`, 144 bytes.
    unsafe { call(g::__NR_fstat, [fd as u64, stat.as_mut_ptr() as u64, 0, 0, 0, 0]) }?;
    Ok(stat[ST_SIZE_AT])
}

/// What kind of file a descriptor has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A character device.
    Character {
        /// The device's major number, as `major` of libc gives it.
        major: u32,
        /// The device's minor number, as `minor` of libc gives it.
        minor: u32,
    },
    /// One without a type, as the kernel hands out beside what has a name.
    Nameless,
    /// Any other.
    Other,
}

/// The kind of file behind a descriptor. Also on the program's stack; see [`with_own_memory`].
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

/// Where in the file behind a descriptor there is something, from `at` on; none when nothing follows.
pub fn next_data(fd: i32, at: u64) -> Result<Option<u64>, Errno> {
    match seek(fd, at, g::SEEK_DATA) {
        Err(Errno::NXIO) => Ok(None),
        found => found.map(Some),
    }
}

/// Where in the file behind a descriptor there is nothing, from `at` on.
pub fn next_hole(fd: i32, at: u64) -> Result<u64, Errno> {
    seek(fd, at, g::SEEK_HOLE)
}

/// Moves the place of the descriptor, by which nobody reads Ebb's files.
fn seek(fd: i32, at: u64, whence: u32) -> Result<u64, Errno> {
    // SAFETY: numbers only.
    unsafe { call(g::__NR_lseek, [fd as u64, at, whence as u64, 0, 0, 0]) }
}

/// Which file has a name.
pub fn identity_of_path(path: &CStr) -> Result<Identity, Errno> {
    let mut stat = [0u64; 18];
    // SAFETY: the path is NUL-terminated and only read; the kernel writes one `struct stat`, 144 bytes.
    unsafe { call(g::__NR_lstat, [path.as_ptr() as u64, stat.as_mut_ptr() as u64, 0, 0, 0, 0]) }?;
    Ok(identity(&stat))
}

/// Above this soft limit no number of Ebb's is: the kernel's table is as long as its highest number.
const TABLE_MAX: u64 = 4096;
/// Numbers that Ebb takes below a limit that it cannot pass.
const OWN_MAX: u64 = 40;

/// Whether the program can have a descriptor of this number: the kernel answers EBADF to who wants another one.
pub fn is_below_limit(fd: i32) -> bool {
    u64::try_from(fd).is_ok_and(|fd| fd < super::limit(g::RLIMIT_NOFILE, u64::MAX).rlim_cur)
}

/// Where numbers for Ebb's descriptors begin.
pub fn lowest() -> i32 {
    let limit = super::limit(g::RLIMIT_NOFILE, 1024);
    let is_beyond = limit.rlim_cur < limit.rlim_max && limit.rlim_cur <= TABLE_MAX;
    if is_beyond { limit.rlim_cur as i32 } else { limit.rlim_cur.min(1024).saturating_sub(OWN_MAX) as i32 }
}

/// Moves `fd` to the first free number from [`lowest`] on, or where there is none to another; close-on-exec. On failure
/// it is what it was.
pub fn raise(fd: i32) -> Result<i32, Errno> {
    let new = duplicate(fd)?;
    close(fd);
    Ok(new)
}

/// Another number for what is behind `fd`, from [`lowest`] on where one is free; close-on-exec.
pub fn duplicate(fd: i32) -> Result<i32, Errno> {
    let from = |lowest: i32| {
        // SAFETY: descriptors are numbers; this one is the caller's own.
        unsafe { call(g::__NR_fcntl, [fd as u64, g::F_DUPFD_CLOEXEC as u64, lowest as u64, 0, 0, 0]) }
    };
    let lowest = lowest();
    super::with_hard_limit(g::RLIMIT_NOFILE, || from(lowest).or_else(|_| from(3))).map(|fd| fd as i32)
}

/// Runs `open`, and where it finds no number again with the soft limit as high as the hard one.
pub fn beyond_limit<T>(mut open: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    match open() {
        Err(Errno::MFILE) => super::with_hard_limit(g::RLIMIT_NOFILE, open),
        result => result,
    }
}

/// Whether `n` descriptors more can be opened, as [`beyond_limit`] does. At most 8.
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

/// Whether a child of fork can give its descriptor `fd` up and open another, as [`beyond_limit`] does.
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
/// How long a call of the program's may take from its look at [`wait_unchanged`] to its end.
const GRACE_NS: u64 = 5_000_000;
/// How long who waits sleeps at a time.
const STEP_NS: u64 = 1_000_000;

/// Waits while Ebb changes numbers. Before each call of the program that closes or replaces one.
#[inline(always)]
pub fn wait_unchanged() {
    while CHANGING.load(Ordering::Acquire) != 0 {
        futex_wait(&CHANGING, 1, Some(STEP_NS));
    }
}

/// Runs `f`, which changes numbers, while nobody else does. Not with the gate closed: `f` may close it.
pub fn change<R>(f: impl FnOnce() -> R) -> R {
    exclude(|| {
        futex_wait(&AtomicU32::new(0), 0, Some(GRACE_NS));
        f()
    })
}

/// The same for a call of the program's that has just looked: others need not end first.
pub fn exclude<R>(f: impl FnOnce() -> R) -> R {
    while CHANGING.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_err() {
        wait_unchanged();
    }
    let result = f();
    CHANGING.store(0, Ordering::Release);
    futex_wake(&CHANGING, i32::MAX as u32);
    result
}

/// In fork's child, where nobody goes on with a change.
pub fn reset_in_child() {
    CHANGING.store(0, Ordering::Relaxed);
}

/// Moves `fd` to the first free number at or above `lowest`, close-on-exec. Inside [`change`]. `publish` is told the new number at once, so that the program is kept away
/// from it, and -1 if that comes to nothing. `is_ours` says whether a number is the file that was opened.
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
    // What the program has put in either place meanwhile is the program's, or a file of Ebb's that made room for it.
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
