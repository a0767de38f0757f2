//! The budget: what a space may hold, and what it holds now.
//!
//! A charge is a number of pages: resident, staged, pool and metadata alike. The tree of processes that the space
//! belongs to (`tree`) grants what may be charged. It does so a batch at a time, so that a charge shares no cache line
//! with other processes. The budget is hard: a thread that would exceed it reclaims first. Work that frees memory may
//! itself need a little: a frame beside the page that it copies, a pool block for what it compresses. Such charges are
//! forced, and bounded by one batch a thread.

mod watermarks;

use self::watermarks::gap_max;
use crate::base::uapi;
use crate::counters::stats::{self, Shared};
use crate::protocols::gate::Exclusive;
use crate::tree::{Member, Tree, TreeFull, said};
use core::sync::atomic::Ordering::{Relaxed, SeqCst};
use core::sync::atomic::{AtomicI64, AtomicU64};
use ebb_sync::CacheLine;
use linux_raw_sys::general::MADV_DONTNEED;

/// Pages that a process holds before it gets a background thread. Up to that, it costs nothing but these pages. Where
/// one part in [`GROWN_PART`] of the budget is less, that counts instead.
const GROWN_PAGES: usize = 2048;
const GROWN_PART: usize = 16;

/// The charges of one space.
pub struct Budget {
    tree: Tree,
    charged: CacheLine<AtomicI64>,
    /// Bytes of metadata charged so far, for rounding to pages.
    meta_bytes: AtomicU64,
    /// Pages with content, wherever it is.
    wanted: CacheLine<AtomicI64>,
    /// Likewise for the other processes of the tree, when this process last looked.
    wanted_elsewhere: AtomicI64,
    /// Pages below the budget where background reclaim begins. Adapts to what proves necessary.
    gap: AtomicI64,
    /// Charged pages that hold nothing, because they are in the stock.
    stocked: CacheLine<AtomicI64>,
    /// Until when room in the budget does not mean that the kernel has memory, in nanoseconds; 0 when it does.
    kernel_short_until_ns: AtomicU64,
    stats: &'static Shared,
}

impl Budget {
    /// A budget to which nothing is charged yet.
    pub fn new(tree: Tree, stats: &'static Shared) -> Self {
        Self {
            tree,
            charged: CacheLine(AtomicI64::new(0)),
            meta_bytes: AtomicU64::new(0),
            wanted: CacheLine(AtomicI64::new(0)),
            wanted_elsewhere: AtomicI64::new(0),
            gap: AtomicI64::new(i64::MAX),
            stocked: CacheLine(AtomicI64::new(0)),
            kernel_short_until_ns: AtomicU64::new(0),
            stats,
        }
    }

    /// Pages from which on a process counts as grown, so that others may ask it for some.
    pub fn grown_pages(&self) -> u64 {
        GROWN_PAGES.min(self.limit() / GROWN_PART) as u64
    }

    /// True when this process holds so much that others of the tree may ask it for some.
    pub fn has_grown(&self) -> bool {
        self.charged() as u64 > self.grown_pages()
    }

    /// This process's part in the tree that grants.
    pub fn tree(&self) -> &Tree {
        &self.tree
    }

