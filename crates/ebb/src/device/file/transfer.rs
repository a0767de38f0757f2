//! Content on its way between memory and a file, past the kernel's page cache.
//!
//! A page that the cache keeps is RAM that nobody has allowed, so the file is opened for direct I/O. A file system may
//! refuse that at the start, or at the first transfer (if its blocks are larger than a slot). It may also accept direct
//! I/O and use the cache all the same (as ext4 does when it journals data). In these cases Ebb waits until each write
//! is on the disk, and drops each transfer from the cache. The cache then holds at most one transfer for each thread at
//! work.

use super::{SLOT_BYTES, SpillFile};
use crate::base::uapi::{self, Errno, cache};
use core::sync::atomic::Ordering;

impl SpillFile {
    /// Decides how the file's content comes and goes: past the page cache, if `may_be` allows that and the file system
    /// can do it. Call it before the file's first use.
    pub(super) fn begin_transfers(&self, may_be: bool) {
        cache::read_no_further(self.fd());
        if !may_be || cache::set_direct(self.fd(), true).is_err() {
            self.family.set_cached();
        }
    }

    /// Writes neighbouring slots, from slot `first` on. `data` is page-aligned.
    pub(super) fn transfer_out(&self, first: u32, data: &[u8]) -> Result<(), Errno> {
        debug_assert!(data.as_ptr().addr().is_multiple_of(SLOT_BYTES) && data.len().is_multiple_of(SLOT_BYTES));
        let (at, len) = (u64::from(first) * SLOT_BYTES as u64, data.len() as u64);
        let write = || uapi::unsignalled(|| uapi::pwrite_all(self.fd(), data, at));
        let mut written = write();
        if written == Err(Errno::INVAL) && self.give_up_direct() {
            written = write();
        }
        let mut is_cached = self.family.is_cached();
        if written == Err(Errno::FBIG) {
            // The program's RLIMIT_FSIZE refused the write. That limit is meant for the program's own files.
            written = uapi::write_mapped(self.fd(), data, at);
            is_cached = true;
        } else if written.is_ok() && !is_cached && !self.is_proved.swap(true, Ordering::Relaxed) {
            // What the file system does with the first write it does with all.
            is_cached = cache::cached_pages(self.fd(), at, len).is_some_and(|pages| pages > 0);
            if is_cached {
                self.family.set_cached();
            }
        }
        written?;
        if is_cached {
            cache::write_out(self.fd(), at, len)?;
            cache::drop_behind(self.fd(), at, len);
        }
        Ok(())
    }

    /// Reads neighbouring slots, from slot `first` on. `out` is page-aligned.
    pub(super) fn transfer_in(&self, first: u32, out: &mut [u8]) -> Result<(), Errno> {
        debug_assert!(out.as_ptr().addr().is_multiple_of(SLOT_BYTES) && out.len().is_multiple_of(SLOT_BYTES));
        let at = u64::from(first) * SLOT_BYTES as u64;
        let mut read = uapi::pread_exact(self.fd(), out, at);
        if read == Err(Errno::INVAL) && self.give_up_direct() {
            read = uapi::pread_exact(self.fd(), out, at);
        }
        if self.family.is_cached() {
            cache::drop_behind(self.fd(), at, out.len() as u64);
        }
        read
    }

    /// Gives up direct I/O, because the file system does not take it for slots. False when direct I/O was off already.
    fn give_up_direct(&self) -> bool {
        let was_direct = !self.family.is_cached();
        // The whole family shares one open file description, and so this flag.
        let _ = cache::set_direct(self.fd(), false);
        self.family.set_cached();
        was_direct
    }
}
