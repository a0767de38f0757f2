//! Allocates slots and frees them.
//!
//! A shard allocates an order from its current cluster, from a cursor up to the cluster's end. It finds the cluster by
//! a hint and takes only the cluster's lock, so a slot costs one lock. At the end the shard takes its own lock, puts
//! the cluster on the list that fits it, and takes another cluster: one of the order with room, an empty one, or one
//! that was never used. If there is none, order 0 takes what is free in clusters of other orders, and every order takes
//! what is free in other shards' current clusters.
//!
//! A current cluster is on no list, so two shards meet in one only if space is scarce. It stays its shard's even if
//! others take from it, until the shard itself gives it back.
//!
//! Only a slot's word says whether the slot is free. A bit for each cache line of words says where not to look. A
//! slot's last user makes its word *dead* without a lock, and then *free* under the cluster lock, together with the
//! count. A slot that only one thread can free is not dead in between ([`SwapDevice::free_run`]).

use crate::cluster::{CLUSTER_SLOTS, Cluster, ClusterInfo, ClusterState, GROUP_SLOTS};
use crate::device::{Placement, SwapDevice};
use crate::id::{ClusterId, Folio, Order, Shard, Slot};
use crate::lists::{ListId, Lists, decode, encode};
use crate::word::Word;
use ebb_sync::{AtomicU32, AtomicU64, Ordering, relax};

/// Attempts of an order 0 allocation that finds nothing although the counters say that something is free: another
/// thread may hold the cluster in question, between two lists.
const ATTEMPTS_MAX: u32 = if cfg!(loom) { 2 } else { 16 };

/// If fewer than one in so many clusters is empty, single slots go into the gaps of others; see `is_scarce`.
const SCARCE: u32 = 4;

/// How far an allocation goes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reach {
    /// All of the device.
    All,
    /// Clusters whose words have memory.
    Touched,
    /// Clusters that are in use.
    Used,
}

/// Where a cluster to allocate from may come from.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Source {
    /// One of the same order.
    Nonfull,
    /// One that is empty, and whose content is still to be discarded. That is not needed if the cluster is used again,
    /// and it has its space in the medium already.
    Discard,
    /// One that is empty.
    Free,
    /// One that is empty and has no memory behind its words.
    Bare,
    /// One that was never used.
    Untouched,
}

/// Result of a search in one cluster.
pub(crate) struct Taken {
    /// Runs found, and set.
    pub(crate) runs: usize,
    /// Where to continue.
    cursor: u32,
}

impl SwapDevice {
    /// Allocates up to `out.len()` runs of 2^`order` slots, each aligned to its size, and writes the first slot of each
    /// to `out`. Returns how many runs there are; fewer than `out.len()` only if no more were found. Every slot of
    /// every run is locked in the swap cache for `folio`, with count 0, and belongs to the caller alone until the
    /// caller shares it.
    ///
    /// Order 0 finds every free slot of the device. Higher orders find every run in an empty cluster or one of their
    /// order. Slots that other threads are just moving may be missed. Order 0 then looks again, a bounded number of
    /// times, while the counters say that something is free; higher orders do not.
    pub fn alloc(&self, shard: Shard, order: Order, folio: Folio, out: &mut [Slot]) -> usize {
        if out.is_empty() {
            return 0;
        }
        let mut runs = 0;
        let mut spins = 0;
        for _ in 0..ATTEMPTS_MAX {
            runs += self.alloc_from_shard(shard, order, Reach::All, folio, &mut out[runs..]);
            if runs < out.len() {
                runs += self.alloc_from_others(order, folio, &mut out[runs..]);
            }
            if runs == out.len() || order != Order::ZERO {
                break;
            }
            if !self.may_have_room() {
                break;
            }
            relax(&mut spins);
        }
        runs
    }

    /// Allocates like [`Self::alloc`], but only from clusters whose words have memory, so that the device takes no more
    /// of anything. Order 0 fills all gaps, also those of other orders, before it takes an empty cluster. Only on a
    /// sequential device empty clusters come first, as ever.
    pub fn alloc_touched(&self, shard: Shard, order: Order, folio: Folio, out: &mut [Slot]) -> usize {
        if out.is_empty() {
            return 0;
        }
        let fills_gaps = order == Order::ZERO && self.placement == Placement::Sharded;
        let reach = if fills_gaps { Reach::Used } else { Reach::Touched };
        let mut runs = self.alloc_from_shard(shard, order, reach, folio, out);
        if runs < out.len() {
            runs += self.alloc_from_others(order, folio, &mut out[runs..]);
        }
        if runs < out.len() && reach == Reach::Used {
            runs += self.alloc_from_shard(shard, order, Reach::Touched, folio, &mut out[runs..]);
        }
        runs
    }

