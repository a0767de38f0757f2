//! Walks through swapped memory in address order: what they bring in at once, what the background thread does of it, and that
//! nothing else is brought in.

use crate::harness::alone::{Pages, RAM_PAGES, RANDOM, StopsAtEnd, alone, assert_sound, space_on};
use crate::harness::{PATIENCE, Random, check, ctx, fill, force, leave, map, space, space_with, unmap};
use ebb::stats::Device;
use ebb::{Config, Force, GroupId, GroupLimits, Kind, Space, SwapSpec};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

const RAM: u64 = 256 << 20;
const PAGES: usize = 8 << 10;
const PAGE: usize = 4096;
/// Pages of a unit.
const UNIT: usize = 512;
/// Compresses well.
const HEAP: u64 = 2;
/// The most that is brought in ahead of a walk: its own window, and four more.
const REACH: usize = 5 * 128;

fn advise(space: &'static Space, at: *mut u8, first: usize, pages: usize, advice: i32) {
    let args = [at as u64 + (first * PAGE) as u64, (pages * PAGE) as u64, advice as u64, 0, 0, 0];
    assert_eq!(space.madvise(ctx(space), args), 0);
}

fn page_out(space: &'static Space, at: *mut u8, first: usize, pages: usize) {
    advise(space, at, first, pages, libc::MADV_PAGEOUT);
}

fn growth(counters: &[&AtomicU64], f: impl FnOnce()) -> u64 {
    let sum = || counters.iter().map(|counter| counter.load(Relaxed)).sum::<u64>();
    let before = sum();
    f();
    sum() - before
}

/// Faults that found a page swapped, while `f` runs.
fn faults(space: &'static Space, f: impl FnOnce()) -> u64 {
    let stats = space.stats();
    growth(&[&stats.faults_pool, &stats.faults_file], f)
}

/// Pages brought in for which there was no fault, while `f` runs.
fn ahead(space: &'static Space, f: impl FnOnce()) -> u64 {
    growth(&[&space.stats().readahead_pages], f)
}

fn out(space: &'static Space, pages: &Pages) {
    page_out(space, pages.at, 0, pages.len());
}

#[test]
fn a_walk_takes_few_faults_for_reading_and_for_writing() {
    alone(|| {
        let space = space(RAM, force());
        let mut pages = Pages::aligned(space, PAGES, HEAP);
        for version in 1..5 {
            out(space, &pages);
            let nr = faults(space, || pages.check_all());
            // One for a window of 128 pages, where the background thread does nothing; and those until it is so wide.
            assert!(nr < PAGES as u64 / 48, "{nr} faults");
            out(space, &pages);
            let nr = faults(space, || (0..PAGES).for_each(|page| pages.write(page, version + 1, version % 4)));
            assert!(nr < PAGES as u64 / 48, "{nr} faults of writes");
        }
        pages.check_all();
        space.validate().expect("consistent");
        drop(pages);
        leave(space);
    });
}

#[test]
fn two_pages_in_a_row_are_no_walk() {
    alone(|| {
        let space = space(RAM, force());
        let pages = Pages::aligned(space, PAGES, HEAP);
        out(space, &pages);
        // Objects that lie on two pages each, in an order without a pattern: each fourth pair, so that none follows another.
        let nr_pairs = PAGES / 8;
        let mut pairs: Vec<usize> = (0..nr_pairs).collect();
        let mut random = Random(3);
        (1..nr_pairs).rev().for_each(|i| pairs.swap(i, random.below(i + 1)));
        let touch = || pairs.iter().flat_map(|pair| [8 * pair, 8 * pair + 1]).for_each(|page| pages.check(page));
        let mut nr = 0;
        let nr_ahead = ahead(space, || nr = faults(space, touch));
        // Each unit was filled in order, which is forgotten within three faults.
        let most = (PAGES / UNIT * 16) as u64;
        assert!(nr_ahead <= most && nr >= 2 * nr_pairs as u64 - most, "{nr} faults, and {nr_ahead} pages ahead");
        // Three are, from then on.
        let nr_ahead = ahead(space, || (4..100).for_each(|page| pages.check(page)));
        assert!(nr_ahead > 48, "{nr_ahead} pages ahead of a walk");
        pages.check_all();
        drop(pages);
        leave(space);
    });
}

fn can_be_helped() -> bool {
    let nr_cpus = std::thread::available_parallelism().expect("processors").get();
    let can = !force().no_background && nr_cpus > 1;
    if !can {
        eprintln!("there is no background thread that could help: not tested");
    }
    can
}

