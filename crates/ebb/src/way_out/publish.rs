//! Tells the tree the sizes of a space and the ages of its pages, and learns from it how much of the budget is the space's own.

use crate::base::clock;
use crate::base::events::{self, Size};
use crate::budget;
use crate::device::file::SLOT_BYTES;
use crate::pages::{account, sharing};
use crate::protocols::gate::Held;
use crate::space::Space;
use crate::threads::ctx::ThreadCtx;
use crate::tree::{AGES, Kind, ages, now_ms, said};
use core::sync::atomic::Ordering::Relaxed;

/// Ages are published no more often than this. That is often enough for a process that is asked for memory to know its own
/// ages.
const AGES_EVERY_MS: u64 = 50;
/// Fewest evicted pages whose returns say something about how much this process needs what it evicts.
const EVICTED_MIN: u64 = 256;

/// Most units in which one round looks for pages that others have left to this process. The next units have their turn in the
/// next round.
const LOOKS_MAX: usize = 64;

/// Records how much memory there is of each kind.
fn record_sizes(space: &Space, held: &Held) {
    let (staging, budget) = (&space.places.staging, &space.budget);
    for (size, pages) in [
        (Size::Limit, budget.limit()),
        (Size::Charged, budget.charged()),
        (Size::Pool, space.swap.pool_pages()),
        (Size::Books, budget.meta_pages()),
        (Size::Staged, staging.staged()),
        (Size::Frames, staging.held()),
        (Size::Stock, budget.stocked()),
        (Size::Clean, space.eviction.nr_clean()),
        (Size::Wanted, budget.wanted()),
        (Size::Device, space.swap.device_pages(held) as usize),
        (Size::Slots, space.swap.nr_used() as usize),
    ] {
        events::record(events::Kind::Size, 0, size as usize, pages as u64);
    }
}

/// Tells the tree how much this process holds and where, and divides its budget between pool, staging and pages.
pub(crate) fn publish_sizes(space: &Space, held: &Held) {
    if events::is_on() {
        record_sizes(space, held);
    }
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
    // The pools of the other processes are in the same budget. But a pool may always hold half of what `pool_max` gives for the
    // memory that its process may expect.
    let page = space.tree().page();
    let managed = || page.members().filter(|(_, m)| m.kind() == Kind::Managed).map(|(_, m)| m);
    let pools = managed().map(|m| said(&m.pool) as usize).sum::<usize>();
    let others = pools.saturating_sub(space.swap.pool_pages());
    // A page that left fewer evictions ago than this part would still be here if all processes had the same.
    let grown = managed().filter(|m| said(&m.charged) >= space.budget.grown_pages()).count();
    space.eviction.set_even_part(limit / grown.max(1));
    // Pool pages that are shared since a fork are in this process's own pool too.
    let others = others.saturating_sub(space.family.shared_pool_pages());
    let (of_limit, of_share) = (budget::pool_max(limit), budget::pool_max(share));
    let [with_file, alone] = [0, 1].map(|i| of_limit[i].saturating_sub(others).max(of_share[i] / 2));
    // Without a file, compressing is the only way to hold less. Many processes that have the same content, and no longer
    // share it, may together hold more than the budget. Then nothing would be left for any pool, and all would wait for each
    // other. So without a file a pool may always hold its part of what its process has charged.
    let of_own = budget::pool_max(space.budget.charged());
    space.swap.set_pool_max([with_file, alone.max(of_own[1])]);
}

/// Tells the tree how old this process's pages are, unless it did so a moment ago. Outside the gate.
pub(crate) fn publish_ages(space: &Space, ctx: &ThreadCtx) {
    let now = now_ms();
    let is_member = space.budget.hold_if_lost();
    if !is_member || now.saturating_sub(space.tree().member().published_ms.load(Relaxed)) < AGES_EVERY_MS {
        return;
    }
    // Threads that find the ages too old at the same moment would all look.
    if space.eviction.begin_aging() {
        sharing::look_at_shared_pool(space);
        if space.budget.hold().is_ok() {
            look_at_ages(space, ctx, now);
        }
        space.eviction.end_aging();
    }
}

/// Tells the tree what each tier of this process holds: the pool's hot and cold objects, and its devices. Outside the gate.
pub(crate) fn publish_tiers_outside(space: &Space, ctx: &ThreadCtx) {
    if space.budget.hold_if_lost() {
        let inside = space.threads.enter(ctx);
        publish_tiers(space, &inside);
        drop(inside);
    }
}

fn publish_tiers(space: &Space, held: &Held) {
    let member = space.tree().member();
    let [hot, cold] = space.swap.tiers();
    let device_slots = space.swap.device_slots(held);
    for (word, value) in [
        (&member.hot_pages, hot.pages),
        (&member.hot_bytes, hot.bytes),
        (&member.cold_pages, cold.pages),
        (&member.cold_bytes, cold.bytes),
        (&member.device_bytes, device_slots * SLOT_BYTES as u64),
    ] {
        word.store(value, Relaxed);
    }
}

fn look_at_ages(space: &Space, ctx: &ThreadCtx, now: u64) {
    let member = space.tree().member();
    let mut histogram = [0; AGES];
    let mut youngest_ms = u64::MAX;
    let is_sharing = space.family.shares_much();
    let inside = space.threads.enter(ctx);
    let units = space.eviction.units.len();
    publish_tiers(space, &inside);
    drop(inside);
    let mut looks = 0;
    // Once around the ring, which keeps its order.
    for _ in 0..units {
        let inside = space.threads.enter(ctx);
        if let Some(addr) = space.eviction.units.pop() {
            if let Some(unit) = space.table.unit(addr as usize) {
                let age_ms = clock::ms_since(unit.touched.load(Relaxed));
                looks += (looks < LOOKS_MAX && sharing::look_for_deserted(space, addr as usize, unit)) as usize;
                // This process alone cannot give pages that are shared since a fork.
                let shared = if is_sharing { sharing::in_common(unit) } else { 0 };
                histogram[ages::class_of(age_ms)] += unit.present.load(Relaxed).saturating_sub(shared);
                youngest_ms = youngest_ms.min(age_ms);
            }
            account::queue_unit(space, addr as usize);
        }
        drop(inside);
    }
    // The pool does not know when its objects were last used. It was no later than the last use of any page.
    let pool_ms = if youngest_ms == u64::MAX { now.saturating_sub(member.since_ms.load(Relaxed)) } else { youngest_ms };
    // The pool can give nothing without a device, or while it is shared.
    if space.swap.has_file() && !space.family.pool_is_shared() {
        histogram[ages::class_of(pool_ms)] += space.swap.pool_pages() as u32;
    }
    member.publish_ages(&histogram, now);
    // Another thread may publish at the same time. Each takes what the other has not taken.
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
