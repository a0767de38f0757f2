//! Bookkeeping of pages that change state: unit counters and the ring of units.

use crate::base::events;
use crate::protocols::gate::Held;
use crate::space::Space;
use core::sync::atomic::Ordering::{Relaxed, SeqCst};

/// Counts `n` pages of the unit at `addr` that got content for the first time.
pub(crate) fn count_content(space: &Space, addr: usize, n: usize) {
    if let Some(unit) = space.table.unit(addr) {
        unit.content.fetch_add(n as u32, Relaxed);
        // The state words of a unit and its descriptor become real memory once, and stay so.
        if !unit.is_charged() {
            space.budget.charge_meta(space.table.take_uncharged(addr));
        }
    }
    space.budget.add_wanted(n);
}

/// Counts `n` pages of the unit at `addr` that lost their content.
pub(crate) fn uncount_content(space: &Space, addr: usize, n: usize) {
    if let Some(unit) = space.table.unit(addr) {
        unit.content.fetch_sub(n as u32, Relaxed);
    }
    space.budget.sub_wanted(n);
}

/// Counts `n` pages of the unit at `addr` that were mapped, and queues the unit for reclaim.
pub(crate) fn count_present(space: &Space, addr: usize, n: usize) {
    events::count_present(n as i64);
    let Some(unit) = space.table.unit(addr) else { return };
    // Sequentially consistent against `sweep_one`, which clears `queued` and then looks at `present`.
    unit.present.fetch_add(n as u32, SeqCst);
    if unit.queued.load(SeqCst) == 0 && unit.queued.swap(1, SeqCst) == 0 {
        queue_unit(space, addr);
    }
}

/// Counts `n` pages of the unit at `addr` that were unmapped.
pub(crate) fn uncount_present(space: &Space, addr: usize, n: usize) {
    events::count_present(-(n as i64));
    if let Some(unit) = space.table.unit(addr) {
        unit.present.fetch_sub(n as u32, Relaxed);
    }
}

/// Counts `n` pages of the unit at `addr` that became clean.
pub(crate) fn count_clean(space: &Space, addr: usize, n: usize) {
    if let Some(unit) = space.table.unit(addr) {
        unit.clean.fetch_add(n as u32, Relaxed);
    }
    space.eviction.add_clean(n);
}

/// Counts `n` pages of the unit at `addr` that are no longer clean.
pub(crate) fn uncount_clean(space: &Space, addr: usize, n: usize) {
    if let Some(unit) = space.table.unit(addr) {
        unit.clean.fetch_sub(n as u32, Relaxed);
    }
    space.eviction.sub_clean(n);
}

/// Puts a unit that is marked queued at the end of the ring.
pub(crate) fn queue_unit(space: &Space, addr: usize) {
    if !space.eviction.units.push(space.table.unit_start(addr) as u64)
        && let Some(unit) = space.table.unit(addr)
    {
        // There are more units than the ring holds. This one is queued when its next page comes in.
        unit.queued.store(0, Relaxed);
    }
}

/// True if one or several regions that can be read and written cover the range.
pub(crate) fn is_plain_range(space: &Space, held: &Held, start: usize, end: usize) -> bool {
    let mut at = start;
    while at < end {
        match space.regions.find(held, at) {
            Some(region) if region.attr.is_plain() => at = region.end,
            _ => return false,
        }
    }
    true
}
