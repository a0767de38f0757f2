//! How a device gives slots out and takes them back, seen from outside.
#![cfg(not(any(loom, shuttle)))]

mod common;

use common::TestDevice;
use ebb_slots::*;

const FOLIO: Folio = Folio::new(0x12_3456_789a).unwrap();

fn order(order: u8) -> Order {
    Order::new(order).unwrap()
}

fn alloc(device: &SwapDevice, shard: usize, order: Order, runs: usize) -> Vec<Slot> {
    let mut out = vec![Slot(0); runs];
    let found = device.alloc(Shard(shard), order, FOLIO, &mut out);
    out.truncate(found);
    out
}

fn free(device: &SwapDevice, slots: impl IntoIterator<Item = Slot>) {
    for slot in slots {
        assert!(device.cache_del(slot, Shadow(0)));
    }
}

fn run(first: Slot, order: Order) -> impl Iterator<Item = Slot> {
    (first.0..first.0 + order.slots()).map(Slot)
}

#[test]
fn slots_come_cached_with_count_zero() {
    let device = TestDevice::new(100, 1, Placement::Sharded);
    let slots = alloc(&device, 0, Order::ZERO, 3);
    for slot in slots {
        assert_eq!(device.get(slot), TableEntry::Cached { count: 0, folio: FOLIO, zero: false, locked: true });
    }
    assert_eq!(device.nr_used(), 3);
}

#[test]
fn asking_for_nothing_takes_nothing() {
    let device = TestDevice::new(100, 1, Placement::Sharded);
    assert_eq!(alloc(&device, 0, Order::ZERO, 0), []);
    assert_eq!(device.validate().unwrap().clusters_untouched, 1);
}

#[test]
fn every_order_gets_aligned_runs_until_the_device_is_full() {
    for order in Order::all() {
        let device = TestDevice::new(3 * CLUSTER_SLOTS, 2, Placement::Sharded);
        let runs = (3 * CLUSTER_SLOTS / order.slots()) as usize;
        let slots = alloc(&device, 0, order, runs + 1);
        assert_eq!(slots.len(), runs);
        assert!(slots.iter().all(|slot| slot.0.is_multiple_of(order.slots())));
        let summary = device.validate().unwrap();
        assert_eq!(summary.slots_cached, 3 * CLUSTER_SLOTS);
        assert_eq!(summary.clusters_full, 3);
        free(&device, slots.into_iter().flat_map(|slot| run(slot, order)));
        assert_eq!(device.validate().unwrap().clusters_free, 3);
    }
}

#[test]
fn a_device_ends_where_it_was_told_to() {
    let device = TestDevice::new(CLUSTER_SLOTS + 70, 1, Placement::Sharded);
    assert_eq!(alloc(&device, 0, order(6), 100).len(), CLUSTER_SLOTS as usize / 64 + 1);
    let rest = alloc(&device, 0, Order::ZERO, 100);
    assert_eq!(rest, (CLUSTER_SLOTS + 64..CLUSTER_SLOTS + 70).map(Slot).collect::<Vec<_>>());
    assert_eq!(device.validate().unwrap().clusters_full, 2);
}

#[test]
#[should_panic]
fn a_slot_past_the_end_is_not_looked_at() {
    let device = TestDevice::new(CLUSTER_SLOTS + 70, 1, Placement::Sharded);
    device.get(Slot(CLUSTER_SLOTS + 70));
}

#[test]
fn two_shards_use_different_clusters() {
    let device = TestDevice::new(4 * CLUSTER_SLOTS, 2, Placement::Sharded);
    let mine = alloc(&device, 0, Order::ZERO, 1)[0];
    let others = alloc(&device, 1, Order::ZERO, 1)[0];
    assert_ne!(mine.cluster(), others.cluster());
    assert_eq!(alloc(&device, 2, Order::ZERO, 1)[0].cluster(), mine.cluster());
}

#[test]
fn a_sequential_device_has_one_current_cluster_for_all_shards() {
    let device = TestDevice::new(4 * CLUSTER_SLOTS, 4, Placement::Sequential);
    let slots: Vec<u32> = (0..1000).map(|turn| alloc(&device, turn, Order::ZERO, 1)[0].0).collect();
    assert_eq!(slots, (0..1000).collect::<Vec<_>>());
}

