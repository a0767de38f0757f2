//! Random operations on a device, against a model that is nothing but an array.
#![cfg(not(any(loom, shuttle)))]

mod common;

use common::{TestDevice, zero_words};
use ebb_slots::*;
use proptest::prelude::*;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Model {
    Free,
    Used { count: u32, cached: Option<Folio>, locked: bool, shadow: Shadow, zero: bool },
    Bad,
}

impl Model {
    fn entry(self) -> TableEntry {
        match self {
            Self::Free => TableEntry::Free,
            Self::Bad => TableEntry::Bad,
            Self::Used { count, cached: Some(folio), locked, zero, .. } => {
                TableEntry::Cached { count, folio, zero, locked }
            }
            Self::Used { count, cached: None, shadow, zero, .. } => TableEntry::Stored(Stored { count, shadow, zero }),
        }
    }

    fn is_cache_only(self) -> bool {
        matches!(self, Self::Used { count: 0, cached: Some(_), locked: false, .. })
    }
}

#[derive(Clone, Debug)]
enum Op {
    Alloc { shard: usize, order: u8, runs: usize, folio: u64 },
    AllocTouched { shard: usize, order: u8, runs: usize, folio: u64 },
    AllocWanted { every: u32, slots: usize, folio: u64 },
    Drain { looks: u32, used_max: u32, moves: usize },
    Dup { pick: usize, times: usize },
    Put { pick: usize, times: usize },
    CacheAdd { pick: usize, folio: u64 },
    CacheDel { pick: usize, shadow: u32 },
    Lock { pick: usize, folio: u64 },
    Unlock { pick: usize, settles: bool },
    UnlockMany { pick: usize, slots: usize },
    Evict { pick: usize, shadow: u32 },
    ReclaimFull { clusters: u32, refusal: u32 },
    AllocReclaiming { shard: usize, order: u8, runs: usize, folio: u64, refusal: u32 },
    CacheReplace { pick: usize, folio: u64 },
    SetZero { pick: usize, zero: bool },
    FreeMany { pick: usize, slots: usize },
    FreeRun { pick: usize, order: u8 },
    FreeAll { pick: usize, slots: usize, is_backwards: bool },
    MarkBad { slot: u32 },
    Retire { pick: usize },
    Look { slot: u32 },
    Discard { clusters: usize },
    ReleaseTables { keep: usize, clusters: usize },
    Compact { order: u8, runs: usize, moves: usize, refusal: u32 },
    Grow { slots: u32 },
    BeginShrink { clusters: u32 },
    EndShrink { gives_up: bool },
}

