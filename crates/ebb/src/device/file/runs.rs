//! Runs of neighbouring slots: pages that leave together lie together, so that one write puts them there, and one read
//! brings them back.
//!
//! A batch takes the longest aligned runs that it fills, and where there is no such run, the next shorter ones. Single
//! slots come last. Pages that come back one by one leave gaps behind, and a run finds no room in gaps. So a file whose
//! clusters have more gaps than content does not grow for runs: single slots fill the gaps, until the background thread
//! has *cleaned* clusters, that is, gathered what is left in the emptiest of them and written it elsewhere as runs.
//!
//! The sizes are the kernel's (`hugepages-*kB/stats/swpout` and `swpout_fallback`); cleaning is that of log-structured
//! file systems (Rosenblum and Ousterhout, 1991).

use super::{BATCH, NO_FOLIO, NO_OWNER, Reclaim, SPACE_KEPT, SpillFile};
use crate::counters::runs::SIZES_OUT;
use crate::counters::stats::{self, Shared};
use crate::device::kind::Kind;
use core::ops::Range;
use core::sync::atomic::Ordering;
use ebb_slots::{CLUSTER_SLOTS, Order, Shard, Slot, TableEntry};

/// A thread that needs slots.
#[derive(Clone, Copy)]
pub struct Taker<'a> {
    /// The thread's allocation shard.
    pub shard: Shard,
    /// Frees slots that only clean pages need.
    pub reclaim: Reclaim<'a>,
    /// Where runs are counted.
    pub stats: &'a Shared,
}

const _: () = assert!(BATCH == 1 << SIZES_OUT, "the counters have a place for each order");

/// Empty clusters that cleaning keeps ready for runs.
const READY: u32 = 16;
/// A cluster is worth cleaning if at most so many of its slots are in use: 5/8. With more, nearly every page written for the program
/// would cost another one.
const USED_MAX: u32 = CLUSTER_SLOTS / 8 * 5;
/// Clusters of each order with or without a run of which one step of cleaning chooses the emptiest.
const LOOKS: u32 = 32;

impl SpillFile {
    /// Allocates slots, in runs as far as there are any. Returns how many, from the first of `out` on.
    pub(super) fn alloc(&self, taker: Taker<'_>, out: &mut [Slot]) -> usize {
        self.collect_if_many();
        let may_grow = self.is_dense();
        if self.kind() == Kind::Hdd {
            return self.alloc_in_order(taker, may_grow, out);
        }
        let mut n = self.alloc_runs(taker, may_grow, out);
        if n < out.len() && !may_grow {
            n += self.fill_gaps(taker, &mut out[n..]);
        }
        if n < out.len() {
            n += self.alloc_singles(taker, &mut out[n..]);
        }
        n
    }

    /// Allocates single slots where the file is in use.
    fn fill_gaps(&self, taker: Taker<'_>, out: &mut [Slot]) -> usize {
        self.slots.alloc_touched(taker.shard, Order::ZERO, NO_FOLIO, out)
    }

    /// Allocates single slots, and frees some that only clean pages need if there are no others.
    pub(super) fn alloc_singles(&self, taker: Taker<'_>, out: &mut [Slot]) -> usize {
        let reclaim = |slot, folio| self.reclaim(slot, folio, taker.reclaim);
        self.slots.alloc_reclaiming(taker.shard, Order::ZERO, NO_FOLIO, out, reclaim)
    }

    /// Allocates slots one after the other, for a disk that turns: those after the slots that were allocated last, by whatever thread, as
    /// long as there are empty clusters. They need no alignment. Gaps are filled last, and then cleaning is to make clusters empty.
    fn alloc_in_order(&self, taker: Taker<'_>, may_grow: bool, out: &mut [Slot]) -> usize {
        let mut n = match may_grow {
            true => self.slots.alloc(taker.shard, Order::ZERO, NO_FOLIO, out),
            false => self.slots.alloc_touched(taker.shard, Order::ZERO, NO_FOLIO, out),
        };
        if n < out.len() {
            n += self.alloc_singles(taker, &mut out[n..]);
        }
        for run in out[..n].chunk_by(|slot, next| next.0 == slot.0 + 1) {
            if let Some(power) = run.len().ilog2().checked_sub(1) {
                stats::add(&taker.stats.runs.swpout[(power as usize).min(SIZES_OUT - 1)], 1);
            } else if n > 1 {
                self.lacks_runs.store(true, Ordering::Relaxed);
            }
        }
        n
    }

