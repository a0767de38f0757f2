//! Charges pages to their groups: the owner of a page, and a sum over a walk in which the owner may change from page to page.
//!
//! The owner is looked up once a region, not for each page, and charges are made a region at a time.

use crate::groups::cost::Cost;
use crate::groups::table::Index;
use crate::protocols::gate::Held;
use crate::space::Space;
use crate::threads::ctx::ThreadCtx;
use core::sync::atomic::Ordering::Relaxed;

/// The group of the page at `addr`.
pub(crate) fn owner(space: &Space, held: &Held, addr: usize) -> Index {
    if !space.groups.exist() {
        return Index::ROOT;
    }
    space.regions.find_any(held, addr).map_or(Index::ROOT, |region| region.group)
}

/// Charges a page of swap to the page's owner, before the content goes there. If the owner may have no more swap, counts the
/// refusal and returns false.
pub(crate) fn charge_swap_at(space: &Space, held: &Held, addr: usize) -> bool {
    let owner = owner(space, held, addr);
    owner.is_root() || space.groups.try_charge_swap(owner, 1)
}

/// Takes back what [`charge_swap_at`] charged.
pub(crate) fn uncharge_swap_at(space: &Space, held: &Held, addr: usize) {
    space.groups.force(owner(space, held, addr), Cost::SWAP.taken());
}

/// A running sum of costs. Drop charges what has not been charged yet.
pub struct Tally<'a> {
    space: &'a Space,
    held: &'a Held,
    /// The range and the group of the last page's region.
    start: usize,
    end: usize,
    group: Index,
    sum: Cost,
}

impl<'a> Tally<'a> {
    /// An empty sum. It stays empty while the root is the only group.
    pub fn new(space: &'a Space, held: &'a Held) -> Self {
        // Without groups, every address is in one "region" of the root.
        let end = if space.groups.exist() { 0 } else { usize::MAX };
        Self { space, held, start: 0, end, group: Index::ROOT, sum: Cost::default() }
    }

    /// Adds `cost` to what the page at `addr` costs its group.
    #[inline]
    pub fn add(&mut self, addr: usize, cost: Cost) {
        if addr < self.start || addr >= self.end {
            self.turn_to(addr);
        }
        if !self.group.is_root() {
            self.sum = self.sum.plus(cost);
        }
    }

    fn turn_to(&mut self, addr: usize) {
        self.flush();
        let region = self.space.regions.find_any(self.held, addr);
        debug_assert!(region.is_some(), "a page with content in no region");
        (self.start, self.end, self.group) = region.map_or((0, 0, Index::ROOT), |r| (r.start, r.end, r.group));
    }

    fn flush(&mut self) {
        self.space.groups.force(self.group, self.sum);
        self.sum = Cost::default();
    }
}

impl Drop for Tally<'_> {
    fn drop(&mut self) {
        self.flush();
    }
}

/// The group of a thread's new mappings.
pub(crate) fn thread_group(_held: &Held, ctx: &ThreadCtx) -> Index {
    Index::from_raw(ctx.group.load(Relaxed))
}
