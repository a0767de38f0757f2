//! Memory that two processes share after fork: counted once, and kept so for as long as that lasts.
//!
//! Fork gives the child a copy of everything, of which nothing is copied yet. Before it, the parent write-protects what is
//! mapped and marks it *shared*; the child does the same with its side. Both are charged for such a page, and the child's
//! member says how many it has in common with its parent, which the sum of the tree leaves out. The first write on either
//! side is a fault that charges the copy which the kernel then makes. Blocks of the pool are shared likewise, and counted
//! down as they are written to.
//!
//! What is shared frees no memory when only one side gives it up, so reclaim takes it last. Swap-ins for reading stay clean
//! meanwhile: the copy in the pool costs nothing as long as nobody writes there. So a child that only reads (a snapshot to
//! disk) brings its pages in and drops them again without storing anything, and its parent compresses little.
//!
//! The kernel counts a page that was shared at fork to whoever touched it first, and keeps the anonymous page table's
//! reverse map to unmap it everywhere; neither is to be had here.

use crate::books::BookRuns;
use crate::clock;
use crate::ctx::ThreadCtx;
use crate::page::{State, Tag};
use crate::primitive::{Ordering as ModelOrdering, fence};
use crate::region::Region;
use crate::runs::Runs;
use crate::space::Space;
use crate::table::{ADDR_END, PAGE, UNIT_PAGES, Unit};
use crate::tree::MemberId;
use crate::tree::masks::Extent;
use core::sync::atomic::Ordering::Relaxed;

/// The part of what a process holds that makes much of what it shares.
const SHARES_MUCH_PART: usize = 8;

/// Pages that others left to this process alone which are worth looking for.
const DESERTED_MIN: usize = 64;
/// The part of what a process holds that they must be, because to find them is to look at all that is shared.
const DESERTED_PART: usize = 64;
/// How often a unit is looked at for them: where some were found, where there are likely some, and else.
const DESERTED_OFTEN_MS: u64 = 100;
const DESERTED_MS: u64 = 250;
const DESERTED_RARELY_MS: u64 = 4000;

/// Leaves that staging may lie in: more than it does.
const STAGING_LEAVES_MAX: usize = 16;
/// Address space of a leaf of the map of what is shared.
const LEAF_SHIFT: u32 = crate::tree::masks::LEAF_SHIFT;

impl Space {
    /// True while memory may be shared with a parent or a child. May lag.
    pub(crate) fn is_sharing(&self) -> bool {
        self.sharing.load(Relaxed) != 0
    }

    /// True while so much of this process's memory is shared that reclaim works round it. May lag.
    pub(crate) fn shares_much(&self) -> bool {
        self.shares_much.load(Relaxed)
    }

    /// True while most of the pool is shared: to free what is in it frees no memory. May lag.
    pub(crate) fn pool_is_shared(&self) -> bool {
        self.pool_is_shared.load(Relaxed)
    }

    /// Looks how much of the pool is still shared.
    pub(crate) fn look_at_shared_pool(&self) {
        let (own, surplus) = if self.is_sharing() { self.tree().shared_pool_pages() } else { (0, 0) };
        self.pool_is_shared.store(2 * own > self.swap.pool_pages(), Relaxed);
        self.shared_pool_pages.store(surplus, Relaxed);
    }

    /// Looks whether that has ended; how many pages are shared.
    pub(crate) fn look_at_sharing(&self) -> usize {
        let fork = self.sharing.load(Relaxed);
        if fork == 0 {
            return 0;
        }
        let pages = self.tree().shared_pages();
        if pages.is_none() {
            // Unless there was another fork meanwhile.
            let _ = self.sharing.compare_exchange(fork, 0, Relaxed, Relaxed);
        }
        let pages = pages.unwrap_or(0);
        self.shares_much.store(pages > self.group.charged() / SHARES_MUCH_PART, Relaxed);
        pages
    }

    /// The shared page at `addr` is this process's own now, or it has it no more; how many pages more that makes for the tree.
    fn break_page(&self, addr: usize) -> usize {
        if self.is_sharing() { self.tree().break_page(addr) } else { 0 }
    }

