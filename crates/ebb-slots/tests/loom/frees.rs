//! Slots are freed without their cluster's lock: what the last and the first free of a cluster set off, and who else may
//! be at work in it.

use super::common::zero_words;
use super::{SHADOW, alloc_one, device, explore, folio, order, own_and_free};
use ebb_slots::*;
use loom::sync::Arc;
use loom::thread;

#[test]
fn frees_that_together_empty_a_cluster_put_it_on_the_free_list_once() {
    explore(Some(3), || {
        let device = device(CLUSTER_SLOTS, 1);
        let mut slots = [Slot(0); CLUSTER_SLOTS as usize];
        assert_eq!(device.alloc(Shard(0), Order::ZERO, folio(1), &mut slots), slots.len());
        assert_eq!(alloc_one(&device, 0, Order::ZERO, 1), None);
        let others: Vec<_> = [0, 2]
            .map(|slot| {
                let device = device.clone();
                thread::spawn(move || device.free_run(Slot(slot), Order::ZERO))
            })
            .into();
        device.free_run(Slot(1), Order::ZERO);
        device.free_run(Slot(3), Order::ZERO);
        others.into_iter().for_each(|other| other.join().unwrap());
        let summary = device.validate().unwrap();
        assert_eq!((summary.slots_used, summary.clusters_free), (0, 1));
    });
}

#[test]
fn a_free_meets_an_allocation_that_fills_the_cluster_and_gives_it_back() {
    explore(Some(4), || {
        let device = device(CLUSTER_SLOTS, 1);
        let mut slots = [Slot(0); CLUSTER_SLOTS as usize - 1];
        assert_eq!(device.alloc(Shard(0), Order::ZERO, folio(1), &mut slots), slots.len());
        let other = {
            let device = device.clone();
            thread::spawn(move || {
                device.free_run(Slot(0), Order::ZERO);
                device.free_run(Slot(1), Order::ZERO);
            })
        };
        // The last slot, and then what was freed by then.
        let first = alloc_one(&device, 0, Order::ZERO, 2);
        let second = alloc_one(&device, 0, Order::ZERO, 3);
        other.join().unwrap();
        assert_eq!(first, Some(Slot(3)));
        assert!(second.is_none_or(|slot| slot < Slot(2)));
        let used = 2 + u32::from(second.is_some());
        assert_eq!(device.validate().unwrap().slots_used, used);
        let mut rest = [Slot(0); CLUSTER_SLOTS as usize];
        assert_eq!(device.alloc(Shard(0), Order::ZERO, folio(4), &mut rest) as u32, CLUSTER_SLOTS - used);
    });
}

#[test]
fn a_free_that_makes_a_run_meets_a_search_that_takes_the_cluster_for_fragmented() {
    explore(Some(4), || {
        let device = device(CLUSTER_SLOTS, 1);
        let mut runs = [Slot(0); 2];
        assert_eq!(device.alloc(Shard(0), order(1), folio(1), &mut runs), 2);
        device.free_run(Slot(0), Order::ZERO);
        let other = {
            let device = device.clone();
            thread::spawn(move || device.free_run(Slot(1), Order::ZERO))
        };
        let found = alloc_one(&device, 0, order(1), 2);
        assert!(found.is_none_or(|slot| slot == Slot(0)));
        other.join().unwrap();
        device.validate().unwrap();
        let found = found.or_else(|| alloc_one(&device, 0, order(1), 2));
        assert_eq!(found, Some(Slot(0)));
        device.validate().unwrap();
    });
}

#[test]
fn a_slot_that_is_freed_and_taken_again_before_its_free_is_noted_is_counted_right() {
    explore(Some(4), || {
        let device = device(CLUSTER_SLOTS, 2);
        let mut slots = [Slot(0); CLUSTER_SLOTS as usize];
        assert_eq!(device.alloc(Shard(0), Order::ZERO, folio(1), &mut slots), slots.len());
        let other = {
            let device = device.clone();
            thread::spawn(move || {
                device.free_run(Slot(0), Order::ZERO);
                let slot = alloc_one(&device, 0, Order::ZERO, 2);
                slot.inspect(|slot| own_and_free(&device, *slot, 2)).is_some()
            })
        };
        device.free_run(Slot(1), Order::ZERO);
        let slot = alloc_one(&device, 1, Order::ZERO, 3);
        if let Some(slot) = slot {
            own_and_free(&device, slot, 3);
        }
        other.join().unwrap();
        assert_eq!(device.validate().unwrap().slots_used, CLUSTER_SLOTS - 2);
        device.free_run(Slot(2), Order::ZERO);
        device.free_run(Slot(3), Order::ZERO);
        assert_eq!(device.validate().unwrap().slots_used, 0);
        assert!(alloc_one(&device, 1, order(2), 3).is_some());
    });
}

