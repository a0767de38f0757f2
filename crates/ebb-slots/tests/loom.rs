//! Every interleaving of a few threads on a device of a few slots.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p ebb-slots --features spins --test loom --release`
#![cfg(loom)]

mod common;
#[path = "loom/frees.rs"]
mod frees;
#[path = "loom/resident.rs"]
mod resident;

use common::{TestDevice, zero_words};
use ebb_slots::*;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::thread;

const SHADOW: Shadow = Shadow(5);

fn folio(number: u64) -> Folio {
    Folio::new(number).unwrap()
}

fn order(order: u8) -> Order {
    Order::new(order).unwrap()
}

/// Runs every interleaving; or, where those are too many, those with so many preemptions.
fn explore(preemptions_max: Option<usize>, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = preemptions_max;
    builder.max_branches = 10_000;
    builder.check(model);
}

fn device(nr_slots: u32, shards: usize) -> Arc<TestDevice> {
    Arc::new(TestDevice::new(nr_slots, shards, Placement::Sharded))
}

fn alloc_one(device: &SwapDevice, shard: usize, order: Order, number: u64) -> Option<Slot> {
    let mut out = [Slot(u32::MAX)];
    (device.alloc(Shard(shard), order, folio(number), &mut out) == 1).then_some(out[0])
}

/// A slot in use, referred to once and stored.
fn store_one(device: &SwapDevice) -> Slot {
    let slot = alloc_one(device, 0, Order::ZERO, 1).unwrap();
    device.dup(slot).unwrap();
    assert!(!device.cache_del(slot, SHADOW));
    slot
}

/// Checks that the slot is the caller's alone, by its folio, and frees it.
fn own_and_free(device: &SwapDevice, slot: Slot, number: u64) {
    assert_eq!(device.get(slot), TableEntry::Cached { count: 0, folio: folio(number), zero: false, locked: true });
    assert!(device.cache_del(slot, SHADOW));
}

#[test]
fn two_threads_of_one_shard_never_get_the_same_slot() {
    explore(Some(5), || {
        let device = device(CLUSTER_SLOTS, 1);
        let work = |device: &SwapDevice, number: u64| {
            let first = alloc_one(device, 0, Order::ZERO, number).unwrap();
            let second = alloc_one(device, 0, Order::ZERO, number).unwrap();
            assert_ne!(first, second);
            own_and_free(device, first, number);
            own_and_free(device, second, number);
        };
        let other = {
            let device = device.clone();
            thread::spawn(move || work(&device, 1))
        };
        work(&device, 2);
        other.join().unwrap();
        assert_eq!(device.validate().unwrap().slots_used, 0);
    });
}

#[test]
fn two_shards_that_share_the_last_cluster_never_get_the_same_slot() {
    explore(Some(5), || {
        let device = device(CLUSTER_SLOTS, 2);
        let work = |device: &SwapDevice, shard: usize| {
            let number = shard as u64;
            // Nothing may be found for a moment, while the other thread has the cluster between two places.
            if let Some(slot) = alloc_one(device, shard, Order::ZERO, number) {
                own_and_free(device, slot, number);
            }
        };
        let other = {
            let device = device.clone();
            thread::spawn(move || work(&device, 1))
        };
        work(&device, 0);
        other.join().unwrap();
        assert_eq!(device.validate().unwrap().slots_used, 0);
        assert!(alloc_one(&device, 0, Order::ZERO, 3).is_some());
    });
}

#[test]
fn a_free_that_moves_a_full_cluster_meets_an_allocation_that_wants_it() {
    explore(Some(2), || {
        let device = device(2 * CLUSTER_SLOTS, 1);
        // The first cluster is full and on its list, the second current with one slot left.
        let mut slots = [Slot(0); 2 * CLUSTER_SLOTS as usize - 1];
        assert_eq!(device.alloc(Shard(0), Order::ZERO, folio(1), &mut slots), slots.len());
        let other = {
            let device = device.clone();
            thread::spawn(move || {
                assert!(device.cache_del(Slot(0), SHADOW));
                assert!(device.cache_del(Slot(1), SHADOW));
            })
        };
        let first = alloc_one(&device, 0, Order::ZERO, 2).unwrap();
        let second = alloc_one(&device, 0, Order::ZERO, 2);
        other.join().unwrap();
        assert_ne!(Some(first), second);
        assert_eq!(device.get(first), TableEntry::Cached { count: 0, folio: folio(2), zero: false, locked: true });
        let used = 2 * CLUSTER_SLOTS - 3 + 1 + u32::from(second.is_some());
        assert_eq!(device.validate().unwrap().slots_used, used);
    });
}

