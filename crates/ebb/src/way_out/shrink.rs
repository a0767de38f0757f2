//! Makes the pool smaller, and gives back what freed slots cost.

use crate::device::list::Writer;
use crate::pages::clean;
use crate::places::swapspace::WriteBack;
use crate::places::work::Work;
use crate::protocols::gate::Held;
use crate::space::Space;
use crate::threads::ctx::ThreadCtx;
use core::sync::atomic::Ordering;

/// Objects that compaction moves in one step.
pub(crate) const COMPACT_STEP: usize = 32;

/// Gives back what unused slots cost. Outside the gate, which it leaves after each step for other threads.
pub(crate) fn release_all_unused(space: &Space, ctx: &ThreadCtx) {
    let mut released = 1;
    while released > 0 {
        let inside = space.threads.enter(ctx);
        released = space.swap.release_unused(&inside, &space.budget);
        drop(inside);
    }
}

/// Most passes over unused slots at a time.
const RELEASE_PASSES: usize = 16;

/// Gives back what unused slots cost, after many were freed at once: in the background thread if that does such work.
pub(crate) fn release_unused_soon(space: &Space, held: &Held) {
    if space.background.works {
        space.background.again.store(true, Ordering::SeqCst);
        space.background.kick_if(space, true);
    } else {
        // A few passes are enough. Others may allocate and free meanwhile, so there might always be more.
        let _ = (0..RELEASE_PASSES).find(|_| space.swap.release_unused(held, &space.budget) == 0);
    }
}

/// Writes back some objects that a file should hold instead of the pool. False if nothing was written.
pub(crate) fn file_misplaced(space: &Space, ctx: &ThreadCtx, work: &mut Work) -> bool {
    if space.family.pool_is_shared() {
        return false;
    }
    let Some(age) = space.swap.misplaced_age(&space.budget) else { return false };
    let inside = space.threads.enter(ctx);
    let written = write_back(space, &inside, WriteBack::Misplaced(age), ctx, work);
    drop(inside);
    written > 0
}

/// Makes the pool smaller if it is full. True if it was well above its limit and gave memory back.
///
/// What the pool took while there was room goes before the program's own pages.
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

/// Makes one step of cleaning a file in which runs found no room. False if there is nothing to do. Outside the gate.
pub(crate) fn clean_file(space: &Space, ctx: &ThreadCtx) -> bool {
    let inside = space.threads.enter(ctx);
    let is_wanted = space.swap.devices.own(&inside).any(|(_, file)| file.wants_cleaning(space.stats));
    // A buffer is charged from its first use on.
    let work = is_wanted.then(|| space.places.work.try_lease(&space.budget, ctx)).flatten();
    let cleaned = work.is_some_and(|mut work| {
        let reclaim = |slot, at| clean::reclaim_cache_only(space, &inside, slot, at);
        let writer = Writer { held: &inside, shard: ctx.shard(), reclaim: &reclaim, stats: space.stats };
        space.swap.clean_step(writer, &space.budget, work.pages())
    });
    drop(inside);
    cleaned
}

fn write_back(space: &Space, held: &Held, which: WriteBack, ctx: &ThreadCtx, work: &mut Work) -> usize {
    let reclaim = |slot, at| clean::reclaim_cache_only(space, held, slot, at);
    let writer = Writer { held, shard: ctx.shard(), reclaim: &reclaim, stats: space.stats };
    let mut flights = crate::way_out::store::flights(space, work);
    space.swap.write_back(writer, which, &space.budget, space.stats, work.pages(), &mut flights)
}

/// Makes one step of emptying the pool to a file: writes the oldest objects back, and compacts what is left. False if nothing
/// moved. Outside the gate.
pub(crate) fn empty_pool(space: &Space, ctx: &ThreadCtx, work: &mut Work) -> bool {
    let inside = space.threads.enter(ctx);
    let written = write_back(space, &inside, WriteBack::Oldest, ctx, work);
    let moved = written + space.swap.compact(&inside, &space.budget, space.stats, COMPACT_STEP);
    // Spare blocks are kept for pages to come, and none come here.
    space.swap.trim(&space.budget);
    drop(inside);
    moved > 0
}

/// Writes pool objects to a file that went out before the eviction clock said `before`, as far as a search of `looks` slots
/// finds them, and compacts what is left. Returns how many objects, and how many slots it searched; 0 if no file takes any.
/// Outside the gate.
pub(crate) fn file_aged(space: &Space, ctx: &ThreadCtx, before: u32, looks: u32, work: &mut Work) -> (usize, u32) {
    let inside = space.threads.enter(ctx);
    let (_, from) = space.swap.writeback_round();
    let written = write_back(space, &inside, WriteBack::Aged { before, looks }, ctx, work);
    // Other searches may go on from there at the same time.
    let looked = space.swap.writeback_round().1.wrapping_sub(from);
    if written > 0 {
        space.swap.compact(&inside, &space.budget, space.stats, COMPACT_STEP);
    }
    drop(inside);
    (written, looked)
}

/// Makes the pool smaller: writes objects back, compacts, frees slots of clean pages, gives empty blocks back. False if nothing
/// moved.
pub(crate) fn shrink_pool(space: &Space, ctx: &ThreadCtx, work: &mut Work) -> bool {
    let inside = space.threads.enter(ctx);
    let mut moved = write_back(space, &inside, WriteBack::Oldest, ctx, work) > 0;
    // Compacting a shared pool would copy it.
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