fn op() -> impl Strategy<Value = Op> {
    let pick = any::<usize>;
    let folio = || 0..1_u64 << Folio::BITS;
    prop_oneof![
        4 => (any::<usize>(), 0..=MAX_ORDER, 1..6_usize, folio())
            .prop_map(|(shard, order, runs, folio)| Op::Alloc { shard, order, runs, folio }),
        4 => (any::<usize>(), 1..200_usize, folio())
            .prop_map(|(shard, runs, folio)| Op::Alloc { shard, order: 0, runs, folio }),
        2 => (any::<usize>(), prop_oneof![Just(0), 0..=MAX_ORDER], 1..300_usize, folio())
            .prop_map(|(shard, order, runs, folio)| Op::AllocTouched { shard, order, runs, folio }),
        1 => (1..4_u32, 1..300_usize, folio())
            .prop_map(|(every, slots, folio)| Op::AllocWanted { every, slots, folio }),
        2 => (1..9_u32, 1..=CLUSTER_SLOTS, 1..300_usize)
            .prop_map(|(looks, used_max, moves)| Op::Drain { looks, used_max, moves }),
        2 => (pick(), 1..40_usize).prop_map(|(pick, times)| Op::Dup { pick, times }),
        2 => (pick(), 1..40_usize).prop_map(|(pick, times)| Op::Put { pick, times }),
        2 => (pick(), folio()).prop_map(|(pick, folio)| Op::CacheAdd { pick, folio }),
        2 => (pick(), any::<u32>()).prop_map(|(pick, shadow)| Op::CacheDel { pick, shadow }),
        2 => (pick(), folio()).prop_map(|(pick, folio)| Op::Lock { pick, folio }),
        2 => (pick(), any::<bool>()).prop_map(|(pick, settles)| Op::Unlock { pick, settles }),
        3 => (pick(), 1..600_usize).prop_map(|(pick, slots)| Op::UnlockMany { pick, slots }),
        2 => (pick(), any::<u32>()).prop_map(|(pick, shadow)| Op::Evict { pick, shadow }),
        1 => (0..9_u32, 1..4_u32).prop_map(|(clusters, refusal)| Op::ReclaimFull { clusters, refusal }),
        3 => (any::<usize>(), 0..=MAX_ORDER, 1..300_usize, folio(), 1..4_u32)
            .prop_map(|(shard, order, runs, folio, refusal)| Op::AllocReclaiming { shard, order, runs, folio, refusal }),
        1 => (pick(), folio()).prop_map(|(pick, folio)| Op::CacheReplace { pick, folio }),
        1 => (pick(), any::<bool>()).prop_map(|(pick, zero)| Op::SetZero { pick, zero }),
        4 => (pick(), 1..600_usize).prop_map(|(pick, slots)| Op::FreeMany { pick, slots }),
        2 => (pick(), 0..=MAX_ORDER).prop_map(|(pick, order)| Op::FreeRun { pick, order }),
        4 => (pick(), 1..1200_usize, any::<bool>())
            .prop_map(|(pick, slots, is_backwards)| Op::FreeAll { pick, slots, is_backwards }),
        1 => any::<u32>().prop_map(|slot| Op::MarkBad { slot }),
        1 => pick().prop_map(|pick| Op::Retire { pick }),
        1 => any::<u32>().prop_map(|slot| Op::Look { slot }),
        1 => (1..5_usize).prop_map(|clusters| Op::Discard { clusters }),
        1 => (0..3_usize, 1..9_usize).prop_map(|(keep, clusters)| Op::ReleaseTables { keep, clusters }),
        2 => (0..=MAX_ORDER, 1..20_usize, 1..300_usize, 1..9_u32)
            .prop_map(|(order, runs, moves, refusal)| Op::Compact { order, runs, moves, refusal }),
        1 => (1..2 * CLUSTER_SLOTS).prop_map(|slots| Op::Grow { slots }),
        1 => (0..5_u32).prop_map(|clusters| Op::BeginShrink { clusters }),
        1 => any::<bool>().prop_map(|gives_up| Op::EndShrink { gives_up }),
    ]
}

/// The most that devices here are made to grow.
const SLOTS_MAX: u32 = 8 * CLUSTER_SLOTS;

struct Pair {
    device: TestDevice,
    model: Vec<Model>,
    /// Slots from here on are being given up.
    new_end: Option<usize>,
}

/// Moves what is stored and not cached, but now and then not.
struct Mover<'a> {
    device: &'a SwapDevice,
    model: &'a mut [Model],
    refusal: u32,
    turns: u32,
}

impl Relocate for Mover<'_> {
    fn relocate(&mut self, from: Slot, to: Slot) -> bool {
        self.turns += 1;
        assert_eq!(self.model[to.0 as usize], Model::Free);
        if self.model[from.0 as usize].is_cache_only() {
            // Not moved, but out of the way.
            Pair::open(self.device, self.model, from);
            return false;
        }
        let Model::Used { count, cached: None, shadow, zero, .. } = self.model[from.0 as usize] else { return false };
        if self.turns.is_multiple_of(self.refusal) {
            return false;
        }
        let folio = Folio::new(7).unwrap();
        assert_eq!(self.device.cache_add(from, folio), Ok(Stored { count, shadow, zero }));
        self.device.set_zero(to, zero);
        (0..count).for_each(|_| self.device.dup(to).unwrap());
        assert!(!self.device.cache_del(to, shadow));
        (0..count).for_each(|_| assert!(!self.device.put(from)));
        assert!(self.device.cache_del(from, Shadow(0)));
        self.model.swap(from.0 as usize, to.0 as usize);
        true
    }
}

impl Pair {
    fn new(nr_slots: u32, shards: usize, placement: Placement, discards: bool) -> Self {
        let options = Options { nr_slots, nr_slots_max: SLOTS_MAX, shards, placement, discards };
        let model = vec![Model::Free; nr_slots as usize];
        Self { device: TestDevice::with(&options), model, new_end: None }
    }

    fn discard(&mut self, clusters: usize) {
        let model = &self.model;
        self.device.discard(clusters, |run| {
            let end = (run.end.0 as usize).min(model.len());
            assert!(model[run.start.0 as usize..end].iter().all(|slot| !matches!(slot, Model::Used { .. })));
        });
    }

