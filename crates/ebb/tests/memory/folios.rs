//! Large folios: units of 2 MiB that come in whole, leave whole and come back whole, and what a program does to parts of them.

use crate::harness::alone::{PAGE, Pages, alone, assert_sound, fork, wait};
use crate::harness::folios::{HEAP, RAM, UNIT, UNIT_BYTES, advise, aligned, grown, mapped_folios, with_folios};
use crate::harness::{Random, check, ctx, fill, leave, map, press, resident, unmap};
use ebb::stats::Thp;

#[test]
fn a_first_touch_maps_a_folio_where_that_is_wanted() {
    alone(|| {
        let (space, is_on) = with_folios(Thp::Advise);
        let (all, at, bytes) = aligned(space, 8);
        let touch = |unit: usize, page: usize| {
            // SAFETY: inside the mapping.
            unsafe { at.add((unit * UNIT + page) * PAGE).write_volatile(7) };
        };
        touch(0, 0);
        assert_eq!(mapped_folios(at, 8 * UNIT_BYTES), 0, "nobody has asked for one");
        // SAFETY: inside the mapping.
        let second = unsafe { at.add(2 * UNIT_BYTES) };
        advise(space, second, 4 * UNIT, libc::MADV_HUGEPAGE);
        touch(2, 5);
        touch(3, 511);
        assert_eq!(mapped_folios(at, 8 * UNIT_BYTES), if is_on { 2 } else { 0 });
        // SAFETY: inside the mapping.
        let zeros = (0..UNIT_BYTES).filter(|i| unsafe { second.add(*i).read_volatile() } == 0).count();
        assert_eq!(zeros, UNIT_BYTES - 1);
        advise(space, second, 4 * UNIT, libc::MADV_NOHUGEPAGE);
        touch(4, 0);
        assert_eq!(mapped_folios(at, 8 * UNIT_BYTES), if is_on { 2 } else { 0 });
        let (_, is_on) = with_folios(Thp::Always);
        touch(5, 0);
        touch(6, 300);
        assert_eq!(mapped_folios(at, 8 * UNIT_BYTES), if is_on { 3 } else { 0 }, "the sixth is excepted");
        with_folios(Thp::Never);
        touch(7, 0);
        assert_eq!(mapped_folios(at, 8 * UNIT_BYTES), if is_on { 3 } else { 0 });
        unmap(space, all, bytes);
        space.validate().expect("sound");
        leave(space);
    });
}

#[test]
fn a_folio_leaves_and_comes_back_whole() {
    alone(|| {
        let (space, is_on) = with_folios(Thp::Always);
        let stats = space.stats();
        let all = if is_on { 8 } else { 0 };
        // That a huge page moved as one is told by the time it took, and who loses the processor meanwhile takes longer.
        let mut pages = (0..20).find_map(|_| {
            let pages = Pages::aligned(space, 8 * UNIT, HEAP);
            assert_eq!(mapped_folios(pages.at, 8 * UNIT_BYTES) as u64, all);
            let out = grown(&stats.thp_unmapped, || advise(space, pages.at, 8 * UNIT, libc::MADV_PAGEOUT));
            assert!(out <= all, "{out}");
            (out == all).then_some(pages)
        });
        let pages = pages.as_mut().expect("all folios leave whole at least once");
        assert_eq!(resident(pages.at, 8 * UNIT), 0);
        pages.check_all();
        // A few are written to, and some pages go one by one.
        for round in 2..6 {
            for page in (0..8 * UNIT).step_by(7 * round) {
                pages.write(page, round as u64, page as u64 % 4);
            }
            match round {
                2 => press(space, RAM),
                _ => advise(space, pages.at, 8 * UNIT, libc::MADV_PAGEOUT),
            }
            pages.check_all();
        }
        assert_sound(pages);
        leave(space);
    });
}

