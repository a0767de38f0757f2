//! What a walk needs next is read while it works on what it has. Whatever becomes of that read, the walk finds what was
//! written last.

use crate::harness::alone::{
    PAGE, Pages, RANDOM, StopsAtEnd, alone, assert_sound, can_fly, fork, growth, stress_time, wait,
};
use crate::harness::{PATIENCE, Random, ctx, force, leave, space_with};
use ebb::{Config, Force, Kind, Space, SwapSpec};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// A budget in which a window has 64 pages, and four of them may be fetched.
const RAM: u64 = 128 << 20;
const RAM_PAGES: usize = RAM as usize / PAGE;
const WINDOW: usize = 64;
/// Some of it is compressed on the device, and lies apart.
const KINDS: [u64; 8] = [RANDOM, RANDOM, 2, 5, RANDOM, 6, 2, RANDOM];

fn file(mib: u64) -> SwapSpec<'static> {
    SwapSpec { dir: c"/var/tmp", bytes: mib << 20, kind: Kind::Ssd, ..SwapSpec::DEFAULT }
}

fn space(swap: &SwapSpec<'static>, change: fn(&mut Force)) -> &'static Space {
    let mut force = Force { strict: true, no_huge: true, ..force() };
    change(&mut force);
    space_with(&Config { ram_bytes: RAM, swap: &[*swap], stats: None, stats_fd: None, force })
}

/// Pages that do not compress: half as many again as fit.
fn hard(space: &'static Space) -> Pages {
    Pages::aligned(space, RAM_PAGES * 3 / 2, RANDOM)
}

fn mixed(space: &'static Space) -> Pages {
    let mut pages = Pages::aligned(space, RAM_PAGES * 5 / 2, RANDOM);
    (0..pages.len()).for_each(|page| pages.write(page, 2, KINDS[page % KINDS.len()]));
    pages
}

fn page_out(pages: &Pages, first: usize, n: usize) {
    let args = [pages.addr(first) as u64, (n * PAGE) as u64, libc::MADV_PAGEOUT as u64, 0, 0, 0];
    assert_eq!(pages.space.madvise(ctx(pages.space), args), 0);
}

#[test]
fn what_a_walk_needs_next_is_on_its_way_also_where_processors_are_busy() {
    alone(|| {
        let pages = hard(space(&file(1024), |_| ()));
        let (stats, since) = (pages.space.stats(), Instant::now());
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let _stop = StopsAtEnd(&done);
            for _ in 0..2 {
                scope.spawn(|| {
                    while !done.load(Relaxed) {
                        std::hint::spin_loop();
                    }
                });
            }
            // Where there is seldom room for a whole window, a walk is slower than the device.
            let walk = || growth(&stats.fetched_slots, || pages.check_all());
            while !force().no_background && can_fly() && walk() < pages.len() as u64 / 2 {
                assert!(since.elapsed() < PATIENCE, "little is fetched");
            }
        });
        assert_sound(&pages);
    });
}

#[test]
fn a_short_walk_has_little_fetched_in_vain() {
    alone(|| {
        let pages = hard(space(&file(1024), |_| ()));
        let stats = pages.space.stats();
        let device = stats.devices.iter().next().expect("a device");
        const WALKS: usize = 64;
        let mut random = Random(5);
        let reads = growth(&device.reads, || {
            for _ in 0..WALKS {
                let first = random.below(pages.len() / WINDOW - 8) * WINDOW;
                page_out(&pages, first, 8 * WINDOW);
                (first..first + 3 * WINDOW).for_each(|page| pages.check(page));
            }
        });
        // Six reads until windows are wide, three windows, and two or three that nobody needs.
        assert!(reads < WALKS as u64 * 14, "{reads} reads for {WALKS} walks");
        assert_sound(&pages);
    });
}

