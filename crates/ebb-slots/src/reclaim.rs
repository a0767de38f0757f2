//! Finds and frees slots that only the swap cache still needs: a full device gives up copies before it refuses a page.
//!
//! A cache-only slot (resident, count 0) holds what its folio holds in memory. To free it, its page must be opened, and
//! only the caller can do that. So the caller is asked for each such slot, with no lock held. If it can, it frees the
//! slot by [`SwapDevice::lock`] and [`SwapDevice::cache_del`]. What is found here is a hint; the caller's lock decides.
//!
//! Lists are searched by rotation: a cluster goes to the list's end before it is looked at. So each call continues
//! where the last one stopped, and concurrent calls look at different clusters. A rotated cluster stays on its list, so
//! its own lock is not needed.
//!
//! As `swap_reclaim_full_clusters` and `cluster_reclaim_range` in the kernel's `mm/swapfile.c`.

use crate::cluster::{CLUSTER_SLOTS, ClusterState};
use crate::device::SwapDevice;
use crate::id::{ClusterId, Folio, Order, Shard, Slot};
use crate::lists::ListId;
use crate::word::Word;
use core::ops::Range;
use ebb_sync::{AtomicU64, Ordering};

/// The most clusters that an allocation looks at before it gives up: a mebibyte of words.
const CLUSTERS_MAX: u32 = if cfg!(any(loom, shuttle)) { 4 } else { 256 };

/// How often an allocation tries again with what was freed for it. Other threads may take that first.
const ROUNDS_MAX: u32 = if cfg!(loom) { 1 } else { 4 };

impl SwapDevice {
    /// Frees cache-only slots of full clusters, and of fragmented ones if there are few full ones. Looks at no more
    /// than `clusters_max` clusters. Calls `reclaim` for each such slot that it meets, with no lock held. `reclaim`
    /// frees the slot and returns true, or leaves it. Returns how many slots were freed. For a device of which more
    /// than [half](Self::is_half_full) is used.
    pub fn reclaim_full(&self, clusters_max: u32, mut reclaim: impl FnMut(Slot, Folio) -> bool) -> u32 {
        let (mut budget, mut freed) = (clusters_max, 0);
        let lists = [ListId::Full].into_iter().chain(Order::all().map(ListId::Frag));
        for list in lists {
            self.for_each_of(list, &mut budget, |id| {
                freed += self.reclaim_in(id, 0..self.capacity(id) as usize, &mut reclaim);
                true
            });
        }
        freed
    }

    /// Whether fewer than half of the clusters are empty, like the kernel's `vm_swap_full`. From then on, room is worth
    /// more than copies.
    pub fn is_half_full(&self) -> bool {
        let (empty, all) = self.nr_empty();
        empty < all.div_ceil(2)
    }

    /// Allocates like [`Self::alloc`]. If nothing is free and the device is more than [half](Self::is_half_full) full,
    /// it also frees cache-only slots as [`Self::reclaim_full`] does: single ones for order 0. For a larger order it
    /// frees those that stand in the way of a run that is free otherwise, in clusters of the order, or in a cluster
    /// that would be empty. Looks at a bounded number of clusters.
    pub fn alloc_reclaiming(
        &self,
        shard: Shard,
        order: Order,
        folio: Folio,
        out: &mut [Slot],
        mut reclaim: impl FnMut(Slot, Folio) -> bool,
    ) -> usize {
        let mut runs = self.alloc(shard, order, folio, out);
        for _ in 0..ROUNDS_MAX {
            if runs == out.len() || !self.is_half_full() || !self.make_room(order, out.len() - runs, &mut reclaim) {
                break;
            }
            runs += self.alloc(shard, order, folio, &mut out[runs..]);
        }
        runs
    }

    /// Frees cache-only slots so that there are `wanted` runs of `order`. Returns whether any slot was freed.
    #[cold]
    fn make_room(&self, order: Order, wanted: usize, reclaim: &mut impl FnMut(Slot, Folio) -> bool) -> bool {
        let (mut made, mut any) = (0, false);
        let mut look = |id: ClusterId| {
            let (runs, freed) = self.make_runs(id, order, wanted - made, reclaim);
            made += runs;
            any |= freed > 0;
            made < wanted
        };
        let mut budget = CLUSTERS_MAX;
        // Clusters of this order without a run, full ones of every order, and others that may become empty.
        let lists = [ListId::Frag(order), ListId::Full]
            .into_iter()
            .chain(Order::all().map(ListId::Nonfull))
            .chain(Order::all().filter(|other| *other != order).map(ListId::Frag));
        for list in lists {
            if !self.for_each_of(list, &mut budget, &mut look) {
                return any;
            }
        }
        for shard in self.shards {
            for id in shard.settled() {
                if !look(id) {
                    return any;
                }
            }
        }
        any
    }

