//! What is used all the time does not stay on a device.

use crate::harness::Random;
use crate::harness::alone::{Pages, RAM_PAGES, RANDOM, alone, assert_sound, growth, space_on};
use ebb::{Space, SwapSpec};
use std::sync::atomic::Ordering::Relaxed;

/// So many budgets of pages do not fit into the pool.
const MANY: usize = 8 * RAM_PAGES;
/// Pages that are used all the time, and how far apart they are.
const HOT: usize = 128;
const APART: usize = MANY / HOT;
/// A kind of content that compresses to less than half.
const POINTERS: u64 = 5;

/// Pages of which most are on the device, and their space.
fn pages(kind: u64) -> (&'static Space, Pages) {
    let space = space_on(&[SwapSpec { dir: c"/var/tmp", bytes: 1 << 30, priority: None, ..SwapSpec::DEFAULT }], true);
    (space, Pages::new(space, MANY, kind))
}

/// Reads hot pages at random, [`HOT`] at a time, so many times. Each time a 32nd of the budget's pages elsewhere is written, so that
/// hot pages leave now and then. Returns how many came from the device when they were read, and how many from anywhere.
fn read(pages: &mut Pages, random: &mut Random, kind: u64, rounds: u64) -> (u64, u64) {
    let stats = pages.space.stats();
    let missed = || [&stats.faults_soft, &stats.faults_pool, &stats.faults_file].map(|count| count.load(Relaxed));
    let (mut of_file, mut of_any) = (0, 0);
    for round in 0..rounds {
        for _ in 0..RAM_PAGES / 32 {
            let page = random.below(MANY);
            if !page.is_multiple_of(APART) {
                pages.write(page, 10 + round, kind);
            }
        }
        let before = missed();
        // At random: what is a walk is read ahead.
        (0..HOT).for_each(|_| pages.check(random.below(HOT) * APART));
        let now = missed();
        of_file += now[2] - before[2];
        of_any += now.iter().sum::<u64>() - before.iter().sum::<u64>();
    }
    (of_file, of_any)
}

#[test]
fn what_is_used_often_goes_to_the_pool_when_it_leaves_again() {
    alone(|| {
        let (_, mut pages) = pages(POINTERS);
        let mut random = Random(5);
        let (first, _) = read(&mut pages, &mut random, POINTERS, 1);
        assert!(first > HOT as u64 / 4, "{first} came from the device");
        read(&mut pages, &mut random, POINTERS, 100);
        let (of_file, of_any) = read(&mut pages, &mut random, POINTERS, 200);
        assert!(of_any > HOT as u64 && of_file * 8 < of_any, "{of_file} of {of_any} came from the device");
        assert_sound(&pages);
    });
}

#[test]
fn what_is_used_seldom_is_dropped_as_it_came() {
    alone(|| {
        let (space, pages) = pages(POINTERS);
        let stats = space.stats();
        let mut random = Random(5);
        let mut stored = 0;
        let of_file = growth(&stats.faults_file, || {
            stored = growth(&stats.out_pool_pages, || (0..MANY).for_each(|_| pages.check(random.below(MANY))));
        });
        // What came from the pool is stored again, and little else.
        assert!(of_file > MANY as u64 / 2, "{of_file} came from the device");
        assert!(stored < of_file / 2, "{stored} were stored, {of_file} came from the device");
        assert_sound(&pages);
    });
}

#[test]
fn what_does_not_compress_is_dropped_as_it_came() {
    alone(|| {
        let (space, mut pages) = pages(RANDOM);
        let mut random = Random(5);
        read(&mut pages, &mut random, RANDOM, 100);
        // The pool does not take them. To write them again would gain nothing.
        let dropped = growth(&space.stats().dropped_clean_pages, || {
            read(&mut pages, &mut random, RANDOM, 100);
        });
        assert!(dropped > HOT as u64, "{dropped} were dropped");
        assert_sound(&pages);
    });
}
