//! Memory that a program gives to a device for longer than a call. `pages::drivers` says why that matters.

use crate::base::PAGE;
use crate::calls::mapping;
use crate::counters::bound::Adding;
use crate::protocols::gate::{Exclusive, Held};
use crate::space::Space;
use crate::space::drivers::KNOWN;
use crate::threads::ctx::ThreadCtx;
use core::sync::atomic::Ordering::{Acquire, Release};

/// The part of the budget that can be registered and locked, so that something is left to work in.
const STAYING_PART: (usize, usize) = (3, 4);

impl Space {
    /// True when a driver can be given `addr` as things are, without [`Self::give_to_driver`].
    #[inline]
    pub fn is_known_to_drivers(&self, addr: usize) -> bool {
        if self.kernel.can_move() { self.kernel.drivers.0.load(Acquire) == KNOWN } else { !self.is_managed(addr) }
    }

    /// Prepares for a driver that is about to be given `addr`, which may lead to memory that it pins for as long as it
    /// likes.
    pub fn give_to_driver(&self, ctx: &ThreadCtx, addr: usize) {
        if self.is_known_to_drivers(addr) {
            return;
        }
        if self.kernel.can_move() {
            // The driver may also take plain references, which MOVE does not see.
            self.reuse_no_frames();
            // With the gate closed, no thread is still dropping pages.
            self.exclusive(|_| self.kernel.drivers.0.store(KNOWN, Release));
            return;
        }
        let inside = self.threads.enter(ctx);
        let is_done = self.regions.find(&inside, addr).is_none_or(|region| region.attr.is_kept());
        drop(inside);
        if !is_done {
            self.exclusive(|exclusive| keep_mapping(self, exclusive, addr));
        }
    }
}

/// Marks as kept the region at `addr`, and all regions around it without a gap: pages in memory stay there.
fn keep_mapping(space: &Space, exclusive: &Exclusive<'_>, addr: usize) {
    let Some(region) = space.regions.find(exclusive, addr) else { return };
    let (mut start, mut end) = (region.start, region.end);
    while let Some(before) = space.regions.find(exclusive, start.wrapping_sub(1)) {
        start = before.start;
    }
    while let Some(behind) = space.regions.find(exclusive, end) {
        end = behind.end;
    }
    mapping::change_attributes(space, exclusive, start, end, |attr| attr.with_kept());
}

impl Space {
    /// Brings the range in for good, because a device or a guest uses it from now on. Returns false, and does nothing,
    /// if more than three quarters of the budget would be registered.
    pub fn register(&self, ctx: &ThreadCtx, addr: usize, len: usize) -> bool {
        let (start, end) = (addr & !(PAGE - 1), addr.saturating_add(len).div_ceil(PAGE) * PAGE);
        let inside = self.threads.enter(ctx);
        let wanted = managed_pages(self, &inside, start, end);
        let adding = try_stay(self, &inside, start, end, wanted);
        drop(inside);
        if adding.is_some() {
            self.exclude(ctx, addr, len);
        }
        adding.is_some()
    }
}

/// Grants that a range's `wanted` managed pages stay in memory for good. None if more than three quarters of the budget would
/// stay then.
pub(crate) fn try_stay<'a>(
    space: &'a Space,
    held: &Held,
    start: usize,
    end: usize,
    wanted: usize,
) -> Option<Adding<'a>> {
    let (part, whole) = STAYING_PART;
    let limit = space.budget.limit() / whole * part;
    if wanted > limit {
        return None;
    }
    space.kernel.staying.try_add(held, wanted, limit, || staying(space, held, start, end))
}

/// Pages of a range that are managed.
pub(crate) fn managed_pages(space: &Space, held: &Held, start: usize, end: usize) -> usize {
    let (mut at, mut pages) = (start, 0);
    while let Some(region) = space.regions.first_in(held, at, end) {
        let stop = region.end.min(end);
        pages += (stop - region.start.max(at)) / PAGE;
        at = stop;
    }
    pages
}

/// Pages that stay for good: those of a range, and all others.
fn staying(space: &Space, held: &Held, start: usize, end: usize) -> (usize, usize) {
    let (mut within, mut beside) = (0, 0);
    for region in space.regions.all(held) {
        space.table.for_each_content(region.start, region.end, |at, word| {
            if word.load().is_pinned() {
                *if (start..end).contains(&at) { &mut within } else { &mut beside } += 1;
            }
        });
    }
    (within, beside)
}
