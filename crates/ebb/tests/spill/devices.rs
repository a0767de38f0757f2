//! Several devices at a time, and devices that come and go while the program runs. `EBB_FORCE` forces fallbacks.

use crate::harness::alone::{
    COMPRESSIBLE, Pages, RAM, RAM_PAGES, RANDOM, StopsAtEnd, alone, assert_sound, fork, mixed, rewrite, space_on, wait,
};
use crate::harness::{Random, ctx, leave};
use ebb::{Space, SwapOffError, SwapOnError, SwapSpec};
use std::ffi::CStr;
use std::io::{Read, Write};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

const A: &CStr = c"/var/tmp";
const B: &CStr = c"/tmp";
const C: &CStr = c"/dev/shm";

fn device(dir: &'static CStr, bytes: u64, priority: Option<i16>) -> SwapSpec<'static> {
    SwapSpec { dir, bytes, priority, ..SwapSpec::DEFAULT }
}

/// A program that has begun tries again without the files that cannot be made, and finds no fewer numbers for it.
#[test]
fn a_start_that_fails_leaves_nothing_open() {
    alone(|| {
        let open = || std::fs::read_dir("/proc/self/fd").expect("/proc").count();
        let swap = [device(A, 0, None), device(c"/nowhere", 0, None)];
        let force = ebb::Force { no_background: true, ..crate::harness::force() };
        let config = ebb::Config { ram_bytes: RAM, swap: &swap, stats: None, stats_fd: None, force };
        let before = open();
        for by_device in [false, true, false, true] {
            let config = ebb::Config { force: ebb::Force { device: by_device, ..force }, ..config };
            assert!(Space::create(&config).is_err());
            assert_eq!(open(), before);
        }
    });
}

/// Directory, bytes in use and priority of each device.
fn devices(space: &'static Space) -> Vec<(String, u64, Option<i16>)> {
    let mut all = Vec::new();
    space.devices(|d| all.push((d.dir.to_string_lossy().into_owned(), d.used_bytes, d.priority)));
    all
}

fn used(space: &'static Space, dir: &CStr) -> u64 {
    let dir = dir.to_string_lossy();
    devices(space).iter().find(|d| d.0 == dir).map_or(0, |d| d.1)
}

fn swapon(space: &'static Space, spec: &SwapSpec<'_>) -> Result<(), SwapOnError> {
    space.swapon(ctx(space), spec, &mut || true)
}

fn swapoff(space: &'static Space, dir: &CStr) -> Result<(), SwapOffError> {
    space.swapoff(ctx(space), dir, &mut |_| true)
}

#[test]
fn the_highest_priority_is_filled_first_and_what_it_does_not_take_goes_on() {
    alone(|| {
        let space = space_on(&[device(A, 1 << 30, None), device(B, 4 << 20, Some(5)), device(C, 1 << 30, None)], true);
        let few = Pages::new(space, RAM_PAGES + 300, RANDOM);
        let first = used(space, B);
        assert!(first > 0 && used(space, A) == 0, "{:?}", devices(space));
        let many = Pages::new(space, RAM_PAGES, RANDOM);
        assert!(used(space, B) >= (4 << 20) * 9 / 10, "{:?}", devices(space));
        assert!(used(space, A) > 0 && used(space, C) == 0, "{:?}", devices(space));
        let priorities: Vec<_> = devices(space).into_iter().map(|d| d.2).collect();
        assert_eq!(priorities, [Some(-1), Some(5), Some(-2)]);
        assert_sound(&few);
        assert_sound(&many);
    });
}

#[test]
fn devices_of_one_priority_fill_evenly() {
    alone(|| {
        let space = space_on(&[device(A, 1 << 30, Some(3)), device(B, 1 << 30, Some(3))], true);
        let pages = Pages::new(space, 4 * RAM_PAGES, RANDOM);
        let (a, b) = (used(space, A), used(space, B));
        // In turn by a cluster's worth of pages.
        assert!(a.abs_diff(b) <= 4 << 20, "{a} and {b}");
        assert_sound(&pages);
    });
}

#[test]
fn a_device_that_goes_leaves_every_page_on_another_one() {
    alone(|| {
        let space = space_on(&[device(A, 1 << 30, None)], true);
        let pages = mixed(space);
        let before = used(space, A);
        assert!(before > RAM / 4);
        let fds = space.fds().filter(|fd| *fd >= 0).count();
        assert_eq!(swapon(space, &device(B, 1 << 30, Some(1))), Ok(()));
        assert_eq!(space.fds().filter(|fd| *fd >= 0).count(), fds + 1);
        assert_eq!(swapoff(space, A), Ok(()));
        assert_eq!(space.fds().filter(|fd| *fd >= 0).count(), fds);
        let left = devices(space);
        assert!(left.len() == 1 && left[0].0 == "/tmp" && left[0].1 >= before * 3 / 4, "{left:?}");
        assert_sound(&pages);
        // And round again.
        for _ in 0..3 {
            assert_eq!(swapon(space, &device(A, 1 << 30, None)), Ok(()));
            assert_eq!(swapoff(space, B), Ok(()));
            assert_eq!(swapon(space, &device(B, 1 << 30, None)), Ok(()));
            assert_eq!(swapoff(space, A), Ok(()));
        }
        assert_sound(&pages);
    });
}

#[test]
fn the_last_device_goes_when_the_pool_takes_what_it_holds() {
    alone(|| {
        let space = space_on(&[device(A, 1 << 30, None)], true);
        let noise = Pages::new(space, RAM_PAGES / 8, RANDOM);
        let pages = Pages::new(space, 2 * RAM_PAGES, COMPRESSIBLE);
        assert!(used(space, A) > 0);
        assert_eq!(swapoff(space, A), Ok(()));
        assert!(devices(space).is_empty());
        assert!(space.charged_pages() <= space.limit_pages() + 64);
        assert_sound(&pages);
        assert_sound(&noise);
    });
}

#[test]
fn a_device_whose_content_finds_no_room_stays() {
    alone(|| {
        let space = space_on(&[device(A, 1 << 30, None)], true);
        let mut pages = Pages::new(space, 3 * RAM_PAGES, RANDOM);
        let before = devices(space);
        assert_eq!(swapoff(space, A), Err(SwapOffError::NoRoom));
        let after = devices(space);
        assert_eq!((after.len(), &after[0].0, after[0].2), (1, &before[0].0, before[0].2));
        assert_sound(&pages);
        // It is in use as before, and another one as large helps.
        rewrite(&mut pages, 3);
        assert_eq!(swapon(space, &device(B, 1 << 30, None)), Ok(()));
        assert_eq!(swapoff(space, A), Ok(()));
        assert_sound(&pages);
    });
}

#[test]
fn a_swapoff_that_is_interrupted_leaves_everything_as_it_was() {
    alone(|| {
        let space = space_on(&[device(A, 1 << 30, Some(9)), device(B, 1 << 30, None)], true);
        let mut pages = Pages::new(space, 3 * RAM_PAGES, RANDOM);
        let before = used(space, A);
        let mut lefts = Vec::new();
        let result = space.swapoff(ctx(space), A, &mut |left| {
            lefts.push(left);
            left > before / 2
        });
        assert_eq!(result, Err(SwapOffError::Interrupted));
        // The background thread may have written more since `before`.
        assert!(lefts[0] >= before && lefts.is_sorted_by(|a, b| a >= b) && lefts.len() > 40, "{before}: {lefts:?}");
        assert_eq!(devices(space)[0].2, Some(9));
        assert_sound(&pages);
        rewrite(&mut pages, 4);
        assert_eq!(swapoff(space, A), Ok(()));
        assert_sound(&pages);
    });
}

#[test]
fn what_makes_no_sense_is_refused() {
    alone(|| {
        let space = space_on(&[device(A, 1 << 30, None)], true);
        assert_eq!(swapon(space, &device(A, 1 << 20, None)), Err(SwapOnError::Used));
        assert_eq!(swapoff(space, B), Err(SwapOffError::NotFound));
        let nowhere = swapon(space, &device(c"/no/such/directory", 1 << 20, None));
        assert!(matches!(nowhere, Err(SwapOnError::Create(_))), "{nowhere:?}");
        let inner = space.swapoff(ctx(space), A, &mut |_| {
            assert_eq!(swapon(space, &device(B, 1 << 20, None)), Err(SwapOnError::Busy));
            assert_eq!(swapoff(space, B), Err(SwapOffError::Busy));
            false
        });
        assert_eq!(inner, Err(SwapOffError::Interrupted));
        assert_eq!(devices(space).len(), 1);
    });
}

#[test]
fn devices_come_and_go_beside_a_program_that_writes_everywhere() {
    alone(|| {
        let space = space_on(&[device(A, 1 << 30, None)], true);
        let stop = AtomicBool::new(false);
        let rounds = std::thread::scope(|scope| {
            for seed in 1..=3u64 {
                let stop = &stop;
                scope.spawn(move || {
                    let mut pages = Pages::new(space, RAM_PAGES, RANDOM);
                    let mut random = Random(seed);
                    while !stop.load(Relaxed) {
                        for i in 0..400 {
                            let page = random.below(pages.len());
                            pages.check(page);
                            pages.write(page, i, random.below(4) as u64);
                        }
                        pages.check(random.below(pages.len()));
                    }
                    pages.check_all();
                    drop(pages);
                    leave(space);
                });
            }
            let _stop = StopsAtEnd(&stop);
            let end = Instant::now() + Duration::from_secs(6);
            let mut rounds = 0;
            while Instant::now() < end {
                assert_eq!(swapon(space, &device(B, 1 << 30, Some(1))), Ok(()));
                std::thread::sleep(Duration::from_millis(30));
                assert_eq!(swapoff(space, A), Ok(()));
                assert_eq!(swapon(space, &device(A, 1 << 30, None)), Ok(()));
                std::thread::sleep(Duration::from_millis(30));
                assert_eq!(swapoff(space, B), Ok(()));
                rounds += 1;
            }
            rounds
        });
        assert!(rounds > 0);
        assert_eq!(space.validate(), Ok(()));
        assert_eq!(space.stats().error_bytes()[0], 0);
    });
}

#[test]
fn a_fork_between_leaves_both_sides_every_page() {
    alone(|| {
        let space = space_on(&[device(A, 1 << 30, None), device(B, 1 << 30, None)], true);
        let mut pages = mixed(space);
        let child = fork(space, || {
            let mut own = Pages { space, at: pages.at, versions: pages.versions.clone() };
            rewrite(&mut own, 5);
            // What the parent wrote goes too.
            assert_eq!(swapoff(space, A), Ok(()));
            assert_eq!(devices(space).len(), 1);
            assert_sound(&own);
            let grandchild = fork(space, || {
                let mut own = Pages { space, at: own.at, versions: own.versions.clone() };
                rewrite(&mut own, 6);
                assert_eq!(swapon(space, &device(C, 1 << 30, None)), Ok(()));
                assert_eq!(swapoff(space, B), Ok(()));
                assert_sound(&own);
                std::mem::forget(own);
            });
            rewrite(&mut own, 7);
            assert_eq!(wait(grandchild), 0);
            assert_sound(&own);
            std::mem::forget(own);
        });
        // The parent's file goes while the child reads from it.
        assert_eq!(swapoff(space, A), Ok(()));
        rewrite(&mut pages, 8);
        assert_eq!(wait(child), 0);
        assert_sound(&pages);
    });
}

#[test]
fn a_full_device_gives_up_copies_of_what_is_in_memory() {
    alone(|| {
        const SLOTS: usize = 2048;
        let space = space_on(&[device(A, (SLOTS * 4096) as u64, None)], true);
        let mut pages = Pages::new(space, RAM_PAGES / 2, RANDOM);
        // Pages that come from the device to be read stay clean, and keep their places there.
        let mut more = Vec::new();
        while used(space, A) < (SLOTS as u64) * 4096 * 7 / 10 {
            more.push(Pages::new(space, 128, RANDOM));
        }
        for round in 0..6 {
            for other in &more {
                other.check_all();
            }
            rewrite(&mut pages, round + 1);
        }
        assert!(space.stats().cache_only_reclaimed.load(Relaxed) > 0);
        more.iter().for_each(assert_sound);
        assert_sound(&pages);
    });
}

#[test]
fn readers_in_order_and_a_swapoff_do_not_wait_for_each_other() {
    alone(|| {
        let space = space_on(&[device(A, 1 << 30, None)], true);
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for seed in 1..=2u64 {
                let stop = &stop;
                scope.spawn(move || {
                    // Slots in another order than the pages, so that windows of read-ahead and the walk cross.
                    let mut pages = Pages::new(space, 2 * RAM_PAGES, COMPRESSIBLE);
                    let mut random = Random(seed);
                    for version in 0..20_000 {
                        let page = random.below(pages.len());
                        pages.write(page, version + 2, if page.is_multiple_of(5) { RANDOM } else { COMPRESSIBLE });
                    }
                    while !stop.load(Relaxed) {
                        (0..pages.len()).take_while(|_| !stop.load(Relaxed)).for_each(|page| pages.check(page));
                    }
                    drop(pages);
                    leave(space);
                });
            }
            let _stop = StopsAtEnd(&stop);
            let end = Instant::now() + Duration::from_secs(8);
            while Instant::now() < end {
                for (on, off) in [(B, A), (A, B)] {
                    assert_eq!(swapon(space, &device(on, 1 << 30, Some(1))), Ok(()));
                    assert_eq!(swapoff(space, off), Ok(()));
                }
            }
        });
        assert_eq!(space.validate(), Ok(()));
    });
}

