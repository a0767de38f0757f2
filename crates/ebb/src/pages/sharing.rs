//! Memory that processes share after a fork: it counts once for as long as they share it.
//!
//! Fork gives the child a copy of everything, but copies nothing yet. Before the fork, the parent write-protects the mapped
//! pages and marks them *shared*. The child does so on its side. Both are charged for such a page. The page's mask says who
//! holds it, and the sum of the tree leaves out all holders but one. The first write on either side is a fault, which charges
//! the copy that the kernel then makes. Blocks of the pool are shared in the same way, until they are written to.
//!
//! Shared memory is not freed when only one side gives it up, so reclaim takes it last. Meanwhile pages that are swapped in
//! for reading stay clean: the copy in the pool costs nothing as long as nobody writes to it. So a child that only reads (a
//! snapshot to disk) brings its pages in and drops them again without storing anything, and its parent compresses little.
//!
//! The kernel counts a page that was shared at a fork for the process that touched it first, and unmaps it everywhere by its
//! reverse map of anonymous pages. User space can do neither.

use crate::base::{PAGE, clock};
use crate::memory::table::{UNIT_PAGES, Unit};
use crate::protocols::gate::Exclusive;
use crate::protocols::page::{State, Tag};
use crate::space::Space;
use core::sync::atomic::Ordering::Relaxed;

/// A process *shares much* if it shares more than an eighth of what it holds.
const SHARES_MUCH_PART: usize = 8;

/// Fewest *deserted* pages worth looking for: pages that the other processes have left to this one alone.
const DESERTED_MIN: usize = 64;
/// They must also be a 64th of what the process holds, because finding them means looking at all that is shared.
const DESERTED_PART: usize = 64;
/// How often a unit is looked at for deserted pages: where some were found, where some are likely, and elsewhere.
const DESERTED_OFTEN_MS: u64 = 100;
const DESERTED_MS: u64 = 250;
const DESERTED_RARELY_MS: u64 = 4000;
/// Address space of one leaf of masks, as a power of two.
pub(crate) const LEAF_SHIFT: u32 = crate::tree::masks::LEAF_SHIFT;

/// Finds out how much of the pool is still shared.
pub(crate) fn look_at_shared_pool(space: &Space) {
    let (own, surplus) = if space.family.is_sharing() { space.tree().shared_pool_pages() } else { (0, 0) };
    space.family.set_pool(2 * own > space.swap.pool_pages(), surplus);
}

/// Finds out whether this process still shares memory. Returns how many pages.
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

/// Breaks the shared page at `addr`, which is this process's own now, or which it no longer has. Returns by how many pages that
/// raises the tree's sum.
fn break_page(space: &Space, addr: usize) -> usize {
    if space.family.is_sharing() { space.tree().break_page(addr) } else { 0 }
}

/// Breaks shared frames of staging, at `addrs`, that are about to be given up. All are of one block; `first` is one of its
/// frames.
pub(crate) fn break_frames(space: &Space, first: u32, addrs: impl Iterator<Item = usize>) {
    if space.places.staging.is_shared(first) {
        addrs.for_each(|addr| {
            break_page(space, addr);
        });
    }
}

/// Breaks the page at `addr`, seen in `state`, if it is shared. Returns by how many pages that raises the tree's sum.
#[inline]
pub(crate) fn break_if_shared(space: &Space, addr: usize, state: State) -> usize {
    if !state.is_shared() {
        return 0;
    }
    let broken = break_page(space, addr);
    uncount_shared(space, addr, 1);
    broken
}

/// Uses a charge of `charged` pages for `broken` pages, by which breaking shared pages raised the tree's sum. Returns how many
/// pages of the charge it used. Pages beyond the charge count all the same.
pub(crate) fn use_charge(space: &Space, broken: usize, charged: usize) -> usize {
    let used = broken.min(charged);
    if used > 0 {
        space.budget.charge_break(used);
    }
    used
}

/// Counts `n` pages of the unit at `addr` that are no longer shared.
fn uncount_shared(space: &Space, addr: usize, n: usize) {
    if let Some(unit) = space.table.unit(addr) {
        // The counts are hints, but must not go below zero.
        for count in [&unit.shared, &unit.deserted] {
            let _ = count.fetch_update(Relaxed, Relaxed, |pages| Some(pages.saturating_sub(n as u32)));
        }
    }
}

/// Makes the shared pages of the range this process's own.
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

/// True if nothing in the unit is this process's own. A hint.
pub(crate) fn is_all_shared(space: &Space, unit: &Unit) -> bool {
    let present = unit.present.load(Relaxed).min(UNIT_PAGES as u32);
    space.family.shares_much() && in_common(unit) >= present
}

/// Looks now and then for deserted pages of the unit at `addr`. True if it looked. Inside the gate.
///
/// A deserted page is marked shared, but is this process's alone: the other processes say nothing when they give up their side.
/// Such a page keeps its mark and its protection, but loses its bit.
pub(crate) fn look_for_deserted(space: &Space, addr: usize, unit: &Unit) -> bool {
    if !space.family.shares_much() || unit.shared.load(Relaxed) == 0 {
        return false;
    }
    // Where more than two processes have pages in common, this number is too low.
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

/// Pages of a unit that another process has too. A hint.
pub(crate) fn in_common(unit: &Unit) -> u32 {
    unit.shared.load(Relaxed).saturating_sub(unit.deserted.load(Relaxed))
}
