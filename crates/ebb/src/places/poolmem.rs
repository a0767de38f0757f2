//! The memory behind the compressed pool: charged to the budget while it is held, with a few empty blocks kept for reuse.

use crate::base::uapi::{self, Errno};
use crate::budget::Budget;
use crate::counters::stats::{self, Shared};
use crate::tree::holding::Fork;
use core::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering};
use ebb_pool::{BLOCK_PAGES, Backing};

/// How long files that took nothing are not asked again.
const REFUSED_NS: u64 = 1_000_000_000;
const FOR_EVER: u64 = u64::MAX;
const SPARE_EIGHTHS: usize = 7;
/// Blocks that what makes the pool smaller may take when it is full.
const BEYOND_BLOCKS: usize = 8;

/// The pool's memory. It is charged while it is held; a few empty blocks are kept for reuse.
pub struct PoolMemory {
    arena: usize,
    /// One byte a block: 1 for a spare block, which has no objects but still has memory; 2 while that memory is given
    /// back.
    spare: *const AtomicU8,
    /// [`HELD`] and [`SHARED`] for each block.
    held: *const AtomicU8,
    /// Blocks at or above this never had memory.
    high_water: AtomicUsize,
    nr_blocks: usize,
    nr_spare: AtomicUsize,
    spare_max: usize,
    pages: AtomicUsize,
    /// Most pages that the pool may hold: while a file takes what the pool does not, and without such a file.
    pages_max: [AtomicUsize; 2],
    /// Until when no file takes what the pool does not: 0 while a file does, [`FOR_EVER`] when there is no file.
    alone_until_ns: AtomicU64,
}

/// The block has memory.
const HELD: u8 = 1;
/// Some of the block's memory may be shared with another process since a fork.
const SHARED: u8 = 2;

// SAFETY: `spare` and `held` are arrays of atomics that live as long as the space.
unsafe impl Sync for PoolMemory {}
// SAFETY: as above.
unsafe impl Send for PoolMemory {}

/// The pool's memory, charged to a budget: what the pool uses as its backing.
pub struct Charging<'a> {
    memory: &'a PoolMemory,
    /// Pages that may be held beyond the most.
    beyond: usize,
    budget: &'a Budget,
    stats: &'a Shared,
}

impl PoolMemory {
    /// The memory of `nr_blocks` blocks at `arena`, none of which is held yet. `pages_max` says how many pages may be
    /// held with a file behind the pool, and without one.
    pub fn new(arena: usize, nr_blocks: usize, pages_max: [usize; 2]) -> Result<Self, Errno> {
        Ok(Self {
            arena,
            spare: uapi::reserve(nr_blocks)?.cast(),
            held: uapi::reserve(nr_blocks)?.cast(),
            high_water: AtomicUsize::new(0),
            nr_blocks,
            nr_spare: AtomicUsize::new(0),
            spare_max: (pages_max[0] / 64 / BLOCK_PAGES).max(8),
            pages: AtomicUsize::new(0),
            pages_max: pages_max.map(AtomicUsize::new),
            alone_until_ns: AtomicU64::new(FOR_EVER),
        })
    }

