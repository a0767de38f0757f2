//! Empty clusters that are *away*: their content is being discarded, or the memory of their words given back.
//!
//! Both operations take clusters off a list, release every lock, let the caller do the slow part for runs of
//! neighbours, and put the clusters on another list. A cluster that is away has no slot in use and is on no list, so
//! nobody allocates from it. Anyone who looks at its words reads that they are free, before, during and after.
//!
//! That needs no lock, because a free word is zero, and memory that was given back reads as zeros: a table that goes
//! away changes nothing that a reader could see. A word stops being free only under the cluster lock, and only in a
//! cluster that is not away.

use crate::cluster::{CLUSTER_SLOTS, ClusterState};
use crate::device::SwapDevice;
use crate::id::{ClusterId, Slot};
use crate::lists::ListId;
use core::ops::Range;
use ebb_sync::AtomicU64;

/// The most clusters that are away at a time: enough for one call to cover many, few enough that others still find
/// some.
const BATCH: usize = if cfg!(any(loom, shuttle)) { 2 } else { 64 };

impl SwapDevice {
    /// Makes the medium forget the content of clusters that became empty, at most `clusters_max` of them. Calls
    /// `discard` for runs of slots that nobody uses, with no lock held. Returns how many clusters.
    ///
    /// The owner of a device that discards calls this now and then. A cluster that is allocated from before its turn
    /// comes is not discarded: that is cheaper, and the cluster has its space in the medium already. So allocations
    /// take such clusters first.
    pub fn discard(&self, clusters_max: usize, mut discard: impl FnMut(Range<Slot>)) -> usize {
        let slots = |run: Range<ClusterId>| {
            let end = (u64::from(run.end.0) * u64::from(CLUSTER_SLOTS)).min(self.nr_slots().into());
            run.start.first_slot()..Slot(end as u32)
        };
        self.send_away(ListId::Discard, ClusterState::Free, clusters_max, |run| discard(slots(run)))
    }

    /// Empty clusters whose content is still to be discarded.
    pub fn nr_to_discard(&self) -> u32 {
        self.header.lists.0.lock().len(ListId::Discard)
    }

    /// Gives back the memory of empty clusters' words, at most `clusters_max` of them, while more than `keep` empty
    /// clusters have some. Calls `release` for runs of clusters, with no lock held. `release` may make the memory of
    /// their [words](Self::words_of), and whatever else the caller keeps for each of their slots, read as zeros.
    /// Returns how many clusters.
    pub fn release_tables(&self, keep: usize, clusters_max: usize, release: impl FnMut(Range<ClusterId>)) -> usize {
        let free = self.header.lists.0.lock().len(ListId::Free) as usize;
        self.send_away(ListId::Free, ClusterState::Bare, clusters_max.min(free.saturating_sub(keep)), release)
    }

    /// Clusters whose words may have memory behind them.
    pub fn nr_tables(&self) -> u32 {
        let lists = self.header.lists.0.lock();
        lists.untouched().0 - lists.len(ListId::Bare)
    }

    /// Where the words of some clusters are, and how many bytes: whole pages, if the words of a cluster fill a page.
    pub fn words_of(&self, clusters: Range<ClusterId>) -> (*const AtomicU64, usize) {
        let first = clusters.start.first_slot().0 as usize;
        let end = (clusters.end.0 as usize * CLUSTER_SLOTS as usize).min(self.words.len());
        let words = &self.words[first..end];
        (words.as_ptr(), size_of_val(words))
    }

    fn send_away(
        &self,
        from: ListId,
        to: ClusterState,
        clusters_max: usize,
        mut work: impl FnMut(Range<ClusterId>),
    ) -> usize {
        let mut done = 0;
        while done < clusters_max {
            let mut away = [ClusterId(0); BATCH];
            let n = self.take_away(from, to, &mut away[..BATCH.min(clusters_max - done)]);
            if n == 0 {
                break;
            }
            let away = &mut away[..n];
            away.sort_unstable();
            for run in away.chunk_by(|a, b| a.0 + 1 == b.0) {
                work(run[0]..ClusterId(run[run.len() - 1].0 + 1));
            }
            for id in away.iter() {
                let mut cluster = self.clusters.lock(*id);
                debug_assert_eq!((cluster.info.state, cluster.info.count), (ClusterState::Away, 0));
                self.move_to(&mut cluster, to);
            }
            done += n;
        }
        done
    }

    fn take_away(&self, from: ListId, to: ClusterState, away: &mut [ClusterId]) -> usize {
        let mut n = 0;
        // Each cluster is looked at once: those that stay go to the end of the list.
        let candidates = self.header.lists.0.lock().len(from);
        for _ in 0..candidates {
            if n == away.len() {
                break;
            }
            let Some(mut cluster) = self.isolate(from) else { break };
            if to == ClusterState::Bare && cluster.info.bad > 0 {
                // Its words say which slots are bad.
                self.move_to(&mut cluster, ClusterState::Free);
                continue;
            }
            cluster.info.state = ClusterState::Away;
            away[n] = cluster.id;
            n += 1;
        }
        n
    }
}
