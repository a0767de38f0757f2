//! Takes over memory that is already in use, for a process that begins to be managed when it has grown.
//!
//! The range is registered, and its pages enter the books as the kernel has them. A page in the page table, or in the
//! kernel's own swap, is present. Every other page has no content, and reads as zero. Nothing is moved, so nothing can
//! be lost. The charge may exceed the budget for a moment; the next first touch reclaims.
//!
//! The kernel's own page of zeros may be mapped where the program has only read. It counts like any other page: MOVE
//! and COPY carry it, and a write replaces it without a fault of Ebb's.

use crate::base::events::{self, Kind};
use crate::base::{PAGE, clock, uapi};
use crate::calls::mapping;
use crate::device::SwapSpec;
use crate::groups::table::Index;
use crate::memory::region::Attr;
use crate::memory::table::{UNIT_BYTES, UNIT_PAGES};
use crate::pages::account;
use crate::protocols::gate::Exclusive;
use crate::protocols::page::State;
use crate::space::Space;
use crate::threads::ctx::ThreadCtx;
use crate::way_out::reclaim;
use core::sync::atomic::Ordering::Relaxed;
use linux_raw_sys::general as g;

/// A mapping as the program has it, before it is taken over.
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
    /// A driver may have pinned some of it, and the kernel cannot be asked: what is in memory stays there.
    pub kept: bool,
    /// The kernel may have merged its pages with equal ones (KSM).
    pub mergeable: bool,
    /// No code of the program has run yet, so nobody has pinned any of it.
    pub fresh: bool,
}

/// Which pages of a private file mapping are taken over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Which {
    /// Runs of pages that were written to. Their content must not change any more.
    Own,
    /// Every page. Only for a mapping that nothing has used, so that nobody has pinned a page of it.
    All,
}

/// `/proc/self/pagemap`: one word a page.
pub struct PageMap {
    fd: i32,
}

impl PageMap {
    /// Opens the map. None where there is no /proc.
    pub fn open() -> Option<Self> {
        uapi::open_read(c"/proc/self/pagemap").ok().map(|fd| Self { fd })
    }

    /// True when the page at `addr` is in memory and plain: a page of a file, or one that no other process maps. The
    /// kernel reports neither for a device's registers, nor for memory shared since a fork. May be called on the program's
    /// stack.
    pub fn is_plain(&self, addr: usize) -> bool {
        let mut word = [0u8; 8];
        let read = |word: &mut [u8]| uapi::pread_exact(self.fd, word, (addr / PAGE * 8) as u64);
        uapi::with_own_memory(&mut word, read).is_ok() && is_plain(&word)
    }

    /// Reads the words of a unit's pages from `start` to `end`. False when that is not possible.
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

/// How long a newly managed process makes room, at most, for what it has.
const TAKEN_WAIT_NS: u64 = 250_000_000;

/// Bits in the highest byte of a page's word.
const PRESENT: u8 = 0b1000_0000;
const OF_FILE: u8 = 0b0010_0000;
const EXCLUSIVE: u8 = 1;

/// True when the page is in the page table, or in the kernel's swap.
fn is_there(word: &[u8]) -> bool {
    const SWAPPED_OR_PRESENT: u8 = 0b1100_0000;
    word[7] & SWAPPED_OR_PRESENT != 0
}

/// See [`PageMap::is_plain`].
fn is_plain(word: &[u8; 8]) -> bool {
    word[7] & PRESENT != 0 && word[7] & (OF_FILE | EXCLUSIVE) != 0
}

/// True when the page is there, as [`is_there`] says, and is the process's own. In a private file mapping, that is a
/// page that was written to. A page that others also have since a fork is not: each process would get a copy instead.
fn is_own(word: &[u8]) -> bool {
    is_there(word) && word[7] & OF_FILE == 0 && (word[7] & PRESENT == 0 || word[7] & EXCLUSIVE != 0)
}

/// Fewest written pages in a row that are taken over from a file mapping: each run becomes a mapping of its own.
const RUN_MIN: usize = 16;

/// The runs of at least [`RUN_MIN`] pages that are the process's own, as page numbers.
fn own_runs(words: &[u8]) -> impl Iterator<Item = core::ops::Range<usize>> {
    let own = |i: usize| words.get(i * 8..i * 8 + 8).is_some_and(is_own);
    let pages = words.len() / 8;
    let begins = (0..pages).filter(move |&i| own(i) && (i == 0 || !own(i - 1)));
    let runs = begins.map(move |first| first..(first..pages).find(|&i| !own(i)).unwrap_or(pages));
    runs.filter(|run| run.len() >= RUN_MIN)
}

impl Space {
    /// Manages private anonymous memory that the program already uses. False when that is not possible: the memory then
    /// stays as it was.
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
        self.exclusive(|exclusive| {
            if !mapping::manage(self, exclusive, start, end, attr, Index::ROOT) {
                return false;
            }
            let mut at = start;
            while at < end {
                let stop = (self.table.unit_start(at) + UNIT_BYTES).min(end);
                if !map.read(at, stop, &mut words) {
                    self.fatal(b"/proc/self/pagemap could be read a moment ago, but not any more; please report this");
                }
                let are_there = words[..(stop - at) / PAGE * 8].chunks_exact(8).map(is_there);
                enter_pages(self, exclusive, at, are_there, !mapping.fresh);
                at = stop;
            }
            true
        })
    }
}

