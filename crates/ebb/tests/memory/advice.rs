//! Advice. MADV_PAGEOUT: what is paged out gives its memory back at once, and comes back as it was. MADV_WILLNEED: what is
//! out comes in, as far as there is room.

use crate::harness::alone::{Pages, RAM_PAGES, RANDOM, StopsAtEnd, alone, assert_sound, space_on};
use crate::harness::{PATIENCE, Random, check, ctx, fill, force, leave, map, space, thread_time, unmap};
use ebb::uapi::{self, Errno};
use ebb::{Reclaim, ReclaimTo, Space, SwapSpec};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

const RAM: u64 = 64 << 20;
const PAGES: usize = 4 << 10;
const PAGE: usize = 4096;

fn advise(space: &'static Space, at: *mut u8, first: usize, pages: usize, advice: i32) -> i64 {
    let args = [at as u64 + (first * PAGE) as u64, (pages * PAGE) as u64, advice as u64, 0, 0, 0];
    space.madvise(ctx(space), args)
}

fn page_out(space: &'static Space, at: *mut u8, first: usize, pages: usize) -> i64 {
    advise(space, at, first, pages, libc::MADV_PAGEOUT)
}

fn will_need(space: &'static Space, at: *mut u8, first: usize, pages: usize) -> i64 {
    advise(space, at, first, pages, libc::MADV_WILLNEED)
}

/// Pages that are mapped, by what the kernel says of the range.
fn mapped(at: *mut u8, pages: usize) -> usize {
    let mut map = vec![0u64; pages];
    let file = std::fs::File::open("/proc/self/pagemap").expect("pagemap");
    // SAFETY: room for one entry a page.
    let bytes = unsafe { std::slice::from_raw_parts_mut(map.as_mut_ptr().cast::<u8>(), pages * 8) };
    std::os::unix::fs::FileExt::read_exact_at(&file, bytes, at as u64 / PAGE as u64 * 8).expect("entries");
    map.iter().filter(|entry| *entry >> 63 == 1).count()
}

/// Uses the pages until all are mapped: the background thread may be at work.
fn until_mapped(at: *mut u8, pages: usize) {
    for _ in 0..1000 {
        if mapped(at, pages) == pages {
            return;
        }
        for page in 0..pages {
            // SAFETY: inside the mapping.
            unsafe { at.add(page * PAGE).read_volatile() };
        }
    }
    panic!("a budget of four times as much does not keep {pages} pages");
}

#[test]
fn what_is_paged_out_is_not_mapped_costs_less_and_comes_back() {
    alone(|| {
        let space = space(RAM, force());
        let at = map(space, PAGES * PAGE);
        for page in 0..PAGES {
            fill(at, page, 1, page as u64 % 3);
        }
        until_mapped(at, PAGES);
        let before = space.charged_pages();
        assert_eq!(page_out(space, at, 0, PAGES), 0);
        assert_eq!(mapped(at, PAGES), 0);
        let after = space.charged_pages();
        assert!(after < before - PAGES / 2, "{before} pages before, {after} after");
        for page in 0..PAGES {
            check(at, page, 1, page as u64 % 3);
        }
        space.validate().expect("consistent");
        unmap(space, at, PAGES * PAGE);
        leave(space);
    });
}

#[test]
fn a_call_of_ebbs_own_is_made_again_when_its_buffer_was_evicted() {
    alone(|| {
        let space = space(RAM, force());
        let at = map(space, 3 * PAGE);
        (0..3).for_each(|page| fill(at, page, 1, 0));
        let file = std::fs::File::open("/proc/self/exe").expect("this program");
        let mut there = vec![0; 2 * PAGE];
        std::os::unix::fs::FileExt::read_exact_at(&file, &mut there, 0).expect("its beginning");
        // SAFETY: inside the mapping, and nobody else's: from the middle of one page to the middle of the last.
        let buffer = unsafe { std::slice::from_raw_parts_mut(at.add(PAGE / 2), 2 * PAGE) };
        let read = |buffer: &mut [u8]| uapi::pread_exact(file.as_raw_fd(), buffer, 0);
        assert_eq!(page_out(space, at, 0, 3), 0);
        assert_eq!(read(buffer), Err(Errno::FAULT));
        assert_eq!(page_out(space, at, 0, 3), 0);
        assert_eq!(uapi::with_own_memory(buffer, read), Ok(()));
        assert!(*buffer == there[..]);
        unmap(space, at, 3 * PAGE);
        leave(space);
    });
}

