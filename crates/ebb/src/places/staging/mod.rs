//! Staging: frames of Ebb's own that hold pages which were unmapped intact.
//!
//! A staged page stands in for the accessed bit that user space lacks. If it is touched again, it comes back by one
//! copy and is young. If it is untouched until its turn comes, it is cold and is swapped out.
//!
//! Staging memory is cut into blocks of one unit. A sweep fills one empty block. A page keeps its offset in the unit,
//! so that one MOVE takes a whole unit with its holes. A filled block is cut into parts, each of at least 64 pages as
//! far as the pages suffice, or of 256 while files take some of what is stored. The parts queue in the order of their
//! sweeps, and are swapped out and released one by one. Together the parts are the whole block, so a frame that nobody counts is
//! empty too when the block is free. `owner` says which page a frame holds; mremap may change it.
//!
//! A page that comes back leaves its frame behind, because unmapping a single page costs more than copying it. Frames
//! that are left behind are dropped many at a time, long before the part's turn comes. Whole bundles of frames that
//! hold nothing any more are kept for pages that come in next (`stock`).
//!
//! Invariants:
//! * A frame's owner is not 0 exactly while a page's state names the frame or a thread still copies from it.
//! * A part's memory is released as a whole only when all its owners are 0.
//! * Only the thread that has taken a part out of the queue drops memory of it.
//! * No sweep fills a frame of a part again before the whole block is free.
//! * A frame's memory is charged from the sweep until it is dropped, or mapped as a page's.
//! * A block that was filled by one folio is a single part, and gives its memory back as a whole.

mod vacating;
mod whole;

use crate::base::events;
use crate::base::ring::Ring;
use crate::base::uapi::uffd::Uffd;
use crate::base::uapi::{self, Errno};
use crate::base::{PAGE, clock};
use crate::device::file::BATCH;
use crate::memory::table::UNIT_PAGES;
use crate::protocols::gate::Exclusive;
use crate::protocols::together::{self, Together};
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use ebb_sync::CacheLine;

/// Frames that are counted, kept and given back together.
pub const BUNDLE_FRAMES: usize = 64;
/// Bundles in a block.
pub const BUNDLES: usize = UNIT_PAGES / BUNDLE_FRAMES;
/// Most blocks.
const BLOCKS_MAX: usize = 4096;
const _: () = assert!(together::FRAMES as usize == UNIT_PAGES);
/// Fewest pages in a part, unless it is the last of its block.
const PART_PAGES_MIN: u32 = 64;
/// The same while files take some of what is stored, by writes in flight: as many pages as one call stores, so that the
/// device has one batch to write while the next is prepared. A part of one batch would leave the device idle meanwhile, and
/// then the thread. A sweep takes no more than that, so each is one part then, except folios.
pub const PART_PAGES_MIN_TO_FILES: u32 = 4 * BATCH as u32;

/// One block of frames.
#[derive(Debug)]
#[repr(C)]
struct Block {
    /// For each bundle, its frames with memory behind them. All of them are charged.
    filled: [AtomicU32; BUNDLES],
    /// Parts that are not released yet, and bundles in the stock; 0 for a free block.
    parts_left: AtomicU32,
    /// The bundles, a bit each, that must not be kept: some of their counted frames may be missing, shared with another
    /// process, or still read by the kernel. `u32::MAX` if all of the block may be shared.
    unfit: AtomicU32,
    /// When it was filled, as [`clock::tick`].
    since: AtomicU32,
    /// 1 while the block's memory may be one huge page. It is dropped as a whole, because a part of it would give no memory back.
    is_whole: AtomicU32,
}

/// Neighbouring bundles of a block, as the queue holds them: the block, the first bundle, the number of bundles.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Part(u64);

impl Part {
    fn new(block: u32, first: usize, bundles: usize) -> Self {
        Self((block as u64) << 8 | (first as u64) << 4 | bundles as u64)
    }

    fn block(self) -> u32 {
        (self.0 >> 8) as u32
    }

    fn bundles(self) -> core::ops::Range<usize> {
        let first = (self.0 >> 4 & 15) as usize;
        first..first + (self.0 & 15) as usize
    }
}