#[test]
fn a_sequential_device_prefers_an_empty_cluster_to_one_with_gaps() {
    let device = TestDevice::new(4 * CLUSTER_SLOTS, 1, Placement::Sequential);
    let slots = alloc(&device, 0, Order::ZERO, 2 * CLUSTER_SLOTS as usize);
    free(&device, slots.into_iter().filter(|slot| slot.0 % 2 == 0 && slot.cluster() == ClusterId(0)));
    let next: Vec<u32> = alloc(&device, 0, Order::ZERO, 64).into_iter().map(|slot| slot.0).collect();
    assert_eq!(next, (2 * CLUSTER_SLOTS..2 * CLUSTER_SLOTS + 64).collect::<Vec<_>>());
}

#[test]
fn a_sequential_device_that_does_not_grow_takes_the_empty_clusters_that_it_has_before_gaps() {
    let device = TestDevice::new(4 * CLUSTER_SLOTS, 1, Placement::Sequential);
    let cluster = CLUSTER_SLOTS as usize;
    let slots = alloc(&device, 0, Order::ZERO, 3 * cluster);
    free(&device, slots.into_iter().filter(|slot| slot.0 % 2 == 0 || slot.cluster() == ClusterId(1)));
    let mut out = vec![Slot(0); 2 * cluster];
    let n = device.alloc_touched(Shard(0), Order::ZERO, FOLIO, &mut out);
    let first: Vec<u32> = out[..cluster].iter().map(|slot| slot.0).collect();
    assert_eq!(first, (CLUSTER_SLOTS..2 * CLUSTER_SLOTS).collect::<Vec<_>>());
    // Then the gaps, and nothing of the cluster that was never used.
    assert_eq!(n, 2 * cluster);
    assert!(out[cluster..].iter().all(|slot| slot.0 % 2 == 0 && slot.0 < 3 * CLUSTER_SLOTS));
}

#[test]
fn a_sharded_device_fills_gaps_before_it_touches_another_cluster() {
    let device = TestDevice::new(4 * CLUSTER_SLOTS, 1, Placement::Sharded);
    let slots = alloc(&device, 0, Order::ZERO, CLUSTER_SLOTS as usize);
    let odd: Vec<Slot> = slots.into_iter().filter(|slot| slot.0 % 2 == 1).collect();
    free(&device, odd.iter().copied());
    assert_eq!(alloc(&device, 0, Order::ZERO, odd.len()), odd);
    assert_eq!(device.validate().unwrap().clusters_untouched, 3);
}

#[test]
fn orders_do_not_share_a_cluster_while_there_are_others() {
    let device = TestDevice::new(10 * CLUSTER_SLOTS, 1, Placement::Sharded);
    let clusters: Vec<ClusterId> = Order::all().map(|order| alloc(&device, 0, order, 1)[0].cluster()).collect();
    let mut distinct = clusters.clone();
    distinct.sort();
    distinct.dedup();
    assert_eq!(distinct.len(), clusters.len());
}

#[test]
fn order_zero_takes_what_other_orders_left_when_nothing_else_is_there() {
    let device = TestDevice::new(2 * CLUSTER_SLOTS, 1, Placement::Sharded);
    let large = alloc(&device, 0, order(4), 64);
    free(&device, run(large[3], order(4)));
    free(&device, run(large[40], order(4)));
    let stolen = alloc(&device, 0, Order::ZERO, 33);
    let expected: Vec<Slot> = run(large[3], order(4)).chain(run(large[40], order(4))).collect();
    assert_eq!(stolen, expected);
    assert_eq!(device.validate().unwrap().slots_used, device.nr_slots());
}

#[test]
fn higher_orders_do_not_steal_from_other_orders() {
    let device = TestDevice::new(CLUSTER_SLOTS, 1, Placement::Sharded);
    let small = alloc(&device, 0, Order::ZERO, 1);
    assert_eq!(alloc(&device, 0, order(3), 1), []);
    free(&device, small);
    assert_eq!(alloc(&device, 0, order(3), 1).len(), 1);
}