#[test]
fn only_the_pages_that_are_named_go() {
    alone(|| {
        let space = space(RAM, force());
        let at = map(space, PAGES * PAGE);
        for page in 0..PAGES {
            fill(at, page, 2, 2);
        }
        until_mapped(at, PAGES);
        // Neither bound is one of a unit; a length that is no multiple of a page counts whole.
        let (first, pages) = (100, 1500);
        let args = [at as u64 + (first * PAGE) as u64, (pages * PAGE - 1) as u64, libc::MADV_PAGEOUT as u64, 0, 0, 0];
        assert_eq!(space.madvise(ctx(space), args), 0);
        // SAFETY: inside the mapping.
        let from = |page: usize| unsafe { at.add(page * PAGE) };
        assert_eq!(mapped(from(0), first), first);
        assert_eq!(mapped(from(first), pages), 0);
        assert_eq!(mapped(from(first + pages), PAGES - first - pages), PAGES - first - pages);
        for page in 0..PAGES {
            check(at, page, 2, 2);
        }
        unmap(space, at, PAGES * PAGE);
        leave(space);
    });
}

#[test]
fn a_hole_is_reported_and_the_rest_goes() {
    alone(|| {
        let space = space(RAM, force());
        let at = map(space, 64 * PAGE);
        for page in 0..64 {
            fill(at, page, 4, 2);
        }
        // SAFETY: inside the mapping.
        let upper = unsafe { at.add(32 * PAGE) };
        unmap(space, upper, 8 * PAGE);
        assert_eq!(page_out(space, at, 0, 64), -i64::from(libc::ENOMEM));
        assert_eq!(mapped(at, 64), 0);
        for page in (0..32).chain(40..64) {
            check(at, page, 4, 2);
        }
        unmap(space, at, 64 * PAGE);
        leave(space);
    });
}

#[test]
fn a_length_beyond_all_addresses_is_refused_at_once() {
    alone(|| {
        let space = space(RAM, force());
        let at = map(space, 64 * PAGE);
        fill(at, 0, 5, 2);
        for bytes in [-4096i64 as u64, u64::MAX, 1 << 63] {
            let args = [at as u64, bytes, libc::MADV_PAGEOUT as u64, 0, 0, 0];
            // A length that comes to nothing when it is rounded up is refused, too.
            assert_eq!(space.madvise(ctx(space), args), -i64::from(libc::EINVAL), "{bytes:#x}");
        }
        // All of the address space but the kernel's, nearly all of it holes.
        let args = [at as u64, (1 << 47) - 4096 - at as u64, libc::MADV_PAGEOUT as u64, 0, 0, 0];
        let start = thread_time();
        // There are holes, and what cannot be paged out.
        let refused = space.madvise(ctx(space), args);
        assert!([libc::ENOMEM, libc::EINVAL].map(|errno| -i64::from(errno)).contains(&refused), "{refused}");
        let took = thread_time() - start;
        assert!(took.as_secs() < 20, "{took:?}");
        check(at, 0, 5, 2);
        unmap(space, at, 64 * PAGE);
        leave(space);
    });
}

#[test]
fn more_threads_than_there_are_work_buffers_page_out_while_others_fault() {
    alone(|| {
        let space = space(RAM, force());
        let pages = 24 << 10;
        let at = map(space, pages * PAGE) as usize;
        for page in 0..pages {
            fill(at as *mut u8, page, 6, 2);
        }
        std::thread::scope(|scope| {
            for index in 0..10 {
                scope.spawn(move || {
                    for _ in 0..6 {
                        assert_eq!(page_out(space, at as *mut u8, index, pages - index), 0);
                    }
                    leave(space);
                });
            }
            for index in 0..2 {
                scope.spawn(move || {
                    ctx(space);
                    let mut random = Random(9 + index);
                    for _ in 0..20_000 {
                        check(at as *mut u8, random.below(pages), 6, 2);
                    }
                    leave(space);
                });
            }
        });
        space.validate().expect("consistent");
        unmap(space, at as *mut u8, pages * PAGE);
        leave(space);
    });
}