/// All staging of a space.
pub struct Staging {
    frames: usize,
    blocks: *const Block,
    owners: *const AtomicU64,
    nr_blocks: usize,
    free: Ring,
    queue: Ring,
    staged: CacheLine<AtomicU64>,
    /// Frames with memory behind them.
    held: CacheLine<AtomicU64>,
    /// Vacated frames at the end of the last look at them, or fewer if there have been fewer since.
    passed: AtomicUsize,
    /// Set while a thread looks for vacated frames.
    is_vacating: AtomicBool,
    /// The block that several threads store.
    together: CacheLine<Together>,
    /// Pages that staging aims to hold.
    target: AtomicUsize,
    /// Whether some of what was stored last flew to files.
    feeds_files: AtomicBool,
}

// SAFETY: blocks and owners are arrays of atomics that live as long as the space.
unsafe impl Sync for Staging {}
// SAFETY: as above.
unsafe impl Send for Staging {}

impl Staging {
    /// Reserves staging that aims to hold `target` pages.
    pub fn new(target: usize) -> Result<Self, Errno> {
        // A block with few pages is still a block in use, so there is room for many of them. That costs address space
        // only.
        let nr_blocks = if events::is_filtering() { BLOCKS_MAX } else { (target / 8).clamp(64, BLOCKS_MAX) };
        let room = events::same_in_all_runs(nr_blocks, BLOCKS_MAX);
        let bytes = room * UNIT_PAGES * PAGE;
        let frames = uapi::reserve_aligned(bytes, 2 << 20)? as usize;
        // Whatever huge page is here was moved here.
        let _ = uapi::madvise(frames, bytes, linux_raw_sys::general::MADV_NOHUGEPAGE);
        let this = Self {
            frames,
            blocks: uapi::reserve(room * core::mem::size_of::<Block>())?.cast(),
            owners: uapi::reserve(room * UNIT_PAGES * 8)?.cast(),
            nr_blocks,
            free: Ring::new(room)?,
            queue: Ring::new(room * BUNDLES)?,
            staged: CacheLine(AtomicU64::new(0)),
            held: CacheLine(AtomicU64::new(0)),
            passed: AtomicUsize::new(0),
            is_vacating: AtomicBool::new(false),
            together: CacheLine(Together::default()),
            target: AtomicUsize::new(target),
            feeds_files: AtomicBool::new(false),
        };
        for i in 0..nr_blocks {
            this.free.push(i as u64);
        }
        Ok(this)
    }

    /// Bundles of frames in all, at least.
    pub fn nr_bundles(&self) -> usize {
        events::same_in_all_runs(self.nr_blocks, BLOCKS_MAX) * BUNDLES
    }

    /// Sets how many pages staging aims to hold.
    pub fn set_target(&self, pages: usize) {
        self.target.store(pages, Ordering::Relaxed);
    }

    /// Pages that staging aims to hold.
    pub fn target(&self) -> usize {
        self.target.load(Ordering::Relaxed)
    }

    /// Registers the frames, because MOVE demands a registered destination.
    pub fn register(&self, uffd: &Uffd) -> Result<(), uapi::uffd::UffdError> {
        uffd.register(self.frames, self.nr_blocks * UNIT_PAGES * PAGE)
    }

    /// Notes whether some of what was stored just now flew to files.
    pub fn note_stored(&self, flew: bool) {
        // Seldom changed, and read by all.
        if self.feeds_files.load(Ordering::Relaxed) != flew {
            self.feeds_files.store(flew, Ordering::Relaxed);
        }
    }

    fn block(&self, block: u32) -> &Block {
        assert!((block as usize) < self.nr_blocks);
        // SAFETY: checked index into an array that is zeroed, hence valid, from the start.
        unsafe { &*self.blocks.add(block as usize) }
    }

    /// The number of the frame at page `offset` of `block`.
    pub fn frame(&self, block: u32, offset: usize) -> u32 {
        block * UNIT_PAGES as u32 + offset as u32
    }

    /// A frame's address.
    pub fn addr(&self, frame: u32) -> usize {
        self.frames + frame as usize * PAGE
    }

    /// The address of the page that a frame holds; 0 for none.
    pub fn owner(&self, frame: u32) -> &AtomicU64 {
        assert!((frame as usize) < self.nr_blocks * UNIT_PAGES);
        // SAFETY: checked index.
        unsafe { &*self.owners.add(frame as usize) }
    }

