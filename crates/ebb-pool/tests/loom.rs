//! Models of the races in the pool, every interleaving of them:
//!
//! ```text
//! RUSTFLAGS="--cfg loom" cargo test -p ebb-pool --test loom --release --no-default-features
//! ```
//!
//! Blocks hold two objects under loom. Loom checks that locks and claims order all accesses to block metadata, to the
//! objects' bytes, and to a block's memory before its release and after its next acquisition.
#![cfg(loom)]

mod support;

use ebb_pool::{BLOCK_PAGES, PoolFull};
use loom::sync::Arc;
use loom::thread;
use support::Rig;

fn model(f: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(f);
}

/// Claims an owner that somebody else may have for a while.
fn claim(rig: &Rig, owner: u32) -> Option<ebb_pool::Handle> {
    loop {
        if let Some(handle) = rig.table.claim(owner) {
            return handle;
        }
        thread::yield_now();
    }
}

fn check(rig: &Rig, owner: u32) {
    let handle = rig.table.handle(owner).unwrap();
    assert_eq!(rig.pool.object(handle), Some((owner, 8)));
    assert_eq!(rig.load(handle), [owner as u8; 8]);
}

fn finish(rig: &Rig, owners: &[u32]) {
    let summary = rig.pool.validate().unwrap();
    assert_eq!(summary.objects as usize, owners.len());
    assert_eq!(summary.pages, rig.ledger.held_blocks() * BLOCK_PAGES);
    owners.iter().for_each(|owner| check(rig, *owner));
}

#[test]
fn a_store_and_a_free_in_one_class() {
    model(|| {
        let rig = Arc::new(Rig::new(3, 3));
        rig.put(0, &[0; 8]).unwrap();
        rig.put(1, &[1; 8]).unwrap();
        let freer = thread::spawn({
            let rig = rig.clone();
            move || {
                let handle = claim(&rig, 0).unwrap();
                rig.free(0, handle);
            }
        });
        rig.put(2, &[2; 8]).unwrap();
        freer.join().unwrap();
        finish(&rig, &[1, 2]);
    });
}

#[test]
fn objects_that_are_freed_together_empty_a_block_while_another_is_stored() {
    model(|| {
        let rig = Arc::new(Rig::new(3, 4));
        (0..3).for_each(|owner| assert!(rig.put(owner, &[owner as u8; 8]).is_ok()));
        let freer = thread::spawn({
            let rig = rig.clone();
            move || free_together(&rig, [0, 1])
        });
        rig.put(3, &[3; 8]).unwrap();
        freer.join().unwrap();
        finish(&rig, &[2, 3]);
    });
}

#[test]
fn objects_that_are_freed_together_while_compaction_moves_them() {
    model(|| {
        let rig = sparse();
        let compactor = thread::spawn({
            let rig = rig.clone();
            move || rig.compact(2)
        });
        free_together(&rig, [0, 2]);
        compactor.join().unwrap();
        finish(&rig, &[]);
        assert_eq!(rig.pool.used_pages(), 0);
    });
}

fn free_together(rig: &Rig, owners: [u32; 2]) {
    let handles = owners.map(|owner| claim(rig, owner).unwrap());
    assert_eq!(rig.pool.free_all(&rig.ledger, &handles, |len| assert_eq!(len, 8)), 2);
    owners.iter().for_each(|owner| rig.table.publish(*owner, None));
}

#[test]
fn two_stores_that_both_want_a_new_block() {
    model(|| {
        let rig = Arc::new(Rig::new(2, 2));
        let other = thread::spawn({
            let rig = rig.clone();
            move || rig.put(0, &[0; 8]).unwrap()
        });
        rig.put(1, &[1; 8]).unwrap();
        other.join().unwrap();
        finish(&rig, &[0, 1]);
    });
}

/// Two blocks with one object each: compaction wants to move one of them to the other.
fn sparse() -> Arc<Rig> {
    let rig = Rig::new(3, 4);
    (0..4).for_each(|owner| assert!(rig.put(owner, &[owner as u8; 8]).is_ok()));
    for owner in [1, 3] {
        let handle = claim(&rig, owner).unwrap();
        rig.free(owner, handle);
    }
    Arc::new(rig)
}

#[test]
fn compaction_while_one_object_is_freed_and_the_other_is_loaded() {
    model(|| {
        let rig = sparse();
        let compactor = thread::spawn({
            let rig = rig.clone();
            move || rig.compact(2)
        });
        let freer = thread::spawn({
            let rig = rig.clone();
            move || {
                let handle = claim(&rig, 0).unwrap();
                rig.free(0, handle);
            }
        });
        let handle = claim(&rig, 2).unwrap();
        assert_eq!(rig.load(handle), [2; 8]);
        rig.table.publish(2, Some(handle));
        freer.join().unwrap();
        compactor.join().unwrap();
        finish(&rig, &[2]);
    });
}