#[test]
fn a_swapon_that_fails_leaves_nothing_behind() {
    alone(|| {
        let space = space_on(&[device(A, 1 << 30, None)], true);
        let count = |of: &str| std::fs::read_dir(of).map_or(0, Iterator::count);
        let maps = || std::fs::read_to_string("/proc/self/maps").map_or(0, |text| text.lines().count());
        let (fds, before) = (count("/proc/self/fd"), maps());
        let refused = |_: ()| false;
        for _ in 0..20 {
            let spec = device(B, 1 << 30, None);
            assert_eq!(space.swapon(ctx(space), &spec, &mut || refused(())), Err(SwapOnError::Busy));
        }
        // SAFETY: the structure lives through the call.
        unsafe {
            let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
            libc::getrlimit(libc::RLIMIT_AS, &mut limit);
            limit.rlim_cur = 1 << 30;
            assert_eq!(libc::setrlimit(libc::RLIMIT_AS, &limit), 0);
        }
        let kept: Vec<i32> = space.fds().collect();
        for _ in 0..20 {
            let large = swapon(space, &device(B, 1 << 40, None));
            assert!(matches!(large, Err(SwapOnError::Create(_))), "{large:?}");
        }
        assert_eq!(space.fds().collect::<Vec<_>>(), kept);
        assert_eq!(count("/proc/self/fd"), fds);
        assert!(maps() <= before + 2, "{} mappings, {before} before", maps());
        assert_eq!(devices(space).len(), 1);
    });
}