/// Enters the pages of one unit, from `start` on, into the books. `lent` says that nobody saw who used them before.
fn enter_pages(
    space: &Space,
    exclusive: &Exclusive<'_>,
    start: usize,
    are_there: impl Iterator<Item = bool>,
    lent: bool,
) {
    let mut present = 0;
    for (i, _) in are_there.enumerate().filter(|(_, is_there)| *is_there) {
        let Some(word) = space.table.word(start + i * PAGE) else { return };
        word.set_exclusive(exclusive, State::PRESENT);
        events::record(Kind::Taken, start + i * PAGE, 1, 0);
        present += 1;
    }
    if present > 0 {
        space.budget.force_charge(present);
        account::count_content(space, start, present);
        account::count_present(space, start, present);
        if let Some(unit) = space.table.unit(start) {
            unit.touched.store(clock::stamp(), Relaxed);
            if lent {
                unit.lent.store(1, Relaxed);
            }
        }
    }
}

impl Space {
    /// Manages a private file mapping, or the part of it that was written to, as the loader does when it relocates a
    /// library. The pages become anonymous memory with the same content and protection, because the kernel registers no
    /// other kind. File pages that stay cost nothing. Returns how many bytes are managed now.
    ///
    /// The calling thread must be the only one of the process, and no signal may come. Whoever has pinned a page goes
    /// on using the old page: see [`Which`].
    pub fn take_over_file(&self, map: &PageMap, mapping: &Mapping, which: Which) -> usize {
        let Ok(buffer) = uapi::map_for_now(UNIT_BYTES) else { return 0 };
        let attr = Attr::from_prot(mapping.prot).with_from_file();
        let mut words = [0u8; UNIT_PAGES * 8];
        let (mut at, mut taken) = (mapping.start, 0);
        let mut take = |start, len| {
            if self.exclusive(|exclusive| replace(self, exclusive, start, len, attr, mapping.prot, buffer)) {
                taken += len;
            }
        };
        while at < mapping.end {
            let stop = (self.table.unit_start(at) + UNIT_BYTES).min(mapping.end);
            match which {
                // The call fails where the file does not have a page. A read there would raise a signal.
                Which::All if uapi::madvise(at, stop - at, g::MADV_POPULATE_READ).is_ok() => take(at, stop - at),
                Which::All => break,
                Which::Own if map.read(at, stop, &mut words) => {
                    own_runs(&words[..(stop - at) / PAGE * 8])
                        .for_each(|run| take(at + run.start * PAGE, run.len() * PAGE));
                }
                Which::Own => break,
            }
            at = stop;
        }
        // SAFETY: mapped above, and nobody refers to it.
        let _ = unsafe { uapi::munmap(buffer as usize, UNIT_BYTES) };
        taken
    }
}

/// Replaces `len` bytes at `start` by managed memory with the same content, by way of `buffer`. False when the range is
/// not managed: the mapping is the file's still, or unmanaged memory with the same content.
fn replace(
    space: &Space,
    exclusive: &Exclusive<'_>,
    start: usize,
    len: usize,
    attr: Attr,
    prot: u32,
    buffer: *mut u8,
) -> bool {
    if !space.regions.has_room(exclusive, 3) || space.table.cover(exclusive, start, start + len).is_err() {
        return false;
    }
    // SAFETY: readable, by the caller's contract on the protection, and not written to meanwhile; the buffer holds a
    // unit.
    unsafe { core::ptr::copy_nonoverlapping(start as *const u8, buffer, len) };
    // SAFETY: the content that is unmapped is in the buffer, and nobody looks until it is back.
    if unsafe { uapi::map_private_over(start, len, prot) }.is_err() {
        // The kernel may have refused before it unmapped anything, or after.
        if uapi::may_have_hole(start, len) {
            space.fatal(b"no memory to take over the data of a library; raise vm.max_map_count or RLIMIT_AS");
        }
        return false;
    }
    if !mapping::manage(space, exclusive, start, start + len, attr, Index::ROOT) {
        // SAFETY: writable for as long as it takes; nobody else looks.
        let is_back = uapi::mprotect(start, len, g::PROT_READ | g::PROT_WRITE).is_ok()
            && unsafe {
                core::ptr::copy_nonoverlapping(buffer, start as *mut u8, len);
                uapi::mprotect(start, len, prot).is_ok()
            };
        if !is_back {
            space.fatal(b"no memory to put back the data of a library; raise vm.max_map_count");
        }
        return false;
    }
    if space.uffd().copy(start, buffer as usize, len).is_err() {
        space.fatal(b"the data of a library could not be put back; please report this");
    }
    enter_pages(space, exclusive, start, (0..len / PAGE).map(|_| true), false);
    true
}