    fn member(&self) -> &'static Member {
        self.tree.member()
    }

    /// Pages that are requested from the tree, and given back, at a time. Few enough that what all processes keep in
    /// hand does not matter.
    fn batch(&self) -> i64 {
        (self.limit() as i64 / 512).clamp(16, 256)
    }

    /// Charges `n` pages, or nothing when that would exceed the budget.
    #[inline]
    pub fn try_charge(&self, n: usize) -> bool {
        let n = n as i64;
        let now = self.charged.fetch_add(n, SeqCst) + n;
        if now <= self.tree.granted() {
            return true;
        }
        self.charged.fetch_sub(n, SeqCst);
        self.grow(n, now)
    }

    /// Has enough granted that `n` more pages can be charged; false when the budget has no room for them.
    pub fn make_room(&self, n: usize) -> bool {
        let lacks = self.charged.load(SeqCst) + n as i64 - self.tree.granted();
        lacks <= 0 || self.tree.try_grow(lacks)
    }

    /// Makes sure that this process is a member of its tree: others may have taken it for dead. Returns what
    /// [`Tree::hold`] does.
    pub fn hold(&self) -> Result<bool, TreeFull> {
        let is_here = self.tree.hold(self.charged.load(SeqCst))?;
        // Pages may have been charged meanwhile.
        self.cover();
        Ok(is_here)
    }

    /// Likewise, but only if others took this process for dead. Returns whether it is a member now.
    pub fn hold_if_lost(&self) -> bool {
        // If there are more processes than there can be members, this one goes on without a place, and counts for
        // nobody. So does a process that only shares the memory of such a one.
        if self.tree.is_lost() {
            let _ = self.hold();
        }
        !self.tree.is_lost()
    }

    /// Charges `n` pages, which makes `now` pages in all, after the tree has granted what is missing. False when the
    /// tree grants nothing. While this process is no member, it charges without a grant.
    #[cold]
    fn grow(&self, n: i64, now: i64) -> bool {
        if !self.hold_if_lost() {
            self.charged.fetch_add(n, SeqCst);
            return true;
        }
        let lacks = (now - self.tree.granted()).max(0);
        let grown = self.tree.try_grow(lacks + self.batch()) || self.tree.try_grow(lacks);
        if !grown {
            return false;
        }
        self.charged.fetch_add(n, SeqCst);
        self.cover();
        self.note_peaks();
        true
    }

    /// Looks at what the tree holds and wants now, and keeps the peaks of both.
    fn note_peaks(&self) {
        let page = self.tree.page();
        let member = self.member();
        member.charged.store(self.charged() as u64, Relaxed);
        let wanted: u64 = page.members().map(|(_, m)| said(&m.wanted)).sum();
        let elsewhere = wanted.saturating_sub(said(&member.wanted));
        self.wanted_elsewhere.store(elsewhere as i64, Relaxed);
        let held = (self.limit() as i64 - self.tree.free_seen()).max(0);
        stats::raise(&self.stats.peak_held_bytes, held as u64 * 4096);
    }

    /// Uses `n` charged pages for copies of pages that were shared. The tree has counted the copies since the sharing
    /// ended, so the charge and its grant are given back.
    pub fn charge_break(&self, n: usize) {
        self.charged.fetch_sub(n as i64, SeqCst);
        self.tree.shrink(n as i64);
        self.cover();
    }

    /// Makes sure that all charges are granted, whatever the budget.
    pub fn cover(&self) {
        let lacks = self.charged.load(SeqCst) - self.tree.granted();
        if lacks > 0 {
            self.tree.force_grow(lacks);
        }
    }

    /// Charges `n` pages whatever the budget, for work that frees more.
    pub fn force_charge(&self, n: usize) {
        self.charged.fetch_add(n as i64, SeqCst);
        self.cover();
    }

    /// Takes a charge of `n` pages back. When more than four batches are granted and not charged, all but one batch of
    /// that goes back to the tree.
    pub fn uncharge(&self, n: usize) {
        let before = self.charged.fetch_sub(n as i64, SeqCst);
        debug_assert!(before >= n as i64, "uncharged more than was charged");
        let unused = self.tree.granted() - (before - n as i64);
        if unused > 4 * self.batch() {
            self.give_back(unused - self.batch());
        } else if unused > 0 && self.tree.free_seen() < 0 {
            // Otherwise pages that were forced beyond the budget could be charged again.
            self.give_back(unused);
        }
    }

    /// Gives `n` pages back to the tree that are granted and not charged.
    #[cold]
    fn give_back(&self, n: i64) {
        self.tree.shrink(n);
        // Another thread may have charged meanwhile what is gone now.
        self.cover();
    }

    /// Gives all pages back that are granted and not charged.
    pub fn give_back_unused(&self) {
        let unused = self.tree.granted() - self.charged.load(SeqCst);
        if unused > 0 {
            self.give_back(unused);
        }
    }

    /// Charges `bytes` of metadata. Each whole page of the sum counts.
    pub fn charge_meta(&self, bytes: usize) {
        let before = self.meta_bytes.fetch_add(bytes as u64, Relaxed);
        let pages = (before + bytes as u64) / 4096 - before / 4096;
        if pages > 0 {
            self.force_charge(pages as usize);
        }
    }

    /// Takes a charge of `bytes` of metadata back.
    pub fn uncharge_meta(&self, bytes: usize) {
        // Less may be charged than the parts of the metadata add up to, since `correct_meta` found less in memory.
        let less = |before: u64| before.saturating_sub(bytes as u64);
        let before = self.meta_bytes.fetch_update(Relaxed, Relaxed, |before| Some(less(before))).unwrap_or(0);
        let pages = before / 4096 - less(before) / 4096;
        if pages > 0 {
            self.uncharge(pages as usize);
        }
    }

    /// Charges exactly `pages` pages of metadata, which are in memory, in place of what was charged for it so far.
    pub fn correct_meta(&self, _exclusive: &Exclusive<'_>, pages: usize) {
        let charged = (self.meta_bytes.swap(pages as u64 * 4096, Relaxed) / 4096) as usize;
        if pages > charged {
            self.force_charge(pages - charged);
        } else {
            self.uncharge(charged - pages);
        }
    }

    /// Drops memory of books, which are Ebb's own tables and buffers. Other processes that have it since a fork keep
    /// theirs; this one has no part in it any more. False when the kernel refuses.
    pub fn drop_books(&self, at: usize, len: usize) -> bool {
        self.tree.break_range(at, at + len);
        uapi::madvise(at, len, MADV_DONTNEED).is_ok()
    }

    /// Pages of metadata charged.
    pub fn meta_pages(&self) -> usize {
        (self.meta_bytes.load(Relaxed) / 4096) as usize
    }

    /// Pages charged now.
    pub fn charged(&self) -> usize {
        self.charged.load(Relaxed).max(0) as usize
    }

    /// The budget of the tree in pages.
    pub fn limit(&self) -> usize {
        self.tree.limit()
    }

    /// Pages that this process may expect of the budget now: what it holds plus what no process holds.
    pub fn expected(&self) -> usize {
        (self.charged.load(Relaxed) + self.room()).max(0) as usize
    }

    /// Pages that could be charged now, as far as is known; negative when too many are held.
    fn room(&self) -> i64 {
        self.tree.granted() - self.charged.load(Relaxed) + self.tree.free_seen()
    }

    /// Pages in the stock.
    #[inline]
    pub fn stocked(&self) -> usize {
        self.stocked.load(Relaxed).max(0) as usize
    }

    /// Counts `n` more pages in the stock, or fewer if `n` is negative.
    pub fn add_stocked(&self, n: i64) {
        self.stocked.fetch_add(n, Relaxed);
    }

    /// Pages that may be added to the stock. In all it may have as many as background reclaim would keep free at most
    /// in a budget of what this process may expect.
    pub fn stock_max(&self) -> usize {
        if self.room() < 0 { 0 } else { gap_max(self.expected()).saturating_sub(self.stocked()) }
    }

    /// True when the processes hold more than the budget and some of that is this process's stock. To use the stock
    /// would keep them above the budget.
    pub fn is_stock_too_large(&self) -> bool {
        self.stocked.load(Relaxed) > 0 && self.room() < 0
    }

    /// Counts `n` more pages that have content.
    pub fn add_wanted(&self, n: usize) {
        let now = self.wanted.fetch_add(n as i64, Relaxed) + n as i64;
        self.tell_wanted(now);
        let all = now + self.wanted_elsewhere.load(Relaxed);
        stats::raise(&self.stats.peak_wanted_bytes, all.max(0) as u64 * 4096);
    }

    /// Counts `n` pages that lost their content.
    pub fn sub_wanted(&self, n: usize) {
        let before = self.wanted.fetch_sub(n as i64, Relaxed);
        self.tell_wanted(before - n as i64);
    }

    /// Counts a fault that was served.
    pub fn count_fault(&self) {
        if !self.tree.is_lost() {
            stats::add(&self.member().faults, 1);
        }
    }

    fn tell_wanted(&self, now: i64) {
        if !self.tree.is_lost() {
            self.member().wanted.store(now.max(0) as u64, Relaxed);
        }
    }

    /// Pages with content now.
    pub fn wanted(&self) -> usize {
        self.wanted.load(Relaxed).max(0) as usize
    }
}

