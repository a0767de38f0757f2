//! Whether what several writers write to a rotational device lies in a row.

use crate::design::FOLIO;
use crate::device;
use ebb_slots::{Options, Order, Placement, Shadow, Shard, Slot, SwapDevice};
use fastrand::Rng;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

const NR_SLOTS: u32 = 1 << 18;
const WRITES: usize = 200_000;

/// Of the writes of `writers` threads, in the order in which they were begun, the share that follows the one before: as
/// they come, and as a queue of as many requests as there are writers sorts them. Slots are freed at random meanwhile.
pub fn sequential(writers: usize) -> (f64, f64) {
    let device = device::new(&Options::fixed(NR_SLOTS, writers, Placement::Sequential));
    let log: Vec<AtomicU32> = (0..WRITES).map(|_| AtomicU32::new(0)).collect();
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for writer in 0..writers {
            let (device, log, next) = (&device, &log, &next);
            scope.spawn(move || write(device, writer, log, next));
        }
    });
    let slots: Vec<u32> = log.into_iter().map(AtomicU32::into_inner).collect();
    let follows = |slots: &[u32]| slots.windows(2).filter(|pair| pair[1] == pair[0] + 1).count() as f64 / WRITES as f64;
    // An elevator: of the requests that wait, the next one upwards from the last.
    let (mut queue, mut sorted, mut rest) = (Vec::new(), Vec::with_capacity(WRITES), slots.iter());
    let mut at = 0;
    loop {
        while queue.len() < writers
            && let Some(slot) = rest.next()
        {
            queue.push(*slot);
        }
        let Some((index, _)) = queue.iter().enumerate().min_by_key(|(_, slot)| slot.wrapping_sub(at)) else { break };
        at = queue.swap_remove(index);
        sorted.push(at);
    }
    (follows(&slots), follows(&sorted))
}

fn write(device: &SwapDevice, writer: usize, log: &[AtomicU32], next: &AtomicUsize) {
    let mut rng = Rng::with_seed(writer as u64 + 1);
    let mut held = Vec::new();
    loop {
        let mut out = [Slot(0)];
        assert_eq!(device.alloc(Shard(writer), Order::ZERO, FOLIO, &mut out), 1);
        let at = next.fetch_add(1, Ordering::Relaxed);
        if at >= log.len() {
            return;
        }
        log[at].store(out[0].0, Ordering::Relaxed);
        held.push(out[0]);
        // A tenth of what was written is read back and freed.
        if rng.usize(..10) == 0 {
            let slot = held.swap_remove(rng.usize(..held.len()));
            device.cache_del(slot, Shadow(0));
        }
    }
}
