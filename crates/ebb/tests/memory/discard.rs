//! Memory given up by madvise(2), beside threads that fault, evict, map and unmap: what is given up reads as zeros, and nothing
//! else is lost.

use crate::harness::alone::alone;
use crate::harness::{Random, check, ctx, fill, force, leave, map, space, unmap};
use ebb::Space;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};

const RAM: u64 = 16 << 20;
const PAGE: usize = 4096;
const PAGES: usize = 12 << 10;
const THREADS: usize = 4;
const ADVICE: [i32; 3] = [libc::MADV_DONTNEED, libc::MADV_FREE, 24];

fn discard(space: &'static Space, at: *mut u8, first: usize, pages: usize, advice: i32) -> i64 {
    let args = [at as u64 + (first * PAGE) as u64, (pages * PAGE) as u64, advice as u64, 0, 0, 0];
    space.madvise(ctx(space), args)
}

/// Uses the pages whose number leaves `mine` after division by [`THREADS`] in runs of `run`: so each unit has pages of all
/// threads, and each read-ahead meets what another thread gives up.
fn use_pages(space: &'static Space, at: *mut u8, mine: usize, run: usize, rounds: usize) {
    ctx(space);
    let mut random = Random(mine as u64 * 77 + 1);
    let mut version = vec![0u64; PAGES];
    let kind = |page: usize| page as u64 % 7;
    for round in 1..=rounds as u64 {
        let first = (random.below(PAGES / run / THREADS) * THREADS + mine) * run;
        let (from, n) = (random.below(run), random.below(run) + 1);
        let pages = first + from..(first + from + n).min(first + run);
        match random.below(3) {
            0 => {
                assert_eq!(discard(space, at, pages.start, pages.len(), ADVICE[random.below(3)]), 0);
                version[pages].fill(0);
            }
            1 => {
                for page in pages {
                    fill(at, page, round, kind(page));
                    version[page] = round;
                }
            }
            _ => pages.for_each(|page| check(at, page, version[page], if version[page] == 0 { 0 } else { kind(page) })),
        }
    }
    for page in (0..PAGES).filter(|page| page / run % THREADS == mine) {
        check(at, page, version[page], if version[page] == 0 { 0 } else { kind(page) });
    }
}

#[test]
fn what_is_given_up_reads_as_zeros_and_nothing_else_does() {
    alone(|| {
        let space = space(RAM, force());
        let is_over = AtomicBool::new(false);
        for run in [1, 7, 64, 300] {
            let at = map(space, PAGES * PAGE);
            is_over.store(false, Relaxed);
            std::thread::scope(|scope| {
                let (is_over, start) = (&is_over, at as usize);
                scope.spawn(move || {
                    while !is_over.load(Relaxed) {
                        let at = map(space, 256 * PAGE);
                        (0..256).for_each(|page| fill(at, page, 5, 3));
                        (0..256).for_each(|page| check(at, page, 5, 3));
                        unmap(space, at, 256 * PAGE);
                        space.validate().expect("consistent");
                    }
                    leave(space);
                });
                let users: Vec<_> = (0..THREADS)
                    .map(|mine| {
                        scope.spawn(move || {
                            use_pages(space, start as *mut u8, mine, run, 16_000 / run.min(8));
                            leave(space);
                        })
                    })
                    .collect();
                users.into_iter().for_each(|user| user.join().expect("no page lost"));
                is_over.store(true, Relaxed);
            });
            unmap(space, at, PAGES * PAGE);
            space.validate().expect("consistent");
        }
        leave(space);
    });
}

/// Threads that give up and write the same pages: each word is a thread's own, or zero.
#[test]
fn pages_given_up_while_others_write_them_hold_nothing_old() {
    alone(|| {
        const SHARED: usize = 600;
        let space = space(RAM, force());
        let at = map(space, SHARED * PAGE) as usize;
        std::thread::scope(|scope| {
            for mine in 0..THREADS {
                scope.spawn(move || {
                    ctx(space);
                    let mut random = Random(mine as u64 + 5);
                    for round in 1..6000u64 {
                        let page = random.below(SHARED);
                        // SAFETY: inside the mapping; each thread has a word of its own in each page.
                        let word = unsafe { (at as *mut u64).add(page * 512 + mine) };
                        if random.below(4) == 0 {
                            let pages = (random.below(40) + 1).min(SHARED - page);
                            assert_eq!(discard(space, at as *mut u8, page, pages, libc::MADV_DONTNEED), 0);
                            continue;
                        }
                        // SAFETY: as above.
                        unsafe {
                            word.write_volatile(round << 8 | mine as u64);
                            let seen = word.read_volatile();
                            assert!(seen == 0 || seen == round << 8 | mine as u64, "{seen:x} in round {round}");
                        }
                    }
                    leave(space);
                });
            }
        });
        assert_eq!(discard(space, at as *mut u8, 0, SHARED, libc::MADV_DONTNEED), 0);
        (0..SHARED).for_each(|page| check(at as *mut u8, page, 0, 0));
        space.validate().expect("consistent");
        unmap(space, at as *mut u8, SHARED * PAGE);
        leave(space);
    });
}

