//! The cold tier: what has been in the pool for long is compressed once more, and is what it was wherever it goes from there.

use crate::harness::alone::{
    COMPRESSIBLE, PAGE, Pages, RAM, RAM_PAGES, RANDOM, StopsAtEnd, alone, assert_sound, file_pages, fork, space_on,
    wait,
};
use crate::harness::{Random, ctx, leave, press};
use ebb::{Force, Reclaim, ReclaimTo, Space, SwapSpec};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

const FILE: SwapSpec<'static> = SwapSpec { dir: c"/var/tmp", bytes: 1 << 30, priority: None, ..SwapSpec::DEFAULT };
/// Half of the budget: nothing leaves by itself.
const PAGES: usize = RAM_PAGES / 2;
/// Content that gets much smaller, a little smaller, and no smaller; and what looks like an object of some codec.
const TEXT: u64 = 7;
const KINDS: [u64; 8] = [TEXT, TEXT, COMPRESSIBLE, 5, TEXT, RANDOM, 6, 4];

fn demand(space: &'static Space, to: ReclaimTo) -> usize {
    let all = Reclaim { pages: usize::MAX, to, shared: false };
    space.reclaim(ctx(space), all, &mut |_| true).expect("there is a device, or none is needed")
}

fn mixed(space: &'static Space, n: usize) -> Pages {
    let mut pages = Pages::aligned(space, n, TEXT);
    (0..n).for_each(|page| pages.write(page, 2, KINDS[page % KINDS.len()]));
    pages
}

fn count(counter: &AtomicU64) -> u64 {
    counter.load(Relaxed)
}

/// Pages in the hot tier, and in the cold one, and the bytes of each, as other processes see them.
fn tiers(space: &Space) -> ([u64; 2], [u64; 2]) {
    let member = space.tree().member();
    ([&member.hot_pages, &member.cold_pages].map(count), [&member.hot_bytes, &member.cold_bytes].map(count))
}

#[test]
fn what_is_hot_becomes_cold_and_takes_less() {
    alone(|| {
        let space = space_on(&[FILE], true);
        let pages = Pages::aligned(space, PAGES, TEXT);
        demand(space, ReclaimTo::Pool);
        let (hot, pool) = (tiers(space), count(&space.tree().member().pool));
        assert!(hot.0[0] > PAGES as u64 - 64 && hot.0[1] == 0, "{hot:?}");
        let freed = demand(space, ReclaimTo::Cold) as u64;
        let (cold, less) = (tiers(space), count(&space.tree().member().pool));
        assert!(cold.0[0] < 64 && cold.0[1] > PAGES as u64 - 128, "{cold:?}");
        assert!(cold.1[1] < hot.1[0] * 7 / 8, "{cold:?} of {hot:?}");
        // What the objects take less, the pool takes less.
        let gain = (hot.1[0] - cold.1[1]) / PAGE as u64;
        assert!(pool - less > gain / 2 && freed > gain / 2, "{pool} before, {less} now, {gain} gained, {freed} freed");
        assert_sound(&pages);
        assert!(count(&space.stats().faults_cold) > 0);
        drop(pages);
        assert_eq!(space.validate(), Ok(()));
    });
}

#[test]
fn what_gets_no_smaller_is_tried_once() {
    alone(|| {
        let space = space_on(&[FILE], true);
        let pages = Pages::aligned(space, PAGES, 5);
        let others = Pages::aligned(space, 64, TEXT);
        demand(space, ReclaimTo::Cold);
        let tried = || [&space.stats().cooled_pages, &space.stats().cooled_not_pages].map(count);
        let before = tried();
        assert!(before[0] + before[1] >= PAGES as u64, "{before:?}");
        demand(space, ReclaimTo::Cold);
        assert_eq!(tried(), before);
        assert_sound(&pages);
        assert_sound(&others);
    });
}

