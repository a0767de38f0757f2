//! The masks of a share: a word for each page, in the tree's file, mapped by its holders, and for a moment by who looks for the
//! dead.
//!
//! They are by address: a gibibyte of address space at a time (*leaf*), those in which the process had pages which made the
//! share, and one range more for the pool. The file has holes where nothing was ever shared; which units of 2 MiB have masks says
//! a bit each, because to read from a hole would fill it.

use super::page::SHARES_MAX;
use crate::uapi::{self, Errno, later};
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};

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
/// Bytes of the file: as many as all shares need, of which it has what is used.
pub const FILE_BYTES: u64 = SHARES_AT + SHARES_MAX as u64 * STRIDE;

const _: () = assert!(FILE_BYTES <= 1 << 40);

/// The leaves that a share will have, in order, and its extra range.
pub struct Extent {
    leaves: [usize; LEAVES_MAX],
    shape: Shape,
}

impl Extent {
    /// Of leaves that may come again, best in order, and of `extra` (address and pages).
    pub fn new(leaves: impl Iterator<Item = usize>, extra: (usize, usize)) -> Self {
        let shape = Shape { nr_leaves: 0, extra_addr: extra.0, extra_pages: extra.1.min(EXTRA_MAX) };
        let mut this = Self { leaves: [0; LEAVES_MAX], shape };
        for leaf in leaves {
            if let Err(place) = this.leaves().binary_search(&leaf)
                && this.shape.nr_leaves < LEAVES_MAX
            {
                this.leaves[place..=this.shape.nr_leaves].rotate_right(1);
                this.leaves[place] = leaf;
                this.shape.nr_leaves += 1;
            }
        }
        this
    }

    fn leaves(&self) -> &[usize] {
        &self.leaves[..self.shape.nr_leaves]
    }
}

/// What a share has masks for, but for which leaves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shape {
    /// How many leaves.
    pub nr_leaves: usize,
    /// Where the extra range begins, and its pages.
    pub extra_addr: usize,
    /// Pages of the extra range.
    pub extra_pages: usize,
}

impl Shape {
    /// Bytes of a share, whole pages.
    fn bytes(self) -> usize {
        (8 * (self.extra_at() + self.extra_pages)).next_multiple_of(4096)
    }

    /// Word where the masks of the extra range begin.
    fn extra_at(self) -> usize {
        MASKS_AT + (self.nr_leaves << LEAF_PAGES_SHIFT)
    }
}

/// Where the share at `index` begins in the file.
fn offset(index: u32) -> u64 {
    SHARES_AT + u64::from(index) * STRIDE
}

/// Forgets all masks of a share that nobody uses. By who holds its lock.
pub fn forget(fd: i32, index: u32) {
    let _ = uapi::punch_hole(fd, offset(index), STRIDE);
}

/// The masks of one share, as one of its holders has them mapped.
#[derive(Clone, Copy, Debug)]
pub struct Masks {
    /// Where.
    pub at: usize,
    /// As it was when they were made. What the memory says may be of another share by now, if this process was taken for
    /// dead.
    pub shape: Shape,
}

impl Masks {
    /// Makes those of a share that nobody uses, all of them empty, and maps them for as long as this process lives. By who holds
    /// its lock.
    pub fn create(fd: i32, index: u32, extent: &Extent) -> Result<Self, Errno> {
        forget(fd, index);
        // A file that `ebb run` could not make as long as that. It never becomes shorter, whoever else makes it longer now.
        if uapi::fd::bytes(fd)? < offset(index) + STRIDE {
            let last = offset(index) + STRIDE - 4096;
            uapi::with_largest_files(|| uapi::allocate(fd, last, 4096))?;
            let _ = uapi::punch_hole(fd, last, 4096);
        }
        let shape = extent.shape;
        let this = Self { at: later::map_file(shape.bytes(), fd, offset(index))? as usize, shape };
        let head = [shape.nr_leaves, shape.extra_addr, shape.extra_pages];
        for (i, value) in head.iter().chain(extent.leaves()).enumerate() {
            if let Some(word) = this.word(i) {
                word.store(*value as u64, Relaxed);
            }
        }
        Ok(this)
    }

