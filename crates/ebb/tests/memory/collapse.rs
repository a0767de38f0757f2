//! Large folios that are made of small pages.

use crate::harness::alone::{PAGE, Pages, StopsAtEnd, alone, assert_sound};
use crate::harness::folios::{HEAP, RAM, UNIT, UNIT_BYTES, advise, mapped_folios, with_folios};
use crate::harness::{ctx, leave, press, unmap};
use ebb::Space;
use ebb::stats::Thp;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// `MADV_COLLAPSE`
const COLLAPSE: i32 = 25;

fn collapse(space: &'static Space, at: usize, pages: usize) -> i64 {
    space.madvise(ctx(space), [at as u64, (pages * PAGE) as u64, COLLAPSE as u64, 0, 0, 0])
}

/// Small pages, and then the policy `thp`. None where there are no folios.
fn small(thp: Thp, units: usize) -> Option<(&'static Space, Pages)> {
    let (space, _) = with_folios(Thp::Never);
    let pages = Pages::aligned(space, units * UNIT, HEAP);
    let (space, is_on) = with_folios(thp);
    if is_on && mapped_folios(pages.at, units * UNIT_BYTES) == 0 {
        return Some((space, pages));
    }
    drop(pages);
    leave(space);
    None
}

#[test]
fn pages_become_a_folio_where_the_program_asks_for_it() {
    alone(|| {
        let Some((space, mut pages)) = small(Thp::Advise, 4) else { return };
        // SAFETY: inside the mapping.
        let from = |page: usize| unsafe { pages.at.add(page * PAGE) };
        // One is partly out, one has pages that nobody has touched, and one is out.
        advise(space, from(UNIT), UNIT / 2, libc::MADV_PAGEOUT);
        advise(space, from(2 * UNIT + 7), 100, libc::MADV_DONTNEED);
        advise(space, from(3 * UNIT), UNIT, libc::MADV_PAGEOUT);
        assert_eq!(collapse(space, pages.addr(1), 3 * UNIT), 0);
        assert_eq!(mapped_folios(pages.at, 4 * UNIT_BYTES), 2, "those that are in the range as a whole");
        let made = space.stats().thp_collapse_alloc.load(Relaxed);
        for _ in 0..2 {
            assert_eq!(collapse(space, pages.addr(0), 4 * UNIT), 0);
            assert_eq!(mapped_folios(pages.at, 4 * UNIT_BYTES), 4);
        }
        assert!(space.stats().thp_collapse_alloc.load(Relaxed) <= made + 2, "what is one is left alone");
        (2 * UNIT + 7..2 * UNIT + 107).for_each(|page| pages.versions[page] = (0, 0));
        pages.check_all();
        assert_sound(&pages);
        (0..pages.len()).step_by(3).for_each(|page| pages.write(page, 2, 2));
        advise(space, pages.at, 4 * UNIT, libc::MADV_PAGEOUT);
        assert_sound(&pages);
        drop(pages);
        leave(space);
    });
}

#[test]
fn what_cannot_be_a_folio_is_said_and_stays_as_it_is() {
    alone(|| {
        let Some((space, mut pages)) = small(Thp::Always, 4) else { return };
        let [einval, eagain] = [libc::EINVAL, libc::EAGAIN].map(|errno| -i64::from(errno));
        assert_eq!(collapse(space, pages.addr(1), 2), einval, "no unit is in the range");
        assert_eq!(collapse(space, pages.addr(0), 0), 0);
        advise(space, pages.at, UNIT, libc::MADV_NOHUGEPAGE);
        assert_eq!(collapse(space, pages.addr(0), UNIT), einval, "the program wants none there");
        space.set_thp(Thp::Never);
        assert_eq!(collapse(space, pages.addr(UNIT), UNIT), einval, "nobody has any");
        space.set_thp(Thp::Always);
        // A part is protected in another way.
        crate::harness::protect(space, pages.addr(UNIT + 5), 1, libc::PROT_READ);
        assert_eq!(collapse(space, pages.addr(UNIT), UNIT), einval);
        crate::harness::protect(space, pages.addr(UNIT + 5), 1, libc::PROT_READ | libc::PROT_WRITE);
        // A call uses a page.
        let ctx = ctx(space);
        space.pin_begin(ctx, 0);
        assert!(space.pin_add(ctx, pages.addr(2 * UNIT + 9), 10) == ebb::PinResult::Ok);
        assert_eq!(collapse(space, pages.addr(2 * UNIT), UNIT), eagain);
        space.pin_end(ctx);
        // A part of it is no longer mapped.
        // SAFETY: inside the mapping.
        unmap(space, unsafe { pages.at.add((3 * UNIT + 8) * PAGE) }, PAGE);
        assert_eq!(collapse(space, pages.addr(3 * UNIT), UNIT), einval);
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        assert_eq!(crate::harness::map_at(space, pages.addr(3 * UNIT + 8), 1, prot), pages.addr(3 * UNIT + 8));
        pages.write(3 * UNIT + 8, 1, HEAP);
        assert_eq!(collapse(space, pages.addr(UNIT), 3 * UNIT), 0);
        assert_eq!(mapped_folios(pages.at, 4 * UNIT_BYTES), 3);
        assert_sound(&pages);
        drop(pages);
        leave(space);
    });
}