    /// Frames of staging are about to be given up: those that another process has, too, are no longer this one's. `first` is one of
    /// them, all of a block.
    pub(crate) fn break_frames(&self, first: u32, addrs: impl Iterator<Item = usize>) {
        if self.staging.is_shared(first) {
            addrs.for_each(|addr| {
                self.break_page(addr);
            });
        }
    }

    /// The same of a page that is seen in `state`, which may be one that is not shared.
    #[inline]
    pub(crate) fn break_if_shared(&self, addr: usize, state: State) -> usize {
        if !state.is_shared() {
            return 0;
        }
        let broken = self.break_page(addr);
        self.uncount_shared(addr, 1);
        broken
    }

    /// Shared pages were broken, which made `broken` pages more for the tree, and of `charged` pages some are for that: how
    /// many. What is beyond is counted all the same.
    pub(crate) fn use_charge(&self, broken: usize, charged: usize) -> usize {
        let used = broken.min(charged);
        if used > 0 {
            self.group.charge_break(used);
        }
        used
    }

    /// `n` shared pages of the unit at `addr` are that no more.
    fn uncount_shared(&self, addr: usize, n: usize) {
        if let Some(unit) = self.table.unit(addr) {
            // A hint: it may not go below what it is.
            for count in [&unit.shared, &unit.deserted] {
                let _ = count.fetch_update(Relaxed, Relaxed, |pages| Some(pages.saturating_sub(n as u32)));
            }
        }
    }

    /// Before fork: marks and protects what this process and `child` will share, and says so in the tree, where the child will
    /// hold as many pages as this process; how many are shared. Under the exclusive gate.
    pub(crate) fn share_pages(&self, child: MemberId) -> usize {
        // Before it is said what the child is charged for.
        let books = if self.can_protect { self.find_books() } else { None };
        // What threads have charged for work ahead the child has no use for.
        let ahead: usize = self.contexts.all().map(ThreadCtx::charged_ahead).sum();
        let charged = self.group.charged().saturating_sub(ahead) as i64;
        let leaves = self.regions.all().iter().flat_map(|r| (r.start >> LEAF_SHIFT)..=((r.end - 1) >> LEAF_SHIFT));
        let leaves = leaves.filter(|leaf| self.table.has_content(leaf << LEAF_SHIFT));
        if !self.can_protect {
            return self.tree().begin_fork(child, Extent::new(leaves, self.swap.arena())).finish(charged);
        }
        let mut staged = [None; STAGING_LEAVES_MAX];
        self.staging.for_each_staged(|addr| {
            if let Some(place) = staged.iter_mut().find(|leaf| leaf.is_none_or(|leaf| leaf == addr >> LEAF_SHIFT)) {
                *place = Some(addr >> LEAF_SHIFT);
            }
        });
        let of_books = books
            .iter()
            .flat_map(BookRuns::all)
            .flat_map(|(start, end)| (start >> LEAF_SHIFT)..=((end - 1) >> LEAF_SHIFT));
        let leaves = leaves.chain(staged.into_iter().flatten()).chain(of_books);
        let mut fork = self.tree().begin_fork(child, Extent::new(leaves, self.swap.arena()));
        let is_copied = |r: &&Region| !r.attr.is_dontfork() && !r.attr.is_wipeonfork();
        for region in self.regions.all().iter().filter(is_copied) {
            self.table.for_each_content(region.start, region.end, |addr, word| {
                let state = word.load();
                if state.tag() != Tag::Present || state.is_pinned() || !fork.share(addr) {
                    return;
                }
                let Some(unit) = self.table.unit(addr) else { return };
                if !state.is_shared() {
                    word.set_exclusive(state.with_shared(true));
                    unit.shared.fetch_add(1, Relaxed);
                }
                // What was this process's alone is so no more.
                unit.deserted.store(0, Relaxed);
            });
        }
        // Marks come first, then the look at the pins: see `pin`. What a call in flight uses the kernel must be able to write.
        fence(ModelOrdering::SeqCst);
        self.for_each_used(0, ADDR_END, |start, end| {
            self.unshare(start & !(PAGE - 1), end.next_multiple_of(PAGE));
        });
        for region in self.regions.all().iter().filter(is_copied) {
            self.protect_shared(*region);
        }
        // What is not protected now is each one's own.
        for region in self.regions.all().iter().filter(is_copied) {
            self.table.for_each_content(region.start, region.end, |addr, word| {
                let state = word.load();
                if state.tag() == Tag::Present && !state.is_shared() {
                    fork.unshare(addr);
                }
            });
        }
        self.swap.share_pool(&mut fork);
        self.staging.for_each_staged(|addr| {
            fork.share(addr);
        });
        if let Some(books) = &books {
            // What was written to since the last look is this process's own, and no earlier child's.
            if self.is_sharing() {
                self.look_at_books();
            }
            self.share_books(books, &mut fork);
        }
        fork.finish(charged)
    }

