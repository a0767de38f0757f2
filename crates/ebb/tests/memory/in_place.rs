//! Eviction in place: scattered pages of cold units are stored where they are, and nothing that happens meanwhile is lost.

use crate::harness::alone::{
    COMPRESSIBLE, PAGE, Pages, RAM, RAM_PAGES, RANDOM, StopsAtEnd, alone, assert_sound, fork, rewrite, space_on, wait,
};
use crate::harness::{Random, ctx, leave};
use ebb::{GroupId, GroupLimits, Space, SwapSpec};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// Pages of a unit.
const UNIT: usize = 512;
/// Every so many-th page of a unit has content.
const APART: usize = 8;

fn spill(bytes: u64) -> SwapSpec<'static> {
    SwapSpec { dir: c"/var/tmp", bytes, priority: None, ..SwapSpec::DEFAULT }
}

/// Pages evicted in place, and pages unmapped in all that were not clean, while `f` runs.
fn in_place(space: &'static Space, f: impl FnOnce()) -> (u64, u64) {
    let stats = space.stats();
    let dirty = || stats.unmap_pages.load(Relaxed) - stats.dropped_clean_pages.load(Relaxed);
    let now = || (stats.in_place_pages.load(Relaxed), dirty());
    let before = now();
    f();
    let after = now();
    (after.0 - before.0, after.1 - before.1)
}

/// What this thread maps from now on belongs to a new group, which may have so much swap. Charges are recounted by group.
fn in_group(space: &'static Space, swap_max_pages: Option<u64>) -> GroupId {
    let limits = GroupLimits { ram_max_pages: None, ram_high_pages: None, swap_max_pages };
    let group = space.create_group(ctx(space), GroupId::ROOT, &limits).expect("a group");
    space.set_thread_group(ctx(space), group).expect("the group");
    group
}

/// Reads pages at random.
fn read_some(pages: &Pages, random: &mut Random, n: usize) {
    (0..n).for_each(|_| pages.check(random.below(pages.len())));
}

/// Units with content here and there, far apart enough that nothing is brought in or unmapped in runs.
struct Scattered(Pages);

impl Scattered {
    fn new(space: &'static Space, units: usize) -> Self {
        let mut this = Self(Pages::aligned(space, units * UNIT, 0));
        for page in (0..units * UNIT).filter(|page| page % APART != 0) {
            let drop = [this.0.addr(page) as u64, PAGE as u64, libc::MADV_DONTNEED as u64, 0, 0, 0];
            assert_eq!(space.madvise(ctx(space), drop), 0);
        }
        this.all().for_each(|page| this.0.write(page, 2, COMPRESSIBLE));
        this
    }

    /// The pages with content.
    fn all(&self) -> std::iter::StepBy<std::ops::Range<usize>> {
        (0..self.0.len()).step_by(APART)
    }
}

#[test]
fn what_is_used_at_random_goes_without_staging() {
    alone(|| {
        let space = space_on(&[spill(1 << 30)], true);
        let mut pages = Pages::new(space, 3 * RAM_PAGES, COMPRESSIBLE);
        let mut random = Random(3);
        read_some(&pages, &mut random, 8 * RAM_PAGES);
        let (in_place, all) = in_place(space, || read_some(&pages, &mut random, 8 * RAM_PAGES));
        assert!(in_place * 10 > all * 8, "{in_place} of {all} pages went in place");
        for seed in 1..4 {
            rewrite(&mut pages, seed);
        }
        assert_sound(&pages);
    });
}

#[test]
fn what_is_used_all_the_time_is_staged() {
    alone(|| {
        let space = space_on(&[spill(1 << 30)], true);
        let scattered = Scattered::new(space, 4);
        // Walked through, it goes by runs.
        let walked = Pages::aligned(space, 3 * RAM_PAGES, COMPRESSIBLE);
        let walk = |often: usize| {
            let mut turn = scattered.all().cycle();
            in_place(space, || {
                for page in 0..walked.len() {
                    walked.check(page);
                    (0..often).for_each(|_| scattered.0.check(turn.next().expect("it goes round")));
                }
            })
        };
        // All of them in the time that staging lasts, and then once while the walk goes round.
        walk(64);
        let hot = (0..3).map(|_| walk(64).0).min().expect("three walks");
        let rarely = |_: usize| {
            walk(0);
            let (in_place, _) = in_place(space, || {
                scattered.all().for_each(|page| scattered.0.check(page));
                (0..walked.len()).for_each(|page| walked.check(page));
            });
            in_place
        };
        let cold = (0..4).map(rarely).max().expect("four walks");
        let all = scattered.all().count() as u64;
        assert!(cold * 4 > all, "{cold} of {all} pages that were used rarely went in place");
        assert!(hot < all, "{hot} pages that were used all the time went in place");
        assert_sound(&walked);
        scattered.all().for_each(|page| scattered.0.check(page));
    });
}

