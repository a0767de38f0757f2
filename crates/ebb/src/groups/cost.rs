//! What a page costs its group, by its state.

use crate::groups::table::{Groups, Index};
use crate::protocols::page::{State, Tag};

/// Pages of each kind that are added or taken away.
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

    /// This cost times `n`.
    pub fn times(self, n: i64) -> Self {
        Self { ram: self.ram * n, swap: self.swap * n, staged: self.staged * n }
    }

    /// What a page of ram costs more once it is staged.
    pub const STAGED: Self = Self { ram: 0, swap: 0, staged: 1 };

    /// The sum of both costs.
    pub fn plus(self, other: Self) -> Self {
        Self { ram: self.ram + other.ram, swap: self.swap + other.swap, staged: self.staged + other.staged }
    }

    /// The opposite of this cost.
    pub fn taken(self) -> Self {
        self.times(-1)
    }
}

impl Groups {
    /// Charges a cost, which may be negative, to a group and its ancestors, whatever their limits.
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