/// Most pages of one sweep. A thread that writes to one of them waits until all are unmapped: a microsecond a page
/// where they are copied.
const SWEEP_PAGES_MAX: usize = 256;

/// Present pages that one step sweeps and stages, and by which it may overshoot, in a budget of `limit` pages: a 64th
/// of it, but at least 16 and at most 256.
pub fn sweep_max(limit: usize) -> usize {
    (limit / 64).clamp(16, SWEEP_PAGES_MAX)
}

/// Pages that staging aims to hold, when the process may expect `share` pages of the budget and has `away` pages
/// swapped out. That is a quarter of `away`, at most a 64th of `share`, but at least two batches of a sweep. A staged
/// page is in memory, and its next use costs a fault all the same. So staging holds only as many pages as it takes to
/// tell those in use from others.
pub fn staging_target(share: usize, away: usize) -> usize {
    (away / 4).min(share / 64).max(2 * sweep_max(share))
}

/// Pages that the pool may hold of `limit` pages, with a device behind it and without. With a device the pool is for
/// what is warm, and may hold half. Without one the pool is all there is, and may hold everything but what a program
/// needs to run at all.
pub fn pool_max(limit: usize) -> [usize; 2] {
    [limit / 2, limit - (limit / 5).max(4 * sweep_max(limit)).min(limit / 2)]
}

