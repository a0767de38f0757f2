//! What a space tells its tree, and what it learns from it: sizes, the age of its pages, how much of the budget is its own.

use crate::base::clock;
use crate::budget;
use crate::pages::{account, sharing};
use crate::protocols::gate::Held;
use crate::space::Space;
use crate::threads::ctx::ThreadCtx;
use crate::tree::{AGES, Kind, ages, now_ms, said};
use core::sync::atomic::Ordering::Relaxed;

/// How often ages are looked at: so often that who is asked for memory knows its own.
const AGES_EVERY_MS: u64 = 50;
/// Evicted pages that say something of those that are needed again.
const EVICTED_MIN: u64 = 256;

/// Units in which one round looks for pages that others have left to this process; the next ones take their turn in the next round.
const LOOKS_MAX: usize = 64;

/// Tells the tree how much this process holds where, and divides its budget between pool, staging and pages.
pub(crate) fn publish_sizes(space: &Space, held: &Held) {
    let shared = sharing::look_at_sharing(space);
    if space.budget.hold_if_lost() {
        let member = space.tree().member();
        member.charged.store(space.budget.charged() as u64, Relaxed);
        member.shared.store(shared as u64, Relaxed);
        member.wanted.store(space.budget.wanted() as u64, Relaxed);
        member.pool.store(space.swap.pool_pages() as u64, Relaxed);
        member.staged.store(space.places.staging.staged() as u64, Relaxed);
        member.on_device.store(space.swap.device_pages(held), Relaxed);
    }
    let (limit, share) = (space.budget.limit(), space.budget.expected());
    space.eviction.set_sweep_max(budget::sweep_max(share));
    let in_memory = space.budget.charged().saturating_sub(space.swap.pool_pages() + space.budget.meta_pages());
    space.places.staging.set_target(budget::staging_target(share, space.budget.wanted().saturating_sub(in_memory)));
    // The pools of the others are in the same budget. A pool may always have its part of what the process has itself.
    let page = space.tree().page();
    let managed = || page.members().filter(|(_, m)| m.kind() == Kind::Managed).map(|(_, m)| m);
    let pools = managed().map(|m| said(&m.pool) as usize).sum::<usize>();
    let others = pools.saturating_sub(space.swap.pool_pages());
    // What was evicted would be here still if all had the same.
    let grown = managed().filter(|m| said(&m.charged) >= space.budget.grown_pages()).count();
    space.eviction.set_even_part(limit / grown.max(1));
    // What is shared since a fork is in this process's own pool, too.
    let others = others.saturating_sub(space.family.shared_pool_pages());
    let (of_limit, of_share) = (budget::pool_max(limit), budget::pool_max(share));
    let [with_file, alone] = [0, 1].map(|i| of_limit[i].saturating_sub(others).max(of_share[i] / 2));
    // Where there is no file nothing else gets smaller than by compressing it. Many that have much in common, and no longer
    // share it, may hold more than the budget together: then what is left for each is nothing, and all would wait for all.
    let of_own = budget::pool_max(space.budget.charged());
    space.swap.set_pool_max([with_file, alone.max(of_own[1])]);
}

/// Tells the tree how old this process's pages are, if it has not for some time. Outside the gate.
pub(crate) fn publish_ages(space: &Space, ctx: &ThreadCtx) {
    let now = now_ms();
    let is_member = space.budget.hold_if_lost();
    if !is_member || now.saturating_sub(space.tree().member().published_ms.load(Relaxed)) < AGES_EVERY_MS {
        return;
    }
    sharing::look_at_shared_pool(space);
    if space.budget.hold().is_err() {
        return;
    }
    let member = space.tree().member();
    let mut histogram = [0; AGES];
    let mut youngest_ms = u64::MAX;
    let is_sharing = space.family.shares_much();
    let inside = space.threads.enter(ctx);
    let units = space.eviction.units.len();
    drop(inside);
    let mut looks = 0;
    // Once around the ring, which stays in its order.
    for _ in 0..units {
        let inside = space.threads.enter(ctx);
        if let Some(addr) = space.eviction.units.pop() {
            if let Some(unit) = space.table.unit(addr as usize) {
                let age_ms = clock::ms_since(unit.touched.load(Relaxed));
                looks += (looks < LOOKS_MAX && sharing::look_for_deserted(space, addr as usize, unit)) as usize;
                // What is shared since a fork is not this process's to give.
                let shared = if is_sharing { sharing::in_common(unit) } else { 0 };
                histogram[ages::class_of(age_ms)] += unit.present.load(Relaxed).saturating_sub(shared);
                youngest_ms = youngest_ms.min(age_ms);
            }
            account::queue_unit(space, addr as usize);
        }
        drop(inside);
    }
    // When its objects were last used the pool does not know: no later than the process used anything.
    let pool_ms = if youngest_ms == u64::MAX { now.saturating_sub(member.since_ms.load(Relaxed)) } else { youngest_ms };
    // Without a device nothing can be had from the pool, nor from one that is shared.
    if space.swap.has_file() && !space.family.pool_is_shared() {
        histogram[ages::class_of(pool_ms)] += space.swap.pool_pages() as u32;
    }
    member.publish_ages(&histogram, now);
    // Another thread may be at the same: what one takes the other does not have.
    let evicted = space.eviction.take_evicted();
    if evicted < EVICTED_MIN {
        space.eviction.add_evicted(evicted);
        return;
    }
    member.publish_needed_again(space.eviction.take_needed_again(), evicted, now);
}

pub(crate) fn publish_sizes_outside(space: &Space, ctx: &ThreadCtx) {
    let inside = space.threads.enter(ctx);
    publish_sizes(space, &inside);
    drop(inside);
}