#[test]
fn what_changes_after_it_was_fetched_is_as_it_was_written_last() {
    alone(|| {
        // What is freed in a small file is soon written again.
        let mut pages = mixed(space(&file(640), |_| ()));
        let (mut random, mut version, since) = (Random(11), 10, Instant::now());
        let n = pages.len();
        while since.elapsed() < stress_time() {
            for page in 0..n {
                if page % WINDOW == 0 && random.below(3) == 0 {
                    // Windows that are on their way get other content, which goes to slots that are on their way, too.
                    let first = (page + random.below(5 * WINDOW)).min(n - WINDOW);
                    for other in first..first + WINDOW {
                        version += 1;
                        pages.write(other, version, KINDS[random.below(KINDS.len())]);
                    }
                    page_out(&pages, first, WINDOW);
                }
                pages.check(page);
            }
        }
        assert_sound(&pages);
        let fetched = pages.space.stats().fetched_slots.load(Relaxed);
        assert!(fetched > n as u64 / 8 || force().no_background || !can_fly(), "{fetched}");
    });
}

#[test]
fn a_slow_walk_and_one_that_is_helped_read_little_in_vain() {
    alone(|| {
        let pages = hard(space(&file(1024), |_| ()));
        let (stats, n) = (pages.space.stats(), 60 * WINDOW);
        if force().no_background || !can_fly() {
            return;
        }
        // Until there is room for whole windows.
        pages.check_all();
        let fetched = growth(&stats.fetched_slots, || {
            let unused = growth(&stats.unused_fetches, || {
                for page in 0..n {
                    if page % WINDOW == 0 {
                        std::thread::sleep(Duration::from_millis(30));
                    }
                    pages.check(page);
                }
            });
            assert!(unused < 15, "{unused} fetches of a slow walk in vain");
        });
        assert!(fetched > n as u64 / 2, "{fetched} of {n} pages were fetched for a slow walk");
        let mut in_vain = u64::MAX;
        for _ in 0..8 {
            in_vain = in_vain.min(growth(&stats.unused_fetches, || pages.check_all()));
        }
        assert!(in_vain < pages.len() as u64 / WINDOW as u64 / 8, "{in_vain} fetches in vain");
        assert_sound(&pages);
    });
}

#[test]
fn a_walk_is_helped_again_where_nothing_is_fetched_any_more() {
    alone(|| {
        let space = space(&file(1024), |_| ());
        let pages = hard(space);
        pages.check_all();
        space.tree().page().set_limit(RAM_PAGES as u64 / 8);
        pages.check_all();
        let (mut walks, mut helped) = (0, 0);
        while !force().no_background && helped < pages.len() as u64 / 4 {
            assert!(walks < 40, "only {helped} pages were brought in beside {walks} walks");
            helped += growth(&space.stats().read_beside_pages, || pages.check_all());
            walks += 1;
        }
        assert_sound(&pages);
    });
}

/// Has the kernel kill this process if it calls io_getevents.
fn forbid_to_wait_for_transfers() {
    let statement = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    let filter = [
        statement(0x20, 0, 0, 0),
        statement(0x15, 0, 1, libc::SYS_io_getevents as u32),
        statement(0x06, 0, 0, libc::SECCOMP_RET_KILL_PROCESS),
        statement(0x06, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_ptr().cast_mut() };
    // SAFETY: loads a filter, of which the kernel makes a copy.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, 2, &raw const program), 0);
    }
}

#[test]
fn what_is_on_its_way_comes_in_a_process_that_may_not_wait_for_it_any_more() {
    alone(|| {
        let pages = hard(space(&file(1024), |_| ()));
        let mut random = Random(7);
        pages.check_all();
        for _ in 0..40 {
            let at = WINDOW * (10 + random.below(40));
            let child = fork(pages.space, || {
                (0..at).for_each(|page| pages.check(page));
                pages.space.fly_no_more();
                forbid_to_wait_for_transfers();
                (at..at + 20 * WINDOW).for_each(|page| pages.check(page));
            });
            assert_eq!(wait(child), 0);
        }
    });
}

#[test]
fn a_device_that_does_not_answer_is_waited_for_once_for_all_that_is_on_its_way() {
    alone(|| {
        let pages = hard(space(&file(1024), |_| ()));
        pages.check_all();
        (0..40 * WINDOW).for_each(|page| pages.check(page));
        pages.space.hold_transfers(true);
        let since = Instant::now();
        (40 * WINDOW..60 * WINDOW).for_each(|page| pages.check(page));
        // One wait takes 8 s where nobody closes the gate.
        assert!(since.elapsed() < Duration::from_secs(15), "{:?}", since.elapsed());
        pages.space.hold_transfers(false);
        assert_sound(&pages);
    });
}