    /// Allocates runs of at least two slots.
    fn alloc_runs(&self, taker: Taker<'_>, may_grow: bool, out: &mut [Slot]) -> usize {
        let (mut n, mut most) = (0, Order::fitting(out.len()));
        while n < out.len() {
            let order = most.min(Order::fitting(out.len() - n));
            if order == Order::ZERO {
                break;
            }
            let mut first = [Slot(0)];
            let found = match may_grow {
                true => self.slots.alloc(taker.shard, order, NO_FOLIO, &mut first),
                false => self.slots.alloc_touched(taker.shard, order, NO_FOLIO, &mut first),
            };
            let index = usize::from(order.get()) - 1;
            if found == 0 {
                stats::add(&taker.stats.runs.swpout_fallback[index], 1);
                self.lacks_runs.store(true, Ordering::Relaxed);
                most = order.smaller();
                continue;
            }
            stats::add(&taker.stats.runs.swpout[index], 1);
            let slots = order.slots() as usize;
            for (slot, at) in out[n..n + slots].iter_mut().zip(first[0].0..) {
                *slot = Slot(at);
            }
            n += slots;
        }
        n
    }

    /// True if the clusters that have memory are at least half in use, but for a few.
    fn is_dense(&self) -> bool {
        let touched = u64::from(self.slots.nr_tables()) * u64::from(CLUSTER_SLOTS);
        let used = u64::from(self.nr_used()) + u64::from(self.nr_given_up());
        touched <= 2 * used + SPACE_KEPT as u64 * u64::from(CLUSTER_SLOTS)
    }

    /// True if runs lack room, cleaning can make some, and there is enough room for what must move first.
    pub fn wants_cleaning(&self, stats: &Shared) -> bool {
        if !self.owner || !self.lacks_runs.load(Ordering::Relaxed) || self.slots.nr_to_discard() >= READY {
            return false;
        }
        let used = u64::from(self.nr_used()) + u64::from(self.nr_given_up());
        let has_room = used + 2 * u64::from(CLUSTER_SLOTS) <= u64::from(self.nr_slots);
        has_room
            && self.held_ns(stats) == 0
            && self.closed().is_none()
            && !self.is_paused()
            && !self.is_resting()
            && !self.has_other_holders()
    }

    /// Calls `clean` with the slots of a cluster of which few are in use; it returns how many pages it moved out. Nothing is
    /// allocated from the cluster meanwhile. False if there is none, or nothing moved.
    pub fn clean_sparsest(&self, clean: impl FnOnce(Range<u32>) -> usize) -> bool {
        let mut moved = 0;
        self.slots.drain_sparsest(LOOKS, USED_MAX, |slots| moved = clean(slots.start.0..slots.end.0));
        // What a family has given up is free only once it is collected.
        if moved > 0 {
            self.collect();
        } else {
            self.lacks_runs.store(false, Ordering::Relaxed);
        }
        moved > 0
    }

    /// The slot of the swap space whose content `slot` has, as far as is known; none if there is none, or another process of the
    /// family needs the slot.
    pub fn owner_of(&self, slot: u32) -> Option<Slot> {
        let owner = match self.slots.get(Slot(slot)) {
            TableEntry::Cached { folio, locked: false, .. } => Slot(folio.get() as u32),
            _ => self.owner_out(slot)?,
        };
        (!self.is_held_by_others(slot)).then_some(owner)
    }

    /// The slot of the swap space whose content `slot` has, if memory does not have it too, as far as is known. In a file of another
    /// process that is what this process knew of it when it was forked.
    pub fn owner_out(&self, slot: u32) -> Option<Slot> {
        match self.slots.get(Slot(slot)) {
            TableEntry::Stored(stored) if stored.shadow != NO_OWNER => Some(Slot(stored.shadow.0)),
            _ => None,
        }
    }

    /// Whether a slot has several objects and is in use, as far as is known: likewise for a file of another process.
    pub fn has_several(&self, slot: u32) -> bool {
        matches!(self.slots.get(Slot(slot)), TableEntry::Stored(stored) if stored.shadow == NO_OWNER)
    }

    /// Whether a slot has several objects and is in use, and no other process of the family needs it. The caller is cleaning
    /// its cluster, so that nothing is written to it.
    pub fn is_packed(&self, slot: u32) -> bool {
        self.has_several(slot) && !self.is_held_by_others(slot)
    }

    /// Of the slots in `span`, those around `slot` that one read may bring: it ends where a slot was retired, because the disk tries
    /// for long to read such a one, and has no slots at its ends that are free.
    pub fn around(&self, slot: u32, span: Range<u32>) -> Range<u32> {
        let span = span.start..span.end.min(self.nr_slots);
        let (mut first, mut end) = (slot, slot + 1);
        for at in (span.start..slot).rev().take_while(|at| self.is_readable(*at)) {
            first = if self.is_used(at) { at } else { first };
        }
        for at in (slot + 1..span.end).take_while(|at| self.is_readable(*at)) {
            end = if self.is_used(at) { at + 1 } else { end };
        }
        first..end
    }

    fn is_readable(&self, slot: u32) -> bool {
        !matches!(self.slots.get(Slot(slot)), TableEntry::Bad)
    }

    fn is_used(&self, slot: u32) -> bool {
        matches!(self.slots.get(Slot(slot)), TableEntry::Stored(_))
    }
}
