//! Giving pages up that another process of the tree asked for. Who asks whom is in `way_out::asking`.

use crate::base::idle::Done;
use crate::pages::stock;
use crate::space::{Space, background};
use crate::threads::ctx::ThreadCtx;
use crate::tree::ages::OfShared;
use crate::tree::now_ms;
use crate::way_out::{publish, reclaim};
use core::sync::atomic::Ordering;

/// Of more than so many others nobody gives what they share: each would store a copy.
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
        // Who was idle does not know that it is the last one that has it.
        publish::publish_sizes_outside(space, ctx);
        publish::publish_ages(space, ctx);
        space.tree().member().take_ask();
        return keep_shared(space, now);
    }
    let pages = pages.min(space.budget.charged() as i64);
    // What was used since the coldest pages were is passed over as long as there is something else.
    publish::publish_ages(space, ctx);
    // Who has more than its even share gives what it uses, too: those that have less may need theirs as much.
    let owes = space.tree().member().owes() && space.budget.charged() > space.eviction.even_part();
    let young_ms = if owes { 0 } else { space.tree().member().coldest_ms(now).unwrap_or(0) / 2 };
    space.eviction.set_young_ms(young_ms);
    let (mut given, mut idle_rounds) = (0, 0);
    let _closed = stock::close_stock(space);
    // What the program takes meanwhile is its own affair: what counts is what was freed.
    while given < pages && idle_rounds < 4 && !background::is_asked(space) {
        space.tree().look();
        let before = space.budget.charged();
        let worked = stock::shrink_stock(space, ctx) || reclaim::reclaim_step(space, ctx);
        if !worked && gives_shared {
            reclaim::reclaim_shared_step(space, ctx);
        }
        space.budget.give_back_unused();
        let freed = before.saturating_sub(space.budget.charged());
        // What of the shared was staged, and is not stored, is more than before.
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
        keep_shared(space, now_ms());
    }
}

/// Whether this process gives what it shares, when it is asked so. Every one of those that have it has to store it, and only
/// when all but one have is it memory that the tree gets, from the last, whose own it is then. For the background thread.
fn may_give_shared(space: &Space, asked: OfShared, now: u64) -> bool {
    if asked == OfShared::Keep || !space.family.shares_much() {
        return false;
    }
    let member = space.tree().member();
    let done = Done::by_program(member.faults.load(Ordering::Relaxed));
    let is_idle = done.is_some_and(|done| space.background.idle.look(now, done));
    member.set_idle(is_idle, now);
    let others = space.tree().others(now);
    // Where all stays in RAM, more copies than two take more than they free.
    if !space.swap.has_file() && others.number > 1 {
        return false;
    }
    // Who asks may be the one that does something.
    asked == OfShared::Give || is_idle && others.busy <= 1 && others.number <= SHARERS_MAX
}

/// It keeps what it shares: who asked asks again later.
fn keep_shared(space: &Space, now: u64) {
    let last_ms = space.background.kept_ms.load(Ordering::Relaxed);
    space.background.kept_ms.store(space.tree().member().keep_shared(now, last_ms), Ordering::Relaxed);
}
