//! What the kernel says of a file.

use crate::entry;
use linux_raw_sys::general as g;

/// The answer to stat(2), as far as it matters.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stat {
    pub device: u64,
    pub inode: u64,
    pub mode: u32,
    pub user: u32,
    pub group: u32,
    pub bytes: u64,
}

pub const S_IFMT: u32 = 0o170_000;
pub const S_IFREG: u32 = 0o100_000;
pub const S_IFIFO: u32 = 0o010_000;
pub const S_IFSOCK: u32 = 0o140_000;

impl Stat {
    /// Of the file behind `fd`.
    pub fn of(fd: i32) -> Option<Self> {
        Self::by(g::__NR_fstat, fd as u64)
    }

    /// Of the file at `path`, which ends with a NUL.
    pub fn at(path: &[u8]) -> Option<Self> {
        Self::by(g::__NR_stat, path.as_ptr() as u64)
    }

    fn by(nr: u32, file: u64) -> Option<Self> {
        // One `struct stat`, 144 bytes.
        let mut stat = [0u64; 18];
        // SAFETY: the kernel reads the path, if it is one, and writes one structure.
        let ret = unsafe { entry::raw_syscall(nr as u64, &[file, stat.as_mut_ptr() as u64, 0, 0, 0, 0]) };
        let [device, inode, _, mode_and_user, group, _, bytes, ..] = stat;
        let (mode, user, group) = (mode_and_user as u32, (mode_and_user >> 32) as u32, group as u32);
        (ret == 0).then_some(Self { device, inode, mode, user, group, bytes })
    }

    /// What it is, of `S_IFMT`.
    pub fn kind(&self) -> u32 {
        self.mode & S_IFMT
    }
}
