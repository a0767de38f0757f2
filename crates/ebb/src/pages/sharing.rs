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

use crate::base::{PAGE, clock};
use crate::memory::table::{UNIT_PAGES, Unit};
use crate::protocols::gate::Exclusive;
use crate::protocols::page::{State, Tag};
use crate::space::Space;
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
/// Address space of a leaf of the map of what is shared.
pub(crate) const LEAF_SHIFT: u32 = crate::tree::masks::LEAF_SHIFT;

/// Looks how much of the pool is still shared.
pub(crate) fn look_at_shared_pool(space: &Space) {
    let (own, surplus) = if space.family.is_sharing() { space.tree().shared_pool_pages() } else { (0, 0) };
    space.family.set_pool(2 * own > space.swap.pool_pages(), surplus);
}

/// Looks whether that has ended; how many pages are shared.
pub(crate) fn look_at_sharing(space: &Space) -> usize {
    let fork = space.family.last_fork();
    if fork == 0 {
        return 0;
    }
    let pages = space.tree().shared_pages();
    if pages.is_none() {
        space.family.end_sharing(fork);
    }
    let pages = pages.unwrap_or(0);
    space.family.set_shares_much(pages > space.budget.charged() / SHARES_MUCH_PART);
    pages
}

/// The shared page at `addr` is this process's own now, or it has it no more; how many pages more that makes for the tree.
fn break_page(space: &Space, addr: usize) -> usize {
    if space.family.is_sharing() { space.tree().break_page(addr) } else { 0 }
}

/// Frames of staging are about to be given up: those that another process has, too, are no longer this one's. `first` is one of
/// them, all of a block.
pub(crate) fn break_frames(space: &Space, first: u32, addrs: impl Iterator<Item = usize>) {
    if space.places.staging.is_shared(first) {
        addrs.for_each(|addr| {
            break_page(space, addr);
        });
    }
}

/// The same of a page that is seen in `state`, which may be one that is not shared.
#[inline]
pub(crate) fn break_if_shared(space: &Space, addr: usize, state: State) -> usize {
    if !state.is_shared() {
        return 0;
    }
    let broken = break_page(space, addr);
    uncount_shared(space, addr, 1);
    broken
}

/// Shared pages were broken, which made `broken` pages more for the tree, and of `charged` pages some are for that: how
/// many. What is beyond is counted all the same.
pub(crate) fn use_charge(space: &Space, broken: usize, charged: usize) -> usize {
    let used = broken.min(charged);
    if used > 0 {
        space.budget.charge_break(used);
    }
    used
}

/// `n` shared pages of the unit at `addr` are that no more.
fn uncount_shared(space: &Space, addr: usize, n: usize) {
    if let Some(unit) = space.table.unit(addr) {
        // A hint: it may not go below what it is.
        for count in [&unit.shared, &unit.deserted] {
            let _ = count.fetch_update(Relaxed, Relaxed, |pages| Some(pages.saturating_sub(n as u32)));
        }
    }
}

/// Pages of the range go on as this process's own.
pub(crate) fn unshare(space: &Space, exclusive: &Exclusive<'_>, start: usize, end: usize) {
    space.table.for_each_protected(start, end, |addr, word| {
        let state = word.load();
        if state.tag() == Tag::Present && state.is_shared() {
            break_if_shared(space, addr, state);
            if !state.is_clean() {
                let _ = space.uffd().write_protect(addr, PAGE, false);
            }
            word.set_exclusive(exclusive, state.with_shared(false));
        }
    });
}

/// True when a unit has nothing that is this process's own. A hint.
pub(crate) fn is_all_shared(space: &Space, unit: &Unit) -> bool {
    let present = unit.present.load(Relaxed).min(UNIT_PAGES as u32);
    space.family.shares_much() && in_common(unit) >= present
}

/// Looks, now and then, which pages of the unit at `addr` are marked shared and this process's alone: the others say nothing
/// when they give up their side. Such a page keeps its mark and its protection, but has no bit any more. True when it
/// looked. Inside the gate.
pub(crate) fn look_for_deserted(space: &Space, addr: usize, unit: &Unit) -> bool {
    if !space.family.shares_much() || unit.shared.load(Relaxed) == 0 {
        return false;
    }
    // What the numbers say is too little where more than two have something in common.
    let is_likely = space.tree().deserted_pages() >= DESERTED_MIN.max(space.budget.charged() / DESERTED_PART);
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
    space.table.for_each_content(addr, addr + UNIT_PAGES * PAGE, |at, word| {
        if word.load().is_shared() && !space.tree().is_shared(at) {
            break_page(space, at);
            deserted += 1;
        }
    });
    unit.deserted.store(deserted, Relaxed);
    true
}

/// Pages of a unit that another process has, too. A hint.
pub(crate) fn in_common(unit: &Unit) -> u32 {
    unit.shared.load(Relaxed).saturating_sub(unit.deserted.load(Relaxed))
}
