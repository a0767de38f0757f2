//! Slots that stay in the swap cache with a clean page: opened, evicted, moved, reclaimed and swapped in, all at once.

use super::common::TestDevice;
use super::{SHADOW, alloc_one, explore, folio, order};
use ebb_slots::*;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::thread;

const PRESENT: u64 = 0;
const BUSY: u64 = 1;

fn swapped(slot: Slot) -> u64 {
    2 + u64::from(slot.0)
}

fn clean(slot: Slot) -> u64 {
    100 + u64::from(slot.0)
}

/// What is somebody's alone: loom checks that it is.
#[derive(Default)]
struct Content(loom::cell::UnsafeCell<u64>);

impl Content {
    fn read(&self) -> u64 {
        // SAFETY: one thread at a time uses a content, or several read it; that is what the models check.
        self.0.with(|value| unsafe { *value })
    }

    fn write(&self, new: u64) {
        // SAFETY: as above.
        self.0.with_mut(|value| unsafe { *value = new });
    }
}

// SAFETY: loom reports a content that two threads use at once.
unsafe impl Sync for Content {}

/// Pages with their state words, and a place for each slot's content. A page's folio has its number.
struct Engine {
    device: TestDevice,
    state: [AtomicU64; 2],
    page: [Content; 2],
    place: [Content; CLUSTER_SLOTS as usize],
}

impl Engine {
    /// Each slot is resident for a page of its number, or holds nothing of interest.
    fn new(pages: &[u64]) -> Arc<Self> {
        let engine = Self {
            device: TestDevice::new(CLUSTER_SLOTS, 1, Placement::Sharded),
            state: std::array::from_fn(|_| AtomicU64::new(PRESENT)),
            page: Default::default(),
            place: Default::default(),
        };
        for (index, value) in pages.iter().enumerate() {
            let slot = alloc_one(&engine.device, 0, Order::ZERO, index as u64).unwrap();
            assert_eq!(slot, Slot(index as u32));
            engine.place[index].write(*value);
            engine.page[index].write(*value);
            engine.state[index].store(clean(slot), Ordering::Relaxed);
            engine.device.unlock(slot);
        }
        Arc::new(engine)
    }

