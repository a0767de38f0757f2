//! Random operations on a device, against a model that is nothing but an array.
#![cfg(not(any(loom, shuttle)))]

mod common;

use common::TestDevice;
use ebb_slots::*;
use proptest::prelude::*;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Model {
    Free,
    Used { count: u32, cached: Option<Folio>, shadow: Shadow, zero: bool },
    Bad,
}

impl Model {
    fn entry(self) -> TableEntry {
        match self {
            Self::Free => TableEntry::Free,
            Self::Bad => TableEntry::Bad,
            Self::Used { count, cached: Some(folio), zero, .. } => TableEntry::Cached { count, folio, zero },
            Self::Used { count, cached: None, shadow, zero } => TableEntry::Stored(Stored { count, shadow, zero }),
        }
    }
}

#[derive(Clone, Debug)]
enum Op {
    Alloc { shard: usize, order: u8, runs: usize, folio: u64 },
    Dup { pick: usize, times: usize },
    Put { pick: usize, times: usize },
    CacheAdd { pick: usize, folio: u64 },
    CacheDel { pick: usize, shadow: u32 },
    CacheReplace { pick: usize, folio: u64 },
    SetZero { pick: usize, zero: bool },
    FreeMany { pick: usize, slots: usize },
    MarkBad { slot: u32 },
    Look { slot: u32 },
}

fn op() -> impl Strategy<Value = Op> {
    let pick = any::<usize>;
    let folio = || 0..1_u64 << Folio::BITS;
    prop_oneof![
        4 => (any::<usize>(), 0..=MAX_ORDER, 1..6_usize, folio())
            .prop_map(|(shard, order, runs, folio)| Op::Alloc { shard, order, runs, folio }),
        4 => (any::<usize>(), 1..200_usize, folio())
            .prop_map(|(shard, runs, folio)| Op::Alloc { shard, order: 0, runs, folio }),
        2 => (pick(), 1..40_usize).prop_map(|(pick, times)| Op::Dup { pick, times }),
        2 => (pick(), 1..40_usize).prop_map(|(pick, times)| Op::Put { pick, times }),
        2 => (pick(), folio()).prop_map(|(pick, folio)| Op::CacheAdd { pick, folio }),
        2 => (pick(), any::<u32>()).prop_map(|(pick, shadow)| Op::CacheDel { pick, shadow }),
        1 => (pick(), folio()).prop_map(|(pick, folio)| Op::CacheReplace { pick, folio }),
        1 => (pick(), any::<bool>()).prop_map(|(pick, zero)| Op::SetZero { pick, zero }),
        4 => (pick(), 1..600_usize).prop_map(|(pick, slots)| Op::FreeMany { pick, slots }),
        1 => any::<u32>().prop_map(|slot| Op::MarkBad { slot }),
        1 => any::<u32>().prop_map(|slot| Op::Look { slot }),
    ]
}

struct Pair {
    device: TestDevice,
    model: Vec<Model>,
}

impl Pair {
    fn new(nr_slots: u32, shards: usize, placement: Placement) -> Self {
        Self { device: TestDevice::new(nr_slots, shards, placement), model: vec![Model::Free; nr_slots as usize] }
    }