#[test]
fn frees_that_empty_a_cluster_meet_an_allocation_of_another_order() {
    explore(None, || {
        let device = device(2 * CLUSTER_SLOTS, 2);
        let mut slots = [Slot(0); CLUSTER_SLOTS as usize + 1];
        assert_eq!(device.alloc(Shard(0), Order::ZERO, folio(1), &mut slots), slots.len());
        assert!(device.cache_del(Slot(2), SHADOW));
        assert!(device.cache_del(Slot(3), SHADOW));
        let other = {
            let device = device.clone();
            thread::spawn(move || {
                assert!(device.cache_del(Slot(0), SHADOW));
                assert!(device.cache_del(Slot(1), SHADOW));
            })
        };
        let large = alloc_one(&device, 1, order(1), 2);
        other.join().unwrap();
        // An empty cluster is what an order needs: the first one's, when both slots were gone by then.
        assert!(large.is_none_or(|slot| slot == Slot(0)));
        device.validate().unwrap();
        assert!(alloc_one(&device, 1, order(1), 2).is_some());
    });
}

#[test]
fn marking_a_slot_bad_meets_its_allocation() {
    explore(None, || {
        let device = device(CLUSTER_SLOTS, 1);
        let other = {
            let device = device.clone();
            thread::spawn(move || device.mark_bad(Slot(0)))
        };
        let slot = alloc_one(&device, 0, Order::ZERO, 1).unwrap();
        let marked = other.join().unwrap();
        assert_eq!(slot == Slot(0), !marked);
        device.validate().unwrap();
    });
}

#[test]
fn retiring_a_slot_meets_an_allocation_which_never_gets_it() {
    explore(None, || {
        let device = device(CLUSTER_SLOTS, 1);
        let bad = alloc_one(&device, 0, Order::ZERO, 1).unwrap();
        let other = {
            let device = device.clone();
            thread::spawn(move || device.retire(bad))
        };
        let slot = alloc_one(&device, 0, Order::ZERO, 1);
        assert_ne!(slot, Some(bad));
        other.join().unwrap();
        device.validate().unwrap();
    });
}

#[test]
fn one_of_two_gets_a_slot_into_the_cache_and_sees_what_was_stored() {
    explore(None, || {
        let device = device(CLUSTER_SLOTS, 1);
        let slot = store_one(&device);
        let place = Arc::new(loom::cell::UnsafeCell::new(1_u64));
        let work = move |device: &SwapDevice, place: &loom::cell::UnsafeCell<u64>| {
            let added = device.cache_add(slot, folio(1));
            if added.is_ok() {
                // SAFETY: who got the slot into the cache alone may use its place; loom checks that.
                place.with_mut(|value| unsafe { *value += 1 });
                assert!(!device.cache_del(slot, SHADOW));
            } else {
                assert_eq!(added, Err(CacheAddError::Locked));
            }
            added.is_ok()
        };
        let other = {
            let (device, place) = (device.clone(), place.clone());
            thread::spawn(move || work(&device, &place))
        };
        let mine = work(&device, &place);
        let others = other.join().unwrap();
        assert!(mine || others);
        // SAFETY: the other thread is gone.
        let times = place.with(|value| unsafe { *value });
        assert_eq!(times, 1 + u64::from(mine) + u64::from(others));
        device.validate().unwrap();
    });
}

