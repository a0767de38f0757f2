//! A cluster's record, and the array of records.
//!
//! The cluster's own lock protects [`ClusterInfo`]. Changing its `state` to or from a list also needs the swap device
//! lock, because the state says which list the links belong to. The links need only the device lock, because a
//! neighbour's move writes them.

use crate::ClusterLock;
use crate::id::{ClusterId, Order};
use crate::lists::{ListId, Lists};
use ebb_sync::{Guard, Lock, UnsafeCell};

/// Slots of one cluster. Small in models, so that they see a cluster fill up, empty and change its order.
pub const CLUSTER_SLOTS: u32 = if cfg!(loom) {
    4
} else if cfg!(shuttle) {
    16
} else {
    512
};

/// The order of a whole cluster.
pub const MAX_ORDER: u8 = CLUSTER_SLOTS.trailing_zeros() as u8;

pub(crate) const NR_ORDERS: usize = MAX_ORDER as usize + 1;

/// Slots whose words share a cache line; [`ClusterInfo::occupied`] has a bit for each such group.
pub(crate) const GROUP_SLOTS: usize = if cfg!(loom) { 2 } else { 8 };

const _: () = assert!(CLUSTER_SLOTS.is_power_of_two());
const _: () = assert!(CLUSTER_SLOTS as usize / GROUP_SLOTS <= u64::BITS as usize);

/// Where a cluster is. Zero is *untouched*, so that zeroed bytes are a valid start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum ClusterState {
    /// Never used, on no list: above the device's `untouched` mark, or just taken from there.
    Untouched = 0,
    /// On the list of clusters with nothing allocated.
    Free,
    /// On its order's list of clusters with room, as far as anyone knows.
    Nonfull,
    /// On its order's list of clusters that have free slots, but no aligned free run of the order.
    Frag,
    /// On the list of clusters without a free slot.
    Full,
    /// On no list: the current cluster of some shard, or locked and on its way from one place to another.
    Current,
    /// On the list of clusters with nothing allocated, of which the medium is still to be told; see `away`.
    Discard,
    /// On the list of clusters with nothing allocated and no memory behind their words; see `away`.
    Bare,
    /// On no list, nothing allocated, not locked: its content is being discarded, or its words' memory given back.
    Away,
    /// On no list: must not be allocated from, because the device is to become smaller; see `resize`.
    Offline,
    /// On no list: not allocated from for as long as its content moves out; see `drain`. A state of its own, because who reads which
    /// cluster a shard has goes by [`ClusterState::Current`], and may have read that a while ago.
    Draining,
}

pub(crate) struct ClusterInfo {
    /// A bit for each group of slots. A set bit says that none of the group's words is free. A clear bit says nothing,
    /// so zeroed bytes are valid. Keeps a search in a nearly full cluster from reading all its words.
    pub(crate) occupied: u64,
    /// Slots allocated: every word that is neither free nor bad.
    pub(crate) count: u16,
    /// Slots that are never to be used.
    pub(crate) bad: u16,
    /// Where the shard of a current cluster continues its search. Promises nothing about the slots below.
    pub(crate) cursor: u16,
    /// The order that a cluster with a count serves. Without a count it means nothing.
    pub(crate) order: Order,
    pub(crate) state: ClusterState,
}

impl ClusterInfo {
    fn new() -> Self {
        Self { occupied: 0, count: 0, bad: 0, cursor: 0, order: Order::ZERO, state: ClusterState::Untouched }
    }

    /// The list that the state names.
    pub(crate) fn list(&self) -> Option<ListId> {
        match self.state {
            ClusterState::Untouched
            | ClusterState::Current
            | ClusterState::Away
            | ClusterState::Offline
            | ClusterState::Draining => None,
            ClusterState::Free => Some(ListId::Free),
            ClusterState::Discard => Some(ListId::Discard),
            ClusterState::Bare => Some(ListId::Bare),
            ClusterState::Nonfull => Some(ListId::Nonfull(self.order)),
            ClusterState::Frag => Some(ListId::Frag(self.order)),
            ClusterState::Full => Some(ListId::Full),
        }
    }
}

/// Neighbours on a list, plus 1; 0 is none.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Links {
    pub(crate) prev: u32,
    pub(crate) next: u32,
}

#[repr(C, align(32))]
pub(crate) struct ClusterRecord {
    info: Lock<ClusterInfo, ClusterLock>,
    links: UnsafeCell<Links>,
}

// SAFETY: the links are reached through `Clusters::links` and `set_links` only, which demand the device's lists.
unsafe impl Sync for ClusterRecord {}

impl ClusterRecord {
    pub(crate) fn new() -> Self {
        Self { info: Lock::new(ClusterInfo::new()), links: UnsafeCell::new(Links::default()) }
    }
}

#[cfg(not(any(loom, shuttle)))]
const _: () = assert!(size_of::<ClusterRecord>() == 32);

/// Records that lie together in a block: a page of them.
const RECORDS_BLOCK: u32 = if cfg!(any(loom, shuttle)) { 2 } else { 128 };

/// How many records the clusters of a device need.
pub(crate) const fn records_for(nr_clusters: u32) -> usize {
    nr_clusters.next_multiple_of(RECORDS_BLOCK) as usize
}

/// The records of a device.
#[derive(Clone, Copy)]
pub(crate) struct Clusters {
    records: &'static [ClusterRecord],
}

impl Clusters {
    pub(crate) fn new(records: &'static [ClusterRecord]) -> Self {
        Self { records }
    }

    #[track_caller]
    pub(crate) fn lock(&self, id: ClusterId) -> Cluster {
        Cluster { id, info: self.record(id).info.lock() }
    }

    pub(crate) fn try_lock(&self, id: ClusterId) -> Option<Cluster> {
        let info = self.record(id).info.try_lock()?;
        Some(Cluster { id, info })
    }

    /// Links need the device lock; `Lists` cannot be had without it.
    pub(crate) fn links(&self, _lists: &Lists, id: ClusterId) -> Links {
        // SAFETY: whoever has the device's `Lists` holds the device lock, which protects all links.
        self.record(id).links.with(|links| unsafe { *links })
    }

    pub(crate) fn set_links(&self, _lists: &mut Lists, id: ClusterId, value: Links) {
        // SAFETY: as above.
        self.record(id).links.with_mut(|links| unsafe { *links = value });
    }

    fn record(&self, id: ClusterId) -> &'static ClusterRecord {
        &self.records[record_index(id)]
    }
}

/// Two records share a cache line. Neighbouring clusters come into use together, by different shards, so neighbours
/// are put half a page apart.
const fn record_index(id: ClusterId) -> usize {
    let (block, within) = (id.0 / RECORDS_BLOCK, id.0 % RECORDS_BLOCK);
    let half = RECORDS_BLOCK / 2;
    (block * RECORDS_BLOCK + within % half * 2 + within / half) as usize
}

/// A locked cluster.
pub(crate) struct Cluster {
    pub(crate) id: ClusterId,
    pub(crate) info: Guard<'static, ClusterInfo, ClusterLock>,
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use std::vec::Vec;

    #[test]
    fn each_cluster_has_a_record_of_its_own_and_neighbours_share_no_cache_line() {
        let indices: Vec<usize> = (0..3 * RECORDS_BLOCK).map(|id| record_index(ClusterId(id))).collect();
        assert!(indices.windows(2).all(|pair| pair[0] / 2 != pair[1] / 2));
        let mut sorted = indices;
        sorted.sort();
        assert_eq!(sorted, (0..records_for(3 * RECORDS_BLOCK)).collect::<Vec<_>>());
    }
}