    /// Allocates free slots that `is_wanted`, of clusters whose words have memory. It visits all of these, so this is for a
    /// caller that has no other way. `is_wanted` is called with a cluster locked.
    #[cold]
    pub fn alloc_wanted(&self, folio: Folio, out: &mut [Slot], is_wanted: impl Fn(Slot) -> bool) -> usize {
        let mut n = 0;
        let mut take = |cluster: &mut Cluster| {
            let first = cluster.id.first_slot().0;
            for (word, slot) in self.cluster_words(cluster.id).iter().zip((first..).map(Slot)) {
                if n < out.len() && is_free(word) && is_wanted(slot) {
                    word.store(Word::fresh(folio).to_bits(), Ordering::Release);
                    cluster.info.count += 1;
                    out[n] = slot;
                    n += 1;
                }
            }
            n == out.len()
        };
        let partly = Order::all().flat_map(|order| [ListId::Frag(order), ListId::Nonfull(order)]);
        for list in partly.chain([ListId::Discard, ListId::Free]) {
            let candidates = self.header.lists.0.lock().len(list);
            for _ in 0..candidates {
                let Some(mut cluster) = self.isolate(list) else { break };
                if matches!(list, ListId::Discard | ListId::Free) {
                    claim(&mut cluster, Order::ZERO);
                }
                let is_done = take(&mut cluster);
                let is_frag = matches!(list, ListId::Frag(_));
                self.give_back(cluster, if is_frag { ClusterState::Frag } else { ClusterState::Nonfull });
                if is_done {
                    return n;
                }
            }
        }
        for id in self.shards.iter().flat_map(|shard| shard.settled()) {
            let mut cluster = self.clusters.lock(id);
            if cluster.info.state == ClusterState::Current && take(&mut cluster) {
                break;
            }
        }
        n
    }

    /// Takes a free slot out of use for good; false if it is not free.
    pub fn mark_bad(&self, slot: Slot) -> bool {
        let word = self.word(slot);
        let mut cluster = self.lock_at_home(slot.cluster());
        let is_out = slot.0 >= self.nr_slots() || cluster.info.state == ClusterState::Offline;
        if is_out || !Word::from_bits(word.load(Ordering::Relaxed)).is_free() {
            return false;
        }
        word.store(Word::BAD.to_bits(), Ordering::Release);
        cluster.info.bad += 1;
        self.header.bad.fetch_add(1, Ordering::Relaxed);
        if cluster.info.list().is_some() {
            let state = match cluster.info.state {
                _ if self.is_full(&cluster) => ClusterState::Full,
                // Its words have memory now.
                ClusterState::Bare => ClusterState::Free,
                state => state,
            };
            if state != cluster.info.state {
                self.move_to(&mut cluster, state);
            }
        }
        true
    }

    /// Takes a slot out of use for good that the caller has locked, with count 0, and that nobody else can refer to: its
    /// medium does not take it. Unlike a slot that is freed and then marked bad, it is never free in between.
    pub fn retire(&self, slot: Slot) {
        let word = self.word(slot);
        let mut cluster = self.clusters.lock(slot.cluster());
        // As in `free_run`.
        #[cfg(not(loom))]
        let before = Word::from_bits(word.load(Ordering::Relaxed));
        #[cfg(not(loom))]
        debug_assert!(before.is_locked() && before.count_field() == 0, "{before:?} is retired, but in use");
        word.store(Word::BAD.to_bits(), Ordering::Release);
        debug_assert!(cluster.info.count > 0);
        cluster.info.count -= 1;
        cluster.info.bad += 1;
        self.header.bad.fetch_add(1, Ordering::Relaxed);
        // A full cluster stays full, and one that is partly in use is as full as before. But it may be empty now.
        let is_partly = matches!(cluster.info.state, ClusterState::Nonfull | ClusterState::Frag);
        if is_partly && cluster.info.count == 0 {
            self.move_to(&mut cluster, self.emptied());
        }
    }