#[test]
fn of_two_last_puts_and_a_cache_removal_one_frees_the_slot() {
    explore(None, || {
        let device = device(CLUSTER_SLOTS, 1);
        let slot = alloc_one(&device, 0, Order::ZERO, 1).unwrap();
        device.dup(slot).unwrap();
        device.dup(slot).unwrap();
        let put = |device: &Arc<TestDevice>| {
            let device = device.clone();
            thread::spawn(move || device.put(slot))
        };
        let (first, second) = (put(&device), put(&device));
        let mine = device.cache_del(slot, SHADOW);
        let freed = [first.join().unwrap(), second.join().unwrap(), mine];
        assert_eq!(freed.into_iter().filter(|freed| *freed).count(), 1);
        assert_eq!(device.get(slot), TableEntry::Free);
        assert_eq!(device.validate().unwrap().slots_used, 0);
    });
}

#[test]
fn sharing_a_slot_meets_its_last_put() {
    explore(None, || {
        let device = device(CLUSTER_SLOTS, 1);
        let slot = store_one(&device);
        let other = {
            let device = device.clone();
            thread::spawn(move || device.put(slot))
        };
        let shared = device.dup(slot);
        let freed = other.join().unwrap();
        assert_eq!(shared, if freed { Err(DupError::Free) } else { Ok(()) });
        assert_eq!(device.validate().unwrap().slots_used, u32::from(!freed));
    });
}

#[test]
fn counts_cross_into_the_overflow_table_and_back_exactly() {
    explore(None, || {
        let device = device(CLUSTER_SLOTS, 1);
        let slot = alloc_one(&device, 0, Order::ZERO, 1).unwrap();
        // In models a word holds counts of up to 2.
        device.dup(slot).unwrap();
        device.dup(slot).unwrap();
        let other = {
            let device = device.clone();
            thread::spawn(move || {
                device.dup(slot).unwrap();
                assert!(!device.put(slot));
            })
        };
        device.dup(slot).unwrap();
        assert!(!device.cache_del(slot, SHADOW));
        assert!(matches!(device.get(slot), TableEntry::Stored(Stored { count: 3 | 4, .. })));
        assert!(!device.put(slot));
        other.join().unwrap();
        assert_eq!(device.get(slot), TableEntry::Stored(Stored { count: 2, shadow: SHADOW, zero: false }));
        assert_eq!(device.validate().unwrap().counts_overflowed, 0);
        assert!(!device.put(slot));
        assert!(device.put(slot));
    });
}

#[test]
fn two_puts_of_the_smallest_overflowed_count_both_count() {
    explore(None, || {
        let device = device(CLUSTER_SLOTS, 1);
        let slot = alloc_one(&device, 0, Order::ZERO, 1).unwrap();
        (0..3).for_each(|_| device.dup(slot).unwrap());
        let other = {
            let device = device.clone();
            thread::spawn(move || device.put(slot))
        };
        assert!(!device.put(slot));
        assert!(!other.join().unwrap());
        assert_eq!(device.get(slot), TableEntry::Cached { count: 1, folio: folio(1), zero: false, locked: true });
        assert_eq!(device.validate().unwrap().counts_overflowed, 0);
    });
}

#[test]
fn the_last_place_of_the_overflow_table_goes_to_one_slot() {
    explore(None, || {
        let device = device(CLUSTER_SLOTS, 1);
        let mut slots = [Slot(0); 3];
        assert_eq!(device.alloc(Shard(0), Order::ZERO, folio(1), &mut slots), 3);
        for slot in slots {
            device.dup(slot).unwrap();
            device.dup(slot).unwrap();
        }
        device.dup(slots[0]).unwrap();
        let other = {
            let device = device.clone();
            thread::spawn(move || device.dup(slots[1]))
        };
        let results = [device.dup(slots[2]), other.join().unwrap()];
        assert!(results.contains(&Ok(())) && results.contains(&Err(DupError::CountOverflow)));
        assert_eq!(device.validate().unwrap().counts_overflowed, 2);
    });
}