    fn apply(&mut self, op: &Op) {
        match *op {
            Op::Alloc { shard, order, runs, folio } => {
                self.alloc(Shard(shard), Order::new(order).unwrap(), runs, Folio::new(folio).unwrap());
            }
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
            Op::CacheReplace { pick, folio } => {
                let Some(slot) = self.pick(pick) else { return };
                let new = Folio::new(folio).unwrap();
                let Model::Used { cached, .. } = &mut self.model[slot.0 as usize] else { unreachable!() };
                assert_eq!(self.device.cache_replace(slot, new), cached.is_some());
                *cached = cached.map(|_| new);
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
            Op::MarkBad { slot } => {
                let slot = slot as usize % self.model.len();
                let was_free = self.model[slot] == Model::Free;
                assert_eq!(self.device.mark_bad(Slot(slot as u32)), was_free);
                if was_free {
                    self.model[slot] = Model::Bad;
                }
            }
            Op::Look { slot } => {
                let slot = slot as usize % self.model.len();
                assert_eq!(self.device.get(Slot(slot as u32)), self.model[slot].entry());
                let refused = match self.model[slot] {
                    Model::Free => (DupError::Free, CacheAddError::Free),
                    Model::Bad => (DupError::Bad, CacheAddError::Bad),
                    Model::Used { .. } => return,
                };
                let slot = Slot(slot as u32);
                assert_eq!(self.device.dup(slot), Err(refused.0));
                assert_eq!(self.device.cache_add(slot, Folio::new(0).unwrap()), Err(refused.1));
                assert!(!self.device.cache_replace(slot, Folio::new(0).unwrap()));
            }
        }
    }

    /// Some slot in use.
    fn pick(&self, pick: usize) -> Option<Slot> {
        let start = pick % self.model.len();
        let in_use = |slot: &usize| matches!(self.model[*slot], Model::Used { .. });
        (start..self.model.len()).chain(0..start).find(in_use).map(|slot| Slot(slot as u32))
    }

    fn alloc(&mut self, shard: Shard, order: Order, runs: usize, folio: Folio) {
        let mut out = vec![Slot(u32::MAX); runs];
        let found = self.device.alloc(shard, order, folio, &mut out);
        for first in &out[..found] {
            assert!(first.0.is_multiple_of(order.slots()));
            for slot in first.0..first.0 + order.slots() {
                assert_eq!(self.model[slot as usize], Model::Free);
                self.model[slot as usize] =
                    Model::Used { count: 0, cached: Some(folio), shadow: Shadow(0), zero: false };
            }
        }
        assert!(out[found..].iter().all(|slot| *slot == Slot(u32::MAX)));
        if found < runs {
            assert!(!self.has_room(order), "{} runs of {order:?} missing", runs - found);
        }
    }

    /// Whether any slot is free; for higher orders, whether a cluster without used slots has a run.
    fn has_room(&self, order: Order) -> bool {
        let free = |slots: &[Model]| slots.iter().all(|slot| *slot == Model::Free);
        self.model.chunks(CLUSTER_SLOTS as usize).any(|cluster| {
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
        let Model::Used { count, cached, shadow, zero } = &mut self.model[slot.0 as usize] else { return };
        let expected = match cached {
            Some(_) => Err(CacheAddError::Cached),
            None => Ok(Stored { count: *count, shadow: *shadow, zero: *zero }),
        };
        assert_eq!(self.device.cache_add(slot, folio), expected);
        cached.get_or_insert(folio);
    }

    fn cache_del(&mut self, slot: Slot, new: Shadow) {
        let model = &mut self.model[slot.0 as usize];
        let Model::Used { count, cached: cached @ Some(_), shadow, .. } = model else { return };
        (*cached, *shadow) = (None, new);
        let frees = *count == 0;
        assert_eq!(self.device.cache_del(slot, new), frees);
        if frees {
            *model = Model::Free;
        }
    }

    fn free(&mut self, slot: Slot) {
        let Model::Used { count, cached, .. } = self.model[slot.0 as usize] else { return };
        (0..count).for_each(|_| self.put(slot));
        if cached.is_some() {
            self.cache_del(slot, Shadow(1));
        }
        assert_eq!(self.model[slot.0 as usize], Model::Free);
    }

    fn check(&self) -> Summary {
        let summary = self.device.validate().unwrap();
        let total = |of: fn(&Model) -> bool| self.model.iter().filter(|slot| of(slot)).count() as u32;
        assert_eq!(summary.slots_used, total(|slot| matches!(slot, Model::Used { .. })));
        assert_eq!(summary.slots_cached, total(|slot| matches!(slot, Model::Used { cached: Some(_), .. })));
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
        cases: if cfg!(miri) { 2 } else { 400 },
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn a_device_does_what_an_array_would(
        nr_slots in 1..5 * CLUSTER_SLOTS,
        shards in 1..4_usize,
        placement in placement(),
        ops in prop::collection::vec(op(), 1..if cfg!(miri) { 30 } else { 300 }),
    ) {
        let mut pair = Pair::new(nr_slots, shards, placement);
        for op in &ops {
            pair.apply(op);
        }
        pair.check();
    }

    #[test]
    fn whatever_happened_a_device_can_be_emptied_and_filled_again(
        nr_slots in 1..5 * CLUSTER_SLOTS,
        placement in placement(),
        ops in prop::collection::vec(op(), 1..if cfg!(miri) { 30 } else { 100 }),
    ) {
        let mut pair = Pair::new(nr_slots, 2, placement);
        for op in &ops {
            pair.apply(op);
        }
        for slot in 0..nr_slots {
            pair.free(Slot(slot));
        }
        let summary = pair.check();
        prop_assert_eq!(summary.slots_used, 0);
        pair.alloc(Shard(1), Order::ZERO, nr_slots as usize, Folio::new(0).unwrap());
        prop_assert_eq!(pair.check().slots_used, nr_slots - summary.slots_bad);
    }
}
