//! Address-space calls of many threads at once, beside threads that fault and evict: no page is lost, none is stale, and Ebb
//! never takes a range for more accessible than the kernel does.

use crate::harness::alone::{StopsAtEnd, alone};
use crate::harness::{Random, check, ctx, fill, force, leave, map, map_at, protect, space, unmap};
use ebb::Space;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicUsize};

const RAM: u64 = 16 << 20;
const PAGE: usize = 4096;
const THREADS: usize = 4;
const NONE: i32 = libc::PROT_NONE;
const R: i32 = libc::PROT_READ;
const RW: i32 = libc::PROT_READ | libc::PROT_WRITE;

/// Resizes or moves a mapping; where it is then. None if the kernel finds several mappings in the range: all stays as it is.
fn try_remap(space: &'static Space, at: usize, pages: usize, new_pages: usize, to: Option<usize>) -> Option<usize> {
    let flags = libc::MREMAP_MAYMOVE | to.map_or(0, |_| libc::MREMAP_FIXED);
    let [len, new_len] = [pages, new_pages].map(|pages| (pages * PAGE) as u64);
    let args = [at as u64, len, new_len, flags as u64, to.unwrap_or(0) as u64, 0];
    let new = space.mremap(ctx(space), args);
    assert!(new > 0 || new == -(libc::EFAULT as i64), "mremap: {new}");
    usize::try_from(new).ok()
}

/// The same for one mapping.
fn remap(space: &'static Space, at: usize, pages: usize, new_pages: usize, to: Option<usize>) -> usize {
    try_remap(space, at, pages, new_pages, to).expect("one mapping")
}

/// Looks whether Ebb allows anything in a managed range that the kernel does not, and takes no range for managed that is gone.
fn check_protections(space: &'static Space) {
    let mut maps = String::new();
    let mut ranges = Vec::with_capacity(1 << 16);
    // The gate is closed while the kernel's list is read: nothing changes between the two.
    let mut is_read = false;
    space.for_each_range(|start, end, prot| {
        if !is_read {
            maps = std::fs::read_to_string("/proc/self/maps").expect("maps");
            is_read = true;
        }
        ranges.push((start, end, prot));
    });
    let kernel: Vec<_> = maps
        .lines()
        .map(|line| {
            let (range, rest) = line.split_once(' ').expect("a range");
            let (start, end) = range.split_once('-').expect("two ends");
            let parse = |text| usize::from_str_radix(text, 16).expect("an address");
            let allows = |c: char, bit: i32| if rest[..3].contains(c) { bit as u32 } else { 0 };
            (parse(start), parse(end), allows('r', R) | allows('w', libc::PROT_WRITE) | allows('x', libc::PROT_EXEC))
        })
        .collect();
    for (start, end, prot) in ranges {
        let mut at = start;
        while at < end {
            let found = kernel.iter().find(|vma| vma.0 <= at && at < vma.1);
            let vma = found.unwrap_or_else(|| panic!("{at:x} of {start:x}-{end:x} is managed, and not mapped"));
            assert_eq!(prot & !vma.2, 0, "{at:x} of {start:x}-{end:x}: Ebb {prot}, kernel {}", vma.2);
            at = vma.1;
        }
    }
}

/// Somebody who presses and has everything counted, until it is over.
fn press(space: &'static Space, is_over: &AtomicBool) {
    while !is_over.load(Relaxed) {
        let at = map(space, 2048 * PAGE);
        (0..2048).for_each(|page| fill(at, page, 5, 3));
        (0..2048).for_each(|page| check(at, page, 5, 3));
        unmap(space, at, 2048 * PAGE);
        space.validate().expect("consistent");
    }
    leave(space);
}

/// Runs `work` in threads, beside [`press`].
fn under_pressure(work: impl Fn(&'static Space, usize) + Sync) {
    let space = space(RAM, force());
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (work, is_over) = (&work, &is_over);
        scope.spawn(move || press(space, is_over));
        let threads: Vec<_> = (0..THREADS)
            .map(|mine| {
                scope.spawn(move || {
                    ctx(space);
                    work(space, mine);
                    leave(space);
                })
            })
            .collect();
        let results: Vec<_> = threads.into_iter().map(|thread| thread.join()).collect();
        is_over.store(true, Relaxed);
        results.into_iter().for_each(|result| result.expect("no page lost"));
    });
    check_protections(space);
    space.validate().expect("consistent");
    leave(space);
}