#[test]
fn the_background_thread_helps() {
    alone(|| {
        let space = space(RAM, force());
        if !can_be_helped() {
            return;
        }
        let pages = Pages::aligned(space, PAGES, HEAP);
        // Where all processors are busy it does so less.
        let since = Instant::now();
        let mut helped = 0;
        while helped < PAGES as u64 / 4 {
            assert!(since.elapsed() < PATIENCE, "only {helped} pages were brought in beside the walks");
            out(space, &pages);
            helped += growth(&[&space.stats().read_beside_pages], || pages.check_all());
        }
        space.validate().expect("consistent");
        drop(pages);
        leave(space);
    });
}

/// Twice as many pages as fit into memory, in a space where a window has as many pages as a write of a batch.
fn beyond_memory(change: fn(&mut Force)) -> Pages {
    const RAM: u64 = 64 << 20;
    let file = SwapSpec { dir: c"/var/tmp", bytes: 1 << 30, kind: Kind::Ssd, ..SwapSpec::DEFAULT };
    let mut force = Force { strict: true, no_huge: true, ..force() };
    change(&mut force);
    let space = space_with(&Config { ram_bytes: RAM, swap: &[file], stats: None, stats_fd: None, force });
    Pages::aligned(space, 2 * RAM as usize / PAGE, RANDOM)
}

