//! Threads that store, load, free and compact at once, with checked contents.
#![cfg(not(loom))]

mod support;

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use support::Rig;

const OWNERS: u32 = if cfg!(miri) { 64 } else { 4096 };
const ROUNDS: u32 = if cfg!(miri) { 150 } else { 200_000 };
/// Few classes, so that threads meet.
const LENS: [usize; 4] = [300, 310, 1500, 3900];

struct Random(u64);

impl Random {
    fn next(&mut self) -> u32 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) as u32
    }
}

/// Stores for an owner without an object; loads, checks and half the time frees that of one that has.
fn work(rig: &Rig, seed: u64) {
    let mut random = Random(seed);
    for _ in 0..ROUNDS {
        let owner = random.next() % OWNERS;
        let Some(handle) = rig.table.claim(owner) else { continue };
        let len = LENS[random.next() as usize % LENS.len()];
        match handle {
            None => {
                let _ = rig.store(owner, &vec![(owner ^ len as u32) as u8; len]);
            }
            Some(handle) => {
                let (stored_for, len) = rig.pool.object(handle).unwrap();
                assert_eq!(stored_for, owner);
                assert_eq!(rig.load(handle), vec![(owner ^ len as u32) as u8; len]);
                if random.next().is_multiple_of(2) {
                    rig.free(owner, handle);
                } else {
                    rig.table.publish(owner, Some(handle));
                }
            }
        }
    }
}

#[test]
fn contents_survive_concurrent_stores_frees_and_two_compactions() {
    let rig = Rig::new(128, OWNERS as usize);
    rig.ledger.set_left(100);
    let done = AtomicBool::new(false);
    let moved: usize = thread::scope(|scope| {
        let compactors: Vec<_> = (0..2)
            .map(|_| {
                scope.spawn(|| {
                    let mut moved = 0;
                    while !done.load(Ordering::Relaxed) {
                        moved += rig.compact(20);
                        thread::yield_now();
                    }
                    moved
                })
            })
            .collect();
        let workers: Vec<_> = (1..=3)
            .map(|seed| {
                scope.spawn({
                    let rig = &rig;
                    move || work(rig, seed)
                })
            })
            .collect();
        workers.into_iter().for_each(|worker| worker.join().unwrap());
        done.store(true, Ordering::Relaxed);
        compactors.into_iter().map(|compactor| compactor.join().unwrap()).sum()
    });
    let summary = rig.pool.validate().unwrap();
    assert!(summary.objects > 0);
    assert!(cfg!(miri) || moved > 0, "compaction had nothing to do");
    for owner in 0..OWNERS {
        if let Some(handle) = rig.table.claim(owner).unwrap() {
            rig.free(owner, handle);
        }
    }
    assert_eq!(rig.ledger.held_blocks(), 0);
}
