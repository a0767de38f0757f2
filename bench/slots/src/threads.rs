//! Threads that replace slots at random: how many a second, and how long they wait for each other.

use crate::design::{Design, FOLIO};
use crate::waits::{self, Waits};
use ebb_slots::{CLUSTER_SLOTS, Options, Order, Placement, Shadow, Shard, Slot, SwapDevice, TableEntry};
use fastrand::Rng;
use std::collections::BTreeMap;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Slots, or runs, that a thread holds.
const HELD: usize = 8192;

/// The large order: 64 KiB.
const LARGE: Order = match Order::new(4) {
    Some(order) => order,
    None => panic!("a cluster holds 16 slots"),
};

/// Of a device in percent, what its threads would hold if every large run were found.
const DEMAND: usize = 98;

pub struct Outcome {
    /// Allocations and frees, one of each, a second.
    pub pairs_per_s: f64,
    pub waits: BTreeMap<&'static str, Waits>,
    /// Of the allocations of a large order, those that found a run.
    pub large_ok: f64,
    /// How the device looks in the end, before the threads free what they hold.
    pub state: State,
}

/// What a device full of slots and runs is like, all shares of 1.
#[derive(Clone, Copy, Default)]
pub struct State {
    /// Of the slots, those in use.
    pub used: f64,
    /// Of the free slots, those in an aligned free run of the large order.
    pub in_runs: f64,
    /// Of the clusters with that many free slots, those without such a run.
    pub fragmented: f64,
}

impl State {
    /// Of a device that nobody uses at the moment.
    fn of(device: &SwapDevice) -> Self {
        let is_free: Vec<bool> =
            (0..device.nr_slots()).map(|slot| device.get(Slot(slot)) == TableEntry::Free).collect();
        let free = |slots: &[bool]| slots.iter().filter(|is_free| **is_free).count();
        let run = LARGE.slots() as usize;
        let runs = |slots: &[bool]| slots.chunks_exact(run).filter(|slots| free(slots) == run).count();
        let roomy = || is_free.chunks(CLUSTER_SLOTS as usize).filter(|slots| free(slots) >= run);
        let share = |part: usize, of: usize| if of == 0 { 0.0 } else { part as f64 / of as f64 };
        Self {
            used: 1.0 - share(free(&is_free), is_free.len()),
            in_runs: share(runs(&is_free) * run, free(&is_free)),
            fragmented: share(roomy().filter(|slots| runs(slots) == 0).count(), roomy().count()),
        }
    }
}

/// Runs `threads` for a while. One in `large_one_in` allocations is of order 4; 0 for none.
pub fn run<D: Design>(threads: usize, seconds: f64, large_one_in: usize) -> Outcome {
    let share = match large_one_in {
        0 => 1 << 20,
        one_in => HELD * (LARGE.slots() as usize + one_in - 1) / one_in * 100 / DEMAND * threads,
    };
    let design = D::new(share as u32, threads);
    let (stop, barrier) = (AtomicBool::new(false), Barrier::new(threads + 1));
    let (mut pairs, mut tried, mut found) = (0u64, 0u64, 0u64);
    let (mut took, mut state, mut waits) = (Duration::ZERO, State::default(), BTreeMap::new());
    waits::take();
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|index| {
                let (design, stop, barrier) = (&design, &stop, &barrier);
                scope.spawn(move || work(design, index, large_one_in, stop, barrier))
            })
            .collect();
        barrier.wait();
        let begin = Instant::now();
        std::thread::sleep(Duration::from_secs_f64(seconds));
        stop.store(true, Ordering::Relaxed);
        barrier.wait();
        took = begin.elapsed();
        waits = waits::take();
        if large_one_in > 0 {
            state = State::of(design.device());
        }
        barrier.wait();
        for worker in workers {
            let (done, large_tried, large_found) = worker.join().expect("a worker does not panic");
            pairs += done;
            tried += large_tried;
            found += large_found;
        }
    });
    design.device().validate().expect("a consistent device");
    assert_eq!(design.device().nr_used(), 0);
    Outcome {
        pairs_per_s: pairs as f64 / took.as_secs_f64(),
        waits,
        large_ok: if tried == 0 { 1.0 } else { found as f64 / tried as f64 },
        state,
    }
}