/// Allocates a slot of the first cluster and frees it: the cluster is empty, and has a table.
fn used_once(device: &SwapDevice) {
    let mut slots = [Slot(0); CLUSTER_SLOTS as usize];
    assert_eq!(device.alloc(Shard(0), order(2), folio(1), &mut slots[..1]), 1);
    for slot in (0..CLUSTER_SLOTS).map(Slot) {
        assert!(device.cache_del(slot, SHADOW));
    }
    // The shard gives it back when it asks for more than is there.
    assert_eq!(device.alloc(Shard(0), order(2), folio(1), &mut slots[..2]), 2);
    for slot in (0..2 * CLUSTER_SLOTS).map(Slot) {
        assert!(device.cache_del(slot, SHADOW));
    }
}

#[test]
fn a_table_that_is_given_back_is_free_to_whoever_reads_it_and_nobody_allocates_from_it() {
    explore(Some(3), || {
        let device = device(2 * CLUSTER_SLOTS, 2);
        used_once(&device);
        let releaser = {
            let device = device.clone();
            thread::spawn(move || device.release_tables(0, 2, |run| zero_words(&device, run)))
        };
        assert_eq!(device.get(Slot(1)), TableEntry::Free);
        assert_eq!(device.dup(Slot(0)), Err(DupError::Free));
        let slot = alloc_one(&device, 1, Order::ZERO, 2);
        if let Some(slot) = slot {
            assert_eq!(device.get(slot), TableEntry::Cached { count: 0, folio: folio(2), zero: false, locked: true });
        }
        releaser.join().unwrap();
        if let Some(slot) = slot {
            own_and_free(&device, slot, 2);
        }
        device.validate().unwrap();
    });
}

#[test]
fn what_is_discarded_is_used_by_nobody() {
    explore(Some(3), || {
        let options = Options { discards: true, ..Options::fixed(2 * CLUSTER_SLOTS, 2, Placement::Sharded) };
        let device = Arc::new(TestDevice::with(&options));
        let mut slots = [Slot(0); CLUSTER_SLOTS as usize + 1];
        assert_eq!(device.alloc(Shard(0), Order::ZERO, folio(1), &mut slots), slots.len());
        for slot in &slots[1..CLUSTER_SLOTS as usize] {
            assert!(device.cache_del(*slot, SHADOW));
        }
        let other = {
            let device = device.clone();
            // The last free of a cluster makes it one to discard.
            thread::spawn(move || assert!(device.cache_del(Slot(0), SHADOW)))
        };
        let looks_free = |run: std::ops::Range<Slot>| {
            assert!((run.start.0..run.end.0).all(|slot| device.get(Slot(slot)) == TableEntry::Free));
        };
        let first = device.discard(2, looks_free);
        let slot = alloc_one(&device, 1, order(2), 2);
        other.join().unwrap();
        let second = device.discard(2, looks_free);
        // Used again before its turn came, it needs no discarding.
        assert!(first + second <= 1 && (slot.is_some() || first + second == 1));
        assert_eq!(slot.is_none(), alloc_one(&device, 1, order(2), 2).is_some());
        device.validate().unwrap();
    });
}

#[test]
fn a_device_that_shrinks_is_not_allocated_from_beyond_its_new_end() {
    explore(Some(3), || {
        let device = device(2 * CLUSTER_SLOTS, 2);
        let mut slots = [Slot(0); CLUSTER_SLOTS as usize + 1];
        assert_eq!(device.alloc(Shard(0), Order::ZERO, folio(1), &mut slots), slots.len());
        let other = {
            let device = device.clone();
            thread::spawn(move || {
                let slot = alloc_one(&device, 1, Order::ZERO, 2);
                assert!(device.cache_del(Slot(0), SHADOW));
                slot
            })
        };
        device.begin_shrink(CLUSTER_SLOTS).unwrap();
        let mine = alloc_one(&device, 0, Order::ZERO, 3);
        assert!(mine.is_none_or(|slot| slot == Slot(0)));
        let others = other.join().unwrap();
        let beyond = 1 + u32::from(others.is_some_and(|slot| slot >= Slot(CLUSTER_SLOTS)));
        assert_eq!(device.end_shrink(), Err(ResizeError::InUse { slots: beyond }));
        for _ in 0..beyond {
            let slot = device.next_used(Slot(CLUSTER_SLOTS)).unwrap();
            assert!(device.cache_del(slot, SHADOW));
        }
        assert_eq!(device.end_shrink().map(|lost| lost.start), Ok(ClusterId(1)));
        assert_eq!(device.nr_slots(), CLUSTER_SLOTS);
        device.validate().unwrap();
    });
}

