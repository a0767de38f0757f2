//! Writes in flight: whatever becomes of them, what comes back is what went out, and a process that may have none does
//! without.

use crate::harness::alone::{
    COMPRESSIBLE, PAGE, Pages, RAM, RAM_PAGES, RANDOM, alone, assert_sound, can_fly, fork, rewrite, wait,
};
use crate::harness::{ctx, force, leave, space_with};
use ebb::{Config, Force, Reclaim, ReclaimTo, Space, SwapSpec};
use std::sync::atomic::Ordering::Relaxed;

/// A space that writes to a disk.
fn space(change: fn(&mut Force)) -> &'static Space {
    let swap = [SwapSpec { dir: c"/var/tmp", bytes: 1 << 30, ..SwapSpec::DEFAULT }];
    let mut force = Force { strict: true, ..force() };
    change(&mut force);
    space_with(&Config { ram_bytes: 4 * RAM, swap: &swap, stats: None, stats_fd: None, force })
}

/// Pages of all kinds go out and come back, beside other threads and forks. They change so many times.
fn all_comes_back(space: &'static Space, times: u64) {
    let mut hard = Pages::new(space, 6 * RAM_PAGES, RANDOM);
    let mut heap = Pages::new(space, 8 * RAM_PAGES, COMPRESSIBLE);
    std::thread::scope(|scope| {
        for pages in [&mut hard, &mut heap] {
            scope.spawn(|| {
                let _ = ctx(space);
                (1..=times).for_each(|seed| rewrite(pages, seed));
                leave(space);
            });
        }
    });
    let child = fork(space, || {
        hard.check_all();
        let own = Pages::new(space, 4 * RAM_PAGES, RANDOM);
        assert_sound(&own);
        heap.check_all();
    });
    hard.check_all();
    assert_eq!(wait(child), 0);
    let demand = Reclaim { pages: usize::MAX, to: ReclaimTo::Device, shared: true };
    space.reclaim(ctx(space), demand, &mut |_| true).expect("a device");
    assert!(space.stats().writeback_pages.load(Relaxed) > 0);
    assert_sound(&hard);
    assert_sound(&heap);
}

#[test]
fn what_was_in_flight_comes_back() {
    alone(|| {
        let space = space(|_| ());
        all_comes_back(space, 3);
        let flown = space.stats().flown_slots.load(Relaxed);
        assert!(flown > 1000 || !can_fly(), "{flown}");
    });
}

#[test]
fn a_flight_that_fails_is_made_again() {
    alone(|| {
        let space = space(|force| force.failing_flights = true);
        all_comes_back(space, 1);
        assert!(space.stats().failed_flights.load(Relaxed) > 10 || !can_fly());
    });
}

#[test]
fn transfers_that_are_left_lose_nothing() {
    alone(|| {
        let space = space(|force| force.late_flights = true);
        all_comes_back(space, 1);
        assert!(space.stats().late_transfers.load(Relaxed) > 10 || !can_fly());
    });
}

#[test]
fn without_flights_each_write_is_waited_for() {
    alone(|| {
        let space = space(|force| force.no_flights = true);
        all_comes_back(space, 1);
        assert_eq!(space.stats().flown_slots.load(Relaxed), 0);
    });
}

#[test]
fn a_process_that_may_have_none_any_more_goes_on() {
    alone(|| {
        let space = space(|_| ());
        let pages = Pages::new(space, 6 * RAM_PAGES, RANDOM);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let _ = ctx(space);
                drop(Pages::new(space, 6 * RAM_PAGES, RANDOM));
                leave(space);
            });
            std::thread::sleep(std::time::Duration::from_millis(20));
            space.fly_no_more();
        });
        let flown = space.stats().flown_slots.load(Relaxed);
        drop(Pages::new(space, 6 * RAM_PAGES, RANDOM));
        assert_eq!(space.stats().flown_slots.load(Relaxed), flown);
        assert_sound(&pages);
    });
}

#[test]
fn a_file_that_may_not_grow_is_written_as_far_as_it_may() {
    alone(|| {
        let space = space(|_| ());
        let pages = Pages::new(space, 5 * RAM_PAGES, RANDOM);
        // The limit is meant for the program's own files. Its signal would end the process.
        let limit = libc::rlimit { rlim_cur: PAGE as u64, rlim_max: libc::RLIM_INFINITY };
        // SAFETY: sets a limit of this process.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, &limit) }, 0);
        assert_sound(&Pages::new(space, 6 * RAM_PAGES, RANDOM));
        assert_sound(&pages);
    });
}
