//! Locked memory: nothing tries to evict what the kernel has locked, however it came to be, and what is unlocked goes.

use crate::harness::alone::{COMPRESSIBLE, PAGE, Pages, RAM_PAGES, StopsAtEnd, alone, space_on};
use crate::harness::{ctx, leave, unmap};
use ebb::{Space, SwapSpec};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

const SPILL: SwapSpec<'static> = SwapSpec { dir: c"/var/tmp", bytes: 1 << 30, priority: None, ..SwapSpec::DEFAULT };

fn range(pages: &Pages, first: usize, end: usize) -> [u64; 6] {
    [pages.addr(first) as u64, ((end - first) * PAGE) as u64, 0, 0, 0, 0]
}

fn mlock(space: &'static Space, args: [u64; 6]) -> i64 {
    space.mlock(ctx(space), libc::SYS_mlock as u32, args)
}

/// Pages from `first` to `end` that are not in memory.
fn absent(pages: &Pages, first: usize, end: usize) -> usize {
    let mut there = vec![0u8; end - first];
    // SAFETY: one byte for each page.
    let answer = unsafe { libc::mincore(pages.addr(first) as *mut _, (end - first) * PAGE, there.as_mut_ptr()) };
    assert_eq!(answer, 0);
    there.iter().filter(|byte| **byte & 1 == 0).count()
}

/// Uses twice what fits beside the pages.
fn press(space: &'static Space) {
    let other = Pages::new(space, 2 * RAM_PAGES, COMPRESSIBLE);
    other.check_all();
}

/// How often the kernel would not move a page, while something presses.
fn refused(space: &'static Space) -> u64 {
    let before = space.stats().move_refused.load(Relaxed);
    press(space);
    space.stats().move_refused.load(Relaxed) - before
}

#[test]
fn what_a_call_over_a_hole_locked_is_left_alone_until_it_is_unlocked() {
    alone(|| {
        const LOCKED: usize = 300;
        let space = space_on(&[], true);
        let pages = Pages::aligned(space, 400, COMPRESSIBLE);
        unmap(space, pages.addr(LOCKED) as *mut u8, 100 * PAGE);
        assert_eq!(mlock(space, range(&pages, 0, 100)), 0);
        assert_eq!(mlock(space, range(&pages, 0, 400)), -i64::from(libc::ENOMEM));
        assert_eq!((refused(space), absent(&pages, 0, LOCKED)), (0, 0));
        // Over the hole again: the kernel unlocks what lies before it.
        assert_eq!(space.munlock(ctx(space), range(&pages, 0, 400)), -i64::from(libc::ENOMEM));
        assert_eq!(refused(space), 0);
        assert!(absent(&pages, 0, LOCKED) > 0);
        (0..LOCKED).for_each(|page| pages.check(page));
        space.validate().expect("consistent");
        std::mem::forget(pages);
    });
}

#[test]
fn calls_lock_together_three_quarters_of_the_budget() {
    alone(|| {
        const PART: usize = RAM_PAGES * 3 / 10;
        let space = space_on(&[SPILL], true);
        let pages = Pages::aligned(space, 3 * PART, COMPRESSIBLE);
        let part = |i: usize| range(&pages, i * PART, (i + 1) * PART);
        assert_eq!(mlock(space, range(&pages, 0, 2 * PART)), -i64::from(libc::ENOMEM));
        assert_eq!((mlock(space, part(0)), mlock(space, part(1))), (0, 0));
        // Once more is the same memory.
        assert_eq!(mlock(space, part(1)), 0);
        assert_eq!(mlock(space, part(2)), -i64::from(libc::ENOMEM));
        // Neither does a call that locks what is there.
        let mut on_fault = part(2);
        on_fault[2] = 1;
        let mlock2 = |args| space.mlock(ctx(space), libc::SYS_mlock2 as u32, args);
        (2 * PART..3 * PART).for_each(|page| pages.check(page));
        assert!(absent(&pages, 2 * PART, 3 * PART) < PART / 3);
        assert_eq!(mlock2(on_fault), -i64::from(libc::ENOMEM));
        assert_eq!(space.munlock(ctx(space), part(0)), 0);
        assert_eq!(mlock(space, part(2)), 0);
        press(space);
        assert_eq!(absent(&pages, PART, 3 * PART), 0);
        pages.check_all();
        space.validate().expect("consistent");
    });
}

