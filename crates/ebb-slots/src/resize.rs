//! Devices that grow and shrink while in use. Swapping off is shrinking to nothing.
//!
//! A device shrinks in steps, because only the caller can move content. From [`SwapDevice::begin_shrink`] on, nothing
//! is allocated beyond the new end. The caller empties the slots there that [`SwapDevice::next_used`] shows. Then
//! [`SwapDevice::end_shrink`] cuts off the end, or [`SwapDevice::cancel_shrink`] leaves everything as it was. Slots are
//! freed as ever meanwhile.
//!
//! One thread at a time performs a step. Meanwhile another thread's step is refused, not lost.
//!
//! Clusters beyond the new end are *offline*: on no list, and nobody's current cluster. Every way back to a list leads
//! through one function that checks the mark, under the lock under which the mark is set.

use crate::cluster::{CLUSTER_SLOTS, Cluster, ClusterState};
use crate::device::SwapDevice;
use crate::id::{ClusterId, Slot};
use crate::layout::nr_clusters;
use crate::lists::{Resizing, decode};
use crate::word::Word;
use core::fmt;
use core::ops::Range;
use ebb_sync::{Ordering, relax};

/// Why a device did not change size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResizeError {
    /// It is being made smaller, or another thread performs a step of that.
    Busy,
    /// It was not being made smaller.
    NotShrinking,
    /// The new size is not larger, or not smaller, or more than the device can ever have.
    Size {
        /// Slots that the device has now.
        nr_slots: u32,
        /// Slots that it can ever have.
        nr_slots_max: u32,
    },
    /// The smaller size is not a multiple of a cluster.
    Misaligned,
    /// Slots beyond the new end are in use.
    InUse {
        /// Slots in use at and beyond the new end.
        slots: u32,
    },
}

impl fmt::Display for ResizeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Busy => f.write_str("the swap device is being made smaller already; wait, or cancel that"),
            Self::NotShrinking => f.write_str("the swap device is not being made smaller; begin that first"),
            Self::Size { nr_slots, nr_slots_max } => {
                write!(f, "the swap device has {nr_slots} slots and can have {nr_slots_max}; choose another size")
            }
            Self::Misaligned => {
                write!(f, "a swap device shrinks by whole clusters; choose a multiple of {CLUSTER_SLOTS}")
            }
            Self::InUse { slots } => {
                write!(f, "{slots} slots beyond the swap device's new end are in use; move their content first")
            }
        }
    }
}

impl core::error::Error for ResizeError {}

impl SwapDevice {
    /// Makes the device larger, with `nr_slots` slots in all.
    pub fn grow(&self, nr_slots: u32) -> Result<(), ResizeError> {
        // The last cluster may have room afterwards, so take its lock first. It is still the last one when the device
        // lock is taken, unless another thread is changing the size.
        let last = || self.nr_slots().checked_sub(1).map(|slot| Slot(slot).cluster());
        let mut cluster = last().map(|id| self.lock_at_home(id));
        let mut lists = self.header.lists.0.lock();
        let now = self.nr_slots();
        if lists.resizing() != Resizing::Idle || last() != cluster.as_ref().map(|cluster| cluster.id) {
            return Err(ResizeError::Busy);
        }
        if nr_slots <= now || nr_slots > self.nr_slots_max() {
            return Err(ResizeError::Size { nr_slots: now, nr_slots_max: self.nr_slots_max() });
        }
        self.header.resized.store(nr_slots + 1, Ordering::Relaxed);
        if let Some(cluster) = &mut cluster {
            // A group of slots that was cut short has free slots now.
            cluster.info.occupied = 0;
        }
        // A cluster without a free slot, or without a free run, may have some now.
        if let Some(cluster) = &mut cluster
            && matches!(cluster.info.state, ClusterState::Full | ClusterState::Frag)
            && !self.is_full(cluster)
            && let Some(list) = cluster.info.list()
        {
            lists.remove(&self.clusters, list, cluster.id);
            cluster.info.state = if cluster.info.count == 0 { ClusterState::Free } else { ClusterState::Nonfull };
            if let Some(list) = cluster.info.list() {
                lists.push(&self.clusters, list, cluster.id);
            }
        }
        Ok(())
    }

    /// Begins to make the device smaller. From now on nothing is allocated at or beyond slot `nr_slots`, which is a
    /// multiple of [`CLUSTER_SLOTS`]. Waits for clusters there that are being discarded or compacted, so a thread that
    /// does either must not call it.
    pub fn begin_shrink(&self, nr_slots: u32) -> Result<(), ResizeError> {
        if !nr_slots.is_multiple_of(CLUSTER_SLOTS) {
            return Err(ResizeError::Misaligned);
        }
        let from = Slot(nr_slots).cluster();
        let end = {
            let mut lists = self.header.lists.0.lock();
            if lists.resizing() != Resizing::Idle {
                return Err(ResizeError::Busy);
            }
            if nr_slots >= self.nr_slots() {
                return Err(ResizeError::Size { nr_slots: self.nr_slots(), nr_slots_max: self.nr_slots_max() });
            }
            lists.set_resizing(Resizing::Busy);
            lists.set_offline(Some(from));
            lists.untouched()
        };
        // Current clusters first: they go to no list now.
        for shard in self.shards {
            let _guard = shard.switching.lock();
            for stored in &shard.current {
                if let Some(id) = decode(stored.load(Ordering::Relaxed))
                    && id >= from
                {
                    stored.store(0, Ordering::Relaxed);
                    self.give_back(self.clusters.lock(id), ClusterState::Nonfull);
                }
            }
        }
        for id in (from.0..end.0).map(ClusterId) {
            let mut cluster = self.lock_settled(id);
            if cluster.info.list().is_some() {
                let state = cluster.info.state;
                self.move_to(&mut cluster, state);
            }
        }
        self.header.lists.0.lock().set_resizing(Resizing::Shrinking);
        Ok(())
    }

