//! Slots that only the swap cache still needs, found and freed: a full device gives up copies before it refuses a page.
//!
//! A cache-only slot (resident, count 0) holds what its folio holds in memory. To free it is to open its page, and only
//! the caller knows that: it is asked for each such slot, with no lock held, and frees the slot by
//! [`SwapDevice::lock`] and [`SwapDevice::cache_del`] if it can. What is found here is a hint; the caller's lock decides.
//!
//! Lists are looked through by rotation: the cluster that is looked at goes to the list's end first, so each call goes on
//! where the last one stopped, and several at once look at different clusters. A rotated cluster stays on its list, so
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

/// Clusters that an allocation looks at before it gives up: a mebibyte of words.
const CLUSTERS_MAX: u32 = if cfg!(any(loom, shuttle)) { 4 } else { 256 };

/// How often an allocation tries again with what was freed for it, which others may take first.
const ROUNDS_MAX: u32 = if cfg!(loom) { 1 } else { 4 };

impl SwapDevice {
    /// Frees cache-only slots of full clusters, and of fragmented ones when there are few: looks at `clusters_max` at
    /// most, and calls `reclaim` for each such slot that it meets, with no lock held, which frees it and says true, or
    /// leaves it. How many were freed. For a device of which more than [half](Self::is_half_full) is used.
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

    /// Whether fewer than half of the clusters are empty, as the kernel's `vm_swap_full`: from here on room is worth
    /// more than copies.
    pub fn is_half_full(&self) -> bool {
        let (empty, all) = self.nr_empty();
        empty < all.div_ceil(2)
    }

    /// [`Self::alloc`], but where nothing is free and the device is more than [half](Self::is_half_full) full,
    /// cache-only slots are freed for it as by [`Self::reclaim_full`]: single ones for order 0; for a larger order those
    /// that stand in the way of a run which is free otherwise, in clusters of the order, or in one that would be empty.
    /// Looks at a bounded number of clusters.
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

    /// Frees cache-only slots so that `wanted` runs of `order` are there; whether any slot was freed.
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
        // Full ones of every order; ones of this order without a run; and ones of others that may become empty.
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

    /// Frees cache-only slots of a cluster so that it has up to `wanted` free runs of `order` more: how many it has, and
    /// the slots that were freed.
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
                ClusterState::Away | ClusterState::Offline => return (0, 0),
                _ => order == Order::ZERO || cluster.info.order == order,
            }
        };
        let (mut runs, mut freed) = (0, 0);
        // A cluster of another order serves this one only when it is empty.
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

    /// Whether some slots of a cluster are in the way that could be freed, and no others. Bad ones stay as they are.
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

    /// Has the caller free what is cache-only in some part of a cluster; how many.
    fn reclaim_in(&self, id: ClusterId, range: Range<usize>, reclaim: &mut impl FnMut(Slot, Folio) -> bool) -> u32 {
        let first = id.first_slot().0 + range.start as u32;
        let slots = (first..).map(Slot).zip(self.look_at(id, range));
        slots.map(|(slot, word)| u32::from(word.is_cache_only() && reclaim(slot, word.folio()))).sum()
    }

    /// The aligned runs in some part of a cluster that look free.
    fn free_runs(&self, id: ClusterId, range: Range<usize>, order: Order) -> usize {
        let words = self.cluster_words(id).get(range).unwrap_or_default();
        let is_free = |word: &AtomicU64| Word::from_bits(word.load(Ordering::Relaxed)).is_free();
        words.chunks_exact(order.slots() as usize).filter(|run| run.iter().all(is_free)).count()
    }

    /// Words as they pass by: nothing stops them from changing.
    fn look_at(&self, id: ClusterId, range: Range<usize>) -> impl Iterator<Item = Word> {
        let words = self.cluster_words(id).get(range).unwrap_or_default();
        words.iter().map(|word: &AtomicU64| Word::from_bits(word.load(Ordering::Relaxed)))
    }

    /// Shows clusters of a list to `look`, each once, while it says true and `budget` lasts; false when it did not.
    fn for_each_of(&self, list: ListId, budget: &mut u32, mut look: impl FnMut(ClusterId) -> bool) -> bool {
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
