//! Slots that stay in the swap cache with a clean folio: locked, evicted, reclaimed. Seen from outside.
#![cfg(not(any(loom, shuttle)))]

mod common;

use common::TestDevice;
use ebb_slots::*;

const FOLIO: Folio = Folio::new(0x12_3456_789a).unwrap();
const OTHER: Folio = Folio::new(7).unwrap();

fn order(order: u8) -> Order {
    Order::new(order).unwrap()
}

fn alloc(device: &SwapDevice, order: Order, runs: usize) -> Vec<Slot> {
    let mut out = vec![Slot(0); runs];
    let found = device.alloc(Shard(0), order, FOLIO, &mut out);
    out.truncate(found);
    out
}

fn unlock(device: &SwapDevice, slots: &[Slot]) {
    slots.iter().for_each(|slot| device.unlock(*slot));
}

/// Frees a cache-only slot, as a page would that can be opened.
fn open(device: &SwapDevice, slot: Slot) -> bool {
    matches!(device.lock(slot, OTHER), Ok(Locked::Resident(Resident { count: 0, .. })))
        && device.cache_del(slot, Shadow(0))
}

fn resident(count: u32) -> TableEntry {
    TableEntry::Cached { count, folio: FOLIO, zero: false, locked: false }
}

#[test]
fn a_slot_that_is_unlocked_stays_in_the_cache_and_keeps_its_folio() {
    let device = TestDevice::new(100, 1, Placement::Sharded);
    let slot = alloc(&device, Order::ZERO, 1)[0];
    device.unlock(slot);
    assert_eq!(device.get(slot), resident(0));
    assert_eq!(device.cache_add(slot, OTHER), Err(CacheAddError::Resident(FOLIO)));
    assert!(!device.cache_replace(slot, OTHER));
    let before = Resident { count: 0, folio: FOLIO, zero: false };
    assert_eq!(device.lock(slot, OTHER), Ok(Locked::Resident(before)));
    assert_eq!(device.cache_add(slot, OTHER), Err(CacheAddError::Locked));
    assert_eq!(device.lock(slot, OTHER), Err(LockError::Locked));
    assert_eq!(device.get(slot), TableEntry::Cached { count: 0, folio: FOLIO, zero: false, locked: true });
    assert!(device.cache_del(slot, Shadow(0)));
    assert_eq!(device.lock(slot, OTHER), Err(LockError::Free));
}

#[test]
fn a_page_goes_out_and_comes_in_clean_without_its_content_moving() {
    let device = TestDevice::new(100, 1, Placement::Sharded);
    let slot = alloc(&device, Order::ZERO, 1)[0];
    device.unlock(slot);
    for turn in 1..4 {
        assert_eq!(device.evict(slot, Shadow(turn)), Ok(()));
        let stored = Stored { count: 1, shadow: Shadow(turn), zero: false };
        assert_eq!(device.get(slot), TableEntry::Stored(stored));
        assert_eq!(device.lock(slot, FOLIO), Ok(Locked::Stored(stored)));
        device.settle(slot);
        assert_eq!(device.get(slot), resident(0));
    }
    assert!(open(&device, slot));
    assert_eq!(device.nr_used(), 0);
}

#[test]
fn an_eviction_of_what_is_locked_or_not_cached_is_refused() {
    let device = TestDevice::new(100, 1, Placement::Sharded);
    let slot = alloc(&device, Order::ZERO, 1)[0];
    assert_eq!(device.evict(slot, Shadow(1)), Err(EvictError::Locked));
    device.dup(slot).unwrap();
    device.cache_del(slot, Shadow(1));
    assert_eq!(device.evict(slot, Shadow(1)), Err(EvictError::NotCached));
    device.put(slot);
    assert_eq!(device.evict(slot, Shadow(1)), Err(EvictError::NotCached));
}

#[test]
fn the_last_put_of_a_resident_slot_leaves_it_cache_only() {
    let device = TestDevice::new(100, 1, Placement::Sharded);
    let slot = alloc(&device, Order::ZERO, 1)[0];
    device.dup(slot).unwrap();
    device.unlock(slot);
    assert_eq!(device.validate().unwrap().slots_cache_only, 0);
    assert!(!device.put(slot));
    let summary = device.validate().unwrap();
    assert_eq!((summary.slots_used, summary.slots_resident, summary.slots_cache_only), (1, 1, 1));
    assert_eq!(device.next_used(Slot(0)), Some(slot));
}