    /// Frees cache-only slots of a cluster so that it gets up to `wanted` more free runs of `order`. Returns how many
    /// runs it got, and how many slots were freed.
    fn make_runs(
        &self,
        id: ClusterId,
        order: Order,
        wanted: usize,
        reclaim: &mut impl FnMut(Slot, Folio) -> bool,
    ) -> (usize, u32) {
        let capacity = self.capacity(id) as usize;
        let serves = {
            let cluster = self.clusters.lock(id);
            match cluster.info.state {
                ClusterState::Away | ClusterState::Offline | ClusterState::Draining => return (0, 0),
                _ => order == Order::ZERO || cluster.info.order == order,
            }
        };
        let (mut runs, mut freed) = (0, 0);
        // A cluster of another order serves this one only if it is empty.
        let step = if serves { order.slots() } else { CLUSTER_SLOTS } as usize;
        for start in (0..capacity).step_by(step) {
            let range = start..(start + step).min(capacity);
            if runs == wanted {
                break;
            }
            if (serves && range.len() < step) || !self.is_reclaimable(id, range.clone(), !serves) {
                continue;
            }
            freed += self.reclaim_in(id, range.clone(), reclaim);
            runs += self.free_runs(id, range, order);
        }
        (runs, freed)
    }

    /// Whether a part of a cluster has cache-only slots, and otherwise only free ones. Bad slots do not count against
    /// it if `may_have_bad`.
    fn is_reclaimable(&self, id: ClusterId, range: Range<usize>, may_have_bad: bool) -> bool {
        let mut any = false;
        for word in self.look_at(id, range) {
            let passes = word.is_cache_only() || word.is_free() || (may_have_bad && word == Word::BAD);
            if !passes {
                return false;
            }
            any |= word.is_cache_only();
        }
        any
    }

    /// Asks the caller to free the cache-only slots in a part of a cluster. Returns how many were freed.
    fn reclaim_in(&self, id: ClusterId, range: Range<usize>, reclaim: &mut impl FnMut(Slot, Folio) -> bool) -> u32 {
        let first = id.first_slot().0 + range.start as u32;
        let slots = (first..).map(Slot).zip(self.look_at(id, range));
        slots.map(|(slot, word)| u32::from(word.is_cache_only() && reclaim(slot, word.folio()))).sum()
    }

    /// Counts the aligned runs in a part of a cluster that look free.
    fn free_runs(&self, id: ClusterId, range: Range<usize>, order: Order) -> usize {
        let words = self.cluster_words(id).get(range).unwrap_or_default();
        let is_free = |word: &AtomicU64| Word::from_bits(word.load(Ordering::Relaxed)).is_free();
        words.chunks_exact(order.slots() as usize).filter(|run| run.iter().all(is_free)).count()
    }

    /// The words as they are read: nothing keeps them from changing.
    fn look_at(&self, id: ClusterId, range: Range<usize>) -> impl Iterator<Item = Word> {
        let words = self.cluster_words(id).get(range).unwrap_or_default();
        words.iter().map(|word: &AtomicU64| Word::from_bits(word.load(Ordering::Relaxed)))
    }

    /// Shows each cluster of a list to `look`, once, while `look` returns true and `budget` lasts. False if one of the
    /// two ended it.
    pub(crate) fn for_each_of(&self, list: ListId, budget: &mut u32, mut look: impl FnMut(ClusterId) -> bool) -> bool {
        let candidates = self.header.lists.0.lock().len(list);
        for _ in 0..candidates {
            if *budget == 0 {
                return false;
            }
            *budget -= 1;
            let Some(id) = self.header.lists.0.lock().rotate(&self.clusters, list) else { break };
            if !look(id) {
                return false;
            }
        }
        true
    }
}