/// A thread that has the claim stores the object anew, and gives up the old one last: what the cold tier does.
#[test]
fn an_object_is_replaced_while_another_is_compacted_and_loaded() {
    model(|| {
        let rig = sparse();
        let compactor = thread::spawn({
            let rig = rig.clone();
            move || rig.compact(2)
        });
        let loader = thread::spawn({
            let rig = rig.clone();
            move || {
                let Some(handle) = rig.table.claim(0) else { return };
                assert_eq!(rig.load(handle.unwrap()), [0; 8]);
                rig.table.publish(0, handle);
            }
        });
        let old = claim(&rig, 0).unwrap();
        assert_eq!(rig.load(old), [0; 8]);
        rig.replace(0, old, &[0; 8]);
        loader.join().unwrap();
        compactor.join().unwrap();
        finish(&rig, &[0, 2]);
    });
}

#[test]
fn compaction_while_an_object_is_stored() {
    model(|| {
        let rig = sparse();
        let compactor = thread::spawn({
            let rig = rig.clone();
            move || rig.compact(2)
        });
        rig.put(1, &[1; 8]).unwrap();
        compactor.join().unwrap();
        finish(&rig, &[0, 1, 2]);
    });
}

#[test]
fn two_compactions_at_once() {
    model(|| {
        let rig = sparse();
        let other = thread::spawn({
            let rig = rig.clone();
            move || rig.compact(1)
        });
        let moved = rig.compact(1) + other.join().unwrap();
        assert_eq!(moved, 1);
        finish(&rig, &[0, 2]);
        assert_eq!(rig.pool.used_pages(), BLOCK_PAGES);
    });
}

#[test]
fn a_block_that_empties_while_a_store_wants_a_new_one() {
    model(|| {
        let rig = Arc::new(Rig::new(1, 3));
        rig.put(0, &[0; 8]).unwrap();
        let freer = thread::spawn({
            let rig = rig.clone();
            move || {
                let handle = claim(&rig, 0).unwrap();
                rig.free(0, handle);
            }
        });
        // Into the block before it empties, into the block taken anew, or into none while it is on its way.
        let stored = [1, 2].map(|owner| rig.put(owner, &[owner as u8; 8]));
        freer.join().unwrap();
        let owners: Vec<u32> = (1..).zip(stored).filter(|(_, stored)| stored.is_ok()).map(|(owner, _)| owner).collect();
        assert!(stored.iter().all(|stored| matches!(stored, Ok(_) | Err(PoolFull::Arena))));
        finish(&rig, &owners);
    });
}

#[test]
fn a_block_that_compaction_empties_while_a_store_wants_a_new_one() {
    model(|| {
        let rig = Rig::new(2, 5);
        (0..4).for_each(|owner| assert!(rig.put(owner, &[owner as u8; 8]).is_ok()));
        for owner in [1, 3] {
            let handle = claim(&rig, owner).unwrap();
            rig.free(owner, handle);
        }
        let rig = Arc::new(rig);
        let compactor = thread::spawn({
            let rig = rig.clone();
            move || rig.compact(2)
        });
        let stored = [1, 3, 4].map(|owner| rig.put(owner, &[owner as u8; 8]));
        compactor.join().unwrap();
        let owners = [1, 3, 4].into_iter().zip(stored).filter(|(_, stored)| stored.is_ok()).map(|(owner, _)| owner);
        finish(&rig, &[0, 2].into_iter().chain(owners).collect::<Vec<_>>());
    });
}

#[test]
fn a_load_while_compaction_takes_the_object_away_and_its_place_is_used_again() {
    model(|| {
        let rig = sparse();
        let loader = thread::spawn({
            let rig = rig.clone();
            move || {
                for owner in [0, 2] {
                    // Whoever moves it has the claim: there is nothing to check then.
                    let Some(handle) = rig.table.claim(owner) else { continue };
                    assert_eq!(rig.load(handle.unwrap()), [owner as u8; 8]);
                    rig.table.publish(owner, handle);
                }
            }
        });
        rig.compact(2);
        rig.put(1, &[1; 8]).unwrap();
        rig.put(3, &[3; 8]).unwrap();
        loader.join().unwrap();
        finish(&rig, &[0, 1, 2, 3]);
    });
}
