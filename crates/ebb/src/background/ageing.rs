//! Ageing: what nobody has used for the idle period leaves memory, although there is room.
//!
//! The period is the tree's (`Shared::idle_ms`), and 0 for never. Userfaultfd has no accessed bit, so staging stands in:
//!
//! 1. Once a period, each unit is unmapped into staging, intact. Who uses a page gets it back at the cost of a soft fault.
//! 2. What is still staged after a period was not used for that long. It is stored: in the pool, or where reclaim on demand
//!    puts it (`Aim::Free`).
//! 3. What has been in the pool for another period goes to a device. The eviction clock tells: it is read eight times a period.
//!
//! So a page that is no longer used leaves memory after one to two periods. A unit that proved hot rests for up to three
//! periods, so that a program in use pays less. A program that is in use pays a soft fault for each of its pages every one to
//! four periods.
//!
//! The thread works in turns, of which a period has eight or more. A turn looks at a part of the units, and at what is staged
//! and in the pool. It works for [`SLICE_NS`] at a time, and then leaves nine times as long to others. While memory is short,
//! ageing rests: reclaim takes what is cold.

use crate::background::{errand, give};
use crate::base::{clock, uapi};
use crate::counters::stats;
use crate::pages::stock;
use crate::places::swapspace::Aim;
use crate::space::{IDLE_MS_MAX, IDLE_MS_MIN, Space};
use crate::threads::ctx::ThreadCtx;
use crate::tree::ages::OfShared;
use crate::tree::now_ms;
use crate::way_out::swapout::{self, Wanted};
use crate::way_out::sweep::{self, Aged};
use crate::way_out::{faulty, publish, reclaim, shrink};
use core::sync::atomic::Ordering::Relaxed;

/// Turns in a period, at least.
const TURNS: u64 = 8;
/// Longest time between two turns. Processes that share memory must see each other idle, and that knowledge lasts five seconds
/// (`tree::ages`).
const TURN_MS_MAX: u64 = 60_000;
const SHARED_TURN_MS_MAX: u64 = 4000;
/// How long the thread works at a time, by the clock. A device may take most of it.
const SLICE_NS: u64 = 10_000_000;
/// After a slice of work it pauses for so many times as long.
const PAUSE_TIMES: u64 = 9;
/// What ageing leaves each process, in pages: the 1 MiB that it looked at last. With less, all that wakes the program is a swap-in.
const FLOOR_PAGES: usize = 256;
/// Slots that one search for old objects of the pool visits.
const LOOKS_MAX: u32 = 16_384;

/// Makes the next slice of ageing if it is time to. Returns in how many nanoseconds to call again; none while ageing is off.
/// For the background thread, outside the gate.
pub(crate) fn age_in_time(space: &Space, ctx: &ThreadCtx) -> Option<u64> {
    let state = &space.eviction.ageing;
    // Any process of the tree may have written there.
    let period_ms = match space.stats.idle_ms.load(Relaxed) {
        0 => 0,
        ms => ms.clamp(IDLE_MS_MIN, IDLE_MS_MAX),
    };
    if state.period_ms.load(Relaxed) != period_ms {
        state.reset();
        state.period_ms.store(period_ms, Relaxed);
    }
    if period_ms == 0 {
        return None;
    }
    let now = now_ms();
    let left_ms = state.next_ms.load(Relaxed).saturating_sub(now);
    // A process that changed its time namespace may see another clock.
    if left_ms > 0 && left_ms <= TURN_MS_MAX {
        return Some(left_ms * 1_000_000);
    }
    let turn_ms = turn_ms(space, period_ms);
    if has_other_work(space) {
        state.next_ms.store(now + turn_ms, Relaxed);
        return Some(turn_ms * 1_000_000);
    }
    let (began_ns, ran_ns) = (uapi::now_ns(), uapi::thread_time_ns());
    let is_over = slice(space, ctx, Turn::new(space, ctx, now, period_ms, turn_ms), began_ns);
    stats::add(&space.stats.background_ns, uapi::thread_time_ns() - ran_ns);
    let took_ms = (uapi::now_ns() - began_ns) / 1_000_000;
    let began_ms = state.turn_ms.load(Relaxed);
    let mut pause_ms = (PAUSE_TIMES * took_ms).max(1);
    if is_over {
        state.turn_ms.store(0, Relaxed);
        pause_ms = pause_ms.max((began_ms + turn_ms).saturating_sub(now)).min(turn_ms.max(pause_ms));
    }
    let pause_ms = pause_ms.min(TURN_MS_MAX);
    state.next_ms.store(now_ms() + pause_ms, Relaxed);
    Some(pause_ms * 1_000_000)
}

/// Milliseconds from the beginning of one turn to the next.
fn turn_ms(space: &Space, period_ms: u64) -> u64 {
    let most = if space.family.shares_much() { SHARED_TURN_MS_MAX } else { TURN_MS_MAX };
    (period_ms / TURNS).clamp(1, most)
}

/// True if the thread has something to do that does not wait, or memory is short.
fn has_other_work(space: &Space) -> bool {
    reclaim::has_urgent_work(space) || errand::is_wanted(space) || space.background.read_ahead.is_wanted()
}

/// What a turn is to do.
struct Turn {
    ticks: u32,
    /// Also pages that are shared since a fork.
    takes_shared: bool,
    /// What the eviction clock said a period ago: what went out before that goes to a device. None if that is not known yet.
    before: Option<u32>,
}