    /// Locks a cluster; waits while it is away.
    pub(crate) fn lock_at_home(&self, id: ClusterId) -> Cluster {
        let mut spins = 0;
        loop {
            let cluster = self.clusters.lock(id);
            if cluster.info.state != ClusterState::Away {
                return cluster;
            }
            drop(cluster);
            relax(&mut spins);
        }
    }

    /// Gives a slot back to its cluster. The caller has made its word dead.
    pub(crate) fn free_dead(&self, slot: Slot) {
        let mut cluster = self.clusters.lock(slot.cluster());
        self.set_free(&mut cluster, slot);
        self.freed_in(cluster);
    }

    /// Frees a run of 2^`order` slots that nobody else can refer to any more. The caller has each of them locked, and
    /// no page state refers to it but the caller's own: for example slots that were allocated and are not needed, or
    /// slots that were locked while their page was `BUSY`. Does what [`Self::put`] and [`Self::cache_del`] do, but
    /// simply stores the words, because nobody else can change them.
    pub fn free_run(&self, first: Slot, order: Order) {
        debug_assert!(first.0.is_multiple_of(order.slots()));
        let slots = order.slots() as usize;
        let words = &self.words[first.0 as usize..first.0 as usize + slots];
        let mut cluster = self.clusters.lock(first.cluster());
        words.iter().for_each(set_free_locked);
        debug_assert!(usize::from(cluster.info.count) >= slots);
        cluster.info.count -= slots as u16;
        cluster.info.occupied &= !if slots >= GROUP_SLOTS {
            groups_of(first.0 as usize % CLUSTER_SLOTS as usize, slots)
        } else {
            1 << group_of(first)
        };
        self.freed_in(cluster);
    }

    /// Does what [`Self::free_run`] does for any slots, with one lock for each row of slots of one cluster.
    pub fn free_all(&self, slots: &[Slot]) {
        for row in slots.chunk_by(|a, b| a.cluster() == b.cluster()) {
            let mut cluster = self.clusters.lock(row[0].cluster());
            let mut emptied = 0;
            for slot in row {
                set_free_locked(self.word(*slot));
                emptied |= 1 << group_of(*slot);
            }
            debug_assert!(usize::from(cluster.info.count) >= row.len());
            cluster.info.count -= row.len() as u16;
            cluster.info.occupied &= !emptied;
            self.freed_in(cluster);
        }
    }

    fn set_free(&self, cluster: &mut Cluster, slot: Slot) {
        let word = self.word(slot);
        debug_assert!(Word::from_bits(word.load(Ordering::Relaxed)).is_dead());
        word.store(Word::FREE.to_bits(), Ordering::Release);
        debug_assert!(cluster.info.count > 0);
        cluster.info.count -= 1;
        cluster.info.occupied &= !(1 << group_of(slot));
    }

    /// Moves a cluster in which slots were freed to where it belongs now.
    fn freed_in(&self, mut cluster: Cluster) {
        match cluster.info.state {
            // Its shard will notice; or nobody may use the cluster.
            ClusterState::Current | ClusterState::Offline | ClusterState::Draining => {}
            ClusterState::Nonfull | ClusterState::Frag | ClusterState::Full if cluster.info.count == 0 => {
                self.move_to(&mut cluster, self.emptied());
            }
            ClusterState::Frag | ClusterState::Full => self.move_to(&mut cluster, ClusterState::Nonfull),
            ClusterState::Nonfull => {}
            ClusterState::Untouched
            | ClusterState::Free
            | ClusterState::Discard
            | ClusterState::Bare
            | ClusterState::Away => {
                debug_assert!(false, "{:?} had slots in use, but not in its count", cluster.id);
            }
        }
    }