#[test]
fn what_is_written_while_it_is_evicted_is_not_lost() {
    alone(|| {
        const THREADS: usize = 4;
        const WRITES: usize = 150_000;
        let space = space_on(&[spill(1 << 30)], true);
        let mut pages = Pages::new(space, 2 * RAM_PAGES, COMPRESSIBLE);
        // What does not compress is stored after the pages beside it.
        (0..pages.len()).filter(|page| page % 5 == 0).for_each(|page| pages.write(page, 2, RANDOM));
        let at = pages.at as usize;
        let (in_place, _) = in_place(space, || {
            std::thread::scope(|scope| {
                for thread in 0..THREADS {
                    let n = pages.len();
                    scope.spawn(move || {
                        ctx(space);
                        let mut random = Random(thread as u64 + 1);
                        let mut written = vec![0u64; n];
                        let word = |page: usize, i: usize| (at + page * PAGE + i * 8) as *mut u64;
                        // Each page is shared by all threads, each of which has words of its own at its beginning and end.
                        for write in 1..=WRITES as u64 {
                            let page = random.below(n);
                            for i in [thread, UNIT - 1 - thread] {
                                // SAFETY: mapped, and this thread's own.
                                let found = unsafe { word(page, i).read_volatile() };
                                assert!(written[page] == 0 || found == written[page], "page {page} word {i}: {found}");
                                // SAFETY: as above.
                                unsafe { word(page, i).write_volatile(write) };
                            }
                            written[page] = write;
                        }
                        leave(space);
                    });
                }
            });
        });
        assert!(in_place > RAM_PAGES as u64, "{in_place} pages went in place");
        assert!(space.stats().taken_back_pages.load(Relaxed) > 0, "nobody waited for a page on its way out");
        space.validate().expect("consistent");
        assert_eq!(space.stats().error_bytes()[0], 0);
    });
}

#[test]
fn what_is_locked_stays_and_its_neighbours_go() {
    alone(|| {
        const MADV_DONTNEED_LOCKED: u64 = 24;
        const LOCKED: usize = 4;
        const UNITS: usize = 32;
        let space = space_on(&[spill(1 << 30)], true);
        in_group(space, None);
        let mut scattered = Scattered::new(space, UNITS);
        let press = || drop(Pages::new(space, 3 * RAM_PAGES, COMPRESSIBLE));
        let touch = |scattered: &Scattered| scattered.all().for_each(|page| scattered.0.check(page));
        press();
        touch(&scattered);
        // In the middle of a unit, so that a drop of all of it fails half way; and without a mark in the books.
        let locked = |page: usize| page % UNIT >= UNIT / 2 && page % UNIT < UNIT / 2 + LOCKED * APART;
        for unit in 0..UNITS {
            let first = unit * UNIT + UNIT / 2;
            let mut range = [scattered.0.addr(first) as u64, (LOCKED * APART * PAGE) as u64, 0, 0, 0, 0];
            assert_eq!(space.mlock(ctx(space), libc::SYS_mlock as u32, range), 0);
            range[2] = MADV_DONTNEED_LOCKED;
            assert_eq!(space.madvise(ctx(space), range), 0);
        }
        let all: Vec<usize> = scattered.all().filter(|page| locked(*page)).collect();
        all.iter().for_each(|page| scattered.0.write(*page, 3, COMPRESSIBLE));
        let (in_place, _) = in_place(space, || {
            press();
            press();
        });
        assert!(in_place > 0);
        for page in scattered.all() {
            let is_there = ebb::uapi::is_mapped(scattered.0.addr(page));
            assert!(is_there || !locked(page), "page {page} is locked, and gone");
        }
        let gone = scattered.all().filter(|page| !ebb::uapi::is_mapped(scattered.0.addr(*page))).count();
        assert!(gone > scattered.all().count() / 2, "{gone} pages are gone");
        space.validate().expect("consistent");
        // What stayed can be written, and what went comes back.
        all.iter().for_each(|page| scattered.0.write(*page, 4, COMPRESSIBLE));
        touch(&scattered);
        assert_eq!(space.munlockall([0; 6]), 0);
        press();
        touch(&scattered);
        space.validate().expect("consistent");
        assert_eq!(space.stats().error_bytes()[0], 0);
    });
}

