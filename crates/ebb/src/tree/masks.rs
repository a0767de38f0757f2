//! The masks of a share: a word for each page, in the tree's file, mapped by its holders, and for a moment by who looks for the
//! dead.
//!
//! They are by address: a gibibyte of address space at a time (*leaf*), those that the process used which made the share,
//! and one range more for the pool. The file has holes where nothing was ever shared; which units of 2 MiB have masks says
//! a bit each, because to read from a hole would fill it.

use super::page::SHARES_MAX;
use crate::uapi::{self, Errno, later};
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

/// Address space of a leaf, as a power of two.
pub const LEAF_SHIFT: u32 = 30;
/// Most leaves: what lies in further ones is not shared.
pub const LEAVES_MAX: usize = 1024;

const PAGE_SHIFT: u32 = 12;
/// Pages of a unit, and of a leaf, as powers of two.
const UNIT_SHIFT: u32 = 9;
const LEAF_PAGES_SHIFT: u32 = LEAF_SHIFT - PAGE_SHIFT;
/// Most pages of the extra range.
const EXTRA_MAX: usize = 1 << 26;
/// Where masks begin in the file, and how far those of one share are from those of the next. They end below the bytes
/// that processes lock.
const SHARES_AT: u64 = 1 << 32;
const STRIDE: u64 = 1 << 32;

/// Words of a share: how many leaves, the extra range's address and pages, and the numbers of the leaves in order; then a bit
/// for each unit of each leaf, and of the extra range; then the masks.
const NUMBERS_AT: usize = 3;
const UNITS_AT: usize = 2048;
const LEAF_UNIT_WORDS: usize = 1 << (LEAF_PAGES_SHIFT - UNIT_SHIFT - 6);
const EXTRA_UNITS_AT: usize = UNITS_AT + LEAVES_MAX * LEAF_UNIT_WORDS;
const MASKS_AT: usize = EXTRA_UNITS_AT + (EXTRA_MAX >> (UNIT_SHIFT + 6));

const _: () = assert!(NUMBERS_AT + LEAVES_MAX <= UNITS_AT);
const _: () = assert!(8 * (MASKS_AT + (LEAVES_MAX << LEAF_PAGES_SHIFT) + EXTRA_MAX) as u64 <= STRIDE);
const _: () = assert!(SHARES_AT + SHARES_MAX as u64 * STRIDE <= 1 << 40);

/// The leaves that a share will have, in order, and its extra range.
pub struct Extent {
    leaves: [usize; LEAVES_MAX],
    nr_leaves: usize,
    extra: (usize, usize),
}

impl Extent {
    /// Of leaves that come in order, and may come again, and of `extra` (address and pages).
    pub fn new(leaves: impl Iterator<Item = usize>, extra: (usize, usize)) -> Self {
        let mut this = Self { leaves: [0; LEAVES_MAX], nr_leaves: 0, extra: (extra.0, extra.1.min(EXTRA_MAX)) };
        for leaf in leaves {
            let is_new = this.nr_leaves == 0 || this.leaves[this.nr_leaves - 1] != leaf;
            if is_new && this.nr_leaves < LEAVES_MAX {
                this.leaves[this.nr_leaves] = leaf;
                this.nr_leaves += 1;
            }
        }
        this
    }

    fn bytes(&self) -> usize {
        bytes(self.nr_leaves, self.extra.1)
    }
}

/// Bytes of a share, whole pages.
fn bytes(nr_leaves: usize, extra_pages: usize) -> usize {
    (8 * (MASKS_AT + (nr_leaves << LEAF_PAGES_SHIFT) + extra_pages)).next_multiple_of(4096)
}

/// Where the share at `index` begins in the file.
fn offset(index: u32) -> u64 {
    SHARES_AT + u64::from(index) * STRIDE
}

/// Forgets all masks of a share that nobody uses. By who holds its lock.
pub fn forget(fd: i32, index: u32) {
    let _ = uapi::punch_hole(fd, offset(index), STRIDE);
}

/// The masks of one share, mapped.
#[derive(Clone, Copy, Debug)]
pub struct Masks {
    at: usize,
    bytes: usize,
}

impl Masks {
    /// Makes those of a share that nobody uses, all of them empty, and maps them for as long as this process lives. By who holds
    /// its lock.
    pub fn create(fd: i32, index: u32, extent: &Extent) -> Result<Self, Errno> {
        forget(fd, index);
        // The file never becomes shorter, whoever else makes it longer now.
        let last = offset(index) + STRIDE - 4096;
        uapi::with_largest_files(|| uapi::allocate(fd, last, 4096))?;
        let _ = uapi::punch_hole(fd, last, 4096);
        let this = Self { at: later::map_file(extent.bytes(), fd, offset(index))? as usize, bytes: extent.bytes() };
        let head = [extent.nr_leaves, extent.extra.0, extent.extra.1];
        for (i, value) in head.iter().chain(&extent.leaves[..extent.nr_leaves]).enumerate() {
            this.word(i).store(*value as u64, Relaxed);
        }
        Ok(this)
    }