/// All threads change the protection of the same pages, of which some have content and some are reserved.
#[test]
fn protections_that_many_change_at_once_are_the_kernels() {
    alone(|| {
        const PAGES: usize = 96;
        let at = {
            let space = space(RAM, force());
            let at = map(space, PAGES * PAGE);
            (0..PAGES / 2).for_each(|page| fill(at, page, 7, page as u64 % 7));
            leave(space);
            at as usize
        };
        under_pressure(|space, mine| {
            let mut random = Random(mine as u64 * 13 + 3);
            for round in 0..12_000 {
                let first = random.below(PAGES);
                let pages = random.below((PAGES - first).min(6)) + 1;
                protect(space, at + first * PAGE, pages, [NONE, R, RW][random.below(3)]);
                if round % 400 == 0 {
                    check_protections(space);
                }
            }
        });
        let space = space(RAM, force());
        protect(space, at, PAGES, RW);
        (0..PAGES).for_each(|page| check(at as *mut u8, page, 7, if page < PAGES / 2 { page as u64 % 7 } else { 0 }));
        unmap(space, at as *mut u8, PAGES * PAGE);
        leave(space);
    });
}

/// Threads map, unmap and replace parts of their own mappings, which the kernel puts side by side.
#[test]
fn mappings_that_come_and_go_side_by_side_lose_nothing() {
    alone(|| {
        under_pressure(|space, mine| {
            let mut random = Random(mine as u64 * 31 + 7);
            // Address, and the version of each page; 0 reads as zeros.
            let mut mappings: Vec<(usize, Vec<u64>)> = Vec::new();
            let kind = |page: usize| page as u64 % 7;
            let verify = |(at, versions): &(usize, Vec<u64>)| {
                for (page, version) in versions.iter().enumerate() {
                    check(*at as *mut u8, page, *version, if *version == 0 { 0 } else { kind(page) });
                }
            };
            for round in 1..=4000u64 {
                if mappings.len() < 12 {
                    let pages = random.below(70) + 1;
                    mappings.push((map_at(space, 0, pages, RW), vec![0; pages]));
                }
                let which = random.below(mappings.len());
                let (at, versions) = &mut mappings[which];
                let first = random.below(versions.len());
                let pages = random.below(versions.len() - first) + 1;
                match random.below(10) {
                    // The end goes.
                    0 if first > 0 => {
                        let pages = versions.len() - first;
                        unmap(space, (*at + first * PAGE) as *mut u8, pages * PAGE);
                        versions.truncate(first);
                    }
                    // All of it goes.
                    1 => {
                        verify(&mappings[which]);
                        let (at, versions) = mappings.swap_remove(which);
                        unmap(space, at as *mut u8, versions.len() * PAGE);
                    }
                    // A part is replaced: as in a heap that shrinks, by what is not accessible first.
                    2 => {
                        if random.below(2) == 0 {
                            map_at(space, *at + first * PAGE, pages, NONE);
                            protect(space, *at + first * PAGE, pages, RW);
                        } else {
                            map_at(space, *at + first * PAGE, pages, RW);
                        }
                        versions[first..first + pages].fill(0);
                    }
                    // The middle goes: two mappings.
                    3 if first > 0 && first + pages < versions.len() => {
                        unmap(space, (*at + first * PAGE) as *mut u8, pages * PAGE);
                        let rest = versions.split_off(first + pages);
                        versions.truncate(first);
                        let (at, from) = (*at, first + pages);
                        let moved = (at + from * PAGE, rest);
                        // Its pages count from its own start.
                        for (page, version) in moved.1.iter().enumerate().filter(|(_, version)| **version != 0) {
                            check(at as *mut u8, from + page, *version, kind(from + page));
                            fill(moved.0 as *mut u8, page, *version, kind(page));
                        }
                        mappings.push(moved);
                    }
                    4 => {
                        protect(space, *at + first * PAGE, pages, R);
                        (first..first + pages).for_each(|page| {
                            let version = versions[page];
                            check(*at as *mut u8, page, version, if version == 0 { 0 } else { kind(page) });
                        });
                        protect(space, *at + first * PAGE, pages, RW);
                    }
                    5 => verify(&mappings[which]),
                    // It grows or shrinks at its end, or moves as a whole.
                    6 => {
                        let pages = random.below(70) + 1;
                        if let Some(new) = try_remap(space, *at, versions.len(), pages, None) {
                            *at = new;
                            versions.resize(pages, 0);
                        }
                    }
                    7 => {
                        let pages = versions.len();
                        let to = map_at(space, 0, pages, if round % 2 == 0 { NONE } else { RW });
                        if round % 4 == 1 {
                            (0..pages).for_each(|page| fill(to as *mut u8, page, round, kind(page)));
                        }
                        match try_remap(space, *at, pages, pages, Some(to)) {
                            Some(new) => *at = new,
                            None => unmap(space, to as *mut u8, pages * PAGE),
                        }
                    }
                    _ => {
                        (first..first + pages).for_each(|page| fill(*at as *mut u8, page, round, kind(page)));
                        versions[first..first + pages].fill(round);
                    }
                }
            }
            for mapping in mappings {
                verify(&mapping);
                unmap(space, mapping.0 as *mut u8, mapping.1.len() * PAGE);
            }
        });
    });
}