impl Space {
    /// Sets address space aside for a space that is made in a running process. The program may know that certain places
    /// are empty, and the kernel would put Ebb's memory there. Call it before [`Space::create`]. Too little does no
    /// harm.
    pub fn set_aside(ram_bytes: u64, swap: &[SwapSpec<'_>]) {
        /// Tables of the space, whatever its budget is.
        const FIXED_BYTES: usize = 12 << 30;
        /// Staging, pool, and slots for what they hold, in multiples of the budget.
        const RAM_SHARE: usize = 8;
        let ram = usize::try_from(ram_bytes).unwrap_or(usize::MAX);
        let bytes = FIXED_BYTES.saturating_add(ram.saturating_mul(RAM_SHARE)).saturating_add(Self::later_bytes(swap));
        uapi::later::set_aside(bytes);
    }

    /// Makes room for what was taken over: it was there before anybody was asked, and a large program has much of it.
    /// Where others are as short, gives up after a quarter of a second.
    pub fn make_taken_fit(&self, ctx: &ThreadCtx) {
        // Memory that counted for the process before, and is not managed now, is beside: its grant goes back.
        self.budget.give_back_unused();
        if self.tree().look().free() < 0 {
            reclaim::try_direct_reclaim(self, ctx, 1, TAKEN_WAIT_NS);
        }
    }

    /// Notes that pages may be shared with other processes: this one forked before it had a space, or is the child of
    /// such a fork.
    pub fn note_forked(&self) {
        self.background.set_forked();
    }
}

/// Splits the huge pages in the range. A huge page that was evicted in parts would keep its memory until the last part
/// is gone. The kernel splits one when it is told that a part of it is cold. One that is shared after fork stays.
fn split_huge(start: usize, end: usize) {
    for huge in (start / UNIT_BYTES * UNIT_BYTES..end).step_by(UNIT_BYTES) {
        let part = huge.max(start);
        let _ = uapi::madvise(part, PAGE, g::MADV_COLD);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_plain_and_what_is_not_there_is_not() {
        let map = PageMap::open().expect("/proc");
        let prot = (libc::PROT_READ, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: fresh memory, which stays.
        let untouched = unsafe { libc::mmap(core::ptr::null_mut(), PAGE, prot.0, prot.1, -1, 0) } as usize;
        let own = vec![1u8; 2 * PAGE];
        let own = own.as_ptr() as usize + PAGE;
        // The code of this test is a file's. Nothing is at address 0.
        let code = memory_is_plain_and_what_is_not_there_is_not as fn() as usize;
        assert_eq!([own, code, untouched, 0].map(|addr| map.is_plain(addr)), [true, true, false, false]);
        let of = |flags: u8| is_plain(&[9, 0, 0, 0, 0, 0, 0, flags]);
        // Own; a file's; in the kernel's swap; a device's, or shared.
        assert_eq!([0x81, 0xa0, 0x41, 0x80].map(of), [true, true, false, false]);
    }

    #[test]
    fn runs_of_own_pages_are_long_enough_and_none_of_the_files() {
        const OWN: u8 = 0x81;
        const SHARED: u8 = 0x80;
        const SWAPPED: u8 = 0x40;
        const FILE: u8 = 0xa0;
        let runs = |pages: &[(u8, usize)]| {
            let words: Vec<u8> = pages
                .iter()
                .flat_map(|&(kind, n)| core::iter::repeat_n([0, 0, 0, 0, 0, 0, 0, kind], n))
                .flatten()
                .collect();
            own_runs(&words).map(|run| (run.start, run.end)).collect::<Vec<_>>()
        };
        assert_eq!(runs(&[]), []);
        assert_eq!(runs(&[(FILE, 40), (SHARED, 40)]), []);
        assert_eq!(runs(&[(0, 3), (OWN, RUN_MIN), (FILE, 1), (OWN, RUN_MIN - 1)]), [(3, 3 + RUN_MIN)]);
        assert_eq!(runs(&[(OWN, 8), (SWAPPED, 8), (FILE, 9), (SWAPPED, 30)]), [(0, 16), (25, 55)]);
    }
}
