//! What a fork's child shares with its parent.

use crate::base::PAGE;
use crate::base::runs::Runs;
use crate::memory::region::Region;
use crate::memory::table::ADDR_END;
use crate::pages::books::{self, BookRuns};
use crate::pages::sharing::{self, LEAF_SHIFT};
use crate::pages::{clean, in_use};
use crate::protocols::gate::Exclusive;
use crate::protocols::page::Tag;
use crate::protocols::primitive::{Ordering as ModelOrdering, fence};
use crate::space::Space;
use crate::threads::ctx::ThreadCtx;
use crate::tree::MemberId;
use crate::tree::masks::Extent;
use core::sync::atomic::Ordering::Relaxed;

/// Most leaves of the map of shared pages that staging may lie in: more than it does.
const STAGING_LEAVES_MAX: usize = 16;

/// Before fork: marks and protects what this process and `child` will share, and records it in the tree. The child is
/// granted as many pages as this process. Returns how many pages are shared.
pub(crate) fn share_pages(space: &Space, exclusive: &Exclusive<'_>, child: MemberId) -> usize {
    // Before the child's charge is computed: this corrects the charge for books.
    let books = if space.kernel.can_protect() { books::find_books(space, exclusive) } else { None };
    // The child has no use for the pages that threads have charged for work ahead.
    let ahead: usize = space.threads.contexts.all().map(ThreadCtx::charged_ahead).sum();
    let charged = space.budget.charged().saturating_sub(ahead) as i64;
    let leaves = space.regions.all(exclusive).flat_map(|r| (r.start >> LEAF_SHIFT)..=((r.end - 1) >> LEAF_SHIFT));
    let leaves = leaves.filter(|leaf| space.table.has_content(leaf << LEAF_SHIFT));
    if !space.kernel.can_protect() {
        return space.tree().begin_fork(exclusive, child, Extent::new(leaves, space.swap.arena())).finish(charged);
    }
    let mut staged = [None; STAGING_LEAVES_MAX];
    space.places.staging.for_each_staged(exclusive, |addr| {
        if let Some(place) = staged.iter_mut().find(|leaf| leaf.is_none_or(|leaf| leaf == addr >> LEAF_SHIFT)) {
            *place = Some(addr >> LEAF_SHIFT);
        }
    });
    let of_books =
        books.iter().flat_map(BookRuns::all).flat_map(|(start, end)| (start >> LEAF_SHIFT)..=((end - 1) >> LEAF_SHIFT));
    let leaves = leaves.chain(staged.into_iter().flatten()).chain(of_books);
    let mut fork = space.tree().begin_fork(exclusive, child, Extent::new(leaves, space.swap.arena()));
    let is_copied = |r: &Region| !r.attr.is_dontfork() && !r.attr.is_wipeonfork();
    for region in space.regions.all(exclusive).filter(is_copied) {
        space.table.for_each_content(region.start, region.end, |addr, word| {
            let state = word.load();
            if state.tag() != Tag::Present || state.is_pinned() || !fork.share(addr) {
                return;
            }
            let Some(unit) = space.table.unit(addr) else { return };
            if !state.is_shared() {
                word.set_exclusive(exclusive, state.with_shared(true));
                unit.shared.fetch_add(1, Relaxed);
            }
            // Pages that others had left to this process alone are shared again.
            unit.deserted.store(0, Relaxed);
        });
    }
    // Marks come first, then the look at the pins: see `pin`. The kernel must be able to write to what a call in flight
    // uses.
    fence(ModelOrdering::SeqCst);
    in_use::for_each_used(space, 0, ADDR_END, |start, end| {
        sharing::unshare(space, exclusive, start & !(PAGE - 1), end.next_multiple_of(PAGE));
    });
    for region in space.regions.all(exclusive).filter(is_copied) {
        protect_shared(space, exclusive, region);
    }
    // A page that is not protected now is each side's own.
    for region in space.regions.all(exclusive).filter(is_copied) {
        space.table.for_each_content(region.start, region.end, |addr, word| {
            let state = word.load();
            if state.tag() == Tag::Present && !state.is_shared() {
                fork.unshare(addr);
            }
        });
    }
    space.swap.share_pool(&mut fork);
    space.places.staging.for_each_staged(exclusive, |addr| {
        fork.share(addr);
    });
    if let Some(books) = &books {
        // Books written to since the last look are this process's own. No earlier child shares them.
        if space.family.is_sharing() {
            books::look_at_books(space);
        }
        books::share_books(books, &mut fork);
    }
    fork.finish(charged)
}

/// Protects the shared and clean pages of a region, run by run.
fn protect_shared(space: &Space, exclusive: &Exclusive<'_>, region: Region) {
    let mut runs = Runs::new(|run| {
        if space.uffd().write_protect(run.start, run.len(), true).is_err() {
            // A page that cannot be protected can be neither shared nor clean. Part of the run may be protected by now.
            clean::open_range(space, exclusive, run.start, run.end);
        }
    });
    space.table.for_each_protected(region.start, region.end, |addr, word| {
        if word.load().is_protected() {
            runs.add(addr);
        }
    });
}

/// Protects this side's shared and clean pages in fork's child, whose regions must be registered.
pub(crate) fn protect_in_child(space: &Space, exclusive: &Exclusive<'_>) {
    if !space.kernel.can_protect() {
        return;
    }
    for region in space.regions.all(exclusive) {
        protect_shared(space, exclusive, region);
    }
}