    /// Locks a cluster that no shard has. Waits until a thread that took it off its list has put it back.
    fn lock_settled(&self, id: ClusterId) -> Cluster {
        let mut spins = 0;
        loop {
            let cluster = self.clusters.lock(id);
            if !matches!(cluster.info.state, ClusterState::Current | ClusterState::Away | ClusterState::Draining) {
                return cluster;
            }
            drop(cluster);
            relax(&mut spins);
        }
    }

    /// The first slot at or after `from` that is in use. It may be only resident: then the caller locks it, and frees
    /// or moves it, as its page requires.
    pub fn next_used(&self, from: Slot) -> Option<Slot> {
        let mut at = from.0;
        // Clusters that were never used have no memory yet. They are not looked at, so they need none.
        let touched = self.header.lists.0.lock().untouched().first_slot().0;
        let end_of_all = self.nr_slots().min(touched);
        while at < end_of_all {
            let id = Slot(at).cluster();
            let end = id.first_slot().0 + self.capacity(id);
            if self.clusters.lock(id).info.count > 0 {
                let is_used = |word: Word| !word.is_free() && word != Word::BAD && !word.is_dead();
                let mut slots = (at..end).map(Slot);
                let found = slots.find(|slot| is_used(Word::from_bits(self.word(*slot).load(Ordering::Acquire))));
                if found.is_some() {
                    return found;
                }
            }
            at = end;
        }
        None
    }

    /// Begins the next step of shrinking a device. Returns the first cluster to be cut off.
    fn next_step(&self) -> Result<ClusterId, ResizeError> {
        let mut lists = self.header.lists.0.lock();
        match (lists.resizing(), lists.offline()) {
            (Resizing::Shrinking, Some(from)) => {
                lists.set_resizing(Resizing::Busy);
                Ok(from)
            }
            (Resizing::Busy, _) => Err(ResizeError::Busy),
            _ => Err(ResizeError::NotShrinking),
        }
    }

    /// Cuts off the end that [`Self::begin_shrink`] named, if no slot there is in use. Bad slots there are forgotten.
    /// Returns the clusters that the device lost. Their words are free, so their memory may be given back at once.
    pub fn end_shrink(&self) -> Result<Range<ClusterId>, ResizeError> {
        let from = self.next_step()?;
        let end = ClusterId(nr_clusters(self.nr_slots()));
        let clusters = || (from.0..end.0).map(ClusterId);
        // All of them are offline or were never used: from here on they only lose slots.
        let slots = clusters().map(|id| u32::from(self.clusters.lock(id).info.count)).sum();
        if slots > 0 {
            self.header.lists.0.lock().set_resizing(Resizing::Shrinking);
            return Err(ResizeError::InUse { slots });
        }
        {
            let mut lists = self.header.lists.0.lock();
            let touched = lists.untouched().min(from);
            lists.set_untouched(touched);
            self.header.resized.store(from.first_slot().0 + 1, Ordering::Relaxed);
        }
        // Beyond the end nobody marks a slot any more.
        for id in clusters() {
            let mut cluster = self.clusters.lock(id);
            if cluster.info.bad > 0 {
                let first = id.first_slot().0 as usize;
                for word in self.words.iter().skip(first).take(CLUSTER_SLOTS as usize) {
                    word.store(Word::FREE.to_bits(), Ordering::Release);
                }
                self.header.bad.fetch_sub(cluster.info.bad.into(), Ordering::Relaxed);
            }
            (cluster.info.bad, cluster.info.occupied, cluster.info.state) = (0, 0, ClusterState::Untouched);
        }
        let mut lists = self.header.lists.0.lock();
        lists.set_offline(None);
        lists.set_resizing(Resizing::Idle);
        Ok(from..end)
    }

    /// Undoes [`Self::begin_shrink`].
    pub fn cancel_shrink(&self) -> Result<(), ResizeError> {
        let from = self.next_step()?;
        let touched = {
            let mut lists = self.header.lists.0.lock();
            lists.set_offline(None);
            lists.untouched()
        };
        for id in (from.0..touched.0).map(ClusterId) {
            let mut cluster = self.clusters.lock(id);
            if cluster.info.state == ClusterState::Offline {
                let state = self.place_of(&cluster, ClusterState::Nonfull);
                self.move_to(&mut cluster, state);
            }
        }
        self.header.lists.0.lock().set_resizing(Resizing::Idle);
        Ok(())
    }
}
