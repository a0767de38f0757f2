//! A scan beside memory in use: what is used all the time stays, however it lies.

use crate::harness::alone::{COMPRESSIBLE, PAGE, Pages, RAM_PAGES, alone, assert_sound, space_on};
use crate::harness::{Random, ctx};
use ebb::SwapSpec;
use std::sync::atomic::Ordering::Relaxed;

/// Pages in use all the time.
const HOT: usize = RAM_PAGES / 4;
/// Of these, pages that are read for each page of the scan.
const OFTEN: usize = 16;

/// Faults on each page of the scan: it is brought in by windows, and little else should be.
const FAULTS_MAX: f64 = 0.5;

/// Faults on each page of a scan through three times the budget, beside pages in use of which every `apart`-th page has content.
fn faults_of_a_scan(apart: usize) -> f64 {
    let space = space_on(&[SwapSpec { dir: c"/var/tmp", bytes: 1 << 30, priority: None, ..SwapSpec::DEFAULT }], true);
    let mut hot = Pages::aligned(space, HOT * apart, 0);
    for page in (0..hot.len()).filter(|page| page % apart != 0) {
        let drop = [hot.addr(page) as u64, PAGE as u64, libc::MADV_DONTNEED as u64, 0, 0, 0];
        assert_eq!(space.madvise(ctx(space), drop), 0);
    }
    (0..hot.len()).step_by(apart).for_each(|page| hot.write(page, 2, COMPRESSIBLE));
    let walked = Pages::aligned(space, 3 * RAM_PAGES, COMPRESSIBLE);
    let mut random = Random(1);
    let mut scan = || {
        for page in 0..walked.len() {
            walked.check(page);
            (0..OFTEN).for_each(|_| hot.check(random.below(HOT) * apart));
        }
    };
    let stats = space.stats();
    let faults = || stats.faults_pool.load(Relaxed) + stats.faults_file.load(Relaxed);
    (0..3).for_each(|_| scan());
    let before = faults();
    scan();
    let per_page = (faults() - before) as f64 / walked.len() as f64;
    assert_sound(&walked);
    (0..hot.len()).step_by(apart).for_each(|page| hot.check(page));
    per_page
}

#[test]
fn scattered_pages_in_use_stay() {
    alone(|| {
        let faults = faults_of_a_scan(8);
        assert!(faults < FAULTS_MAX, "{faults} faults on each page of the scan");
    });
}

#[test]
fn dense_pages_in_use_stay() {
    alone(|| {
        let faults = faults_of_a_scan(1);
        assert!(faults < FAULTS_MAX, "{faults} faults on each page of the scan");
    });
}
