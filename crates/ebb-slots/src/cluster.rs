//! A cluster's record, and the array of them.
//!
//! Slots are freed without the cluster's lock: the word turns free, then the free is *noted* in the record's `frees`, one
//! exchange, and whoever has the lock next takes the notes over into the count. A free needs the lock only when the
//! cluster belongs elsewhere by it: the first one in a cluster that is full or fragmented, and the last one of any. So
//! `frees` counts from a base up to a limit, and who reaches the limit takes the lock. A cluster that nobody waits for
//! (a current one, say) has the base 0, and the limit is out of reach.
//!
//! The count is never less than the words in use: a slot is noted after its word is free. So an empty cluster is empty.
//!
//! [`ClusterInfo`] is under the cluster's own lock. Its `state` also needs the swap device lock to change to or from a
//! list, since it says which list the links belong to; the links need the device lock only, since a neighbour's move
//! writes them.

use crate::ClusterLock;
use crate::id::{ClusterId, Order};
use crate::lists::{ListId, Lists};
use core::ops::RangeInclusive;
use ebb_sync::{AtomicU32, Guard, Lock, Ordering, UnsafeCell};

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
const _: () = assert!(4 * CLUSTER_SLOTS < LIMIT && LIMIT + 2 * CLUSTER_SLOTS <= NOTES_MASK);

/// Groups that share a bit in the notes of what was freed, which has 16.
const HINT_GROUPS: usize = (CLUSTER_SLOTS as usize / GROUP_SLOTS).div_ceil(16);

/// Notes at which somebody takes the lock. More than a cluster has slots, and twice that fits the notes' 16 bits.
const LIMIT: u32 = 0x4000;
const NOTES_MASK: u32 = 0xffff;
const HINT_SHIFT: u32 = 16;

/// Where a cluster is. Zero is *untouched*, so that zeroed bytes are a valid start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum ClusterState {
    /// Never used, on no list: above the device's `untouched` mark, or just taken from there.
    Untouched = 0,
    /// On the list for nothing allocated.
    Free,
    /// On its order's list for room, as far as anyone knows.
    Nonfull,
    /// On its order's list for free slots, but no aligned run of the order.
    Frag,
    /// On the list for no free slot.
    Full,
    /// On no list: some shard's current cluster; or locked, and on its way from one place to another.
    Current,
    /// On the list for nothing allocated, but the medium still to be told so; see `away`.
    Discard,
    /// On the list for nothing allocated and no memory behind its words; see `away`.
    Bare,
    /// On no list, nothing allocated, not locked: its content is being discarded, or its words' memory given back.
    Away,
    /// On no list: not to be allocated from, because the device is to become smaller; see `resize`.
    Offline,
}

pub(crate) struct ClusterInfo {
    /// Two halves, so that a record has room.
    occupied: [u32; 2],
    /// Slots allocated, but for the frees that are noted and not taken over: see [`Clusters::used`].
    pub(crate) count: u16,
    /// Slots that are never to be used.
    pub(crate) bad: u16,
    /// Where the owner of a current cluster goes on looking; nothing below it is promised.
    pub(crate) cursor: u16,
    /// The order that a cluster with a count serves; of no meaning without.
    pub(crate) order: Order,
    pub(crate) state: ClusterState,
}

impl ClusterInfo {
    fn new() -> Self {
        Self { occupied: [0; 2], count: 0, bad: 0, cursor: 0, order: Order::ZERO, state: ClusterState::Untouched }
    }

    /// A bit for each group of slots: none of its words is free, but for what is noted. A clear bit says nothing, and so
    /// do zeroed bytes. Keeps a search in a nearly full cluster from reading all its words.
    #[inline]
    pub(crate) fn occupied(&self) -> u64 {
        u64::from(self.occupied[1]) << 32 | u64::from(self.occupied[0])
    }

    #[inline]
    pub(crate) fn set_occupied(&mut self, occupied: u64) {
        self.occupied = [occupied as u32, (occupied >> 32) as u32];
    }

    /// Where the notes begin: as far below the limit as there are frees until the cluster belongs elsewhere.
    fn base(&self) -> u32 {
        match self.state {
            ClusterState::Full | ClusterState::Frag => LIMIT - 1,
            ClusterState::Nonfull => LIMIT - u32::from(self.count),
            // Nobody waits for these; or they have nothing to free.
            _ => 0,
        }
    }

    /// Slots of some groups turned free.
    pub(crate) fn count_freed(&mut self, noted: u32, groups: u64) {
        debug_assert!(noted <= u32::from(self.count));
        self.count -= noted as u16;
        self.set_occupied(self.occupied() & !groups);
    }

