//! Work buffers, for work that does not fit a stack frame: compressing, writing, and bringing in many pages at once.
//!
//! The whole space has only as many as there are processors, or fewer, because threads are many. A process that may expect
//! little of the budget has few, and frees the others: beside a hundred relatives its books are most of what it holds.
//! Reclaim waits for a buffer outside the gate. A fault only tries to get one, and otherwise makes do with a page of its own,
//! so nobody waits for a buffer inside the gate.

use crate::base::uapi::{self, Errno};
use crate::budget::Budget;
use crate::device::file::BATCH;
use crate::device::flights::FLIGHTS;
use crate::memory::table::UNIT_PAGES;
use crate::places::frames::RUN_MAX;
use crate::places::swapspace::Aim;
use crate::threads::ctx::{ThreadCtx, WINDOW_MAX};
use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicU32, Ordering};
use ebb_pool::codec::{Lz4State, Trials};
use ebb_sync::CacheLine;
use linux_raw_sys::general::MADV_NOHUGEPAGE;

/// Most work buffers.
const WORKS_MAX: usize = 32;
/// Work buffers that there are in any case.
const WORKS_MIN: usize = 2;
/// There is one more for each so many pages that the process may expect of the budget, up to the number of processors.
const WORK_EVERY: usize = 1024;
/// With few processors there are up to so many all the same, because threads that write wait for the device.
const WORKS_OF_FEW: usize = 8;
/// Buffers for runs.
const RUNS: usize = 8;
/// Buffers for runs may take 1/`RUNS_PART` of what the process may expect of the budget.
const RUNS_PART: usize = 64;

/// A batch of pages may take 1/`BATCH_PART` of what the process may expect of the budget.
const BATCH_PART: usize = 256;

/// One work buffer.
#[repr(C, align(4096))]
pub struct Work {
    /// A copy of a page that threads may take back or write to.
    pub stable: [u8; 4096],
    /// One compressed page.
    pub out: [u8; 4352],
    /// The compressor's state.
    pub lz4: Lz4State,
    /// How the last attempts to compress pages went.
    pub trials: Trials,
    /// State words of the unit that is being swept.
    pub saved: [u64; UNIT_PAGES],
    /// Pages that the holder of the lease may use of `pages`, and that are charged.
    batch: usize,
    /// Where the holder of the lease stores pages, as a number: any bytes are a valid buffer.
    aim: u8,
    number: usize,
    /// Only the first `batch` of them may be used, or as many for each flight; see [`Self::pages`].
    pub pages: Pages,
}

/// Pages on their way in, or to a file.
#[repr(C, align(4096))]
pub struct Pages(pub [u8; FLIGHTS * BATCH * 4096]);

impl Work {
    /// Most pages on their way in or out at a time: a power of two, at least [`WINDOW_MAX`] and at most [`BATCH`].
    pub fn batch(&self) -> usize {
        self.batch
    }

    /// Whether the holder of the lease has room for transfers in flight.
    pub fn has_flights(&self) -> bool {
        self.batch >= FLYING_MIN
    }

    /// The number of the buffer.
    pub fn number(&self) -> usize {
        self.number
    }

    /// Where the holder of the lease stores pages: where they go by themselves, unless it says otherwise.
    pub fn aim(&self) -> Aim {
        Aim::of_bits(self.aim)
    }

    /// Sets [`Self::aim`] for the rest of the lease.
    pub fn set_aim(&mut self, aim: Aim) {
        self.aim = aim as u8;
    }

    /// Room for a batch of pages on their way in, or to a file.
    pub fn pages(&mut self) -> &mut [u8] {
        &mut self.pages.0[..self.batch * 4096]
    }

    /// [`Self::batch`] in a process that may expect `share` pages of the budget.
    pub fn batch_of(share: usize) -> usize {
        1 << (share / BATCH_PART).clamp(WINDOW_MAX, BATCH).ilog2()
    }
}

const _: () = assert!(WINDOW_MAX <= BATCH && WINDOW_MAX.is_power_of_two() && BATCH.is_power_of_two());

/// Pages of a work buffer that has so many pages on their way.
fn pages_of(on_their_way: usize) -> usize {
    core::mem::offset_of!(Work, pages) / 4096 + on_their_way
}

/// A buffer for the pages of a run on their way in.
#[repr(C, align(4096))]
pub struct Run {
    /// As many pages as the longest run has.
    pub pages: [u8; RUN_MAX * 4096],
}

/// All buffers of one kind. Any bytes are a valid `T`. Each is charged as far as it was used.
pub struct Buffers<T> {
    at: *const UnsafeCell<T>,
    used: CacheLine<AtomicU32>,
    /// Pages of each buffer that are charged. Only the thread that has the buffer's lease changes its count.
    charged: [AtomicU32; WORKS_MAX],
}

