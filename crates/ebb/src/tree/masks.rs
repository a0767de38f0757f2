//! The masks of a share: a word for each page, in the tree's file. Holders of the share map them; a process that looks
//! for the dead maps them for a moment.
//!
//! Masks are by address, a gibibyte of address space (a *leaf*) at a time. A share has the leaves in which the process
//! that made the share had pages, and one more range, the *extra range*, for the pool. Where nothing was ever shared,
//! the file has holes. A bit for each unit of 2 MiB says whether the unit has masks, because reading from a hole would
//! fill it. The words of far holders lie behind the masks of all shares and have the same layout: a part of the file
//! for each plane of each share.

use super::page::SHARES_MAX;
use super::share::{Bit, PLANES, holders_of, plane_of};
use crate::base::uapi::{self, Errno, later};
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};

/// Address space of a leaf, as a power of two.
pub const LEAF_SHIFT: u32 = 30;
/// Most leaves of a share. What lies in further leaves is not shared.
pub const LEAVES_MAX: usize = 1024;

const PAGE_SHIFT: u32 = 12;
/// Pages of a unit and of a leaf, as powers of two.
const UNIT_SHIFT: u32 = 9;
const LEAF_PAGES_SHIFT: u32 = LEAF_SHIFT - PAGE_SHIFT;
/// Most pages of the extra range.
const EXTRA_MAX: usize = 1 << 26;
/// Where masks begin in the file, and how many bytes lie between the masks of one share and the next.
const SHARES_AT: u64 = 1 << 32;
const STRIDE: u64 = 1 << 32;
/// Where the planes begin in the file, share by share. They end below the bytes that processes lock.
const PLANES_AT: u64 = SHARES_AT + SHARES_MAX as u64 * STRIDE;

/// Layout of a share, in words: the number of leaves, the address and the pages of the extra range, and the numbers of
/// the leaves in order; then a bit for each unit of each leaf and of the extra range; then the masks.
const NUMBERS_AT: usize = 3;
const UNITS_AT: usize = 2048;
const LEAF_UNIT_WORDS: usize = 1 << (LEAF_PAGES_SHIFT - UNIT_SHIFT - 6);
const EXTRA_UNITS_AT: usize = UNITS_AT + LEAVES_MAX * LEAF_UNIT_WORDS;
const MASKS_AT: usize = EXTRA_UNITS_AT + (EXTRA_MAX >> (UNIT_SHIFT + 6));

const _: () = assert!(NUMBERS_AT + LEAVES_MAX <= UNITS_AT);
const _: () = assert!(8 * (MASKS_AT + (LEAVES_MAX << LEAF_PAGES_SHIFT) + EXTRA_MAX) as u64 <= STRIDE);
/// Bytes of the file: room for all shares. Only what is used takes memory.
pub const FILE_BYTES: u64 = PLANES_AT + (SHARES_MAX * PLANES) as u64 * STRIDE;

const _: () = assert!(FILE_BYTES <= super::claim::LOCKS_AT);

/// The leaves that a new share will have, in order, and its extra range.
pub struct Extent {
    leaves: [usize; LEAVES_MAX],
    shape: Shape,
}

impl Extent {
    /// An extent of `leaves`, which may repeat and are best in order, and of `extra` (address and pages).
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

/// What a share has masks for, except which leaves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shape {
    /// How many leaves it has.
    pub nr_leaves: usize,
    /// Address where the extra range begins.
    pub extra_addr: usize,
    /// Pages of the extra range.
    pub extra_pages: usize,
}

impl Shape {
    /// Bytes of a share's masks, with all words before them; whole pages.
    fn bytes(self) -> usize {
        (8 * (self.extra_at() + self.extra_pages)).next_multiple_of(4096)
    }

    /// The word where the masks of the extra range begin.
    fn extra_at(self) -> usize {
        MASKS_AT + (self.nr_leaves << LEAF_PAGES_SHIFT)
    }
}

/// Where the words of the share at `index` begin in the file.
fn offset(index: u32) -> u64 {
    SHARES_AT + u64::from(index) * STRIDE
}

/// Where a plane of the share at `index` begins in the file.
fn plane_offset(index: u32, plane: usize) -> u64 {
    PLANES_AT + (u64::from(index) * PLANES as u64 + plane as u64) * STRIDE
}

/// Makes the file at least `end` bytes long, in case `ebb run` could not. The file never becomes shorter, even if
/// another process lengthens it at the same time.
fn lengthen(fd: i32, end: u64) -> Result<(), Errno> {
    if uapi::fd::bytes(fd)? < end {
        let last = end - 4096;
        uapi::with_largest_files(|| uapi::allocate(fd, last, 4096))?;
        let _ = uapi::punch_hole(fd, last, 4096);
    }
    Ok(())
}

