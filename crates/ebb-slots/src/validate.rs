//! The slow truth: recounts a device from its words and links, and compares with what is kept.
//!
//! For quiescent callers only: a thread at work inside the device looks like an inconsistency.

use crate::alloc::group_of;
use crate::cluster::{Cluster, ClusterState};
use crate::device::SwapDevice;
use crate::id::{ClusterId, Slot};
use crate::lists::{ListId, Lists};
use crate::word::{COUNT_OVERFLOWED, Tag, Word};
use core::fmt;
use ebb_sync::Ordering;

/// What a recount found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Stored or cached.
    pub slots_used: u32,
    /// Locked or resident.
    pub slots_cached: u32,
    /// Cached and not locked.
    pub slots_resident: u32,
    /// Resident, and nothing refers to them.
    pub slots_cache_only: u32,
    /// Marked bad, so never allocated.
    pub slots_bad: u32,
    /// The sum of all counts.
    pub references: u64,
    /// Never used, on no list.
    pub clusters_untouched: u32,
    /// Empty, with nothing to discard and with memory for their words.
    pub clusters_free: u32,
    /// Partly used, and perhaps with a free run of their order.
    pub clusters_nonfull: u32,
    /// Partly used, without a free run of their order.
    pub clusters_frag: u32,
    /// Without a free slot.
    pub clusters_full: u32,
    /// Current clusters of shards, on no list.
    pub clusters_current: u32,
    /// Empty, their content still to be discarded.
    pub clusters_discard: u32,
    /// Empty, without memory for their words.
    pub clusters_bare: u32,
    /// Not to be allocated from.
    pub clusters_offline: u32,
    /// Slots whose count is in the overflow table.
    pub counts_overflowed: u32,
}

/// What a recount found wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inconsistency {
    /// Its lock is held: the device is in use, or the holder is gone.
    ClusterLocked {
        /// The cluster with the held lock.
        cluster: ClusterId,
    },
    /// A word that no operation writes, or a slot that is about to be free.
    Word {
        /// The slot with the wrong word.
        slot: Slot,
        /// The word as it was read.
        bits: u64,
    },
    /// A cluster's count of allocated slots is not what its words say.
    ClusterCount {
        /// The cluster with the wrong count.
        cluster: ClusterId,
        /// Slots in use by its record.
        kept: u32,
        /// Slots in use by its words.
        counted: u32,
    },
    /// Likewise for bad slots.
    ClusterBad {
        /// The cluster with the wrong count.
        cluster: ClusterId,
        /// Bad slots by its record.
        kept: u32,
        /// Bad slots by its words.
        counted: u32,
    },
    /// A cluster marks a group of slots as having no free one, but one is free.
    ClusterOccupied {
        /// The cluster with the wrong mark.
        cluster: ClusterId,
        /// A free slot of the group that is marked.
        slot: Slot,
    },
    /// A cluster is on a list that does not fit its counts, or on none though it should be.
    ClusterPlace {
        /// The cluster in the wrong place.
        cluster: ClusterId,
    },
    /// A list's links, or its length, do not agree.
    ListLinks {
        /// The cluster where the walk along the list found the fault.
        cluster: ClusterId,
    },
    /// The stored length of a list, or the sum of these, differs from a recount.
    ListLength {
        /// Clusters by the stored length, or by all stored lengths together.
        kept: u32,
        /// Clusters by the walk along the list, or by the states of all clusters.
        counted: u32,
    },
    /// A current cluster belongs to no shard, or to several.
    CurrentOwners {
        /// The current cluster.
        cluster: ClusterId,
        /// How many pairs of shard and order have it as their current cluster.
        owners: u32,
    },
    /// The device's count of bad slots is not what its words say.
    Bad {
        /// Bad slots by the device's counter.
        kept: u32,
        /// Bad slots by the words.
        counted: u32,
    },
    /// A slot's word says that its count overflowed, but the table does not have it.
    OverflowMissing {
        /// The slot whose count is missing, or too small to be in the table.
        slot: Slot,
    },
    /// The overflow table holds slots whose words do not point there.
    OverflowLength {
        /// Slots in the overflow table.
        kept: u32,
        /// Slots with a word that points there.
        counted: u32,
    },
}

