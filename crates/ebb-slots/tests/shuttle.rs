//! Random schedules of several threads that do everything to one small device: allocate all orders, share, put, swap in
//! and out, and contend for slots that others may free meanwhile.
//!
//! `RUSTFLAGS="--cfg shuttle" cargo test -p ebb-slots --test shuttle --release`
#![cfg(shuttle)]

mod common;

use common::{TestDevice, zero_words};
use ebb_slots::*;
use shuttle::rand::{Rng, thread_rng};
use shuttle::sync::Arc;
use shuttle::sync::atomic::{AtomicU64, Ordering};
use shuttle::thread;

const ITERATIONS: usize = 3000;
const THREADS: usize = 3;
const STEPS: usize = 12;

fn order(order: u8) -> Order {
    Order::new(order).unwrap()
}

/// Runs a body under random schedules, and under ones with few but well placed preemptions.
fn explore(body: impl Fn() + Send + Sync + Clone + 'static) {
    shuttle::check_random(body.clone(), ITERATIONS);
    shuttle::check_pct(body, ITERATIONS, 3);
}

struct World {
    device: TestDevice,
    /// Who has a slot cached: thread plus 1; 0 is nobody. Not an exchange of its own, so it orders nothing.
    holder: Vec<AtomicU64>,
}

impl World {
    fn new(nr_slots: u32, shards: usize, placement: Placement) -> Arc<Self> {
        let holder = (0..nr_slots).map(|_| AtomicU64::new(0)).collect();
        let options = Options { discards: shards == 2, ..Options::fixed(nr_slots, shards, placement) };
        Arc::new(Self { device: TestDevice::with(&options), holder })
    }

    fn hold(&self, slot: Slot, thread: usize) {
        assert_eq!(self.holder[slot.0 as usize].load(Ordering::Relaxed), 0);
        self.holder[slot.0 as usize].store(thread as u64 + 1, Ordering::Relaxed);
    }

    fn release(&self, slot: Slot, thread: usize) {
        assert_eq!(self.holder[slot.0 as usize].load(Ordering::Relaxed), thread as u64 + 1);
        self.holder[slot.0 as usize].store(0, Ordering::Relaxed);
    }
}

/// Moves nothing, as slots here are known to their threads by number; but looks as if it would.
struct Mover<'a> {
    world: &'a World,
    thread: usize,
    folio: Folio,
}

impl Relocate for Mover<'_> {
    fn relocate(&mut self, from: Slot, to: Slot) -> bool {
        assert_ne!(from, to);
        self.world.hold(to, self.thread);
        assert!(matches!(self.world.device.get(to), TableEntry::Cached { folio, .. } if folio == self.folio));
        self.world.release(to, self.thread);
        false
    }
}

/// One thread's work. `owned` are references of its own: each was a dup, each is put once.
fn work(world: &World, thread: usize) {
    let device = &world.device;
    let folio = Folio::new(thread as u64 + 1).unwrap();
    let mut owned: Vec<Slot> = Vec::new();
    for _ in 0..STEPS {
        match thread_rng().gen_range(0..11) {
            0 | 1 => {
                let order = order(thread_rng().gen_range(0..=2));
                let mut out = [Slot(0); 2];
                let found = device.alloc(Shard(thread), order, folio, &mut out);
                for slot in out[..found].iter().flat_map(|first| first.0..first.0 + order.slots()).map(Slot) {
                    world.hold(slot, thread);
                    // Its count may be 1 already: others refer to any slot below.
                    assert!(matches!(device.get(slot), TableEntry::Cached { folio: now, .. } if now == folio));
                    device.dup(slot).unwrap();
                    world.release(slot, thread);
                    assert!(!device.cache_del(slot, Shadow(7)));
                    owned.push(slot);
                }
            }
            2 | 3 => {
                let Some(slot) = owned.pop() else { continue };
                device.put(slot);
            }
            4 => {
                let Some(slot) = owned.first().copied() else { continue };
                // Refused only when the table for large counts is full.
                if device.dup(slot).is_ok() {
                    owned.push(slot);
                }
            }
            5 => {
                // Somebody's, or nobody's any more.
                let slot = Slot(thread_rng().gen_range(0..device.nr_slots()));
                if let Ok(stored) = device.cache_add(slot, folio) {
                    assert!(stored.count > 0);
                    world.hold(slot, thread);
                    let TableEntry::Cached { folio: holder, .. } = device.get(slot) else {
                        panic!("a slot left the cache without its holder");
                    };
                    assert_eq!(holder, folio);
                    world.release(slot, thread);
                    device.cache_del(slot, stored.shadow);
                }
            }
            7 => {
                device.release_tables(0, 2, |run| {
                    for slot in run.start.first_slot().0..run.end.first_slot().0.min(device.nr_slots()) {
                        assert_eq!(device.get(Slot(slot)), TableEntry::Free);
                    }
                    zero_words(device, run);
                });
            }
            8 => {
                device.discard(2, |run| {
                    for slot in run.start.0..run.end.0.min(device.nr_slots()) {
                        assert_eq!(device.get(Slot(slot)), TableEntry::Free);
                    }
                });
            }
            9 => {
                let mut mover = Mover { world, thread, folio };
                device.compact(order(2), 2, 8, folio, &mut mover);
            }
            10 => {
                if device.begin_shrink(CLUSTER_SLOTS * thread_rng().gen_range(0..2)).is_ok() {
                    thread::yield_now();
                    device.cancel_shrink().unwrap();
                }
            }
            _ => {
                // Others may refer to somebody's slot for a moment, as a copy of its page would.
                let slot = Slot(thread_rng().gen_range(0..device.nr_slots()));
                if device.dup(slot).is_ok() {
                    device.put(slot);
                }
            }
        }
    }
    for slot in owned {
        device.put(slot);
    }
}

fn everything(nr_slots: u32, shards: usize, placement: Placement) {
    explore(move || {
        let world = World::new(nr_slots, shards, placement);
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| {
                let world = world.clone();
                thread::spawn(move || work(&world, thread))
            })
            .collect();
        for thread in threads {
            thread.join().unwrap();
        }
        let summary = world.device.validate().unwrap();
        assert_eq!((summary.slots_used, summary.counts_overflowed), (0, 0));
        let mut all = vec![Slot(0); nr_slots as usize + 1];
        let found = world.device.alloc(Shard(0), Order::ZERO, Folio::new(0).unwrap(), &mut all);
        assert_eq!(found, nr_slots as usize);
    });
}

#[test]
fn a_sharded_device_stays_consistent_under_random_schedules() {
    everything(2 * CLUSTER_SLOTS + 3, 2, Placement::Sharded);
}

#[test]
fn a_scarce_device_stays_consistent_under_random_schedules() {
    everything(CLUSTER_SLOTS / 2, 3, Placement::Sharded);
}

#[test]
fn a_sequential_device_stays_consistent_under_random_schedules() {
    everything(2 * CLUSTER_SLOTS, 2, Placement::Sequential);
}