    /// Allocates from the shard's current cluster, and from others that become current in its place.
    fn alloc_from_shard(&self, shard: Shard, order: Order, reach: Reach, folio: Folio, out: &mut [Slot]) -> usize {
        let index = match self.placement {
            // Usually there is nothing to divide.
            Placement::Sharded if shard.0 < self.shards.len() => shard.0,
            Placement::Sharded => shard.0 % self.shards.len(),
            Placement::Sequential => 0,
        };
        let shard = &self.shards[index];
        // Take only the cluster's lock: what the shard says may be out of date, but the cluster's state is not.
        let mut runs = 0;
        if let Some(id) = decode(shard.current[order.index()].load(Ordering::Relaxed)) {
            runs = self.take_on(&mut self.clusters.lock(id), order, folio, out);
            if runs == out.len() {
                return runs;
            }
        }
        let _guard = shard.switching.lock();
        let current = &shard.current[order.index()];
        if let Some(id) = decode(current.load(Ordering::Relaxed)) {
            let mut cluster = self.clusters.lock(id);
            debug_assert_eq!(cluster.info.state, ClusterState::Current);
            runs += self.take_on(&mut cluster, order, folio, &mut out[runs..]);
            if runs == out.len() {
                return runs;
            }
            // Slots freed below the cursor are for whoever finds the cluster on its list.
            current.store(0, Ordering::Relaxed);
            self.give_back(cluster, ClusterState::Nonfull);
        }
        let sources = match self.placement {
            Placement::Sharded => {
                [Source::Nonfull, Source::Discard, Source::Free, Source::Bare, Source::Untouched].as_slice()
            }
            Placement::Sequential => &[Source::Discard, Source::Free, Source::Bare, Source::Untouched, Source::Nonfull],
        };
        let is_near = |source: &&Source| match source {
            Source::Nonfull => true,
            Source::Discard | Source::Free => reach != Reach::Used,
            Source::Bare | Source::Untouched => reach == Reach::All,
        };
        for &source in sources.iter().filter(is_near) {
            if order == Order::ZERO && source == Source::Discard && self.is_scarce() {
                runs += self.stolen(folio, &mut out[runs..]);
                if runs == out.len() {
                    break;
                }
            }
            runs += self.alloc_from_source(current, source, order, folio, &mut out[runs..]);
            if runs == out.len() {
                break;
            }
        }
        runs
    }

    /// Allocates from a current cluster at its cursor, if the cluster serves the order. Allocates nothing from other
    /// clusters.
    #[inline]
    fn take_on(&self, cluster: &mut Cluster, order: Order, folio: Folio, out: &mut [Slot]) -> usize {
        if cluster.info.state != ClusterState::Current || !claim(cluster, order) {
            return 0;
        }
        let from = cluster.info.cursor.into();
        let taken = self.take(cluster, order, from, folio, out);
        cluster.info.cursor = taken.cursor as u16;
        taken.runs
    }

    /// Allocates from clusters of one source. The one in which `out` is filled becomes current.
    fn alloc_from_source(
        &self,
        current: &AtomicU32,
        source: Source,
        order: Order,
        folio: Folio,
        out: &mut [Slot],
    ) -> usize {
        debug_assert_eq!(current.load(Ordering::Relaxed), 0);
        let mut runs = 0;
        // A cluster without room goes to another list. If it is empty but short or with bad slots, it goes to the end
        // of this list. So this many attempts see each cluster once. Usually the first one has room.
        let (mut attempts, mut candidates) = (0, u32::MAX);
        while attempts < candidates {
            let Some(mut cluster) = self.isolate_from(source, order) else {
                break;
            };
            attempts += 1;
            let claimed = claim(&mut cluster, order);
            debug_assert!(claimed);
            let taken = self.take(&mut cluster, order, 0, folio, &mut out[runs..]);
            runs += taken.runs;
            if runs == out.len() {
                cluster.info.cursor = taken.cursor as u16;
                current.store(encode(cluster.id), Ordering::Relaxed);
                break;
            }
            self.give_back(cluster, ClusterState::Frag);
            if attempts == 1 {
                candidates = self.nr_candidates(source, order).saturating_add(1);
            }
        }
        runs
    }

    /// Whether any cluster has a free slot that single slots may come from, as far as can be seen without stopping all
    /// threads.
    fn may_have_room(&self) -> bool {
        let partly = |lists: &Lists| {
            let listed = ListId::all().filter(|list| *list != ListId::Full);
            listed.map(|list| lists.len(list)).any(|len| len > 0) || lists.has_untouched(self.nr_clusters())
        };
        if partly(&self.header.lists.0.lock()) {
            return true;
        }
        self.shards.iter().any(|shard| shard.settled().any(|id| !self.is_full(&self.clusters.lock(id))))
    }

