//! Which processes of a family are alive, by locks that the kernel releases.
//!
//! A *life* is what a process is from its fork to its exec or its death: as long as it has the memory that refers to
//! slots of its ancestors' files. Each life has a number that is never used again, and a lock on the byte of that
//! number in a nameless file in memory.
//!
//! The lock belongs to an open file description that only this process has (`F_OFD_SETLK`). A record lock would belong
//! to the process. So the lock can be there before the process is. The parent opens the description and locks the byte
//! before it forks, and closes its own descriptor afterwards. A child never lives without its lock, and a child that is
//! killed at birth leaves no lock behind. The lock ends with the last descriptor: at exec, by close-on-exec, and at
//! death, before the process becomes a zombie.
//!
//! A record lock would also end when the process closes any other descriptor of the file, which a program can do by way
//! of /proc. The tree of processes, which uses record locks, finds that out and takes its place again; slots would have
//! been given to others by then. Process numbers and namespaces play no part.
//!
//! By the same lock a parent knows that a child died before it took its place in the tree (`space::newborn`).
//!
//! A child for which no other description can be opened (no /proc, no free descriptor) has no life. What it inherits is
//! held for as long as the file exists.

use crate::base::uapi::fd::{Identity, identity_of};
use crate::base::uapi::{self, Errno, record_lock};
use crate::device::file::keep_away;
use crate::protocols::gate::Exclusive;
use core::ffi::CStr;
use core::sync::atomic::{AtomicI32, AtomicU64, Ordering};

/// No life.
pub const NONE: u64 = 0;
/// Room for the path to one of the process's own descriptors, in bytes.
const PATH_BYTES: usize = 48;

/// This process's life, and the life of a child that is being made.
pub struct Lives {
    /// Descriptor of the file, which keeps this life's lock; -1 for none.
    fd: AtomicI32,
    life: AtomicU64,
    /// The descriptor and the life of the child of a fork that is under way.
    child_fd: AtomicI32,
    child: AtomicU64,
    /// Which file it is; none if there is no file.
    identity: Option<Identity>,
    /// The number of the life begun last. The family shares it.
    next: *const AtomicU64,
}

// SAFETY: all of it is atomics, or never changes.
unsafe impl Sync for Lives {}

impl Lives {
    /// Begins the first life of a family. It stays for as long as the process. Only the calling thread may use the
    /// table of descriptors meanwhile.
    pub fn new() -> Result<&'static Self, Errno> {
        let next: *const AtomicU64 = uapi::reserve_shared(size_of::<AtomicU64>())?.cast();
        // SAFETY: fresh memory, which is never unmapped.
        let first = unsafe { &*next }.fetch_add(1, Ordering::Relaxed) + 1;
        let fd = uapi::fd::beyond_limit(|| uapi::memory_file(c"ebb-lives")).and_then(keep_away).ok();
        let fd = fd.filter(|fd| {
            let is_locked = record_lock::try_lock_description(*fd, first);
            if !is_locked {
                uapi::close(*fd);
            }
            is_locked
        });
        let at = uapi::reserve(size_of::<Self>())?.cast::<Self>();
        let this = Self {
            fd: AtomicI32::new(fd.unwrap_or(-1)),
            life: AtomicU64::new(first),
            child_fd: AtomicI32::new(-1),
            child: AtomicU64::new(NONE),
            identity: fd.and_then(|fd| identity_of(fd).ok()),
            next,
        };
        // SAFETY: fresh memory of a page, which is never unmapped.
        unsafe {
            at.write(this);
            Ok(&*at)
        }
    }

    /// The descriptors of the file, which the program must not close; -1 for none.
    pub fn fds(&self) -> [i32; 2] {
        [self.fd.load(Ordering::Relaxed), self.child_fd.load(Ordering::Relaxed)]
    }

    /// Moves descriptor `fd` to another number. False when it is not this life's descriptor, or no number is free.
    pub fn move_fd(&self, _exclusive: &Exclusive<'_>, fd: i32) -> bool {
        let moved = if fd >= 0 && self.fd.load(Ordering::Relaxed) == fd { uapi::fd::raise(fd).ok() } else { None };
        if let Some(new) = moved {
            self.fd.store(new, Ordering::Relaxed);
        }
        moved.is_some()
    }

    /// This process's life, or [`NONE`].
    pub fn life(&self) -> u64 {
        self.life.load(Ordering::Relaxed)
    }

    /// Whether `life` goes on. Also true when the kernel does not say.
    pub fn is_alive(&self, life: u64) -> bool {
        life == self.life() || record_lock::is_locked(self.fd.load(Ordering::Relaxed), life)
    }

    /// Before fork: begins the life of the child, and returns it, or [`NONE`].
    pub fn begin_child(&self, _exclusive: &Exclusive<'_>) -> u64 {
        // SAFETY: mapped for ever.
        let life = unsafe { &*self.next }.fetch_add(1, Ordering::Relaxed) + 1;
        let Ok(fd) = self.open_another() else { return NONE };
        self.child_fd.store(fd, Ordering::Relaxed);
        if !record_lock::try_lock_description(fd, life) {
            self.end_child();
            return NONE;
        }
        self.child.store(life, Ordering::Relaxed);
        life
    }

    /// The life of the child of a fork that is under way, or [`NONE`].
    pub fn child(&self) -> u64 {
        self.child.load(Ordering::Relaxed)
    }

    /// After fork, in the parent, also when the fork failed: gives up the child's descriptor.
    pub fn end_child(&self) {
        self.child.store(NONE, Ordering::Relaxed);
        let fd = self.child_fd.swap(-1, Ordering::Relaxed);
        if self.is_ours(fd) {
            uapi::close(fd);
        }
    }

    /// After fork, in the child: makes the child's life this process's own. False when the life is lost; the child must
    /// not go on then.
    pub fn become_child(&self) -> bool {
        let (life, fd) = (self.child.swap(NONE, Ordering::Relaxed), self.child_fd.swap(-1, Ordering::Relaxed));
        self.life.store(life, Ordering::Relaxed);
        if life != NONE && !self.is_ours(fd) {
            return false;
        }
        // The descriptor that is open from the parent would prolong the parent's life. It stays only where no other can
        // be had, to look at other lives.
        if let Some(own) = if life == NONE { self.open_another().ok() } else { Some(fd) } {
            let inherited = self.fd.swap(own, Ordering::Relaxed);
            if self.is_ours(inherited) {
                uapi::close(inherited);
            }
        }
        true
    }

    /// Whether descriptor `fd` is this file. A program that closes numbers that it does not know may have closed it.
    fn is_ours(&self, fd: i32) -> bool {
        fd >= 0 && self.identity.is_some() && identity_of(fd).ok() == self.identity
    }

    /// Opens another description of the file, which has no lock yet. For a moment it has the lowest free number. Other
    /// threads may open files meanwhile, as any library may, but they close only what they opened.
    fn open_another(&self) -> Result<i32, Errno> {
        let mut path = [0; PATH_BYTES];
        let path = own_path(self.fd.load(Ordering::Relaxed), &mut path).ok_or(Errno::BADF)?;
        let fd = uapi::fd::beyond_limit(|| uapi::open_read_write(path))?;
        if !self.is_ours(fd) {
            uapi::close(fd);
            return Err(Errno::BADF);
        }
        keep_away(fd)
    }
}