    /// True when there are masks for all of `extent`.
    pub fn covers(&self, extent: &Extent) -> bool {
        let has = |leaf: &usize| (0..self.shape.nr_leaves).any(|at| self.number(at) == *leaf);
        let as_many = Shape { nr_leaves: self.shape.nr_leaves, ..extent.shape };
        as_many == self.shape && extent.leaves().iter().all(has)
    }

    /// Unmaps them. Nobody in this process may use them any more.
    pub fn retire(self) {
        // SAFETY: the caller says so.
        let _ = unsafe { later::unmap(self.at, self.shape.bytes()) };
    }

    fn word(&self, index: usize) -> Option<&AtomicU64> {
        // SAFETY: inside the mapping; any bytes are a valid word.
        (index < self.shape.bytes() / 8).then(|| unsafe { &*(self.at as *const AtomicU64).add(index) })
    }

    fn number(&self, leaf: usize) -> usize {
        self.word(NUMBERS_AT + leaf).map_or(0, |word| word.load(Relaxed) as usize)
    }

    /// The mask of the page at `addr`, by number, the word and the bit of its unit, and whether the page is of the extra range.
    fn find(&self, addr: usize) -> Option<(usize, usize, u64, bool)> {
        let Shape { nr_leaves, extra_addr, extra_pages } = self.shape;
        if addr >= extra_addr && (addr - extra_addr) >> PAGE_SHIFT < extra_pages {
            let page = (addr - extra_addr) >> PAGE_SHIFT;
            let unit = page >> UNIT_SHIFT;
            return Some((self.shape.extra_at() + page, EXTRA_UNITS_AT + unit / 64, 1 << (unit % 64), true));
        }
        let leaf = addr >> LEAF_SHIFT;
        // The first that is not below it.
        let (mut at, mut end) = (0, nr_leaves);
        while at < end {
            let middle = (at + end) / 2;
            if self.number(middle) < leaf { at = middle + 1 } else { end = middle }
        }
        if at == nr_leaves || self.number(at) != leaf {
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
        let is_used = self.word(word)?.load(Relaxed) & bit != 0;
        if is_used { Some((self.word(mask)?, is_extra)) } else { None }
    }

    /// The mask of the page at `addr`, to be used; none where there is none.
    pub fn make(&self, addr: usize) -> Option<(&AtomicU64, bool)> {
        let (mask, word, bit, is_extra) = self.find(addr)?;
        let unit = self.word(word)?;
        if unit.load(Relaxed) & bit == 0 {
            unit.fetch_or(bit, Relaxed);
        }
        Some((self.word(mask)?, is_extra))
    }
}

/// Bytes of the words before the masks, and of the masks of a leaf: a window has room for these.
const HEAD_BYTES: usize = 8 * MASKS_AT;
const LEAF_BYTES: usize = 8 << LEAF_PAGES_SHIFT;

const _: () = assert!(HEAD_BYTES.is_multiple_of(4096));
const _: () = assert!(8 << UNIT_SHIFT == 4096);

/// Where this process maps what it walks through; 0 for nowhere yet. One place for good, because the kernel would put it
/// where the program has just unmapped something.
static WINDOW: AtomicUsize = AtomicUsize::new(0);
/// Somebody walks.
static IS_WALKING: AtomicBool = AtomicBool::new(false);

/// In fork's child, where nobody walks.
pub fn reset_in_child() {
    IS_WALKING.store(false, Relaxed);
}

/// The part of the file from `at` on, mapped at `place`.
struct View {
    place: usize,
    bytes: usize,
}

impl View {
    fn map(place: usize, fd: i32, at: u64, bytes: usize) -> Result<Self, Errno> {
        // SAFETY: the window is the walker's alone.
        unsafe { uapi::map_shared_over(place, fd, at, bytes)? };
        Ok(Self { place, bytes })
    }