#[test]
fn what_comes_back_is_hot_again() {
    alone(|| {
        let space = space_on(&[FILE], true);
        let mut pages = Pages::aligned(space, PAGES, TEXT);
        demand(space, ReclaimTo::Cold);
        // To read is enough; what is written has no copy any more.
        pages.check_all();
        (0..PAGES).for_each(|page| pages.write(page, 3, TEXT));
        demand(space, ReclaimTo::Pool);
        let (n, _) = tiers(space);
        assert!(n[0] > PAGES as u64 - 64 && n[1] == 0, "{n:?}");
        assert_sound(&pages);
    });
}

#[test]
fn cold_objects_go_to_a_device_as_they_are_and_come_back_from_there() {
    alone(|| {
        let space = space_on(&[FILE], true);
        let pages = mixed(space, PAGES);
        demand(space, ReclaimTo::Cold);
        let (n, bytes) = tiers(space);
        assert!(n[1] > PAGES as u64 / 3, "{n:?}");
        demand(space, ReclaimTo::Device);
        // The same bytes, several objects in a slot, and the others beside them.
        assert_eq!((tiers(space).0, count(&space.tree().member().pool)), ([0, 0], 0));
        let [objects, written] = [&space.stats().file_object_bytes, &space.stats().file_bytes].map(count);
        let others = file_pages(space) - n[0] - n[1];
        let most = bytes[0] + bytes[1] + others * PAGE as u64;
        assert!(objects <= most && written < objects * 115 / 100, "{objects} of {most}, {written} written");
        assert!(count(&space.stats().writeback_pages) >= n[1]);
        assert_sound(&pages);
    });
}

#[test]
fn the_copy_of_a_page_becomes_cold_once_its_page_has_left() {
    alone(|| {
        let space = space_on(&[FILE], true);
        let pages = Pages::aligned(space, PAGES, TEXT);
        demand(space, ReclaimTo::Pool);
        // Each page is in memory now, and its object stays in the pool as its copy.
        pages.check_all();
        let (n, _) = tiers(space);
        assert!(n[0] > PAGES as u64 * 7 / 8 && n[1] == 0, "{n:?}");
        demand(space, ReclaimTo::Cold);
        let (n, _) = tiers(space);
        assert!(n[0] < 64 && n[1] > PAGES as u64 - 128, "{n:?}");
        assert_sound(&pages);
    });
}

#[test]
fn swapoff_brings_cold_objects_into_the_pool_as_they_are() {
    alone(|| {
        let space = space_on(&[FILE], true);
        let pages = Pages::aligned(space, PAGES, TEXT);
        demand(space, ReclaimTo::Cold);
        let (n, bytes) = tiers(space);
        demand(space, ReclaimTo::Device);
        space.swapoff(ctx(space), FILE.dir, &mut |_| true).expect("the pool has room");
        assert_eq!(space.validate(), Ok(()));
        demand(space, ReclaimTo::Pool);
        let (now, now_bytes) = tiers(space);
        assert!(now[1] >= n[1] && now_bytes[1] >= bytes[1], "{now:?} {now_bytes:?} of {n:?} {bytes:?}");
        assert_sound(&pages);
    });
}

#[test]
fn a_child_has_what_is_cold_and_so_has_its_parent() {
    alone(|| {
        let space = space_on(&[FILE], true);
        let mut pages = mixed(space, PAGES);
        demand(space, ReclaimTo::Cold);
        let before = count(&space.stats().cooled_pages);
        let child = fork(space, || {
            let mut own = Pages { space, at: pages.at, versions: pages.versions.clone() };
            // A pool that is shared is not changed.
            let tried = [&space.stats().cooled_pages, &space.stats().cooled_not_pages].map(count);
            demand(space, ReclaimTo::Cold);
            assert_eq!([&space.stats().cooled_pages, &space.stats().cooled_not_pages].map(count), tried);
            (0..PAGES).step_by(3).for_each(|page| own.write(page, 7, KINDS[page % 5]));
            own.check_all();
            press(space, RAM);
            assert_sound(&own);
            std::mem::forget(own);
        });
        (0..PAGES).step_by(2).for_each(|page| pages.write(page, 8, KINDS[page % 7]));
        pages.check_all();
        assert_eq!(wait(child), 0);
        press(space, RAM);
        assert_sound(&pages);
        // Once the child is gone, the pool may change again.
        demand(space, ReclaimTo::Cold);
        let (now, (n, _)) = (count(&space.stats().cooled_pages), tiers(space));
        assert!(now > before + n[0] && n[1] > n[0], "{now} of {before}, {n:?}");
        assert_sound(&pages);
    });
}

