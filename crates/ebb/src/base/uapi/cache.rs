//! Keeps a file's content out of the kernel's page cache, or drops it from there: cached pages are RAM outside the budget.

use super::{Errno, call};
use linux_raw_sys::general as g;

/// Has reads and writes bypass the page cache, or not. `INVAL` where the file system cannot do that.
pub fn set_direct(fd: i32, is_direct: bool) -> Result<(), Errno> {
    let flags = if is_direct { g::O_DIRECT } else { 0 };
    // SAFETY: only the engine's own file is changed.
    unsafe { call(g::__NR_fcntl, [fd as u64, g::F_SETFL as u64, u64::from(flags), 0, 0, 0]) }.map(drop)
}

/// Has the kernel read no more than is asked for, where it reads into the page cache.
pub fn read_no_further(fd: i32) {
    // SAFETY: advice about the engine's own file.
    let _ = unsafe { call(g::__NR_fadvise64, [fd as u64, 0, 0, u64::from(g::POSIX_FADV_RANDOM), 0, 0]) };
}

/// Writes a range of the page cache to the file, and waits for that. An error when some of it could not be written.
pub fn write_out(fd: i32, offset: u64, len: u64) -> Result<(), Errno> {
    let flags = u64::from(g::SYNC_FILE_RANGE_WRITE_AND_WAIT);
    // SAFETY: only the engine's own file is written.
    unsafe { call(g::__NR_sync_file_range, [fd as u64, offset, len, flags, 0, 0]) }.map(drop)
}

/// Drops a range of the file from the page cache, as far as it is written to the file.
pub fn drop_behind(fd: i32, offset: u64, len: u64) {
    // SAFETY: advice about the engine's own file.
    let _ = unsafe { call(g::__NR_fadvise64, [fd as u64, offset, len, u64::from(g::POSIX_FADV_DONTNEED), 0, 0]) };
}

/// Whether a file's content is in memory: it has no other place, and nobody writes it anywhere.
pub fn is_in_memory(fd: i32) -> bool {
    const TMPFS_MAGIC: u64 = 0x0102_1994;
    const RAMFS_MAGIC: u64 = 0x8584_58f6;
    let mut found = [0u64; size_of::<g::statfs64>().div_ceil(8)];
    // SAFETY: the kernel writes one structure.
    let asked = unsafe { call(g::__NR_fstatfs, [fd as u64, found.as_mut_ptr().addr() as u64, 0, 0, 0, 0]) };
    // The type comes first.
    asked.is_ok() && matches!(found[0], TMPFS_MAGIC | RAMFS_MAGIC)
}

/// Number of pages of a range that the page cache has; none where the kernel does not say (before Linux 6.5).
pub fn cached_pages(fd: i32, offset: u64, len: u64) -> Option<u64> {
    let range = g::cachestat_range { off: offset, len };
    let mut found = g::cachestat { nr_cache: 0, nr_dirty: 0, nr_writeback: 0, nr_evicted: 0, nr_recently_evicted: 0 };
    let (range, at) = (&raw const range as u64, &raw mut found as u64);
    // SAFETY: the kernel reads the one structure and writes the other.
    unsafe { call(g::__NR_cachestat, [fd as u64, range, at, 0, 0, 0]) }.ok().map(|_| found.nr_cache)
}
