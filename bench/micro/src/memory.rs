//! The memory under test: private anonymous pages, of the kernel's or of a space in this process.

use crate::content::{Contents, PAGE_BYTES, Words};
use crate::in_process;
use crate::options::Options;
use ebb::Space;
use std::ops::Range;

/// Pages that threads share. Callers see to it that a page is written by one thread only.
pub struct Memory {
    at: *mut u64,
    pages: usize,
    space: Option<&'static Space>,
}

// SAFETY: the mapping lives as long as the process; access to it is the callers' business, as said above.
unsafe impl Sync for Memory {}
// SAFETY: as above.
unsafe impl Send for Memory {}

const WORDS: usize = PAGE_BYTES / 8;
const PROTECTION: i32 = libc::PROT_READ | libc::PROT_WRITE;
const FLAGS: i32 = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;

impl Memory {
    pub fn map(options: &Options) -> Self {
        let bytes = options.pages * PAGE_BYTES;
        let space = options.in_process.as_ref().map(in_process::create);
        let at = match space {
            Some(space) => {
                let args = [0, bytes as u64, PROTECTION as u64, FLAGS as u64, u64::MAX, 0];
                space.mmap(in_process::ctx(space), args) as *mut u64
            }
            // SAFETY: a fresh mapping at an address of the kernel's choice.
            None => unsafe { libc::mmap(std::ptr::null_mut(), bytes, PROTECTION, FLAGS, -1, 0) }.cast(),
        };
        assert!(at as isize > 0, "mmap of {bytes} bytes: {}", at as isize);
        Self { at, pages: options.pages, space }
    }

    pub fn space(&self) -> Option<&'static Space> {
        self.space
    }

    /// To be called first in every thread that uses the memory.
    pub fn enter_thread(&self) {
        if let Some(space) = self.space {
            in_process::ctx(space);
        }
    }

    /// To be called last in such a thread.
    pub fn leave_thread(&self) {
        if let Some(space) = self.space {
            space.detach_thread(in_process::ctx(space));
        }
    }

    fn page(&self, page: usize) -> *mut u64 {
        assert!(page < self.pages);
        // SAFETY: within the mapping.
        unsafe { self.at.add(page * WORDS) }
    }

    /// Fills a page with its first content.
    pub fn fill(&self, contents: &Contents, page: usize) {
        // SAFETY: a page of the mapping, which only this thread fills.
        contents.fill(page, unsafe { &mut *self.page(page).cast::<Words>() });
    }

    /// Reads a page's first two words.
    #[inline]
    pub fn read(&self, page: usize) -> [u64; 2] {
        let at = self.page(page);
        // SAFETY: a page of the mapping; volatile, so that it is read now, and both words are.
        unsafe { [at.read_volatile(), at.add(1).read_volatile()] }
    }

    /// Writes a page's second word, and reads the first.
    #[inline]
    pub fn write(&self, page: usize, word: u64) -> u64 {
        let at = self.page(page);
        // SAFETY: a page of the mapping that only this thread writes; the write comes first, so that it is what faults.
        unsafe {
            at.add(1).write_volatile(word);
            at.read_volatile()
        }
    }

    /// Copies a page out.
    #[inline]
    pub fn copy_out(&self, page: usize, to: &mut Words) {
        // SAFETY: a page of the mapping that only this thread writes.
        unsafe { self.page(page).cast::<Words>().copy_to_nonoverlapping(to, 1) };
    }

    /// Copies a page in.
    #[inline]
    pub fn copy_in(&self, page: usize, from: &Words) {
        // SAFETY: a page of the mapping that only this thread uses.
        unsafe { self.page(page).cast::<Words>().copy_from_nonoverlapping(from, 1) };
    }

    /// A page's content, to be compared while nobody writes it.
    pub fn words(&self, page: usize) -> &Words {
        // SAFETY: a page of the mapping, which nobody writes meanwhile.
        unsafe { &*self.page(page).cast::<Words>() }
    }

    /// Gives pages back: they are zeros from now on.
    pub fn drop_pages(&self, pages: Range<usize>) {
        self.advise(pages, libc::MADV_DONTNEED);
    }

    /// Has pages swapped out, as far as there is room.
    pub fn page_out(&self, pages: Range<usize>) {
        self.advise(pages, libc::MADV_PAGEOUT);
    }

    /// Unmaps pages, which nobody touches any more.
    pub fn unmap(&self, pages: Range<usize>) {
        if pages.is_empty() {
            return;
        }
        let (at, bytes) = (self.page(pages.start), pages.len() * PAGE_BYTES);
        let result = match self.space {
            Some(space) => space.munmap(in_process::ctx(space), [at as u64, bytes as u64, 0, 0, 0, 0]),
            // SAFETY: pages of the mapping to which no reference is held, and which the caller gives up.
            None => unsafe { libc::munmap(at.cast(), bytes) as i64 },
        };
        assert_eq!(result, 0, "munmap");
    }

    fn advise(&self, pages: Range<usize>, advice: i32) {
        if pages.is_empty() {
            return;
        }
        let (at, bytes) = (self.page(pages.start), pages.len() * PAGE_BYTES);
        let result = match self.space {
            Some(space) => {
                let args = [at as u64, bytes as u64, advice as u64, 0, 0, 0];
                space.madvise(in_process::ctx(space), args)
            }
            // SAFETY: pages of the mapping to which no reference is held.
            None => unsafe { libc::madvise(at.cast(), bytes, advice) as i64 },
        };
        assert_eq!(result, 0, "madvise {advice}");
    }
}

/// Keeps the harness's own data resident, so that only the memory under test is measured. Best effort: a limit on
/// locked memory is no reason to fail.
pub fn keep<T>(data: &[T]) {
    // SAFETY: locking memory changes no content.
    let _ = unsafe { libc::mlock(data.as_ptr().cast(), size_of_val(data)) };
}
