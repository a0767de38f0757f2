//! What pages cost their groups, summed up over a walk in which the owner may change from page to page.
//!
//! The owner is looked up where a region ends, not for each page, and charges are made a region at a time.

use super::table::{Groups, Index};
use crate::page::{State, Tag};
use crate::space::Space;

/// Pages of each kind, added or taken away.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Cost {
    pub ram: i64,
    pub swap: i64,
    pub staged: i64,
}

impl Cost {
    /// A page of ram.
    pub const RAM: Self = Self { ram: 1, swap: 0, staged: 0 };
    /// A page of swap.
    pub const SWAP: Self = Self { ram: 0, swap: 1, staged: 0 };

    /// What a page in this state costs its group.
    pub fn of(state: State) -> Self {
        match state.tag() {
            Tag::None | Tag::Busy => Self::default(),
            Tag::Present => Self { ram: 1, swap: i64::from(state.is_clean()), staged: 0 },
            Tag::Staged => Self { ram: 1, swap: 0, staged: 1 },
            Tag::Swapped => Self::SWAP,
        }
    }

    /// So many times as much.
    pub fn times(self, n: i64) -> Self {
        Self { ram: self.ram * n, swap: self.swap * n, staged: self.staged * n }
    }

    /// A page of ram that is staged now.
    pub const STAGED: Self = Self { ram: 0, swap: 0, staged: 1 };

    /// The sum.
    pub fn plus(self, other: Self) -> Self {
        Self { ram: self.ram + other.ram, swap: self.swap + other.swap, staged: self.staged + other.staged }
    }

    /// The opposite.
    pub fn taken(self) -> Self {
        self.times(-1)
    }
}

impl Groups {
    /// Charges what a change costs to a group and its ancestors, whatever their limits.
    pub fn force(&self, group: Index, cost: Cost) {
        if cost == Cost::default() {
            return;
        }
        for group in self.line(group) {
            let node = self.node(group);
            for (counter, n) in [(&node.ram, cost.ram), (&node.swap, cost.swap), (&node.staged, cost.staged)] {
                match n {
                    0 => {}
                    1.. => counter.force_charge(n as u64),
                    _ => counter.uncharge(n.unsigned_abs()),
                }
            }
        }
    }
}

/// A sum under way. What is in it is charged at the latest when it goes.
pub struct Tally<'a> {
    space: &'a Space,
    /// The region of the last page: its range and its group.
    start: usize,
    end: usize,
    group: Index,
    sum: Cost,
}

impl<'a> Tally<'a> {
    /// Nothing yet. Where the root is alone it stays so. Inside the gate, or with it closed, until it goes.
    pub fn new(space: &'a Space) -> Self {
        // Without groups every page is in the "region" of the root.
        let end = if space.groups.exist() { 0 } else { usize::MAX };
        Self { space, start: 0, end, group: Index::ROOT, sum: Cost::default() }
    }

    /// The page at `addr` changes what it costs its group by `cost`.
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
        self.settle();
        let region = self.space.regions.find(addr);
        debug_assert!(region.is_some(), "a page with content in no region");
        (self.start, self.end, self.group) = region.map_or((0, 0, Index::ROOT), |r| (r.start, r.end, r.group));
    }

    fn settle(&mut self) {
        self.space.groups.force(self.group, self.sum);
        self.sum = Cost::default();
    }
}

impl Drop for Tally<'_> {
    fn drop(&mut self) {
        self.settle();
    }
}