// SAFETY: a buffer is reached only through its lease, which one thread holds.
unsafe impl<T: Send> Sync for Buffers<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Send for Buffers<T> {}

/// A buffer in use.
pub struct Lease<'a, T> {
    buffers: &'a Buffers<T>,
    index: usize,
}

impl<T> Buffers<T> {
    pub(super) fn reserve(n: usize) -> Result<Self, Errno> {
        let bytes = n * core::mem::size_of::<T>();
        let at = uapi::reserve_aligned(bytes, 4096)?;
        // The charge follows the use of a buffer, so no huge page may bring memory along that nobody used.
        let _ = uapi::madvise(at as usize, bytes, MADV_NOHUGEPAGE);
        Ok(Self {
            at: at.cast(),
            used: CacheLine(AtomicU32::new(0)),
            charged: [const { AtomicU32::new(0) }; WORKS_MAX],
        })
    }

    pub(super) fn reset(&self) {
        self.used.store(0, Ordering::Relaxed);
    }

    /// Leases a free buffer of those in `mask`: number `first`, or the first that is free.
    pub(super) fn lease_of(&self, mask: u32, first: usize) -> Option<Lease<'_, T>> {
        let mut used = self.used.load(Ordering::Relaxed);
        loop {
            let free = mask & !used;
            if free == 0 {
                return None;
            }
            let bit = if free & 1 << first != 0 { 1 << first } else { free & free.wrapping_neg() };
            match self.used.compare_exchange_weak(used, used | bit, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return Some(Lease { buffers: self, index: bit.trailing_zeros() as usize }),
                Err(now) => used = now,
            }
        }
    }
}

impl<T> Buffers<T> {
    /// Charges the first `pages` pages of a buffer, as far as they are not charged yet. The caller has its lease.
    fn charge(&self, index: usize, pages: usize, budget: &Budget) {
        let Some(charged) = self.charged.get(index) else { return };
        let lacks = pages.saturating_sub(charged.load(Ordering::Relaxed) as usize);
        if lacks > 0 {
            budget.charge_meta(lacks * 4096);
            charged.fetch_add(lacks as u32, Ordering::Relaxed);
        }
    }

    /// The buffers, a bit each, that have memory and are not among `kept`.
    pub(super) fn excess(&self, kept: u32) -> u32 {
        let has_memory = |i: &usize| self.charged[*i].load(Ordering::Relaxed) > 0;
        (0..WORKS_MAX).filter(has_memory).fold(0, |mask, i| mask | 1 << i) & !kept
    }

    /// Frees the memory of all buffers but those of `kept` and those in use; returns how many pages that freed.
    pub(super) fn trim(&self, kept: u32, budget: &Budget) -> usize {
        let (mut freed, mut excess) = (0, self.excess(kept));
        while let Some(lease) = self.lease_of(excess, 0) {
            excess &= !(1 << lease.index);
            let charged = &self.charged[lease.index];
            let pages = charged.load(Ordering::Relaxed) as usize;
            if pages > 0 && budget.drop_books(lease.at().addr(), pages * 4096) {
                charged.store(0, Ordering::Relaxed);
                budget.uncharge_meta(pages * 4096);
                freed += pages;
            }
        }
        freed
    }
}

impl<T> Lease<'_, T> {
    fn at(&self) -> *mut T {
        // SAFETY: the index is that of a buffer.
        UnsafeCell::raw_get(unsafe { self.buffers.at.add(self.index) })
    }

    /// Charges the first `pages` pages of the buffer, as far as they are not charged yet.
    pub(super) fn charge(&self, pages: usize, budget: &Budget) {
        self.buffers.charge(self.index, pages, budget);
    }
}

/// The first `n` buffers, a bit each.
pub(super) fn first(n: usize) -> u32 {
    ((1u64 << n.min(WORKS_MAX)) - 1) as u32
}

/// The work buffers.
pub struct WorkBuffers {
    buffers: Buffers<Work>,
    nr_cpus: usize,
}

/// Pages of the smallest buffer with flights.
const FLYING_MIN: usize = BATCH;

impl WorkBuffers {
    /// Reserves the buffers.
    pub fn new() -> Result<Self, Errno> {
        Ok(Self { buffers: Buffers::reserve(WORKS_MAX)?, nr_cpus: uapi::nr_cpus() })
    }

    /// After fork, in the child: frees the buffers of threads that did not come along.
    pub fn reset(&self) {
        self.buffers.reset();
    }

    /// Charges the pages of as many batches of buffer `number`, whose lease the caller has, as far as they are not charged yet.
    pub fn charge_batches(&self, number: usize, batches: usize, batch: usize, budget: &Budget) {
        self.buffers.charge(number, pages_of(batches * batch), budget);
    }

