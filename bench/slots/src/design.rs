//! Two designs behind one interface: one lock a device with slot caches in front, as the kernel had it, and clusters
//! with locks of their own, as it has now.

use crate::device;
use ebb_slots::{Folio, Options, Order, Placement, Shard, Slot, SwapDevice};
use ebb_sync::Lock;

/// Slots of a thread's cache, as the kernel's SWAP_SLOTS_CACHE_SIZE.
const CACHE_SLOTS: usize = 64;

ebb_sync::lock_classes! {
    /// The one lock of the old design: the kernel's `si->lock`.
    OneDeviceLock = "one device lock";
}

pub const FOLIO: Folio = match Folio::new(1) {
    Some(folio) => folio,
    None => panic!("1 has at most 40 bits"),
};

/// A way to allocate and free.
pub trait Design: Sync {
    const NAME: &'static str;
    /// What a thread keeps for itself.
    type Thread: Send;

    fn new(nr_slots: u32, shards: usize) -> Self;
    fn thread(&self, index: usize) -> Self::Thread;
    fn alloc(&self, thread: &mut Self::Thread, order: Order) -> Option<Slot>;
    fn free(&self, thread: &mut Self::Thread, slot: Slot, order: Order);
    /// Gives back what the thread has kept.
    fn leave(&self, thread: Self::Thread);
    fn device(&self) -> &SwapDevice;
}

/// Clusters with a lock each.
pub struct Clusters(SwapDevice);

impl Design for Clusters {
    const NAME: &'static str = "clusters";
    type Thread = Shard;

    fn new(nr_slots: u32, shards: usize) -> Self {
        Self(device::new(&Options::fixed(nr_slots, shards, Placement::Sharded)))
    }

    fn thread(&self, index: usize) -> Shard {
        Shard(index)
    }

    fn alloc(&self, shard: &mut Shard, order: Order) -> Option<Slot> {
        let mut out = [Slot(0)];
        (self.0.alloc(*shard, order, FOLIO, &mut out) == 1).then_some(out[0])
    }

    fn free(&self, _shard: &mut Shard, slot: Slot, order: Order) {
        self.0.free_run(slot, order);
    }

    fn leave(&self, _shard: Shard) {}

    fn device(&self) -> &SwapDevice {
        &self.0
    }
}

/// One lock for everything, and caches of single slots on the way out and on the way back.
pub struct OneLock {
    lock: Lock<(), OneDeviceLock>,
    device: SwapDevice,
}

#[derive(Default)]
pub struct Caches {
    shard: usize,
    ready: Vec<Slot>,
    freed: Vec<Slot>,
}

impl OneLock {
    fn flush(&self, freed: &mut Vec<Slot>) {
        let _guard = self.lock.lock();
        for slot in freed.drain(..) {
            self.device.free_run(slot, Order::ZERO);
        }
    }
}

impl Design for OneLock {
    const NAME: &'static str = "one lock";
    type Thread = Caches;

    fn new(nr_slots: u32, shards: usize) -> Self {
        Self { lock: Lock::new(()), device: device::new(&Options::fixed(nr_slots, shards, Placement::Sharded)) }
    }

    fn thread(&self, index: usize) -> Caches {
        Caches { shard: index, ..Caches::default() }
    }

    fn alloc(&self, caches: &mut Caches, order: Order) -> Option<Slot> {
        if order == Order::ZERO {
            if caches.ready.is_empty() {
                let mut out = [Slot(0); CACHE_SLOTS];
                let _guard = self.lock.lock();
                let n = self.device.alloc(Shard(caches.shard), order, FOLIO, &mut out);
                caches.ready.extend(out[..n].iter().rev());
            }
            return caches.ready.pop();
        }
        let mut out = [Slot(0)];
        let _guard = self.lock.lock();
        (self.device.alloc(Shard(caches.shard), order, FOLIO, &mut out) == 1).then_some(out[0])
    }

    fn free(&self, caches: &mut Caches, slot: Slot, order: Order) {
        if order == Order::ZERO {
            caches.freed.push(slot);
            if caches.freed.len() == CACHE_SLOTS {
                self.flush(&mut caches.freed);
            }
            return;
        }
        let _guard = self.lock.lock();
        self.device.free_run(slot, order);
    }

    fn leave(&self, mut caches: Caches) {
        self.flush(&mut caches.freed);
        self.flush(&mut caches.ready);
    }

    fn device(&self) -> &SwapDevice {
        &self.device
    }
}