impl fmt::Display for Inconsistency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::ClusterLocked { cluster } => write!(f, "cluster {} is locked", cluster.0),
            Self::Word { slot, bits } => write!(f, "the word of slot {} is {bits:#x}", slot.0),
            Self::ClusterCount { cluster, kept, counted } => {
                write!(f, "cluster {} counts {kept} slots in use, its words {counted}", cluster.0)
            }
            Self::ClusterBad { cluster, kept, counted } => {
                write!(f, "cluster {} counts {kept} bad slots, its words {counted}", cluster.0)
            }
            Self::ClusterOccupied { cluster, slot } => {
                write!(f, "cluster {} takes slot {} for occupied, its word is free", cluster.0, slot.0)
            }
            Self::ClusterPlace { cluster } => write!(f, "cluster {} is on the wrong list", cluster.0),
            Self::ListLinks { cluster } => write!(f, "cluster {} is linked wrongly", cluster.0),
            Self::ListLength { kept, counted } => write!(f, "a list of {kept} clusters has {counted}"),
            Self::CurrentOwners { cluster, owners } => {
                write!(f, "cluster {} is the current one of {owners} shards and orders", cluster.0)
            }
            Self::Bad { kept, counted } => write!(f, "the device counts {kept} bad slots, its words {counted}"),
            Self::OverflowMissing { slot } => write!(f, "slot {} is missing in the overflow table", slot.0),
            Self::OverflowLength { kept, counted } => {
                write!(f, "the overflow table holds {kept} slots, the words say {counted}")
            }
        }
    }
}

impl core::error::Error for Inconsistency {}

impl SwapDevice {
    /// Recounts the words, the clusters and the lists. Takes time in proportion to the device. Nothing else may use the
    /// device meanwhile.
    pub fn validate(&self) -> Result<Summary, Inconsistency> {
        let mut summary = Summary::default();
        let lists = self.header.lists.0.lock();
        for list in ListId::all() {
            self.validate_list(&lists, list)?;
        }
        let mut on_lists = 0;
        for id in (0..self.nr_clusters()).map(ClusterId) {
            let cluster = self.clusters.try_lock(id).ok_or(Inconsistency::ClusterLocked { cluster: id })?;
            self.validate_counts(&cluster, &mut summary)?;
            self.validate_place(&lists, &cluster, &mut summary)?;
            on_lists += u32::from(cluster.info.list().is_some());
        }
        // Every list holds only clusters whose state names it, each once. So if the totals are equal, none is left out.
        let counted = ListId::all().map(|list| lists.len(list)).sum();
        check(on_lists == counted, Inconsistency::ListLength { kept: counted, counted: on_lists })?;
        drop(lists);
        self.validate_shards()?;
        self.validate_totals(&summary)?;
        Ok(summary)
    }

    fn validate_list(&self, lists: &Lists, list: ListId) -> Result<(), Inconsistency> {
        let mut counted = 0;
        let mut prev = None;
        let mut next = lists.head(list);
        while let Some(id) = next {
            let wrong = Inconsistency::ListLinks { cluster: id };
            // Ends: a list with more entries than the device has clusters has a loop.
            check(counted < self.nr_clusters() && id.0 < self.nr_clusters(), wrong)?;
            check(lists.prev(&self.clusters, id) == prev, wrong)?;
            let cluster = self.clusters.try_lock(id).ok_or(Inconsistency::ClusterLocked { cluster: id })?;
            check(cluster.info.list() == Some(list), Inconsistency::ClusterPlace { cluster: id })?;
            counted += 1;
            prev = Some(id);
            next = lists.next(&self.clusters, id);
        }
        if let Some(last) = lists.tail(list) {
            check(prev == Some(last), Inconsistency::ListLinks { cluster: last })?;
        }
        check(counted == lists.len(list), Inconsistency::ListLength { kept: lists.len(list), counted })
    }

