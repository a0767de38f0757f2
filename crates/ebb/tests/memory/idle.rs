//! Ageing: what nobody uses leaves although there is room, what is used stays, and all of it comes back as it was.
//!
//! The background thread does it. The shortest period is used, so each test takes some seconds.

use crate::harness::alone::{
    COMPRESSIBLE, PAGE, Pages, RAM, RAM_PAGES, RANDOM, StopsAtEnd, alone, assert_sound, fork, rewrite, space_in_tree,
    space_on, wait,
};
use crate::harness::faulty::{Device, Verdict};
use crate::harness::folios::{HEAP, UNIT, mapped_folios, with_folios};
use crate::harness::{PATIENCE, Random, check, ctx, fill, leave, resident};
use ebb::stats::{Shared, Thp};
use ebb::{GroupId, GroupLimits, PinResult, Space, SwapSpec};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

const FILE: SwapSpec<'static> = SwapSpec { dir: c"/var/tmp", bytes: 1 << 30, priority: None, ..SwapSpec::DEFAULT };
const PERIOD: Duration = Duration::from_secs(1);
/// Half of the budget: there is plenty of room, so nothing leaves by itself.
const PAGES: usize = RAM_PAGES / 2;
/// What ageing leaves a process, and what was about to be looked at.
const LEFT: usize = 256 + 64;

fn stat(space: &Space, of: fn(&Shared) -> &AtomicU64) -> u64 {
    of(space.stats()).load(Relaxed)
}

fn pool_pages(space: &Space) -> usize {
    space.tree().member().pool.load(Relaxed) as usize
}

fn staged_pages(space: &Space) -> usize {
    space.tree().member().staged.load(Relaxed) as usize
}

/// Waits until `is_so`. Nobody uses any managed memory meanwhile, unless `is_so` does.
#[track_caller]
fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < end, "never: {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn what_nobody_uses_goes_to_the_pool_and_then_to_the_device() {
    alone(|| {
        let space = space_on(&[FILE], true);
        let pages = Pages::aligned(space, PAGES, COMPRESSIBLE);
        let before = space.charged_pages();
        space.set_idle(Some(PERIOD));
        let begun = Instant::now();
        until("it is in the pool", || pool_pages(space) > 0);
        // Not before it was known for a period, and then staged for one.
        assert!(begun.elapsed() > 2 * PERIOD - PERIOD / 8, "{:?}", begun.elapsed());
        assert_eq!(stat(space, |stats| &stats.idle_writeback_pages), 0);
        until("it has left", || resident(pages.at, PAGES) <= LEFT && pool_pages(space) == 0);
        until("all is told", || staged_pages(space) == 0);
        let moved = [stat(space, |s| &s.idle_out_pages), stat(space, |s| &s.idle_writeback_pages)];
        assert!(moved.iter().all(|moved| *moved as usize + LEFT >= PAGES), "{moved:?}");
        assert_eq!(moved[1], stat(space, |stats| &stats.writeback_pages));
        assert!(space.charged_pages() + PAGES - LEFT <= before + PAGES / 8, "{before}, {}", space.charged_pages());
        assert_sound(&pages);
    });
}

#[test]
fn what_is_used_within_the_period_stays() {
    alone(|| {
        const HOT: usize = 300;
        let space = space_on(&[FILE], true);
        let pages = Pages::aligned(space, PAGES, COMPRESSIBLE);
        space.set_idle(Some(PERIOD));
        let hot = |page: usize| page.is_multiple_of(7) && page / 7 < HOT;
        let begun = Instant::now();
        while begun.elapsed() < 9 * PERIOD {
            (0..PAGES).filter(|page| hot(*page)).for_each(|page| pages.check(page));
            std::thread::sleep(PERIOD / 20);
        }
        let swapped_in = stat(space, |s| &s.faults_pool) + stat(space, |s| &s.faults_file);
        // A machine that is busy may keep the program from its memory for longer than a period.
        assert!(swapped_in <= HOT as u64 / 10, "{swapped_in} of the hot pages had left");
        // At most once a period.
        let soft = stat(space, |s| &s.staged_back_pages);
        assert!(soft <= (HOT * 10) as u64, "{soft}");
        let there = resident(pages.at, PAGES);
        assert!((HOT / 2..HOT + LEFT).contains(&there), "{there}");
        assert_sound(&pages);
    });
}

#[test]
fn while_the_period_is_off_nothing_leaves() {
    alone(|| {
        let space = space_on(&[FILE], true);
        let pages = Pages::aligned(space, PAGES, COMPRESSIBLE);
        std::thread::sleep(3 * PERIOD);
        assert_eq!(resident(pages.at, PAGES), PAGES);
        space.set_idle(Some(PERIOD));
        until("some is unmapped", || resident(pages.at, PAGES) < PAGES / 2);
        space.set_idle(None);
        pages.check_all();
        let out = stat(space, |s| &s.idle_out_pages);
        std::thread::sleep(3 * PERIOD);
        assert_eq!((resident(pages.at, PAGES), stat(space, |s| &s.idle_out_pages)), (PAGES, out));
        // A sleeping thread learns of a period at once.
        space.set_idle(Some(PERIOD));
        until("it has left", || resident(pages.at, PAGES) <= LEFT);
        assert_sound(&pages);
    });
}

