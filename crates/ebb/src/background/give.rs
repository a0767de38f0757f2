//! Gives up pages that another process of the tree asked for. `way_out::asking` decides who asks whom.

use crate::base::idle::Done;
use crate::pages::stock;
use crate::space::{Space, background};
use crate::threads::ctx::ThreadCtx;
use crate::tree::ages::OfShared;
use crate::tree::now_ms;
use crate::way_out::{publish, reclaim};
use core::sync::atomic::Ordering;

/// An idle process that is asked gives up what it shares only if it shares it with at most this many others: each would
/// store a copy.
const SHARERS_MAX: usize = 8;

/// Gives up the pages that another process asked for, the coldest first. Outside the gate.
pub(crate) fn give_up_pages(space: &Space, ctx: &ThreadCtx) {
    let pages = space.tree().member().ask_pages.load(Ordering::SeqCst);
    if !space.budget.hold_if_lost() || pages <= 0 {
        return;
    }
    let now = now_ms();
    let of_shared = space.tree().member().asked_of_shared(now);
    let gives_shared = may_give_shared(space, of_shared, now);
    if of_shared == OfShared::IfIdle && !gives_shared {
        // An idle process does not know when it has become the last holder of its pages. Publishing finds out.
        publish::publish_sizes_outside(space, ctx);
        publish::publish_ages(space, ctx);
        space.tree().member().take_ask();
        return keep_shared(space, of_shared, now);
    }
    let pages = pages.min(space.budget.charged() as i64);
    // Units touched within half the age of the coldest pages are passed over, as long as there are others.
    publish::publish_ages(space, ctx);
    // A process that owes, and has more than its even share, also gives up pages that it uses: processes that have less
    // may need theirs as much.
    let owes = space.tree().member().owes() && space.budget.charged() > space.eviction.even_part();
    let young_ms = if owes { 0 } else { space.tree().member().coldest_ms(now).unwrap_or(0) / 2 };
    space.eviction.set_young_ms(young_ms);
    let (mut given, mut idle_rounds) = (0, 0);
    let _closed = stock::close_stock(space);
    // Only freed pages count. Pages that the program takes in meanwhile do not.
    while given < pages && idle_rounds < 4 && !background::is_asked(space) {
        space.tree().look();
        let before = space.budget.charged();
        let worked = stock::shrink_stock(space, ctx) || reclaim::reclaim_step(space, ctx);
        if !worked && gives_shared {
            reclaim::reclaim_shared_step(space, ctx);
        }
        space.budget.give_back_unused();
        let freed = before.saturating_sub(space.budget.charged());
        // Shared pages that were staged, and are not stored yet, are extra copies. So a step on shared pages counts
        // only by what it freed.
        idle_rounds = if worked || freed > 0 { 0 } else { idle_rounds + 1 };
        given += freed as i64;
    }
    space.eviction.set_young_ms(0);
    space.budget.give_back_unused();
    publish::publish_sizes_outside(space, ctx);
    publish::publish_ages(space, ctx);
    let pause_ms = space.tree().member().answer(given, now_ms(), space.background.declined_ms.load(Ordering::Relaxed));
    space.background.declined_ms.store(pause_ms, Ordering::Relaxed);
    if gives_shared && pause_ms == 0 {
        space.background.kept_ms.store(0, Ordering::Relaxed);
    } else if of_shared != OfShared::Keep && pause_ms > 0 {
        keep_shared(space, of_shared, now_ms());
    }
}

/// True when this process gives up shared pages, if asked to. Each holder must store the pages. The tree gets memory
/// only when all holders but one have done so: from the last, which then owns the pages alone. For the background
/// thread.
pub(crate) fn may_give_shared(space: &Space, asked: OfShared, now: u64) -> bool {
    if asked == OfShared::Keep || !space.family.shares_much() {
        return false;
    }
    let member = space.tree().member();
    let done = Done::by_program(member.faults.load(Ordering::Relaxed));
    let is_idle = done.is_some_and(|done| space.background.idle.look(now, done));
    member.set_idle(is_idle, now);
    let others = space.tree().others(now);
    // Without a file everything stays in RAM, and more than two copies take more memory than they free.
    if !space.swap.has_file() && others.number > 1 {
        return false;
    }
    // One other holder may be busy: it may be the one that asks.
    asked == OfShared::Give || is_idle && others.busy <= 1 && others.number <= SHARERS_MAX
}

/// Notes that this process keeps what it shares for a while, as it was `asked`. Whoever asked asks again later.
fn keep_shared(space: &Space, asked: OfShared, now: u64) {
    let last_ms = space.background.kept_ms.load(Ordering::Relaxed);
    let pause_ms = space.tree().member().keep_shared(asked, now, last_ms);
    space.background.kept_ms.store(pause_ms, Ordering::Relaxed);
}
