//! Frees that meet an allocation from the same cluster: of single slots, the last ones and the first ones of a full
//! cluster, and of many at once. And frees of many slots whose contents another thread moves meanwhile.

use super::{SHADOW, alloc_one, device, explore, folio, store_one};
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

/// Slots of two clusters are freed together, while another thread wants some in either.
#[test]
fn slots_that_are_freed_together_meet_an_allocation() {
    explore(Some(3), || {
        let device = device(2 * CLUSTER_SLOTS, 1);
        let mut slots = [Slot(0); 2 * CLUSTER_SLOTS as usize];
        assert_eq!(device.alloc(Shard(0), Order::ZERO, folio(1), &mut slots), slots.len());
        let other = {
            let device = device.clone();
            thread::spawn(move || device.free_all(&[Slot(2), Slot(3), Slot(4), Slot(6)]))
        };
        let found = alloc_one(&device, 0, Order::ZERO, 2);
        assert!(found.is_none_or(|slot| [2, 3, 4, 6].contains(&slot.0)));
        other.join().unwrap();
        assert_eq!(device.validate().unwrap().slots_used, 4 + u32::from(found.is_some()));
        let mut rest = [Slot(0); 4];
        let n = device.alloc(Shard(0), Order::ZERO, folio(3), &mut rest);
        assert_eq!(n, 4 - usize::from(found.is_some()), "a freed slot was lost");
        device.validate().unwrap();
    });
}

/// Two stored slots are given up together, while another thread moves the content of one of them and then of the other.
#[test]
fn slots_that_are_freed_together_meet_a_thread_that_moves_their_contents() {
    explore(Some(3), || {
        let device = device(CLUSTER_SLOTS, 1);
        let slots = [store_one(&device), store_one(&device)];
        let other = {
            let device = device.clone();
            thread::spawn(move || {
                for slot in slots {
                    let Ok(was) = device.lock(slot, folio(9)) else { continue };
                    assert_eq!(was, Locked::Stored(Stored { count: 1, shadow: SHADOW, zero: false }));
                    assert!(!device.cache_del(slot, SHADOW), "a slot that is moved was freed");
                }
            })
        };
        for slot in slots {
            let was = loop {
                match device.lock(slot, folio(1)) {
                    Ok(was) => break was,
                    Err(error) => assert_eq!(error, LockError::Locked),
                }
                thread::yield_now();
            };
            assert!(was.is_last(folio(1)));
        }
        device.free_all(&slots);
        other.join().unwrap();
        assert_eq!(device.validate().unwrap().slots_used, 0);
    });
}