#[test]
fn what_else_is_staged_stays_there() {
    alone(|| {
        let space = space(RAM, force());
        // More than the budget, so that staging holds what it aims at.
        let pages = 24 << 10;
        let at = map(space, pages * PAGE);
        for page in 0..pages {
            fill(at, page, 7, 3);
        }
        // A page that is mapped, and none that is: advice for one page moves one page.
        // SAFETY: inside the mapping.
        let last = unsafe { at.add((pages - 1) * PAGE) };
        check(at, pages - 1, 7, 3);
        let stored = || space.stats().out_pool_pages.load(Relaxed) + space.stats().out_file_pages.load(Relaxed);
        let before = stored();
        for _ in 0..3 {
            assert_eq!(page_out(space, last, 0, 1), 0);
        }
        // Full staging loses its oldest part; the background thread may be at work beside it.
        let most = if force().no_background { 1024 } else { 4096 };
        assert!(stored() - before <= most, "{}", stored() - before);
        assert_eq!(mapped(last, 1), 0);
        check(at, pages - 1, 7, 3);
        unmap(space, at, pages * PAGE);
        leave(space);
    });
}

#[test]
fn pages_that_were_never_touched_and_those_already_out_are_no_trouble() {
    alone(|| {
        let space = space(RAM, force());
        let at = map(space, PAGES * PAGE);
        assert_eq!(page_out(space, at, 0, PAGES), 0);
        for page in (0..PAGES).step_by(7) {
            fill(at, page, 3, 3);
        }
        for _ in 0..3 {
            assert_eq!(page_out(space, at, 0, PAGES), 0);
            assert_eq!(mapped(at, PAGES), 0);
        }
        for page in 0..PAGES {
            if page % 7 == 0 { check(at, page, 3, 3) } else { check(at, page, 0, 0) }
        }
        unmap(space, at, PAGES * PAGE);
        leave(space);
    });
}

#[test]
fn what_is_said_to_be_cold_is_the_next_to_go() {
    alone(|| {
        let space =
            space_on(&[SwapSpec { dir: c"/var/tmp", bytes: 1 << 30, priority: None, ..SwapSpec::DEFAULT }], true);
        let pages = Pages::aligned(space, RAM_PAGES / 2, RANDOM);
        let there = |first: usize, n: usize| mapped(pages.addr(first) as *mut u8, n);
        // All of the unit that was touched last, and a part of the one before.
        let (part, unit) = (pages.len() - 700, pages.len() - 512);
        assert_eq!(advise(space, pages.at, part, 100, libc::MADV_COLD), 0);
        assert_eq!(advise(space, pages.at, unit, 512, libc::MADV_COLD), 0);
        // Advice alone takes nothing.
        assert_eq!(there(0, pages.len()), pages.len());
        let age_ms = || space.tree().member().coldest_ms(ebb::tree::now_ms());
        let demand = |pages| Reclaim { pages, to: ReclaimTo::Usual, shared: false };
        space.reclaim(ctx(space), demand(1), &mut |_| true).expect("there is a device");
        assert!(age_ms().is_some_and(|ms| ms > 60_000), "{:?}", age_ms());
        space.reclaim(ctx(space), demand(520), &mut |_| true).expect("there is a device");
        assert_eq!((there(part, 100), there(unit, 512)), (0, 0));
        // What was not named did not go before it, but for what staging holds.
        let others = there(0, part) + there(part + 100, 88);
        assert!(others + 128 >= part + 88, "{others} of {}", part + 88);
        assert_sound(&pages);
    });
}

#[test]
fn what_is_used_after_it_was_said_to_be_cold_comes_back_as_it_was() {
    alone(|| {
        write_beside(&[libc::MADV_COLD, libc::MADV_PAGEOUT]);
    });
}