    /// The backing for a call of the pool: what it acquires is charged to `budget`.
    pub fn charging<'a>(&'a self, budget: &'a Budget, stats: &'a Shared) -> Charging<'a> {
        Charging { memory: self, beyond: 0, budget, stats }
    }

    /// The same for a call that makes the pool smaller in the end, and may need a few blocks for that: up to [`BEYOND_BLOCKS`] more than
    /// the pool has now, or may have.
    pub fn charging_to_shrink<'a>(&'a self, budget: &'a Budget, stats: &'a Shared) -> Charging<'a> {
        let over = self.pages.load(Ordering::Relaxed).saturating_sub(self.pages_max(budget));
        Charging { memory: self, beyond: over + BEYOND_BLOCKS * BLOCK_PAGES, budget, stats }
    }

    /// Sets whether there is a file that takes what the pool does not.
    pub fn set_has_file(&self, has_file: bool) {
        self.alone_until_ns.store(if has_file { 0 } else { FOR_EVER }, Ordering::Relaxed);
    }

    /// Notes that the files took nothing. They are asked again after `REFUSED_NS`: the cause may pass, and only another
    /// try can tell.
    pub fn set_refused(&self) {
        let until = uapi::now_ns() + REFUSED_NS;
        // Where there is no file, waiting brings none.
        let _ = self
            .alone_until_ns
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |old| (old != FOR_EVER).then_some(until));
    }

    /// Notes that a file has room again.
    pub fn set_room(&self) {
        let old = self.alone_until_ns.load(Ordering::Relaxed);
        if old != 0 && old != FOR_EVER {
            let _ = self.alone_until_ns.compare_exchange(old, 0, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// True when the files took nothing the last time, and when there is no file.
    pub fn was_refused(&self) -> bool {
        self.alone_until_ns.load(Ordering::Relaxed) != 0
    }

    /// True while no file takes what the pool does not.
    pub fn is_alone(&self) -> bool {
        let until = self.alone_until_ns.load(Ordering::Relaxed);
        until != 0 && (until == FOR_EVER || uapi::now_ns() < until)
    }

    /// Pages held.
    pub fn pages(&self) -> usize {
        self.pages.load(Ordering::Relaxed)
    }

    /// Most pages that may be held now. While RAM is not short the pool may hold as many as without a file, but never
    /// more, because it may turn out that no file takes the rest.
    pub fn pages_max(&self, budget: &Budget) -> usize {
        let takes_all = self.is_alone() || budget.has_plenty();
        self.pages_max[takes_all as usize].load(Ordering::Relaxed)
    }

    /// True while the pool holds less than [`SPARE_EIGHTHS`] eighths of what it may.
    pub fn has_room_to_spare(&self, budget: &Budget) -> bool {
        self.pages() * 8 < self.pages_max(budget) * SPARE_EIGHTHS
    }

    /// Changes how many pages may be held: with a file behind the pool, and without one.
    pub fn set_pages_max(&self, pages_max: [usize; 2]) {
        for (to, pages) in self.pages_max.iter().zip(pages_max) {
            to.store(pages, Ordering::Relaxed);
        }
    }

    fn spare(&self, block: u32) -> &AtomicU8 {
        assert!((block as usize) < self.nr_blocks);
        // SAFETY: checked index.
        unsafe { &*self.spare.add(block as usize) }
    }

    fn held(&self, block: u32) -> &AtomicU8 {
        assert!((block as usize) < self.nr_blocks);
        // SAFETY: checked index.
        unsafe { &*self.held.add(block as usize) }
    }

    /// Address of all blocks, and their size in pages.
    pub fn arena(&self) -> (usize, usize) {
        (self.arena, self.nr_blocks * BLOCK_PAGES)
    }

    fn page_addr(&self, block: u32, page: usize) -> usize {
        self.arena + (block as usize * BLOCK_PAGES + page) * 4096
    }

    /// Shares with the child of the fork to come all blocks that have memory.
    pub fn share(&self, fork: &mut Fork<'_>) {
        for block in 0..self.high_water.load(Ordering::Relaxed) as u32 {
            let held = self.held(block);
            if held.load(Ordering::Relaxed) & HELD != 0 {
                held.store(HELD | SHARED, Ordering::Relaxed);
                (0..BLOCK_PAGES).for_each(|page| {
                    fork.share(self.page_addr(block, page));
                });
            }
        }
    }

    fn drop_blocks(&self, budget: &Budget, first: usize, n: usize) {
        for block in first as u32..(first + n) as u32 {
            if self.held(block).swap(0, Ordering::Relaxed) & SHARED != 0 {
                (0..BLOCK_PAGES).for_each(|page| {
                    budget.tree().break_page(self.page_addr(block, page));
                });
            }
        }
        let bytes = BLOCK_PAGES * 4096;
        let _ = uapi::madvise(self.arena + first * bytes, n * bytes, linux_raw_sys::general::MADV_DONTNEED);
        budget.uncharge(n * BLOCK_PAGES);
        self.pages.fetch_sub(n * BLOCK_PAGES, Ordering::Relaxed);
    }

    /// Gives back the memory of all spare blocks, neighbours in one call.
    pub fn trim(&self, budget: &Budget) {
        if self.nr_spare.load(Ordering::Relaxed) == 0 {
            return;
        }
        let (mut first, mut n) = (0, 0);
        for block in 0..self.nr_blocks {
            let taken = self.spare(block as u32).load(Ordering::Relaxed) == 1
                && self.spare(block as u32).compare_exchange(1, 2, Ordering::Acquire, Ordering::Relaxed).is_ok();
            if taken {
                self.nr_spare.fetch_sub(1, Ordering::Relaxed);
                if n == 0 {
                    first = block;
                }
                n += 1;
            }
            if n > 0 && (!taken || block + 1 == self.nr_blocks || n == 64) {
                self.drop_blocks(budget, first, n);
                for b in first..first + n {
                    self.spare(b as u32).store(0, Ordering::Release);
                }
                n = 0;
            }
            if self.nr_spare.load(Ordering::Relaxed) == 0 && n == 0 {
                break;
            }
        }
    }
}

impl Backing for Charging<'_> {
    fn acquire(&self, block: u32, pages: u32) -> bool {
        let m = self.memory;
        let spare = m.spare(block);
        loop {
            match spare.compare_exchange(1, 0, Ordering::Acquire, Ordering::Acquire) {
                Ok(_) => {
                    m.nr_spare.fetch_sub(1, Ordering::Relaxed);
                    return true;
                }
                // Another thread is giving the block's memory back at this moment.
                Err(2) => core::hint::spin_loop(),
                Err(_) => break,
            }
        }
        let now = m.pages.fetch_add(pages as usize, Ordering::Relaxed) + pages as usize;
        if now > m.pages_max(self.budget) + self.beyond {
            m.pages.fetch_sub(pages as usize, Ordering::Relaxed);
            return false;
        }
        self.budget.force_charge(pages as usize);
        m.held(block).store(HELD, Ordering::Relaxed);
        m.high_water.fetch_max(block as usize + 1, Ordering::Relaxed);
        stats::raise(&self.stats.peak_pool_bytes, now as u64 * 4096);
        true
    }

    fn will_write(&self, block: u32, first: u32, pages: u32) {
        let m = self.memory;
        if m.held(block).load(Ordering::Relaxed) & SHARED != 0 {
            (first..first + pages).for_each(|page| {
                self.budget.tree().break_page(m.page_addr(block, page as usize));
            });
        }
    }

    fn release(&self, block: u32, pages: u32) {
        self.release_all(&[block], pages);
    }

    fn release_all(&self, blocks: &[u32], _pages: u32) {
        let m = self.memory;
        let room = m.spare_max.saturating_sub(m.nr_spare.load(Ordering::Relaxed));
        let (spare, rest) = blocks.split_at(room.min(blocks.len()));
        for block in spare {
            m.nr_spare.fetch_add(1, Ordering::Relaxed);
            m.spare(*block).store(1, Ordering::Release);
        }
        // Neighbours with one call.
        for run in rest.chunk_by(|a, b| a + 1 == *b) {
            m.drop_blocks(self.budget, run[0] as usize, run.len());
        }
    }
}