/// Runs `replace` beside threads that read the pages from `at` on all the time.
fn beside_readers(space: &'static Space, at: usize, pages: usize, replace: impl FnOnce()) {
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for mine in 1..=2 {
            let is_done = &is_done;
            scope.spawn(move || {
                ctx(space);
                let (mut random, mut last) = (Random(mine), 0u64);
                while !is_done.load(Relaxed) {
                    // SAFETY: inside the mapping, whichever that is now.
                    let seen = unsafe { ((at + random.below(pages) * PAGE) as *const u64).read_volatile() };
                    assert!(seen == 0 || seen >= last, "{seen} after {last}");
                    last = seen.max(last);
                }
                leave(space);
            });
        }
        let _stop = StopsAtEnd(&is_done);
        replace();
    });
}

fn page_out(space: &'static Space, at: usize, pages: usize) {
    let args = [at as u64, (pages * PAGE) as u64, libc::MADV_PAGEOUT as u64, 0, 0, 0];
    assert_eq!(space.madvise(ctx(space), args), 0);
}

/// Writes `value` to each page, has all go out, and checks that each page is known to Ebb and keeps its value.
fn check_kept(space: &'static Space, at: usize, pages: usize, value: u64) {
    let word = |page: usize| (at + page * PAGE) as *mut u64;
    for page in 0..pages {
        // SAFETY: inside the mapping.
        unsafe {
            assert_eq!(word(page).read_volatile(), 0, "page {page} has old content");
            word(page).write_volatile(value);
        }
        assert!(space.has_content(at + page * PAGE), "Ebb does not know of page {page}");
    }
    page_out(space, at, pages);
    // SAFETY: as above.
    (0..pages).for_each(|page| assert_eq!(unsafe { word(page).read_volatile() }, value, "page {page}"));
}

/// One thread replaces a range again and again; others read it all the time. What they read while the kernel has the new mapping
/// and Ebb does not know of it yet must not become a page that nobody knows.
#[test]
fn a_range_that_is_replaced_can_be_read_meanwhile() {
    alone(|| {
        const PAGES: usize = 40;
        let space = space(RAM, force());
        let at = map(space, (PAGES + 2) * PAGE) as usize + PAGE;
        beside_readers(space, at, PAGES, || {
            for round in 1..3000u64 {
                map_at(space, at, PAGES, RW);
                check_kept(space, at, PAGES, round);
            }
        });
        check_protections(space);
        unmap(space, (at - PAGE) as *mut u8, (PAGES + 2) * PAGE);
        space.validate().expect("consistent");
        leave(space);
    });
}