/// Two threads write and check, while one for each advice gives that to any part of their memory.
fn write_beside(advices: &[i32]) {
    let space = space(RAM, force());
    let at = map(space, 2 * PAGES * PAGE) as usize;
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let stop = StopsAtEnd(&done);
        let writers: Vec<_> = (0..2usize)
            .map(|index| {
                scope.spawn(move || {
                    // Each has every second page.
                    let (at, mut random) = (at as *mut u8, Random(77 + index as u64));
                    ctx(space);
                    let mut versions = vec![0u64; PAGES];
                    for _ in 0..20_000 {
                        let own = random.below(PAGES);
                        let page = 2 * own + index;
                        let kind = |version: u64| if version == 0 { 0 } else { 1 + version % 3 };
                        check(at, page, versions[own], kind(versions[own]));
                        versions[own] += 1;
                        fill(at, page, versions[own], kind(versions[own]));
                    }
                    leave(space);
                })
            })
            .collect();
        let advisers: Vec<_> = (5..)
            .zip(advices)
            .map(|(seed, advice)| {
                let done = &done;
                scope.spawn(move || {
                    let mut random = Random(seed);
                    ctx(space);
                    let mut rounds = 0;
                    while !done.load(Relaxed) {
                        let first = random.below(2 * PAGES);
                        let pages = 1 + random.below(2 * PAGES - first);
                        assert_eq!(advise(space, at as *mut u8, first, pages, *advice), 0);
                        rounds += 1;
                    }
                    leave(space);
                    rounds
                })
            })
            .collect();
        for writer in writers {
            writer.join().expect("nothing lost");
        }
        drop(stop);
        for adviser in advisers {
            assert!(adviser.join().expect("advice") > 0);
        }
    });
    space.validate().expect("consistent");
    unmap(space, at as *mut u8, 2 * PAGES * PAGE);
    leave(space);
}

#[test]
fn threads_that_write_while_others_page_out_lose_nothing() {
    alone(|| {
        write_beside(&[libc::MADV_PAGEOUT]);
    });
}

#[test]
fn threads_that_write_while_others_bring_in_and_page_out_lose_nothing() {
    alone(|| {
        write_beside(&[libc::MADV_PAGEOUT, libc::MADV_WILLNEED, libc::MADV_WILLNEED]);
    });
}

#[test]
fn the_background_thread_stores_what_staging_has_no_room_for() {
    alone(|| {
        let space = space(RAM, force());
        let nr_cpus = std::thread::available_parallelism().expect("processors").get();
        if force().no_background || nr_cpus < 2 {
            eprintln!("there is no background thread that could help: not tested");
            return;
        }
        let at = map(space, PAGES * PAGE);
        let work_ns = || space.stats().background_ns.load(Relaxed);
        // Where all processors are busy it seldom has one in time.
        let since = std::time::Instant::now();
        for version in 1.. {
            assert!(since.elapsed() < PATIENCE, "the background thread did nothing");
            (0..PAGES).for_each(|page| fill(at, page, version, 2));
            until_mapped(at, PAGES);
            // What it worked is told once its round has ended.
            let pause = || std::thread::sleep(std::time::Duration::from_millis(20));
            pause();
            let (before, began) = (work_ns(), thread_time());
            assert_eq!(page_out(space, at, 0, PAGES), 0);
            let took_ns = (thread_time() - began).as_nanos() as u64;
            assert_eq!(mapped(at, PAGES), 0);
            (0..PAGES).for_each(|page| check(at, page, version, 2));
            pause();
            if work_ns() - before > took_ns / 3 * 2 {
                break;
            }
        }
        space.validate().expect("consistent");
        unmap(space, at, PAGES * PAGE);
        leave(space);
    });
}

#[test]
fn where_no_device_takes_more_everything_stays_and_the_call_ends() {
    alone(|| {
        // Random content, with nowhere to go but RAM.
        let space = space_on(&[], true);
        let pages = Pages::new(space, RAM_PAGES / 2, RANDOM);
        let args = [pages.addr(0) as u64, (pages.len() * PAGE) as u64, libc::MADV_PAGEOUT as u64, 0, 0, 0];
        let start = thread_time();
        for _ in 0..20 {
            assert_eq!(space.madvise(ctx(space), args), 0);
        }
        let took = thread_time() - start;
        assert!(took.as_secs() < 20, "{took:?}");
        pages.check_all();
        space.validate().expect("consistent");
    });
}