/// Walks by several threads, at various paces, over what others write.
fn threads_walk(space: &'static Space) {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _stop = StopsAtEnd(&stop);
        for thread in 0..3u64 {
            let stop = &stop;
            scope.spawn(move || {
                ctx(space);
                let (mut random, mut version) = (Random(thread * 977 + 5), 10);
                let mut pages = Pages::aligned(space, RAM_PAGES * 3 / 4, RANDOM);
                while !stop.load(Relaxed) {
                    let first = random.below(pages.len() / 2);
                    for page in first..first + pages.len() / 2 {
                        match random.below(64) {
                            0 => {
                                version += 1;
                                pages.write(page, version, KINDS[random.below(KINDS.len())]);
                            }
                            _ => pages.check(page),
                        }
                    }
                }
                pages.check_all();
                drop(pages);
                leave(space);
            });
        }
        std::thread::sleep(stress_time());
    });
    assert_eq!(space.validate(), Ok(()));
    assert_eq!(space.stats().error_bytes()[0], 0);
}

#[test]
fn threads_that_walk_find_what_they_wrote() {
    alone(|| threads_walk(space(&file(1024), |_| ())));
}

#[test]
fn fetches_that_fail_are_made_again() {
    alone(|| {
        let space = space(&file(1024), |force| force.failing_flights = true);
        threads_walk(space);
        let pages = hard(space);
        let fetched = growth(&space.stats().fetched_slots, || assert_sound(&pages));
        // Of three, one fails.
        assert!(fetched > 0 && fetched < pages.len() as u64 || force().no_background || !can_fly(), "{fetched}");
    });
}

#[test]
fn fetches_that_are_left_lose_nothing() {
    alone(|| {
        let space = space(&file(1024), |force| force.late_flights = true);
        threads_walk(space);
        assert!(space.stats().late_transfers.load(Relaxed) > 0 || !can_fly());
        assert!(space.stats().fetched_slots.load(Relaxed) > 0 || force().no_background || !can_fly());
    });
}

#[test]
fn without_flights_nothing_is_fetched() {
    alone(|| {
        let space = space(&file(1024), |force| force.no_flights = true);
        let pages = hard(space);
        assert_sound(&pages);
        assert_eq!(space.stats().fetched_slots.load(Relaxed), 0);
    });
}

#[test]
fn a_walk_goes_on_in_parent_and_child_of_a_fork() {
    alone(|| {
        let pages = hard(space(&file(1024), |_| ()));
        let mut random = Random(3);
        for _ in 0..6 {
            let half = WINDOW * 4 + random.below(pages.len() / 2);
            (0..half).for_each(|page| pages.check(page));
            let child = fork(pages.space, || {
                (half..pages.len()).for_each(|page| pages.check(page));
                assert_sound(&pages);
            });
            (half..pages.len()).for_each(|page| pages.check(page));
            assert_eq!(wait(child), 0);
        }
        assert_sound(&pages);
    });
}

#[test]
fn a_walk_goes_on_when_its_device_goes_away() {
    alone(|| {
        let space = space(&file(1024), |_| ());
        let pages = hard(space);
        let mut random = Random(9);
        for round in 0..4 {
            let half = WINDOW * 4 + random.below(pages.len() / 2);
            (0..half).for_each(|page| pages.check(page));
            // The next one has its number sooner or later, and has the same slots.
            let dirs = [c"/var/tmp/.", c"/var/tmp"];
            let next = SwapSpec { dir: dirs[round % 2], ..file(1024) };
            space.swapon(ctx(space), &next, &mut || true).expect("a file");
            space.swapoff(ctx(space), dirs[(round + 1) % 2], &mut |_| true).expect("the other one has room");
            (half..pages.len()).for_each(|page| pages.check(page));
        }
        assert_sound(&pages);
    });
}

#[test]
fn nothing_is_fetched_in_a_small_budget() {
    alone(|| {
        let space = space(&file(1024), |_| ());
        let pages = hard(space);
        pages.check_all();
        space.tree().page().set_limit(RAM_PAGES as u64 / 16);
        pages.check_all();
        assert_eq!(growth(&space.stats().fetched_slots, || pages.check_all()), 0);
        assert!(space.charged_pages() <= RAM_PAGES / 16 + 64, "{} pages", space.charged_pages());
        assert_sound(&pages);
    });
}