#[test]
fn the_child_of_a_process_at_a_swapoff_has_its_devices() {
    alone(|| {
        let space = space_on(&[device(A, 1 << 30, Some(4))], true);
        let pages = Pages::new(space, 2 * RAM_PAGES, RANDOM);
        let mut child = None;
        let result = space.swapoff(ctx(space), A, &mut |_| {
            child = Some(fork(space, || {
                let own = Pages { space, at: pages.at, versions: pages.versions.clone() };
                assert_eq!(devices(space).iter().map(|d| d.2).collect::<Vec<_>>(), [Some(4)]);
                let more = Pages::new(space, RAM_PAGES, RANDOM);
                assert_sound(&more);
                assert_sound(&own);
                std::mem::forget(own);
            }));
            false
        });
        assert_eq!(result, Err(SwapOffError::Interrupted));
        assert_eq!(wait(child.expect("a child")), 0);
        assert_sound(&pages);
    });
}

#[test]
fn devices_last_through_many_generations() {
    alone(|| {
        fn descend(space: &'static Space, left: usize) {
            let pages = Pages::new(space, RAM_PAGES / 4, RANDOM);
            assert_eq!(devices(space).len(), 3);
            if left > 0 {
                let child = fork(space, || descend(space, left - 1));
                assert_eq!(wait(child), 0);
            }
            pages.check_all();
        }
        let space = space_on(&[device(A, 1 << 30, None), device(B, 1 << 30, None), device(C, 1 << 30, None)], true);
        descend(space, 14);
    });
}