fn device_of(space: &'static Space) -> &'static Device {
    space.stats().devices.iter().next().expect("a device")
}

#[test]
fn what_left_together_comes_by_one_read() {
    alone(|| {
        let pages = beyond_memory(|_| ());
        if force().no_background {
            eprintln!("without a background thread there is seldom room for a whole window: not tested");
            return;
        }
        let (all, device) = (pages.len() as u64, device_of(pages.space));
        // The second walk begins in between, and gets to where runs end.
        for first in [0, 37] {
            let reads = growth(&[&device.reads], || (first..pages.len()).for_each(|page| pages.check(page)));
            assert!((all / 64 * 7 / 8..all / 64 * 5 / 4).contains(&reads), "{reads} reads of {all} pages");
        }
        assert_sound(&pages);
    });
}

#[test]
fn who_waits_for_a_device_is_helped_even_where_processors_are_busy() {
    alone(|| {
        // A walk for which something is fetched hardly waits: see `fetches.rs` in `tests/spill`.
        let pages = beyond_memory(|force| force.no_flights = true);
        if !can_be_helped() {
            return;
        }
        let (stats, device) = (pages.space.stats(), device_of(pages.space));
        let since = Instant::now();
        let came = growth(&[&stats.readahead_pages], || {
            let done = AtomicBool::new(false);
            std::thread::scope(|scope| {
                let _stop = StopsAtEnd(&done);
                for _ in 0..std::thread::available_parallelism().expect("processors").get() {
                    scope.spawn(|| {
                        while !done.load(Relaxed) {
                            std::hint::spin_loop()
                        }
                    });
                }
                let walks = || growth(&[&stats.read_beside_pages], || (0..4).for_each(|_| pages.check_all()));
                // Half as many as it is with one processor to spare. One walk of many is helped by chance.
                while walks() < pages.len() as u64 * 4 / 8 {
                    assert!(since.elapsed() < PATIENCE, "who waits is not helped");
                }
            });
        });
        // What the background thread brought in counts for the device, too.
        let [used, unused] = [&device.readahead_hits, &device.readahead_misses].map(|count| count.load(Relaxed));
        assert!(used > came * 3 / 4 && unused < came / 16, "{used} of {came} used, {unused} not");
        assert_sound(&pages);
    });
}

#[test]
fn a_walk_over_what_was_brought_in_for_it_goes_on() {
    alone(|| {
        // Nobody helps: how much of it would be by chance.
        let space = space(RAM, Force { no_background: true, ..force() });
        let pages = Pages::aligned(space, PAGES, HEAP);
        out(space, &pages);
        (0..UNIT).for_each(|page| pages.check(page));
        // As the background thread would do it.
        let nr = faults(space, || {
            for first in (UNIT..PAGES).step_by(256) {
                advise(space, pages.at, first + 128, 128, libc::MADV_WILLNEED);
                (first..first + 256).for_each(|page| pages.check(page));
            }
        });
        // One in two windows.
        assert!(nr < PAGES as u64 / 128, "{nr} faults");
    });
}

#[test]
fn a_walk_through_more_than_fits_a_small_budget_loses_nothing() {
    alone(|| {
        let space =
            space_on(&[SwapSpec { dir: c"/var/tmp", bytes: 1 << 30, priority: None, ..SwapSpec::DEFAULT }], true);
        let mut pages = Pages::aligned(space, 2 * RAM_PAGES, HEAP);
        for version in 2..6 {
            (0..pages.len()).for_each(|page| pages.write(page, version, page as u64 % 4));
            pages.check_all();
            assert!(space.charged_pages() <= RAM_PAGES + 64, "{} pages", space.charged_pages());
        }
        assert_sound(&pages);
    });
}

#[test]
fn pages_here_and_there_bring_little_along_even_after_a_walk() {
    alone(|| {
        let space = space(RAM, force());
        let pages = Pages::aligned(space, PAGES, HEAP);
        for round in 0..3 {
            out(space, &pages);
            pages.check_all();
            out(space, &pages);
            let mut random = Random(round + 7);
            let brought = ahead(space, || (0..PAGES / 8).for_each(|_| pages.check(random.below(PAGES))));
            // Each unit unlearns the walk within four faults, and neighbours by chance are few.
            assert!(brought < PAGES as u64 / 16, "{brought} pages brought along");
        }
        drop(pages);
        leave(space);
    });
}

#[test]
fn walks_that_leave_pages_out_or_stop_soon_bring_in_little_else() {
    alone(|| {
        let space = space(RAM, force());
        let pages = Pages::aligned(space, PAGES, HEAP);
        // Rows of which a picture's shape touches a part: one page of three; two of four; and objects of three pages here and there.
        let rows = |every: usize, of_each: usize| (0..PAGES).filter(move |page| page % every < of_each);
        let here_and_there = |i: usize| (i * 389 % (PAGES / 8)) * 8;
        let objects = (0..PAGES / 8).flat_map(|i| here_and_there(i)..here_and_there(i) + 3);
        for (what, touched) in [
            ("one of three", rows(3, 1).collect::<Vec<_>>()),
            ("two of four", rows(4, 2).collect()),
            ("three of eight", objects.collect()),
        ] {
            out(space, &pages);
            let stats = space.stats();
            let all = [&stats.faults_pool, &stats.faults_file, &stats.readahead_pages];
            let brought = growth(&all, || touched.iter().for_each(|page| pages.check(*page)));
            assert!(brought <= touched.len() as u64 * 9 / 8, "{what}: {brought} for {} pages", touched.len());
        }
        // And a walk is a walk again.
        out(space, &pages);
        let nr = faults(space, || pages.check_all());
        assert!(nr < PAGES as u64 / 24, "{nr} faults");
        drop(pages);
        leave(space);
    });
}

#[test]
fn walks_down_columns_and_backwards_take_few_faults_and_bring_in_little_else() {
    alone(|| {
        let space = space(RAM, force());
        let pages = Pages::aligned(space, PAGES, HEAP);
        const ROW: usize = 14_880;
        let columns = (0..4).flat_map(|column| (0..PAGES * PAGE / ROW).map(move |row| row * ROW + column * 3700));
        let backwards = (0..PAGES).rev().map(|page| page * PAGE + PAGE - 8);
        for (what, touched) in [("columns", columns.collect::<Vec<_>>()), ("backwards", backwards.collect())] {
            out(space, &pages);
            let stats = space.stats();
            let all = [&stats.faults_pool, &stats.faults_file, &stats.readahead_pages];
            let look = |at: &usize| {
                // SAFETY: inside the mapping.
                let _ = unsafe { pages.at.add(*at).read_volatile() };
            };
            let mut nr = 0;
            let brought = growth(&all, || nr = faults(space, || touched.iter().for_each(look)));
            let used = touched.iter().map(|at| at / PAGE).collect::<std::collections::HashSet<_>>().len() as u64;
            assert!(nr < used / 8, "{what}: {nr} faults for {used} pages");
            assert!(brought <= used * 9 / 8, "{what}: {brought} came in for {used} pages");
            pages.check_all();
        }
        space.validate().expect("consistent");
        drop(pages);
        leave(space);
    });
}

#[test]
fn walks_by_turns_are_walks() {
    alone(|| {
        let space = space(RAM, force());
        let walks: Vec<Pages> = (0..3).map(|_| Pages::aligned(space, PAGES / 4, HEAP)).collect();
        walks.iter().for_each(|pages| out(space, pages));
        let nr = faults(space, || (0..PAGES / 4).for_each(|page| walks.iter().for_each(|pages| pages.check(page))));
        assert!(nr < PAGES as u64 / 32, "{nr} faults");
        drop(walks);
        leave(space);
    });
}

#[test]
fn a_walk_that_ends_leaves_the_rest_where_it_is() {
    alone(|| {
        let space = space(RAM, force());
        let pages = Pages::aligned(space, PAGES, HEAP);
        out(space, &pages);
        let wanted = PAGES / 2;
        let brought = ahead(space, || (0..wanted).for_each(|page| pages.check(page)));
        assert!(brought < (wanted + REACH) as u64, "{brought} pages for {wanted}");
        drop(pages);
        leave(space);
    });
}

#[test]
fn a_walk_that_writes_what_it_reads_pays_for_few_clean_pages() {
    alone(|| {
        let space = space(RAM, force());
        let mut pages = Pages::aligned(space, PAGES, HEAP);
        out(space, &pages);
        let nr = growth(&[&space.stats().faults_protected], || {
            for page in 0..PAGES {
                pages.check(page);
                pages.write(page, 2, HEAP);
            }
        });
        // Each opens 16 pages, and one window in nine comes in clean.
        assert!(nr < PAGES as u64 / 16 / 4, "{nr} faults of writes to clean pages");
        pages.check_all();
        drop(pages);
        leave(space);
    });
}

#[test]
fn a_walk_ends_with_its_group_and_keeps_its_limit() {
    alone(|| {
        const MAX: u64 = 2048;
        // Nobody helps: what the walk brings in is its own.
        let space = space(RAM, Force { no_background: true, ..force() });
        let limits = |max| GroupLimits { ram_max_pages: max, ram_high_pages: None, swap_max_pages: None };
        let group = |max| space.create_group(ctx(space), GroupId::ROOT, &limits(max)).expect("a group");
        let (own, other) = (group(None), group(None));
        let pages = Pages::aligned(space, PAGES, HEAP);
        let middle = PAGES / 2 + 64;
        for (first, end, id) in [(0, middle, own), (middle, PAGES, other)] {
            out(space, &pages);
            space.move_to_group(ctx(space), pages.addr(first), (end - first) * PAGE, id).expect("moved");
        }
        let ram = |id| space.group_info(ctx(space), id).expect("the group").ram;
        assert_eq!(ram(other).current_pages, 0);
        for round in 0..4 {
            if round == 1 {
                space.set_group_limits(ctx(space), own, &limits(Some(MAX))).expect("limits");
            }
            (0..middle).for_each(|page| pages.check(page));
            assert!(round == 0 || ram(own).current_pages <= MAX, "{:?}", ram(own));
            // Nothing comes at another's expense.
            assert_eq!(ram(other).current_pages, 0);
        }
        (middle..PAGES).for_each(|page| pages.check(page));
        assert!(ram(other).current_pages > 0);
        space.validate().expect("consistent");
        drop(pages);
        for id in [own, other] {
            space.remove_group(ctx(space), id).expect("empty");
        }
    });
}

#[test]
fn a_walk_beside_others_that_page_out_and_unmap_loses_nothing() {
    alone(|| {
        let space = space(RAM, force());
        let at = map(space, PAGES * PAGE) as usize;
        let done = AtomicBool::new(false);
        let helped_before = space.stats().read_beside_pages.load(Relaxed);
        let is_helped = || !can_be_helped() || space.stats().read_beside_pages.load(Relaxed) > helped_before;
        std::thread::scope(|scope| {
            let stop = StopsAtEnd(&done);
            let walker = scope.spawn(|| {
                ctx(space);
                let at = at as *mut u8;
                let began = Instant::now();
                for version in 1.. {
                    (0..PAGES).for_each(|page| fill(at, page, version, page as u64 % 4));
                    (0..PAGES).for_each(|page| check(at, page, version, page as u64 % 4));
                    // Each version begins a walk anew, which asks whatever went before; whoever is to help may be late.
                    if version >= 15 && (is_helped() || began.elapsed() > PATIENCE) {
                        break;
                    }
                }
                leave(space);
            });
            let pager = scope.spawn(|| {
                let mut random = Random(3);
                ctx(space);
                while !done.load(Relaxed) {
                    let first = random.below(PAGES);
                    page_out(space, at as *mut u8, first, 1 + random.below(PAGES - first));
                    // The background thread helps only where there is a processor for it.
                    std::thread::sleep(Duration::from_millis(3));
                }
                leave(space);
            });
            // What is gone while it is brought in.
            let mapper = scope.spawn(|| {
                let mut random = Random(11);
                ctx(space);
                while !done.load(Relaxed) {
                    let pages = Pages::new(space, 1024, RANDOM);
                    page_out(space, pages.at, 0, 1024);
                    (0..300).for_each(|_| pages.check(random.below(1024)));
                    drop(pages);
                    std::thread::sleep(Duration::from_millis(20));
                }
                leave(space);
            });
            walker.join().expect("nothing lost");
            drop(stop);
            pager.join().expect("a pager");
            mapper.join().expect("a mapper");
        });
        space.validate().expect("consistent");
        assert!(is_helped());
        unmap(space, at as *mut u8, PAGES * PAGE);
        leave(space);
    });
}
