//! What is used all the time does not stay on a device.

use crate::harness::alone::{COMPRESSIBLE, Pages, RAM, RAM_PAGES, RANDOM, alone, assert_sound, growth, space_on};
use crate::harness::{Random, press};
use ebb::{Space, SwapSpec};
use std::sync::atomic::Ordering::Relaxed;

/// So many budgets of pages do not fit into the pool.
const MANY: usize = 8 * RAM_PAGES;
/// Pages that are used all the time, far apart.
const HOT: usize = 128;
/// A kind of content that compresses to less than half.
const HALVES: u64 = 5;

fn space() -> &'static Space {
    space_on(&[SwapSpec { dir: c"/var/tmp", bytes: 1 << 30, priority: None, ..SwapSpec::DEFAULT }], true)
}

/// Kinds of content, by turns. Hot pages have the first.
type Kinds = [u64; 4];

/// Pages of which most are on the device, the hot ones included.
fn pages(space: &'static Space, kinds: Kinds) -> Pages {
    let mut pages = Pages::new(space, MANY, COMPRESSIBLE);
    (0..MANY).for_each(|page| pages.write(page, 2, kinds[page % kinds.len()]));
    pages
}

/// Reads hot pages at random, [`HOT`] at a time, so many times. Each time a 32nd of the budget's pages elsewhere is written, so that
/// hot pages leave now and then. Returns how many came from the device when they were read, and how many from anywhere.
fn read(pages: &mut Pages, random: &mut Random, kinds: Kinds, rounds: u64) -> (u64, u64) {
    let stats = pages.space.stats();
    let missed = || [&stats.faults_soft, &stats.faults_pool, &stats.faults_file].map(|count| count.load(Relaxed));
    let (mut of_file, mut of_any) = (0, 0);
    for round in 0..rounds {
        for _ in 0..RAM_PAGES / 32 {
            let page = random.below(MANY);
            if page % (MANY / HOT) != 0 {
                pages.write(page, 10 + round, kinds[page % kinds.len()]);
            }
        }
        let before = missed();
        // At random: what is a walk is read ahead.
        (0..HOT).for_each(|_| pages.check(random.below(HOT) * (MANY / HOT)));
        let now = missed();
        of_file += now[2] - before[2];
        of_any += now.iter().sum::<u64>() - before.iter().sum::<u64>();
    }
    (of_file, of_any)
}

#[test]
fn what_is_used_often_goes_to_the_pool_when_it_leaves_again() {
    alone(|| {
        let space = space();
        let kinds = [HALVES; 4];
        let mut pages = pages(space, kinds);
        // Most hot pages are on the device at first.
        let mut random = Random(5);
        let (first, _) = read(&mut pages, &mut random, kinds, 1);
        assert!(first > HOT as u64 / 2, "{first} came from the device");
        read(&mut pages, &mut random, kinds, 100);
        let (of_file, of_any) = read(&mut pages, &mut random, kinds, 200);
        assert!(of_any > HOT as u64 && of_file * 8 < of_any, "{of_file} of {of_any} came from the device");
        assert_sound(&pages);
    });
}

#[test]
fn what_does_not_compress_is_dropped_as_it_came() {
    alone(|| {
        let space = space();
        let mut pages = pages(space, [RANDOM; 4]);
        let mut random = Random(5);
        read(&mut pages, &mut random, [RANDOM; 4], 100);
        // The pool does not take them. To write them again would gain nothing.
        let dropped = growth(&space.stats().dropped_clean_pages, || {
            read(&mut pages, &mut random, [RANDOM; 4], 100);
        });
        assert!(dropped > HOT as u64, "{dropped} were dropped");
        press(space, RAM);
        assert_sound(&pages);
    });
}