    /// The frees that are noted.
    fn noted(&self, frees: u32) -> u32 {
        match frees & NOTES_MASK {
            // No base is lower, and without one there are never so many: nobody waits.
            notes if notes < LIMIT - CLUSTER_SLOTS => notes,
            notes => notes - self.base(),
        }
    }

    /// The list that the state names.
    pub(crate) fn list(&self) -> Option<ListId> {
        match self.state {
            ClusterState::Untouched | ClusterState::Current | ClusterState::Away | ClusterState::Offline => None,
            ClusterState::Free => Some(ListId::Free),
            ClusterState::Discard => Some(ListId::Discard),
            ClusterState::Bare => Some(ListId::Bare),
            ClusterState::Nonfull => Some(ListId::Nonfull(self.order)),
            ClusterState::Frag => Some(ListId::Frag(self.order)),
            ClusterState::Full => Some(ListId::Full),
        }
    }
}

/// Notes as they were when they were taken over.
#[derive(Clone, Copy)]
pub(crate) struct Seen(u32);

impl Seen {
    /// After [`Clusters::take_over`].
    pub(crate) const NONE: Self = Self(0);
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
    /// Bits 0-15: frees that are noted, from the base of the cluster's state on. Bits 16-31: where those were. Changes
    /// with Release, after the words are free; taken over with Acquire.
    frees: AtomicU32,
    links: UnsafeCell<Links>,
}

// SAFETY: the links are reached through `Clusters::links` and `set_links` only, which demand the device's lists.
unsafe impl Sync for ClusterRecord {}

impl ClusterRecord {
    pub(crate) fn new() -> Self {
        Self { info: Lock::new(ClusterInfo::new()), frees: AtomicU32::new(0), links: UnsafeCell::new(Links::default()) }
    }
}

#[cfg(not(any(loom, shuttle)))]
const _: () = assert!(size_of::<ClusterRecord>() == 32);