#[test]
fn what_is_locked_without_a_mark_is_marked_by_who_cannot_evict_it() {
    alone(|| {
        const MADV_DONTNEED_LOCKED: u64 = 24;
        let space = space_on(&[], true);
        let mut pages = Pages::aligned(space, 128, COMPRESSIBLE);
        assert_eq!(mlock(space, range(&pages, 0, 64)), 0);
        let mut discard = range(&pages, 0, 64);
        discard[2] = MADV_DONTNEED_LOCKED;
        assert_eq!(space.madvise(ctx(space), discard), 0);
        (0..64).for_each(|page| pages.write(page, 2, COMPRESSIBLE));
        press(space);
        assert_eq!((refused(space), absent(&pages, 0, 64)), (0, 0));
        pages.check_all();
        assert_eq!(space.munlockall([0; 6]), 0);
        press(space);
        assert!(absent(&pages, 0, 64) > 0);
        pages.check_all();
        space.validate().expect("consistent");
    });
}

#[test]
fn a_lock_succeeds_while_a_neighbour_is_unlocked_and_evicted() {
    alone(|| {
        let space = space_on(&[], true);
        let pages = Pages::aligned(space, 64, COMPRESSIBLE);
        let (first, second) = (range(&pages, 0, 40), range(&pages, 24, 64));
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let stop = &stop;
            scope.spawn(move || {
                let _end = StopsAtEnd(stop);
                ctx(space);
                (0..3).for_each(|_| press(space));
                leave(space);
            });
            for own in [first, second] {
                scope.spawn(move || {
                    let _end = StopsAtEnd(stop);
                    ctx(space);
                    while !stop.load(Relaxed) {
                        assert_eq!((mlock(space, own), space.munlock(ctx(space), own)), (0, 0));
                    }
                    leave(space);
                });
            }
        });
        pages.check_all();
        press(space);
        assert!(absent(&pages, 0, 64) > 0);
        pages.check_all();
        space.validate().expect("consistent");
    });
}

#[test]
fn what_mremap_adds_to_locked_memory_elsewhere_is_managed() {
    alone(|| {
        const OLD: usize = 16;
        const NEW: usize = 64;
        let space = space_on(&[], true);
        // What is behind the first pages keeps them from growing in place.
        let pages = Pages::aligned(space, 2 * OLD, COMPRESSIBLE);
        assert_eq!(mlock(space, range(&pages, 0, OLD)), 0);
        let maymove = libc::MREMAP_MAYMOVE as u64;
        let call = [pages.addr(0) as u64, (OLD * PAGE) as u64, (NEW * PAGE) as u64, maymove, 0, 0];
        let new = space.mremap(ctx(space), call);
        assert!(new > 0 && new as usize != pages.addr(0), "{new}");
        let at = new as *mut u8;
        (0..OLD).for_each(|page| crate::harness::check(at, page, 1, COMPRESSIBLE));
        let before = space.charged_pages();
        (0..NEW).for_each(|page| crate::harness::fill(at, page, 2, COMPRESSIBLE));
        assert!(space.charged_pages() >= before + NEW - OLD, "{} after {before}", space.charged_pages());
        let whole = [new as u64, (NEW * PAGE) as u64, 0, 0, 0, 0];
        assert_eq!(space.munlock(ctx(space), whole), 0);
        // A page of the books at the end, so that what lies before it is no end.
        let last = [new as u64 + ((NEW - 1) * PAGE) as u64, PAGE as u64, libc::MADV_DONTNEED as u64, 0, 0, 0];
        assert_eq!(space.madvise(ctx(space), last), 0);
        crate::harness::fill(at, NEW - 1, 2, COMPRESSIBLE);
        for _ in 0..2 {
            press(space);
            (0..NEW).for_each(|page| crate::harness::check(at, page, 2, COMPRESSIBLE));
        }
        space.validate().expect("consistent");
        unmap(space, at, NEW * PAGE);
        unmap(space, pages.addr(OLD) as *mut u8, OLD * PAGE);
        std::mem::forget(pages);
    });
}

#[test]
fn a_length_beyond_all_addresses_ends() {
    alone(|| {
        let space = space_on(&[], true);
        let pages = Pages::aligned(space, 128, COMPRESSIBLE);
        for len in [1 << 46, 1 << 62, u64::MAX - 4095, u64::MAX] {
            let args = [pages.addr(0) as u64, len, 0, 0, 0, 0];
            assert_eq!(mlock(space, range(&pages, 0, 64)), 0);
            let (locked, unlocked) = (mlock(space, args), space.munlock(ctx(space), args));
            // As Linux has it: what comes to no bytes is done at once.
            assert_eq!(locked == 0, len == u64::MAX, "{len:#x}: {locked}");
            assert!(unlocked <= 0, "{len:#x}: {unlocked}");
        }
        press(space);
        pages.check_all();
        space.validate().expect("consistent");
    });
}