    /// Allocates for a shard that finds nothing of its own. Order 0 takes from clusters of other orders, fragmented
    /// ones first. Every order takes from the shards' current clusters. No shard lock is held here, because the locks
    /// of other shards are taken.
    #[cold]
    fn alloc_from_others(&self, order: Order, folio: Folio, out: &mut [Slot]) -> usize {
        let mut runs = 0;
        if order == Order::ZERO {
            runs += self.stolen(folio, out);
            for other in Order::all().skip(1) {
                runs += self.take_singles(ListId::Nonfull(other), ClusterState::Nonfull, folio, &mut out[runs..]);
            }
        }
        for shard in self.shards {
            for id in shard.settled() {
                if runs == out.len() {
                    return runs;
                }
                let mut cluster = self.clusters.lock(id);
                // It may have stopped being the shard's current cluster since it was read.
                let is_current = cluster.info.state == ClusterState::Current;
                if is_current && (claim(&mut cluster, order) || order == Order::ZERO) {
                    runs += self.take(&mut cluster, order, 0, folio, &mut out[runs..]).runs;
                }
            }
        }
        runs
    }

    /// Takes single slots from clusters of higher orders that have no free run: those lose nothing. Returns how many.
    pub(crate) fn stolen(&self, folio: Folio, out: &mut [Slot]) -> usize {
        let mut taken = 0;
        for other in Order::all().skip(1) {
            taken += self.take_singles(ListId::Frag(other), ClusterState::Frag, folio, &mut out[taken..]);
        }
        taken
    }

    /// Takes single slots from the clusters of a list. The clusters then go to `partly`, unless they are full. Returns
    /// how many slots.
    fn take_singles(&self, list: ListId, partly: ClusterState, folio: Folio, out: &mut [Slot]) -> usize {
        let mut taken = 0;
        if out.is_empty() {
            return 0;
        }
        let candidates = self.header.lists.0.lock().len(list);
        for _ in 0..candidates {
            if taken == out.len() {
                break;
            }
            let Some(mut cluster) = self.isolate(list) else { break };
            taken += self.take(&mut cluster, Order::ZERO, 0, folio, &mut out[taken..]).runs;
            self.give_back(cluster, partly);
        }
        taken
    }

    /// Whether so few clusters are empty that single slots should go into gaps rather than into an empty one.
    fn is_scarce(&self) -> bool {
        let (empty, all) = self.nr_empty();
        empty < all / SCARCE
    }

    /// The number of empty clusters that no shard has, and of all clusters. Clusters that a shrinking device is to lose
    /// do not count.
    pub(crate) fn nr_empty(&self) -> (u32, u32) {
        let lists = self.header.lists.0.lock();
        let all = lists.offline().map_or(self.nr_clusters(), |from| from.0);
        let untouched = all.saturating_sub(lists.untouched().0);
        (lists.len(ListId::Free) + lists.len(ListId::Bare) + lists.len(ListId::Discard) + untouched, all)
    }

    /// Takes aligned free runs at and above `from`, as many as `out` has room for.
    #[inline]
    pub(crate) fn take(&self, cluster: &mut Cluster, order: Order, from: u32, folio: Folio, out: &mut [Slot]) -> Taken {
        let words = self.cluster_words(cluster.id);
        let fresh = Word::fresh(folio).to_bits();
        let (from, first) = (from as usize, cluster.id.first_slot().0);
        match order {
            Order::ZERO => take_single(words, &mut cluster.info, from, first, fresh, out),
            _ => take_runs(words, &mut cluster.info, order, from, first, fresh, out),
        }
    }

    fn nr_candidates(&self, source: Source, order: Order) -> u32 {
        let lists = self.header.lists.0.lock();
        match source {
            Source::Nonfull => lists.len(ListId::Nonfull(order)),
            Source::Discard => lists.len(ListId::Discard),
            Source::Free => lists.len(ListId::Free),
            Source::Bare => lists.len(ListId::Bare),
            Source::Untouched => self.nr_clusters().saturating_sub(lists.untouched().0),
        }
    }