#[test]
fn what_no_device_takes_stays() {
    alone(|| {
        let space = space_on(&[spill(RAM / 8)], true);
        in_group(space, None);
        let mut pages = Pages::new(space, RAM_PAGES * 5 / 4, COMPRESSIBLE);
        (0..pages.len()).filter(|page| page % 3 == 0).for_each(|page| pages.write(page, 2, RANDOM));
        let mut random = Random(5);
        let (in_place, _) = in_place(space, || {
            for i in 0..6 * RAM_PAGES {
                let page = random.below(pages.len());
                pages.check(page);
                let kind = if page.is_multiple_of(3) { RANDOM } else { COMPRESSIBLE };
                pages.write(page, 3 + i as u64, kind);
            }
        });
        assert!(in_place > 0);
        assert_sound(&pages);
    });
}

#[test]
fn a_group_has_no_more_in_swap_than_it_may() {
    alone(|| {
        const SWAP: u64 = 1000;
        let space = space_on(&[spill(1 << 30)], true);
        let group = in_group(space, Some(SWAP));
        let mine = Pages::new(space, RAM_PAGES / 2, COMPRESSIBLE);
        space.set_thread_group(ctx(space), GroupId::ROOT).expect("the root");
        let others = Pages::new(space, 2 * RAM_PAGES, COMPRESSIBLE);
        let (mut random, mut most) = (Random(9), 0);
        let (in_place, _) = in_place(space, || {
            for _ in 0..8 * RAM_PAGES {
                mine.check(random.below(mine.len()));
                read_some(&others, &mut random, 1);
                let info = space.group_info(ctx(space), group).expect("the group");
                most = most.max(info.swap.current_pages);
            }
        });
        assert!(in_place > 0);
        assert!(most <= SWAP && most > SWAP * 9 / 10, "{most} pages in swap");
        assert_sound(&mine);
        assert_sound(&others);
    });
}

#[test]
fn a_fork_and_unmapping_beside_it_leave_every_page() {
    alone(|| {
        let space = space_on(&[spill(1 << 30)], true);
        let pages = Pages::new(space, 2 * RAM_PAGES, COMPRESSIBLE);
        let stop = AtomicBool::new(false);
        let looks = AtomicU64::new(0);
        let (in_place, _) = in_place(space, || {
            std::thread::scope(|scope| {
                let (stop, looks, at, n) = (&stop, &looks, pages.at as usize, pages.len());
                for thread in 0..2 {
                    scope.spawn(move || {
                        let _end = StopsAtEnd(stop);
                        ctx(space);
                        let mut random = Random(thread + 1);
                        while !stop.load(Relaxed) {
                            crate::harness::check(at as *mut u8, random.below(n), 1, COMPRESSIBLE);
                            looks.fetch_add(1, Relaxed);
                        }
                        leave(space);
                    });
                }
                let _end = StopsAtEnd(stop);
                for _ in 0..10 {
                    let before = looks.load(Relaxed);
                    while looks.load(Relaxed) < before + 10_000 && !stop.load(Relaxed) {
                        drop(Pages::new(space, 64, COMPRESSIBLE));
                    }
                    let pid = fork(space, || {
                        (0..n).step_by(7).for_each(|page| crate::harness::check(at as *mut u8, page, 1, COMPRESSIBLE));
                    });
                    assert_eq!(wait(pid), 0);
                }
            });
        });
        assert!(in_place > 0);
        assert_sound(&pages);
    });
}
