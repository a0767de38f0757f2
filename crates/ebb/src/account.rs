//! Bookkeeping of pages that change state: unit counters and the ring of units.

use crate::space::Space;
use core::sync::atomic::Ordering::{Relaxed, SeqCst};

impl Space {
    /// A page of the unit at `addr` got content for the first time.
    pub(crate) fn count_content(&self, addr: usize, n: usize) {
        if let Some(unit) = self.table.unit(addr) {
            unit.content.fetch_add(n as u32, Relaxed);
            // The state words of a unit and its descriptor become real memory once, and stay.
            if !unit.is_charged() {
                self.group.charge_meta(self.table.take_uncharged(addr));
            }
        }
        self.group.add_wanted(n);
    }

    /// A page of the unit at `addr` lost its content.
    pub(crate) fn uncount_content(&self, addr: usize, n: usize) {
        if let Some(unit) = self.table.unit(addr) {
            unit.content.fetch_sub(n as u32, Relaxed);
        }
        self.group.sub_wanted(n);
    }

    /// Pages of the unit at `addr` were mapped: reclaim will look at the unit.
    pub(crate) fn count_present(&self, addr: usize, n: usize) {
        let Some(unit) = self.table.unit(addr) else { return };
        // Sequentially consistent against `sweep_one`, which clears `queued` and then looks at `present`.
        unit.present.fetch_add(n as u32, SeqCst);
        if unit.queued.load(SeqCst) == 0 && unit.queued.swap(1, SeqCst) == 0 {
            self.queue_unit(addr);
        }
    }

    /// Pages of the unit at `addr` were unmapped.
    pub(crate) fn uncount_present(&self, addr: usize, n: usize) {
        if let Some(unit) = self.table.unit(addr) {
            unit.present.fetch_sub(n as u32, Relaxed);
        }
    }

    /// Pages of the unit at `addr` became clean.
    pub(crate) fn count_clean(&self, addr: usize, n: usize) {
        if let Some(unit) = self.table.unit(addr) {
            unit.clean.fetch_add(n as u32, Relaxed);
        }
        self.nr_clean.fetch_add(n, Relaxed);
    }

    /// Pages of the unit at `addr` are no longer clean.
    pub(crate) fn uncount_clean(&self, addr: usize, n: usize) {
        if let Some(unit) = self.table.unit(addr) {
            unit.clean.fetch_sub(n as u32, Relaxed);
        }
        self.nr_clean.fetch_sub(n, Relaxed);
    }

    /// Puts a unit that is marked queued at the end of the ring.
    pub(crate) fn queue_unit(&self, addr: usize) {
        if !self.units.push(self.table.unit_start(addr) as u64)
            && let Some(unit) = self.table.unit(addr)
        {
            // More units than the ring holds: this one is queued when its next page comes in.
            unit.queued.store(0, Relaxed);
        }
    }
}