    fn isolate_from(&self, source: Source, order: Order) -> Option<Cluster> {
        match source {
            Source::Nonfull => self.isolate(ListId::Nonfull(order)),
            Source::Discard => self.isolate(ListId::Discard),
            Source::Free => self.isolate(ListId::Free),
            Source::Bare => self.isolate(ListId::Bare),
            Source::Untouched => {
                let id = self.header.lists.0.lock().take_untouched(self.nr_clusters())?;
                // No other thread takes it now, but mark_bad may hold its lock.
                let mut cluster = self.clusters.lock(id);
                debug_assert_eq!(cluster.info.state, ClusterState::Untouched);
                cluster.info.state = ClusterState::Current;
                Some(cluster)
            }
        }
    }

    /// Takes the first cluster whose lock is free off a list. By try-lock, because the device lock is held, and a
    /// thread that holds a cluster may be waiting for it.
    pub(crate) fn isolate(&self, list: ListId) -> Option<Cluster> {
        let mut lists = self.header.lists.0.lock();
        let mut next = lists.head(list);
        while let Some(id) = next {
            if !lists.is_offline(id)
                && let Some(mut cluster) = self.clusters.try_lock(id)
            {
                debug_assert_eq!(cluster.info.list(), Some(list));
                lists.remove(&self.clusters, list, id);
                cluster.info.state = ClusterState::Current;
                return Some(cluster);
            }
            next = lists.next(&self.clusters, id);
        }
        None
    }

    /// Puts an isolated or current cluster on the list that fits it: `partly` if it is neither full nor empty.
    pub(crate) fn give_back(&self, mut cluster: Cluster, partly: ClusterState) {
        debug_assert_eq!(cluster.info.state, ClusterState::Current);
        let state = self.place_of(&cluster, partly);
        self.move_to(&mut cluster, state);
    }

    /// Where a cluster belongs: `partly` if it is neither full nor empty.
    pub(crate) fn place_of(&self, cluster: &Cluster, partly: ClusterState) -> ClusterState {
        if self.is_full(cluster) {
            ClusterState::Full
        } else if cluster.info.count == 0 {
            self.emptied()
        } else {
            partly
        }
    }

    /// Where a cluster belongs that was in use and is empty now.
    fn emptied(&self) -> ClusterState {
        if self.discards { ClusterState::Discard } else { ClusterState::Free }
    }

    /// Moves a locked cluster from its list, if it is on one, to the end of another; or to no list, if it must not be
    /// allocated from.
    #[track_caller]
    pub(crate) fn move_to(&self, cluster: &mut Cluster, state: ClusterState) {
        let from = cluster.info.list();
        let mut lists = self.header.lists.0.lock();
        cluster.info.state = if lists.is_offline(cluster.id) { ClusterState::Offline } else { state };
        if let Some(list) = from {
            lists.remove(&self.clusters, list, cluster.id);
        }
        if let Some(list) = cluster.info.list() {
            lists.push(&self.clusters, list, cluster.id);
        }
    }

    pub(crate) fn is_full(&self, cluster: &Cluster) -> bool {
        u32::from(cluster.info.count) + u32::from(cluster.info.bad) == self.capacity(cluster.id)
    }

    /// Whether a cluster has an aligned free run of an order.
    pub(crate) fn has_free_run(&self, id: ClusterId, order: Order) -> bool {
        let run = order.slots() as usize;
        self.cluster_words(id).chunks_exact(run).any(|words| words.iter().all(is_free))
    }
}

/// Order 0 of [`SwapDevice::take`].
#[inline]
fn take_single(
    words: &[AtomicU64],
    info: &mut ClusterInfo,
    from: usize,
    first: u32,
    fresh: u64,
    out: &mut [Slot],
) -> Taken {
    let free = words.len() - usize::from(info.count) - usize::from(info.bad);
    let wanted = out.len().min(free);
    let (mut at, mut found) = (from, 0);
    while found < wanted {
        at = skip_occupied(info.occupied, at, 1);
        let group = at / GROUP_SLOTS;
        let Some(rest) = words.get(at..((group + 1) * GROUP_SLOTS).min(words.len())).filter(|rest| !rest.is_empty())
        else {
            at = words.len();
            break;
        };
        for word in rest {
            // Once enough are found, the first word that stays free ends the search: it shows that the group has one.
            if is_free(word) {
                if found == wanted {
                    break;
                }
                word.store(fresh, Ordering::Release);
                out[found] = Slot(first + at as u32);
                found += 1;
            }
            at += 1;
        }
        // So a group whose last free slot was taken is not searched again.
        let is_at_end = at == group * GROUP_SLOTS + GROUP_SLOTS || at == words.len();
        if is_at_end && !words[group * GROUP_SLOTS..at].iter().any(is_free) {
            info.occupied |= 1 << group;
        }
    }
    info.count += found as u16;
    Taken { runs: found, cursor: at as u32 }
}

