//! How a process knows what it keeps books in. What it does with that is in `pages::books`.

use crate::base::uapi;
use crate::device::file::keep_away;
use core::sync::atomic::Ordering::{Relaxed, Release};
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64};

/// In place of the map's number: the process has not forked yet.
pub(crate) const UNKNOWN: i32 = -1;
/// The same where it cannot be had, or does not tell.
pub(crate) const REFUSED: i32 = -2;

/// How a process knows what it keeps books in.
pub struct Books {
    /// `/proc/self/pagemap`, or [`UNKNOWN`], or [`REFUSED`].
    pub(crate) map: AtomicI32,
    /// Which file that is.
    pub(crate) file: [AtomicU64; 2],
    /// When it last looked.
    pub(crate) looked: AtomicU32,
    /// Somebody has used them since.
    pub(crate) is_used: AtomicBool,
}

impl Books {
    pub(crate) const fn new() -> Self {
        Self {
            map: AtomicI32::new(UNKNOWN),
            file: [const { AtomicU64::new(0) }; 2],
            looked: AtomicU32::new(0),
            is_used: AtomicBool::new(false),
        }
    }

    /// The descriptor that it has, or -1.
    pub(crate) fn fd(&self) -> i32 {
        self.map.load(Relaxed).max(-1)
    }

    /// Gives the descriptor another number, because the program wants this one; without one it knows no more.
    pub(crate) fn keep_away(&self) {
        self.set_fd(keep_away(self.fd()).unwrap_or(REFUSED));
    }

    /// The descriptor has this number now.
    pub(crate) fn set_fd(&self, fd: i32) {
        self.map.store(fd, Relaxed);
    }

    /// It has this one. Which file that is comes first: a fork's child closes what it knows.
    pub(crate) fn has(&self, fd: i32) {
        let file = uapi::fd::identity_of(fd).map_or([0, 0], uapi::fd::Identity::to_raw);
        self.file.iter().zip(file).for_each(|(to, word)| to.store(word, Relaxed));
        self.map.store(fd, Release);
    }

    /// True when the number still is that file. In a process that only shared the memory of this one it may be any.
    pub(crate) fn is_file(&self) -> bool {
        let file = uapi::fd::identity_of(self.fd()).map(uapi::fd::Identity::to_raw);
        file == Ok([0, 1].map(|i| self.file[i].load(Relaxed)))
    }
}