    /// Maps those of a share for the caller alone.
    pub fn open(fd: i32, index: u32) -> Result<Self, Errno> {
        let head = Self::map(fd, index, 4096)?;
        let bytes = bytes(head.load(0).min(LEAVES_MAX), head.load(2).min(EXTRA_MAX));
        head.close();
        Self::map(fd, index, bytes)
    }

    fn map(fd: i32, index: u32, bytes: usize) -> Result<Self, Errno> {
        Ok(Self { at: uapi::map_shared_at(fd, offset(index), bytes)? as usize, bytes })
    }

    /// Those that [`Self::address`] told of.
    pub fn at(address: (usize, usize)) -> Self {
        Self { at: address.0, bytes: address.1 }
    }

    /// Where they are mapped, and how many bytes.
    pub fn address(self) -> (usize, usize) {
        (self.at, self.bytes)
    }

    /// Unmaps those of [`Self::open`].
    pub fn close(self) {
        // SAFETY: the caller's own mapping.
        let _ = unsafe { uapi::munmap(self.at, self.bytes) };
    }

    /// Unmaps those of [`Self::create`]. Nobody in this process may use them any more.
    pub fn retire(self) {
        // SAFETY: the caller says so.
        let _ = unsafe { later::unmap(self.at, self.bytes) };
    }

    fn word(&self, index: usize) -> &AtomicU64 {
        assert!(index < self.bytes / 8);
        // SAFETY: inside the mapping; any bytes are a valid word.
        unsafe { &*(self.at as *const AtomicU64).add(index) }
    }

    fn load(&self, index: usize) -> usize {
        self.word(index).load(Relaxed) as usize
    }

    fn nr_leaves(&self) -> usize {
        self.load(0).min(LEAVES_MAX)
    }

    /// First mask of the extra range, and how many there are.
    fn extra(&self) -> (usize, usize) {
        let first = MASKS_AT + (self.nr_leaves() << LEAF_PAGES_SHIFT);
        (first, self.load(2).min(EXTRA_MAX).min(self.bytes / 8 - first.min(self.bytes / 8)))
    }

    /// The mask of the page at `addr`, by number, the word and the bit of its unit, and whether the page is of the extra range.
    fn find(&self, addr: usize) -> Option<(usize, usize, u64, bool)> {
        let (first, extra_pages) = self.extra();
        let extra_addr = self.load(1);
        if addr >= extra_addr && (addr - extra_addr) >> PAGE_SHIFT < extra_pages {
            let page = (addr - extra_addr) >> PAGE_SHIFT;
            let unit = page >> UNIT_SHIFT;
            return Some((first + page, EXTRA_UNITS_AT + unit / 64, 1 << (unit % 64), true));
        }
        let leaf = addr >> LEAF_SHIFT;
        // The first that is not below it.
        let nr_leaves = self.nr_leaves();
        let (mut at, mut end) = (0, nr_leaves);
        while at < end {
            let middle = (at + end) / 2;
            if self.load(NUMBERS_AT + middle) < leaf { at = middle + 1 } else { end = middle }
        }
        if at == nr_leaves || self.load(NUMBERS_AT + at) != leaf {
            return None;
        }
        let page = (addr >> PAGE_SHIFT) & ((1 << LEAF_PAGES_SHIFT) - 1);
        let unit = page >> UNIT_SHIFT;
        let mask = MASKS_AT + (at << LEAF_PAGES_SHIFT) + page;
        Some((mask, UNITS_AT + at * LEAF_UNIT_WORDS + unit / 64, 1 << (unit % 64), false))
    }

    /// The mask of the page at `addr`, if one was ever used there, and whether it is of the extra range.
    pub fn get(&self, addr: usize) -> Option<(&AtomicU64, bool)> {
        let (mask, word, bit, is_extra) = self.find(addr)?;
        (self.word(word).load(Relaxed) & bit != 0).then(|| (self.word(mask), is_extra))
    }

    /// The mask of the page at `addr`, to be used; none where there is none.
    pub fn make(&self, addr: usize) -> Option<(&AtomicU64, bool)> {
        let (mask, word, bit, is_extra) = self.find(addr)?;
        let unit = self.word(word);
        if unit.load(Relaxed) & bit == 0 {
            unit.fetch_or(bit, Relaxed);
        }
        Some((self.word(mask), is_extra))
    }