#[test]
fn without_a_device_what_compresses_goes_to_the_pool_and_the_rest_stays() {
    alone(|| {
        let space = space_on(&[], true);
        let mut pages = Pages::aligned(space, PAGES, COMPRESSIBLE);
        (0..PAGES / 2).for_each(|page| pages.write(page, 2, RANDOM));
        space.set_idle(Some(PERIOD));
        until("half is in the pool", || stat(space, |s| &s.out_pool_pages) as usize + LEFT >= PAGES / 2);
        std::thread::sleep(4 * PERIOD);
        let there = resident(pages.at, PAGES);
        assert!((PAGES / 2 - 64..PAGES / 2 + LEFT).contains(&there), "{there}");
        assert_eq!((staged_pages(space), stat(space, |s| &s.idle_writeback_pages)), (0, 0));
        // What no place takes is not tried every period.
        assert!(stat(space, |s| &s.idle_unmapped_pages) < 3 * PAGES as u64);
        assert_sound(&pages);
    });
}

#[test]
fn a_device_that_is_full_leaves_the_rest_in_the_pool() {
    alone(|| {
        let space = space_on(&[SwapSpec { bytes: 1 << 20, ..FILE }], true);
        let pages = Pages::aligned(space, PAGES, COMPRESSIBLE);
        space.set_idle(Some(PERIOD));
        until("the device is full", || stat(space, |s| &s.idle_writeback_pages) > 256 && pool_pages(space) > 0);
        until("the rest is in the pool", || resident(pages.at, PAGES) <= LEFT && staged_pages(space) == 0);
        std::thread::sleep(3 * PERIOD);
        assert!(pool_pages(space) > 0);
        assert_sound(&pages);
    });
}

#[test]
fn a_device_that_fails_is_left_alone() {
    alone(|| {
        let device = Device::new();
        let space = space_on(&[FILE], true);
        device.watch(space.fds().take(2).skip(1));
        device.rule(|transfer| if transfer.is_write { Verdict::Fail(libc::EIO) } else { Verdict::Pass });
        let pages = Pages::aligned(space, PAGES, COMPRESSIBLE);
        space.set_idle(Some(PERIOD));
        until("it is in the pool", || resident(pages.at, PAGES) <= LEFT && staged_pages(space) == 0);
        until("the device is closed", || {
            let mut closed = false;
            space.devices(|device| closed = device.state == ebb::SwapState::Closed);
            closed
        });
        let errors = stat(space, |s| &s.device_write_errors);
        std::thread::sleep(3 * PERIOD);
        assert_eq!(stat(space, |s| &s.device_write_errors), errors);
        assert!(pool_pages(space) > 0);
        assert_sound(&pages);
    });
}

#[test]
fn clean_pages_leave_and_those_in_use_are_opened() {
    alone(|| {
        let space = space_on(&[FILE], true);
        let pages = Pages::aligned(space, PAGES, COMPRESSIBLE);
        space.set_idle(Some(PERIOD));
        until("it has left", || resident(pages.at, PAGES) <= LEFT && pool_pages(space) == 0);
        // Read in order after a long time, they come in from the device and stay clean.
        std::thread::sleep(4 * PERIOD);
        pages.check_all();
        let dropped = stat(space, |s| &s.dropped_clean_pages);
        until("it has left again", || resident(pages.at, PAGES) <= LEFT);
        assert!(stat(space, |s| &s.dropped_clean_pages) > dropped);
        // In use, they are dropped once.
        let begun = Instant::now();
        while begun.elapsed() < 6 * PERIOD {
            (0..UNIT).for_each(|page| pages.check(page));
            std::thread::sleep(PERIOD / 20);
        }
        let read = stat(space, |s| &s.faults_file);
        while begun.elapsed() < 10 * PERIOD {
            (0..UNIT).for_each(|page| pages.check(page));
            std::thread::sleep(PERIOD / 20);
        }
        let again = stat(space, |s| &s.faults_file) - read;
        assert!(again < UNIT as u64 / 16, "{again} reads of pages in use");
        assert_sound(&pages);
    });
}

#[test]
fn a_call_keeps_what_it_uses() {
    alone(|| {
        let space = space_on(&[FILE], true);
        let pages = Pages::aligned(space, PAGES, COMPRESSIBLE);
        let ctx = ctx(space);
        space.pin_begin(ctx, 0);
        assert_eq!(space.pin_add(ctx, pages.addr(100), 10 * PAGE), PinResult::Ok);
        space.set_idle(Some(PERIOD));
        until("the rest has left", || resident(pages.at, PAGES) <= LEFT);
        assert_eq!(resident(pages.addr(100) as *mut u8, 10), 10);
        space.pin_end(ctx);
        assert_sound(&pages);
    });
}

