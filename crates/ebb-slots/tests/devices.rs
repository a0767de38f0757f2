//! Several devices by priority against a naive model: which one is asked first, where slots come from, and what is left
//! when devices come, go and shrink meanwhile.
#![cfg(not(any(loom, shuttle)))]

mod common;

use common::TestDevice;
use ebb_slots::*;
use proptest::prelude::*;
use std::collections::BTreeSet;

const DEVICES: usize = 5;
const CLUSTERS: u32 = 3;

#[derive(Debug, Clone)]
enum Step {
    Add { device: usize, priority: i16 },
    Remove { device: usize },
    Alloc { order: u8, runs: usize },
    Free { nth: usize },
    Order { turn: u32 },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        2 => (0..DEVICES, -2..3i16).prop_map(|(device, priority)| Step::Add { device, priority }),
        1 => (0..DEVICES).prop_map(|device| Step::Remove { device }),
        6 => (prop_oneof![Just(0u8), Just(4), Just(9)], 1..40usize).prop_map(|(order, runs)| Step::Alloc { order, runs }),
        6 => any::<usize>().prop_map(|nth| Step::Free { nth }),
        2 => any::<u32>().prop_map(|turn| Step::Order { turn }),
    ]
}

/// Devices in the order in which they were added, with their priorities.
type Naive = Vec<(usize, i16)>;

fn naive_order(list: &Naive, turn: u32) -> Vec<usize> {
    let mut priorities: Vec<i16> = list.iter().map(|(_, priority)| *priority).collect();
    priorities.sort_unstable();
    priorities.dedup();
    let equals = |priority| list.iter().filter(move |entry| entry.1 == priority).map(|entry| entry.0);
    let turned = |priority| {
        let mut group: Vec<usize> = equals(priority).collect();
        let first = turn as usize % group.len();
        group.rotate_left(first);
        group
    };
    priorities.into_iter().rev().flat_map(turned).collect()
}

/// A run in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Run {
    device: usize,
    first: u32,
    order: u8,
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn devices_are_asked_by_priority_and_lose_nothing(steps in proptest::collection::vec(step(), 1..120)) {
        let devices: Vec<TestDevice> =
            (0..DEVICES).map(|_| TestDevice::new(CLUSTERS * CLUSTER_SLOTS, 1, Placement::Sharded)).collect();
        let list = Priorities::new();
        let mut naive = Naive::new();
        let mut used = BTreeSet::new();
        let mut turn = 0;
        for step in steps {
            match step {
                Step::Add { device, priority } => {
                    let is_new = naive.iter().all(|entry| entry.0 != device);
                    prop_assert_eq!(list.add(device as u8, priority), is_new);
                    if is_new {
                        naive.push((device, priority));
                    }
                }
                Step::Remove { device } => {
                    let was = naive.iter().position(|entry| entry.0 == device);
                    prop_assert_eq!(list.remove(device as u8), was.is_some());
                    if let Some(at) = was {
                        naive.remove(at);
                    }
                }
                Step::Order { turn: new } => turn = new,
                Step::Alloc { order, runs } => {
                    let mut by_priority = [0; DEVICES_MAX];
                    let n = list.order(turn, &mut by_priority);
                    let asked: Vec<usize> = by_priority[..n].iter().map(|device| *device as usize).collect();
                    prop_assert_eq!(&asked, &naive_order(&naive, turn));
                    let folio = Folio::new(1).unwrap();
                    let kind = Order::new(order).unwrap();
                    let mut left = runs;
                    for device in asked {
                        let mut out = vec![Slot(0); left];
                        let got = devices[device].alloc(Shard(0), kind, folio, &mut out);
                        for slot in &out[..got] {
                            let run = Run { device, first: slot.0, order };
                            let overlaps = |other: &Run| {
                                other.device == device
                                    && slot.0 < other.first + (1 << other.order)
                                    && other.first < slot.0 + (1 << order)
                            };
                            prop_assert!(slot.0.is_multiple_of(1 << order) && !used.iter().any(overlaps), "{:?}", run);
                            used.insert(run);
                        }
                        left -= got;
                        // A device passes single slots on only when it is full.
                        let in_use: u32 = used.iter().filter(|run| run.device == device).map(|run| 1 << run.order).sum();
                        prop_assert!(left == 0 || order > 0 || in_use == CLUSTERS * CLUSTER_SLOTS);
                        if left == 0 {
                            break;
                        }
                    }
                }
                Step::Free { nth } if !used.is_empty() => {
                    let run = *used.iter().nth(nth % used.len()).unwrap();
                    used.remove(&run);
                    devices[run.device].free_run(Slot(run.first), Order::new(run.order).unwrap());
                }
                Step::Free { .. } => {}
            }
        }
        for (i, device) in devices.iter().enumerate() {
            let in_use: u32 = used.iter().filter(|run| run.device == i).map(|run| 1 << run.order).sum();
            prop_assert_eq!(device.validate().unwrap().slots_used, in_use);
            // A device that goes for good: everything that is in use is shown, and nothing else.
            device.begin_shrink(0).unwrap();
            let mut at = Slot(0);
            let mut shown = 0;
            while let Some(slot) = device.next_used(at) {
                shown += 1;
                at = Slot(slot.0 + 1);
            }
            prop_assert_eq!(shown, in_use);
            match device.end_shrink() {
                Ok(_) => prop_assert_eq!(in_use, 0),
                Err(error) => prop_assert_eq!(error, ResizeError::InUse { slots: in_use }),
            }
        }
    }
}