    fn release_tables(&mut self, keep: usize, clusters: usize) {
        let before = self.device.nr_tables();
        let (device, model) = (&self.device, &self.model);
        let mut runs = 0;
        let released = device.release_tables(keep, clusters, |run| {
            runs += (run.end.0 - run.start.0) as usize;
            let slots = run.start.first_slot().0 as usize..run.end.first_slot().0 as usize;
            assert!(model[slots.start..slots.end.min(model.len())].iter().all(|slot| *slot == Model::Free));
            zero_words(device, run);
        });
        assert_eq!((released, before - self.device.nr_tables()), (runs, runs as u32));
        assert!(released <= clusters);
    }

    fn compact(&mut self, order: Order, runs: usize, moves: usize, refusal: u32) {
        let (used, before) = (self.device.nr_used(), self.nr_cache_only());
        let mut mover = Mover { device: &self.device, model: &mut self.model, refusal, turns: 0 };
        let freed = self.device.compact(order, runs, moves, Folio::new(3).unwrap(), &mut mover);
        assert!(mover.turns as usize <= moves && freed <= runs);
        assert_eq!(used - self.device.nr_used(), before - self.nr_cache_only());
    }

    fn nr_cache_only(&self) -> u32 {
        self.model.iter().filter(|slot| slot.is_cache_only()).count() as u32
    }

    /// Frees a cache-only slot.
    fn open(device: &SwapDevice, model: &mut [Model], slot: Slot) {
        let Model::Used { count: 0, cached: Some(folio), locked: false, zero, .. } = model[slot.0 as usize] else {
            panic!("{slot:?} is not cache-only");
        };
        let resident = Resident { count: 0, folio, zero };
        assert_eq!(device.lock(slot, Folio::new(9).unwrap()), Ok(Locked::Resident(resident)));
        assert!(device.cache_del(slot, Shadow(0)));
        model[slot.0 as usize] = Model::Free;
    }