    /// Takes an empty block; none when all are in use.
    pub fn take(&self) -> Option<u32> {
        self.free.pop().map(|b| b as u32)
    }

    /// True when free blocks are so few that no block should stay in use for the sake of a few frames.
    pub fn is_scarce(&self) -> bool {
        self.free.len() < self.nr_blocks / 8
    }

    /// Address of all frames, and their number.
    pub fn memory(&self) -> (usize, usize) {
        (self.frames, self.nr_blocks * UNIT_PAGES)
    }

    /// Calls `f` with the address of each frame that holds a page, or that keeps its memory because its block does.
    pub fn for_each_staged(&self, _exclusive: &Exclusive<'_>, mut f: impl FnMut(usize)) {
        for block in 0..self.nr_blocks as u32 {
            let b = self.block(block);
            if b.parts_left.load(Ordering::Relaxed) > 0 {
                let is_whole = b.is_whole.load(Ordering::Relaxed) != 0;
                let is_kept = |frame: u32| {
                    let bundle = frame as usize % UNIT_PAGES / BUNDLE_FRAMES;
                    is_whole && b.filled[bundle].load(Ordering::Relaxed) > 0
                };
                let frames = (0..UNIT_PAGES).map(|offset| self.frame(block, offset));
                frames
                    .filter(|frame| self.owner(*frame).load(Ordering::Relaxed) != 0 || is_kept(*frame))
                    .for_each(|frame| f(self.addr(frame)));
            }
        }
    }

    /// True when another process may share what is staged in the frame's block.
    pub fn is_shared(&self, frame: u32) -> bool {
        self.block(frame / UNIT_PAGES as u32).unfit.load(Ordering::Relaxed) == u32::MAX
    }

    /// True when there is a free block.
    pub fn has_room(&self) -> bool {
        self.free.len() > 0
    }

    /// Gives back a block of which no frame is in the books. Drops whatever else a MOVE may have taken along.
    pub fn give_back_unused(&self, block: u32) {
        self.drop_frames(self.frame(block, 0), UNIT_PAGES);
        self.give_back(block);
    }

    /// Drops the memory of `n` frames from `first` on, and leaves the books as they are.
    pub fn drop_frames(&self, first: u32, n: usize) {
        let dropped = uapi::madvise(self.addr(first), n * PAGE, linux_raw_sys::general::MADV_DONTNEED);
        assert!(dropped.is_ok(), "the kernel drops Ebb's own memory");
    }

    /// Gives back a block whose frames are empty.
    fn give_back(&self, block: u32) {
        let pushed = self.free.push(block as u64);
        assert!(pushed, "a block was given back twice");
    }

    /// Notes how many frames of each bundle of `block` a sweep filled. Call it before any page's state names a frame of
    /// the block.
    pub fn fill(&self, block: u32, filled: &[u32; BUNDLES]) {
        self.hold(block, filled);
        self.staged.fetch_add(filled.iter().map(|n| *n as u64).sum(), Ordering::Relaxed);
    }

    /// Keeps all frames of a block, which a sweep has just filled, out of the stock.
    pub fn keep_none(&self, block: u32) {
        self.block(block).unfit.store((1 << BUNDLES) - 1, Ordering::Relaxed);
    }

    /// Notes how many frames of each bundle of `block` have memory behind them.
    fn hold(&self, block: u32, filled: &[u32; BUNDLES]) {
        let b = self.block(block);
        b.unfit.store(0, Ordering::Relaxed);
        b.since.store(clock::tick(), Ordering::Relaxed);
        b.is_whole.store(0, Ordering::Relaxed);
        for (to, n) in b.filled.iter().zip(filled) {
            to.store(*n, Ordering::Relaxed);
        }
        self.held.fetch_add(filled.iter().map(|n| *n as u64).sum(), Ordering::Relaxed);
    }