/// Forgets all masks of a share that nobody uses. The caller holds the share's lock.
pub fn forget(fd: i32, index: u32) {
    let _ = uapi::punch_hole(fd, offset(index), STRIDE);
    let _ = uapi::punch_hole(fd, plane_offset(index, 0), PLANES as u64 * STRIDE);
}

/// The masks of one share, as one of its holders has them mapped.
#[derive(Clone, Copy, Debug)]
pub struct Masks {
    /// The address where they are mapped.
    pub at: usize,
    /// The shape that the masks had when they were made. If this process was taken for dead, the words in memory may be
    /// another share's by now.
    pub shape: Shape,
    /// Where their planes are mapped.
    pub planes: Planes,
}

/// The planes of a share that one of its holders has mapped: its own, and that of its youngest child.
#[derive(Clone, Copy, Debug, Default)]
pub struct Planes(
    /// For each plane its address, with the plane's number plus 1 in the bits that an address does not need; 0 for
    /// none.
    pub [usize; 2],
);

impl Planes {
    const NUMBER: usize = 4095;

    /// True when that plane is mapped.
    pub fn has(&self, plane: usize) -> bool {
        self.find(plane).is_some()
    }

    /// The address where a plane is mapped.
    fn find(&self, plane: usize) -> Option<usize> {
        self.0.iter().find(|place| **place & Self::NUMBER == plane + 1).map(|place| place & !Self::NUMBER)
    }
}

/// The mask of one page, and where it is.
#[derive(Clone, Copy, Debug)]
pub struct Spot<'a> {
    /// The mask.
    pub mask: &'a AtomicU64,
    /// True when the page is in the extra range.
    pub is_extra: bool,
    /// Which word of the share the mask is.
    index: usize,
}

