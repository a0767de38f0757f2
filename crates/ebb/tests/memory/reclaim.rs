//! Memory on demand: what is asked for leaves, to where it shall go, and comes back as it was.

use crate::harness::alone::{
    COMPRESSIBLE, PAGE, Pages, RAM, RAM_PAGES, RANDOM, StopsAtEnd, alone, assert_sound, file_pages, fork,
    space_in_tree, space_on, wait,
};
use crate::harness::{Random, ctx, leave, resident};
use ebb::{NoDevice, PinResult, Reclaim, ReclaimTo, Space, SwapSpec};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

const FILE: SwapSpec<'static> = SwapSpec { dir: c"/var/tmp", bytes: 1 << 30, priority: None, ..SwapSpec::DEFAULT };

/// Half of the budget, and what is asked for of it: there is plenty of room, so nothing leaves by itself.
const PAGES: usize = RAM_PAGES / 2;
const ASKED: usize = PAGES / 4;
/// A step may free so much more.
const MORE: usize = 512;

fn demand(space: &'static Space, pages: usize, to: ReclaimTo) -> Result<usize, NoDevice> {
    space.reclaim(ctx(space), Reclaim { pages, to, shared: false }, &mut |_| true)
}

fn pool_pages(space: &Space) -> u64 {
    space.tree().member().pool.load(Relaxed)
}

#[test]
fn what_is_asked_for_leaves_and_comes_back() {
    alone(|| {
        let space = space_on(&[FILE], true);
        let pages = Pages::aligned(space, PAGES, COMPRESSIBLE);
        let before = space.charged_pages();
        let freed = demand(space, ASKED, ReclaimTo::Usual).expect("there is a device");
        assert!((ASKED..ASKED + MORE).contains(&freed), "{freed}");
        let charged = space.charged_pages();
        assert!(charged + ASKED <= before, "{before} before, {charged} now");
        assert!(resident(pages.at, PAGES) + ASKED <= PAGES);
        assert_eq!((file_pages(space), space.limit_pages()), (0, RAM_PAGES));
        assert!(pool_pages(space) > 0);
        // Touched again, it is back within the budget.
        assert_sound(&pages);
        assert_eq!(resident(pages.at, PAGES), PAGES);
    });
}

#[test]
fn what_does_not_compress_goes_to_the_device_although_there_is_room() {
    alone(|| {
        let space = space_on(&[FILE], true);
        let pages = Pages::aligned(space, PAGES, RANDOM);
        let freed = demand(space, ASKED, ReclaimTo::Usual).expect("there is a device");
        assert!((ASKED..ASKED + MORE).contains(&freed), "{freed}");
        assert!(file_pages(space) as usize >= ASKED);
        assert_eq!(pool_pages(space), 0);
        assert_sound(&pages);
    });
}

#[test]
fn only_what_compresses_goes_to_the_pool() {
    alone(|| {
        let space = space_on(&[FILE], true);
        let mut pages = Pages::aligned(space, PAGES, COMPRESSIBLE);
        (0..PAGES).filter(|page| page % 3 == 0).for_each(|page| pages.write(page, 2, RANDOM));
        // More than there is.
        let freed = demand(space, 2 * RAM_PAGES, ReclaimTo::Pool).expect("needs no device");
        assert!((PAGES / 3..PAGES * 2 / 3).contains(&freed), "{freed}");
        assert_eq!(file_pages(space), 0);
        // What does not compress is not left in staging.
        let mapped = resident(pages.at, PAGES);
        assert!(mapped > PAGES / 3 - MORE, "{mapped}");
        assert_sound(&pages);
    });
}

#[test]
fn what_is_in_the_pool_goes_to_the_device_first() {
    alone(|| {
        let space = space_on(&[FILE], true);
        let pages = Pages::aligned(space, PAGES, COMPRESSIBLE);
        demand(space, PAGES / 2, ReclaimTo::Pool).expect("needs no device");
        let (pool, there) = (pool_pages(space) as usize, resident(pages.at, PAGES));
        assert!(pool > 64, "{pool}");
        let freed = demand(space, pool / 2, ReclaimTo::Device).expect("there is a device");
        assert!(freed >= pool / 2 && pool_pages(space) as usize <= pool.div_ceil(2) + MORE, "{freed} of {pool}");
        assert_eq!((resident(pages.at, PAGES), space.stats().out_file_pages.load(Relaxed)), (there, 0));
        assert!(space.stats().writeback_pages.load(Relaxed) > 0);
        // All of it: nothing is left in the pool, and the rest of the pages follow.
        demand(space, 2 * RAM_PAGES, ReclaimTo::Device).expect("there is a device");
        assert_eq!((pool_pages(space), resident(pages.at, PAGES)), (0, 0));
        assert_sound(&pages);
    });
}

#[test]
fn everything_that_can_go_goes_and_then_it_ends() {
    alone(|| {
        let space = space_on(&[FILE], true);
        let pages = Pages::aligned(space, PAGES, COMPRESSIBLE);
        let freed = demand(space, usize::MAX, ReclaimTo::Usual).expect("there is a device");
        // Less what the books take of it.
        assert!(freed > PAGES - 128, "{freed}");
        assert_eq!((resident(pages.at, PAGES), pool_pages(space)), (0, 0));
        assert!(demand(space, usize::MAX, ReclaimTo::Usual).expect("there is a device") < 64);
        assert_sound(&pages);
    });
}