    /// What to do with each cache-only slot: free it, but now and then not.
    fn reclaimer<'a>(
        device: &'a SwapDevice,
        model: &'a mut [Model],
        refusal: u32,
    ) -> impl FnMut(Slot, Folio) -> bool + 'a {
        let mut turns = 0_u32;
        move |slot, folio| {
            assert!(matches!(model[slot.0 as usize], Model::Used { cached: Some(now), .. } if now == folio));
            turns += 1;
            let frees = refusal == 1 || !turns.is_multiple_of(refusal);
            if frees {
                Self::open(device, model, slot);
            }
            frees
        }
    }

    fn reclaim_full(&mut self, clusters: u32, refusal: u32) {
        let (used, full) = (self.device.nr_used(), self.device.validate().unwrap().clusters_full);
        let freed = self.device.reclaim_full(clusters, Self::reclaimer(&self.device, &mut self.model, refusal));
        assert_eq!(used - freed, self.device.nr_used());
        // All of them were looked at: what is left is elsewhere.
        if clusters >= full && refusal == 1 {
            let online = &self.model[..self.new_end.unwrap_or(self.model.len())];
            let is_full = |cluster: &&[Model]| !cluster.contains(&Model::Free);
            let left = online.chunks(CLUSTER_SLOTS as usize).filter(is_full).flatten();
            let left = left.filter(|slot| slot.is_cache_only()).count();
            // A cluster without a free slot may be current, and so on no list.
            assert!(left == 0 || self.device.validate().unwrap().clusters_current > 0);
        }
    }

    fn alloc_reclaiming(&mut self, shard: Shard, order: Order, runs: usize, folio: Folio, refusal: u32) {
        let mut out = vec![Slot(u32::MAX); runs];
        let reclaim = Self::reclaimer(&self.device, &mut self.model, refusal);
        let found = self.device.alloc_reclaiming(shard, order, folio, &mut out, reclaim);
        self.took(order, folio, &out[..found]);
        if found < runs && refusal == 1 && self.device.is_half_full() {
            let as_free = |slot: &Model| if slot.is_cache_only() { Model::Free } else { *slot };
            let reclaimable: Vec<Model> = self.model.iter().map(as_free).collect();
            assert!(!self.has_room(&reclaimable, order), "{} runs of {order:?} missing", runs - found);
        }
    }

    fn lock(&mut self, slot: Slot, folio: Folio) {
        let Model::Used { count, cached, locked, shadow, zero } = &mut self.model[slot.0 as usize] else { return };
        let (count, shadow, zero) = (*count, *shadow, *zero);
        let expected = match *cached {
            Some(_) if *locked => Err(LockError::Locked),
            Some(folio) => Ok(Locked::Resident(Resident { count, folio, zero })),
            None => Ok(Locked::Stored(Stored { count, shadow, zero })),
        };
        assert_eq!(self.device.lock(slot, folio), expected);
        cached.get_or_insert(folio);
        *locked = true;
    }

    fn unlock(&mut self, slot: Slot, settles: bool) {
        let Model::Used { count, locked: locked @ true, .. } = &mut self.model[slot.0 as usize] else { return };
        *locked = false;
        if settles && *count > 0 {
            *count -= 1;
            self.device.settle(slot);
        } else {
            self.device.unlock(slot);
        }
    }

    fn evict(&mut self, slot: Slot, new: Shadow) {
        let Model::Used { count, cached, locked, shadow, .. } = &mut self.model[slot.0 as usize] else { return };
        let expected = match cached {
            None => Err(EvictError::NotCached),
            Some(_) if *locked => Err(EvictError::Locked),
            Some(_) => Ok(()),
        };
        assert_eq!(self.device.evict(slot, new), expected);
        if expected.is_ok() {
            (*count, *cached, *shadow) = (*count + 1, None, new);
        }
    }

    fn grow(&mut self, slots: u32) {
        let nr_slots = self.model.len() as u32 + slots;
        let expected = match self.new_end {
            Some(_) => Err(ResizeError::Busy),
            None if nr_slots > SLOTS_MAX => {
                Err(ResizeError::Size { nr_slots: self.model.len() as u32, nr_slots_max: SLOTS_MAX })
            }
            None => Ok(()),
        };
        assert_eq!(self.device.grow(nr_slots), expected);
        if expected.is_ok() {
            self.model.resize(nr_slots as usize, Model::Free);
        }
    }

    fn begin_shrink(&mut self, clusters: u32) {
        let nr_slots = clusters * CLUSTER_SLOTS;
        let now = self.model.len() as u32;
        let expected = match self.new_end {
            Some(_) => Err(ResizeError::Busy),
            None if nr_slots >= now => Err(ResizeError::Size { nr_slots: now, nr_slots_max: SLOTS_MAX }),
            None => Ok(()),
        };
        assert_eq!(self.device.begin_shrink(nr_slots), expected);
        if expected.is_ok() {
            self.new_end = Some(nr_slots as usize);
        }
    }

    fn end_shrink(&mut self, gives_up: bool) {
        let Some(end) = self.new_end else {
            assert_eq!(self.device.end_shrink(), Err(ResizeError::NotShrinking));
            assert_eq!(self.device.cancel_shrink(), Err(ResizeError::NotShrinking));
            return;
        };
        if gives_up {
            self.new_end = None;
            return assert_eq!(self.device.cancel_shrink(), Ok(()));
        }
        let in_use = self.model[end..].iter().filter(|slot| matches!(slot, Model::Used { .. })).count() as u32;
        if in_use > 0 {
            assert_eq!(self.device.end_shrink(), Err(ResizeError::InUse { slots: in_use }));
        }
        for _ in 0..in_use {
            let slot = self.device.next_used(Slot(end as u32)).unwrap();
            assert!(matches!(self.model[slot.0 as usize], Model::Used { .. }));
            self.free(slot);
        }
        assert_eq!(self.device.next_used(Slot(end as u32)), None);
        let lost = self.device.end_shrink().unwrap();
        assert_eq!(lost.start.first_slot().0 as usize, end);
        assert_eq!(self.device.nr_slots() as usize, end);
        self.model.truncate(end);
        self.new_end = None;
    }

    fn apply(&mut self, op: &Op) {
        match *op {
            Op::Alloc { shard, order, runs, folio } => {
                self.alloc(Shard(shard), Order::new(order).unwrap(), runs, Folio::new(folio).unwrap());
            }
            Op::AllocTouched { shard, order, runs, folio } => {
                self.alloc_touched(Shard(shard), Order::new(order).unwrap(), runs, Folio::new(folio).unwrap());
            }
            Op::AllocWanted { every, slots, folio } => self.alloc_wanted(every, slots, Folio::new(folio).unwrap()),
            Op::Drain { looks, used_max, moves } => self.drain(looks, used_max, moves),
            Op::Dup { pick, times } => {
                let Some(slot) = self.pick(pick) else { return };
                (0..times).for_each(|_| self.dup(slot));
            }
            Op::Put { pick, times } => {
                let Some(slot) = self.pick(pick) else { return };
                (0..times).for_each(|_| self.put(slot));
            }
            Op::CacheAdd { pick, folio } => {
                let Some(slot) = self.pick(pick) else { return };
                self.cache_add(slot, Folio::new(folio).unwrap());
            }
            Op::CacheDel { pick, shadow } => {
                let Some(slot) = self.pick(pick) else { return };
                self.cache_del(slot, Shadow(shadow));
            }
            Op::Lock { pick, folio } => {
                let Some(slot) = self.pick(pick) else { return };
                self.lock(slot, Folio::new(folio).unwrap());
            }
            Op::Unlock { pick, settles } => {
                let Some(slot) = self.pick(pick) else { return };
                self.unlock(slot, settles);
            }
            Op::UnlockMany { pick, slots } => {
                let Some(first) = self.pick(pick) else { return };
                let end = (first.0 as usize + slots).min(self.model.len());
                (first.0..end as u32).for_each(|slot| self.unlock(Slot(slot), false));
            }
            Op::Evict { pick, shadow } => {
                let Some(slot) = self.pick(pick) else { return };
                self.evict(slot, Shadow(shadow));
            }
            Op::ReclaimFull { clusters, refusal } => self.reclaim_full(clusters, refusal),
            Op::AllocReclaiming { shard, order, runs, folio, refusal } => {
                let (order, folio) = (Order::new(order).unwrap(), Folio::new(folio).unwrap());
                self.alloc_reclaiming(Shard(shard), order, runs, folio, refusal);
            }
            Op::CacheReplace { pick, folio } => {
                let Some(slot) = self.pick(pick) else { return };
                let new = Folio::new(folio).unwrap();
                let Model::Used { cached, locked, .. } = &mut self.model[slot.0 as usize] else { unreachable!() };
                assert_eq!(self.device.cache_replace(slot, new), *locked);
                if *locked {
                    *cached = Some(new);
                }
            }
            Op::SetZero { pick, zero: value } => {
                let Some(slot) = self.pick(pick) else { return };
                self.device.set_zero(slot, value);
                let Model::Used { zero, .. } = &mut self.model[slot.0 as usize] else { unreachable!() };
                *zero = value;
            }
            Op::FreeMany { pick, slots } => {
                let Some(first) = self.pick(pick) else { return };
                let end = (first.0 as usize + slots).min(self.model.len());
                for slot in (first.0..end as u32).map(Slot) {
                    self.free(slot);
                }
            }
            Op::FreeRun { pick, order } => {
                let Some(slot) = self.pick(pick) else { return };
                self.free_run(slot, Order::new(order).unwrap());
            }
            Op::FreeAll { pick, slots, is_backwards } => {
                let Some(first) = self.pick(pick) else { return };
                self.free_all(first, slots, is_backwards);
            }
            Op::Discard { clusters } => self.discard(clusters),
            Op::ReleaseTables { keep, clusters } => self.release_tables(keep, clusters),
            Op::Compact { order, runs, moves, refusal } => {
                self.compact(Order::new(order).unwrap(), runs, moves, refusal);
            }
            Op::Grow { slots } => self.grow(slots),
            Op::BeginShrink { clusters } => self.begin_shrink(clusters),
            Op::EndShrink { gives_up } => self.end_shrink(gives_up),
            Op::MarkBad { .. } | Op::Look { .. } if self.model.is_empty() => {}
            Op::MarkBad { slot } => {
                let slot = slot as usize % self.model.len();
                let was_free = self.model[slot] == Model::Free;
                let is_offline = self.new_end.is_some_and(|end| slot >= end);
                let marked = self.device.mark_bad(Slot(slot as u32));
                // A cluster that was never used has no state to say that it is given up.
                assert!(marked == was_free || is_offline && !marked);
                if marked {
                    self.model[slot] = Model::Bad;
                }
            }
            Op::Retire { pick } => {
                let Some(slot) = self.pick_locked(pick) else { return };
                self.device.retire(slot);
                self.model[slot.0 as usize] = Model::Bad;
            }
            Op::Look { slot } => {
                let slot = slot as usize % self.model.len();
                assert_eq!(self.device.get(Slot(slot as u32)), self.model[slot].entry());
                let refused = match self.model[slot] {
                    Model::Free => (DupError::Free, CacheAddError::Free, LockError::Free),
                    Model::Bad => (DupError::Bad, CacheAddError::Bad, LockError::Bad),
                    Model::Used { .. } => return,
                };
                let slot = Slot(slot as u32);
                assert_eq!(self.device.dup(slot), Err(refused.0));
                assert_eq!(self.device.cache_add(slot, Folio::new(0).unwrap()), Err(refused.1));
                assert_eq!(self.device.lock(slot, Folio::new(0).unwrap()), Err(refused.2));
                assert_eq!(self.device.evict(slot, Shadow(0)), Err(EvictError::NotCached));
                assert!(!self.device.cache_replace(slot, Folio::new(0).unwrap()));
            }
        }
    }

    /// Some slot in use.
    fn pick(&self, pick: usize) -> Option<Slot> {
        if self.model.is_empty() {
            return None;
        }
        let start = pick % self.model.len();
        let in_use = |slot: &usize| matches!(self.model[*slot], Model::Used { .. });
        (start..self.model.len()).chain(0..start).find(in_use).map(|slot| Slot(slot as u32))
    }

    /// A slot that is locked and that nobody refers to.
    fn pick_locked(&self, pick: usize) -> Option<Slot> {
        let start = pick % self.model.len().max(1);
        let is_alone = |slot: &usize| matches!(self.model[*slot], Model::Used { count: 0, locked: true, .. });
        (start..self.model.len()).chain(0..start).find(is_alone).map(|slot| Slot(slot as u32))
    }

    fn alloc(&mut self, shard: Shard, order: Order, runs: usize, folio: Folio) {
        let mut out = vec![Slot(u32::MAX); runs];
        let found = self.device.alloc(shard, order, folio, &mut out);
        self.took(order, folio, &out[..found]);
        assert!(out[found..].iter().all(|slot| *slot == Slot(u32::MAX)));
        if found < runs {
            assert!(!self.has_room(&self.model, order), "{} runs of {order:?} missing", runs - found);
        }
    }

    fn is_all_touched(&self) -> bool {
        self.device.nr_tables() as usize == self.model.len().div_ceil(CLUSTER_SLOTS as usize)
    }

    fn alloc_touched(&mut self, shard: Shard, order: Order, runs: usize, folio: Folio) {
        let (mut out, before) = (vec![Slot(u32::MAX); runs], self.device.nr_tables());
        let found = self.device.alloc_touched(shard, order, folio, &mut out);
        self.took(order, folio, &out[..found]);
        assert_eq!(self.device.nr_tables(), before);
        if found < runs && self.is_all_touched() {
            assert!(!self.has_room(&self.model, order), "{} runs of {order:?} missing", runs - found);
        }
    }

    fn alloc_wanted(&mut self, every: u32, slots: usize, folio: Folio) {
        let (mut out, before) = (vec![Slot(u32::MAX); slots], self.device.nr_tables());
        let found = self.device.alloc_wanted(folio, &mut out, |slot| slot.0.is_multiple_of(every));
        self.took(Order::ZERO, folio, &out[..found]);
        assert!(out[..found].iter().all(|slot| slot.0.is_multiple_of(every)));
        assert_eq!(self.device.nr_tables(), before);
        if found < slots && self.is_all_touched() {
            let online = &self.model[..self.new_end.unwrap_or(self.model.len())];
            assert!(!online.iter().step_by(every as usize).any(|slot| *slot == Model::Free));
        }
    }

    /// Moves what is stored and not cached out of a cluster, as far as there are gaps elsewhere.
    fn drain(&mut self, looks: u32, used_max: u32, moves: usize) {
        let used = self.device.nr_used();
        let mut mover = Mover { device: &self.device, model: &mut self.model, refusal: 3, turns: 0 };
        self.device.drain_sparsest(looks, used_max, |slots| {
            let in_use = |slot: &Model| matches!(slot, Model::Used { .. });
            let range = slots.start.0 as usize..slots.end.0 as usize;
            let nr_used = mover.model[range.clone()].iter().filter(|slot| in_use(slot)).count();
            assert!((1..=used_max as usize).contains(&nr_used));
            let stored = |slot: &Model| matches!(slot, Model::Used { cached: None, .. });
            let from: Vec<usize> = range.filter(|slot| stored(&mover.model[*slot])).take(moves).collect();
            for from in from {
                let (mut to, folio) = ([Slot(0)], Folio::new(3).unwrap());
                if mover.device.alloc_touched(Shard(0), Order::ZERO, folio, &mut to) == 0 {
                    break;
                }
                assert_ne!(to[0].cluster(), slots.start.cluster());
                if !mover.relocate(Slot(from as u32), to[0]) {
                    assert!(mover.device.cache_del(to[0], Shadow(0)));
                }
            }
        });
        assert_eq!(self.device.nr_used(), used);
    }

    fn took(&mut self, order: Order, folio: Folio, out: &[Slot]) {
        for first in out {
            assert!(first.0.is_multiple_of(order.slots()));
            for slot in first.0..first.0 + order.slots() {
                assert_eq!(self.model[slot as usize], Model::Free);
                self.model[slot as usize] =
                    Model::Used { count: 0, cached: Some(folio), locked: true, shadow: Shadow(0), zero: false };
            }
        }
    }

    /// Whether any slot is free; for higher orders, whether a cluster without used slots has a run.
    fn has_room(&self, model: &[Model], order: Order) -> bool {
        let free = |slots: &[Model]| slots.iter().all(|slot| *slot == Model::Free);
        let online = &model[..self.new_end.unwrap_or(model.len())];
        online.chunks(CLUSTER_SLOTS as usize).any(|cluster| {
            let empty = !cluster.iter().any(|slot| matches!(slot, Model::Used { .. }));
            (order == Order::ZERO || empty) && cluster.chunks_exact(order.slots() as usize).any(free)
        })
    }

    fn dup(&mut self, slot: Slot) {
        let Model::Used { count, .. } = &mut self.model[slot.0 as usize] else { return };
        assert_eq!(self.device.dup(slot), Ok(()));
        *count += 1;
    }

    fn put(&mut self, slot: Slot) {
        let model = &mut self.model[slot.0 as usize];
        let Model::Used { count: count @ 1.., cached, .. } = model else { return };
        *count -= 1;
        let frees = *count == 0 && cached.is_none();
        assert_eq!(self.device.put(slot), frees);
        if frees {
            *model = Model::Free;
        }
    }

    fn cache_add(&mut self, slot: Slot, folio: Folio) {
        let Model::Used { count, cached, locked, shadow, zero } = &mut self.model[slot.0 as usize] else { return };
        let expected = match cached {
            Some(_) if *locked => Err(CacheAddError::Locked),
            Some(folio) => Err(CacheAddError::Resident(*folio)),
            None => Ok(Stored { count: *count, shadow: *shadow, zero: *zero }),
        };
        assert_eq!(self.device.cache_add(slot, folio), expected);
        if cached.is_none() {
            (*cached, *locked) = (Some(folio), true);
        }
    }

    fn cache_del(&mut self, slot: Slot, new: Shadow) {
        let model = &mut self.model[slot.0 as usize];
        let Model::Used { count, cached, locked: locked @ true, shadow, .. } = model else { return };
        (*cached, *locked, *shadow) = (None, false, new);
        let frees = *count == 0;
        assert_eq!(self.device.cache_del(slot, new), frees);
        if frees {
            *model = Model::Free;
        }
    }

    /// Whether a slot is the caller's alone, once the caller gives up its own reference.
    fn is_last(&self, slot: Slot) -> bool {
        matches!(self.model[slot.0 as usize], Model::Used { count: 0..=1, locked: true, .. })
    }

    /// The run that a slot is in, if nothing else needs any of it.
    fn free_run(&mut self, slot: Slot, order: Order) {
        let first = slot.0 / order.slots() * order.slots();
        let slots = first..first + order.slots();
        if slots.end as usize > self.model.len() || !slots.clone().all(|slot| self.is_last(Slot(slot))) {
            return;
        }
        self.device.free_run(Slot(first), order);
        slots.for_each(|slot| self.model[slot as usize] = Model::Free);
    }

    /// Of some slots those that nothing else needs.
    fn free_all(&mut self, first: Slot, slots: usize, is_backwards: bool) {
        let end = (first.0 as usize + slots).min(self.model.len()) as u32;
        let mut slots: Vec<Slot> = (first.0..end).map(Slot).filter(|slot| self.is_last(*slot)).collect();
        if is_backwards {
            slots.reverse();
        }
        self.device.free_all(&slots);
        slots.iter().for_each(|slot| self.model[slot.0 as usize] = Model::Free);
    }

    fn free(&mut self, slot: Slot) {
        let Model::Used { count, cached, .. } = self.model[slot.0 as usize] else { return };
        (0..count).for_each(|_| self.put(slot));
        if cached.is_some() {
            self.lock(slot, Folio::new(5).unwrap());
            self.cache_del(slot, Shadow(1));
        }
        assert_eq!(self.model[slot.0 as usize], Model::Free);
    }

    fn check(&self) -> Summary {
        let summary = self.device.validate().unwrap();
        let total = |of: fn(&Model) -> bool| self.model.iter().filter(|slot| of(slot)).count() as u32;
        assert_eq!(summary.slots_used, total(|slot| matches!(slot, Model::Used { .. })));
        assert_eq!(summary.slots_cached, total(|slot| matches!(slot, Model::Used { cached: Some(_), .. })));
        assert_eq!(
            summary.slots_resident,
            total(|slot| matches!(slot, Model::Used { cached: Some(_), locked: false, .. }))
        );
        assert_eq!(summary.slots_cache_only, self.nr_cache_only());
        assert_eq!(summary.slots_bad, total(|slot| *slot == Model::Bad));
        for (slot, model) in self.model.iter().enumerate() {
            assert_eq!(self.device.get(Slot(slot as u32)), model.entry());
        }
        summary
    }
}