impl Turn {
    /// Goes on with the current turn, or begins the next.
    fn new(space: &Space, ctx: &ThreadCtx, now: u64, period_ms: u64, turn_ms: u64) -> Self {
        let state = &space.eviction.ageing;
        let inside = space.threads.enter(ctx);
        let (nr_units, nr_parts) = (space.eviction.units.len(), space.places.staging.nr_queued());
        drop(inside);
        if state.turn_ms.load(Relaxed) == 0 {
            state.turn_ms.store(now, Relaxed);
            state.note_clock(now, period_ms, space.swap.clock());
            // A part of all, and a little more than that of a round.
            let part = |n: usize| (n as u64 * turn_ms / period_ms + 1).min(u64::from(u32::MAX)) as u32;
            // Each unit is seen four times a period, so that none waits long for its time.
            state.units_left.store(part(4 * nr_units), Relaxed);
            state.parts_left.store(nr_parts as u32, Relaxed);
            state.slots_left.store(part(space.swap.writeback_round().0 as usize), Relaxed);
        }
        let may_share = || give::may_give_shared(space, OfShared::IfIdle, now);
        Self {
            ticks: clock::ticks_of(period_ms),
            takes_shared: !space.family.shares_much() || may_share(),
            before: state.clock_a_period_ago(now, period_ms),
        }
    }
}

/// Works on a turn until it is over or the slice is. True if the turn is over.
fn slice(space: &Space, ctx: &ThreadCtx, turn: Turn, began_ns: u64) -> bool {
    let faults = space.tree().member().faults.load(Relaxed);
    // Frames in stock are for a program that runs.
    let is_idle = space.eviction.ageing.faults.swap(faults, Relaxed) == faults;
    while is_idle && stock::shrink_stock(space, ctx) {}
    let closed = stock::close_stock(space);
    let mut is_over = false;
    while !is_over && uapi::now_ns() - began_ns < SLICE_NS && !has_other_work(space) {
        is_over = !step(space, ctx, &turn);
    }
    drop(closed);
    // While memory is not short, what comes back says nothing about how much this process needs.
    let _ = (space.eviction.take_evicted(), space.eviction.take_needed_again());
    if is_over {
        let inside = space.threads.enter(ctx);
        space.swap.trim(&space.budget);
        publish::publish_sizes(space, &inside);
        drop(inside);
        space.budget.give_back_unused();
    }
    is_over
}

/// Makes one step of a turn. False if the turn is over.
fn step(space: &Space, ctx: &ThreadCtx, turn: &Turn) -> bool {
    let state = &space.eviction.ageing;
    if space.places.staging.has_vacated(space.budget.stocked()) && swapout::release_vacated(space, ctx) > 0 {
        return true;
    }
    let Some(mut work) = space.places.work.try_lease(&space.budget, ctx) else { return false };
    work.set_aim(Aim::Free);
    // A device that does not answer would keep this thread.
    if space.swap.has_file() && faulty::is_device_stuck(space, ctx) {
        return false;
    }
    if take_one(&state.parts_left) {
        let inside = space.threads.enter(ctx);
        let part = space.places.staging.pop_aged(turn.ticks);
        drop(inside);
        if let Some(part) = part {
            let (stored, _) = swapout::swap_out_part(space, ctx, part, &mut work, Wanted::All);
            stats::add(&space.stats.idle_out_pages, stored as u64);
            return true;
        }
        state.parts_left.store(0, Relaxed);
    }
    if take_one(&state.units_left) {
        let elsewhere = space.swap.pool_pages() + space.budget.meta_pages() + space.places.staging.held();
        if space.budget.charged() <= elsewhere + FLOOR_PAGES {
            state.units_left.store(0, Relaxed);
            return true;
        }
        match sweep::age_unit(space, ctx, turn.ticks, turn.takes_shared, &mut work) {
            Aged::Nothing => state.units_left.store(0, Relaxed),
            Aged::Passed => {}
            Aged::Unmapped(pages) => stats::add(&space.stats.idle_unmapped_pages, pages as u64),
        }
        return true;
    }
    let slots_left = state.slots_left.load(Relaxed);
    if let Some(before) = turn.before.filter(|_| slots_left > 0 && may_write(space, ctx)) {
        let (n, looks) = shrink::file_aged(space, ctx, before, slots_left.min(LOOKS_MAX), &mut work);
        stats::add(&space.stats.idle_writeback_pages, n as u64);
        state.slots_left.store(if looks == 0 { 0 } else { slots_left.saturating_sub(looks) }, Relaxed);
        return true;
    }
    false
}

/// Takes one of what is left to do in a turn; false if nothing is.
fn take_one(left: &core::sync::atomic::AtomicU32) -> bool {
    let n = left.load(Relaxed);
    left.store(n.saturating_sub(1), Relaxed);
    n > 0
}

/// True if the pool's content may go to a device now: there is one that takes it and answers and may be written to, and no
/// other process would keep the memory.
fn may_write(space: &Space, ctx: &ThreadCtx) -> bool {
    let may_take = || !faulty::is_device_stuck(space, ctx) && !faulty::are_all_held(space, ctx);
    space.swap.has_file() && !space.family.pool_is_shared() && may_take()
}
