//! Heaps that grow by mprotect, page by page, in reserved address space, beside threads that fault, evict, map and unmap.

use crate::harness::alone::alone;
use crate::harness::{Random, check, fill, force, leave, map, map_at, protect, space, unmap};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

const RAM: u64 = 16 << 20;
const PAGE: usize = 4096;
const HEAP_PAGES: usize = 2 << 10;
const GROWERS: u64 = 4;

/// A heap that grows by a few pages, and now and then gives its end back.
fn grow(seed: u64, rounds: usize) {
    const RW: i32 = libc::PROT_READ | libc::PROT_WRITE;
    let space = space(RAM, force());
    let start = map_at(space, 0, HEAP_PAGES, libc::PROT_NONE);
    let at = start as *mut u8;
    let mut random = Random(seed);
    let (mut used, mut version) = (0, vec![0u64; HEAP_PAGES]);
    for round in 1..=rounds as u64 {
        let step = random.below(3) + 1;
        if used + step > HEAP_PAGES || random.below(200) == 0 {
            let kept = random.below(used + 1);
            if kept < used {
                map_at(space, start + kept * PAGE, used - kept, libc::PROT_NONE);
            }
            used = kept;
            continue;
        }
        protect(space, start + used * PAGE, step, RW);
        for page in used..used + step {
            // SAFETY: just made accessible. What was given back reads as zeros.
            assert_eq!(unsafe { at.add(page * PAGE).cast::<u64>().read_volatile() }, 0);
            fill(at, page, round, page as u64 % 7);
        }
        version[used..used + step].fill(round);
        used += step;
        let page = random.below(used);
        check(at, page, version[page], page as u64 % 7);
        // To read only and back is no growth: it closes the gate once.
        if random.below(50) == 0 {
            protect(space, start + page * PAGE, 1, libc::PROT_READ);
            check(at, page, version[page], page as u64 % 7);
            protect(space, start + page * PAGE, 1, RW);
        }
    }
    (0..used).for_each(|page| check(at, page, version[page], page as u64 % 7));
    unmap(space, at, HEAP_PAGES * PAGE);
    leave(space);
}

#[test]
fn heaps_that_grow_beside_each_other_lose_nothing() {
    alone(|| {
        let space = space(RAM, force());
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let is_over = &is_over;
            // Somebody who maps and unmaps, presses, and has all that is inside counted.
            scope.spawn(move || {
                let mut random = Random(99);
                while !is_over.load(Relaxed) {
                    let pages = random.below(1 << 10) + 1;
                    let at = map(space, pages * PAGE);
                    (0..pages).for_each(|page| fill(at, page, 5, 3));
                    (0..pages).for_each(|page| check(at, page, 5, 3));
                    unmap(space, at, pages * PAGE);
                    space.validate().expect("consistent");
                }
                leave(space);
            });
            let growers: Vec<_> = (1..=GROWERS).map(|i| scope.spawn(move || grow(i * 31, 6000))).collect();
            for grower in growers {
                grower.join().expect("no page lost");
            }
            is_over.store(true, Relaxed);
        });
        space.validate().expect("consistent");
    });
}

#[test]
fn the_first_page_of_a_step_is_there_at_once_and_no_other() {
    alone(|| {
        let space = space(RAM, force());
        let start = map_at(space, 0, 64, libc::PROT_NONE);
        let at = start as *mut u8;
        let is_there = |page: usize| {
            let mut byte = 0u8;
            // SAFETY: one byte for the page, which is inside the reservation.
            assert_eq!(unsafe { libc::mincore(at.add(page * PAGE).cast(), PAGE, &raw mut byte) }, 0);
            byte & 1 != 0
        };
        protect(space, start, 1, libc::PROT_READ | libc::PROT_WRITE);
        assert!(!is_there(0), "nothing is in use yet");
        fill(at, 0, 1, 3);
        for page in (1..31).step_by(2) {
            protect(space, start + page * PAGE, 2, libc::PROT_READ | libc::PROT_WRITE);
            assert!(is_there(page), "page {page} is about to be used");
            assert!(!(page + 2..64).any(is_there), "nothing comes in that is not accessible");
            fill(at, page, 1, 3);
            fill(at, page + 1, 1, 3);
        }
        (0..31).for_each(|page| check(at, page, 1, 3));
        unmap(space, at, 64 * PAGE);
        leave(space);
    });
}
