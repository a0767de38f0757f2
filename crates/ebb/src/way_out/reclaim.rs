//! Decides who reclaims, and when: the background thread between two watermarks, or directly a thread that would pass the
//! limit.

use crate::base::patience::Patience;
use crate::base::uapi;
use crate::counters::stats;
use crate::pages::stock;
use crate::space::{Space, background, newborn};
use crate::threads::ctx::ThreadCtx;
use crate::tree::now_ms;
use crate::way_out::faulty::{self, Hope};
use crate::way_out::{asking, cooling, out_of_memory, publish, shrink, swapout, sweep};
use core::mem;
use core::sync::atomic::{AtomicU32, Ordering};

/// How long a thread that runs short waits for another process before it reclaims itself.
const ASKED_WAIT_NS: u64 = 2_000_000;
/// How long a thread waits if frames of the stock are counted but not in the ring: other threads have them in hand.
const STOCK_WAIT_NS: u64 = 50_000;
/// Copies in RAM of pages that other processes keep may take the tree beyond its budget by a quarter of it.
const COPIES_PART: i64 = 4;
/// Length of one step of the wait for another process.
const ASKED_STEP_NS: u64 = 100_000;

/// True when the background thread has work that is more urgent than read-ahead.
pub(crate) fn has_urgent_work(space: &Space) -> bool {
    space.budget.is_above_high()
        || background::is_asked(space)
        || asking::is_asked_for_pages(space)
        || space.groups.is_behind.load(Ordering::Relaxed)
}

/// True when a fault leaves something to do in the background. Outside the gate.
pub(crate) fn has_background_work(space: &Space) -> bool {
    space.budget.is_above_high() || space.swap.take_has_unused()
}

/// Makes one step of reclaim, in any thread: sweeps a unit, or swaps a part out. False if nothing made progress. Outside the
/// gate.
///
/// If the process shares much since a fork, shared pages stay, see [`reclaim_shared_step`].
pub(crate) fn reclaim_step(space: &Space, ctx: &ThreadCtx) -> bool {
    publish::publish_sizes_outside(space, ctx);
    faulty::say_news(space, ctx);
    // The cheapest work comes first.
    if space.places.staging.has_vacated(space.budget.stocked()) && swapout::release_vacated(space, ctx) > 0 {
        return true;
    }
    if space.kernel.force().always_cold {
        cooling::cool_step(space, ctx, 0, 64);
    }
    // Other threads reclaim, and there may soon be enough for all.
    let Some(mut work) = space.places.work.try_lease(&space.budget, ctx) else {
        uapi::sched_yield();
        return true;
    };
    let shares_much = space.family.shares_much();
    let wrote = shrink::file_misplaced(space, ctx, &mut work);
    if shrink::shrink_full_pool(space, ctx, &mut work) {
        return true;
    }
    if !space.places.staging.is_full() && sweep::sweep_next(space, ctx, !shares_much, &mut work).is_some() {
        return true;
    }
    if swapout::swap_out_oldest(space, ctx, &mut work) {
        return true;
    }
    if space.family.pool_is_shared() {
        return wrote;
    }
    // Nothing can be unmapped and nothing is staged. The content of the pool can still go to the file.
    let before = space.budget.charged();
    shrink::shrink_pool(space, ctx, &mut work) || space.budget.charged() < before || wrote
}

/// Makes one step of reclaim where only shared memory is left, which is freed only when the other side gives it up too. False
/// if nothing made progress. Outside the gate.
pub(crate) fn reclaim_shared_step(space: &Space, ctx: &ThreadCtx) -> bool {
    if !space.family.shares_much() || copies_are_too_many(space) {
        return false;
    }
    let mut work = space.places.work.lease(&space.budget, ctx);
    // A shared page that is staged is a copy. It frees nothing before it is stored.
    if !space.places.staging.is_full() && sweep::sweep_next(space, ctx, true, &mut work).is_some() {
        return true;
    }
    let before = space.budget.charged();
    shrink::shrink_pool(space, ctx, &mut work) || space.budget.charged() < before
}

/// True if no more copies fit of pages that other processes keep. Without a file such a copy stays in RAM, and for these copies
/// the tree may exceed its budget by [`COPIES_PART`] only.
pub(crate) fn copies_are_too_many(space: &Space) -> bool {
    let sum = space.tree().look();
    !space.swap.has_file() && -sum.free() > sum.limit / COPIES_PART
}

/// Reclaims in the calling thread until `n` more pages fit, or, with `or_stock`, until the stock has frames. Outside the gate.
pub(crate) fn direct_reclaim(space: &Space, ctx: &ThreadCtx, n: usize, or_stock: bool) {
    reclaim_until(space, ctx, n, or_stock, u64::MAX);
}