#[test]
fn a_cluster_without_a_run_of_its_order_is_fragmented_until_something_is_freed() {
    let device = TestDevice::new(CLUSTER_SLOTS, 1, Placement::Sharded);
    let slots = alloc(&device, 0, order(1), CLUSTER_SLOTS as usize / 2);
    free(&device, slots.iter().copied());
    assert_eq!(alloc(&device, 0, order(1), 1), []);
    assert_eq!(device.validate().unwrap().clusters_frag, 1);
    free(&device, [Slot(slots[7].0 + 1)]);
    assert_eq!(device.validate().unwrap().clusters_nonfull, 1);
    assert_eq!(alloc(&device, 0, order(1), 1), [slots[7]]);
}

#[test]
fn slots_free_in_an_idle_shards_cluster_are_found() {
    let device = TestDevice::new(CLUSTER_SLOTS, 3, Placement::Sharded);
    let first = alloc(&device, 0, Order::ZERO, 1);
    assert_eq!(alloc(&device, 1, Order::ZERO, CLUSTER_SLOTS as usize).len(), CLUSTER_SLOTS as usize - 1);
    free(&device, first);
    assert_eq!(alloc(&device, 2, Order::ZERO, 2), [Slot(0)]);
    let summary = device.validate().unwrap();
    assert_eq!((summary.clusters_current, summary.slots_used), (1, CLUSTER_SLOTS));
}

#[test]
fn an_idle_shards_empty_cluster_serves_another_order() {
    let device = TestDevice::new(CLUSTER_SLOTS, 2, Placement::Sharded);
    let small = alloc(&device, 0, Order::ZERO, 1);
    free(&device, small);
    assert_eq!(alloc(&device, 1, order(5), 2), [Slot(0), Slot(32)]);
    // The first shard still holds the cluster, but must not mix its order in while it can avoid to; it cannot here.
    assert_eq!(alloc(&device, 0, Order::ZERO, 1), [Slot(64)]);
    device.validate().unwrap();
}

#[test]
fn a_freed_slot_of_a_full_cluster_is_allocated_again() {
    let device = TestDevice::new(2 * CLUSTER_SLOTS, 1, Placement::Sharded);
    let all = alloc(&device, 0, Order::ZERO, 3 * CLUSTER_SLOTS as usize);
    assert_eq!(all.len(), 2 * CLUSTER_SLOTS as usize);
    assert_eq!(device.validate().unwrap().clusters_full, 2);
    free(&device, [Slot(77)]);
    assert_eq!(device.validate().unwrap().clusters_nonfull, 1);
    assert_eq!(alloc(&device, 0, Order::ZERO, 2), [Slot(77)]);
}

#[test]
fn runs_that_are_the_callers_alone_are_freed_at_once_and_found_again() {
    for order in Order::all() {
        let device = TestDevice::new(2 * CLUSTER_SLOTS, 1, Placement::Sharded);
        let runs = alloc(&device, 0, order, (2 * CLUSTER_SLOTS / order.slots()) as usize);
        assert_eq!(alloc(&device, 0, Order::ZERO, 1), []);
        device.free_run(runs[1], order);
        assert_eq!(device.nr_used(), 2 * CLUSTER_SLOTS - order.slots());
        assert!(run(runs[1], order).all(|slot| device.get(slot) == TableEntry::Free));
        device.validate().unwrap();
        assert_eq!(alloc(&device, 0, order, 2), [runs[1]]);
        runs.into_iter().for_each(|first| device.free_run(first, order));
        assert_eq!(device.validate().unwrap().slots_used, 0);
    }
}

#[test]
fn a_bad_slot_is_never_allocated() {
    let device = TestDevice::new(2 * CLUSTER_SLOTS, 1, Placement::Sharded);
    assert!(device.mark_bad(Slot(5)));
    assert!(device.mark_bad(Slot(CLUSTER_SLOTS + 9)));
    assert!(!device.mark_bad(Slot(5)));
    assert_eq!(alloc(&device, 0, order(MAX_ORDER), 1), []);
    let slots = alloc(&device, 0, Order::ZERO, 2 * CLUSTER_SLOTS as usize);
    assert_eq!(slots.len(), 2 * CLUSTER_SLOTS as usize - 2);
    assert!(!slots.contains(&Slot(5)));
    assert_eq!(device.get(Slot(5)), TableEntry::Bad);
    let summary = device.validate().unwrap();
    assert_eq!((summary.slots_bad, summary.clusters_full), (2, 2));
}