/// The background thread makes everything cold at once, while threads use it.
#[test]
fn threads_use_what_becomes_cold_under_their_hands() {
    alone(|| {
        let force = Force { strict: true, always_cold: true, ..crate::harness::force() };
        let space = crate::harness::space(RAM, force);
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let _stop = StopsAtEnd(&stop);
            for thread in 0..3u64 {
                let stop = &stop;
                scope.spawn(move || {
                    ctx(space);
                    let mut random = Random(thread * 7919 + 3);
                    let mut pages = mixed(space, RAM_PAGES);
                    let mut version = 10;
                    while !stop.load(Relaxed) {
                        let first = random.below(pages.len() - 300);
                        for page in first..first + 300 {
                            match random.below(4) {
                                0 => {
                                    version += 1;
                                    pages.write(page, version, KINDS[random.below(KINDS.len())]);
                                }
                                _ => pages.check(page),
                            }
                        }
                    }
                    assert_sound_but_for_others(&pages);
                    drop(pages);
                    leave(space);
                });
            }
            // On demand, beside the background thread and the others.
            let end = Instant::now() + Duration::from_secs(6);
            while Instant::now() < end {
                let some = |to| Reclaim { pages: 200, to, shared: false };
                let _ = space.reclaim(ctx(space), some(ReclaimTo::Cold), &mut |_| true);
                let _ = space.reclaim(ctx(space), some(ReclaimTo::Device), &mut |_| true);
            }
        });
        assert!(count(&space.stats().cooled_pages) > 1000, "{}", count(&space.stats().cooled_pages));
        assert!(count(&space.stats().faults_cold) > 100, "{}", count(&space.stats().faults_cold));
        assert_eq!(space.validate(), Ok(()));
        assert_eq!(space.stats().error_bytes()[0], 0);
    });
}

/// What others do at the same time cannot be validated.
fn assert_sound_but_for_others(pages: &Pages) {
    pages.check_all();
    assert_eq!(pages.space.stats().error_bytes()[0], 0);
}

#[test]
fn what_nothing_else_makes_room_for_fits_once_the_pool_is_cold() {
    alone(|| {
        let space = space_on(&[], true);
        // More than fits hot, less than fits cold. Without room the process would be ended.
        let mut all = Vec::new();
        while count(&space.stats().cooled_pages) < 1000 {
            assert!(all.len() < 100, "it has room without end");
            all.push(Pages::new(space, RAM_PAGES / 8, TEXT));
        }
        all.iter().for_each(Pages::check_all);
        all.iter().for_each(assert_sound);
    });
}

#[test]
fn a_budget_below_what_is_held_makes_the_pool_cold_and_no_thread_spins() {
    alone(|| {
        let space = space_on(&[], true);
        let pages = Pages::aligned(space, RAM_PAGES * 3 / 2, TEXT);
        demand(space, ReclaimTo::Pool);
        let held = |space: &Space| space.charged_pages() as u64;
        let before = held(space);
        space.tree().page().set_limit(before * 7 / 8);
        let ended = Instant::now() + Duration::from_secs(20);
        let random = Pages::new(space, 8, RANDOM);
        while tiers(space).0[1] == 0 {
            assert!(Instant::now() < ended, "{:?}", tiers(space));
            std::thread::sleep(Duration::from_millis(20));
        }
        // Whatever is left to do, it is not done all the time.
        space.tree().page().set_limit(held(space) * 3 / 4);
        std::thread::sleep(Duration::from_secs(3));
        let ran = count(&space.stats().background_ns);
        std::thread::sleep(Duration::from_secs(2));
        let ran = Duration::from_nanos(count(&space.stats().background_ns) - ran);
        assert!(ran < Duration::from_millis(500), "{ran:?}");
        space.tree().page().set_limit(RAM_PAGES as u64);
        assert_sound(&pages);
        assert_sound(&random);
    });
}
