//! Nobody takes more from a bucket than it held and has got back since, in whatever order threads look at it and at the clock.
//!
//! The bucket is real. The clock is a word that only goes forward, and a look at it sees the latest value, as a look at the kernel's does.

use super::explore;
use ebb::bucket::Bucket;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::thread;

/// A bucket of four parts, one for each 2 ns.
const PERIOD: u64 = 8;
const PART: u64 = 2;
const BEGIN: u64 = 100;

struct World {
    bucket: Bucket,
    clock: AtomicU64,
}

impl World {
    fn new() -> Arc<Self> {
        Arc::new(Self { bucket: Bucket::default(), clock: AtomicU64::new(BEGIN) })
    }

    fn now(&self) -> u64 {
        self.clock.fetch_add(0, Ordering::AcqRel)
    }

    /// Tries so often to take a part. Returns when the last one was taken, and how many were.
    fn take(&self, times: usize) -> (u64, u64) {
        let taken = (0..times).filter_map(|_| self.bucket.take((PART, PART), PERIOD, || self.now()));
        taken.fold((0, 0), |(_, n), at| (at, n + 1))
    }

    fn pass(&self) {
        self.clock.fetch_add(PART, Ordering::AcqRel);
    }
}

#[test]
fn no_more_is_taken_than_there_is() {
    explore(3, || {
        let world = World::new();
        let other = {
            let world = world.clone();
            thread::spawn(move || world.take(3).1)
        };
        let time = {
            let world = world.clone();
            thread::spawn(move || world.pass())
        };
        let taken = world.take(3).1 + other.join().expect("it took");
        time.join().expect("time passed");
        assert!(taken * PART <= PERIOD + world.now() - BEGIN, "{taken}");
        // What is left can still be had.
        let rest = world.take(8).1;
        assert!((taken + rest) * PART >= PERIOD, "{taken} and {rest}");
        assert!((taken + rest) * PART <= PERIOD + world.now() - BEGIN, "{taken} and {rest}");
    });
}

#[test]
fn what_is_given_back_is_there_once() {
    explore(3, || {
        let world = World::new();
        let (at, n) = world.take(4);
        assert_eq!(n, 4);
        let other = {
            let world = world.clone();
            thread::spawn(move || world.bucket.give_back(PART, at, world.now()))
        };
        let taken = world.take(2).1;
        other.join().expect("it gave back");
        assert_eq!(taken + world.take(8).1, 1);
    });
}

#[test]
fn what_came_back_by_itself_is_not_given_back_once_more() {
    explore(3, || {
        let world = World::new();
        let (at, n) = world.take(4);
        assert_eq!(n, 4);
        let other = {
            let world = world.clone();
            thread::spawn(move || {
                world.pass();
                world.bucket.give_back(PART, at, world.now());
            })
        };
        let taken = world.take(2).1;
        other.join().expect("it gave back");
        // It may have been full in between.
        assert_eq!(taken + world.take(8).1, 1);
    });
}

#[test]
fn a_clock_that_was_set_back_is_seen_by_one_or_both() {
    explore(3, || {
        let world = World::new();
        assert_eq!(world.take(4).1, 4);
        world.clock.store(BEGIN / 2, Ordering::Release);
        let other = {
            let world = world.clone();
            thread::spawn(move || world.take(1).1)
        };
        let taken = world.take(1).1 + other.join().expect("it looked");
        assert_eq!((taken, world.bucket.missing(PART, PERIOD, || world.now())), (0, PART));
        world.pass();
        assert_eq!(world.take(2).1, 1);
    });
}
