//! What is written to a file, and whether it may be: see [`Allowance`]. Every write takes from the allowance before it begins.

use super::{SLOT_BYTES, SpillFile};
use crate::counters::stats::Shared;
use crate::counters::writes::{Allowance, Grant};

impl SpillFile {
    /// Sets the place of the file's directory in the tree's table; 0 for none. Before the file's first use.
    pub fn set_place(&mut self, place: u32) {
        self.place = place;
    }

    /// What may be written to the file's directory, if that is counted.
    pub fn allowance<'a>(&self, stats: &'a Shared) -> Option<&'a Allowance> {
        stats.writes.get(self.place)
    }

    /// For how long nothing can be written because the directory's budget is spent; 0 if something can.
    pub fn held_ns(&self, stats: &Shared) -> u64 {
        self.allowance(stats).map_or(0, Allowance::held_ns)
    }

    /// Takes as much as `slots` slots. None if the budget is spent.
    pub(super) fn take_allowance(&self, stats: &Shared, slots: usize) -> Option<Grant> {
        self.allowance(stats).map_or(Some(Grant::default()), |allowance| allowance.take(slots))
    }

    /// Gives back what was taken for `slots` slots, but for the first `bytes`, which the device may have got.
    pub(super) fn give_back(&self, stats: &Shared, grant: Grant, slots: usize, bytes: usize) {
        let left = slots.saturating_sub(bytes.div_ceil(SLOT_BYTES));
        if let Some(allowance) = self.allowance(stats).filter(|_| left > 0) {
            allowance.give_back(grant, left);
        }
    }
}