#[test]
fn a_count_goes_through_the_overflow_table_by_eviction_and_back_by_settling() {
    let device = TestDevice::new(100, 1, Placement::Sharded);
    let slot = alloc(&device, Order::ZERO, 1)[0];
    device.unlock(slot);
    for count in 1..=40 {
        device.evict(slot, Shadow(count)).unwrap();
        let stored = Stored { count, shadow: Shadow(count), zero: false };
        assert_eq!(device.lock(slot, FOLIO), Ok(Locked::Stored(stored)));
        device.unlock(slot);
    }
    assert_eq!(device.validate().unwrap().counts_overflowed, 1);
    for count in (0..40).rev() {
        assert!(matches!(device.lock(slot, OTHER), Ok(Locked::Resident(now)) if now.count == count + 1));
        device.settle(slot);
        assert_eq!(device.get(slot), resident(count));
    }
    assert_eq!(device.validate().unwrap().counts_overflowed, 0);
}

#[test]
fn an_eviction_that_the_overflow_table_has_no_room_for_leaves_the_slot_resident() {
    let device = TestDevice::new(2000, 1, Placement::Sharded);
    let slots = alloc(&device, Order::ZERO, 513);
    unlock(&device, &slots);
    for slot in &slots {
        (0..30).for_each(|_| device.dup(*slot).unwrap());
    }
    let (last, others) = slots.split_last().unwrap();
    others.iter().for_each(|slot| device.evict(*slot, Shadow(0)).unwrap());
    assert_eq!(device.evict(*last, Shadow(0)), Err(EvictError::CountOverflow));
    assert_eq!(device.get(*last), resident(30));
}

#[test]
fn full_clusters_are_looked_through_in_turn_and_what_only_the_cache_needs_is_freed() {
    let device = TestDevice::new(4 * CLUSTER_SLOTS, 1, Placement::Sharded);
    let slots = alloc(&device, Order::ZERO, 4 * CLUSTER_SLOTS as usize);
    // The last cluster is full, but still current; of the others each has one slot to give.
    let given: Vec<Slot> = (0..3).map(|cluster| Slot(cluster * CLUSTER_SLOTS + 9)).collect();
    unlock(&device, &given);
    assert_eq!(slots.len(), 4 * CLUSTER_SLOTS as usize);
    let mut seen = Vec::new();
    for _ in 0..3 {
        let freed = device.reclaim_full(1, |slot, folio| {
            assert_eq!(folio, FOLIO);
            seen.push(slot);
            open(&device, slot)
        });
        assert_eq!(freed, 1);
    }
    assert_eq!(seen, given);
    assert_eq!(device.reclaim_full(9, |_, _| panic!("nothing is left")), 0);
}

#[test]
fn what_is_referred_to_or_locked_is_not_reclaimed_and_a_refusal_is_not_counted() {
    let device = TestDevice::new(CLUSTER_SLOTS, 1, Placement::Sharded);
    let slots = alloc(&device, Order::ZERO, CLUSTER_SLOTS as usize + 1);
    unlock(&device, &slots[1..4]);
    device.dup(slots[2]).unwrap();
    let mut asked = Vec::new();
    let freed = device.reclaim_full(1, |slot, _| {
        asked.push(slot);
        false
    });
    assert_eq!((freed, asked), (0, vec![slots[1], slots[3]]));
}

#[test]
fn a_device_is_half_full_when_half_of_its_clusters_were_begun() {
    let device = TestDevice::new(4 * CLUSTER_SLOTS, 1, Placement::Sharded);
    let clusters = alloc(&device, order(MAX_ORDER), 2);
    assert!(!device.is_half_full());
    alloc(&device, Order::ZERO, 1);
    assert!(device.is_half_full());
    device.free_run(clusters[0], order(MAX_ORDER));
    device.free_run(clusters[1], order(MAX_ORDER));
    alloc(&device, order(MAX_ORDER), 1);
    assert!(!device.is_half_full());
}

#[test]
fn an_allocation_on_a_full_device_takes_what_only_the_cache_needs() {
    let device = TestDevice::new(3 * CLUSTER_SLOTS, 1, Placement::Sharded);
    let slots = alloc(&device, Order::ZERO, 3 * CLUSTER_SLOTS as usize);
    unlock(&device, &slots[40..60]);
    let mut out = [Slot(0); 30];
    let found = device.alloc_reclaiming(Shard(0), Order::ZERO, OTHER, &mut out, |slot, _| open(&device, slot));
    assert_eq!(out[..found], slots[40..60]);
    device.validate().unwrap();
}

