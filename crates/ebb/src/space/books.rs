//! How a process knows which pages of its books are its own. `pages::books` uses it.

use crate::base::uapi;
use crate::device::file::keep_away;
use core::sync::atomic::Ordering::{Relaxed, Release};
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64};

/// In place of the map's descriptor: the map is not open. The process has not forked yet, or it has closed the map.
pub(crate) const UNKNOWN: i32 = -1;
/// In place of the map's descriptor: the map cannot be opened, or does not tell.
pub(crate) const REFUSED: i32 = -2;

/// How a process knows which pages of its books are its own.
pub struct Books {
    /// The descriptor of `/proc/self/pagemap`, or [`UNKNOWN`], or [`REFUSED`].
    pub(crate) map: AtomicI32,
    /// The file's identity: device and inode.
    pub(crate) file: [AtomicU64; 2],
    /// When the process last looked, as `clock::stamp` gives it.
    pub(crate) looked: AtomicU32,
    /// Somebody has used the books since.
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

    /// The map's descriptor, or -1.
    pub(crate) fn fd(&self) -> i32 {
        self.map.load(Relaxed).max(-1)
    }

    /// Gives the map another descriptor, because the program wants this number. If no number is free, the process can
    /// no longer tell which pages are its own.
    pub(crate) fn keep_away(&self) {
        self.set_fd(keep_away(self.fd()).unwrap_or(REFUSED));
    }

    /// Sets the map's descriptor.
    pub(crate) fn set_fd(&self, fd: i32) {
        self.map.store(fd, Relaxed);
    }

    /// Notes that the map is open as `fd`. The file's identity comes first: a fork's child closes the descriptor only
    /// if it still is that file.
    pub(crate) fn has(&self, fd: i32) {
        let file = uapi::fd::identity_of(fd).map_or([0, 0], uapi::fd::Identity::to_raw);
        self.file.iter().zip(file).for_each(|(to, word)| to.store(word, Relaxed));
        self.map.store(fd, Release);
    }

    /// True when the descriptor still is that file. In a process that only shares this one's memory, the number may be
    /// any file's.
    pub(crate) fn is_file(&self) -> bool {
        let file = uapi::fd::identity_of(self.fd()).map(uapi::fd::Identity::to_raw);
        file == Ok([0, 1].map(|i| self.file[i].load(Relaxed)))
    }
}
