//! Threads that replace slots at random: how many a second, and how long they wait for each other.

use crate::design::Design;
use crate::rng::Rng;
use crate::waits::{self, Waits};
use ebb_slots::{Order, Slot};
use std::collections::BTreeMap;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Slots that a thread holds.
const HELD: usize = 8192;

pub struct Outcome {
    /// Allocations and frees, one of each, a second.
    pub pairs_per_s: f64,
    pub waits: BTreeMap<&'static str, Waits>,
    /// Of the allocations of a large order, those that found a run.
    pub large_ok: f64,
    /// Bytes that a device of this size costs for each slot: at rest, and for each slot of a cluster in use.
    pub bytes_per_slot: (f64, f64),
}

/// Runs `threads` for a while. One in `large_one_in` allocations is of order 4; 0 for none.
pub fn run<D: Design>(threads: usize, seconds: f64, large_one_in: usize) -> Outcome {
    let design = D::new(1 << 20, threads);
    let (stop, barrier) = (AtomicBool::new(false), Barrier::new(threads + 1));
    let (mut pairs, mut tried, mut found) = (0u64, 0u64, 0u64);
    let mut took = Duration::ZERO;
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
        for worker in workers {
            let (done, large_tried, large_found) = worker.join().expect("a worker does not panic");
            pairs += done;
            tried += large_tried;
            found += large_found;
        }
        took = begin.elapsed();
    });
    design.device().validate().expect("a consistent device");
    assert_eq!(design.device().nr_used(), 0);
    let nr_slots = design.device().nr_slots() as usize;
    let words = nr_slots * size_of::<u64>();
    let rest = ebb_slots::metadata_bytes(nr_slots as u32, threads) - words;
    Outcome {
        pairs_per_s: pairs as f64 / took.as_secs_f64(),
        waits: waits::take(),
        large_ok: if tried == 0 { 1.0 } else { found as f64 / tried as f64 },
        bytes_per_slot: (rest as f64 / nr_slots as f64, size_of::<u64>() as f64),
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
    let mut rng = Rng::new(index as u64 + 1);
    let large = Order::new(4).expect("an order");
    let mut held: Vec<(Slot, Order)> = Vec::with_capacity(HELD);
    while held.len() < HELD {
        let slot = design.alloc(&mut thread, Order::ZERO).expect("room");
        held.push((slot, Order::ZERO));
    }
    barrier.wait();
    let (mut done, mut tried, mut found) = (0, 0, 0);
    while !stop.load(Ordering::Relaxed) {
        for _ in 0..64 {
            let at = rng.below(HELD);
            let (slot, order) = held[at];
            design.free(&mut thread, slot, order);
            let mut order = Order::ZERO;
            if large_one_in > 0 && rng.below(large_one_in) == 0 {
                order = large;
                tried += 1;
            }
            let slot = design.alloc(&mut thread, order).inspect(|_| found += u64::from(order != Order::ZERO));
            held[at] = match slot {
                Some(slot) => (slot, order),
                None => (design.alloc(&mut thread, Order::ZERO).expect("room"), Order::ZERO),
            };
            done += 1;
        }
    }
    for (slot, order) in held {
        design.free(&mut thread, slot, order);
    }
    design.leave(thread);
    (done, tried, found)
}

/// Nanoseconds of an allocation, and of a free, by one thread, one at a time.
pub fn one_thread_ns<D: Design>(order: Order, rounds: usize) -> (f64, f64) {
    let design = D::new(1 << 20, 1);
    let mut thread = design.thread(0);
    let mut held: Vec<Slot> = Vec::new();
    let (mut alloc, mut free) = (Duration::ZERO, Duration::ZERO);
    // By turns, so that neither finds only what the other has just touched.
    for _ in 0..rounds.div_ceil(256) {
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