    /// Calls `f` with every mask that was ever used, and whether it is of the extra range.
    pub fn for_each(&self, mut f: impl FnMut(&AtomicU64, bool)) {
        let mut units = |first_word: usize, nr_words: usize, first_mask: usize, nr_masks: usize, is_extra: bool| {
            for i in 0..nr_words {
                let mut bits = self.word(first_word + i).load(Relaxed);
                while bits != 0 {
                    let unit = i * 64 + bits.trailing_zeros() as usize;
                    bits &= bits - 1;
                    let end = ((unit + 1) << UNIT_SHIFT).min(nr_masks);
                    ((unit << UNIT_SHIFT)..end).for_each(|page| f(self.word(first_mask + page), is_extra));
                }
            }
        };
        for leaf in 0..self.nr_leaves() {
            let masks = MASKS_AT + (leaf << LEAF_PAGES_SHIFT);
            units(UNITS_AT + leaf * LEAF_UNIT_WORDS, LEAF_UNIT_WORDS, masks, 1 << LEAF_PAGES_SHIFT, false);
        }
        let (first, pages) = self.extra();
        units(EXTRA_UNITS_AT, pages.div_ceil(64 << UNIT_SHIFT), first, pages, true);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::Ordering::SeqCst;
    use std::os::fd::{AsRawFd, FromRawFd};

    const EXTRA: usize = 7 << 40;

    fn file() -> std::fs::File {
        // SAFETY: a new descriptor, which the file owns.
        unsafe {
            let fd = libc::memfd_create(c"masks".as_ptr(), libc::MFD_CLOEXEC);
            assert!(fd >= 0);
            std::fs::File::from_raw_fd(fd)
        }
    }

    fn addrs() -> [usize; 6] {
        [1 << 30, (1 << 30) + 0x20_0000, (6 << 30) - 0x1000, 5 << 30, EXTRA, EXTRA + 0x3f_f000]
    }

    #[test]
    fn a_mask_belongs_to_one_page() {
        let file = file();
        let extent = Extent::new([1, 1, 5].into_iter(), (EXTRA, 1024));
        let masks = Masks::create(file.as_raw_fd(), 3, &extent).expect("memory");
        for addr in [0, 2 << 30, (1 << 30) - 0x1000, 6 << 30, EXTRA - 0x1000, EXTRA + 0x40_0000] {
            assert!(masks.make(addr).is_none() && masks.get(addr).is_none(), "{addr:x}");
        }
        for (i, addr) in addrs().into_iter().enumerate() {
            assert!(i == 5 || masks.get(addr).is_none_or(|(mask, _)| mask.load(SeqCst) == 0));
            let (mask, is_extra) = masks.make(addr).expect("a mask");
            assert_eq!(is_extra, addr >= EXTRA);
            mask.store(1 << i, SeqCst);
        }
        for (i, addr) in addrs().into_iter().enumerate() {
            assert_eq!(masks.get(addr).map(|(mask, _)| mask.load(SeqCst)), Some(1 << i));
        }
        // Others find the same, and all of it.
        let other = Masks::open(file.as_raw_fd(), 3).expect("memory");
        let (mut all, mut of_extra, mut looked_at) = (0, 0, 0);
        other.for_each(|mask, is_extra| {
            all |= mask.load(SeqCst);
            of_extra |= if is_extra { mask.load(SeqCst) } else { 0 };
            looked_at += 1;
        });
        assert_eq!((all, of_extra, looked_at), (0b11_1111, 0b11_0000, 6 * 512));
        other.close();
        masks.retire();
    }

    #[test]
    fn memory_is_used_where_pages_are_shared_and_given_back() {
        use std::os::unix::fs::MetadataExt;
        let file = file();
        let kib = || file.metadata().expect("a file").blocks() / 2;
        let extent = Extent::new(0..64, (EXTRA, 1 << 20));
        let masks = Masks::create(file.as_raw_fd(), 0, &extent).expect("memory");
        for addr in (0..64 << 30).step_by(1 << 24) {
            assert!(masks.get(addr).is_none());
        }
        masks.make(9 << 30).expect("a mask").0.store(1, SeqCst);
        masks.for_each(|_, _| {});
        assert!(kib() <= 32, "{} KiB", kib());
        masks.retire();
        // What was in it is gone for who comes next.
        let masks = Masks::create(file.as_raw_fd(), 0, &extent).expect("memory");
        assert!(masks.get(9 << 30).is_none());
        masks.retire();
        forget(file.as_raw_fd(), 0);
        assert_eq!(kib(), 0);
    }

    #[test]
    fn an_extent_has_bounds() {
        let extent = Extent::new(0..2 * LEAVES_MAX, (EXTRA, usize::MAX));
        assert_eq!((extent.nr_leaves, extent.extra.1), (LEAVES_MAX, EXTRA_MAX));
        assert!(extent.bytes() as u64 <= STRIDE);
    }
}