/// The same for a range that reaches into a GiB where nothing was managed before.
#[test]
fn a_replacement_may_reach_beyond_what_is_managed() {
    alone(|| {
        const PAGES: usize = 40;
        const TURNS: usize = 100;
        const GIB: usize = 1 << 30;
        let space = space(RAM, force());
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new mapping, which Ebb does not manage.
        let reserved = unsafe { libc::mmap(std::ptr::null_mut(), (2 * TURNS + 2) * GIB, NONE, flags, -1, 0) };
        assert_ne!(reserved, libc::MAP_FAILED);
        let base = (reserved as usize).next_multiple_of(GIB);
        for turn in 0..TURNS {
            let at = base + (2 * turn + 1) * GIB - PAGES * PAGE;
            map_at(space, at, PAGES, RW);
            beside_readers(space, at, PAGES, || {
                map_at(space, at, PAGES + 1, RW);
                check_kept(space, at, PAGES + 1, turn as u64 + 1);
            });
            unmap(space, at as *mut u8, (PAGES + 1) * PAGE);
        }
        // SAFETY: the mapping made above.
        assert_eq!(unsafe { libc::munmap(reserved, (2 * TURNS + 2) * GIB) }, 0);
        leave(space);
    });
}

/// A mapping moves to where others read all the time. Whatever they see or bring in meanwhile is of one of the two mappings.
#[test]
fn a_mapping_can_move_to_where_others_look() {
    alone(|| {
        const PAGES: usize = 40;
        let space = space(RAM, force());
        let at = map(space, (PAGES + 2) * PAGE) as usize + PAGE;
        beside_readers(space, at, PAGES, || {
            for round in 1..2000u64 {
                let from = map(space, PAGES * PAGE) as usize;
                let word = |base: usize, page: usize| (base + page * PAGE) as *mut u64;
                // Some pages in memory, some not, and some never touched.
                for page in (0..PAGES).filter(|page| page % 4 != 0) {
                    // SAFETY: inside the mapping.
                    unsafe { word(from, page).write_volatile(round) };
                }
                if round % 3 != 0 {
                    page_out(space, from, PAGES / 2);
                }
                assert_eq!(remap(space, from, PAGES, PAGES, Some(at)), at);
                for page in 0..PAGES {
                    let want = if page % 4 == 0 { 0 } else { round };
                    // SAFETY: as above.
                    assert_eq!(unsafe { word(at, page).read_volatile() }, want, "page {page} of round {round}");
                    assert!(want == 0 || space.has_content(at + page * PAGE), "Ebb does not know of page {page}");
                }
                page_out(space, at, PAGES);
            }
        });
        check_protections(space);
        unmap(space, (at - PAGE) as *mut u8, (PAGES + 2) * PAGE);
        space.validate().expect("consistent");
        leave(space);
    });
}

/// Threads move mappings that the kernel puts side by side, so that a mapping that has just moved has neighbours like itself.
#[test]
fn mappings_that_move_side_by_side_stay_registered() {
    alone(|| {
        under_pressure(|space, mine| {
            let mut random = Random(mine as u64 * 17 + 5);
            let mut mappings: Vec<(usize, usize, u64)> = Vec::new();
            let verify = |(at, pages, version): (usize, usize, u64)| {
                (0..pages).for_each(|page| check(at as *mut u8, page, version, 2))
            };
            for round in 1..=3000u64 {
                if mappings.len() < 8 {
                    let pages = random.below(40) + 1;
                    let at = map_at(space, 0, pages, RW);
                    (0..pages).for_each(|page| fill(at as *mut u8, page, round, 2));
                    mappings.push((at, pages, round));
                }
                let which = random.below(mappings.len());
                let (at, pages, version) = mappings[which];
                match random.below(4) {
                    0 => page_out(space, at, pages),
                    1 => {
                        verify(mappings[which]);
                        unmap(space, at as *mut u8, pages * PAGE);
                        mappings.swap_remove(which);
                    }
                    _ => {
                        // As realloc does: larger, and smaller again.
                        let larger = pages + random.below(60) + 1;
                        let moved = remap(space, at, pages, larger, None);
                        verify((moved, pages, version));
                        (pages..larger).for_each(|page| check(moved as *mut u8, page, 0, 0));
                        mappings[which].0 = remap(space, moved, larger, pages, None);
                    }
                }
            }
            for (at, pages, version) in mappings {
                verify((at, pages, version));
                unmap(space, at as *mut u8, pages * PAGE);
            }
        });
    });
}