impl Masks {
    /// Makes the masks of a share that nobody uses, all of them empty, and maps them. Only [`Self::retire`] unmaps
    /// them. The caller holds the share's lock.
    pub fn create(fd: i32, index: u32, extent: &Extent) -> Result<Self, Errno> {
        forget(fd, index);
        lengthen(fd, offset(index) + STRIDE)?;
        let shape = extent.shape;
        let at = later::map_file(shape.bytes(), fd, offset(index))? as usize;
        let this = Self { at, shape, planes: Planes::default() };
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

    /// Unmaps the masks and their planes. Nobody in this process may use them any more.
    pub fn retire(self) {
        // In reverse order: `unmap` uses a range again only if it was the last one taken.
        for place in self.planes.0.into_iter().rev().filter(|place| *place != 0) {
            // SAFETY: nobody in this process uses the plane any more: the caller sees to that.
            let _ = unsafe { later::unmap(place & !Planes::NUMBER, self.shape.bytes()) };
        }
        // SAFETY: as above, for the masks.
        let _ = unsafe { later::unmap(self.at, self.shape.bytes()) };
    }

    /// The planes after that of the holder `number` was mapped, if it can be: in a free place, or over a plane that
    /// `own` does not need. Nobody in this process may use the replaced plane any more.
    pub fn with_plane_of(&self, fd: i32, index: u32, number: u32, own: u32) -> Planes {
        let mut planes = self.planes;
        let Some(plane) = plane_of(number).filter(|plane| planes.find(*plane).is_none()) else { return planes };
        let (from, bytes) = (plane_offset(index, plane), self.shape.bytes());
        if lengthen(fd, from + STRIDE).is_err() {
            return planes;
        }
        let own = plane_of(own).map(|own| own + 1);
        let is_others = |place: &usize| Some(place & Planes::NUMBER) != own;
        let Planes(places) = &mut planes;
        let Some(i) = places.iter().position(|place| *place == 0).or_else(|| places.iter().position(is_others)) else {
            return planes;
        };
        let mapped = match places[i] & !Planes::NUMBER {
            0 => later::map_file(bytes, fd, from).map(|at| at as usize),
            // SAFETY: nobody uses the replaced plane, which is as long: the caller sees to that. The place is kept
            // because the address space set aside for mappings is limited.
            at => unsafe { uapi::map_shared_over(at, fd, from, bytes) }.map(|()| at),
        };
        // If the mapping was refused, the old plane may be gone all the same.
        places[i] = mapped.map_or(0, |at| at | (plane + 1));
        planes
    }

    /// The bit of the holder with that number for a page; none when the holder's plane is not mapped.
    pub fn bit(&self, spot: Spot<'_>, number: u32) -> Option<Bit<'_>> {
        let mask = self.word(spot.index)?;
        let far = match plane_of(number) {
            None => None,
            // SAFETY: as much of a plane is mapped as of the masks, which have this word; any bytes are a valid word.
            Some(plane) => Some(unsafe { &*(self.planes.find(plane)? as *const AtomicU64).add(spot.index) }),
        };
        Some(Bit::new(number, mask, far))
    }

    fn word(&self, index: usize) -> Option<&AtomicU64> {
        // SAFETY: inside the mapping; any bytes are a valid word.
        (index < self.shape.bytes() / 8).then(|| unsafe { &*(self.at as *const AtomicU64).add(index) })
    }

    fn number(&self, leaf: usize) -> usize {
        self.word(NUMBERS_AT + leaf).map_or(0, |word| word.load(Relaxed) as usize)
    }

    /// For the page at `addr`: the index of its mask, the index of the word and the bit of its unit, and whether the
    /// page is in the extra range.
    fn find(&self, addr: usize) -> Option<(usize, usize, u64, bool)> {
        let Shape { nr_leaves, extra_addr, extra_pages } = self.shape;
        if addr >= extra_addr && (addr - extra_addr) >> PAGE_SHIFT < extra_pages {
            let page = (addr - extra_addr) >> PAGE_SHIFT;
            let unit = page >> UNIT_SHIFT;
            return Some((self.shape.extra_at() + page, EXTRA_UNITS_AT + unit / 64, 1 << (unit % 64), true));
        }
        let leaf = addr >> LEAF_SHIFT;
        // Finds the first leaf that is not below `leaf`.
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

    /// The mask of the page at `addr`; none if the page's unit was never used.
    pub fn get(&self, addr: usize) -> Option<Spot<'_>> {
        let (index, word, bit, is_extra) = self.find(addr)?;
        let is_used = self.word(word)?.load(Relaxed) & bit != 0;
        if is_used { Some(Spot { mask: self.word(index)?, is_extra, index }) } else { None }
    }

    /// The mask of the page at `addr`, whose unit is marked as used; none if the share has no masks there.
    pub fn make(&self, addr: usize) -> Option<Spot<'_>> {
        let (index, word, bit, is_extra) = self.find(addr)?;
        let unit = self.word(word)?;
        if unit.load(Relaxed) & bit == 0 {
            unit.fetch_or(bit, Relaxed);
        }
        Some(Spot { mask: self.word(index)?, is_extra, index })
    }
}

/// Bytes of the words before the masks, and of the masks of a leaf. A window has room for one leaf.
const HEAD_BYTES: usize = 8 * MASKS_AT;
const LEAF_BYTES: usize = 8 << LEAF_PAGES_SHIFT;

const _: () = assert!(HEAD_BYTES.is_multiple_of(4096));
const _: () = assert!(8 << UNIT_SHIFT == 4096);

/// Where this process maps masks to walk through them; 0 before the first walk. The range is kept for good: at any
/// other place the kernel might map the masks where the program has just unmapped something.
static WINDOW: AtomicUsize = AtomicUsize::new(0);
/// Likewise for planes.
static PLANES_WINDOW: AtomicUsize = AtomicUsize::new(0);
/// True while a thread walks.
static IS_WALKING: AtomicBool = AtomicBool::new(false);

/// In fork's child, where nobody walks: forgets that another thread of the parent did.
pub fn reset_in_child() {
    IS_WALKING.store(false, Relaxed);
}

/// The address of a range that is kept for good. `kept` remembers it; the first call reserves it.
fn window(kept: &AtomicUsize, bytes: usize) -> Result<usize, Errno> {
    if kept.load(Relaxed) == 0 {
        kept.store(later::reserve_nothing(bytes)?, Relaxed);
    }
    Ok(kept.load(Relaxed))
}

/// A part of the file, mapped at `place` while this lives.
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
        // SAFETY: nobody refers to the mapping any more.
        let _ = unsafe { uapi::map_nothing_over(self.place, self.bytes) };
    }
}

/// The masks of a unit, which have memory, and the words of its far holders.
pub struct UnitMasks<'a> {
    /// The masks.
    pub masks: &'a [AtomicU64],
    /// True when they are of the extra range.
    pub is_extra: bool,
    planes: &'a [Option<View>; PLANES],
    /// Index of the first mask in the mapped words.
    first: usize,
}