/// Part of the range was never touched. Whoever has seen that a page was given up, and then writes to it, finds what it wrote: no
/// page is given up twice.
#[test]
fn a_call_gives_each_page_up_once() {
    alone(|| {
        const UNIT: usize = 512 * PAGE;
        const TOUCHED: usize = 32;
        const TURNS: usize = 1500;
        let space = space(RAM, force());
        let (begun, over, seen) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            let (begun, over, seen) = (&begun, &over, &seen);
            scope.spawn(move || {
                ctx(space);
                let mut last = 0;
                for _ in 0..TURNS {
                    let at = loop {
                        match begun.load(SeqCst) {
                            at if at != last => break at,
                            _ => std::thread::yield_now(),
                        }
                    };
                    // SAFETY: a word of the mapping.
                    let word = unsafe { &*(at as *const AtomicU64) };
                    let mut is_written = false;
                    while !is_written && over.load(SeqCst) != at {
                        is_written = word.compare_exchange(0, 7, SeqCst, SeqCst).is_ok();
                    }
                    last = at;
                    seen.store(at | is_written as usize, SeqCst);
                }
                leave(space);
            });
            let mut before: *mut u8 = std::ptr::null_mut();
            for _ in 0..TURNS {
                let map = map(space, 3 * UNIT);
                let at = (map as usize).next_multiple_of(UNIT) + UNIT - TOUCHED * PAGE;
                // SAFETY: inside the mapping.
                (0..TOUCHED).for_each(|page| unsafe { ((at + page * PAGE) as *mut u64).write_volatile(1) });
                begun.store(at, SeqCst);
                assert_eq!(discard(space, at as *mut u8, 0, TOUCHED + 1, libc::MADV_DONTNEED), 0);
                over.store(at, SeqCst);
                let is_written = loop {
                    match seen.load(SeqCst) {
                        word if word & !1 == at => break word & 1 != 0,
                        _ => std::thread::yield_now(),
                    }
                };
                // SAFETY: as above.
                let found = unsafe { (at as *const u64).read_volatile() };
                assert_eq!(found, if is_written { 7 } else { 0 });
                // One stays, so that the next has another address.
                if !before.is_null() {
                    unmap(space, before, 3 * UNIT);
                }
                before = map;
            }
            unmap(space, before, 3 * UNIT);
        });
        leave(space);
    });
}

#[test]
fn a_locked_range_refuses_as_without_ebb() {
    alone(|| {
        let space = space(RAM, force());
        let at = map(space, 64 * PAGE);
        let mlock = |first: usize, pages: usize| {
            let args = [at as u64 + (first * PAGE) as u64, (pages * PAGE) as u64, libc::MLOCK_ONFAULT as u64, 0, 0, 0];
            assert_eq!(space.mlock(ctx(space), libc::SYS_mlock2 as u32, args), 0);
        };
        mlock(8, 8);
        const EINVAL: i64 = -(libc::EINVAL as i64);
        assert_eq!(discard(space, at, 8, 1, libc::MADV_DONTNEED), EINVAL, "locked, never touched");
        assert_eq!(discard(space, at, 0, 8, libc::MADV_DONTNEED), 0);
        (0..16).for_each(|page| fill(at, page, 3, 3));
        assert_eq!(discard(space, at, 8, 8, libc::MADV_DONTNEED), EINVAL);
        assert_eq!(discard(space, at, 4, 8, libc::MADV_DONTNEED), EINVAL);
        // The kernel drops what comes before the locked mapping.
        (4..8).for_each(|page| check(at, page, 0, 0));
        (0..4).chain(8..16).for_each(|page| check(at, page, 3, 3));
        assert_eq!(discard(space, at, 0, 16, 24), 0);
        (0..16).for_each(|page| check(at, page, 0, 0));
        unmap(space, at, 64 * PAGE);
        leave(space);
    });
}