/// What a call to a fixed place unmaps before it fails is gone, and the rest is as it was.
#[test]
fn a_move_that_fails_leaves_what_the_kernel_leaves() {
    alone(|| {
        const PAGES: usize = 16;
        let space = space(RAM, force());
        let (at, to) = (map(space, PAGES * PAGE) as usize, map(space, 2 * PAGES * PAGE) as usize);
        (0..PAGES).for_each(|page| fill(at as *mut u8, page, 1, 2));
        (0..2 * PAGES).for_each(|page| fill(to as *mut u8, page, 2, 2));
        let flags = (libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED) as u64;
        let call = |len: usize, to: u64| {
            space.mremap(ctx(space), [at as u64, (len * PAGE) as u64, (len * PAGE) as u64, flags, to, 0])
        };
        assert_eq!(call(PAGES, at as u64 + PAGE as u64), -(libc::EINVAL as i64), "it overlaps");
        assert_eq!(call(PAGES, to as u64 + 1), -(libc::EINVAL as i64), "no page begins there");
        assert_eq!(call(PAGES, !0xfff), -(libc::EINVAL as i64), "beyond the address space");
        (0..PAGES).for_each(|page| check(at as *mut u8, page, 1, 2));
        (0..2 * PAGES).for_each(|page| check(to as *mut u8, page, 2, 2));
        check_protections(space);
        unmap(space, at as *mut u8, PAGES * PAGE);
        unmap(space, to as *mut u8, 2 * PAGES * PAGE);
        space.validate().expect("consistent");
        leave(space);
    });
}

/// What fork's child has of a range is the kernel's and Ebb's word at once, whoever else is at work.
#[test]
fn advice_for_fork_runs_beside_others() {
    alone(|| {
        under_pressure(|space, mine| {
            let mut random = Random(mine as u64 + 23);
            let at = map_at(space, 0, 64, RW);
            (0..64).for_each(|page| fill(at as *mut u8, page, 4, 2));
            for _ in 0..3000 {
                let first = random.below(64);
                let pages = random.below(64 - first) + 1;
                let advice =
                    [libc::MADV_DONTFORK, libc::MADV_DOFORK, libc::MADV_DONTDUMP, libc::MADV_DODUMP][random.below(4)];
                let args = [(at + first * PAGE) as u64, (pages * PAGE) as u64, advice as u64, 0, 0, 0];
                assert_eq!(space.madvise(ctx(space), args), 0);
            }
            (0..64).for_each(|page| check(at as *mut u8, page, 4, 2));
            unmap(space, at as *mut u8, 64 * PAGE);
        });
    });
}

/// A mapping that Ebb does not manage takes the place of one that it does, and the other way round. Readers notice nothing.
#[test]
fn memory_that_ebb_does_not_manage_may_take_the_place_of_managed_memory() {
    alone(|| {
        const PAGES: usize = 40;
        let space = space(RAM, force());
        let at = map(space, (PAGES + 2) * PAGE) as usize + PAGE;
        beside_readers(space, at, PAGES, || {
            for round in 1..3000 {
                let kind = if round % 2 == 0 { libc::MAP_PRIVATE } else { libc::MAP_SHARED };
                let flags = (kind | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED) as u64;
                let args = [at as u64, (PAGES * PAGE) as u64, RW as u64, flags, u64::MAX, 0];
                assert!(space.mmap(ctx(space), args) > 0);
            }
        });
        check_protections(space);
        unmap(space, (at - PAGE) as *mut u8, (PAGES + 2) * PAGE);
        leave(space);
    });
}