impl UnitMasks<'_> {
    /// The bits of the holder with that number in a part of the masks. A far holder has none in a unit without far
    /// holders.
    pub fn bits(&self, number: u32, part: core::ops::Range<usize>) -> impl Iterator<Item = Bit<'_>> + Clone {
        let plane = plane_of(number);
        let far = plane.and_then(|plane| self.planes[plane].as_ref()).map(|view| &view.words()[self.first..]);
        let is_there = plane.is_none() || far.is_some();
        let part = if is_there { part } else { 0..0 };
        part.map(move |i| Bit::new(number, &self.masks[i], far.map(|words| &words[i])))
    }

    /// The word of a plane for the mask at `i`, if far holders hold the page.
    pub fn far_word(&self, plane: usize, i: usize) -> u64 {
        let has_far = holders_of(self.masks[i].load(Relaxed)).1 > 0;
        let view = self.planes[plane].as_ref().filter(|_| has_far);
        view.map_or(0, |view| view.words()[self.first + i].load(Relaxed))
    }
}

/// Calls `f` with the masks of each unit of a share that have memory, and the words of `planes`. The caller holds the
/// share's lock, or can cope if the share becomes another one meanwhile.
///
/// Fails with `EAGAIN` while another thread of this process walks, and with `EINVAL` when the file ends before the
/// share does.
pub fn walk(fd: i32, index: u32, planes: core::ops::Range<usize>, f: impl FnMut(&UnitMasks<'_>)) -> Result<(), Errno> {
    if IS_WALKING.swap(true, Acquire) {
        return Err(Errno::AGAIN);
    }
    let done = walk_alone(fd, index, planes, f);
    IS_WALKING.store(false, Release);
    done
}

/// Asks the file where it has data, and not the words that say which units are used. Reading from a hole would fill it,
/// and any process of the tree may have written that all units are used. For the same reason planes are mapped only
/// where there are far holders.
fn walk_alone(
    fd: i32,
    index: u32,
    planes: core::ops::Range<usize>,
    mut f: impl FnMut(&UnitMasks<'_>),
) -> Result<(), Errno> {
    // Beyond the end of the file there is no memory.
    let file_bytes = uapi::fd::bytes(fd)?;
    if file_bytes < offset(index) + STRIDE {
        return Err(Errno::INVAL);
    }
    let place = window(&WINDOW, LEAF_BYTES)?;
    let shape = {
        let head = View::map(place, fd, offset(index), 4096)?;
        let load = |index: usize| head.words()[index].load(Relaxed) as usize;
        Shape { nr_leaves: load(0).min(LEAVES_MAX), extra_addr: load(1), extra_pages: load(2).min(EXTRA_MAX) }
    };
    let extra_at = offset(index) + 8 * shape.extra_at() as u64;
    let end = offset(index) + shape.bytes() as u64;
    let mut at = offset(index) + HEAD_BYTES as u64;
    while let Some(data) = uapi::fd::next_data(fd, at)?.filter(|data| *data < end) {
        // The masks of a unit are one page of the file.
        let data = data & !4095;
        let hole = uapi::fd::next_hole(fd, data)?.next_multiple_of(4096).clamp(data + 4096, end);
        at = hole.min(data + LEAF_BYTES as u64);
        let bytes = (at - data) as usize;
        let view = View::map(place, fd, data, bytes)?;
        let has_far = || view.words().iter().any(|mask| holders_of(mask.load(Relaxed)).1 > 0);
        let mut views = [const { None }; PLANES];
        if !planes.is_empty() && has_far() {
            let places = window(&PLANES_WINDOW, PLANES * LEAF_BYTES)?;
            for plane in planes.clone() {
                let from = plane_offset(index, plane);
                if file_bytes >= from + STRIDE {
                    let place = places + plane * LEAF_BYTES;
                    views[plane] = Some(View::map(place, fd, from + (data - offset(index)), bytes)?);
                }
            }
        }
        for (i, masks) in view.words().chunks(1 << UNIT_SHIFT).enumerate() {
            let is_extra = data + 4096 * i as u64 >= extra_at;
            f(&UnitMasks { masks, is_extra, planes: &views, first: i << UNIT_SHIFT });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::share::{NEAR, Share, bit_of};
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

    /// Walks as soon as no other test does.
    fn walked(file: &std::fs::File, index: u32, mut f: impl FnMut(&UnitMasks<'_>)) -> Result<(), Errno> {
        loop {
            let done = walk(file.as_raw_fd(), index, 0..PLANES, &mut f);
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
            assert!(i == 5 || masks.get(addr).is_none_or(|spot| spot.mask.load(SeqCst) == 0));
            let spot = masks.make(addr).expect("a mask");
            assert_eq!(spot.is_extra, addr >= EXTRA);
            spot.mask.store(1 << i, SeqCst);
        }
        for (i, addr) in addrs().into_iter().enumerate() {
            assert_eq!(masks.get(addr).map(|spot| spot.mask.load(SeqCst)), Some(1 << i));
        }
        // Another process finds the same masks, and all of them.
        let (mut all, mut of_extra, mut looked_at) = (0, 0, 0);
        let look = |unit: &UnitMasks<'_>| {
            let here = unit.masks.iter().fold(0, |all, mask| all | mask.load(SeqCst));
            (all, of_extra) = (all | here, of_extra | if unit.is_extra { here } else { 0 });
            looked_at += unit.masks.len();
        };
        walked(&file, 3, look).expect("memory");
        assert_eq!((all, of_extra, looked_at), (0b11_1111, 0b11_0000, 6 * 512));
        // There is nothing beyond the end of the file.
        assert_eq!(walked(&file, 4, |_| {}), Err(Errno::INVAL));
        masks.retire();
    }

    #[test]
    fn far_holders_have_bits_in_planes() {
        let file = file();
        let extent = Extent::new([1, 5].into_iter(), (EXTRA, 1024));
        let mut masks = Masks::create(file.as_raw_fd(), 2, &extent).expect("memory");
        let share = Share::default();
        // One holder of each plane, and a near one whose children they are.
        let far: Vec<u32> = (0..PLANES as u32).map(|plane| NEAR + 64 * plane + 9 * plane).collect();
        for (i, addr) in addrs().into_iter().enumerate() {
            for (j, number) in far[..=i].iter().copied().enumerate() {
                assert!(masks.get(addr).is_none_or(|spot| masks.bit(spot, number).is_none_or(|bit| !bit.is_set())));
                masks.planes = masks.with_plane_of(file.as_raw_fd(), 2, number, 0);
                let spot = masks.make(addr).expect("a mask");
                let [own, child] = [0, number].map(|number| masks.bit(spot, number).expect("it is mapped"));
                assert!(if j == 0 { share.begin(own, child) } else { share.join(own, child) });
                assert!(own.is_shared() && child.is_shared());
            }
        }
        // Two planes are mapped, the youngest child's and one's own, and always in the same places.
        assert!(masks.bit(masks.get(EXTRA).expect("a mask"), far[0]).is_none());
        let places = |planes: Planes| planes.0.map(|place| place & !Planes::NUMBER);
        let own = far[5];
        let before = places(masks.planes);
        masks.planes = masks.with_plane_of(file.as_raw_fd(), 2, far[0], own);
        let spot = masks.get(EXTRA).expect("a mask");
        assert!([far[0], own].iter().all(|number| masks.bit(spot, *number).is_some()));
        assert_eq!(places(masks.planes), before);
        // Another process finds the same bits.
        let (mut seen, mut left) = (vec![0; far.len()], 0);
        let look = |unit: &UnitMasks<'_>| {
            for (plane, number) in far.iter().enumerate() {
                seen[plane] += unit.bits(*number, 0..unit.masks.len()).filter(Bit::is_set).count();
                assert!((0..unit.masks.len()).all(|i| [0, bit_of(*number)].contains(&unit.far_word(plane, i))));
            }
            // The first one dies.
            left += share.leave_all(unit.bits(far[0], 0..unit.masks.len()), unit.is_extra);
        };
        walked(&file, 2, look).expect("memory");
        let expected: Vec<usize> = (0..far.len()).map(|plane| addrs().len().saturating_sub(plane)).collect();
        assert_eq!((seen, left), (expected, addrs().len() as i64));
        let near = |spot: Spot<'_>| holders_of(spot.mask.load(SeqCst));
        assert_eq!(addrs().map(|addr| near(masks.get(addr).expect("a mask"))), [0, 1, 2, 3, 4, 5].map(|far| (1, far)));
        masks.retire();
        // The next user of the share does not see what was in it.
        forget(file.as_raw_fd(), 2);
        let mut masks = Masks::create(file.as_raw_fd(), 2, &extent).expect("memory");
        masks.planes = masks.with_plane_of(file.as_raw_fd(), 2, far[1], 0);
        for spot in addrs().map(|addr| masks.make(addr).expect("a mask")) {
            spot.mask.store(u64::MAX, SeqCst);
            assert!(!masks.bit(spot, far[1]).expect("it is mapped").is_set());
        }
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
        masks.make(9 << 30).expect("a mask").mask.store(1, SeqCst);
        walked(&file, 0, |_| {}).expect("memory");
        assert!(kib() <= 32, "{} KiB", kib());
        masks.retire();
        // The next user of the share does not see what was in it.
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
