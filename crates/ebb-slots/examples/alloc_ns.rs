//! Prints what allocating and freeing a slot costs, alone and in batches, by one thread and by two.
//!
//! `cargo run -p ebb-slots --release --example alloc_ns`

use ebb_slots::{Folio, Order, Placement, Shadow, Shard, Slot, SwapDevice};
use std::time::Instant;

#[path = "../tests/common/mod.rs"]
mod common;
use common::TestDevice;

const NR_SLOTS: u32 = 1 << 20;

/// Keeps `held` slots, replaces them all `rounds` times in batches; nanoseconds a slot, allocation and free.
fn replace(device: &SwapDevice, shard: Shard, held: usize, batch: usize, rounds: usize) -> (f64, f64) {
    let folio = Folio::new(1).unwrap();
    let mut slots = vec![Slot(0); held];
    let (mut alloc_ns, mut free_ns) = (0, 0);
    for _ in 0..rounds {
        let start = Instant::now();
        for out in slots.chunks_mut(batch) {
            assert_eq!(device.alloc(shard, Order::ZERO, folio, out), out.len());
        }
        alloc_ns += start.elapsed().as_nanos();
        let start = Instant::now();
        for slot in &slots {
            assert!(device.cache_del(*slot, Shadow(0)));
        }
        free_ns += start.elapsed().as_nanos();
    }
    let slots = (held * rounds) as f64;
    (alloc_ns as f64 / slots, free_ns as f64 / slots)
}

fn main() {
    println!("one thread, 4096 slots held, ns a slot");
    for batch in [1, 16, 64] {
        let device = TestDevice::new(NR_SLOTS, 2, Placement::Sharded);
        replace(&device, Shard(0), 4096, batch, 20);
        let (alloc, free) = replace(&device, Shard(0), 4096, batch, 500);
        println!("  batch {batch:3}: alloc {alloc:5.1}  free {free:5.1}  sum {:5.1}", alloc + free);
        device.validate().unwrap();
    }

    println!("two threads, a shard each, 4096 slots held each, ns a slot");
    for batch in [1, 16, 64] {
        let device = TestDevice::new(NR_SLOTS, 2, Placement::Sharded);
        let mut sums = [0.0; 2];
        std::thread::scope(|scope| {
            for (shard, sum) in sums.iter_mut().enumerate() {
                let device = &device;
                scope.spawn(move || {
                    let (alloc, free) = replace(device, Shard(shard), 4096, batch, 500);
                    *sum = alloc + free;
                });
            }
        });
        println!("  batch {batch:3}: sum {:5.1} {:5.1}", sums[0], sums[1]);
        device.validate().unwrap();
    }

    println!("one thread, device 95 % full and fragmented, one slot replaced at a time, ns a slot, table word ops too");
    let device = TestDevice::new(NR_SLOTS, 2, Placement::Sharded);
    let folio = Folio::new(1).unwrap();
    let mut slots = vec![Slot(0); NR_SLOTS as usize * 95 / 100];
    assert_eq!(device.alloc(Shard(0), Order::ZERO, folio, &mut slots), slots.len());
    for slot in &slots {
        device.dup(*slot).unwrap();
        assert!(!device.cache_del(*slot, Shadow(0)));
    }
    let rounds = 2_000_000;
    let mut seed = 1_u64;
    let mut replace_one = || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let index = (seed >> 33) as usize % slots.len();
        let slot = &mut slots[index];
        device.cache_add(*slot, folio).unwrap();
        device.put(*slot);
        assert!(device.cache_del(*slot, Shadow(0)));
        assert_eq!(device.alloc(Shard(0), Order::ZERO, folio, std::slice::from_mut(slot)), 1);
        device.dup(*slot).unwrap();
        device.cache_del(*slot, Shadow(0));
    };
    for _ in 0..rounds / 2 {
        replace_one();
    }
    let start = Instant::now();
    for _ in 0..rounds {
        replace_one();
    }
    println!("  swap-in and swap-out: {:5.1}", start.elapsed().as_nanos() as f64 / f64::from(rounds));
    println!("  {:?}", device.validate().unwrap());
}