/// A call over a hole fails as without Ebb, and leaves alone what another thread maps into the hole meanwhile.
#[test]
fn what_others_map_into_a_hole_of_a_range_is_theirs() {
    alone(|| {
        const PAGES: usize = 16;
        let space = space(RAM, force());
        let at = map(space, 2 * PAGES * PAGE) as usize;
        let hole = at + PAGES * PAGE;
        let (is_there, is_done) = (AtomicBool::new(false), AtomicBool::new(false));
        std::thread::scope(|scope| {
            let (is_there, is_done, _stop) = (&is_there, &is_done, StopsAtEnd(&is_done));
            scope.spawn(move || {
                ctx(space);
                is_there.store(true, Relaxed);
                while !is_done.load(Relaxed) {
                    let args = [at as u64, (2 * PAGES * PAGE) as u64, RW as u64, 0, 0, 0];
                    let result = space.mprotect(ctx(space), libc::SYS_mprotect as u32, args);
                    assert!(result == 0 || result == -(libc::ENOMEM as i64), "{result}");
                }
                leave(space);
            });
            while !is_there.load(Relaxed) {
                std::thread::yield_now();
            }
            // Only now: the stacks of a new thread might come to lie in the hole.
            unmap(space, hole as *mut u8, PAGES * PAGE);
            for _ in 0..10_000 {
                let noreplace =
                    libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE;
                let args = [hole as u64, (PAGES * PAGE) as u64, RW as u64, noreplace as u64, u64::MAX, 0];
                assert_eq!(space.mmap(ctx(space), args), hole as i64);
                let mut found = None;
                space.for_each_range(|start, end, prot| {
                    if start <= hole && hole < end {
                        found = Some(prot);
                    }
                });
                assert_eq!(found, Some(RW as u32));
                unmap(space, hole as *mut u8, PAGES * PAGE);
            }
        });
        unmap(space, at as *mut u8, PAGES * PAGE);
        leave(space);
    });
}

/// A full budget is no reason for a call to end the program, or to wait for ever.
#[test]
fn growth_in_a_budget_that_is_full_goes_on() {
    alone(|| {
        let space = space(RAM, force());
        let heap = map_at(space, 0, 64, NONE);
        protect(space, heap, 1, RW);
        fill(heap as *mut u8, 0, 1, 3);
        let held = map(space, RAM as usize);
        let begin = std::time::Instant::now();
        for page in 1..64 {
            (0..RAM as usize / PAGE / 2).step_by(7).for_each(|page| fill(held, page, 1, 3));
            protect(space, heap + page * PAGE, 1, RW);
        }
        assert!(begin.elapsed() < crate::harness::PATIENCE);
        check(heap as *mut u8, 0, 1, 3);
        (1..64).for_each(|page| check(heap as *mut u8, page, 0, 0));
        unmap(space, held, RAM as usize);
        unmap(space, heap as *mut u8, 64 * PAGE);
        leave(space);
    });
}

/// The key is the kernel's to refuse.
#[test]
fn a_protection_key_that_cannot_be_is_refused() {
    alone(|| {
        let space = space(RAM, force());
        let at = map(space, 4 * PAGE) as u64;
        let args = [at, PAGE as u64, RW as u64, (-5i64) as u64, 0, 0];
        assert_eq!(space.mprotect(ctx(space), libc::SYS_pkey_mprotect as u32, args), -(libc::EINVAL as i64));
        unmap(space, at as *mut u8, 4 * PAGE);
        leave(space);
    });
}