/// Higher orders of [`SwapDevice::take`].
fn take_runs(
    words: &[AtomicU64],
    info: &mut ClusterInfo,
    order: Order,
    from: usize,
    first: u32,
    fresh: u64,
    out: &mut [Slot],
) -> Taken {
    let run = order.slots() as usize;
    let mut free = words.len() - usize::from(info.count) - usize::from(info.bad);
    // Nothing to look at: every word is free.
    let is_empty = free == words.len();
    let mut at = from.next_multiple_of(run);
    let mut runs = 0;
    while runs < out.len() && free >= run {
        at = skip_occupied(info.occupied, at, run);
        let Some(place) = words.get(at..at + run) else {
            at = words.len();
            break;
        };
        let found = is_empty || place.iter().all(is_free);
        if found {
            for word in place {
                word.store(fresh, Ordering::Release);
            }
            out[runs] = Slot(first + at as u32);
            runs += 1;
            free -= run;
        }
        at += run;
        if run >= GROUP_SLOTS {
            info.occupied |= if found { groups_of(at - run, run) } else { 0 };
        } else if at.is_multiple_of(GROUP_SLOTS) && !words[at - GROUP_SLOTS..at].iter().any(is_free) {
            info.occupied |= 1 << (at / GROUP_SLOTS - 1);
        }
    }
    info.count += (runs * run) as u16;
    Taken { runs, cursor: at as u32 }
}

/// Frees a word that the caller has locked, and to which only the caller's page refers. The cluster is locked, too.
#[inline]
fn set_free_locked(word: &AtomicU64) {
    // loom remembers the last access to a word: a look just before the store would hide who looked before.
    #[cfg(not(loom))]
    let before = Word::from_bits(word.load(Ordering::Relaxed));
    #[cfg(not(loom))]
    debug_assert!(before.is_locked() && before.count_field() <= 1, "{before:?} is freed, but in use");
    word.store(Word::FREE.to_bits(), Ordering::Release);
}

/// Relaxed: a word becomes free, and stops being free, only under the cluster lock, which the caller holds.
fn is_free(word: &AtomicU64) -> bool {
    Word::from_bits(word.load(Ordering::Relaxed)).is_free()
}

/// The group of a slot within its cluster.
pub(crate) fn group_of(slot: Slot) -> usize {
    slot.0 as usize % CLUSTER_SLOTS as usize / GROUP_SLOTS
}

/// The groups of a run that starts at `at` and has all slots of each.
fn groups_of(at: usize, run: usize) -> u64 {
    u64::MAX >> (u64::BITS as usize - run / GROUP_SLOTS) << (at / GROUP_SLOTS)
}

/// The first place at or after `at` where a run could be, as far as the groups say. `at` and the place are multiples of
/// `run`. The place may be past the cluster's end.
fn skip_occupied(occupied: u64, mut at: usize, run: usize) -> usize {
    let groups = run.div_ceil(GROUP_SLOTS);
    if groups == 1 {
        let group = at / GROUP_SLOTS;
        let clear = (!occupied).checked_shr(group as u32).unwrap_or(0);
        return if clear & 1 != 0 { at } else { (group + clear.trailing_zeros() as usize) * GROUP_SLOTS };
    }
    let mask = u64::MAX >> (u64::BITS as usize - groups);
    while at < CLUSTER_SLOTS as usize {
        let busy = occupied >> (at / GROUP_SLOTS) & mask;
        if busy == 0 {
            break;
        }
        // To the first group after the last busy one, or to the first run from there.
        let last = (u64::BITS - 1 - busy.leading_zeros()) as usize;
        at = ((at / GROUP_SLOTS + last + 1) * GROUP_SLOTS).next_multiple_of(run);
    }
    at
}

/// Makes the cluster serve `order`, which an empty cluster always can. False if it serves another.
fn claim(cluster: &mut Cluster, order: Order) -> bool {
    if cluster.info.count == 0 {
        cluster.info.order = order;
        cluster.info.cursor = 0;
    }
    cluster.info.order == order
}
