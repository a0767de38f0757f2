//! Content on its way between memory and a file, past the kernel's page cache.
//!
//! A page that the cache keeps is RAM that nobody has allowed: so the file is opened for direct I/O. Where a file system refuses that, at
//! the start or at the first transfer (blocks larger than a slot), or accepts it and uses the cache all the same (ext4 that
//! journals data), each transfer is followed to the disk and dropped from the cache: no more than one for each thread at work is there.

use super::{SLOT_BYTES, SpillFile};
use crate::base::uapi::{self, Errno, cache};
use core::sync::atomic::Ordering;

impl SpillFile {
    /// Says how the file's content is to come and go: past the cache if that `may_be`. Before its first use.
    pub(super) fn begin_transfers(&self, may_be: bool) {
        cache::read_no_further(self.fd());
        if !may_be || cache::set_direct(self.fd(), true).is_err() {
            self.family.set_cached();
        }
    }

    /// Writes slots that lie one after the other, from slot `first` on, from memory that is page-aligned.
    pub(super) fn transfer_out(&self, first: u32, data: &[u8]) -> Result<(), Errno> {
        debug_assert!(data.as_ptr().addr().is_multiple_of(SLOT_BYTES) && data.len().is_multiple_of(SLOT_BYTES));
        let (at, len) = (u64::from(first) * SLOT_BYTES as u64, data.len() as u64);
        let write = || uapi::unsignalled(uapi::pwrite_all(self.fd(), data, at));
        let mut written = write();
        if written == Err(Errno::INVAL) && self.give_up_direct() {
            written = write();
        }
        let mut is_cached = self.family.is_cached();
        if written == Err(Errno::FBIG) {
            // The program's RLIMIT_FSIZE, which is about its own files.
            written = uapi::write_mapped(self.fd(), data, at);
            is_cached = true;
        } else if written.is_ok() && !is_cached && !self.is_proved.swap(true, Ordering::Relaxed) {
            // What the file system does with the first is what it does with all.
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

    /// Reads slots that lie one after the other, from slot `first` on, to memory that is page-aligned.
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

    /// The file system takes no direct I/O of slots. False when none was asked for.
    fn give_up_direct(&self) -> bool {
        let was_direct = !self.family.is_cached();
        // All processes of the family have the one file description.
        let _ = cache::set_direct(self.fd(), false);
        self.family.set_cached();
        was_direct
    }
}