#[test]
fn a_folio_that_is_touched_soon_comes_back_by_one_move() {
    alone(|| {
        let (space, is_on) = with_folios(Thp::Always);
        // More than fits, all of it used again and again.
        let mut pages = Pages::aligned(space, RAM as usize / PAGE + 16 * UNIT, HEAP);
        // Where the program does not ask for them, a single page may come back alone.
        advise(space, pages.at, pages.len(), libc::MADV_HUGEPAGE);
        let mut random = Random(7);
        let returned = grown(&space.stats().thp_returned, || {
            for round in 2..40_000u64 {
                let page = random.below(pages.len());
                if round % 4 == 0 {
                    pages.write(page, round, round / 4 % 4);
                } else {
                    pages.check(page);
                }
            }
        });
        pages.check_all();
        assert_sound(&pages);
        assert!(returned > 0 || !is_on, "none came back whole");
        drop(pages);
        leave(space);
    });
}

#[test]
fn a_walk_that_writes_brings_units_in_whole() {
    alone(|| {
        let (space, is_on) = with_folios(Thp::Always);
        let mut pages = Pages::aligned(space, RAM as usize / PAGE * 2, HEAP);
        let came = grown(&space.stats().thp_swpin, || {
            for version in 2..5 {
                (0..pages.len()).for_each(|page| pages.write(page, version, page as u64 % 4));
            }
        });
        assert!(came >= 16 || !is_on, "{came} units came in whole");
        pages.check_all();
        assert_sound(&pages);
        drop(pages);
        leave(space);
    });
}

#[test]
fn a_folio_that_a_call_uses_for_long_gives_up_its_other_pages() {
    alone(|| {
        let (space, _) = with_folios(Thp::Always);
        let pages = Pages::aligned(space, UNIT, HEAP);
        let ctx = ctx(space);
        space.pin_begin(ctx, 0);
        assert!(space.pin_add(ctx, pages.addr(100), 10) == ebb::PinResult::Ok);
        // Reclaim that has no patience, and reclaim that has.
        (0..2).for_each(|_| advise(space, pages.at, UNIT, libc::MADV_PAGEOUT));
        assert_eq!(resident(pages.at, UNIT), 1);
        let others = Pages::aligned(space, UNIT, HEAP);
        assert!(space.pin_add(ctx, others.addr(UNIT - 1), 10) == ebb::PinResult::Ok);
        let is_out = || (1..UNIT / 4).contains(&resident(others.at, UNIT));
        assert!((0..20).any(|_| {
            press(space, RAM);
            is_out()
        }));
        others.check_all();
        space.pin_end(ctx);
        pages.check_all();
        assert_sound(&pages);
        drop(pages);
        leave(space);
    });
}

#[test]
fn a_unit_that_was_used_as_a_whole_comes_back_by_one_fault() {
    alone(|| {
        let (space, is_on) = with_folios(Thp::Always);
        let pages = Pages::aligned(space, 4 * UNIT, HEAP);
        let out = || {
            advise(space, pages.at, pages.len(), libc::MADV_PAGEOUT);
            assert_eq!(resident(pages.at, pages.len()), 0);
        };
        // In an order that is no walk.
        let touch = |n: usize| (0..n).for_each(|i| pages.check(UNIT + (i * 167 + 50) % UNIT));
        let came = |n: usize| grown(&space.stats().thp_swpin, || touch(n));
        out();
        assert_eq!(came(400), 0, "each page may be the only one that is used");
        assert!(!is_on || resident(pages.at, pages.len()) < UNIT);
        out();
        assert_eq!(came(1), is_on as u64);
        // The kernel may have split it on its way.
        assert!(resident(pages.at, pages.len()) == UNIT || !is_on);
        out();
        // Nobody knows how much of it was used.
        assert_eq!(came(100), 0);
        out();
        assert_eq!(came(100), 0, "a hundred are not most of it");
        assert_sound(&pages);
        drop(pages);
        leave(space);
    });
}