    fn validate_counts(&self, cluster: &Cluster, summary: &mut Summary) -> Result<(), Inconsistency> {
        let is_blank = matches!(cluster.info.state, ClusterState::Untouched | ClusterState::Bare);
        if is_blank && cluster.info.count == 0 && cluster.info.bad == 0 {
            // Do not read its words: they may never have been touched, and reading would touch them.
            return Ok(());
        }
        let (mut used, mut bad) = (0, 0);
        for (slot, word) in (cluster.id.first_slot().0..).map(Slot).zip(self.cluster_words(cluster.id)) {
            let bits = word.load(Ordering::Acquire);
            let word = Word::from_bits(bits);
            check(word.is_well_formed() && !word.is_dead(), Inconsistency::Word { slot, bits })?;
            let said_occupied = cluster.info.occupied >> group_of(slot) & 1 != 0;
            let wrong = Inconsistency::ClusterOccupied { cluster: cluster.id, slot };
            check(!(word.is_free() && said_occupied), wrong)?;
            used += u32::from(matches!(word.tag(), Tag::Stored | Tag::Cached));
            bad += u32::from(word.tag() == Tag::Bad);
            summary.slots_cached += u32::from(word.tag() == Tag::Cached);
            summary.slots_resident += u32::from(word.is_resident());
            summary.slots_cache_only += u32::from(word.is_cache_only());
            if word.count_field() != COUNT_OVERFLOWED {
                summary.references += u64::from(word.count_field());
            } else {
                let count = self.header.overflow.0.lock().count(slot);
                summary.references += u64::from(count.unwrap_or(0));
                let is_large = count.is_some_and(|count| count >= COUNT_OVERFLOWED);
                check(is_large, Inconsistency::OverflowMissing { slot })?;
                summary.counts_overflowed += 1;
            }
        }
        let (id, kept) = (cluster.id, u32::from(cluster.info.count));
        check(kept == used, Inconsistency::ClusterCount { cluster: id, kept, counted: used })?;
        let kept = u32::from(cluster.info.bad);
        check(kept == bad, Inconsistency::ClusterBad { cluster: id, kept, counted: bad })?;
        summary.slots_used += used;
        summary.slots_bad += bad;
        Ok(())
    }

    fn validate_place(&self, lists: &Lists, cluster: &Cluster, summary: &mut Summary) -> Result<(), Inconsistency> {
        let (empty, full) = (cluster.info.count == 0, self.is_full(cluster));
        let is_online = cluster.info.state == ClusterState::Offline || !lists.is_offline(cluster.id);
        let touched = cluster.id < lists.untouched();
        let (fits, tally) = match cluster.info.state {
            ClusterState::Untouched => (!touched && empty, &mut summary.clusters_untouched),
            ClusterState::Free => (touched && empty && !full, &mut summary.clusters_free),
            ClusterState::Nonfull => (touched && !empty && !full, &mut summary.clusters_nonfull),
            ClusterState::Frag => {
                let fits = touched && !empty && !full && !self.has_free_run(cluster.id, cluster.info.order);
                (fits, &mut summary.clusters_frag)
            }
            ClusterState::Full => (touched && full, &mut summary.clusters_full),
            ClusterState::Current => (touched, &mut summary.clusters_current),
            ClusterState::Discard => (touched && empty && !full && self.discards, &mut summary.clusters_discard),
            ClusterState::Bare => (touched && empty && cluster.info.bad == 0, &mut summary.clusters_bare),
            ClusterState::Offline => (touched && lists.is_offline(cluster.id), &mut summary.clusters_offline),
            // A thread is at work.
            ClusterState::Away | ClusterState::Draining => (false, &mut summary.clusters_current),
        };
        *tally += 1;
        let is_untouched = cluster.info.state == ClusterState::Untouched;
        check(fits && (is_online || is_untouched), Inconsistency::ClusterPlace { cluster: cluster.id })?;
        if cluster.info.state == ClusterState::Current {
            let owners = self.owners(cluster.id);
            check(owners == 1, Inconsistency::CurrentOwners { cluster: cluster.id, owners })?;
        }
        Ok(())
    }

    fn owners(&self, id: ClusterId) -> u32 {
        self.shards.iter().flat_map(|shard| shard.settled()).filter(|current| *current == id).count() as u32
    }

    fn validate_shards(&self) -> Result<(), Inconsistency> {
        for shard in self.shards {
            for id in shard.settled() {
                check(id.0 < self.nr_clusters(), Inconsistency::ClusterPlace { cluster: id })?;
                let cluster = self.clusters.try_lock(id).ok_or(Inconsistency::ClusterLocked { cluster: id })?;
                let is_current = cluster.info.state == ClusterState::Current;
                check(is_current, Inconsistency::ClusterPlace { cluster: id })?;
            }
        }
        Ok(())
    }

    fn validate_totals(&self, summary: &Summary) -> Result<(), Inconsistency> {
        let (kept, counted) = (self.nr_bad(), summary.slots_bad);
        check(kept == counted, Inconsistency::Bad { kept, counted })?;
        let (kept, counted) = (self.header.overflow.0.lock().len() as u32, summary.counts_overflowed);
        check(kept == counted, Inconsistency::OverflowLength { kept, counted })
    }
}

fn check(holds: bool, otherwise: Inconsistency) -> Result<(), Inconsistency> {
    if holds { Ok(()) } else { Err(otherwise) }
}
