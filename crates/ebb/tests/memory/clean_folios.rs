//! Clean folios: units that a walk brought in whole to read them, which stay as they are in swap until somebody writes to them.

use crate::harness::alone::{PAGE, Pages, StopsAtEnd, alone, assert_sound, fork, wait};
use crate::harness::folios::{HEAP, RAM, UNIT, UNIT_BYTES, advise, folios_of, grown, mapped_folios, with_folios};
use crate::harness::{check, ctx, fill, force, leave, map, press, resident, unmap};
use ebb::stats::Thp;
use ebb::{GroupId, GroupLimits, Space};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

/// Pages of two budgets: units that come back sooner are hot, and are opened.
const MANY: usize = RAM as usize / PAGE * 2;

/// All of the pages were brought in by a walk. Returns the units that are all in memory now, by their first pages: they are clean folios.
fn all_in(pages: &Pages) -> Vec<usize> {
    pages.check_all();
    (0..pages.len()).step_by(UNIT).filter(|first| is_in(pages, *first)).collect()
}

/// All pages of the unit that begins there are in memory.
fn is_in(pages: &Pages, first: usize) -> bool {
    // SAFETY: inside the mapping.
    resident(unsafe { pages.at.add(first * PAGE) }, UNIT) == UNIT
}

/// Memory that a walk has read more than once.
fn walked(space: &'static Space) -> Pages {
    let pages = Pages::aligned(space, MANY, HEAP);
    (0..2).for_each(|_| pages.check_all());
    pages
}

#[test]
fn what_is_only_read_is_not_stored_again() {
    alone(|| {
        let (space, is_on) = with_folios(Thp::Always);
        let stats = space.stats();
        let pages = walked(space);
        // Where pages were written to lately, some walks leave no clean pages.
        let stays = (0..20).any(|_| {
            let mut stored = 0;
            let dropped =
                grown(&stats.dropped_clean_pages, || stored = grown(&stats.out_pool_pages, || pages.check_all()));
            dropped > MANY as u64 / 2 && dropped > 8 * stored
        });
        if is_on && !force().always_move {
            assert!(stays, "what was read is stored again");
            assert!(mapped_folios(pages.at, MANY * PAGE) > all_in(&pages).len() / 2);
        }
        assert_sound(&pages);
        drop(pages);
        leave(space);
    });
}

#[test]
fn a_write_opens_all_of_a_clean_folio() {
    alone(|| {
        let (space, is_on) = with_folios(Thp::Always);
        let mut pages = walked(space);
        // Where pages were written to lately, some walks leave no clean pages.
        let are_opened = (2..12).any(|version| {
            let folios = all_in(&pages);
            let before = folios_of(pages.at, &folios);
            let protected = grown(&space.stats().faults_protected, || {
                for (i, first) in folios.iter().enumerate() {
                    (0..9).for_each(|page| pages.write(first + (i * 37 + page * 50) % UNIT, version, page as u64 % 4));
                }
            });
            if is_on {
                // One fault for each of them, but for a few that came in as small pages; and each is still one folio.
                assert!(protected <= 2 * folios.len() as u64, "{protected} for {}", folios.len());
                // The background thread may have taken some of them since. None of those that are in memory is in parts.
                let after = folios_of(pages.at, &before);
                let split: Vec<_> =
                    before.iter().filter(|first| !after.contains(first) && is_in(&pages, **first)).collect();
                assert!(split.is_empty(), "split by writes: {split:?} of {before:?}");
            }
            protected > 0
        });
        assert!(are_opened || !is_on, "nothing was clean");
        assert_sound(&pages);
        (0..2).for_each(|_| pages.check_all());
        // A write by a system call.
        let folios = all_in(&pages);
        for first in &folios {
            let ctx = ctx(space);
            space.pin_begin(ctx, 0);
            assert!(space.pin_add(ctx, pages.addr(first + 100), 2 * PAGE) == ebb::PinResult::Ok);
            (100..102).for_each(|page| pages.write(first + page, 3, HEAP));
            space.pin_end(ctx);
        }
        assert_sound(&pages);
        drop(pages);
        leave(space);
    });
}