fn placement() -> impl Strategy<Value = Placement> {
    prop_oneof![Just(Placement::Sharded), Just(Placement::Sequential)]
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if cfg!(miri) { 2 } else { 2000 },
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn a_device_does_what_an_array_would(
        nr_slots in 1..5 * CLUSTER_SLOTS,
        shards in 1..4_usize,
        placement in placement(),
        discards in any::<bool>(),
        ops in prop::collection::vec(op(), 1..if cfg!(miri) { 30 } else { 300 }),
    ) {
        let mut pair = Pair::new(nr_slots, shards, placement, discards);
        for op in &ops {
            pair.apply(op);
        }
        pair.check();
    }

    #[test]
    fn slots_freed_together_leave_what_slots_freed_one_by_one_leave(
        nr_slots in 1..4 * CLUSTER_SLOTS,
        placement in placement(),
        discards in any::<bool>(),
        used in 1..4 * CLUSTER_SLOTS as usize,
        calls in prop::collection::vec(prop::collection::vec(any::<prop::sample::Index>(), 1..200), 1..6),
    ) {
        let options = Options { discards, ..Options::fixed(nr_slots, 1, placement) };
        let devices = [TestDevice::with(&options), TestDevice::with(&options)];
        let folio = Folio::new(1).unwrap();
        let mut left = devices.each_ref().map(|device| {
            let mut slots = vec![Slot(0); used];
            let n = device.alloc(Shard(0), Order::ZERO, folio, &mut slots);
            slots.truncate(n);
            // What every third of them has stays stored until it is freed.
            slots.iter().step_by(3).for_each(|slot| device.dup(*slot).unwrap());
            slots
        });
        for call in calls {
            let n = call.len().min(left[0].len());
            for (device, left) in devices.iter().zip(&mut left) {
                let mut slots: Vec<Slot> = call[..n].iter().map(|at| left.swap_remove(at.index(left.len()))).collect();
                slots.sort_unstable();
                if std::ptr::eq(device, &devices[0]) {
                    device.free_all(&slots);
                } else {
                    for slot in slots {
                        if matches!(device.get(slot), TableEntry::Cached { count: 1, .. }) {
                            prop_assert!(!device.put(slot));
                        }
                        prop_assert!(device.cache_del(slot, Shadow(0)));
                    }
                }
            }
        }
        let [together, single] = &devices;
        prop_assert_eq!(together.validate(), single.validate());
        for slot in (0..nr_slots).map(Slot) {
            prop_assert_eq!(together.get(slot), single.get(slot));
        }
        let rest = devices.each_ref().map(|device| {
            let mut rest = vec![Slot(0); nr_slots as usize];
            let n = device.alloc(Shard(0), Order::ZERO, folio, &mut rest);
            rest.truncate(n);
            rest
        });
        prop_assert_eq!(&rest[0], &rest[1]);
    }

    #[test]
    fn whatever_happened_a_device_can_be_emptied_and_filled_again(
        nr_slots in 1..5 * CLUSTER_SLOTS,
        placement in placement(),
        ops in prop::collection::vec(op(), 1..if cfg!(miri) { 30 } else { 100 }),
    ) {
        let mut pair = Pair::new(nr_slots, 2, placement, false);
        for op in &ops {
            pair.apply(op);
        }
        if pair.new_end.is_some() {
            pair.end_shrink(true);
        }
        let nr_slots = pair.model.len() as u32;
        for slot in 0..nr_slots {
            pair.free(Slot(slot));
        }
        let summary = pair.check();
        prop_assert_eq!(summary.slots_used, 0);
        pair.alloc(Shard(1), Order::ZERO, nr_slots as usize, Folio::new(0).unwrap());
        prop_assert_eq!(pair.check().slots_used, nr_slots - summary.slots_bad);
    }
}
