//! Frees of single slots that meet an allocation from the same cluster: last ones, and first ones of a full cluster.

use super::{alloc_one, device, explore, folio};
use ebb_slots::*;
use loom::thread;

fn full() -> loom::sync::Arc<super::common::TestDevice> {
    let device = device(CLUSTER_SLOTS, 1);
    let mut slots = [Slot(0); CLUSTER_SLOTS as usize];
    assert_eq!(device.alloc(Shard(0), Order::ZERO, folio(1), &mut slots), slots.len());
    device
}

/// The last free of a cluster, which becomes current meanwhile.
#[test]
fn a_last_free_meets_a_cluster_that_became_current() {
    explore(Some(4), || {
        let device = full();
        (1..4).for_each(|slot| device.free_run(Slot(slot), Order::ZERO));
        let other = {
            let device = device.clone();
            thread::spawn(move || device.free_run(Slot(0), Order::ZERO))
        };
        let mut two = [Slot(0); 2];
        let n = device.alloc(Shard(0), Order::ZERO, folio(2), &mut two);
        two[..n].iter().for_each(|slot| device.free_run(*slot, Order::ZERO));
        other.join().unwrap();
        device.validate().unwrap();
    });
}

/// The same with tables given back meanwhile: no slot in use is lost.
#[test]
fn a_last_free_meets_a_cluster_that_became_current_and_gives_tables_back() {
    explore(Some(4), || {
        let device = full();
        (1..4).for_each(|slot| device.free_run(Slot(slot), Order::ZERO));
        let other = {
            let device = device.clone();
            thread::spawn(move || {
                device.free_run(Slot(0), Order::ZERO);
                device.release_tables(0, 1, |run| super::common::zero_words(&device, run))
            })
        };
        let mut two = [Slot(0); 2];
        if device.alloc(Shard(0), Order::ZERO, folio(2), &mut two) == 2 {
            device.free_run(two[0], Order::ZERO);
            device.free_run(two[1], Order::ZERO);
        }
        let slot = alloc_one(&device, 0, Order::ZERO, 3);
        other.join().unwrap();
        if let Some(slot) = slot {
            let mine = TableEntry::Cached { count: 0, folio: folio(3), zero: false, locked: true };
            assert_eq!(device.get(slot), mine, "a slot in use was lost");
        }
        device.validate().unwrap();
    });
}

/// What a thread has freed is there for its next allocation, whatever another one is at.
#[test]
fn a_threads_own_free_is_there_for_its_next_allocation() {
    explore(Some(4), || {
        let device = full();
        let other = {
            let device = device.clone();
            thread::spawn(move || device.free_run(Slot(0), Order::ZERO))
        };
        device.free_run(Slot(1), Order::ZERO);
        assert!(alloc_one(&device, 0, Order::ZERO, 3).is_some(), "an own free was not found");
        other.join().unwrap();
        device.validate().unwrap();
    });
}