    /// Cuts a filled block into parts and queues them. Call it after the states of its pages are published.
    pub fn enqueue(&self, block: u32) {
        let b = self.block(block);
        let feeds_files = self.feeds_files.load(Ordering::Relaxed);
        let least = if feeds_files { PART_PAGES_MIN_TO_FILES } else { PART_PAGES_MIN };
        // The first bundle of each part. The last part ends where the block does.
        let mut firsts = [0; BUNDLES];
        let (mut nr_parts, mut pages) = (0, 0);
        for (i, n) in b.filled.iter().enumerate() {
            let n = n.load(Ordering::Relaxed);
            // When a part has enough pages, the next bundle that has any begins a new part.
            if nr_parts == 0 || (pages >= least && n > 0 && b.is_whole.load(Ordering::Relaxed) == 0) {
                firsts[nr_parts] = i;
                nr_parts += 1;
                pages = 0;
            }
            pages += n;
        }
        // Stored before the first part is queued, because another thread may release that part at once.
        b.parts_left.store(nr_parts as u32, Ordering::Release);
        for (i, first) in firsts[..nr_parts].iter().enumerate() {
            let end = if i + 1 < nr_parts { firsts[i + 1] } else { BUNDLES };
            self.requeue(Part::new(block, *first, end - first));
        }
    }

    /// Puts a part at the end of the queue.
    pub fn requeue(&self, part: Part) {
        let pushed = self.queue.push(part.0);
        assert!(pushed, "there are no more parts than places in the queue");
    }

    /// Takes the part that was swept longest ago out of the queue.
    pub fn pop_oldest(&self) -> Option<Part> {
        self.queue.pop().map(Part)
    }

    /// Likewise, if it has been staged for at least `ticks` ([`clock::tick`]).
    pub fn pop_aged(&self, ticks: u32) -> Option<Part> {
        let part = self.pop_oldest()?;
        let since = self.block(part.block()).since.load(Ordering::Relaxed);
        if clock::tick().wrapping_sub(since) >= ticks {
            return Some(part);
        }
        let pushed = self.queue.push_first(part.0);
        assert!(pushed, "there are no more parts than places in the queue");
        None
    }

    /// Parts in the queue.
    pub fn nr_queued(&self) -> usize {
        self.queue.len()
    }

    /// The frames of a part.
    pub fn frames_of(&self, part: Part) -> core::ops::Range<u32> {
        let bundles = part.bundles();
        let first = self.frame(part.block(), bundles.start * BUNDLE_FRAMES);
        first..first + (bundles.len() * BUNDLE_FRAMES) as u32
    }

    /// True when no page needs a frame of the part any more.
    pub fn is_drained(&self, part: Part) -> bool {
        // Acquire pairs with `put_frame`: whatever was copied out of the frame was copied before.
        self.frames_of(part).all(|f| self.owner(f).load(Ordering::Acquire) == 0)
    }

    /// Releases a drained part's memory; returns how many pages that freed. `keep` is offered each full bundle, by its
    /// first frame, and says whether it takes the bundle. The rest is dropped, with one call for each range between
    /// bundles that `keep` took.
    pub fn release(&self, part: Part, mut keep: impl FnMut(u32) -> bool) -> usize {
        let (b, block) = (self.block(part.block()), part.block());
        let unfit = b.unfit.load(Ordering::Relaxed);
        let (mut freed, mut start) = (0, part.bundles().start);
        let drop = |bundles: core::ops::Range<usize>| {
            if bundles.is_empty() {
                return 0;
            }
            self.drop_frames(self.frame(block, bundles.start * BUNDLE_FRAMES), bundles.len() * BUNDLE_FRAMES);
            bundles.map(|g| b.filled[g].swap(0, Ordering::Relaxed)).sum::<u32>()
        };
        for bundle in part.bundles() {
            if unfit & 1 << bundle != 0 || b.filled[bundle].load(Ordering::Relaxed) as usize != BUNDLE_FRAMES {
                continue;
            }
            // Counted first, because another thread may use the bundle up at once.
            b.parts_left.fetch_add(1, Ordering::Relaxed);
            if keep(self.frame(block, bundle * BUNDLE_FRAMES)) {
                freed += drop(start..bundle);
                start = bundle + 1;
            } else {
                b.parts_left.fetch_sub(1, Ordering::Relaxed);
            }
        }
        freed += drop(start..part.bundles().end);
        self.held.fetch_sub(freed as u64, Ordering::Relaxed);
        self.end_part(block);
        freed as usize
    }