#[test]
fn a_shard_goes_on_in_its_cluster_while_that_is_taken_from_it() {
    explore(Some(3), || {
        let device = device(2 * CLUSTER_SLOTS, 1);
        let mut slots = [Slot(0); CLUSTER_SLOTS as usize + 1];
        assert_eq!(device.alloc(Shard(0), Order::ZERO, folio(1), &mut slots), slots.len());
        let other = {
            let device = device.clone();
            thread::spawn(move || alloc_one(&device, 0, Order::ZERO, 2))
        };
        device.begin_shrink(CLUSTER_SLOTS).unwrap();
        let beyond = device.end_shrink();
        let slot = other.join().unwrap();
        assert!(slot.is_none_or(|slot| slot == Slot(CLUSTER_SLOTS + 1)));
        assert_eq!(beyond, Err(ResizeError::InUse { slots: 1 + u32::from(slot.is_some()) }));
        device.cancel_shrink().unwrap();
        device.validate().unwrap();
    });
}

#[test]
fn a_run_that_is_freed_meets_an_allocation_that_wants_it() {
    explore(Some(3), || {
        let device = device(CLUSTER_SLOTS, 2);
        let mut runs = [Slot(0); 2];
        assert_eq!(device.alloc(Shard(0), order(1), folio(1), &mut runs), 2);
        assert_eq!(alloc_one(&device, 0, order(1), 1), None);
        let other = {
            let device = device.clone();
            thread::spawn(move || device.free_run(Slot(2), order(1)))
        };
        let found = alloc_one(&device, 1, order(1), 2);
        assert!(found.is_none_or(|slot| slot == Slot(2)));
        other.join().unwrap();
        let found = found.or_else(|| alloc_one(&device, 1, order(1), 2));
        assert_eq!(found, Some(Slot(2)));
        device.free_run(Slot(0), order(1));
        device.free_run(Slot(2), order(1));
        assert_eq!(device.validate().unwrap().slots_used, 0);
    });
}

#[test]
fn a_shrink_that_is_taken_back_leaves_a_device_that_gives_out_every_slot() {
    explore(Some(3), || {
        let device = device(2 * CLUSTER_SLOTS, 1);
        let mut slots = [Slot(0); CLUSTER_SLOTS as usize + 1];
        assert_eq!(device.alloc(Shard(0), Order::ZERO, folio(1), &mut slots), slots.len());
        let other = {
            let device = device.clone();
            thread::spawn(move || {
                assert!(device.cache_del(Slot(CLUSTER_SLOTS), SHADOW));
                assert!(device.cache_del(Slot(1), SHADOW));
            })
        };
        device.begin_shrink(0).unwrap();
        device.cancel_shrink().unwrap();
        other.join().unwrap();
        device.validate().unwrap();
        let mut rest = [Slot(0); CLUSTER_SLOTS as usize + 2];
        assert_eq!(device.alloc(Shard(0), Order::ZERO, folio(1), &mut rest), CLUSTER_SLOTS as usize + 1);
    });
}

#[test]
fn a_cluster_that_is_taken_while_the_device_shrinks_is_taken_once() {
    explore(Some(3), || {
        let device = device(3 * CLUSTER_SLOTS, 2);
        let other = {
            let device = device.clone();
            thread::spawn(move || [alloc_one(&device, 1, order(2), 2), alloc_one(&device, 1, order(2), 2)])
        };
        device.begin_shrink(2 * CLUSTER_SLOTS).unwrap();
        let ended = device.end_shrink();
        let mine = alloc_one(&device, 0, order(2), 3);
        let mut all: Vec<Slot> = other.join().unwrap().into_iter().chain([mine]).flatten().collect();
        all.sort();
        all.dedup();
        // Two clusters stay; the third may have been taken just before.
        assert!(all.len() == 2 || all.len() == 3 && ended.is_err());
        assert_eq!(all.contains(&Slot(2 * CLUSTER_SLOTS)), ended == Err(ResizeError::InUse { slots: CLUSTER_SLOTS }));
        device.validate().unwrap();
    });
}