#[test]
fn a_folio_that_the_kernel_has_split_leaves_no_doubt_of_later_use() {
    alone(|| {
        let (space, is_on) = with_folios(Thp::Always);
        let pages = Pages::aligned(space, 4 * UNIT, HEAP);
        let (all, to, bytes) = aligned(space, 4);
        let len = (4 * UNIT_BYTES) as u64;
        // What a mapping that moved has brought is taken for small pages unless it leaves very fast.
        let there = [pages.at as u64, len, len, 3, to as u64, 0];
        assert_eq!(space.mremap(ctx(space), there), to as i64);
        // SAFETY: inside the mapping; the advice changes no content.
        let split = unsafe { libc::madvise(to.add(UNIT_BYTES).cast(), UNIT_BYTES / 2, libc::MADV_COLD) };
        assert_eq!(split, 0);
        let out = || {
            advise(space, to, 4 * UNIT, libc::MADV_PAGEOUT);
            assert_eq!(resident(to, 4 * UNIT), 0);
        };
        let touch = |n: usize| (0..n).for_each(|i| check(to, UNIT + (i * 167 + 50) % UNIT, 1, HEAP));
        let came = |n: usize| grown(&space.stats().thp_swpin, || touch(n));
        out();
        assert_eq!(came(400), 0);
        out();
        assert_eq!(came(1), is_on as u64, "its pages had come in one by one");
        let back = [to as u64, len, len, 3, pages.at as u64, 0];
        assert_eq!(space.mremap(ctx(space), back), pages.at as i64);
        assert_sound(&pages);
        unmap(space, all, bytes);
        drop(pages);
        leave(space);
    });
}

#[test]
fn a_walk_makes_folios_of_units_that_a_fork_has_split() {
    alone(|| {
        let (space, is_on) = with_folios(Thp::Always);
        let mut pages = Pages::aligned(space, 8 * UNIT, HEAP);
        assert_eq!(wait(fork(space, || ())), 0);
        assert_eq!(mapped_folios(pages.at, 8 * UNIT_BYTES), 0);
        advise(space, pages.at, pages.len(), libc::MADV_PAGEOUT);
        let came = grown(&space.stats().thp_swpin, || (0..pages.len()).for_each(|page| pages.write(page, 2, HEAP)));
        assert!(came >= 4 || !is_on, "{came} of 8 came in whole");
        assert_sound(&pages);
        drop(pages);
        leave(space);
    });
}

#[test]
fn threads_store_a_folio_together() {
    alone(|| {
        let (space, is_on) = with_folios(Thp::Always);
        const THREADS: usize = 3;
        let n = RAM as usize / PAGE / 2;
        let mut all: Vec<Pages> = (0..THREADS).map(|_| Pages::aligned(space, n, HEAP)).collect();
        let helped = grown(&space.stats().thp_swpout_helped, || {
            // All of them are short of memory at once, again and again, and one forks meanwhile.
            std::thread::scope(|scope| {
                for (number, pages) in all.iter_mut().enumerate() {
                    scope.spawn(move || {
                        ctx(space);
                        for version in 2..6 {
                            (0..n).for_each(|page| pages.write(page, version, (page / 3) as u64 % 4));
                            if number == 0 && version == 3 {
                                let child = fork(space, || (0..n).for_each(|page| pages.check(page)));
                                assert_eq!(wait(child), 0);
                            }
                        }
                        leave(space);
                    });
                }
            });
        });
        assert!(helped > 0 || !is_on, "each stored its folios alone");
        all.iter().for_each(assert_sound);
        drop(all);
        leave(space);
    });
}

#[test]
fn what_is_dropped_of_a_folio_gives_its_memory_back() {
    alone(|| {
        let (space, is_on) = with_folios(Thp::Always);
        let mut pages = Pages::aligned(space, 4 * UNIT, HEAP);
        let split = grown(&space.stats().thp_split_page, || {
            for page in (0..4 * UNIT).filter(|page| page / 16 % 2 == 0) {
                // SAFETY: inside the mapping.
                advise(space, unsafe { pages.at.add(page * PAGE) }, 1, libc::MADV_DONTNEED);
                pages.versions[page] = (0, 0);
            }
        });
        assert_eq!(split, if is_on { 4 } else { 0 });
        assert_eq!(mapped_folios(pages.at, 4 * UNIT_BYTES), 0);
        pages.check_all();
        // A hole in a mapping, and another mapping in the hole.
        let mut pages = Pages::aligned(space, 4 * UNIT, HEAP);
        // SAFETY: inside the mapping.
        let hole = unsafe { pages.at.add((UNIT + 100) * PAGE) };
        unmap(space, hole, UNIT_BYTES);
        assert_eq!(
            crate::harness::map_at(space, hole as usize, UNIT, libc::PROT_READ | libc::PROT_WRITE),
            hole as usize
        );
        (UNIT + 100..2 * UNIT + 100).for_each(|page| pages.versions[page] = (0, 0));
        pages.check_all();
        assert_eq!(mapped_folios(pages.at, 4 * UNIT_BYTES), if is_on { 2 } else { 0 });
        advise(space, pages.at, 4 * UNIT, libc::MADV_PAGEOUT);
        pages.check_all();
        assert_sound(&pages);
        // All of it at once needs no splitting.
        let split = grown(&space.stats().thp_split_page, || {
            let pages = Pages::aligned(space, 2 * UNIT, HEAP);
            advise(space, pages.at, 2 * UNIT, libc::MADV_DONTNEED);
        });
        assert_eq!(split, 0);
        drop(pages);
        leave(space);
    });
}