#[test]
fn an_allocation_that_finds_room_reclaims_nothing() {
    let device = TestDevice::new(2 * CLUSTER_SLOTS, 1, Placement::Sharded);
    let slots = alloc(&device, Order::ZERO, CLUSTER_SLOTS as usize);
    unlock(&device, &slots);
    let mut out = [Slot(0); 30];
    let refuse = |_, _| panic!("there is room");
    assert_eq!(device.alloc_reclaiming(Shard(0), Order::ZERO, OTHER, &mut out, refuse), 30);
}

#[test]
fn a_run_is_made_of_what_only_the_cache_needs_and_nothing_is_freed_in_vain() {
    let device = TestDevice::new(CLUSTER_SLOTS, 1, Placement::Sharded);
    let slots = alloc(&device, order(2), CLUSTER_SLOTS as usize / 4);
    // The first run could give three, the second has one free and can give three.
    unlock(&device, &[Slot(0), Slot(1), Slot(3), Slot(4), Slot(6), Slot(7)]);
    assert!(device.cache_del(Slot(5), Shadow(0)));
    assert_eq!(slots.len(), 128);
    let mut freed = Vec::new();
    let mut out = [Slot(0); 2];
    let found = device.alloc_reclaiming(Shard(0), order(2), OTHER, &mut out, |slot, _| {
        freed.push(slot);
        open(&device, slot)
    });
    assert_eq!((found, out[0]), (1, Slot(4)));
    assert_eq!(freed, [Slot(4), Slot(6), Slot(7)]);
}

#[test]
fn a_cluster_of_single_slots_is_emptied_for_a_run_only_if_all_of_it_can_go() {
    let device = TestDevice::new(2 * CLUSTER_SLOTS, 1, Placement::Sharded);
    let slots = alloc(&device, Order::ZERO, 2 * CLUSTER_SLOTS as usize);
    unlock(&device, &slots);
    device.dup(Slot(5)).unwrap();
    let mut out = [Slot(0)];
    let found = device.alloc_reclaiming(Shard(0), order(4), OTHER, &mut out, |slot, _| {
        assert_eq!(slot.cluster(), ClusterId(1));
        open(&device, slot)
    });
    assert_eq!((found, out[0]), (1, Slot(CLUSTER_SLOTS)));
    assert_eq!(device.nr_used(), CLUSTER_SLOTS + 16);
}

/// Moves what is resident, or frees it.
struct Mover<'a>(&'a SwapDevice);

impl Relocate for Mover<'_> {
    fn relocate(&mut self, from: Slot, to: Slot) -> bool {
        match self.0.lock(from, OTHER) {
            Ok(Locked::Resident(Resident { count: 0, .. })) => {
                self.0.cache_del(from, Shadow(0));
                false
            }
            Ok(Locked::Resident(now)) => {
                (0..now.count).for_each(|_| self.0.dup(to).unwrap());
                assert!(self.0.cache_replace(to, now.folio));
                self.0.unlock(to);
                (0..now.count).for_each(|_| assert!(!self.0.put(from)));
                self.0.cache_del(from, Shadow(0))
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn compaction_moves_resident_slots_as_their_owner_says() {
    let device = TestDevice::new(CLUSTER_SLOTS, 1, Placement::Sharded);
    alloc(&device, order(2), CLUSTER_SLOTS as usize / 4);
    // One run with a shared resident slot and a cache-only one in it; two holes elsewhere.
    for slot in [1, 3, 8, 12].map(Slot) {
        assert!(device.cache_del(slot, Shadow(0)));
    }
    device.dup(Slot(0)).unwrap();
    unlock(&device, &[Slot(0), Slot(2)]);
    assert_eq!(alloc(&device, order(2), 1), []);
    assert_eq!(device.compact(order(2), 1, 9, OTHER, &mut Mover(&device)), 1);
    assert_eq!(device.get(Slot(12)), resident(1));
    assert_eq!(alloc(&device, order(2), 1), [Slot(0)]);
    device.validate().unwrap();
}

#[test]
fn a_device_that_shrinks_reclaims_as_if_it_were_small_already() {
    let device = TestDevice::new(4 * CLUSTER_SLOTS, 1, Placement::Sharded);
    let folio = Folio::new(1).unwrap();
    let mut all = vec![Slot(0); CLUSTER_SLOTS as usize];
    assert_eq!(device.alloc(Shard(0), Order::ZERO, folio, &mut all), all.len());
    all.iter().for_each(|slot| device.unlock(*slot));
    device.begin_shrink(CLUSTER_SLOTS).unwrap();
    let reclaim = |slot, folio| device.lock(slot, folio).is_ok() && device.cache_del(slot, Shadow(0));
    assert_eq!(device.alloc_reclaiming(Shard(0), Order::ZERO, folio, &mut [Slot(0)], reclaim), 1);
}