#[test]
fn what_does_not_compress_goes_to_the_file_once_memory_is_short() {
    alone(|| {
        let space = space(RAM, force());
        let at = map(space, PAGES * PAGE);
        for page in 0..PAGES {
            fill(at, page, 8, 3);
        }
        until_mapped(at, PAGES);
        let written = || {
            let stats = space.stats();
            stats.out_file_pages.load(Relaxed) + stats.writeback_pages.load(Relaxed)
        };
        let before = written();
        assert_eq!(page_out(space, at, 0, PAGES), 0);
        assert_eq!(mapped(at, PAGES), 0);
        assert!(
            written() - before < PAGES as u64 / 8,
            "{} pages were written where RAM was not short",
            written() - before
        );
        for page in 0..PAGES / 4 {
            check(at, page, 8, 3);
        }
        assert_eq!(page_out(space, at, 0, PAGES / 4), 0);
        // Content that compresses to next to nothing, but takes all of the budget while it is in use.
        let others = map(space, 4 * PAGES * PAGE);
        for page in 0..4 * PAGES {
            fill(others, page, 9, 1);
        }
        // Each step of reclaim writes some. Where units come in whole, a walk needs fewer of them.
        let is_moved = (0..6).any(|_| {
            (0..4 * PAGES).for_each(|page| check(others, page, 9, 1));
            written() - before > PAGES as u64 / 2
        });
        let moved = written() - before;
        assert!(is_moved, "{moved} of {PAGES} pages that save no memory were written");
        for page in 0..PAGES {
            check(at, page, 8, 3);
        }
        space.validate().expect("consistent");
        unmap(space, others, 4 * PAGES * PAGE);
        unmap(space, at, PAGES * PAGE);
        leave(space);
    });
}

#[test]
fn what_will_be_needed_comes_in_and_nothing_else() {
    alone(|| {
        let space = space(RAM, force());
        let at = map(space, PAGES * PAGE);
        // SAFETY: inside the mapping.
        let from = |page: usize| unsafe { at.add(page * PAGE) };
        // The last quarter is never touched, but for what a fault in the page before makes.
        let touched = PAGES / 4 * 3;
        // No zeros: those are nowhere once they are out.
        for page in 0..touched {
            fill(at, page, 8, 1 + page as u64 % 3);
        }
        until_mapped(at, touched);
        let made = touched..touched + 64;
        assert_eq!(page_out(space, at, 0, PAGES), 0);
        assert_eq!(mapped(at, PAGES), 0);
        // Neither bound is one of a unit.
        let (first, pages) = (100, 1500);
        assert_eq!(will_need(space, at, first, pages), 0);
        assert_eq!(mapped(from(0), first), 0);
        assert_eq!(mapped(from(first), pages), pages);
        assert_eq!(mapped(from(first + pages), PAGES - first - pages), 0);
        // What is there already is no trouble; a hole is reported, and what lies behind it comes in.
        let hole = 1700..1708;
        unmap(space, from(hole.start), hole.len() * PAGE);
        assert_eq!(will_need(space, at, 0, PAGES), -i64::from(libc::ENOMEM));
        assert_eq!(mapped(at, touched), touched - hole.len());
        assert_eq!(mapped(from(made.end), PAGES - made.end), 0);
        let faults = || {
            let stats = space.stats();
            [&stats.faults_soft, &stats.faults_pool, &stats.faults_file].map(|count| count.load(Relaxed))
        };
        let before = faults();
        for page in (0..touched).filter(|page| !hole.contains(page)) {
            check(at, page, 8, 1 + page as u64 % 3);
        }
        assert_eq!(faults(), before);
        space.validate().expect("consistent");
        unmap(space, at, PAGES * PAGE);
        leave(space);
    });
}

#[test]
fn nothing_goes_for_what_will_be_needed() {
    alone(|| {
        let space = space(RAM, force());
        // Half of the budget is in use; what is out needs as much again, twice.
        let (used, out) = (RAM as usize / PAGE / 2, RAM as usize / PAGE);
        let at = map(space, (used + out) * PAGE);
        // SAFETY: inside the mapping.
        let outside = unsafe { at.add(used * PAGE) };
        for page in (used..used + out).chain(0..used) {
            fill(at, page, 9, 2);
        }
        assert_eq!(page_out(space, outside, 0, out), 0);
        assert_eq!(mapped(outside, out), 0);
        until_mapped(at, used);
        // What was read ahead beyond them.
        let before_came = mapped(outside, out);
        let direct = || space.stats().direct_reclaims.load(Relaxed);
        let (before, limit) = (direct(), RAM as usize / PAGE);
        assert_eq!(will_need(space, outside, 0, out), 0);
        let came = mapped(outside, out) - before_came;
        // As much as there was room for: the pool has a part of that.
        assert!(came > limit / 16 && came < limit / 2, "{came} of {out} pages");
        assert_eq!((mapped(at, used), direct()), (used, before));
        // Background reclaim would begin when so much is left, or more.
        assert!(space.charged_pages() <= limit - 32, "{} of {limit}", space.charged_pages());
        for page in 0..used + out {
            check(at, page, 9, 2);
        }
        space.validate().expect("consistent");
        unmap(space, at, (used + out) * PAGE);
        leave(space);
    });
}