#[cfg(test)]
pub(crate) mod tests {
    use super::watermarks::{GAP_DECAY, GAP_SPAN};
    use super::*;
    use crate::tree::Page;

    pub(crate) fn budget(limit: u64) -> Budget {
        // Zeroed memory is a valid area.
        let stats = crate::base::uapi::reserve(Shared::MAP_BYTES).expect("memory");
        // SAFETY: as above; never unmapped.
        let stats: &'static Shared = unsafe { &*stats.cast::<Shared>() };
        let page: &'static Page = &stats.tree;
        page.set_limit(limit);
        Budget::new(Tree::join(page, None).expect("a place"), stats)
    }

    #[test]
    fn a_charge_beyond_the_budget_charges_nothing() {
        let g = budget(10);
        assert!(g.try_charge(10));
        assert!(!g.try_charge(1));
        assert_eq!(g.charged(), 10);
    }

    #[test]
    fn what_is_not_used_goes_back_to_the_tree() {
        let g = budget(10_000);
        assert!(g.try_charge(5000));
        g.uncharge(4000);
        let granted = g.tree().page().sum().held;
        assert!((1000..1000 + 5 * g.batch()).contains(&granted), "{granted}");
        g.give_back_unused();
        assert_eq!(g.tree().page().sum().held, 1000);
    }

    #[test]
    fn a_forced_charge_is_granted_too() {
        let g = budget(10);
        g.force_charge(15);
        assert_eq!(g.tree().page().sum(), crate::tree::Sum { held: 15, limit: 10 });
        assert!(!g.try_charge(1));
    }

    #[test]
    fn what_was_forced_beyond_the_budget_cannot_be_charged_again() {
        let g = budget(10_000);
        assert!(g.try_charge(10_000));
        for _ in 0..50 {
            g.force_charge(16);
            // Less than the batch that is otherwise kept in hand.
            g.uncharge(10);
            assert!(!g.try_charge(1));
            g.uncharge(6);
            assert!(!g.try_charge(1));
        }
        g.uncharge(1);
        assert!(g.try_charge(1) && !g.try_charge(1));
        assert_eq!(g.charged(), 10_000);
    }

    #[test]
    fn the_gap_follows_what_is_necessary_between_its_bounds() {
        let g = budget(64_000);
        let most = gap_max(64_000) as i64;
        assert_eq!(g.gap(), most);
        g.narrow_gap();
        assert_eq!(g.gap(), most - most / GAP_DECAY);
        (0..500).for_each(|_| g.narrow_gap());
        assert_eq!(g.gap(), most / GAP_SPAN);
        g.widen_gap();
        assert_eq!(g.gap(), 2 * (most / GAP_SPAN));
        (0..10).for_each(|_| g.widen_gap());
        assert_eq!(g.gap(), most);
    }

    #[test]
    fn metadata_is_charged_by_whole_pages() {
        let g = budget(10);
        g.charge_meta(4000);
        assert_eq!(g.charged(), 0);
        g.charge_meta(200);
        assert_eq!(g.charged(), 1);
        g.charge_meta(8192);
        g.uncharge_meta(8000);
        assert_eq!((g.charged(), g.meta_pages()), (1, 1));
        g.uncharge_meta(400);
        assert_eq!(g.charged(), 0);
    }
}