    fn words(&self) -> &[AtomicU64] {
        // SAFETY: inside the mapping, which lives as long as this; any bytes are valid words.
        unsafe { core::slice::from_raw_parts(self.place as *const AtomicU64, self.bytes / 8) }
    }
}

impl Drop for View {
    fn drop(&mut self) {
        // SAFETY: nobody refers to it any more.
        let _ = unsafe { uapi::map_nothing_over(self.place, self.bytes) };
    }
}

/// Calls `f` with the masks of each unit of a share that have memory, and whether they are of the extra range. By who holds
/// the share's lock, or can bear it if the share becomes another one meanwhile.
pub fn walk(fd: i32, index: u32, f: impl FnMut(&[AtomicU64], bool)) -> Result<(), Errno> {
    if IS_WALKING.swap(true, Acquire) {
        return Err(Errno::AGAIN);
    }
    let done = walk_alone(fd, index, f);
    IS_WALKING.store(false, Release);
    done
}

/// Asks the file what it has rather than the words that say which units are used: to read from a hole would fill it, and any process
/// of the tree may have written there that all of them are.
fn walk_alone(fd: i32, index: u32, mut f: impl FnMut(&[AtomicU64], bool)) -> Result<(), Errno> {
    // Behind its end there is no memory.
    if uapi::fd::bytes(fd)? < offset(index) + STRIDE {
        return Err(Errno::INVAL);
    }
    if WINDOW.load(Relaxed) == 0 {
        WINDOW.store(later::reserve_nothing(LEAF_BYTES)?, Relaxed);
    }
    let window = WINDOW.load(Relaxed);
    let shape = {
        let head = View::map(window, fd, offset(index), 4096)?;
        let load = |index: usize| head.words()[index].load(Relaxed) as usize;
        Shape { nr_leaves: load(0).min(LEAVES_MAX), extra_addr: load(1), extra_pages: load(2).min(EXTRA_MAX) }
    };
    let extra_at = offset(index) + 8 * shape.extra_at() as u64;
    let end = offset(index) + shape.bytes() as u64;
    let mut at = offset(index) + HEAD_BYTES as u64;
    while let Some(data) = uapi::fd::next_data(fd, at)?.filter(|data| *data < end) {
        // Masks of a unit are one page of the file.
        let data = data & !4095;
        let hole = uapi::fd::next_hole(fd, data)?.next_multiple_of(4096).clamp(data + 4096, end);
        at = hole.min(data + LEAF_BYTES as u64);
        let view = View::map(window, fd, data, (at - data) as usize)?;
        for (i, masks) in view.words().chunks(1 << UNIT_SHIFT).enumerate() {
            f(masks, data + 4096 * i as u64 >= extra_at);
        }
    }
    Ok(())
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

    /// Walks when no other test does.
    fn walked(file: &std::fs::File, index: u32, mut f: impl FnMut(&[AtomicU64], bool)) -> Result<(), Errno> {
        loop {
            let done = walk(file.as_raw_fd(), index, &mut f);
            if done != Err(Errno::AGAIN) {
                return done;
            }
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
        let (mut all, mut of_extra, mut looked_at) = (0, 0, 0);
        let look = |masks: &[AtomicU64], is_extra| {
            let here = masks.iter().fold(0, |all, mask| all | mask.load(SeqCst));
            (all, of_extra) = (all | here, of_extra | if is_extra { here } else { 0 });
            looked_at += masks.len();
        };
        walked(&file, 3, look).expect("memory");
        assert_eq!((all, of_extra, looked_at), (0b11_1111, 0b11_0000, 6 * 512));
        // There is nothing behind the end of the file.
        assert_eq!(walked(&file, 4, |_, _| {}), Err(Errno::INVAL));
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
        walked(&file, 0, |_, _| {}).expect("memory");
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
        assert_eq!((extent.shape.nr_leaves, extent.shape.extra_pages), (LEAVES_MAX, EXTRA_MAX));
        assert!(extent.shape.bytes() as u64 <= STRIDE);
    }
}
