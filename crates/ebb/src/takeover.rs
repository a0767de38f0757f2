//! Taking over memory that is in use already: a process that begins to be managed when it has grown.
//!
//! The range is registered and its pages enter the books as the kernel has them: what is in the page table, or in the
//! kernel's own swap, is present; everything else has no content, and reads as zero. Nothing is moved, so nothing can be
//! lost; the charge may pass the budget for a moment, and the next first touch reclaims.
//!
//! The kernel's own page of zeros may be mapped where the program only read. It counts as a page like any other: MOVE and
//! COPY carry it, and a write replaces it without a fault of Ebb's.

use crate::clock;
use crate::device::SwapSpec;
use crate::groups::Index;
use crate::page::State;
use crate::region::Attr;
use crate::space::Space;
use crate::table::{PAGE, UNIT_BYTES, UNIT_PAGES};
use crate::uapi;
use core::sync::atomic::Ordering::Relaxed;
use linux_raw_sys::general as g;

/// Memory as the program has it before it is taken over.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Mapping {
    /// First byte, page aligned.
    pub start: usize,
    /// End, page aligned, exclusive.
    pub end: usize,
    /// Protection as mmap takes it.
    pub prot: u32,
    /// It has a protection key other than the default.
    pub keyed: bool,
    /// Fork's child does not have it.
    pub dontfork: bool,
    /// Fork's child has it empty.
    pub wipeonfork: bool,
    /// Core dumps leave it out.
    pub dontdump: bool,
    /// It has huge pages.
    pub has_huge: bool,
    /// A driver may have pinned some of it, and nobody can be asked: what is in memory stays there.
    pub kept: bool,
    /// The kernel may have merged its pages with equal ones (KSM).
    pub mergeable: bool,
}

/// `/proc/self/pagemap`: one word a page.
pub struct PageMap {
    fd: i32,
}

impl PageMap {
    /// None where there is no /proc.
    pub fn open() -> Option<Self> {
        uapi::open_read(c"/proc/self/pagemap").ok().map(|fd| Self { fd })
    }

    /// The words of the unit's pages from `start` to `end`; false when they cannot be had.
    fn read(&self, start: usize, end: usize, out: &mut [u8; UNIT_PAGES * 8]) -> bool {
        let bytes = (end - start) / PAGE * 8;
        uapi::pread_exact(self.fd, &mut out[..bytes], (start / PAGE * 8) as u64).is_ok()
    }
}

impl Drop for PageMap {
    fn drop(&mut self) {
        uapi::close(self.fd);
    }
}

/// The page is in the page table, or in the kernel's swap.
fn is_there(word: &[u8]) -> bool {
    const SWAPPED_OR_PRESENT: u8 = 0b1100_0000;
    word[7] & SWAPPED_OR_PRESENT != 0
}

impl Space {
    /// Manages private anonymous memory that the program uses already. False when that is not possible: it stays as it was.
    ///
    /// The calling thread must be the only one of the process.
    pub fn take_over(&self, map: &PageMap, mapping: &Mapping) -> bool {
        let &Mapping { start, end, .. } = mapping;
        let mut words = [0u8; UNIT_PAGES * 8];
        if start >= end || !map.read(start, start + PAGE, &mut words) {
            return false;
        }
        if mapping.mergeable && uapi::madvise(start, end - start, g::MADV_UNMERGEABLE).is_err() {
            return false;
        }
        if mapping.has_huge {
            split_huge(start, end);
        }
        let attr = Attr::from_prot(mapping.prot)
            .with_prot(mapping.prot, Some(mapping.keyed))
            .with_dontfork(mapping.dontfork)
            .with_wipeonfork(mapping.wipeonfork)
            .with_dontdump(mapping.dontdump);
        let attr = if mapping.kept { attr.with_kept() } else { attr };
        self.exclusive(|| {
            if !self.manage(start, end, attr, Index::ROOT) {
                return false;
            }
            let mut at = start;
            while at < end {
                let stop = (self.table.unit_start(at) + UNIT_BYTES).min(end);
                if !map.read(at, stop, &mut words) {
                    self.fatal(b"/proc/self/pagemap: it could be read a moment ago; please report it");
                }
                self.enter_pages(at, words[..(stop - at) / PAGE * 8].chunks_exact(8).map(is_there));
                at = stop;
            }
            true
        })
    }

    /// Enters the pages of one unit from `start` on into the books. Under the exclusive gate.
    fn enter_pages(&self, start: usize, are_there: impl Iterator<Item = bool>) {
        let mut present = 0;
        for (i, _) in are_there.enumerate().filter(|(_, is_there)| *is_there) {
            let Some(word) = self.table.word(start + i * PAGE) else { return };
            word.set_exclusive(State::PRESENT);
            present += 1;
        }
        if present > 0 {
            self.group.force_charge(present);
            self.count_content(start, present);
            self.count_present(start, present);
            if let Some(unit) = self.table.unit(start) {
                unit.touched.store(clock::stamp(), Relaxed);
                unit.lent.store(1, Relaxed);
            }
        }
    }

    /// Sets address space aside for a space that is made in a running process, which may know that places are empty where
    /// the kernel would put Ebb's memory. Before [`Space::create`]; too little does no harm.
    pub fn set_aside(ram_bytes: u64, swap: &[SwapSpec<'_>]) {
        /// Tables of the space, whatever its budget is.
        const FIXED_BYTES: usize = 12 << 30;
        /// Staging, pool, and slots for what they hold.
        const RAM_SHARE: usize = 8;
        let ram = usize::try_from(ram_bytes).unwrap_or(usize::MAX);
        let bytes = FIXED_BYTES.saturating_add(ram.saturating_mul(RAM_SHARE)).saturating_add(Self::later_bytes(swap));
        uapi::later::set_aside(bytes);
    }

    /// Pages may be shared with other processes: this one forked before it had a space, or is the child of such a fork.
    pub fn note_forked(&self) {
        self.background.set_forked();
    }
}

/// Makes small pages of the huge ones in the range. A huge page that went out by parts would keep its memory until the
/// last part is gone. The kernel splits one when it is told that a part of it is cold; one that is shared after fork stays.
fn split_huge(start: usize, end: usize) {
    for huge in (start / UNIT_BYTES * UNIT_BYTES..end).step_by(UNIT_BYTES) {
        let part = huge.max(start);
        let _ = uapi::madvise(part, PAGE, g::MADV_COLD);
    }
}
