//! Runs of slots on devices: what leaves together lies together and comes back together, and files are cleaned so that runs find room.

use crate::harness::alone::{PAGE, Pages, RANDOM, StopsAtEnd, alone, assert_sound, file_pages, fork, wait};
use crate::harness::folios::{HEAP, with_folios};
use crate::harness::{Random, ctx, force, leave, space_with};
use ebb::stats::{Runs, Thp};
use ebb::{Space, SwapSpec};
use std::io::{Read, Write};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Enough for the longest runs.
const RAM: usize = 80 << 20;
const RAM_PAGES: usize = RAM / PAGE;
/// Pages of the longest run, and its place among the counters.
const LONGEST: u64 = 64;
const INDEX: usize = 5;
/// A test that takes longer than this has failed.
const PATIENCE: Duration = Duration::from_secs(60);

fn space(file_bytes: usize) -> &'static Space {
    space_on(&[SwapSpec { dir: c"/var/tmp", bytes: file_bytes as u64, priority: None, ..SwapSpec::DEFAULT }])
}

fn space_on(swap: &[SwapSpec<'_>]) -> &'static Space {
    space_with(&ebb::Config { ram_bytes: RAM as u64, swap, stats: None, stats_fd: None, force: force() })
}

fn runs(space: &'static Space) -> &'static Runs {
    &space.stats().runs
}

fn sum(counts: &[AtomicU64]) -> u64 {
    counts.iter().map(|count| count.load(Relaxed)).sum()
}

/// Writes to pages at random, as long as `goes_on` says so.
fn use_at_random(pages: &mut Pages, seed: u64, goes_on: impl Fn(usize) -> bool) {
    let (mut random, mut n) = (Random(seed), 0);
    while goes_on(n) {
        let page = random.below(pages.len());
        pages.check(page);
        pages.write(page, seed << 32 | n as u64, RANDOM);
        n += 1;
    }
}

/// Uses all of these pages at random, each in a thread of its own, until `f` is done.
fn use_all_meanwhile(all: &mut [Pages], f: impl FnOnce()) {
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _stop = StopsAtEnd(&is_over);
        for (seed, pages) in (5..).zip(all) {
            let is_over = &is_over;
            scope.spawn(move || {
                ctx(pages.space);
                use_at_random(pages, seed, |_| !is_over.load(Relaxed));
                leave(pages.space);
            });
        }
        f();
    });
}

#[test]
fn what_leaves_together_lies_together_and_comes_back_together() {
    alone(|| {
        let space = space(1 << 30);
        let pages = Pages::new(space, 2 * RAM_PAGES, RANDOM);
        let written = file_pages(space);
        assert!(runs(space).swpout[INDEX].load(Relaxed) * LONGEST > written / 10 * 9, "{:?}", runs(space));
        assert_eq!(sum(&runs(space).swpout_fallback), 0, "{:?}", runs(space));
        pages.check_all();
        // A walk reads 16 pages at a time, or more.
        assert!(sum(&runs(space).swpin[3..]) * 16 > written / 4, "{:?}", runs(space));
        assert_sound(&pages);
    });
}

#[test]
fn a_walk_brings_a_folio_in_from_a_device_by_few_reads() {
    alone(|| {
        let (space, is_on) = with_folios(Thp::Always);
        let mut pages = Pages::aligned(space, 2 * crate::harness::folios::RAM as usize / PAGE, RANDOM);
        pages.check_all();
        (0..pages.len()).for_each(|page| pages.write(page, 7, RANDOM));
        pages.check_all();
        let folios = space.stats().thp_swpin.load(Relaxed);
        if is_on && !force().always_move {
            assert!(folios > 20 && sum(&runs(space).swpin[6..]) > folios / 2, "{folios} folios: {:?}", runs(space));
        }
        assert_sound(&pages);
    });
}

#[test]
fn what_a_folio_has_in_a_file_comes_by_few_reads_even_if_it_is_scattered() {
    alone(|| {
        let (space, is_on) = with_folios(Thp::Always);
        let mut pages = Pages::aligned(space, 2 * crate::harness::folios::RAM as usize / PAGE, RANDOM);
        for version in 2..5 {
            // One page in sixteen does not compress.
            for page in 0..pages.len() {
                pages.write(page, version, if page % 16 == 5 { RANDOM } else { HEAP });
            }
        }
        let (folios, small) = (&space.stats().thp_swpin, &runs(space).swpin);
        let before = (folios.load(Relaxed), sum(small));
        pages.check_all();
        let (folios, reads) = (folios.load(Relaxed) - before.0, sum(small) - before.1);
        if is_on && !force().always_move {
            assert!(folios > 20 && reads > folios, "{folios} folios: {:?}", runs(space));
        }
        assert_sound(&pages);
    });
}

/// The kernel's test of its mTHP swap allocator (`thp_swap_allocator_test`), with a whole program in place of its calls: pages that are
/// used one by one leave gaps all over a file that is half full.
#[test]
fn runs_find_room_in_a_file_that_is_used_at_random() {
    alone(|| {
        let space = space(2 * RAM + RAM / 4);
        let mut pages = Pages::new(space, 2 * RAM_PAGES, RANDOM);
        let (longest, fallback) = (&runs(space).swpout[INDEX], &runs(space).swpout_fallback[INDEX]);
        // The file fills up once before anything is cleaned.
        use_at_random(&mut pages, 1, |n| n < 3 * RAM_PAGES);
        let cleaned = &space.stats().cleaned_pages;
        let before = [longest, fallback, cleaned].map(|count| count.load(Relaxed));
        use_at_random(&mut pages, 2, |n| n < 2 * RAM_PAGES);
        let [longest, fallback, cleaned] =
            [(longest, 0), (fallback, 1), (cleaned, 2)].map(|(n, i)| n.load(Relaxed) - before[i]);
        assert!(cleaned > 0 && longest > 100, "{longest} runs, {cleaned} pages moved");
        assert!(fallback * 20 < longest + fallback, "{fallback} of {} found no room", longest + fallback);
        assert_sound(&pages);
    });
}

#[test]
fn cleaning_goes_on_beside_threads_and_leaves_a_child_what_it_needs() {
    alone(|| {
        let space = space(3 * RAM);
        let mut all = [3, 4].map(|_| Pages::new(space, RAM_PAGES, RANDOM));
        let (mut from, mut to) = std::io::pipe().expect("a pipe");
        let child = fork(space, || {
            from.read_exact(&mut [0]).expect("a byte");
            all.iter().for_each(assert_sound);
        });
        let stats = space.stats();
        use_all_meanwhile(&mut all, || {
            // The child needs its parent's slots, and nothing is cleaned.
            std::thread::sleep(Duration::from_secs(1));
            assert_eq!(stats.cleaned_pages.load(Relaxed), 0);
            to.write_all(&[1]).expect("a byte");
            assert_eq!(wait(child), 0);
            let began = Instant::now();
            while stats.cleaned_pages.load(Relaxed) < 1000 && began.elapsed() < PATIENCE {
                std::thread::sleep(Duration::from_millis(10));
            }
        });
        assert!(stats.cleaned_pages.load(Relaxed) >= 1000, "{:?}", runs(space));
        all.iter().for_each(assert_sound);
        // All of it can leave the file.
        space
            .swapon(
                ctx(space),
                &SwapSpec { dir: c"/tmp", bytes: 1 << 30, priority: None, ..SwapSpec::DEFAULT },
                &mut || true,
            )
            .expect("a device");
        space.swapoff(ctx(space), c"/var/tmp", &mut |_| true).expect("there is room elsewhere");
        all.iter().for_each(assert_sound);
    });
}

/// What moves within a file may be in another one by the time that it is locked, in the same place there.
#[test]
fn files_beside_each_other_are_cleaned_while_pages_change_from_one_to_the_other() {
    alone(|| {
        let file = |dir| SwapSpec { dir, bytes: 3 * RAM as u64 / 2, priority: Some(1), ..SwapSpec::DEFAULT };
        let space = space_on(&[file(c"/var/tmp"), file(c"/tmp")]);
        let mut all = [3, 4].map(|_| Pages::new(space, RAM_PAGES, RANDOM));
        let cleaned = &space.stats().cleaned_pages;
        use_all_meanwhile(&mut all, || {
            let began = Instant::now();
            while cleaned.load(Relaxed) < 3000 && began.elapsed() < PATIENCE {
                std::thread::sleep(Duration::from_millis(10));
            }
        });
        assert!(cleaned.load(Relaxed) >= 3000, "{:?}", runs(space));
        all.iter().for_each(assert_sound);
    });
}