    /// Pages of the range go on as this process's own. Under the exclusive gate.
    pub(crate) fn unshare(&self, start: usize, end: usize) {
        self.table.for_each_protected(start, end, |addr, word| {
            let state = word.load();
            if state.tag() == Tag::Present && state.is_shared() {
                self.break_if_shared(addr, state);
                if !state.is_clean() {
                    let _ = self.uffd().write_protect(addr, PAGE, false);
                }
                word.set_exclusive(state.with_shared(false));
            }
        });
    }

    /// Protects the shared and clean pages of a region, run by run. Under the exclusive gate.
    fn protect_shared(&self, region: Region) {
        let mut runs = Runs::new(|run| {
            if self.uffd().write_protect(run.start, run.len(), true).is_err() {
                // What cannot be protected can be neither. It may be now, in part.
                self.open_range_exclusive(run.start, run.end);
            }
        });
        self.table.for_each_protected(region.start, region.end, |addr, word| {
            if word.load().is_protected() {
                runs.add(addr);
            }
        });
    }

    /// In fork's child, whose regions are registered: protects its side of what is shared, and what is clean.
    pub(crate) fn protect_in_child(&self) {
        if !self.can_protect {
            return;
        }
        for region in self.regions.all() {
            self.protect_shared(*region);
        }
    }

    /// True when a unit has nothing that is this process's own. A hint.
    pub(crate) fn is_all_shared(&self, unit: &Unit) -> bool {
        let present = unit.present.load(Relaxed).min(UNIT_PAGES as u32);
        self.shares_much() && in_common(unit) >= present
    }

    /// Looks, now and then, which pages of the unit at `addr` are marked shared and this process's alone: the others say nothing
    /// when they give up their side. Such a page keeps its mark and its protection, but has no bit any more. True when it
    /// looked. Inside the gate.
    pub(crate) fn look_for_deserted(&self, addr: usize, unit: &Unit) -> bool {
        if !self.shares_much() || unit.shared.load(Relaxed) == 0 {
            return false;
        }
        // What the numbers say is too little where more than two have something in common.
        let is_likely = self.tree().deserted_pages() >= DESERTED_MIN.max(self.group.charged() / DESERTED_PART);
        let every_ms = match unit.deserted.load(Relaxed) {
            _ if !is_likely => DESERTED_RARELY_MS,
            0 => DESERTED_MS,
            _ => DESERTED_OFTEN_MS,
        };
        if !clock::is_forbidden() && clock::ms_since(unit.deserted_seen.load(Relaxed)) < every_ms {
            return false;
        }
        unit.deserted_seen.store(clock::stamp(), Relaxed);
        let mut deserted = 0;
        self.table.for_each_content(addr, addr + UNIT_PAGES * PAGE, |at, word| {
            if word.load().is_shared() && !self.tree().is_shared(at) {
                self.break_page(at);
                deserted += 1;
            }
        });
        unit.deserted.store(deserted, Relaxed);
        true
    }
}

/// Pages of a unit that another process has, too. A hint.
pub(crate) fn in_common(unit: &Unit) -> u32 {
    unit.shared.load(Relaxed).saturating_sub(unit.deserted.load(Relaxed))
}