#[test]
fn what_is_staged_comes_in_as_well() {
    alone(|| {
        const UNIT: usize = 512;
        let space = space(RAM, force());
        let back = || space.stats().staged_back_pages.load(Relaxed);
        let came_back = |round: usize| {
            // More than the budget, so that some is staged; then room is made: of three units one is left.
            let pages = 48 * UNIT;
            let at = map(space, pages * PAGE);
            (0..pages).for_each(|page| fill(at, page, 10, 2));
            // SAFETY: inside the mapping.
            let from = |page: usize| unsafe { at.add(page * PAGE) };
            let (left, others): (Vec<usize>, Vec<usize>) =
                (0..pages).step_by(UNIT).partition(|page| page / UNIT % 3 == round % 3);
            // Given up, but not unmapped: each round has units that nothing is known of.
            let drop = |page: usize| {
                let r = space.madvise(
                    ctx(space),
                    [from(page) as u64, (UNIT * PAGE) as u64, libc::MADV_DONTNEED as u64, 0, 0, 0],
                );
                assert_eq!(r, 0);
            };
            others.iter().for_each(|page| drop(*page));
            let before = back();
            for page in &left {
                assert_eq!(will_need(space, from(*page), 0, UNIT), 0);
                assert_eq!(mapped(from(*page), UNIT), UNIT);
            }
            let after = back();
            for page in &left {
                (*page..page + UNIT).for_each(|page| check(at, page, 10, 2));
                drop(*page);
            }
            space.validate().expect("consistent");
            after > before
        };
        // What is staged may all be of the other units. Folios are too large for this budget: what is staged is stored at once.
        assert!((0..9).any(came_back) || force().always_huge);
        leave(space);
    });
}

#[test]
fn what_may_not_be_read_stays_out_and_a_huge_range_takes_no_time() {
    alone(|| {
        let space = space(RAM, force());
        let at = map(space, PAGES * PAGE);
        (0..PAGES).for_each(|page| fill(at, page, 11, 2));
        assert_eq!(page_out(space, at, 0, PAGES), 0);
        let protect = |prot: i32| {
            space.mprotect(
                ctx(space),
                libc::SYS_mprotect as u32,
                [at as u64, (PAGES * PAGE) as u64, prot as u64, 0, 0, 0],
            )
        };
        assert_eq!(protect(libc::PROT_NONE), 0);
        assert_eq!(will_need(space, at, 0, PAGES), 0);
        assert_eq!(mapped(at, PAGES), 0);
        assert_eq!(protect(libc::PROT_READ | libc::PROT_WRITE), 0);
        // Of a terabyte only this was ever touched.
        let huge = 1 << 40;
        let reserved = map(space, huge);
        // SAFETY: inside the mapping.
        let middle = unsafe { reserved.add(huge / 2) };
        fill(middle, 0, 12, 2);
        assert_eq!(page_out(space, middle, 0, 1), 0);
        let start = thread_time();
        assert_eq!(will_need(space, reserved, 0, huge / PAGE), 0);
        let took = thread_time() - start;
        assert!(took.as_secs() < 10, "{took:?}");
        assert_eq!(mapped(middle, 1), 1);
        check(middle, 0, 12, 2);
        for bytes in [-4096i64 as u64, u64::MAX, 1 << 63] {
            let args = [at as u64, bytes, libc::MADV_WILLNEED as u64, 0, 0, 0];
            let refused = space.madvise(ctx(space), args);
            assert!(
                [libc::ENOMEM, libc::EINVAL].map(|errno| -i64::from(errno)).contains(&refused),
                "{bytes:#x}: {refused}"
            );
        }
        (0..PAGES).for_each(|page| check(at, page, 11, 2));
        space.validate().expect("consistent");
        unmap(space, reserved, huge);
        unmap(space, at, PAGES * PAGE);
        leave(space);
    });
}