fn work<D: Design>(
    design: &D,
    index: usize,
    large_one_in: usize,
    stop: &AtomicBool,
    barrier: &Barrier,
) -> (u64, u64, u64) {
    let mut thread = design.thread(index);
    let mut rng = Rng::with_seed(index as u64 + 1);
    let mut held: Vec<Option<(Slot, Order)>> = Vec::with_capacity(HELD);
    while held.len() < HELD {
        let slot = design.alloc(&mut thread, Order::ZERO).expect("room");
        held.push(Some((slot, Order::ZERO)));
    }
    barrier.wait();
    let (mut done, mut tried, mut found) = (0, 0, 0);
    while !stop.load(Ordering::Relaxed) {
        for _ in 0..64 {
            let at = rng.usize(..HELD);
            if let Some((slot, order)) = held[at].take() {
                design.free(&mut thread, slot, order);
            }
            if large_one_in > 0 && rng.usize(..large_one_in) == 0 {
                tried += 1;
                held[at] = design.alloc(&mut thread, LARGE).map(|slot| (slot, LARGE));
                found += u64::from(held[at].is_some());
            }
            if held[at].is_none() {
                // None only when others have taken all that is left.
                held[at] = design.alloc(&mut thread, Order::ZERO).map(|slot| (slot, Order::ZERO));
            }
            done += 1;
        }
    }
    barrier.wait();
    // Somebody looks at the device.
    barrier.wait();
    for (slot, order) in held.into_iter().flatten() {
        design.free(&mut thread, slot, order);
    }
    design.leave(thread);
    (done, tried, found)
}

/// Nanoseconds of a slot's allocation in batches of `batch`, by one thread.
pub fn batch_ns(batch: usize, rounds: usize) -> f64 {
    let device = crate::device::new(&Options::fixed(1 << 20, 1, Placement::Sharded));
    let mut slots = vec![Slot(0); 4096];
    let mut took = Duration::ZERO;
    for _ in 0..rounds.div_ceil(slots.len()) {
        let begin = Instant::now();
        for out in slots.chunks_mut(batch) {
            assert_eq!(device.alloc(Shard(0), Order::ZERO, FOLIO, out), out.len());
        }
        took += begin.elapsed();
        for slot in &slots {
            assert!(device.cache_del(*slot, Shadow(0)));
        }
    }
    took.as_nanos() as f64 / (rounds.div_ceil(slots.len()) * slots.len()) as f64
}

/// Nanoseconds that a page's way in and out costs in words and slots, on a device that is 95 % full of single slots.
pub fn swap_ns(rounds: usize) -> f64 {
    let device = crate::device::new(&Options::fixed(1 << 20, 1, Placement::Sharded));
    let mut slots = vec![Slot(0); (1 << 20) * 95 / 100];
    assert_eq!(device.alloc(Shard(0), Order::ZERO, FOLIO, &mut slots), slots.len());
    for slot in &slots {
        device.dup(*slot).expect("a count that fits");
        device.cache_del(*slot, Shadow(0));
    }
    let mut rng = Rng::with_seed(1);
    let begin = Instant::now();
    for _ in 0..rounds {
        let at = rng.usize(..slots.len());
        let slot = &mut slots[at];
        device.cache_add(*slot, FOLIO).expect("a stored slot");
        device.put(*slot);
        assert!(device.cache_del(*slot, Shadow(0)));
        assert_eq!(device.alloc(Shard(0), Order::ZERO, FOLIO, std::slice::from_mut(slot)), 1);
        device.dup(*slot).expect("a count that fits");
        device.cache_del(*slot, Shadow(0));
    }
    begin.elapsed().as_nanos() as f64 / rounds as f64
}

/// Nanoseconds of an allocation, and of a free, by one thread, one at a time.
pub fn one_thread_ns<D: Design>(order: Order, rounds: usize) -> (f64, f64) {
    let design = D::new(1 << 20, 1);
    let mut thread = design.thread(0);
    let mut held: Vec<Slot> = Vec::new();
    let (mut alloc, mut free) = (Duration::ZERO, Duration::ZERO);
    // By turns, so that neither finds only what the other has just touched. The first one has the kernel give memory to
    // the tables, and does not count.
    for turn in 0..rounds.div_ceil(256) + 1 {
        if turn == 1 {
            (alloc, free) = (Duration::ZERO, Duration::ZERO);
        }
        let begin = Instant::now();
        held.extend((0..256).filter_map(|_| design.alloc(&mut thread, order)));
        alloc += begin.elapsed();
        assert_eq!(held.len(), 256);
        let begin = Instant::now();
        held.drain(..).for_each(|slot| design.free(&mut thread, slot, order));
        free += begin.elapsed();
    }
    let turns = (rounds.div_ceil(256) * 256) as f64;
    (alloc.as_nanos() as f64 / turns, free.as_nanos() as f64 / turns)
}