/// Records that lie together: a page of them.
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

    /// Notes that `slots` were freed, somewhere in a part of the cluster. True when the caller is to settle the cluster.
    #[inline]
    pub(crate) fn note_freed(&self, id: ClusterId, within: RangeInclusive<usize>, slots: u32) -> bool {
        let hint = |at: &usize| at / GROUP_SLOTS / HINT_GROUPS;
        let (first, last) = (hint(within.start()), hint(within.end()));
        let hints = ((2_u32 << last) - (1 << first)) << HINT_SHIFT;
        let frees = &self.record(id).frees;
        let mut now = frees.load(Ordering::Relaxed);
        loop {
            // Each failure means that another thread's change succeeded.
            match frees.compare_exchange(now, (now + slots) | hints, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => break,
                Err(other) => now = other,
            }
        }
        let before = now & NOTES_MASK;
        before < LIMIT && before + slots >= LIMIT
    }

    /// Slots in use, of a cluster whose notes need not be taken over.
    pub(crate) fn used(&self, cluster: &Cluster) -> u32 {
        let frees = self.record(cluster.id).frees.load(Ordering::Acquire);
        u32::from(cluster.info.count) - cluster.info.noted(frees)
    }

    /// Groups that are known to have no free slot, likewise.
    pub(crate) fn occupied(&self, cluster: &Cluster) -> u64 {
        cluster.info.occupied() & !noted_groups(self.record(cluster.id).frees.load(Ordering::Acquire))
    }

    /// Takes the notes over, and has nobody wait for frees: the count is that of the words now. How many frees there were.
    /// Comes before the state or, but for a current cluster, the count are changed; or [`Self::look_over`] does.
    pub(crate) fn take_over(&self, cluster: &mut Cluster) -> u32 {
        let frees = self.record(cluster.id).frees.swap(0, Ordering::AcqRel);
        let noted = cluster.info.noted(frees);
        cluster.info.count_freed(noted, noted_groups(frees));
        noted
    }

    /// Takes the notes over, but leaves them to [`Self::expect`], which follows. How many frees there were.
    pub(crate) fn look_over(&self, cluster: &mut Cluster) -> (Seen, u32) {
        let frees = self.record(cluster.id).frees.load(Ordering::Acquire);
        let noted = cluster.info.noted(frees);
        cluster.info.count_freed(noted, noted_groups(frees));
        (Seen(frees), noted)
    }

    /// Whether the next free in a cluster is to settle it, as far as can be seen: then it need not be noted before.
    #[inline]
    pub(crate) fn is_due(&self, id: ClusterId) -> bool {
        self.record(id).frees.load(Ordering::Relaxed) == LIMIT - 1
    }

    /// Has the free that makes the cluster belong elsewhere take its lock. False when some were noted since they were
    /// taken over, and those are, too, now: perhaps it belongs elsewhere already.
    pub(crate) fn expect(&self, cluster: &mut Cluster, seen: &mut Seen) -> bool {
        let frees = &self.record(cluster.id).frees;
        let base = cluster.info.base();
        if seen.0 == base {
            // As it is: and frees from here on are as good as frees from then on.
            return true;
        }
        match frees.compare_exchange(seen.0, base, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => true,
            Err(now) => {
                let noted = (now & NOTES_MASK) - (seen.0 & NOTES_MASK);
                cluster.info.count_freed(noted, noted_groups(now));
                *seen = Seen(now);
                false
            }
        }
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

/// The groups of slots that some notes say were freed in.
fn noted_groups(frees: u32) -> u64 {
    let mut hints = frees >> HINT_SHIFT;
    let mut groups = 0;
    while hints != 0 {
        groups |= ((1 << HINT_GROUPS) - 1) << (hints.trailing_zeros() as usize * HINT_GROUPS);
        hints &= hints - 1;
    }
    groups
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

    fn clusters() -> Clusters {
        Clusters::new((0..records_for(1)).map(|_| ClusterRecord::new()).collect::<Vec<_>>().leak())
    }

    /// A cluster in a state of `count` slots, all of them in groups that are known to be full.
    fn begun(clusters: &Clusters, count: u16, state: ClusterState) -> Cluster {
        let mut cluster = clusters.lock(ClusterId(0));
        (cluster.info.count, cluster.info.state) = (count, state);
        cluster.info.set_occupied(u64::MAX);
        let mut seen = Seen::NONE;
        assert!(clusters.expect(&mut cluster, &mut seen));
        cluster
    }

    #[test]
    fn the_first_free_of_a_full_cluster_asks_for_its_lock_and_the_next_do_not() {
        let clusters = clusters();
        let mut cluster = begun(&clusters, 512, ClusterState::Full);
        assert!(clusters.note_freed(ClusterId(0), 7..=7, 1));
        assert!(!clusters.note_freed(ClusterId(0), 500..=507, 8));
        assert_eq!((clusters.used(&cluster), clusters.take_over(&mut cluster)), (503, 9));
        assert_eq!((clusters.used(&cluster), clusters.take_over(&mut cluster)), (503, 0));
    }

    #[test]
    fn the_last_free_of_a_cluster_asks_for_its_lock_however_many_come_together() {
        let clusters = clusters();
        let cluster = begun(&clusters, 20, ClusterState::Nonfull);
        assert!(!clusters.note_freed(ClusterId(0), 0..=15, 16));
        assert!(!clusters.note_freed(ClusterId(0), 16..=16, 1));
        assert!(clusters.note_freed(ClusterId(0), 20..=22, 3));
        assert_eq!(clusters.used(&cluster), 0);
    }

    #[test]
    fn nobody_is_asked_for_a_current_clusters_lock_and_a_free_before_it_is_expected_is_noticed() {
        let clusters = clusters();
        let mut cluster = begun(&clusters, 2, ClusterState::Current);
        assert!(!clusters.note_freed(ClusterId(0), 0..=0, 1));
        assert_eq!(clusters.used(&cluster), 1);
        clusters.take_over(&mut cluster);
        assert!(!clusters.note_freed(ClusterId(0), 1..=1, 1));
        cluster.info.state = ClusterState::Nonfull;
        let mut seen = Seen::NONE;
        assert!(!clusters.expect(&mut cluster, &mut seen));
        assert_eq!(cluster.info.count, 0);
        cluster.info.state = ClusterState::Free;
        assert!(clusters.expect(&mut cluster, &mut seen));
        assert_eq!(clusters.used(&cluster), 0);
    }

    #[test]
    fn a_note_says_which_groups_have_a_free_slot_and_perhaps_more() {
        let clusters = clusters();
        let mut cluster = begun(&clusters, 512, ClusterState::Full);
        clusters.note_freed(ClusterId(0), 40..=40, 1);
        clusters.note_freed(ClusterId(0), 480..=511, 32);
        let known = !(0xf << 4 | 0xf << 60);
        assert_eq!(clusters.occupied(&cluster), known);
        clusters.take_over(&mut cluster);
        assert_eq!(cluster.info.occupied(), known);
    }

    #[test]
    fn each_cluster_has_a_record_of_its_own_and_neighbours_share_no_cache_line() {
        let indices: Vec<usize> = (0..3 * RECORDS_BLOCK).map(|id| record_index(ClusterId(id))).collect();
        assert!(indices.windows(2).all(|pair| pair[0] / 2 != pair[1] / 2));
        let mut sorted = indices;
        sorted.sort();
        assert_eq!(sorted, (0..records_for(3 * RECORDS_BLOCK)).collect::<Vec<_>>());
    }
}