/// More processes than have a bit each in the table of a file's slots.
const FAMILY: usize = 63;

#[test]
fn descendants_of_one_member_too_many_read_what_they_inherited() {
    alone(|| {
        let space = space_on(&[device(A, 1 << 30, None)], true);
        let pages = Pages::new(space, RAM_PAGES / 2 * 3, RANDOM);
        assert!(used(space, A) > 0);
        let idle = || loop {
            // SAFETY: waits for its end.
            unsafe { libc::pause() };
        };
        let mut members: Vec<i32> = (0..FAMILY).map(|_| fork(space, idle)).collect();
        let (ready, go) = (std::io::pipe().expect("a pipe"), std::io::pipe().expect("a pipe"));
        let last = fork(space, || {
            (&ready.1).write_all(&[1]).expect("the parent lives");
            (&go.0).read_exact(&mut [0]).expect("the parent lives");
            let mut own = Pages { space, at: pages.at, versions: pages.versions.clone() };
            // Now there is a number for its child, though it has none itself.
            let grandchild = fork(space, || {
                let mut own = Pages { space, at: pages.at, versions: pages.versions.clone() };
                own.check_all();
                rewrite(&mut own, 2);
                assert_sound(&own);
                std::mem::forget(own);
            });
            assert_eq!(wait(grandchild), 0);
            rewrite(&mut own, 1);
            assert_sound(&own);
            std::mem::forget(own);
        });
        (&ready.0).read_exact(&mut [0]).expect("the child lives");
        let mut end = |pid: i32| {
            // SAFETY: the test's own child.
            unsafe { libc::kill(pid, libc::SIGKILL) };
            wait(pid);
        };
        end(members.remove(0));
        (&go.1).write_all(&[1]).expect("the child lives");
        assert_eq!(wait(last), 0);
        members.into_iter().for_each(&mut end);
        assert_sound(&pages);
    });
}
