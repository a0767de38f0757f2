//! A device over memory that the kernel commits by touch costs what it uses, not what it could use. A process of its
//! own: other tests would change what is measured.
#![cfg(not(any(loom, shuttle, miri)))]

mod common;

use common::TestDevice;
use ebb_slots::{Folio, Order, Placement, Shadow, Shard, Slot};

fn resident_pages() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse().unwrap()
}

#[test]
fn init_and_the_use_of_one_cluster_touch_only_a_few_pages() {
    resident_pages();
    let before = resident_pages();
    let device = TestDevice::new(1 << 25, 8, Placement::Sharded);
    let mut slots = [Slot(0); 500];
    let folio = Folio::new(0).unwrap();
    for _ in 0..10_000 {
        assert_eq!(device.alloc(Shard(3), Order::ZERO, folio, &mut slots), slots.len());
        for slot in slots {
            assert!(device.cache_del(slot, Shadow(0)));
        }
    }
    let touched = resident_pages() - before;
    assert!(touched < 64, "{touched} pages became resident");
}