/// Moves slots that are stored, referred to once.
struct Mover(Arc<TestDevice>);

impl Relocate for Mover {
    fn relocate(&mut self, from: Slot, to: Slot) -> bool {
        if self.0.cache_add(from, folio(7)).is_err() {
            return false;
        }
        self.0.dup(to).unwrap();
        assert!(!self.0.cache_del(to, SHADOW));
        assert!(!self.0.put(from));
        assert!(self.0.cache_del(from, SHADOW));
        true
    }
}

#[test]
fn compaction_meets_a_device_that_shrinks() {
    explore(Some(3), || {
        let device = device(2 * CLUSTER_SLOTS, 1);
        // Each cluster has two runs of two; of the second one's, each keeps one slot.
        let mut slots = [Slot(0); 4];
        assert_eq!(device.alloc(Shard(0), order(1), folio(1), &mut slots), 4);
        for slot in (0..2 * CLUSTER_SLOTS).map(Slot) {
            device.dup(slot).unwrap();
            assert!(!device.cache_del(slot, SHADOW));
        }
        assert!(device.put(Slot(CLUSTER_SLOTS + 1)) && device.put(Slot(CLUSTER_SLOTS + 2)));
        assert_eq!(alloc_one(&device, 0, order(1), 2), None);
        let other = {
            let device = device.clone();
            thread::spawn(move || device.compact(order(1), 1, 4, folio(2), &mut Mover(device.clone())))
        };
        device.begin_shrink(CLUSTER_SLOTS).unwrap();
        // What is there stays there: nothing is taken as a hole any more.
        let first = device.next_used(Slot(CLUSTER_SLOTS)).unwrap();
        assert_eq!(device.end_shrink(), Err(ResizeError::InUse { slots: 2 }));
        assert!(device.put(first));
        let second = device.next_used(Slot(CLUSTER_SLOTS)).unwrap();
        assert!(device.put(second));
        assert!(device.end_shrink().is_ok());
        assert!(other.join().unwrap() <= 1);
        assert_eq!(device.validate().unwrap().slots_used, CLUSTER_SLOTS);
        device.grow(2 * CLUSTER_SLOTS).unwrap();
        assert!(alloc_one(&device, 0, order(2), 3).is_some());
        device.validate().unwrap();
    });
}

#[test]
fn a_list_of_devices_is_read_as_it_was_or_as_it_is() {
    explore(None, || {
        let list = Arc::new(Priorities::new());
        assert!(list.add(1, 10));
        let other = {
            let list = list.clone();
            thread::spawn(move || {
                assert!(list.add(2, 20));
                assert!(list.remove(1));
            })
        };
        let mut out = [0; DEVICES_MAX];
        let n = list.order(0, &mut out);
        assert!(matches!(out[..n], [1] | [2, 1] | [2]));
        other.join().unwrap();
    });
}

/// The engine's side of a swap-in, as far as it matters here: a page, its state word, and a place for each slot's
/// content.
struct Engine {
    device: TestDevice,
    /// 0: present. Otherwise swapped, and this is the slot plus 1.
    state: [AtomicU64; 2],
    /// The pages' content while present.
    page: [AtomicU64; 2],
    /// What the slots' places hold.
    place: [AtomicU64; CLUSTER_SLOTS as usize],
}

const PRESENT: u64 = 0;

impl Engine {
    fn new() -> Self {
        Self {
            device: TestDevice::new(CLUSTER_SLOTS, 1, Placement::Sharded),
            state: std::array::from_fn(|_| AtomicU64::new(PRESENT)),
            page: std::array::from_fn(|_| AtomicU64::new(0)),
            place: std::array::from_fn(|_| AtomicU64::new(0)),
        }
    }

