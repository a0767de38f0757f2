//! Making the pool smaller, and giving back what freed slots cost.

use crate::device::list::Writer;
use crate::pages::clean;
use crate::places::swapspace::WriteBack;
use crate::places::work::Work;
use crate::protocols::gate::Held;
use crate::space::Space;
use crate::threads::ctx::ThreadCtx;
use core::sync::atomic::Ordering;

/// Objects compaction moves in one step.
pub(crate) const COMPACT_STEP: usize = 32;

/// Gives back what unused slots cost. Outside the gate; each step lets others in.
pub(crate) fn release_all_unused(space: &Space, ctx: &ThreadCtx) {
    let mut released = 1;
    while released > 0 {
        let inside = space.threads.enter(ctx);
        released = space.swap.release_unused(&inside, &space.budget);
        drop(inside);
    }
}

/// Many slots were freed at once: has what they cost given back, beside the program where that is possible.
pub(crate) fn release_unused_soon(space: &Space, held: &Held) {
    if space.background.works {
        space.background.again.store(true, Ordering::SeqCst);
        space.background.kick_if(space, true);
    } else {
        // Ends: nothing is allocated meanwhile.
        while space.swap.release_unused(held, &space.budget) > 0 {}
    }
}

/// Writes some of what a file would rather have than the pool; false when there is nothing such.
pub(crate) fn file_misplaced(space: &Space, ctx: &ThreadCtx, work: &mut Work) -> bool {
    if space.family.pool_is_shared() || !space.swap.has_misplaced(&space.budget) {
        return false;
    }
    let inside = space.threads.enter(ctx);
    let written = write_back(space, &inside, WriteBack::Misplaced, ctx, work);
    drop(inside);
    written > 0
}

/// Makes the pool smaller if it is full. True when it was more than that and gave memory back: what it took while there
/// was room goes before the program's own pages.
pub(crate) fn shrink_full_pool(space: &Space, ctx: &ThreadCtx, work: &mut Work) -> bool {
    if space.family.pool_is_shared() || !space.swap.pool_is_full(&space.budget) {
        return false;
    }
    let before = space.budget.charged();
    shrink_pool(space, ctx, work);
    if !space.swap.pool_is_over(&space.budget) {
        return false;
    }
    let inside = space.threads.enter(ctx);
    space.swap.trim(&space.budget);
    drop(inside);
    space.budget.charged() < before
}

fn write_back(space: &Space, held: &Held, which: WriteBack, ctx: &ThreadCtx, work: &mut Work) -> usize {
    let reclaim = |slot, at| clean::reclaim_cache_only(space, held, slot, at);
    let writer = Writer { held, shard: ctx.shard(), reclaim: &reclaim };
    space.swap.write_back(writer, which, &space.budget, space.stats, &mut work.pages)
}

/// Makes the pool smaller: writes objects back, compacts, frees slots of clean pages, gives empty blocks back. False
/// when nothing moved.
pub(crate) fn shrink_pool(space: &Space, ctx: &ThreadCtx, work: &mut Work) -> bool {
    let inside = space.threads.enter(ctx);
    let mut moved = write_back(space, &inside, WriteBack::Oldest, ctx, work) > 0;
    // To compact what is shared copies it.
    moved |=
        !space.family.pool_is_shared() && space.swap.compact(&inside, &space.budget, space.stats, COMPACT_STEP) > 0;
    if !moved {
        moved = clean::open_some(space, &inside);
        space.swap.trim(&space.budget);
        space.swap.release_unused(&inside, &space.budget);
    }
    drop(inside);
    moved
}
