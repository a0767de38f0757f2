//! Pages that do not compress: in RAM while they are in use and what else is there makes room, on a device otherwise.

use crate::harness::Random;
use crate::harness::alone::{COMPRESSIBLE, PAGE, Pages, RAM_PAGES, RANDOM, alone, assert_sound, file_pages, space_on};
use ebb::SwapSpec;
use std::sync::atomic::Ordering::Relaxed;

/// Pages of which one in `every` does not compress.
fn pages(swap: &[SwapSpec<'_>], n: usize, every: usize) -> Pages {
    let mut pages = Pages::aligned(space_on(swap, true), n, COMPRESSIBLE);
    (0..n).step_by(every).for_each(|page| pages.write(page, 2, RANDOM));
    pages
}

fn use_at_random(pages: &Pages, uses: usize, which: impl Fn(usize) -> bool) {
    let mut random = Random(7);
    (0..uses).for_each(|_| {
        let page = random.below(pages.len());
        if which(page) {
            pages.check(page);
        }
    });
}

fn file() -> [SwapSpec<'static>; 1] {
    [SwapSpec { dir: c"/var/tmp", bytes: 1 << 30, priority: None, ..SwapSpec::DEFAULT }]
}

#[test]
fn what_is_used_comes_from_no_device() {
    alone(|| {
        let pages = pages(&file(), RAM_PAGES * 4 / 3, 12);
        use_at_random(&pages, 8 * pages.len(), |_| true);
        let (faults, from_file) = {
            let stats = pages.space.stats();
            (stats.faults_pool.load(Relaxed), stats.faults_file.load(Relaxed))
        };
        assert!(from_file * 50 < faults, "{from_file} faults on the device, {faults} others");
        assert_sound(&pages);
    });
}

#[test]
fn what_has_been_out_for_long_goes_to_the_device() {
    alone(|| {
        let pages = pages(&file(), RAM_PAGES * 4 / 3, 12);
        let cold = pages.len().div_ceil(12) as u64;
        use_at_random(&pages, 30 * pages.len(), |page| page % 12 > 0);
        let on_file = file_pages(pages.space);
        assert!(on_file > cold / 2, "{on_file} of {cold} pages are on the device");
        assert_sound(&pages);
    });
}

#[test]
fn what_saves_nothing_does_not_fill_the_pool() {
    alone(|| {
        let pages = Pages::aligned(space_on(&file(), true), RAM_PAGES * 3 / 2, RANDOM);
        let (evicted, on_file) = (pages.len() - RAM_PAGES, file_pages(pages.space));
        assert!(on_file as usize > evicted, "{on_file} pages on the device, more than {evicted} are out");
        let pool = pages.space.stats().peak_pool_bytes.load(Relaxed) as usize / PAGE;
        // What the pool took while an eighth of the budget was free, and a little.
        assert!(pool < RAM_PAGES / 8, "{pool} pages in the pool");
        assert_sound(&pages);
    });
}

#[test]
fn what_compresses_is_found_behind_what_does_not() {
    alone(|| {
        let space = space_on(&file(), true);
        let hard = Pages::aligned(space, 2 * RAM_PAGES, RANDOM);
        let in_pool = || space.stats().out_pool_pages.load(Relaxed) + space.stats().out_same_pages.load(Relaxed);
        let before = in_pool();
        let soft = Pages::aligned(space, 2 * RAM_PAGES, COMPRESSIBLE);
        // Half of them are out. All are tried but a few for each thread that compresses.
        let tried = (in_pool() - before) as usize;
        assert!(tried > RAM_PAGES * 9 / 10, "{tried} of {RAM_PAGES} pages were compressed");
        assert_sound(&hard);
        assert_sound(&soft);
    });
}
