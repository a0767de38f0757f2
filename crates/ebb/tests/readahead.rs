//! Walks through swapped memory in address order: what they bring in at once, what the background thread does of it, and that
//! nothing else is brought in.

#[allow(dead_code, reason = "each test uses its part")]
mod harness;

use ebb::Space;
use harness::alone::{Pages, RANDOM, StopsAtEnd};
use harness::{Random, check, ctx, fill, force, leave, map, space, unmap};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

const RAM: u64 = 256 << 20;
const PAGES: usize = 8 << 10;
const PAGE: usize = 4096;
/// Compresses well.
const HEAP: u64 = 2;
/// The most that is brought in ahead of a walk: three windows of the background thread's, and one of its own.
const REACH: usize = 4 * 128;

/// The tests share a space and its counters.
fn in_turn() -> std::sync::MutexGuard<'static, ()> {
    static TURN: std::sync::Mutex<()> = std::sync::Mutex::new(());
    TURN.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn page_out(space: &'static Space, at: *mut u8, first: usize, pages: usize) {
    let args = [at as u64 + (first * PAGE) as u64, (pages * PAGE) as u64, libc::MADV_PAGEOUT as u64, 0, 0, 0];
    assert_eq!(space.madvise(ctx(space), args), 0);
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
    let _turn = in_turn();
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
    unmap(space, pages.at, PAGES * PAGE);
    leave(space);
}

#[test]
fn the_background_thread_helps() {
    let _turn = in_turn();
    let space = space(RAM, force());
    let nr_cpus = std::thread::available_parallelism().expect("processors").get();
    if force().no_background || nr_cpus < 2 {
        eprintln!("there is no background thread that could help: not tested");
        return;
    }
    let pages = Pages::aligned(space, PAGES, HEAP);
    // Where all processors are busy it does not.
    let since = Instant::now();
    let (mut helped, mut nr) = (0, 0);
    while helped < PAGES as u64 / 4 {
        assert!(since.elapsed() < Duration::from_secs(60), "only {helped} pages were brought in beside the last walk");
        out(space, &pages);
        helped = growth(&[&space.stats().read_beside_pages], || nr = faults(space, || pages.check_all()));
    }
    // A walk over what was brought in for it goes on as one.
    assert!(nr < PAGES as u64 / 96, "{nr} faults");
    space.validate().expect("consistent");
    unmap(space, pages.at, PAGES * PAGE);
    leave(space);
}

#[test]
fn pages_here_and_there_bring_little_along_even_after_a_walk() {
    let _turn = in_turn();
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
    unmap(space, pages.at, PAGES * PAGE);
    leave(space);
}

#[test]
fn walks_by_turns_are_walks() {
    let _turn = in_turn();
    let space = space(RAM, force());
    let walks: Vec<Pages> = (0..3).map(|_| Pages::aligned(space, PAGES / 4, HEAP)).collect();
    walks.iter().for_each(|pages| out(space, pages));
    let nr = faults(space, || (0..PAGES / 4).for_each(|page| walks.iter().for_each(|pages| pages.check(page))));
    assert!(nr < PAGES as u64 / 32, "{nr} faults");
    for pages in walks {
        unmap(space, pages.at, pages.len() * PAGE);
    }
    leave(space);
}

#[test]
fn a_walk_that_ends_leaves_the_rest_where_it_is() {
    let _turn = in_turn();
    let space = space(RAM, force());
    let pages = Pages::aligned(space, PAGES, HEAP);
    out(space, &pages);
    let wanted = PAGES / 2;
    let brought = ahead(space, || (0..wanted).for_each(|page| pages.check(page)));
    assert!(brought < (wanted + REACH) as u64, "{brought} pages for {wanted}");
    unmap(space, pages.at, PAGES * PAGE);
    leave(space);
}

#[test]
fn a_walk_beside_others_that_page_out_and_unmap_loses_nothing() {
    let _turn = in_turn();
    let space = space(RAM, force());
    let at = map(space, PAGES * PAGE) as usize;
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let stop = StopsAtEnd(&done);
        let walker = scope.spawn(|| {
            ctx(space);
            let at = at as *mut u8;
            for version in 1..16 {
                (0..PAGES).for_each(|page| fill(at, page, version, page as u64 % 4));
                (0..PAGES).for_each(|page| check(at, page, version, page as u64 % 4));
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
        // What is walked through, and gone while it is brought in.
        let mapper = scope.spawn(|| {
            let mut random = Random(11);
            ctx(space);
            while !done.load(Relaxed) {
                let pages = Pages::new(space, 1024, RANDOM);
                page_out(space, pages.at, 0, 1024);
                (0..256 + random.below(512)).for_each(|page| pages.check(page));
                unmap(space, pages.at, 1024 * PAGE);
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
    unmap(space, at as *mut u8, PAGES * PAGE);
    leave(space);
}
