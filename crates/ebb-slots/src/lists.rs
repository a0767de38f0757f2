//! The cluster lists of a device and the mark below which clusters are in use. All under the swap device lock.
//!
//! Lists are doubly linked by cluster number, first in first out; a number is stored plus 1, so that zeroed bytes are
//! empty lists.

use crate::cluster::{Clusters, Links, NR_ORDERS};
use crate::id::{ClusterId, Order};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ListId {
    Free,
    Nonfull(Order),
    Frag(Order),
    Full,
    Discard,
    Bare,
}

const NR_LISTS: usize = 4 + 2 * NR_ORDERS;

impl ListId {
    fn index(self) -> usize {
        match self {
            Self::Free => 0,
            Self::Full => 1,
            Self::Discard => 2,
            Self::Bare => 3,
            Self::Nonfull(order) => 4 + order.index(),
            Self::Frag(order) => 4 + NR_ORDERS + order.index(),
        }
    }

    pub(crate) fn all() -> impl Iterator<Item = Self> {
        [Self::Free, Self::Full, Self::Discard, Self::Bare]
            .into_iter()
            .chain(Order::all().map(Self::Nonfull))
            .chain(Order::all().map(Self::Frag))
    }
}

#[derive(Clone, Copy, Default)]
struct List {
    head: u32,
    tail: u32,
    len: u32,
}

pub(crate) struct Lists {
    lists: [List; NR_LISTS],
    /// Clusters from this number on were never used.
    untouched: u32,
    /// Clusters from this number on must not be allocated from. Stored plus 1; 0 for no such clusters.
    offline: u32,
    /// What is being done about the device's size.
    resizing: Resizing,
}

/// Steps of a change of size. One thread at a time performs a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Resizing {
    /// No change of size.
    Idle = 0,
    /// The device is to become smaller, and waits for the next step.
    Shrinking,
    /// Some thread performs a step.
    Busy,
}

impl Lists {
    pub(crate) fn new() -> Self {
        Self { lists: [List::default(); NR_LISTS], untouched: 0, offline: 0, resizing: Resizing::Idle }
    }

    pub(crate) fn len(&self, list: ListId) -> u32 {
        self.lists[list.index()].len
    }

    pub(crate) fn head(&self, list: ListId) -> Option<ClusterId> {
        decode(self.lists[list.index()].head)
    }

    pub(crate) fn tail(&self, list: ListId) -> Option<ClusterId> {
        decode(self.lists[list.index()].tail)
    }

    /// The first cluster that was never used.
    pub(crate) fn untouched(&self) -> ClusterId {
        ClusterId(self.untouched)
    }

    /// Makes this cluster the first of the never used ones again: the device was cut off there.
    pub(crate) fn set_untouched(&mut self, id: ClusterId) {
        self.untouched = id.0;
    }

    /// The first cluster that must not be allocated from while the device is to become smaller.
    pub(crate) fn offline(&self) -> Option<ClusterId> {
        decode(self.offline)
    }

    pub(crate) fn set_offline(&mut self, from: Option<ClusterId>) {
        self.offline = from.map_or(0, encode);
    }

    pub(crate) fn resizing(&self) -> Resizing {
        self.resizing
    }

    pub(crate) fn set_resizing(&mut self, resizing: Resizing) {
        self.resizing = resizing;
    }

    pub(crate) fn is_offline(&self, id: ClusterId) -> bool {
        self.offline().is_some_and(|from| id >= from)
    }

    /// Whether a device of `nr_clusters` has a never used cluster to take.
    pub(crate) fn has_untouched(&self, nr_clusters: u32) -> bool {
        self.untouched < self.offline().map_or(nr_clusters, |from| from.0)
    }

    /// Takes the next never used cluster of a device of `nr_clusters`.
    pub(crate) fn take_untouched(&mut self, nr_clusters: u32) -> Option<ClusterId> {
        if !self.has_untouched(nr_clusters) {
            return None;
        }
        self.untouched += 1;
        Some(ClusterId(self.untouched - 1))
    }

    pub(crate) fn push(&mut self, clusters: &Clusters, list: ListId, id: ClusterId) {
        let last = self.lists[list.index()].tail;
        clusters.set_links(self, id, Links { prev: last, next: 0 });
        match decode(last) {
            Some(last) => {
                let links = clusters.links(self, last);
                debug_assert_eq!(links.next, 0);
                clusters.set_links(self, last, Links { next: encode(id), ..links });
            }
            None => self.lists[list.index()].head = encode(id),
        }
        let list = &mut self.lists[list.index()];
        list.tail = encode(id);
        list.len += 1;
    }