    fn claim(&self, page: usize, from: u64) -> bool {
        self.state[page].compare_exchange(from, BUSY, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    fn settle(&self, page: usize, state: u64) {
        self.state[page].store(state, Ordering::Release);
    }

    fn lock(&self, slot: Slot) -> Locked {
        loop {
            match self.device.lock(slot, folio(9)) {
                Ok(locked) => return locked,
                Err(error) => assert_eq!(error, LockError::Locked),
            }
            thread::yield_now();
        }
    }

    /// Writes to a page that is clean in slot `slot`, or already was opened by somebody.
    fn open_and_write(&self, page: usize, slot: Slot, value: u64) {
        while !self.claim(page, clean(slot)) {
            if self.claim(page, PRESENT) {
                self.page[page].write(value);
                return self.settle(page, PRESENT);
            }
            thread::yield_now();
        }
        assert!(matches!(self.lock(slot), Locked::Resident(resident) if resident.folio == folio(page as u64)));
        self.device.cache_del(slot, SHADOW);
        self.page[page].write(value);
        self.settle(page, PRESENT);
    }

    /// Evicts a page if it is clean in `slot`.
    fn evict(&self, page: usize, slot: Slot) -> bool {
        if !self.claim(page, clean(slot)) {
            return false;
        }
        while let Err(error) = self.device.evict(slot, SHADOW) {
            assert_eq!(error, EvictError::Locked);
            thread::yield_now();
        }
        self.page[page].write(u64::MAX);
        self.settle(page, swapped(slot));
        true
    }

    /// Brings a page in that is swapped out to `slot`, to stay clean, unless somebody is at it. Whether it did.
    fn swap_in_clean(&self, page: usize, slot: Slot) -> bool {
        if !self.claim(page, swapped(slot)) {
            return false;
        }
        let Ok(locked) = self.device.lock(slot, folio(9)) else {
            self.settle(page, swapped(slot));
            return false;
        };
        match locked {
            Locked::Stored(_) => {
                assert!(self.device.cache_replace(slot, folio(page as u64)));
                self.page[page].write(self.place[slot.0 as usize].read());
                self.device.settle(slot);
                self.settle(page, clean(slot));
            }
            // Another page has it: take a copy.
            Locked::Resident(resident) => {
                assert_ne!(resident.folio, folio(page as u64));
                self.page[page].write(self.place[slot.0 as usize].read());
                self.device.put(slot);
                self.device.unlock(slot);
                self.settle(page, PRESENT);
            }
        }
        true
    }

    /// Moves a slot's content elsewhere, as writeback does, if nobody else has it.
    fn relocate(&self, slot: Slot) {
        let Ok(locked) = self.device.lock(slot, folio(9)) else { return };
        let place = &self.place[slot.0 as usize];
        let value = place.read();
        place.write(u64::MAX);
        place.write(value);
        match locked {
            Locked::Stored(stored) => drop(self.device.cache_del(slot, stored.shadow)),
            Locked::Resident(_) => self.device.unlock(slot),
        }
    }

    /// What a reclaimer is given to do.
    fn reclaim(&self, slot: Slot, owner: Folio) -> bool {
        let page = owner.get() as usize;
        if page >= self.state.len() || !self.claim(page, clean(slot)) {
            return false;
        }
        // The page's claim keeps the slot its own.
        let freed = match self.device.lock(slot, folio(9)) {
            Ok(Locked::Resident(Resident { count: 0, .. })) => self.device.cache_del(slot, SHADOW),
            Ok(Locked::Resident(_)) => {
                self.device.unlock(slot);
                false
            }
            Ok(Locked::Stored(_)) => panic!("a clean page's slot was taken out of the swap cache"),
            Err(error) => {
                assert_eq!(error, LockError::Locked);
                false
            }
        };
        // Freed or put meanwhile: shared by then.
        let still = matches!(self.device.get(slot), TableEntry::Cached { folio, .. } if folio == owner);
        assert!(freed || still);
        self.settle(page, if freed { PRESENT } else { clean(slot) });
        freed
    }
}

/// The litmus: a clean page is written to, and evicted again, while its slot is moved and a reclaimer tries it.
#[test]
fn a_write_to_a_clean_page_is_not_lost_to_a_mover_or_a_reclaimer() {
    explore(Some(3), || {
        let engine = Engine::new(&[10]);
        let mover = {
            let engine = engine.clone();
            thread::spawn(move || engine.relocate(Slot(0)))
        };
        let reclaimer = {
            let engine = engine.clone();
            thread::spawn(move || engine.reclaim(Slot(0), folio(0)))
        };
        engine.open_and_write(0, Slot(0), 11);
        // Out and in again, perhaps by the same slot, perhaps while it is looked at.
        let slot = alloc_one(&engine.device, 0, Order::ZERO, 0).unwrap();
        assert!(engine.claim(0, PRESENT));
        engine.place[slot.0 as usize].write(engine.page[0].read());
        engine.device.dup(slot).unwrap();
        engine.page[0].write(u64::MAX);
        assert!(!engine.device.cache_del(slot, SHADOW));
        engine.settle(0, swapped(slot));
        mover.join().unwrap();
        reclaimer.join().unwrap();
        assert!(engine.swap_in_clean(0, slot));
        assert_eq!(engine.page[0].read(), 11);
        assert_eq!(engine.device.validate().unwrap().slots_cache_only, 1);
    });
}

#[test]
fn an_eviction_meets_a_mover_and_a_swap_in() {
    explore(Some(3), || {
        let engine = Engine::new(&[10]);
        let mover = {
            let engine = engine.clone();
            thread::spawn(move || engine.relocate(Slot(0)))
        };
        let faulter = {
            let engine = engine.clone();
            thread::spawn(move || engine.swap_in_clean(0, Slot(0)))
        };
        assert!(engine.evict(0, Slot(0)));
        let came_in = faulter.join().unwrap();
        mover.join().unwrap();
        assert!(came_in || engine.swap_in_clean(0, Slot(0)));
        assert_eq!(engine.page[0].read(), 10);
        let entry = TableEntry::Cached { count: 0, folio: folio(0), zero: false, locked: false };
        assert_eq!(engine.device.get(Slot(0)), entry);
        engine.device.validate().unwrap();
    });
}

#[test]
fn an_eviction_meets_a_reclaimer_and_a_mover() {
    explore(Some(3), || {
        let engine = Engine::new(&[10]);
        let mover = {
            let engine = engine.clone();
            thread::spawn(move || engine.relocate(Slot(0)))
        };
        let reclaimer = {
            let engine = engine.clone();
            thread::spawn(move || engine.reclaim(Slot(0), folio(0)))
        };
        let evicted = engine.evict(0, Slot(0));
        mover.join().unwrap();
        let freed = reclaimer.join().unwrap();
        assert!(!(freed && evicted));
        let expected = match (freed, evicted) {
            (true, _) => TableEntry::Free,
            (_, true) => TableEntry::Stored(Stored { count: 1, shadow: SHADOW, zero: false }),
            _ => TableEntry::Cached { count: 0, folio: folio(0), zero: false, locked: false },
        };
        assert_eq!(engine.device.get(Slot(0)), expected);
        assert_eq!(engine.device.validate().unwrap().slots_used, u32::from(!freed));
    });
}

/// Two pages of one content, as after a fork: one clean, one out.
#[test]
fn a_shared_slot_is_opened_by_one_page_while_the_other_comes_in() {
    explore(Some(3), || {
        let engine = Engine::new(&[10]);
        engine.device.dup(Slot(0)).unwrap();
        engine.state[1].store(swapped(Slot(0)), Ordering::Relaxed);
        let faulter = {
            let engine = engine.clone();
            thread::spawn(move || engine.swap_in_clean(1, Slot(0)))
        };
        let reclaimer = {
            let engine = engine.clone();
            thread::spawn(move || engine.reclaim(Slot(0), folio(0)))
        };
        engine.open_and_write(0, Slot(0), 11);
        let came_in = faulter.join().unwrap();
        assert!(!reclaimer.join().unwrap() || came_in);
        assert!(came_in || engine.swap_in_clean(1, Slot(0)));
        assert_eq!((engine.page[0].read(), engine.page[1].read()), (11, 10));
        let resident = u32::from(engine.state[1].load(Ordering::Relaxed) == clean(Slot(0)));
        let summary = engine.device.validate().unwrap();
        assert_eq!((summary.slots_used, summary.slots_cache_only), (resident, resident));
    });
}

#[test]
fn two_reclaimers_and_an_allocation_that_needs_the_slot_free_it_once() {
    explore(Some(2), || {
        let engine = Engine::new(&[10]);
        let mut rest = [Slot(0); CLUSTER_SLOTS as usize - 1];
        assert_eq!(engine.device.alloc(Shard(0), Order::ZERO, folio(8), &mut rest), rest.len());
        // On the full list, where it is looked for.
        assert_eq!(alloc_one(&engine.device, 0, Order::ZERO, 8), None);
        let reclaimer = {
            let engine = engine.clone();
            thread::spawn(move || engine.device.reclaim_full(1, |slot, owner| engine.reclaim(slot, owner)))
        };
        let mut out = [Slot(9)];
        let found = engine
            .device
            .alloc_reclaiming(Shard(0), Order::ZERO, folio(7), &mut out, |slot, owner| engine.reclaim(slot, owner));
        let freed = reclaimer.join().unwrap();
        assert_eq!(engine.state[0].load(Ordering::Relaxed), PRESENT);
        // What the other freed may have come too late to be found.
        assert!(found == 1 || freed == 1);
        if found == 1 {
            assert_eq!(out, [Slot(0)]);
            let mine = TableEntry::Cached { count: 0, folio: folio(7), zero: false, locked: true };
            assert_eq!(engine.device.get(Slot(0)), mine);
        }
        assert_eq!(engine.device.validate().unwrap().slots_used, CLUSTER_SLOTS - 1 + found as u32);
    });
}

#[test]
fn a_cache_only_slot_in_the_way_of_a_run_is_reclaimed_while_its_page_is_written_to() {
    explore(Some(2), || {
        let engine = Engine::new(&[]);
        let mut runs = [Slot(0); 2];
        assert_eq!(engine.device.alloc(Shard(0), order(1), folio(0), &mut runs), 2);
        assert!(engine.device.cache_del(Slot(1), SHADOW));
        engine.state[0].store(clean(Slot(0)), Ordering::Relaxed);
        engine.device.unlock(Slot(0));
        let writer = {
            let engine = engine.clone();
            thread::spawn(move || engine.open_and_write(0, Slot(0), 11))
        };
        let mut out = [Slot(9)];
        let found = engine
            .device
            .alloc_reclaiming(Shard(0), order(1), folio(7), &mut out, |slot, owner| engine.reclaim(slot, owner));
        writer.join().unwrap();
        assert_eq!((engine.page[0].read(), engine.state[0].load(Ordering::Relaxed)), (11, PRESENT));
        let found = found == 1 || engine.device.alloc(Shard(0), order(1), folio(7), &mut out) == 1;
        assert!(found && out == [Slot(0)]);
        assert_eq!(engine.device.validate().unwrap().slots_used, CLUSTER_SLOTS);
    });
}

#[test]
fn an_eviction_takes_a_count_into_the_overflow_table_while_it_is_shared() {
    explore(None, || {
        let engine = Engine::new(&[10]);
        let device = &engine.device;
        // In models a word holds counts of up to 2.
        device.dup(Slot(0)).unwrap();
        device.dup(Slot(0)).unwrap();
        let other = {
            let engine = engine.clone();
            thread::spawn(move || {
                engine.device.dup(Slot(0)).unwrap();
                assert!(!engine.device.put(Slot(0)));
            })
        };
        device.evict(Slot(0), SHADOW).unwrap();
        other.join().unwrap();
        assert_eq!(device.get(Slot(0)), TableEntry::Stored(Stored { count: 3, shadow: SHADOW, zero: false }));
        assert_eq!(device.validate().unwrap().counts_overflowed, 1);
    });
}

#[test]
fn a_page_settles_on_its_slot_while_others_are_put() {
    explore(None, || {
        let engine = Engine::new(&[10]);
        let device = &engine.device;
        (0..3).for_each(|_| device.dup(Slot(0)).unwrap());
        assert!(matches!(device.lock(Slot(0), folio(9)), Ok(Locked::Resident(Resident { count: 3, .. }))));
        let other = {
            let engine = engine.clone();
            thread::spawn(move || {
                assert!(!engine.device.put(Slot(0)));
                engine.device.lock(Slot(0), folio(9)).is_ok_and(|_| {
                    engine.device.unlock(Slot(0));
                    true
                })
            })
        };
        device.settle(Slot(0));
        other.join().unwrap();
        let entry = TableEntry::Cached { count: 1, folio: folio(0), zero: false, locked: false };
        assert_eq!(device.get(Slot(0)), entry);
        assert_eq!(device.validate().unwrap().counts_overflowed, 0);
    });
}
