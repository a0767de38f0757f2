//! Makes aligned runs out of scattered free slots.
//!
//! A cluster on `frag[order]` has free slots but no free run. The kernel cannot help that: a swap entry sits in page
//! tables, which it cannot find from the slot. A caller that keeps the way back can: it moves the few slots that are in
//! a run's way into holes elsewhere. Holes are taken where no run is lost: in clusters of single slots, then between
//! other slots of the same cluster, then in other fragmented clusters.

use crate::cluster::{Cluster, ClusterState};
use crate::device::SwapDevice;
use crate::id::{ClusterId, Folio, Order, Slot};
use crate::lists::ListId;
use crate::word::Word;
use ebb_sync::Ordering;

/// The most runs that a cluster has: those of order 1.
const RUNS_MAX: usize = crate::CLUSTER_SLOTS as usize / 2;

/// What [`SwapDevice::compact`] asks of the caller, who knows where a slot's content belongs.
pub trait Relocate {
    /// Moves the content of slot `from` to slot `to`, which is locked with count 0 and belongs to the callee alone.
    /// True if that is done: `to` is in use, and `from` is free. False if not: `to` is as it was.
    ///
    /// `from` may be resident. The callee locks it, and moves it only if it can make its page refer to `to`, which it
    /// then leaves resident for the same folio. It may free a cache-only slot instead, and return false. A slot that
    /// another thread has locked stays where it is.
    fn relocate(&mut self, from: Slot, to: Slot) -> bool;
}

/// What is in a run.
#[derive(Clone, Copy, Default)]
struct Run {
    used: u16,
    /// A slot is bad, or did not move. The run is left alone.
    is_stuck: bool,
}

impl SwapDevice {
    /// Frees up to `runs_max` aligned runs of `order` in fragmented clusters, with up to `moves_max` moves. Returns how
    /// many runs. `folio` marks the slots that are taken as holes meanwhile. No lock is held while `owner` works.
    pub fn compact(
        &self,
        order: Order,
        runs_max: usize,
        moves_max: usize,
        folio: Folio,
        owner: &mut impl Relocate,
    ) -> usize {
        if order == Order::ZERO {
            return 0;
        }
        let (mut freed, mut moves) = (0, moves_max);
        // Each cluster is looked at once: all go to the end of a list.
        let candidates = self.header.lists.0.lock().len(ListId::Frag(order));
        for _ in 0..candidates {
            if freed == runs_max || moves == 0 {
                break;
            }
            let Some(cluster) = self.isolate(ListId::Frag(order)) else { break };
            let id = cluster.id;
            // It is on no list and nobody's current cluster, so other threads only free slots in it.
            drop(cluster);
            freed += self.compact_cluster(id, order, runs_max - freed, &mut moves, folio, owner);
            let cluster = self.clusters.lock(id);
            // Other threads may have made an empty one serve another order meanwhile.
            let partly =
                if self.has_free_run(id, cluster.info.order) { ClusterState::Nonfull } else { ClusterState::Frag };
            self.give_back(cluster, partly);
        }
        freed
    }

    fn compact_cluster(
        &self,
        id: ClusterId,
        order: Order,
        runs_max: usize,
        moves: &mut usize,
        folio: Folio,
        owner: &mut impl Relocate,
    ) -> usize {
        let slots = order.slots();
        let mut runs = [Run::default(); RUNS_MAX];
        let runs = &mut runs[..(self.capacity(id) / slots) as usize];
        for (index, run) in runs.iter_mut().enumerate() {
            *run = self.look(id, index, order);
        }
        let mut freed = 0;
        while freed < runs_max {
            // Moving more than three quarters of a run does not pay: the content could just as well be written in
            // pieces.
            let dear = slots as u16 * 3 / 4;
            let cheapest = runs.iter().enumerate().filter(|(_, run)| !run.is_stuck && run.used > 0 && run.used <= dear);
            let Some((index, used)) = cheapest.map(|(index, run)| (index, run.used)).min_by_key(|(_, used)| *used)
            else {
                break;
            };
            if usize::from(used) > *moves {
                break;
            }
            *moves -= usize::from(used);
            let first = id.first_slot().0 + index as u32 * slots;
            let all_moved = (first..first + slots).map(Slot).all(|from| {
                if Word::from_bits(self.word(from).load(Ordering::Acquire)).is_free() {
                    return true;
                }
                let Some(to) = self.hole(id, order, runs, index, folio) else { return false };
                let moved = owner.relocate(from, to);
                if !moved {
                    self.cache_del(to, crate::Shadow(0));
                }
                moved || Word::from_bits(self.word(from).load(Ordering::Acquire)).is_free()
            });
            runs[index] = self.look(id, index, order);
            let is_free = runs[index].used == 0 && !runs[index].is_stuck;
            runs[index].is_stuck |= !is_free;
            freed += usize::from(is_free);
            if !all_moved && !is_free && no_holes(runs, index, slots) {
                break;
            }
        }
        freed
    }

    fn look(&self, id: ClusterId, index: usize, order: Order) -> Run {
        let slots = order.slots() as usize;
        let words = &self.cluster_words(id)[index * slots..(index + 1) * slots];
        let words = words.iter().map(|word| Word::from_bits(word.load(Ordering::Acquire)));
        words.fold(Run::default(), |run, word| Run {
            used: run.used + u16::from(!word.is_free()),
            is_stuck: run.is_stuck || word == Word::BAD,
        })
    }

    /// Takes one free slot where that costs no run. The slot is cached for `folio`, with count 0.
    fn hole(&self, id: ClusterId, order: Order, runs: &mut [Run], index: usize, folio: Folio) -> Option<Slot> {
        let mut out = [Slot(0)];
        if let Some(mut cluster) = self.isolate(ListId::Nonfull(Order::ZERO)) {
            let runs = self.take(&mut cluster, Order::ZERO, 0, folio, &mut out).runs;
            self.give_back(cluster, ClusterState::Nonfull);
            if runs == 1 {
                return Some(out[0]);
            }
        }
        // Between slots of the same cluster: in the fullest run that is fuller than this one.
        let slots = order.slots();
        let fuller = runs.iter().enumerate().filter(|(other, run)| {
            *other != index && run.used > 0 && run.used >= runs[index].used && u32::from(run.used) < slots
        });
        if let Some((other, _)) = fuller.max_by_key(|(_, run)| run.used) {
            let mut cluster = self.clusters.lock(id);
            if self.header.lists.0.lock().is_offline(id) {
                return None;
            }
            let first = id.first_slot().0 + other as u32 * slots;
            let free = (first..first + slots)
                .map(Slot)
                .find(|slot| Word::from_bits(self.word(*slot).load(Ordering::Relaxed)).is_free());
            if let Some(slot) = free {
                self.take_slot(&mut cluster, slot, folio);
                runs[other].used += 1;
                return Some(slot);
            }
            runs[other] = self.look(id, other, order);
        }
        (self.stolen(folio, &mut out) == 1).then_some(out[0])
    }

    /// Takes one slot that is free.
    fn take_slot(&self, cluster: &mut Cluster, slot: Slot, folio: Folio) {
        debug_assert_eq!(slot.cluster(), cluster.id);
        self.word(slot).store(Word::fresh(folio).to_bits(), Ordering::Release);
        cluster.info.count += 1;
    }
}

/// Whether no run but the one at `index` has a hole between its slots.
fn no_holes(runs: &[Run], index: usize, slots: u32) -> bool {
    !runs.iter().enumerate().any(|(other, run)| other != index && run.used > 0 && u32::from(run.used) < slots)
}