#[test]
fn without_a_device_a_demand_for_one_is_refused_and_what_compresses_goes() {
    alone(|| {
        let space = space_on(&[], true);
        let mut pages = Pages::aligned(space, PAGES, COMPRESSIBLE);
        (0..PAGES / 2).for_each(|page| pages.write(page, 2, RANDOM));
        let before = space.charged_pages();
        assert_eq!(demand(space, ASKED, ReclaimTo::Device), Err(NoDevice::Absent));
        assert_eq!(space.charged_pages(), before);
        let freed = demand(space, ASKED, ReclaimTo::Usual).expect("needs no device");
        assert!(freed >= ASKED, "{freed}");
        // Pages that do not compress would take as much room in the pool.
        let freed = demand(space, RAM_PAGES, ReclaimTo::Usual).expect("needs no device");
        assert!(freed < PAGES / 2, "{freed}");
        assert_sound(&pages);
    });
}

#[test]
fn who_no_longer_wants_it_is_obeyed() {
    alone(|| {
        let space = space_on(&[FILE], true);
        let pages = Pages::aligned(space, PAGES, COMPRESSIBLE);
        let all = Reclaim { pages: usize::MAX, to: ReclaimTo::Usual, shared: false };
        let freed = space.reclaim(ctx(space), all, &mut |_| false).expect("there is a device");
        assert!(freed < 64, "{freed}");
        let freed = space.reclaim(ctx(space), all, &mut |freed| freed < ASKED).expect("there is a device");
        assert!((ASKED..ASKED + MORE).contains(&freed), "{freed}");
        assert_sound(&pages);
    });
}

#[test]
fn what_a_call_uses_stays() {
    alone(|| {
        let space = space_on(&[FILE], true);
        let pages = Pages::aligned(space, PAGES, COMPRESSIBLE);
        let ctx = ctx(space);
        space.pin_begin(ctx, 0);
        assert_eq!(space.pin_add(ctx, pages.addr(100), 10 * PAGE), PinResult::Ok);
        demand(space, usize::MAX, ReclaimTo::Device).expect("there is a device");
        assert_eq!(resident(pages.at, PAGES), 10);
        space.pin_end(ctx);
        demand(space, usize::MAX, ReclaimTo::Device).expect("there is a device");
        assert_eq!(resident(pages.at, PAGES), 0);
        assert_sound(&pages);
    });
}

#[test]
fn what_is_shared_since_a_fork_goes_only_if_that_is_asked_for() {
    alone(|| {
        let (space, _) = space_in_tree(RAM, &[FILE]);
        let pages = Pages::aligned(space, PAGES, COMPRESSIBLE);
        let child = fork(space, || {
            let all = |shared| Reclaim { pages: usize::MAX, to: ReclaimTo::Usual, shared };
            space.reclaim(ctx(space), all(false), &mut |_| true).expect("there is a device");
            assert!(resident(pages.at, PAGES) > PAGES / 2);
            space.reclaim(ctx(space), all(true), &mut |_| true).expect("there is a device");
            assert!(resident(pages.at, PAGES) < PAGES / 16);
            pages.check_all();
        });
        assert_eq!(wait(child), 0);
        assert_sound(&pages);
    });
}

#[test]
fn threads_that_write_meanwhile_lose_nothing() {
    alone(|| {
        let space = space_on(&[FILE], true);
        let at = crate::harness::map(space, PAGES * PAGE) as usize;
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let stop = StopsAtEnd(&done);
            let writers: Vec<_> = (0..2usize)
                .map(|index| {
                    scope.spawn(move || {
                        // Each has every second page.
                        let (at, mut random) = (at as *mut u8, Random(41 + index as u64));
                        ctx(space);
                        let mut versions = vec![0u64; PAGES / 2];
                        for _ in 0..15_000 {
                            let own = random.below(PAGES / 2);
                            let page = 2 * own + index;
                            let kind = |version: u64| if version == 0 { 0 } else { 1 + version % 3 };
                            crate::harness::check(at, page, versions[own], kind(versions[own]));
                            versions[own] += 1;
                            crate::harness::fill(at, page, versions[own], kind(versions[own]));
                        }
                        leave(space);
                    })
                })
                .collect();
            let takers: Vec<_> = [ReclaimTo::Usual, ReclaimTo::Pool, ReclaimTo::Device]
                .map(|to| {
                    let done = &done;
                    scope.spawn(move || {
                        while !done.load(Relaxed) {
                            demand(space, 300, to).expect("there is a device");
                        }
                        leave(space);
                    })
                })
                .into_iter()
                .collect();
            for writer in writers {
                writer.join().expect("nothing lost");
            }
            drop(stop);
            for taker in takers {
                taker.join().expect("taken");
            }
        });
        space.validate().expect("consistent");
        crate::harness::unmap(space, at as *mut u8, PAGES * PAGE);
    });
}
