//! Who makes objects of the pool cold, and when: the background thread while there is processor time to spare, and who reclaims on
//! demand.
//!
//! The background thread takes a fifth of a processor at most, in pieces of a millisecond. If it had to share the processor, it keeps
//! away for longer and longer. It takes objects that have been in the pool for half a minute. While RAM is short, it also takes those
//! that have been there for ten seconds and for two *turns*: the program has needed so many others since that it will hardly ask for
//! them soon.
//!
//! A pool that is shared since a fork is left alone: to change it would be to copy it.

use crate::base::spare::{Piece, Took};
use crate::base::uapi;
use crate::counters::stats;
use crate::places::swapspace::Cooled;
use crate::space::Space;
use crate::space::cooling::{MARK_NS, MARKS};
use crate::threads::ctx::ThreadCtx;
use crate::way_out::reclaim;
use crate::way_out::shrink::COMPACT_STEP;

/// Objects that are tried inside the gate at a time: few enough that no thread waits long to close it.
const STEP: usize = 16;
/// Steps of one piece of work.
const STEPS: usize = 4;
/// A pool with fewer objects to try is not worth the memory that cooling works in.
const UNTRIED_MIN: u64 = 1024;
/// While RAM is short, an object is old after so many turns: evictions of as many pages as the process may expect of the budget.
const TURNS: u32 = 2;
/// RAM is short while less than one part in so many of the budget is free.
const PLENTY_PART: i64 = 8;
/// How often to look for objects that have grown old while RAM is short.
const SHORT_NS: u64 = 1_000_000_000;
/// Steps that close gaps after a round.
const GAP_STEPS: usize = 64;

/// True while there is something to cool, now or later.
fn has_work(space: &Space) -> bool {
    let least = if space.kernel.force().always_cold { 1 } else { UNTRIED_MIN };
    space.swap.nr_untried() >= least && !space.family.pool_is_shared()
}

/// Nanoseconds until the background thread should look for something to cool. While there is more urgent work it does not cool, and
/// looks again after a while.
pub(crate) fn look_in_ns(space: &Space) -> Option<u64> {
    let least = if reclaim::has_urgent_work(space) { SHORT_NS } else { 0 };
    has_work(space).then(|| space.background.cooling.rest_ns(uapi::now_ns()).max(least))
}

/// Makes some objects cold, however long they have been in the pool, because nothing else makes room. False if none became cold.
/// Outside the gate.
pub(crate) fn cool_for_room(space: &Space, ctx: &ThreadCtx) -> bool {
    let mut left = space.swap.nr_to_look_at();
    while left > 0 && space.swap.nr_untried() > 0 {
        let Some(done) = cool_step(space, ctx, 0, STEP) else { return false };
        if done.cooled > 0 || done.is_full {
            return done.cooled > 0;
        }
        left = left.saturating_sub(done.looked.max(1));
    }
    false
}

/// How many evictions ago an object must have gone out to become cold now. None if it is too early for any.
fn age_min(space: &Space) -> Option<u32> {
    if space.kernel.force().always_cold {
        return Some(0);
    }
    let (cooling, clock) = (&space.background.cooling, space.swap.clock());
    let long = cooling.age_after(MARKS - 1, clock);
    let out = short_turn(space).and_then(|turn| Some(cooling.age_after(1, clock)?.max(TURNS * turn)));
    [long, out].into_iter().flatten().min()
}

/// Evictions of a turn, while RAM is short. Asks the tree itself: what was seen of it before another thread gave memory back would make
/// a turn seem short.
fn short_turn(space: &Space) -> Option<u32> {
    let sum = space.tree().look();
    let is_short = sum.free() < sum.limit / PLENTY_PART;
    is_short.then(|| (space.budget.charged() as i64 + sum.free()).clamp(0, i64::from(u32::MAX / 16)) as u32)
}

/// Cools some objects, if it is time to and nobody else needs the processor. For the background thread, outside the gate.
pub(crate) fn cool_in_spare_time(space: &Space, ctx: &ThreadCtx) {
    let cooling = &space.background.cooling;
    let now_ns = uapi::now_ns();
    if !has_work(space) {
        return release(space, ctx, true);
    }
    if cooling.rest_ns(now_ns) > 0 {
        return;
    }
    cooling.note_clock(now_ns, space.swap.clock());
    let is_forced = space.kernel.force().always_cold;
    match cooling.program.leaves_time(space.background.cpus) {
        _ if is_forced => {}
        Some(true) => {}
        Some(false) => return cooling.keep_away(now_ns),
        None => return cooling.look_again(now_ns),
    }
    let Some(age_min) = age_min(space) else { return cooling.wait(now_ns, MARK_NS) };
    let piece = Piece::begin();
    let mut is_over = false;
    for _ in 0..STEPS {
        let Some(done) = cool_step(space, ctx, age_min, STEP) else { break };
        cooling.note_tried(done.tried);
        is_over = done.is_full || cooling.note_looks(done.looked, done.tried == 0, space.swap.nr_to_look_at());
        if is_over || reclaim::has_urgent_work(space) {
            break;
        }
    }
    let took = piece.end();
    let now_ns = uapi::now_ns();
    if is_over {
        close_gaps(space, ctx);
        cooling.wait(now_ns, if short_turn(space).is_none() { MARK_NS } else { SHORT_NS });
        return release(space, ctx, false);
    }
    // Reclaim does not wait for this.
    cooling.rest(now_ns, if is_forced { Took { wall_ns: 0, ran_ns: 0 } } else { took });
}

/// Closes the gaps that cooling has left in the pool, as far as that frees memory and nothing more urgent comes up. Outside the gate.
fn close_gaps(space: &Space, ctx: &ThreadCtx) {
    let (mut moved, mut steps) = (STEP, 0..GAP_STEPS);
    while moved > 0 && steps.next().is_some() && !reclaim::has_urgent_work(space) && !space.family.pool_is_shared() {
        let inside = space.threads.enter(ctx);
        moved = space.swap.compact(&inside, &space.budget, space.stats, COMPACT_STEP);
        drop(inside);
    }
}

/// Tries up to `most` objects that went out at least `age_min` evictions ago, and closes the gaps that this leaves in the pool. None if
/// the pool is shared since a fork, or other threads are at it. Outside the gate.
pub(crate) fn cool_step(space: &Space, ctx: &ThreadCtx, age_min: u32, most: usize) -> Option<Cooled> {
    if space.family.pool_is_shared() {
        return None;
    }
    let start_ns = uapi::thread_time_ns();
    let inside = space.threads.enter(ctx);
    let done = space.swap.codecs.try_encoder().map(|mut encoder| {
        let done = space.swap.cool(&inside, &space.budget, space.stats, &mut encoder, age_min, most);
        if done.cooled > 0 {
            // What became smaller leaves gaps. Only whole blocks come free.
            space.swap.compact(&inside, &space.budget, space.stats, 2 * done.cooled);
        }
        done
    });
    drop(inside);
    stats::add(&space.stats.cooling_ns, uapi::thread_time_ns().saturating_sub(start_ns));
    done
}

/// Gives back what cooling worked in; also what cold objects are read with, if there are none and `decoders` says so. Outside the gate.
pub(crate) fn release(space: &Space, ctx: &ThreadCtx, decoders: bool) {
    if !space.swap.codecs.have_memory() {
        return;
    }
    let inside = space.threads.enter(ctx);
    let needs_none = decoders && !space.swap.has_cold() && space.swap.device_pages(&inside) == 0;
    space.swap.codecs.trim(needs_none, &space.budget);
    drop(inside);
}