    /// Swaps a present page out. For the only thread that may touch the page.
    fn swap_out(&self, page: usize) -> Slot {
        let slot = alloc_one(&self.device, 0, Order::ZERO, 1).unwrap();
        self.place[slot.0 as usize].store(self.page[page].load(Ordering::Relaxed), Ordering::Relaxed);
        self.device.dup(slot).unwrap();
        self.page[page].store(u64::MAX, Ordering::Relaxed);
        self.state[page].store(u64::from(slot.0) + 1, Ordering::Release);
        assert!(!self.device.cache_del(slot, SHADOW));
        slot
    }

    fn try_swap_in(&self, page: usize) -> SwapIn {
        let seen = self.state[page].load(Ordering::Acquire);
        if seen == PRESENT {
            return SwapIn::Present;
        }
        let slot = Slot(seen as u32 - 1);
        match self.device.cache_add(slot, folio(2)) {
            Err(CacheAddError::Bad) => panic!("a page refers to a bad slot"),
            Err(CacheAddError::Locked | CacheAddError::Resident(_) | CacheAddError::Free) => SwapIn::Again,
            Ok(stored) => {
                // The slot may be another page's by now. While it is cached and the state names it, neither changes.
                if self.state[page].load(Ordering::Acquire) != seen {
                    assert!(!self.device.cache_del(slot, stored.shadow));
                    return SwapIn::Again;
                }
                self.page[page].store(self.place[slot.0 as usize].load(Ordering::Relaxed), Ordering::Relaxed);
                self.state[page].store(PRESENT, Ordering::Release);
                assert!(!self.device.put(slot));
                assert!(self.device.cache_del(slot, SHADOW));
                SwapIn::Mine
            }
        }
    }

    fn swap_in(&self, page: usize) {
        while self.try_swap_in(page) == SwapIn::Again {
            thread::yield_now();
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum SwapIn {
    /// The page was there.
    Present,
    /// This thread brought it.
    Mine,
    /// Somebody else is at it, or it changed: look again.
    Again,
}

/// The litmus: two threads swap one page in. The winner maps it, writes to it and frees the slot, which is used for
/// another page before the loser gets to it.
#[test]
fn the_loser_of_a_swap_in_never_takes_the_slots_next_content_for_its_page() {
    explore(None, || {
        let engine = Arc::new(Engine::new());
        engine.page[0].store(10, Ordering::Relaxed);
        engine.page[1].store(20, Ordering::Relaxed);
        let first = engine.swap_out(0);
        let winner = {
            let engine = engine.clone();
            thread::spawn(move || {
                let won = engine.try_swap_in(0) == SwapIn::Mine;
                if won {
                    engine.page[0].store(11, Ordering::Relaxed);
                    assert_eq!(engine.swap_out(1), first);
                }
                won
            })
        };
        engine.swap_in(0);
        let won = winner.join().unwrap();
        assert_eq!(engine.page[0].load(Ordering::Relaxed), 10 + u64::from(won));
        engine.swap_in(1);
        assert_eq!(engine.page[1].load(Ordering::Relaxed), 20);
        assert_eq!(engine.device.validate().unwrap().slots_used, 0);
    });
}

/// The same, but the slot's next content is the same page's, written to meanwhile.
#[test]
fn a_write_between_two_swap_outs_to_the_same_slot_is_not_lost() {
    explore(None, || {
        let engine = Arc::new(Engine::new());
        engine.page[0].store(10, Ordering::Relaxed);
        let first = engine.swap_out(0);
        let winner = {
            let engine = engine.clone();
            thread::spawn(move || {
                let won = engine.try_swap_in(0) == SwapIn::Mine;
                if won {
                    engine.page[0].store(11, Ordering::Relaxed);
                    assert_eq!(engine.swap_out(0), first);
                }
                won
            })
        };
        engine.swap_in(0);
        let won = winner.join().unwrap();
        engine.swap_in(0);
        assert_eq!(engine.page[0].load(Ordering::Relaxed), 10 + u64::from(won));
        assert_eq!(engine.device.validate().unwrap().slots_used, 0);
    });
}