#[test]
fn a_table_is_given_back_only_after_its_last_free() {
    explore(Some(3), || {
        let device = device(2 * CLUSTER_SLOTS, 1);
        let mut slots = [Slot(0); CLUSTER_SLOTS as usize + 1];
        assert_eq!(device.alloc(Shard(0), Order::ZERO, folio(1), &mut slots), slots.len());
        (0..2).for_each(|slot| device.free_run(Slot(slot), Order::ZERO));
        device.dup(Slot(3)).unwrap();
        assert!(!device.cache_del(Slot(3), SHADOW));
        let other = {
            let device = device.clone();
            thread::spawn(move || {
                device.free_run(Slot(2), Order::ZERO);
                assert!(device.put(Slot(3)));
            })
        };
        let looks_free = |run: std::ops::Range<ClusterId>| {
            assert_eq!(run, ClusterId(0)..ClusterId(1));
            assert!((0..CLUSTER_SLOTS).all(|slot| device.get(Slot(slot)) == TableEntry::Free));
            zero_words(&device, run);
        };
        let first = device.release_tables(0, 2, looks_free);
        other.join().unwrap();
        let second = device.release_tables(0, 2, looks_free);
        assert_eq!(first + second, 1);
        assert_eq!(device.validate().unwrap().clusters_bare, 1);
    });
}

#[test]
fn a_free_meets_every_step_of_a_device_that_shrinks_and_grows_again() {
    explore(Some(3), || {
        let device = device(CLUSTER_SLOTS, 1);
        let mut slots = [Slot(0); 2];
        assert_eq!(device.alloc(Shard(0), Order::ZERO, folio(1), &mut slots), 2);
        let other = {
            let device = device.clone();
            thread::spawn(move || {
                device.free_run(Slot(0), Order::ZERO);
                device.free_run(Slot(1), Order::ZERO);
            })
        };
        device.begin_shrink(0).unwrap();
        let ended = device.end_shrink();
        assert!(matches!(ended, Ok(_) | Err(ResizeError::InUse { slots: 1 | 2 })));
        if ended.is_ok() {
            device.grow(CLUSTER_SLOTS).unwrap();
        } else {
            device.cancel_shrink().unwrap();
        }
        other.join().unwrap();
        assert_eq!(device.validate().unwrap().slots_used, 0);
        assert!(alloc_one(&device, 0, order(2), 2).is_some());
    });
}

#[test]
fn a_free_meets_a_bad_slot_that_fills_the_cluster() {
    explore(Some(4), || {
        let device = device(CLUSTER_SLOTS, 1);
        let mut slots = [Slot(0); CLUSTER_SLOTS as usize];
        assert_eq!(device.alloc(Shard(0), Order::ZERO, folio(1), &mut slots), slots.len());
        assert_eq!(alloc_one(&device, 0, Order::ZERO, 1), None);
        device.free_run(Slot(0), Order::ZERO);
        let other = {
            let device = device.clone();
            thread::spawn(move || device.free_run(Slot(1), Order::ZERO))
        };
        assert!(device.mark_bad(Slot(0)));
        other.join().unwrap();
        let summary = device.validate().unwrap();
        assert_eq!((summary.slots_used, summary.clusters_nonfull), (CLUSTER_SLOTS - 2, 1));
        assert_eq!(alloc_one(&device, 0, Order::ZERO, 1), Some(Slot(1)));
    });
}

#[test]
fn who_takes_a_freed_slot_may_use_its_place() {
    explore(Some(4), || {
        let device = device(CLUSTER_SLOTS, 2);
        let slot = alloc_one(&device, 0, Order::ZERO, 1).unwrap();
        let place = Arc::new(loom::cell::UnsafeCell::new(1_u64));
        let other = {
            let (device, place) = (device.clone(), place.clone());
            thread::spawn(move || {
                // SAFETY: who has the slot may use its place; loom checks that.
                place.with_mut(|value| unsafe { *value += 1 });
                device.free_run(slot, Order::ZERO);
            })
        };
        if alloc_one(&device, 1, Order::ZERO, 2) == Some(slot) {
            // SAFETY: as above.
            place.with_mut(|value| unsafe { *value += 1 });
        }
        other.join().unwrap();
        device.validate().unwrap();
    });
}
