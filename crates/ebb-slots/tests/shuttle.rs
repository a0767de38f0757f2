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
    /// Whose clean page a resident slot has: thread plus 1; 0 is nobody, or `BUSY`. The page's state word.
    clean: Vec<AtomicU64>,
}

const BUSY: u64 = u64::MAX;

impl World {
    fn new(nr_slots: u32, shards: usize, placement: Placement) -> Arc<Self> {
        let zeros = || (0..nr_slots).map(|_| AtomicU64::new(0)).collect();
        let (holder, clean) = (zeros(), zeros());
        let options = Options { discards: shards == 2, ..Options::fixed(nr_slots, shards, placement) };
        Arc::new(Self { device: TestDevice::with(&options), holder, clean })
    }

    fn hold(&self, slot: Slot, thread: usize) {
        assert_eq!(self.holder[slot.0 as usize].load(Ordering::Relaxed), 0);
        self.holder[slot.0 as usize].store(thread as u64 + 1, Ordering::Relaxed);
    }

    /// Claims a clean page of `thread`, which the slot is resident for; or of anybody.
    fn claim(&self, slot: Slot, thread: Option<usize>) -> Option<u64> {
        let state = &self.clean[slot.0 as usize];
        let now = thread.map_or_else(|| state.load(Ordering::Relaxed), |thread| thread as u64 + 1);
        let claimable = now != 0 && now != BUSY;
        let claims = || state.compare_exchange(now, BUSY, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        (claimable && claims()).then_some(now)
    }

    fn settle(&self, slot: Slot, state: u64) {
        assert_eq!(self.clean[slot.0 as usize].swap(state, Ordering::Release), BUSY);
    }

    fn lock(&self, slot: Slot, thread: usize) -> Locked {
        loop {
            match self.device.lock(slot, Folio::new(9).unwrap()) {
                Ok(locked) => {
                    self.hold(slot, thread);
                    return locked;
                }
                Err(error) => assert_eq!(error, LockError::Locked),
            }
            thread::yield_now();
        }
    }

    /// A stored slot that is the thread's to lock has its clean page from now on, in place of a reference.
    fn bring_in(&self, slot: Slot, thread: usize) -> bool {
        let locked = self.lock(slot, thread);
        let is_stored = matches!(locked, Locked::Stored(_));
        if is_stored {
            assert!(self.device.cache_replace(slot, Folio::new(thread as u64 + 1).unwrap()));
            assert_eq!(self.clean[slot.0 as usize].swap(thread as u64 + 1, Ordering::Release), 0);
        }
        self.release(slot, thread);
        if is_stored {
            self.device.settle(slot)
        } else {
            self.device.unlock(slot)
        }
        is_stored
    }

    /// Makes the thread's clean page an ordinary one, unless it is already.
    fn open(&self, slot: Slot, thread: usize) {
        if self.claim_own(slot, thread) {
            self.open_claimed(slot, thread);
        }
    }

    /// Claims the thread's clean page, if it still is one. Who else claims it may leave it as it was, so that is waited for.
    fn claim_own(&self, slot: Slot, thread: usize) -> bool {
        while self.claim(slot, Some(thread)).is_none() {
            if self.clean[slot.0 as usize].load(Ordering::Relaxed) != BUSY {
                return false;
            }
            thread::yield_now();
        }
        true
    }

    /// Nobody makes the slot another page's while it is in the cache: so the page's state goes first.
    fn open_claimed(&self, slot: Slot, thread: usize) {
        assert!(matches!(self.lock(slot, thread), Locked::Resident(_)));
        self.settle(slot, 0);
        self.release(slot, thread);
        self.device.cache_del(slot, Shadow(3));
    }

    /// Evicts the thread's clean page, if it still is one and may be referred to; whether it did.
    fn evict(&self, slot: Slot, thread: usize) -> bool {
        if !self.claim_own(slot, thread) {
            return false;
        }
        self.settle(slot, 0);
        loop {
            match self.device.evict(slot, Shadow(6)) {
                Ok(()) => return true,
                Err(EvictError::Locked) => thread::yield_now(),
                Err(EvictError::CountOverflow) => break,
                Err(EvictError::NotCached) => panic!("a clean page's slot left the cache"),
            }
        }
        self.lock(slot, thread);
        self.release(slot, thread);
        self.device.cache_del(slot, Shadow(3));
        false
    }

    /// Frees a cache-only slot, if its page lets go of it.
    fn reclaim(&self, slot: Slot, thread: usize) -> bool {
        let Some(state) = self.claim(slot, None) else { return false };
        if self.device.lock(slot, Folio::new(9).unwrap()).is_err() {
            self.settle(slot, state);
            return false;
        }
        self.hold(slot, thread);
        let is_shared = !matches!(self.device.get(slot), TableEntry::Cached { count: 0, .. });
        self.settle(slot, if is_shared { state } else { 0 });
        self.release(slot, thread);
        if is_shared {
            self.device.unlock(slot);
            return false;
        }
        // Shared by now, perhaps: then it is stored, and that is as well.
        self.device.cache_del(slot, Shadow(4))
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
    // Where clean pages of its own are, or were: others reclaim them.
    let mut clean: Vec<Slot> = Vec::new();
    for _ in 0..STEPS {
        match thread_rng().gen_range(0..19) {
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
            11 | 12 => {
                let Some(slot) = owned.pop() else { continue };
                if world.bring_in(slot, thread) {
                    clean.push(slot);
                } else {
                    owned.push(slot);
                }
            }
            13 => {
                let Some(slot) = clean.pop() else { continue };
                if world.evict(slot, thread) {
                    owned.push(slot);
                }
            }
            14 => {
                let Some(slot) = clean.pop() else { continue };
                world.open(slot, thread);
            }
            15 => {
                device.reclaim_full(2, |slot, _| world.reclaim(slot, thread));
            }
            16 => {
                let order = order(thread_rng().gen_range(0..=2));
                let mut out = [Slot(0); 2];
                let found = device
                    .alloc_reclaiming(Shard(thread), order, folio, &mut out, |slot, _| world.reclaim(slot, thread));
                for first in &out[..found] {
                    for slot in (first.0..first.0 + order.slots()).map(Slot) {
                        world.hold(slot, thread);
                        world.release(slot, thread);
                        device.cache_del(slot, Shadow(8));
                    }
                }
            }
            17 => {
                let mut out = [Slot(0); 2];
                let found = match thread_rng().gen_range(0..2) {
                    0 => device.alloc_touched(Shard(thread), order(0), folio, &mut out),
                    _ => device.alloc_wanted(folio, &mut out, |slot| slot.0 % 2 == 0),
                };
                for slot in out[..found].iter().copied() {
                    world.hold(slot, thread);
                    world.release(slot, thread);
                    device.cache_del(slot, Shadow(9));
                }
            }
            18 => {
                let mut mover = Mover { world, thread, folio };
                device.drain_sparsest(4, CLUSTER_SLOTS - 1, |slots| {
                    let is_free = |slot: &Slot| matches!(device.get(*slot), TableEntry::Free);
                    let free: Vec<_> = (slots.start.0..slots.end.0).map(Slot).filter(is_free).collect();
                    for from in (slots.start.0..slots.end.0).map(Slot) {
                        let mut to = [Slot(0)];
                        let is_used = !matches!(device.get(from), TableEntry::Free);
                        if !is_used || device.alloc_touched(Shard(thread), Order::ZERO, folio, &mut to) == 0 {
                            continue;
                        }
                        assert_ne!(to[0].cluster(), slots.start.cluster());
                        if !mover.relocate(from, to[0]) {
                            device.cache_del(to[0], Shadow(0));
                        }
                    }
                    // Whoever cleans it reads what was there, so nobody may write to it.
                    assert!(free.iter().all(is_free), "allocated from a cluster that is drained");
                });
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
    for slot in clean {
        world.open(slot, thread);
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

/// Threads free what they stored, in rows, while others lock any slot to move its content.
#[test]
fn rows_are_freed_while_others_move_content() {
    explore(|| {
        let options = Options { discards: true, ..Options::fixed(2 * CLUSTER_SLOTS, 2, Placement::Sharded) };
        let device = Arc::new(TestDevice::with(&options));
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| {
                let device = device.clone();
                thread::spawn(move || (0..STEPS / 4).for_each(|_| store_and_free(&device, thread)))
            })
            .collect();
        for thread in threads {
            thread.join().unwrap();
        }
        assert_eq!(device.validate().unwrap().slots_used, 0);
    });
}

fn store_and_free(device: &SwapDevice, thread: usize) {
    let folio = Folio::new(thread as u64 + 1).unwrap();
    let mut slots = [Slot(0); 7];
    let n = device.alloc(Shard(thread), Order::ZERO, folio, &mut slots[..thread_rng().gen_range(1..=7)]);
    for slot in &slots[..n] {
        device.dup(*slot).unwrap();
        assert!(!device.cache_del(*slot, Shadow(thread as u32)));
    }
    let any = Slot(thread_rng().gen_range(0..device.nr_slots()));
    if let Ok(Locked::Stored(stored)) = device.lock(any, Folio::new(9).unwrap()) {
        thread::yield_now();
        assert!(!device.cache_del(any, stored.shadow));
    }
    for slot in &slots[..n] {
        let was = loop {
            match device.lock(*slot, folio) {
                Ok(was) => break was,
                Err(error) => assert_eq!(error, LockError::Locked),
            }
            thread::yield_now();
        };
        assert_eq!(was, Locked::Stored(Stored { count: 1, shadow: Shadow(thread as u32), zero: false }));
        assert!(was.is_last(folio));
    }
    device.free_all(&slots[..n]);
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