    /// Notes that a part of the block was released, or that a kept bundle of it was used up.
    fn end_part(&self, block: u32) {
        if self.block(block).parts_left.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.give_back(block);
        }
    }

    /// Puts the otherwise empty `block` to use: all frames of its `bundles`, a bit each, have memory behind them, which
    /// no page needs. `keep` takes each bundle, by its first frame.
    pub fn hold_bundles(&self, block: u32, bundles: u32, mut keep: impl FnMut(u32)) {
        let filled = core::array::from_fn(|g| (bundles >> g & 1) * BUNDLE_FRAMES as u32);
        self.hold(block, &filled);
        // One more than there are bundles, so that the block stays in use until `keep` has been told of all.
        self.block(block).parts_left.store(bundles.count_ones() + 1, Ordering::Release);
        (0..BUNDLES).filter(|g| bundles >> g & 1 != 0).for_each(|g| keep(self.frame(block, g * BUNDLE_FRAMES)));
        self.end_part(block);
    }

    /// Notes that `n` kept frames from `first` on, all of one block, have no memory any more.
    pub fn frames_left(&self, first: u32, n: u32) {
        self.held.fetch_sub(n as u64, Ordering::Relaxed);
        let (mut at, end) = (first, first + n);
        while at < end {
            let (block, bundle) = (at / UNIT_PAGES as u32, at as usize % UNIT_PAGES / BUNDLE_FRAMES);
            let pages = (BUNDLE_FRAMES as u32 - at % BUNDLE_FRAMES as u32).min(end - at);
            at += pages;
            if self.block(block).filled[bundle].fetch_sub(pages, Ordering::AcqRel) == pages {
                self.end_part(block);
            }
        }
    }

    /// Notes that the memory of `n` staged frames from `first` on, all of one block, belongs to their pages now. Call
    /// it before [`Self::put_frame`] for these frames.
    pub fn frames_taken(&self, first: u32, n: u32) {
        self.held.fetch_sub(n as u64, Ordering::Relaxed);
        for frame in first..first + n {
            let bundle = frame as usize % UNIT_PAGES / BUNDLE_FRAMES;
            self.block(frame / UNIT_PAGES as u32).filled[bundle].fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Drops `n` kept frames from `first` on, all of one block.
    pub fn drop_kept(&self, first: u32, n: u32) {
        self.drop_frames(first, n as usize);
        self.frames_left(first, n);
    }

    /// Before fork: keeps all that is staged now out of the stock, because the child will share it. The stock must be
    /// empty.
    pub fn keep_no_more(&self, _exclusive: &Exclusive<'_>) {
        for block in 0..self.nr_blocks as u32 {
            let b = self.block(block);
            if b.parts_left.load(Ordering::Relaxed) > 0 {
                b.unfit.store(u32::MAX, Ordering::Relaxed);
            }
        }
    }

    /// Gives up a frame whose content is elsewhere now. The calling thread, its last reader, is done with it.
    pub fn put_frame(&self, frame: u32) {
        self.staged.fetch_sub(1, Ordering::Relaxed);
        let owner = self.owner(frame).swap(0, Ordering::Release);
        debug_assert!(owner != 0);
    }

    /// Pages that are staged now.
    pub fn staged(&self) -> usize {
        self.staged.load(Ordering::Relaxed) as usize
    }

    /// Frames with memory behind them.
    pub fn held(&self) -> usize {
        self.held.load(Ordering::Relaxed) as usize
    }

    /// True when staging holds as many pages as it aims to, and some of them wait for their turn. If all are in the hands of
    /// threads that swap them out, another thread needs pages of its own to do so.
    pub fn is_full(&self) -> bool {
        self.staged() >= self.target.load(Ordering::Relaxed) && self.nr_queued() > 0
    }

    /// True when staging holds half as many pages as it aims to.
    pub fn is_half_full(&self) -> bool {
        self.staged() >= self.target.load(Ordering::Relaxed) / 2
    }

    /// After fork, in the child: queues parts again that a vanished thread worked on or offered, and frees blocks that one was
    /// about to fill.
    pub fn rebuild(&self) {
        // The thread that looked for vacated frames did not come along.
        self.is_vacating.store(false, Ordering::Relaxed);
        let _ = self.together.end();
        self.queue.clear();
        self.free.clear();
        for block in 0..self.nr_blocks as u32 {
            if self.block(block).parts_left.load(Ordering::Relaxed) == 0 {
                self.give_back(block);
            } else {
                self.enqueue(block);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::vacating::VACATED_MIN;
    use super::*;
    use crate::protocols::gate::tests::alone;

    /// The parts of a block whose bundles have `filled` pages each.
    fn parts_of(filled: [u32; BUNDLES], feeds_files: bool) -> Vec<core::ops::Range<usize>> {
        let staging = Staging::new(1 << 10).unwrap();
        staging.note_stored(feeds_files);
        let block = staging.take().unwrap();
        staging.fill(block, &filled);
        staging.enqueue(block);
        core::iter::from_fn(|| staging.pop_oldest()).map(Part::bundles).collect()
    }

    #[test]
    fn parts_are_the_whole_block_and_large_but_for_the_last() {
        const FILLS: [u32; 3] = [0, 40, 64];
        for (feeds_files, least) in [(false, PART_PAGES_MIN), (true, PART_PAGES_MIN_TO_FILES)] {
            for pattern in 1..3usize.pow(BUNDLES as u32) {
                let filled: [u32; BUNDLES] = core::array::from_fn(|i| FILLS[pattern / 3usize.pow(i as u32) % 3]);
                let parts = parts_of(filled, feeds_files);
                assert_eq!((parts[0].start, parts[parts.len() - 1].end), (0, BUNDLES), "{filled:?}");
                assert!(parts.windows(2).all(|pair| pair[0].end == pair[1].start), "{filled:?}: {parts:?}");
                let pages = |part: &core::ops::Range<usize>| filled[part.clone()].iter().sum::<u32>();
                assert!(parts[..parts.len() - 1].iter().all(|part| pages(part) >= least), "{filled:?}: {parts:?}");
                assert!(parts.iter().all(|part| pages(part) > 0), "{filled:?}: {parts:?}");
                let most = least + BUNDLE_FRAMES as u32;
                assert!(parts.iter().all(|part| pages(part) < most), "{filled:?}: {parts:?}");
            }
        }
    }

    #[test]
    fn frames_left_behind_are_dropped_where_they_are_many_and_no_others() {
        let staging = Staging::new(1 << 9).unwrap();
        let block = staging.take().unwrap();
        let at = |i: usize| staging.addr(staging.frame(block, i)) as *mut u64;
        // Bundles 0 to 3 are full. Bundle 4 has one page.
        let nr_pages = 4 * BUNDLE_FRAMES + 1;
        for i in 0..nr_pages {
            // SAFETY: a frame of this test's own staging, which is mapped for reading and writing.
            unsafe { at(i).write_volatile(i as u64 + 1) };
            staging.owner(staging.frame(block, i)).store(1 << 12, Ordering::Relaxed);
        }
        let filled = [64, 64, 64, 64, 1, 0, 0, 0];
        staging.fill(block, &filled);
        staging.enqueue(block);
        // Bundle 0 loses every second page, bundle 1 too few, bundle 3 all.
        let is_left = |i: usize| match i / BUNDLE_FRAMES {
            0 => i % 2 == 1,
            1 => i % BUNDLE_FRAMES < VACATED_MIN - 1,
            3 => true,
            _ => false,
        };
        (0..nr_pages).filter(|i| is_left(*i)).for_each(|i| staging.put_frame(staging.frame(block, i)));
        let is_dropped = |i: usize| is_left(i) && i / BUNDLE_FRAMES != 1;
        let drop = |ranges: &[(usize, usize)]| {
            let dropped =
                |(at, len): &&(usize, usize)| uapi::madvise(*at, *len, linux_raw_sys::general::MADV_DONTNEED).is_ok();
            ranges.iter().take_while(dropped).count()
        };
        assert!(staging.has_vacated(0));
        let mut freed = 0;
        for _ in 0..staging.nr_queued() {
            let part = staging.pop_oldest().unwrap();
            // Frames that were not dropped are not counted as freed.
            assert_eq!(staging.vacate(part, |_| 0), 0);
            freed += staging.vacate(part, drop);
            // A second look finds nothing more.
            assert_eq!(staging.vacate(part, drop), 0);
            staging.requeue(part);
        }
        assert!(staging.begin_vacating() && !staging.begin_vacating());
        staging.end_vacating(0);
        assert!(!staging.has_vacated(0));
        assert_eq!(freed, (0..nr_pages).filter(|i| is_dropped(*i)).count());
        for i in 0..nr_pages {
            // SAFETY: as above.
            let found = unsafe { at(i).read_volatile() };
            assert_eq!(found, if is_dropped(i) { 0 } else { i as u64 + 1 }, "frame {i}");
        }
        assert_eq!(staging.held(), nr_pages - freed);
        // The remaining pages go with their parts.
        (0..nr_pages).filter(|i| !is_left(*i)).for_each(|i| staging.put_frame(staging.frame(block, i)));
        let rest: usize =
            core::iter::from_fn(|| staging.pop_oldest()).map(|part| staging.release(part, |_| false)).sum();
        assert_eq!((rest, staging.held(), staging.staged()), (nr_pages - freed, 0, 0));
    }

    #[test]
    fn staging_is_full_only_while_something_waits_there() {
        let staging = Staging::new(100).unwrap();
        let fill = || {
            let block = staging.take().unwrap();
            staging.fill(block, &[64, 64, 0, 0, 0, 0, 0, 0]);
            staging.enqueue(block);
        };
        assert!(!staging.is_full());
        fill();
        assert!(staging.is_full());
        let parts = [staging.pop_oldest(), staging.pop_oldest()].map(Option::unwrap);
        // Two threads have all of it in hand. A third one sweeps.
        assert!(!staging.is_full());
        fill();
        assert!(staging.is_full());
        parts.into_iter().for_each(|part| staging.requeue(part));
        assert!(staging.is_full());
    }

    #[test]
    fn a_block_that_is_free_again_is_empty() {
        let staging = Staging::new(1 << 10).unwrap();
        let block = staging.take().unwrap();
        // One bundle is in the books. A page beyond it is counted by nobody.
        let touch = |offset: usize| {
            let at = staging.addr(staging.frame(block, offset));
            // SAFETY: a frame of this test's own staging, which is mapped for reading and writing.
            unsafe { (at as *mut u8).write_volatile(1) };
            at
        };
        let (counted, stray) = (touch(3), touch(5 * BUNDLE_FRAMES + 1));
        let mut filled = [0; BUNDLES];
        filled[0] = 64;
        staging.fill(block, &filled);
        staging.enqueue(block);
        while let Some(part) = staging.pop_oldest() {
            staging.release(part, |_| false);
        }
        assert!(!uapi::is_mapped(counted) && !uapi::is_mapped(stray));
        let free: Vec<u32> = core::iter::from_fn(|| staging.take()).collect();
        assert!(free.contains(&block));
        // A block in which nothing was counted is emptied too.
        let stray = touch(9);
        staging.give_back_unused(block);
        assert!(!uapi::is_mapped(stray));
    }

    /// Small staging, with one block in the books. There is memory behind its first frames of each bundle, and they
    /// have no owners.
    pub(super) fn with_block(filled: [u32; BUNDLES]) -> (Staging, u32) {
        let staging = Staging::new(1 << 10).unwrap();
        let block = staging.take().unwrap();
        for (bundle, n) in filled.iter().enumerate() {
            for i in 0..*n as usize {
                let at = staging.addr(staging.frame(block, bundle * BUNDLE_FRAMES + i));
                // SAFETY: a frame of this test's own staging, which is mapped for reading and writing.
                unsafe { (at as *mut u8).write_volatile(7) };
            }
        }
        staging.fill(block, &filled);
        staging.staged.store(0, Ordering::Relaxed);
        staging.enqueue(block);
        (staging, block)
    }

    /// Releases every part. Returns the first frames of the bundles that were kept, and how many pages were freed.
    fn release_all(staging: &Staging, mut keeps: impl FnMut(usize) -> bool) -> (Vec<u32>, usize) {
        let (mut kept, mut freed) = (Vec::new(), 0);
        while let Some(part) = staging.pop_oldest() {
            freed += staging.release(part, |first| {
                let keep = keeps(first as usize % UNIT_PAGES / BUNDLE_FRAMES);
                kept.extend(keep.then_some(first));
                keep
            });
        }
        (kept, freed)
    }

    pub(super) fn is_free(staging: &Staging, block: u32) -> bool {
        let all: Vec<u32> = core::iter::from_fn(|| staging.take()).collect();
        all.iter().for_each(|b| staging.give_back(*b));
        all.contains(&block)
    }

    #[test]
    fn a_block_is_free_when_its_last_kept_frame_is_gone() {
        let (staging, block) = with_block([64, 64, 63, 64, 64, 0, 64, 64]);
        let (kept, freed) = release_all(&staging, |bundle| bundle != 1);
        // Only full bundles are kept.
        assert_eq!(kept, [0, 3, 4, 6, 7].map(|bundle| staging.frame(block, bundle * BUNDLE_FRAMES)));
        assert_eq!((freed, staging.held()), (64 + 63, 5 * 64));
        for (i, first) in (0..UNIT_PAGES).map(|i| (i, staging.frame(block, i))) {
            let is_kept = kept.contains(&(first / 64 * 64));
            assert_eq!(uapi::is_mapped(staging.addr(first)), is_kept, "frame {i}");
        }
        assert!(!is_free(&staging, block));
        // Runs of several bundles, and pieces of bundles.
        staging.drop_kept(kept[1], 128);
        staging.frames_left(kept[3] + 32, 96);
        staging.drop_kept(kept[0], 63);
        assert!(!is_free(&staging, block));
        assert_eq!(staging.held(), 1 + 32);
        staging.frames_left(kept[3], 32);
        assert!(!is_free(&staging, block));
        staging.frames_left(kept[0] + 63, 1);
        assert!(is_free(&staging, block));
        assert_eq!(staging.held(), 0);
    }

    #[test]
    fn frames_that_may_be_missing_or_shared_are_not_kept() {
        // Bundle 0 may have lost frames: a drop failed, and nobody knows what it dropped. Bundle 3 lost a frame to its
        // page.
        let (staging, block) = with_block([64; BUNDLES]);
        let part = staging.pop_oldest().unwrap();
        assert_eq!(staging.vacate(part, |_| 0), 0);
        staging.requeue(part);
        staging.frames_taken(staging.frame(block, 3 * BUNDLE_FRAMES), 1);
        let (kept, freed) = release_all(&staging, |_| true);
        assert_eq!(kept.len(), BUNDLES - 2);
        assert_eq!(freed, 2 * BUNDLE_FRAMES - 1);
        assert!(kept.iter().all(|first| ![0, 3].contains(&(*first as usize % UNIT_PAGES / BUNDLE_FRAMES))));
        // A bundle that a child shares is not kept.
        let (staging, block) = with_block([64; BUNDLES]);
        staging.keep_no_more(&alone());
        assert!(release_all(&staging, |_| true).0.is_empty());
        // A block that is filled anew belongs to this process alone.
        while staging.take() != Some(block) {}
        staging.fill(block, &[64; BUNDLES]);
        staging.enqueue(block);
        assert_eq!(release_all(&staging, |_| true).0.len(), BUNDLES);
    }

    #[test]
    fn bundles_held_for_no_page_are_told_of_once_and_free_their_block() {
        let staging = Staging::new(1 << 10).unwrap();
        let block = staging.take().unwrap();
        let mut kept = Vec::new();
        staging.hold_bundles(block, 0b1010_0001, |first| kept.push(first));
        assert_eq!(kept, [0, 5, 7].map(|bundle| staging.frame(block, bundle * BUNDLE_FRAMES)));
        assert_eq!((staging.held(), staging.staged()), (3 * 64, 0));
        // The bundles are used up before `keep` was told of all.
        let other = staging.take().unwrap();
        staging.hold_bundles(other, 0b11, |first| staging.drop_kept(first, 64));
        assert!(is_free(&staging, other) && !is_free(&staging, block));
        kept.iter().for_each(|first| staging.drop_kept(*first, 64));
        assert!(is_free(&staging, block));
        assert_eq!(staging.held(), 0);
    }
}