#[test]
fn a_group_without_swap_keeps_its_pages() {
    alone(|| {
        let space = space_on(&[FILE], true);
        let limits = GroupLimits { ram_max_pages: None, ram_high_pages: None, swap_max_pages: Some(0) };
        let group = space.create_group(ctx(space), GroupId::ROOT, &limits).expect("a group");
        space.set_thread_group(ctx(space), group).expect("the group");
        let kept = Pages::aligned(space, UNIT, COMPRESSIBLE);
        space.set_thread_group(ctx(space), GroupId::ROOT).expect("the root");
        let pages = Pages::aligned(space, PAGES, COMPRESSIBLE);
        space.set_idle(Some(PERIOD));
        until("the rest has left", || resident(pages.at, PAGES) <= LEFT);
        std::thread::sleep(2 * PERIOD);
        assert_eq!(resident(kept.at, UNIT), UNIT);
        let ram = space.group_info(ctx(space), group).expect("the group").ram.current_pages;
        assert_eq!(ram, UNIT as u64);
        assert_sound(&kept);
        assert_sound(&pages);
    });
}

#[test]
fn a_family_gives_up_what_it_shares_when_all_of_it_is_idle() {
    alone(|| {
        let (space, _) = space_in_tree(RAM, &[FILE]);
        let mut pages = Pages::aligned(space, PAGES, COMPRESSIBLE);
        space.set_idle(Some(PERIOD));
        let is_out = |pages: &Pages| resident(pages.at, PAGES) <= LEFT;
        let child = fork(space, || {
            let mut own = Pages::aligned(space, UNIT, COMPRESSIBLE);
            own.write(3, 7, RANDOM);
            until("the child's has left", || is_out(&pages));
            pages.check_all();
            assert_sound(&own);
        });
        pages.write(5, 9, RANDOM);
        until("the parent's has left", || is_out(&pages));
        assert_eq!(wait(child), 0);
        rewrite(&mut pages, 77);
        assert_sound(&pages);
    });
}

#[test]
fn folios_leave_whole_and_come_back() {
    alone(|| {
        let (space, is_on) = with_folios(Thp::Always);
        let pages = Pages::aligned(space, 8 * UNIT, HEAP);
        let mapped = |pages: &Pages| mapped_folios(pages.at, 8 * UNIT * PAGE);
        assert_eq!(mapped(&pages), if is_on { 8 } else { 0 });
        space.set_idle(Some(PERIOD));
        // One of them is in use.
        until("the others have left", || {
            (0..UNIT).step_by(16).for_each(|page| pages.check(page));
            resident(pages.at, 8 * UNIT) <= UNIT + LEFT && pool_pages(space) == 0
        });
        assert!(!is_on || stat(space, |s| &s.thp_unmapped) >= 6);
        assert_sound(&pages);
    });
}

#[test]
fn threads_that_write_under_pressure_lose_nothing() {
    alone(|| {
        let space = space_on(&[FILE], true);
        space.set_idle(Some(PERIOD));
        let pages = 3 * RAM_PAGES / 2;
        let at = crate::harness::map(space, pages * PAGE) as usize;
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let stop = StopsAtEnd(&done);
            let writers: Vec<_> = (0..2usize)
                .map(|index| {
                    let done = &done;
                    scope.spawn(move || {
                        // Each has every second page, and rests now and then for longer than a period.
                        let (at, mut random) = (at as *mut u8, Random(91 + index as u64));
                        ctx(space);
                        let mut versions = vec![0u64; pages / 2];
                        let kind = |version: u64| if version == 0 { 0 } else { 1 + version % 3 };
                        let mut rounds = 0;
                        while !done.load(Relaxed) {
                            let own = random.below(if rounds % 3 == 0 { pages / 2 } else { pages / 8 });
                            let page = 2 * own + index;
                            check(at, page, versions[own], kind(versions[own]));
                            versions[own] += 1;
                            fill(at, page, versions[own], kind(versions[own]));
                            rounds += 1;
                            if rounds % 5000 == 0 {
                                std::thread::sleep(Duration::from_millis(700 + 900 * (rounds / 5000 % 2)));
                            }
                        }
                        (0..pages / 2).for_each(|own| check(at, 2 * own + index, versions[own], kind(versions[own])));
                        leave(space);
                    })
                })
                .collect();
            std::thread::sleep(12 * PERIOD);
            drop(stop);
            writers.into_iter().for_each(|writer| writer.join().expect("nothing lost"));
        });
        assert!(stat(space, |s| &s.idle_unmapped_pages) > 0);
        space.validate().expect("consistent");
        crate::harness::unmap(space, at as *mut u8, pages * PAGE);
    });
}
