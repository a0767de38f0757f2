//! The pool against a map: whatever is stored, freed and moved, each owner keeps its bytes.
#![cfg(not(loom))]

mod support;

use std::collections::HashMap;

use ebb_pool::{BLOCK_PAGES, OBJECT_MAX, PoolFull};
use proptest::prelude::*;
use support::Rig;

const BLOCKS: usize = 96;
const OWNERS: u32 = 600;

#[derive(Clone, Debug)]
enum Op {
    Store {
        owner: u32,
        len: usize,
        seed: u8,
    },
    Free {
        owner: u32,
    },
    /// Frees the objects of every so many owners, all at once.
    FreeMany {
        owner: u32,
        owners: usize,
        step: usize,
    },
    Load {
        owner: u32,
    },
    /// Compacts while every `claimed_nth` owner is claimed.
    Compact {
        max_objects: usize,
        claimed_nth: usize,
    },
    Budget {
        blocks: usize,
    },
}

fn lens() -> impl Strategy<Value = usize> {
    prop_oneof![3 => 1000..1100usize, 2 => 1..=OBJECT_MAX, 1 => Just(OBJECT_MAX), 1 => 1..40usize]
}

fn ops() -> impl Strategy<Value = Op> {
    prop_oneof![
        8 => (0..OWNERS, lens(), any::<u8>()).prop_map(|(owner, len, seed)| Op::Store { owner, len, seed }),
        6 => (0..OWNERS).prop_map(|owner| Op::Free { owner }),
        1 => (0..OWNERS, 1..300usize, 1..4usize)
            .prop_map(|(owner, owners, step)| Op::FreeMany { owner, owners, step }),
        2 => (0..OWNERS).prop_map(|owner| Op::Load { owner }),
        1 => (0..200usize, 1..8usize).prop_map(|(max_objects, claimed_nth)| Op::Compact { max_objects, claimed_nth }),
        1 => (0..BLOCKS).prop_map(|blocks| Op::Budget { blocks }),
    ]
}

fn content(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|index| (index as u8).wrapping_mul(31).wrapping_add(seed)).collect()
}

/// Runs one operation on the pool and on the map.
fn step(rig: &Rig, model: &mut HashMap<u32, Vec<u8>>, op: Op) {
    match op {
        Op::Store { owner, len, seed } => {
            let old = rig.table.claim(owner).unwrap();
            if let Some(handle) = old {
                assert!(rig.pool.free(&rig.ledger, handle));
                model.remove(&owner);
            }
            let data = content(len, seed);
            match rig.store(owner, &data) {
                Ok(handle) => {
                    assert_eq!(rig.pool.object(handle), Some((owner, len)));
                    model.insert(owner, data);
                }
                Err(full) => assert!(matches!(full, PoolFull::Budget | PoolFull::Arena)),
            }
        }
        Op::Free { owner } => match rig.table.claim(owner).unwrap() {
            Some(handle) => {
                rig.free(owner, handle);
                assert_eq!(rig.pool.object(handle), None);
                assert!(model.remove(&owner).is_some());
            }
            None => {
                rig.table.publish(owner, None);
                assert!(!model.contains_key(&owner));
            }
        },
        Op::FreeMany { owner, owners, step } => {
            let owners: Vec<u32> = (owner..OWNERS).step_by(step).take(owners).collect();
            let found: Vec<_> = owners.iter().filter_map(|owner| rig.table.claim(*owner).unwrap()).collect();
            let (mut lens, mut gone) = (Vec::new(), Vec::new());
            assert_eq!(rig.pool.free_all(&rig.ledger, &found, |len| lens.push(len)), found.len());
            // Nothing is freed twice.
            assert_eq!(rig.pool.free_all(&rig.ledger, &found, |_| panic!("it is gone")), 0);
            for owner in owners {
                rig.table.publish(owner, None);
                gone.extend(model.remove(&owner).map(|data| data.len()));
            }
            lens.sort_unstable();
            gone.sort_unstable();
            assert_eq!(lens, gone);
        }
        Op::Load { owner } => {
            let handle = rig.table.claim(owner).unwrap();
            assert_eq!(handle.map(|handle| rig.load(handle)), model.get(&owner).cloned());
            rig.table.publish(owner, handle);
        }
        Op::Compact { max_objects, claimed_nth } => {
            let claimed: Vec<_> =
                (0..OWNERS).step_by(claimed_nth).map(|owner| (owner, rig.table.claim(owner).unwrap())).collect();
            assert!(rig.compact(max_objects) <= max_objects);
            for (owner, handle) in claimed {
                assert_eq!(rig.table.handle(owner), handle, "a claimed owner's object moved");
                rig.table.publish(owner, handle);
            }
        }
        Op::Budget { blocks } => rig.ledger.set_left(blocks),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 2 } else { 64 }, ..ProptestConfig::default() })]

    #[test]
    fn every_owner_keeps_its_bytes(ops in prop::collection::vec(ops(), 1..if cfg!(miri) { 60 } else { 1500 })) {
        let rig = Rig::new(BLOCKS, OWNERS as usize);
        let mut model = HashMap::new();
        for op in ops {
            step(&rig, &mut model, op);
            if !cfg!(miri) && cfg!(debug_assertions) && model.len() % 16 == 0 {
                rig.pool.validate().unwrap();
            }
        }
        let summary = rig.pool.validate().unwrap();
        prop_assert_eq!(summary.objects as usize, model.len());
        prop_assert_eq!(summary.bytes, model.values().map(|data| data.len() as u64).sum::<u64>());
        prop_assert_eq!(summary.objects, rig.pool.stored_objects());
        prop_assert_eq!(summary.bytes, rig.pool.stored_bytes());
        prop_assert_eq!(summary.pages, rig.ledger.held_blocks() * BLOCK_PAGES);
        for (owner, data) in &model {
            let handle = rig.table.claim(*owner).unwrap().unwrap();
            prop_assert_eq!(&rig.load(handle), data);
            rig.free(*owner, handle);
        }
        prop_assert_eq!(rig.pool.used_pages(), 0);
        prop_assert_eq!(rig.ledger.held_blocks(), 0);
    }
}