#[test]
fn a_cluster_of_bad_slots_is_full() {
    let device = TestDevice::new(2 * CLUSTER_SLOTS, 1, Placement::Sharded);
    assert!((0..CLUSTER_SLOTS).all(|slot| device.mark_bad(Slot(slot))));
    assert_eq!(alloc(&device, 0, Order::ZERO, 1), [Slot(CLUSTER_SLOTS)]);
    assert_eq!(device.validate().unwrap().clusters_full, 1);
}

#[test]
fn a_retired_slot_is_never_allocated_again_wherever_its_cluster_is() {
    let device = TestDevice::new(2 * CLUSTER_SLOTS, 1, Placement::Sharded);
    // Of a full cluster, of one that is current, and of one that becomes empty.
    let slots = alloc(&device, 0, Order::ZERO, CLUSTER_SLOTS as usize + 2);
    let retired = [slots[3], slots[CLUSTER_SLOTS as usize], slots[7]];
    retired.iter().for_each(|slot| device.retire(*slot));
    device.validate().unwrap();
    for slot in slots.iter().filter(|slot| !retired.contains(slot)) {
        device.free_run(*slot, Order::ZERO);
    }
    assert!(retired.iter().all(|slot| device.get(*slot) == TableEntry::Bad));
    let summary = device.validate().unwrap();
    assert_eq!((summary.slots_bad, summary.slots_used, device.nr_bad()), (3, 0, 3));
    let left = 2 * CLUSTER_SLOTS as usize - retired.len();
    let again = alloc(&device, 0, Order::ZERO, 2 * CLUSTER_SLOTS as usize);
    assert_eq!(again.len(), left);
    assert!(retired.iter().all(|slot| !again.contains(slot)));
    // The last slot in use of a cluster takes it to the empty ones.
    again.iter().skip(1).for_each(|slot| device.free_run(*slot, Order::ZERO));
    device.retire(again[0]);
    assert_eq!(device.validate().unwrap().slots_used, 0);
}

#[test]
fn a_cluster_whose_slots_are_all_retired_is_full() {
    let device = TestDevice::new(2 * CLUSTER_SLOTS, 1, Placement::Sharded);
    let slots = alloc(&device, 0, Order::ZERO, CLUSTER_SLOTS as usize);
    slots.iter().for_each(|slot| device.retire(*slot));
    assert_eq!(alloc(&device, 0, Order::ZERO, 1), [Slot(CLUSTER_SLOTS)]);
    assert_eq!(device.validate().unwrap().clusters_full, 1);
}

#[test]
fn a_slot_in_use_cannot_be_marked_bad() {
    let device = TestDevice::new(100, 1, Placement::Sharded);
    let slot = alloc(&device, 0, Order::ZERO, 1)[0];
    assert!(!device.mark_bad(slot));
}

#[test]
fn a_slot_lives_from_allocation_through_swap_in_to_its_last_put() {
    let device = TestDevice::new(100, 1, Placement::Sharded);
    let slot = alloc(&device, 0, Order::ZERO, 1)[0];
    device.set_zero(slot, true);
    device.dup(slot).unwrap();
    device.dup(slot).unwrap();
    assert!(!device.cache_del(slot, Shadow(7)));
    let stored = Stored { count: 2, shadow: Shadow(7), zero: true };
    assert_eq!(device.get(slot), TableEntry::Stored(stored));
    assert_eq!(device.cache_add(slot, FOLIO), Ok(stored));
    assert_eq!(device.cache_add(slot, FOLIO), Err(CacheAddError::Locked));
    assert!(!device.put(slot));
    assert!(!device.cache_del(slot, Shadow(8)));
    assert!(device.put(slot));
    assert_eq!(device.get(slot), TableEntry::Free);
    assert_eq!(device.cache_add(slot, FOLIO), Err(CacheAddError::Free));
    assert_eq!(device.dup(slot), Err(DupError::Free));
    assert_eq!(device.nr_used(), 0);
}

