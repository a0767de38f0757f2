//! The counters that the processes of a tree share, as mapped by this process.

use std::fs::{File, OpenOptions};
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::ptr::NonNull;
use std::sync::atomic::Ordering::Relaxed;

use ebb::stats::{MAGIC, Shared};
use ebb::tree::{self, Page};

use crate::base::sys;
use crate::base::text::printable;

pub const PAGE_BYTES: u64 = 4096;

/// The counters of one tree.
pub struct Counters {
    /// Never closed. Closing any descriptor of the file would release this process's record locks on it. If this
    /// process is itself one of the tree's, it would lose its place there.
    file: ManuallyDrop<File>,
    shared: NonNull<Shared>,
}

// SAFETY: the area is made of atomics, mapped for good, and may be used by any thread.
unsafe impl Send for Counters {}
// SAFETY: as above.
unsafe impl Sync for Counters {}

impl Counters {
    /// Creates the file, all zero except for its magic number.
    pub fn create() -> std::io::Result<Self> {
        let file = sys::memory_file(c"ebb-stats", tree::FILE_BYTES, Shared::MAP_BYTES as u64)?;
        let counters = Self::map(file, libc::PROT_READ | libc::PROT_WRITE)?;
        counters.page().magic.store(MAGIC, Relaxed);
        Ok(counters)
    }

    /// Opens the counters of a running program for reading.
    pub fn open(path: &Path) -> std::io::Result<Self> {
        Self::open_as(opened(File::options().read(true), path)?, libc::PROT_READ)
    }

    /// Opens the counters of a running program for reading and writing.
    pub fn open_writable(path: &Path) -> std::io::Result<Self> {
        let file = opened(File::options().read(true).write(true), path)?;
        Self::open_as(file, libc::PROT_READ | libc::PROT_WRITE)
    }

    fn open_as(file: File, protection: i32) -> std::io::Result<Self> {
        let foreign = || std::io::Error::other("its counters come from another version of Ebb");
        // Any process may have a file of that name, and truncate it while this process reads it.
        if !sys::keeps_its_length(&file) {
            return Err(std::io::Error::other("its counters were not made by `ebb run`"));
        }
        let mut magic = [0; 8];
        file.read_exact_at(&mut magic, 0)?;
        if file.metadata()?.len() < Shared::MAP_BYTES as u64 || u64::from_le_bytes(magic) != MAGIC {
            return Err(foreign());
        }
        Self::map(file, protection)
    }

    /// Closes the file after all. For a caller that is not a process of the tree: as long as it has the file open, it
    /// seems to be one. It must not be used any more.
    pub(super) fn close(&mut self) {
        let at = self.shared.as_ptr().cast();
        // SAFETY: mapped by `map`, and no reference to it remains: the caller drops the counters, of which there is no alias.
        unsafe {
            libc::munmap(at, Shared::MAP_BYTES);
            ManuallyDrop::drop(&mut self.file);
        }
    }

    /// The same file and mapping once more, for counters that are never closed.
    pub(super) fn alias(&self) -> Self {
        // SAFETY: a copy of a number; neither copy is ever closed.
        let file = unsafe { File::from_raw_fd(self.file.as_raw_fd()) };
        Self { file: ManuallyDrop::new(file), shared: self.shared }
    }

    fn map(file: File, protection: i32) -> std::io::Result<Self> {
        // SAFETY: a fresh mapping of the whole file at an address of the kernel's choice.
        let at = unsafe {
            libc::mmap(std::ptr::null_mut(), Shared::MAP_BYTES, protection, libc::MAP_SHARED, file.as_raw_fd(), 0)
        };
        let shared = match NonNull::new(at.cast::<Shared>()) {
            Some(shared) if at != libc::MAP_FAILED => shared,
            _ => return Err(std::io::Error::last_os_error()),
        };
        Ok(Self { file: ManuallyDrop::new(file), shared })
    }

    /// The file, to be handed on.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Its descriptor.
    pub fn fd(&self) -> i32 {
        self.file.as_raw_fd()
    }

    /// The live counters.
    pub fn page(&self) -> &Shared {
        // SAFETY: mapped for good, large enough, page-aligned, and made of atomics only, for which zero bytes are
        // valid.
        unsafe { self.shared.as_ref() }
    }

    /// The budget of the tree, and what its members hold.
    pub fn tree(&self) -> &Page {
        &self.page().tree
    }

    /// Changes the budget of the tree to `bytes`, rounded down to whole pages.
    pub fn set_budget(&self, bytes: u64) {
        self.tree().set_limit(bytes / PAGE_BYTES);
        self.page().ram_limit_bytes.store(bytes, Relaxed);
    }

    /// The user's name for the tree. A process of the tree may have changed it.
    pub fn name(&self) -> Option<String> {
        let bytes = self.page().name_bytes();
        let text: Vec<u8> = bytes.into_iter().take_while(|byte| *byte != 0).collect();
        (!text.is_empty()).then(|| printable(&String::from_utf8_lossy(&text)))
    }

    /// The message of the first process that failed, without the leading `ebb: `.
    pub fn error(&self) -> Option<String> {
        let bytes = self.page().error_bytes();
        let text: Vec<u8> = bytes.into_iter().take_while(|byte| *byte != 0).collect();
        let text = String::from_utf8_lossy(&text);
        let text = text.trim();
        (!text.is_empty()).then(|| printable(text.strip_prefix("ebb: ").unwrap_or(text)))
    }
}

/// Opens a file that may be anything, made by somebody who wants to pass for a tree. Does not wait for it.
fn opened(options: &mut OpenOptions, path: &Path) -> std::io::Result<File> {
    options.custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn nobody_can_cut_the_area_off_or_open_it_anew_and_what_can_be_cut_off_is_no_area() {
        use std::os::fd::AsRawFd;
        use std::os::unix::fs::MetadataExt;
        let counters = Counters::create().unwrap();
        let path = |file: &File| format!("/proc/self/fd/{}", file.as_raw_fd());
        let meta = counters.file().metadata().unwrap();
        assert_eq!((meta.mode() & 0o7777, meta.len()), (0o600, tree::FILE_BYTES));
        for len in [0, 4096, tree::FILE_BYTES - 1, tree::FILE_BYTES + 1] {
            assert_eq!(counters.file().set_len(len).unwrap_err().raw_os_error(), Some(libc::EPERM));
        }
        assert!(Counters::open(Path::new(&path(counters.file()))).is_ok());
        // The same content, but without seals.
        let mut loose = tempfile::tempfile().unwrap();
        loose.write_all(&MAGIC.to_ne_bytes()).unwrap();
        loose.set_len(tree::FILE_BYTES).unwrap();
        let refused = Counters::open(Path::new(&path(&loose))).err().unwrap();
        assert_eq!(refused.to_string(), "its counters were not made by `ebb run`");
    }
}