    pub(crate) fn remove(&mut self, clusters: &Clusters, list: ListId, id: ClusterId) {
        let Links { prev, next } = clusters.links(self, id);
        match decode(prev) {
            Some(before) => {
                let links = clusters.links(self, before);
                debug_assert_eq!(links.next, encode(id));
                clusters.set_links(self, before, Links { next, ..links });
            }
            None => {
                debug_assert_eq!(self.lists[list.index()].head, encode(id));
                self.lists[list.index()].head = next;
            }
        }
        match decode(next) {
            Some(after) => {
                let links = clusters.links(self, after);
                debug_assert_eq!(links.prev, encode(id));
                clusters.set_links(self, after, Links { prev, ..links });
            }
            None => {
                debug_assert_eq!(self.lists[list.index()].tail, encode(id));
                self.lists[list.index()].tail = prev;
            }
        }
        clusters.set_links(self, id, Links::default());
        self.lists[list.index()].len -= 1;
    }

    /// Moves the first cluster of a list to its end, and returns it.
    pub(crate) fn rotate(&mut self, clusters: &Clusters, list: ListId) -> Option<ClusterId> {
        let id = self.head(list)?;
        self.remove(clusters, list, id);
        self.push(clusters, list, id);
        Some(id)
    }

    pub(crate) fn next(&self, clusters: &Clusters, id: ClusterId) -> Option<ClusterId> {
        decode(clusters.links(self, id).next)
    }

    pub(crate) fn prev(&self, clusters: &Clusters, id: ClusterId) -> Option<ClusterId> {
        decode(clusters.links(self, id).prev)
    }
}

/// Cluster numbers as kept in memory: plus 1, 0 is none.
pub(crate) const fn encode(id: ClusterId) -> u32 {
    id.0 + 1
}

pub(crate) const fn decode(stored: u32) -> Option<ClusterId> {
    match stored {
        0 => None,
        id => Some(ClusterId(id - 1)),
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::cluster::{ClusterRecord, records_for};
    use std::sync::LazyLock;
    use std::vec::Vec;

    fn clusters() -> Clusters {
        static RECORDS: LazyLock<Vec<ClusterRecord>> =
            LazyLock::new(|| (0..records_for(8)).map(|_| ClusterRecord::new()).collect());
        Clusters::new(&RECORDS)
    }

    fn walk(lists: &Lists, clusters: &Clusters, list: ListId) -> Vec<u32> {
        let forward = std::iter::successors(lists.head(list), |id| lists.next(clusters, *id));
        let forward: Vec<u32> = forward.map(|id| id.0).collect();
        let backward = std::iter::successors(lists.tail(list), |id| lists.prev(clusters, *id));
        let mut backward: Vec<u32> = backward.map(|id| id.0).collect();
        backward.reverse();
        assert_eq!(forward, backward);
        assert_eq!(forward.len(), lists.len(list) as usize);
        forward
    }

    #[test]
    fn clusters_leave_a_list_from_its_head_middle_and_tail() {
        let (clusters, mut lists) = (clusters(), Lists::new());
        for id in 0..5 {
            lists.push(&clusters, ListId::Full, ClusterId(id));
        }
        lists.remove(&clusters, ListId::Full, ClusterId(2));
        assert_eq!(walk(&lists, &clusters, ListId::Full), [0, 1, 3, 4]);
        lists.remove(&clusters, ListId::Full, ClusterId(0));
        lists.remove(&clusters, ListId::Full, ClusterId(4));
        assert_eq!(walk(&lists, &clusters, ListId::Full), [1, 3]);
        lists.push(&clusters, ListId::Free, ClusterId(0));
        assert_eq!(walk(&lists, &clusters, ListId::Free), [0]);
        lists.remove(&clusters, ListId::Full, ClusterId(1));
        lists.remove(&clusters, ListId::Full, ClusterId(3));
        assert_eq!(walk(&lists, &clusters, ListId::Full), [0; 0]);
    }

    #[test]
    fn a_list_that_is_rotated_shows_each_cluster_in_turn() {
        let (clusters, mut lists) = (clusters(), Lists::new());
        assert_eq!(lists.rotate(&clusters, ListId::Frag(Order::ZERO)), None);
        for id in 5..8 {
            lists.push(&clusters, ListId::Frag(Order::ZERO), ClusterId(id));
        }
        let shown: Vec<_> = (0..4).filter_map(|_| lists.rotate(&clusters, ListId::Frag(Order::ZERO))).collect();
        assert_eq!(shown, [5, 6, 7, 5].map(ClusterId));
        assert_eq!(walk(&lists, &clusters, ListId::Frag(Order::ZERO)), [6, 7, 5]);
    }

    #[test]
    fn every_list_has_a_place_of_its_own() {
        let mut indices: Vec<usize> = ListId::all().map(ListId::index).collect();
        indices.sort();
        assert_eq!(indices, (0..NR_LISTS).collect::<Vec<_>>());
    }

    #[test]
    fn untouched_clusters_are_taken_once_each_in_order() {
        let mut lists = Lists::new();
        let taken: Vec<_> = std::iter::from_fn(|| lists.take_untouched(3)).map(|id| id.0).collect();
        assert_eq!(taken, [0, 1, 2]);
    }
}