/// The path to descriptor `fd` of the calling thread, whose descriptor table need not be the process's.
fn own_path(fd: i32, out: &mut [u8; PATH_BYTES]) -> Option<&CStr> {
    let prefix = b"/proc/thread-self/fd/";
    let mut digits = u32::try_from(fd).ok()?;
    let nr_digits = digits.checked_ilog10().map_or(1, |n| n as usize + 1);
    out[..prefix.len()].copy_from_slice(prefix);
    for place in out[prefix.len()..prefix.len() + nr_digits].iter_mut().rev() {
        *place = b'0' + (digits % 10) as u8;
        digits /= 10;
    }
    CStr::from_bytes_until_nul(out).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocols::gate::tests::alone;

    #[test]
    fn the_path_names_the_descriptor() {
        for fd in [0, 7, 10, 984, 1_048_575] {
            let path = format!("/proc/thread-self/fd/{fd}");
            assert_eq!(own_path(fd, &mut [0; PATH_BYTES]).and_then(|path| path.to_str().ok()), Some(path.as_str()));
        }
        assert_eq!(own_path(-1, &mut [0; PATH_BYTES]), None);
    }

    #[test]
    fn a_childs_life_lasts_as_long_as_a_descriptor_of_it() {
        let lives = Lives::new().expect("there is memory");
        let mine = lives.life();
        let child = lives.begin_child(&alone());
        assert!(child != NONE && child != mine);
        assert!(lives.is_alive(child));
        // A copy of the descriptor, as fork would make one.
        // SAFETY: descriptors are numbers.
        let copy = unsafe { libc::dup(lives.fds()[1]) };
        lives.end_child();
        assert!(lives.is_alive(child));
        uapi::close(copy);
        assert!(!lives.is_alive(child));
        assert!(lives.is_alive(mine));
    }

    #[test]
    fn another_descriptor_of_the_file_can_be_closed() {
        let lives = Lives::new().expect("there is memory");
        let child = lives.begin_child(&alone());
        let mut path = [0; PATH_BYTES];
        let path = own_path(lives.fds()[1], &mut path).expect("it is open");
        uapi::close(uapi::open_read(path).expect("it opens again"));
        assert!(lives.is_alive(child));
        lives.end_child();
    }
}