#[test]
fn protection_of_a_part_and_another_place_lose_nothing() {
    alone(|| {
        let (space, _) = with_folios(Thp::Always);
        let mut pages = Pages::aligned(space, 6 * UNIT, HEAP);
        let part = pages.at as usize + (UNIT + 17) * PAGE;
        for prot in [libc::PROT_READ, libc::PROT_NONE] {
            crate::harness::protect(space, part, UNIT, prot);
            advise(space, pages.at, 6 * UNIT, libc::MADV_PAGEOUT);
        }
        crate::harness::protect(space, part, UNIT, libc::PROT_READ | libc::PROT_WRITE);
        pages.check_all();
        press(space, RAM);
        pages.check_all();
        // To a place that is no multiple of a folio away, and back to one that is.
        let from = Pages::aligned(space, 4 * UNIT, HEAP);
        for (odd, evicted) in [(33, false), (0, true), (12, true), (0, false)] {
            let place = map(space, 6 * UNIT_BYTES);
            // SAFETY: inside the mapping.
            let to = unsafe { place.add(place.align_offset(UNIT_BYTES) + odd * PAGE) };
            let args = [from.at as u64, (4 * UNIT_BYTES) as u64, (4 * UNIT_BYTES) as u64, 3, to as u64, 0];
            assert_eq!(space.mremap(ctx(space), args), to as i64);
            if evicted {
                advise(space, to, 4 * UNIT, libc::MADV_PAGEOUT);
            }
            (0..4 * UNIT).for_each(|page| check(to, page, 1, HEAP));
            let back = [to as u64, (4 * UNIT_BYTES) as u64, (4 * UNIT_BYTES) as u64, 3, from.at as u64, 0];
            assert_eq!(space.mremap(ctx(space), back), from.at as i64);
            advise(space, from.at, 4 * UNIT, libc::MADV_PAGEOUT);
            from.check_all();
            unmap(space, place, 6 * UNIT_BYTES);
        }
        drop(from);
        for page in 0..pages.len() {
            pages.write(page, 3, 2);
        }
        assert_sound(&pages);
        drop(pages);
        leave(space);
    });
}

#[test]
fn a_child_has_its_own_pages_of_what_was_a_folio() {
    alone(|| {
        let (space, is_on) = with_folios(Thp::Always);
        let mut pages = Pages::aligned(space, 8 * UNIT, HEAP);
        // SAFETY: inside the mapping.
        advise(space, unsafe { pages.at.add(6 * UNIT_BYTES) }, 2 * UNIT, libc::MADV_PAGEOUT);
        let split = grown(&space.stats().thp_split_page, || {
            let child = fork(space, || {
                (0..pages.len()).step_by(3).for_each(|page| fill(pages.at, page, 8, 2));
                press(space, RAM / 2);
                (0..pages.len()).for_each(|page| match page % 3 {
                    0 => check(pages.at, page, 8, 2),
                    _ => pages.check(page),
                });
            });
            (0..pages.len()).step_by(5).for_each(|page| pages.write(page, 9, 2));
            assert_eq!(wait(child), 0);
        });
        assert!(split >= if is_on { 6 } else { 0 });
        pages.check_all();
        press(space, RAM);
        pages.check_all();
        assert_sound(&pages);
        drop(pages);
        leave(space);
    });
}