/// Threads write to pages while these become a folio, again and again: each counts what it wrote.
#[test]
fn no_write_beside_a_collapse_is_lost() {
    alone(|| {
        let Some((space, mut pages)) = small(Thp::Advise, 2) else { return };
        let stop = AtomicBool::new(false);
        let at = |page: usize| pages.addr(page);
        let counters: Vec<usize> = (0..2 * UNIT).step_by(17).map(at).collect();
        // SAFETY: inside the mapping, and aligned.
        let counter = |at: usize| unsafe { &*(at as *const AtomicU64) };
        counters.iter().for_each(|at| counter(*at).store(0, Relaxed));
        let written: Vec<AtomicU64> = counters.iter().map(|_| AtomicU64::new(0)).collect();
        let base = pages.at as usize;
        let mut made = 0;
        std::thread::scope(|scope| {
            let _stops = StopsAtEnd(&stop);
            let (counters, written, stop) = (&counters, &written, &stop);
            for thread in 0..2 {
                scope.spawn(move || {
                    ctx(space);
                    for i in (thread..counters.len()).step_by(2).cycle() {
                        if stop.load(Relaxed) {
                            break;
                        }
                        counter(counters[i]).fetch_add(1, Relaxed);
                        written[i].fetch_add(1, Relaxed);
                    }
                    leave(space);
                });
            }
            for round in 0..300 {
                made += i32::from(collapse(space, base, 2 * UNIT) == 0);
                // To drop a page that nobody writes to makes small pages again.
                advise(space, (base + (round % 16 + 1) * PAGE) as *mut u8, 1, libc::MADV_DONTNEED);
                advise(space, (base + (UNIT + round % 4 + 1) * PAGE) as *mut u8, 1, libc::MADV_DONTNEED);
            }
        });
        assert!(made > 0, "nothing became a folio");
        for (at, written) in counters.iter().zip(&written) {
            assert_eq!(counter(*at).load(Relaxed), written.load(Relaxed), "the counter at {at:x}");
        }
        // Page 17 of the first unit is the first one with a counter behind those that were dropped.
        for page in 0..2 * UNIT {
            let is_dropped = (1..17).contains(&page) || (UNIT + 1..UNIT + 5).contains(&page);
            if is_dropped || counters.contains(&pages.addr(page)) {
                pages.write(page, 2, HEAP);
            }
        }
        assert_sound(&pages);
        drop(pages);
        leave(space);
    });
}

#[test]
fn a_hot_unit_becomes_a_folio_by_itself() {
    alone(|| {
        let Some((space, hot)) = small(Thp::Always, 2) else { return };
        if crate::harness::force().no_background {
            return leave(space);
        }
        let mut others = Pages::aligned(space, RAM as usize / PAGE, HEAP);
        let mut is_made = |round: u64| {
            // Used all the time, while there is not enough room for all.
            (0..32).for_each(|_| (0..hot.len()).step_by(3).for_each(|page| hot.check(page)));
            (0..others.len())
                .filter(|page| page % 64 == round as usize % 64)
                .for_each(|page| others.write(page, round, HEAP));
            (0..hot.len()).for_each(|page| hot.check(page));
            press(space, RAM / 2);
            mapped_folios(hot.at, 2 * UNIT_BYTES) > 0
        };
        assert!((2..200).any(&mut is_made), "a unit in use is still small pages");
        hot.check_all();
        assert_sound(&hot);
        drop((hot, others));
        leave(space);
    });
}
