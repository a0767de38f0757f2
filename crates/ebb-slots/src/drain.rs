//! Chooses clusters that have few slots in use, for a caller that moves their content elsewhere and so makes whole
//! clusters free: the cleaning of a log-structured file system, with a cluster for its segment.
//!
//! [`SwapDevice::compact`] moves slot by slot into the nearest hole, and so makes single runs. Where each move is a
//! write to a disk, that costs more than the runs are worth. So the caller of this gathers what is left of several
//! clusters, and writes it as one run.
//!
//! The clusters come from the lists by rotation, so successive calls look at different ones. The emptiest of those is
//! taken off its list, as the current cluster of no shard: other threads free slots in it, but allocate none.

use crate::cluster::{Cluster, ClusterState};
use crate::device::SwapDevice;
use crate::id::{ClusterId, Order, Slot};
use crate::lists::ListId;
use core::ops::Range;

impl SwapDevice {
    /// Calls `work` with the slots of the cluster that has the fewest in use of the next `looks` clusters of each list of
    /// those that are partly in use, if it has at most `used_max`. Nothing is allocated from it meanwhile, and no lock is held. False if there
    /// is no such cluster.
    pub fn drain_sparsest(&self, looks: u32, used_max: u32, work: impl FnOnce(Range<Slot>)) -> bool {
        let mut best = None;
        let lists = Order::all().rev().flat_map(|order| [ListId::Frag(order), ListId::Nonfull(order)]);
        for list in lists {
            let mut budget = looks;
            self.for_each_of(list, &mut budget, |id| {
                let used = u32::from(self.clusters.lock(id).info.count);
                if used <= best.map_or(used_max, |(least, _)| least) {
                    best = Some((used, id));
                }
                true
            });
        }
        let Some(cluster) = best.and_then(|(_, id)| self.isolate_one(id)) else { return false };
        let id = cluster.id;
        // It is on no list, and no shard's current cluster, whatever they have read. So other threads only free slots in it.
        drop(cluster);
        let first = id.first_slot();
        work(first..Slot(first.0 + self.capacity(id)));
        let mut cluster = self.clusters.lock(id);
        cluster.info.state = ClusterState::Current;
        let partly = if self.has_free_run(id, cluster.info.order) { ClusterState::Nonfull } else { ClusterState::Frag };
        self.give_back(cluster, partly);
        true
    }

    /// Takes a cluster that is partly in use off its list; none if it no longer is, or another thread has it locked.
    fn isolate_one(&self, id: ClusterId) -> Option<Cluster> {
        let mut lists = self.header.lists.0.lock();
        if lists.is_offline(id) {
            return None;
        }
        // By try-lock, as in `isolate`.
        let mut cluster = self.clusters.try_lock(id)?;
        let list = cluster.info.list().filter(|list| matches!(list, ListId::Nonfull(_) | ListId::Frag(_)))?;
        lists.remove(&self.clusters, list, id);
        cluster.info.state = ClusterState::Draining;
        Some(cluster)
    }
}