#[test]
fn parts_of_clean_folios_go_and_change() {
    alone(|| {
        let (space, _) = with_folios(Thp::Always);
        let mut pages = walked(space);
        for (i, first) in all_in(&pages).into_iter().enumerate() {
            // SAFETY: inside the mapping.
            let part = unsafe { pages.at.add((first + 17) * PAGE) };
            match i % 5 {
                0 => {
                    advise(space, part, 100, libc::MADV_DONTNEED);
                    (17..117).for_each(|page| pages.versions[first + page] = (0, 0));
                }
                1 => {
                    unmap(space, part, 100 * PAGE);
                    let prot = libc::PROT_READ | libc::PROT_WRITE;
                    assert_eq!(crate::harness::map_at(space, part as usize, 100, prot), part as usize);
                    (17..117).for_each(|page| pages.versions[first + page] = (0, 0));
                }
                2 => {
                    crate::harness::protect(space, part as usize, 100, libc::PROT_NONE);
                    advise(space, pages.at, first + UNIT, libc::MADV_PAGEOUT);
                    crate::harness::protect(space, part as usize, 100, libc::PROT_READ | libc::PROT_WRITE);
                    pages.write(first + 20, 5, HEAP);
                }
                3 => advise(space, part, 100, libc::MADV_PAGEOUT),
                _ => {
                    let place = map(space, 2 * UNIT_BYTES);
                    let args = [part as u64, 100 * PAGE as u64, 100 * PAGE as u64, 3, place as u64, 0];
                    assert_eq!(space.mremap(ctx(space), args), place as i64);
                    let back = [place as u64, 100 * PAGE as u64, 100 * PAGE as u64, 3, part as u64, 0];
                    assert_eq!(space.mremap(ctx(space), back), part as i64);
                    unmap(space, place, 2 * UNIT_BYTES);
                }
            }
        }
        assert_sound(&pages);
        (0..pages.len()).step_by(9).for_each(|page| pages.write(page, 7, 2));
        press(space, RAM);
        assert_sound(&pages);
        drop(pages);
        leave(space);
    });
}

#[test]
fn both_sides_of_a_fork_have_what_was_clean() {
    alone(|| {
        let (space, _) = with_folios(Thp::Always);
        let mut pages = walked(space);
        let child = fork(space, || {
            (0..pages.len()).step_by(3).for_each(|page| fill(pages.at, page, 8, 2));
            (0..pages.len()).for_each(|page| match page % 3 {
                0 => check(pages.at, page, 8, 2),
                _ => pages.check(page),
            });
        });
        (0..pages.len()).step_by(5).for_each(|page| pages.write(page, 9, 2));
        assert_eq!(wait(child), 0);
        (0..2).for_each(|_| pages.check_all());
        assert_sound(&pages);
        drop(pages);
        leave(space);
    });
}

#[test]
fn zeros_are_clean_with_the_rest() {
    alone(|| {
        let (space, is_on) = with_folios(Thp::Always);
        let stats = space.stats();
        let mut pages = Pages::aligned(space, MANY, HEAP);
        // Rows of zeros, each long enough to need no slots, and single ones, which have some so that no walk stops at them.
        let is_row = |page: usize| page % 128 < 40;
        let is_zero = |page: usize| is_row(page) || page.is_multiple_of(5);
        (0..MANY).filter(|page| is_zero(*page)).for_each(|page| pages.write(page, 2, 0));
        let zeros = grown(&stats.swpout_zero, || advise(space, pages.at, MANY, libc::MADV_PAGEOUT));
        let single = (0..MANY).filter(|page| is_zero(*page) && !is_row(*page)).count() as u64;
        assert!(zeros > 0 && zeros + single <= (0..MANY).filter(|page| is_zero(*page)).count() as u64);
        (0..3).for_each(|_| pages.check_all());
        let mut touched = 0;
        let came = grown(&stats.thp_swpin, || {
            touched = grown(&stats.faults_first_touch, || (0..2).for_each(|_| pages.check_all()));
        });
        if is_on {
            assert!(came > 20, "{came} came in whole");
            assert!(touched < 200, "{touched} faults on zeros");
        }
        // One after the other is written to.
        for page in (0..MANY).step_by(31) {
            pages.write(page, 3, page as u64 % 4);
        }
        assert_sound(&pages);
        drop(pages);
        leave(space);
    });
}