/// A mapping may move to where so much has never been managed that many tables are missing.
#[test]
fn a_mapping_may_become_huge_elsewhere() {
    alone(|| {
        const GIB: usize = 1 << 30;
        let space = space(RAM, force());
        let pages = 4 * GIB / PAGE;
        let at = map_at(space, 0, pages, RW);
        [0, pages - 1].iter().for_each(|page| fill(at as *mut u8, *page, 1, 2));
        // It cannot grow where it is.
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE;
        let behind = (at + pages * PAGE) as *mut libc::c_void;
        // SAFETY: a new mapping, unless there is one already.
        let blocked = unsafe { libc::mmap(behind, PAGE, NONE, flags, -1, 0) };
        let new = remap(space, at, pages, 40 * GIB / PAGE, None);
        assert_ne!(new, at);
        [0, pages - 1].iter().for_each(|page| check(new as *mut u8, *page, 1, 2));
        check(new as *mut u8, 40 * GIB / PAGE - 1, 0, 0);
        unmap(space, new as *mut u8, 40 * GIB);
        if blocked != libc::MAP_FAILED {
            // SAFETY: the mapping made above.
            assert_eq!(unsafe { libc::munmap(blocked, PAGE) }, 0);
        }
        leave(space);
    });
}

/// Ends all waiting for rounds when their owner is done, also by a failure.
struct StopsAt<'a>(&'a AtomicUsize);

impl Drop for StopsAt<'_> {
    fn drop(&mut self) {
        self.0.store(usize::MAX, SeqCst);
    }
}

/// Two threads, one of which makes a reserved range accessible while the other moves it, perhaps after an mprotect of its own: Ebb
/// and the kernel agree.
fn moves_beside_mprotect(protects_first: bool) {
    const PAGES: usize = 16;
    const ROUNDS: usize = 4000;
    let space = space(RAM, force());
    let [from, to] = [map_at(space, 0, PAGES, NONE), map_at(space, 0, PAGES, NONE)];
    let (begun, ended) = (AtomicUsize::new(0), AtomicUsize::new(0));
    // The two are to meet, so they spin; where they share a processor, each would spin until the end of its time slice.
    let await_round = |at: &AtomicUsize, round| {
        for spins in 0.. {
            if at.load(SeqCst) >= round {
                break;
            }
            match spins {
                0..1000 => std::hint::spin_loop(),
                _ => std::thread::yield_now(),
            }
        }
    };
    let is_there = AtomicBool::new(false);
    let protect = |prot: i32| {
        let args = [from as u64, (PAGES * PAGE) as u64, prot as u64, 0, 0, 0];
        space.mprotect(ctx(space), libc::SYS_mprotect as u32, args)
    };
    std::thread::scope(|scope| {
        // A failure here must not leave the other thread waiting.
        let _end = StopsAt(&begun);
        scope.spawn(|| {
            let _end = StopsAt(&ended);
            ctx(space);
            is_there.store(true, Relaxed);
            for round in 1..=ROUNDS {
                await_round(&begun, round);
                (0..round % 64).for_each(|_| std::hint::spin_loop());
                let result = protect(RW);
                assert!(result == 0 || result == -(libc::ENOMEM as i64), "{result}");
                ended.store(round, SeqCst);
            }
            leave(space);
        });
        // The stacks of a new thread might come to lie in the hole that a move leaves, and take a part of `from` along at its end.
        while !is_there.load(Relaxed) {
            std::thread::yield_now();
        }
        for round in 1..=ROUNDS {
            map_at(space, from, PAGES, NONE);
            begun.store(round, SeqCst);
            (0..round / 64 % 64).for_each(|_| std::hint::spin_loop());
            if protects_first {
                assert_eq!(protect(R), 0);
            }
            assert_eq!(remap(space, from, PAGES, PAGES, Some(to)), to);
            await_round(&ended, round);
            let mut found = None;
            space.for_each_range(|start, end, prot| {
                if start <= to && to < end {
                    found = Some(prot);
                }
            });
            let maps = std::fs::read_to_string("/proc/self/maps").expect("maps");
            let is_it = |line: &&str| {
                let (start, rest) = line.split_once('-').expect("a range");
                let end = rest.split_once(' ').expect("two ends").0;
                let [start, end] = [start, end].map(|text| usize::from_str_radix(text, 16).expect("an address"));
                (start..end).contains(&to)
            };
            let line = maps.lines().find(is_it).expect("it is mapped");
            let kernel = match line.split(' ').nth(1).expect("a protection") {
                open if open.starts_with("rw") => RW,
                open if open.starts_with('r') => R,
                _ => NONE,
            };
            assert_eq!(found, Some(kernel as u32), "round {round}");
        }
    });
    unmap(space, to as *mut u8, PAGES * PAGE);
    leave(space);
}