    /// How many buffers a process may use that may expect `share` pages of the budget.
    fn allowed(nr_cpus: usize, share: usize) -> usize {
        (WORKS_MIN + share / WORK_EVERY).min(nr_cpus.clamp(WORKS_OF_FEW, WORKS_MAX))
    }

    /// Leases a buffer, if one is free. A thread gets the same one again if it can, because that is in its processor's cache.
    pub fn try_lease(&self, budget: &Budget, ctx: &ThreadCtx) -> Option<Lease<'_, Work>> {
        let n = Self::allowed(self.nr_cpus, budget.expected());
        let mut lease = self.buffers.lease_of(first(n), ctx.shard() % n)?;
        (lease.batch, lease.number) = (Work::batch_of(budget.expected()), lease.index);
        lease.set_aim(Aim::Usual);
        lease.charge(pages_of(lease.batch), budget);
        Some(lease)
    }

    /// Leases a buffer, and waits until one is free. Call it outside the gate only.
    pub fn lease(&self, budget: &Budget, ctx: &ThreadCtx) -> Lease<'_, Work> {
        loop {
            if let Some(lease) = self.try_lease(budget, ctx) {
                return lease;
            }
            uapi::sched_yield();
        }
    }
}

impl WorkBuffers {
    /// The buffers, a bit each, that a process leaves alone that may expect `share` pages: one more than it may use, because
    /// what a process may expect goes up and down.
    fn kept(&self, share: usize) -> u32 {
        first(Self::allowed(self.nr_cpus, share) + 1)
    }

    /// Whether any buffer has memory that a process that may expect `share` pages does not need.
    pub fn are_too_many(&self, share: usize) -> bool {
        self.buffers.excess(self.kept(share)) != 0
    }

    /// Frees the memory of buffers that a process that may expect `share` pages does not need, except buffers in use;
    /// returns how many pages that freed. Call it inside the gate or with the gate closed.
    pub fn trim(&self, share: usize, budget: &Budget) -> usize {
        self.buffers.trim(self.kept(share), budget)
    }

    /// Frees the memory of all buffers that are not in use; returns how many pages that freed. Call it as [`Self::trim`].
    pub fn release(&self, budget: &Budget) -> usize {
        self.buffers.trim(0, budget)
    }
}

impl<T> Deref for Lease<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: the lease is the only way to this buffer; any bytes are a valid value.
        unsafe { &*self.at() }
    }
}

impl<T> DerefMut for Lease<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as in `deref`.
        unsafe { &mut *self.at() }
    }
}

impl<T> Drop for Lease<'_, T> {
    fn drop(&mut self) {
        self.buffers.used.fetch_and(!(1 << self.index), Ordering::Release);
    }
}

/// Buffers for runs. They take at most a small part of what the process may expect of the budget, so a small process
/// may have none. They are leased inside the gate only.
pub struct RunBuffers {
    buffers: Buffers<Run>,
}

impl RunBuffers {
    /// Reserves the buffers.
    pub fn new() -> Result<Self, Errno> {
        Ok(Self { buffers: Buffers::reserve(RUNS)? })
    }

    /// After fork, in the child: frees the buffers of threads that died inside the gate. No others are leased, because
    /// leases are taken inside the gate only.
    pub fn reset(&self) {
        self.buffers.reset();
    }

    /// The buffers, a bit each, that a process may use which may expect `share` pages of the budget.
    fn allowed(share: usize) -> u32 {
        (1 << (share / RUNS_PART / RUN_MAX).min(RUNS)) - 1
    }

    /// Whether a process that may expect `share` pages of the budget may use any buffer.
    pub fn are_allowed(share: usize) -> bool {
        Self::allowed(share) != 0
    }