/// A thread writes to each folio that a walk brings in, as soon as it is mapped. No write may be lost, whenever it comes: with
/// `EBB_FORCE=late-protect` nearly all come before the folio is protected.
#[test]
fn no_write_to_a_folio_that_comes_in_is_lost() {
    alone(|| {
        let (space, _) = with_folios(Thp::Always);
        let mut pages = walked(space);
        let units = MANY / UNIT;
        let (walker, stop) = (AtomicUsize::new(0), AtomicBool::new(false));
        // One page of each unit counts the writes to it.
        let counter = |unit: usize| pages.addr(unit * UNIT + unit * 7 % UNIT);
        let counters: Vec<usize> = (0..units).map(counter).collect();
        for counter in &counters {
            // SAFETY: inside the mapping, and aligned.
            unsafe { *(*counter as *mut u64) = 0 };
        }
        let mut writes = vec![0u64; units];
        std::thread::scope(|scope| {
            let _stops = StopsAtEnd(&stop);
            let (walker, stop, counters, writes) = (&walker, &stop, &counters, &mut writes);
            scope.spawn(move || {
                ctx(space);
                for unit in (0..units).cycle() {
                    let is_near = || (unit + units - walker.load(Relaxed)) % units < 3;
                    while !(is_near() && resident(counters[unit] as *mut u8, 1) == 1) {
                        if stop.load(Relaxed) {
                            return leave(space);
                        }
                    }
                    // SAFETY: inside the mapping, and aligned; the other thread reads other words.
                    unsafe { *(counters[unit] as *mut u64) += 1 };
                    writes[unit] += 1;
                }
            });
            for _ in 0..5 {
                for page in 0..MANY {
                    walker.store(page / UNIT, Relaxed);
                    // SAFETY: inside the mapping.
                    unsafe { ((pages.at as usize + page * PAGE + 8) as *const u64).read_volatile() };
                }
            }
        });
        for (unit, counter) in counters.iter().enumerate() {
            // SAFETY: inside the mapping, and aligned.
            assert_eq!(unsafe { *(*counter as *const u64) }, writes[unit], "the counter of unit {unit}");
            pages.write((*counter - pages.addr(0)) / PAGE, 3, HEAP);
        }
        assert_sound(&pages);
        drop(pages);
        leave(space);
    });
}

#[test]
fn a_group_with_all_the_swap_it_may_have_gives_up_what_is_clean() {
    alone(|| {
        let space = crate::harness::space(400 << 20, force());
        space.set_thp(Thp::Always);
        let limits =
            GroupLimits { ram_max_pages: Some(33_792), ram_high_pages: Some(33_280), swap_max_pages: Some(36_352) };
        let id = space.create_group(ctx(space), GroupId::ROOT, &limits).expect("a group");
        space.set_thread_group(ctx(space), id).expect("a member");
        let pages = Pages::aligned(space, 65_536, HEAP);
        (0..2).for_each(|_| pages.check_all());
        assert_sound(&pages);
    });
}

/// Ends the thread that follows an address, also by a failure.
struct Ends<'a>(&'a AtomicUsize);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(usize::MAX, Relaxed);
    }
}

/// A thread writes to a clean folio while another replaces a part of it: a call may write to what the first has opened.
#[test]
fn what_is_opened_beside_a_new_mapping_is_open() {
    alone(|| {
        let (space, _) = with_folios(Thp::Always);
        let mut pages = walked(space);
        let (go, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let base = pages.at as usize;
        let mut pipe = [0; 2];
        // SAFETY: the kernel writes two descriptors.
        assert_eq!(unsafe { libc::pipe(pipe.as_mut_ptr()) }, 0);
        std::thread::scope(|scope| {
            let (go, done) = (&go, &done);
            let ends = Ends(go);
            scope.spawn(move || {
                ctx(space);
                let mut last = 0;
                while last != usize::MAX {
                    let at = go.load(Relaxed);
                    if at != last && at != usize::MAX {
                        (0..(at / UNIT_BYTES * 37 % 1000) * 30).for_each(|_| std::hint::spin_loop());
                        // SAFETY: inside the mapping.
                        unsafe { ((at + 300 * PAGE) as *mut u8).write_volatile(7) };
                        done.store(at, Relaxed);
                    }
                    last = at;
                }
                leave(space);
            });
            for first in (0..MANY).step_by(UNIT) {
                let at = base + first * PAGE;
                // SAFETY: inside the mapping.
                (0..UNIT).for_each(|page| unsafe { _ = ((at + page * PAGE + 8) as *const u64).read_volatile() });
                go.store(at, Relaxed);
                let prot = libc::PROT_READ | libc::PROT_WRITE;
                assert_eq!(crate::harness::map_at(space, at + 100 * PAGE, 100, prot), at + 100 * PAGE);
                while done.load(Relaxed) != at {
                    std::hint::spin_loop();
                }
                // A system call as the agent makes it.
                let (ctx, to) = (ctx(space), at + 301 * PAGE);
                space.pin_begin(ctx, 0);
                assert!(space.pin_add(ctx, to, 8) == ebb::PinResult::Ok);
                // SAFETY: writes a byte to the pipe, and reads it into the mapping.
                let got = unsafe {
                    assert_eq!(libc::write(pipe[1], c"y".as_ptr().cast(), 1), 1);
                    libc::read(pipe[0], to as *mut libc::c_void, 1)
                };
                space.pin_end(ctx);
                assert_eq!(got, 1, "the kernel writes to pages that are open");
                (100..200).for_each(|page| pages.versions[first + page] = (0, 0));
                (300..302).for_each(|page| pages.write(first + page, 3, HEAP));
            }
            drop(ends);
        });
        // SAFETY: the test's own descriptors.
        pipe.iter().for_each(|fd| unsafe { _ = libc::close(*fd) });
        assert_sound(&pages);
        drop(pages);
        leave(space);
    });
}