/// Reclaims in the calling thread until `n` more pages fit, but for `for_ns` at most. True if they fit. Outside the gate.
pub(crate) fn try_direct_reclaim(space: &Space, ctx: &ThreadCtx, n: usize, for_ns: u64) -> bool {
    reclaim_until(space, ctx, n, false, uapi::now_ns() + for_ns)
}

/// Notes that a thread of the program has to reclaim by itself: has background reclaim help, and begin earlier from now on.
pub(crate) fn begin_early(space: &Space) {
    space.budget.widen_gap();
    space.background.kick_if(space, true);
}

fn reclaim_until(space: &Space, ctx: &ThreadCtx, n: usize, or_stock: bool, until_ns: u64) -> bool {
    stats::add(&space.stats.direct_reclaims, 1);
    begin_early(space);
    let mut idle = Patience::default();
    let (mut waited_ns, mut waits, mut hope, mut has_released) = (0, false, Hope::new(space), false);
    let _closed = (!or_stock).then(|| stock::close_stock(space));
    while !(or_stock && stock::has_stock(space) || space.budget.make_room(n)) {
        if until_ns != u64::MAX && uapi::now_ns() >= until_ns {
            return false;
        }
        let reaped = || space.tree().reap_sometimes() + newborn::reap_sometimes(space, ctx);
        if stock::shrink_stock(space, ctx) || reaped() > 0 {
            continue;
        }
        if waited_ns < ASKED_WAIT_NS && asking::ask_colder(space, ctx) {
            uapi::futex_wait(&AtomicU32::new(0), 0, Some(ASKED_STEP_NS));
            waited_ns += ASKED_STEP_NS;
            continue;
        }
        if reclaim_step(space, ctx) {
            (idle, waited_ns) = (Patience::default(), 0);
            continue;
        }
        // Only shared memory is left here. Another process that has memory of its own gives some up first.
        if waited_ns < 2 * ASKED_WAIT_NS && asking::ask_older(space, 0) {
            uapi::futex_wait(&AtomicU32::new(0), 0, Some(ASKED_STEP_NS));
            waited_ns += ASKED_STEP_NS;
            continue;
        }
        waited_ns = 0;
        if reclaim_shared_step(space, ctx) || cooling::cool_for_room(space, ctx) {
            idle = Patience::default();
            continue;
        }
        // A thread with a time limit can go on without the memory, so it keeps no other process from what comes free.
        let has_a_claim = until_ns == u64::MAX && idle.has_a_claim();
        if has_a_claim {
            space.tree().page().wait(space.tree().id(), now_ms());
        } else if waits {
            space.tree().page().wait_no_more(space.tree().id());
        }
        waits = has_a_claim;
        asking::ask_largest(space, idle.is_long());
        if !idle.wait(space.tree().look().held as usize) {
            // Buffers once, because whoever goes on working uses them again; and last, so that hope does not take their turn.
            let mut releases = || !mem::replace(&mut has_released, true) && stock::release_buffers(space, ctx);
            if hope.is_left(space, ctx) || releases() {
                idle = Patience::default();
                continue;
            }
            // Of several processes that wait for memory, one ends, and leaves what it held to the others.
            if space.tree().page().may_give_up(space.tree().id(), now_ms()) {
                out_of_memory::give_up(space, ctx);
            }
            idle = Patience::default();
        } else if until_ns == u64::MAX {
            hope.look(space, ctx);
        }
    }
    if waits {
        space.tree().page().wait_no_more(space.tree().id());
    }
    // The charge may have been refused because of stock that another thread is taking out or putting in. If that thread does
    // not run now, it needs a moment.
    if space.budget.stocked() > 0 && !has_stocked_frames(space, ctx) {
        uapi::futex_wait(&AtomicU32::new(0), 0, Some(STOCK_WAIT_NS));
    }
    true
}

/// Whether the stock has frames that no thread has taken out. Outside the gate. Enters it, because the ring's lock must not
/// be held at a fork.
fn has_stocked_frames(space: &Space, ctx: &ThreadCtx) -> bool {
    let inside = space.threads.enter(ctx);
    let has_frames = space.places.stock.has_frames() || space.places.folios.nr_kept() > 0;
    drop(inside);
    has_frames
}

/// Frees a few sweeps' worth of memory, after the kernel had none for a page that the budget allows.
#[cold]
pub(crate) fn relieve_kernel(space: &Space, ctx: &ThreadCtx) {
    space.budget.note_kernel_short();
    let _closed = stock::close_stock(space);
    let mut idle = Patience::default();
    let target = space.budget.charged().saturating_sub(4 * space.sweep_max());
    let mut hope = Hope::new(space);
    while space.budget.charged() > target {
        if stock::shrink_stock(space, ctx) || reclaim_step(space, ctx) {
            idle = Patience::default();
        } else if !idle.wait(space.budget.charged()) {
            if hope.is_left(space, ctx) {
                // The kernel may have memory again.
                return;
            }
            space.fatal(b"the kernel has no memory left: a cgroup limit is below --ram; give a smaller --ram");
        }
    }
}