    /// Leases a buffer for `n` pages and charges them, if a buffer is free that the process may use.
    pub fn try_lease(&self, n: usize, budget: &Budget) -> Option<Lease<'_, Run>> {
        let lease = self.buffers.lease_of(Self::allowed(budget.expected()), 0)?;
        lease.charge(n.min(RUN_MAX), budget);
        Some(lease)
    }

    /// Whether any buffer has memory although a process that may expect `share` pages may not use it.
    pub fn are_too_many(&self, share: usize) -> bool {
        self.buffers.excess(Self::allowed(share)) != 0
    }

    /// Frees the memory of buffers that a process that may expect `share` pages may not use, except buffers in use;
    /// returns how many pages that freed. Call it inside the gate or with the gate closed.
    pub fn trim(&self, share: usize, budget: &Budget) -> usize {
        self.buffers.trim(Self::allowed(share), budget)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budget::tests::budget;

    #[test]
    fn there_are_work_buffers_for_the_processors_and_fewer_in_a_small_share() {
        assert_eq!([1, 8, 12, 200].map(|cpus| WorkBuffers::allowed(cpus, usize::MAX)), [8, 8, 12, 32]);
        assert_eq!([0, WORK_EVERY, 20 * WORK_EVERY].map(|share| WorkBuffers::allowed(12, share)), [2, 3, 12]);
    }

    #[test]
    fn a_process_that_may_expect_less_frees_work_buffers() {
        let pages = core::mem::size_of::<Work>() / 4096;
        let works = WorkBuffers { nr_cpus: 8, ..WorkBuffers::new().expect("memory") };
        let g = budget(8 * WORK_EVERY as u64);
        for index in 0..8 {
            let mut lease = works.buffers.lease_of(1 << index, 0).expect("free");
            lease.charge(pages, &g);
            lease.stable.fill(1);
        }
        assert_eq!(g.meta_pages(), 8 * pages);
        assert!(!works.are_too_many(8 * WORK_EVERY));
        assert_eq!(works.trim(8 * WORK_EVERY, &g), 0);
        // Four of these may be used, and one more stays.
        let used = works.buffers.lease_of(1 << 7, 7).expect("free");
        assert!(works.are_too_many(2 * WORK_EVERY));
        assert_eq!(works.trim(2 * WORK_EVERY, &g), 2 * pages);
        drop(used);
        assert_eq!(works.trim(2 * WORK_EVERY, &g), pages);
        assert_eq!((g.meta_pages(), works.are_too_many(2 * WORK_EVERY)), (5 * pages, false));
        assert!(!uapi::are_resident(works.buffers.at as usize + 5 * pages * 4096, 1));
        // With the end in sight only those stay that a thread works in.
        let used = works.buffers.lease_of(1, 0).expect("free");
        assert_eq!(works.release(&g), 4 * pages);
        assert_eq!((used.stable[0], g.meta_pages()), (1, pages));
    }

    #[test]
    fn a_buffer_that_is_asked_for_is_given_if_it_is_free() {
        let buffers = Buffers::<Run>::reserve(RUNS).expect("memory");
        let lease = |first| buffers.lease_of(0b111, first).map(|lease| (lease.index, lease));
        let (two, held) = lease(2).expect("free");
        let (other, also) = lease(2).expect("another is free");
        let (last, _all) = lease(5).expect("the last");
        assert_eq!((two, other, last), (2, 0, 1));
        assert!(lease(0).is_none());
        drop((held, also));
        assert_eq!(lease(2).map(|(index, _)| index), Some(2));
    }

    #[test]
    fn a_small_share_has_no_buffers_for_runs_and_a_large_one_all() {
        let one = RUNS_PART * RUN_MAX;
        assert_eq!(RunBuffers::allowed(one - 1), 0);
        assert!(RunBuffers::are_allowed(one) && !RunBuffers::are_allowed(one - 1));
        assert_eq!(RunBuffers::allowed(2 * one), 0b11);
        assert_eq!(RunBuffers::allowed(usize::MAX), 0xff);
    }

    #[test]
    fn a_buffer_is_charged_as_far_as_it_was_used() {
        let (g, runs) = (budget(3 * RUNS_PART as u64 * RUN_MAX as u64), RunBuffers::new().expect("memory"));
        drop(runs.try_lease(32, &g).expect("a buffer"));
        drop(runs.try_lease(100, &g).expect("a buffer"));
        drop(runs.try_lease(32, &g).expect("a buffer"));
        assert_eq!(g.meta_pages(), 100);
        let first = runs.try_lease(40, &g).expect("a buffer");
        let second = runs.try_lease(50, &g).expect("another");
        assert_eq!(g.meta_pages(), 150);
        let third = runs.try_lease(60, &g).expect("a third");
        assert!(runs.try_lease(60, &g).is_none());
        drop((first, second, third));
    }

    #[test]
    fn what_is_no_longer_allowed_is_freed_unless_it_is_in_use() {
        let one = RUNS_PART * RUN_MAX;
        let (g, runs) = (budget(2 * one as u64), RunBuffers::new().expect("memory"));
        let mut first = runs.try_lease(128, &g).expect("a buffer");
        let mut second = runs.try_lease(32, &g).expect("another");
        first.pages.fill(1);
        second.pages[..32 * 4096].fill(2);
        assert!(!runs.are_too_many(2 * one) && runs.are_too_many(2 * one - 1));
        assert_eq!(runs.trim(2 * one, &g), 0);
        drop(second);
        assert_eq!(runs.trim(0, &g), 32);
        assert_eq!(g.meta_pages(), 128);
        drop(first);
        assert_eq!(runs.trim(one, &g), 0);
        assert_eq!((runs.trim(0, &g), g.meta_pages(), g.charged()), (128, 0, 0));
        assert!(!uapi::are_resident(runs.buffers.at as usize, 1));
    }
}