#[test]
fn a_cached_slot_survives_its_last_put_until_it_leaves_the_cache() {
    let device = TestDevice::new(100, 1, Placement::Sharded);
    let slot = alloc(&device, 0, Order::ZERO, 1)[0];
    device.dup(slot).unwrap();
    assert!(!device.put(slot));
    assert_eq!(device.get(slot), TableEntry::Cached { count: 0, folio: FOLIO, zero: false, locked: true });
    assert!(device.cache_del(slot, Shadow(0)));
}

#[test]
fn counts_larger_than_a_word_holds_are_kept_and_given_back() {
    let device = TestDevice::new(2000, 1, Placement::Sharded);
    let slot = alloc(&device, 0, Order::ZERO, 1)[0];
    (0..1000).for_each(|_| device.dup(slot).unwrap());
    assert_eq!(device.get(slot), TableEntry::Cached { count: 1000, folio: FOLIO, zero: false, locked: true });
    assert_eq!(device.validate().unwrap().counts_overflowed, 1);
    device.cache_del(slot, Shadow(3));
    assert_eq!(device.cache_add(slot, FOLIO), Ok(Stored { count: 1000, shadow: Shadow(3), zero: false }));
    device.cache_del(slot, Shadow(3));
    assert!((0..999).all(|_| !device.put(slot)));
    assert_eq!(device.get(slot), TableEntry::Stored(Stored { count: 1, shadow: Shadow(3), zero: false }));
    assert!(device.put(slot));
    assert_eq!(device.validate().unwrap(), device.validate().unwrap());
}

#[test]
fn a_full_overflow_table_refuses_another_slot_and_keeps_the_counts() {
    let device = TestDevice::new(2000, 1, Placement::Sharded);
    let slots = alloc(&device, 0, Order::ZERO, 600);
    let mut refused = Vec::new();
    for slot in &slots {
        (0..30).for_each(|_| device.dup(*slot).unwrap());
        refused.extend(device.dup(*slot).err());
    }
    assert_eq!(refused, vec![DupError::CountOverflow; 600 - 512]);
    let last = *slots.last().unwrap();
    assert_eq!(device.get(last), TableEntry::Cached { count: 30, folio: FOLIO, zero: false, locked: true });
    assert!(!device.put(slots[0]));
    assert_eq!(device.dup(last), Ok(()));
    assert_eq!(device.validate().unwrap().counts_overflowed, 512);
}

#[test]
fn threads_that_allocate_and_free_leave_a_consistent_device() {
    let device = TestDevice::new(3 * CLUSTER_SLOTS, 2, Placement::Sharded);
    let owners: Vec<std::sync::atomic::AtomicBool> = (0..device.nr_slots()).map(|_| false.into()).collect();
    let rounds = if cfg!(miri) { 10 } else { 4000 };
    std::thread::scope(|scope| {
        for thread in 0..4_usize {
            let (device, owners) = (&device, &owners);
            scope.spawn(move || {
                let mut seed = thread as u32 + 1;
                let mut held: Vec<Slot> = Vec::new();
                for _ in 0..rounds {
                    seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    let order = order(((seed >> 8) % 20).saturating_sub(13) as u8);
                    let firsts = alloc(device, thread, order, (seed >> 16) as usize % 9);
                    for slot in firsts.into_iter().flat_map(|first| run(first, order)) {
                        assert!(!owners[slot.0 as usize].swap(true, std::sync::atomic::Ordering::SeqCst));
                        device.dup(slot).unwrap();
                        assert!(!device.cache_del(slot, Shadow(seed)));
                        held.push(slot);
                    }
                    let keep = (seed >> 20) as usize % 400;
                    while held.len() > keep {
                        let slot = held.swap_remove(seed as usize % held.len());
                        device.cache_add(slot, FOLIO).unwrap();
                        assert!(!device.put(slot));
                        owners[slot.0 as usize].store(false, std::sync::atomic::Ordering::SeqCst);
                        assert!(device.cache_del(slot, Shadow(seed)));
                    }
                }
                for slot in held {
                    owners[slot.0 as usize].store(false, std::sync::atomic::Ordering::SeqCst);
                    assert!(device.put(slot));
                }
            });
        }
    });
    assert_eq!(device.validate().unwrap().slots_used, 0);
    assert_eq!(device.nr_used(), 0);
}