#[test]
fn what_moves_has_the_protection_that_the_kernel_gives_it() {
    alone(|| {
        moves_beside_mprotect(false);
    });
}

#[test]
fn what_moves_after_an_mprotect_has_the_protection_that_the_kernel_gives_it() {
    alone(|| {
        moves_beside_mprotect(true);
    });
}

/// Lengths and breaks that cannot be get the kernel's answer.
#[test]
fn what_no_mapping_can_be_is_refused() {
    alone(|| {
        let space = space(RAM, force());
        let at = map_at(space, 0, 4, RW) as u64;
        let len = 4 * PAGE as u64;
        for (old_len, new_len) in [(len, u64::MAX), (len, u64::MAX - 8191), (u64::MAX, PAGE as u64), (len, 1 << 63)] {
            for flags in [0, 1, 3, 5] {
                let args = [at, old_len, new_len, flags, at + (1 << 30), 0];
                assert!(space.mremap(ctx(space), args) < 0, "{args:x?}");
            }
        }
        let now = space.brk(ctx(space), [0; 6]);
        for to in [u64::MAX, u64::MAX - PAGE as u64, 1, PAGE as u64, 0x7fff_ffff_f000] {
            assert_eq!(space.brk(ctx(space), [to, 0, 0, 0, 0, 0]), now);
        }
        check_protections(space);
        unmap(space, at as *mut u8, 4 * PAGE);
        space.validate().expect("consistent");
        leave(space);
    });
}

/// A page that a group's limit keeps in memory is not mapped again into what has grown to where it was.
#[test]
fn a_page_that_cannot_be_stored_moves_with_its_mapping() {
    alone(|| {
        const PAGES: usize = 256;
        const ROUNDS: u64 = 300;
        let space = space(RAM, force());
        let limits = ebb::GroupLimits { ram_max_pages: None, ram_high_pages: None, swap_max_pages: Some(1) };
        let group = space.create_group(ctx(space), ebb::GroupId::ROOT, &limits).expect("a group");
        let below = 0x1000_0000_0000;
        let (at, to) = (below + PAGE, below + (1 << 30));
        let [ready, go, end] = [3; 3].map(std::sync::Barrier::new);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..ROUNDS {
                    ready.wait();
                    go.wait();
                    let args = [at as u64, (PAGES * PAGE) as u64, libc::MADV_PAGEOUT as u64, 0, 0, 0];
                    let _ = space.madvise(ctx(space), args);
                    end.wait();
                }
                leave(space);
            });
            scope.spawn(|| {
                for _ in 0..ROUNDS {
                    map_at(space, below, 1, RW);
                    fill(below as *mut u8, 0, 1, 2);
                    ready.wait();
                    go.wait();
                    let args = [below as u64, PAGE as u64, ((PAGES + 1) * PAGE) as u64, 0, 0, 0];
                    while space.mremap(ctx(space), args) < 0 {}
                    (0..PAGES).for_each(|page| check(at as *mut u8, page, 0, 0));
                    end.wait();
                    unmap(space, below as *mut u8, (PAGES + 1) * PAGE);
                }
                leave(space);
            });
            let mut random = Random(5);
            for round in 1..=ROUNDS {
                space.set_thread_group(ctx(space), group).expect("the group");
                map_at(space, to, PAGES, RW);
                ready.wait();
                map_at(space, at, PAGES, RW);
                (0..PAGES).for_each(|page| fill(at as *mut u8, page, round, 2));
                go.wait();
                (0..random.below(60_000)).for_each(|_| std::hint::spin_loop());
                remap(space, at, PAGES, PAGES, Some(to));
                end.wait();
                (0..PAGES).for_each(|page| check(to as *mut u8, page, round, 2));
                unmap(space, to as *mut u8, PAGES * PAGE);
            }
        });
        space.set_thread_group(ctx(space), ebb::GroupId::ROOT).expect("the root");
        leave(space);
    });
}
