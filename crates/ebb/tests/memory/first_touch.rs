//! First touches that are no walk: what comes in around them, and where nothing but the page itself may.

use crate::harness::alone::{COMPRESSIBLE, PAGE, Pages, RAM_PAGES, alone, assert_sound, space_on};
use crate::harness::{Random, check, ctx, fill, leave, map};
use ebb::{GroupId, GroupLimits, Space};
use std::sync::atomic::Ordering::Relaxed;

/// Pages of a unit.
const UNIT: usize = 512;
/// Pages so far apart are no walk, in whatever order.
const APART: usize = 4;

/// Pages that came in by a first touch, and faults that brought them, while `f` runs.
fn touched(space: &'static Space, f: impl FnOnce()) -> (u64, u64) {
    let stats = space.stats();
    let now = || (stats.first_touch_pages.load(Relaxed), stats.faults_first_touch.load(Relaxed));
    let before = now();
    f();
    let after = now();
    (after.0 - before.0, after.1 - before.1)
}

/// The numbers below `n` in some order.
fn shuffled(n: usize) -> Vec<usize> {
    let (mut all, mut random) = ((0..n).collect::<Vec<_>>(), Random(11));
    (1..n).for_each(|i| all.swap(i, random.below(i + 1)));
    all
}

/// Whole units that nobody has touched.
fn fresh(space: &'static Space, units: usize) -> *mut u8 {
    let at = map(space, (units + 1) * UNIT * PAGE);
    // SAFETY: within the mapping.
    unsafe { at.add(at.align_offset(UNIT * PAGE)) }
}

fn read(at: *mut u8, page: usize) -> u64 {
    // SAFETY: the caller owns the page.
    unsafe { at.add(page * PAGE).cast::<u64>().read_volatile() }
}

#[test]
fn what_is_used_at_random_all_over_comes_in_by_blocks() {
    alone(|| {
        const UNITS: usize = 4;
        let space = space_on(&[], true);
        let at = fresh(space, UNITS);
        let order = shuffled(UNITS * UNIT);
        // Each page once, and none over another's content.
        let (pages, faults) = touched(space, || order.iter().for_each(|&page| fill(at, page, 1, COMPRESSIBLE)));
        assert_eq!(pages as usize, UNITS * UNIT);
        assert!(faults < pages / 3, "{faults} faults");
        order.iter().for_each(|&page| check(at, page, 1, COMPRESSIBLE));
        space.validate().expect("consistent");
    });
}

#[test]
fn what_is_used_here_and_there_stays_small() {
    alone(|| {
        const UNITS: usize = 8;
        const A_UNIT: usize = 12;
        let space = space_on(&[], true);
        let at = fresh(space, UNITS);
        let order = shuffled(UNITS * A_UNIT);
        let (pages, _) = touched(space, || order.iter().for_each(|&i| assert_eq!(read(at, i * (UNIT / A_UNIT)), 0)));
        assert_eq!(pages as usize, UNITS * A_UNIT);
    });
}

#[test]
fn what_is_used_in_one_of_eight_grows_three_times() {
    alone(|| {
        const UNITS: usize = 4;
        let space = space_on(&[], true);
        let at = fresh(space, UNITS);
        let order = shuffled(UNITS * UNIT / 8);
        let (pages, _) = touched(space, || order.iter().for_each(|&i| assert_eq!(read(at, i * 8), 0)));
        assert!(pages as usize <= 3 * order.len(), "{pages} pages for {}", order.len());
    });
}

#[test]
fn threads_that_touch_the_same_blocks_get_their_own_pages() {
    alone(|| {
        const UNITS: usize = 2;
        const THREADS: usize = 4;
        let space = space_on(&[], true);
        let at = fresh(space, UNITS) as usize;
        let order = shuffled(UNITS * UNIT);
        for round in 0..40 {
            let work = |thread: usize| {
                ctx(space);
                let (at, own) = (at as *mut u8, order.iter().filter(|page| *page % THREADS == thread));
                own.clone().for_each(|&page| fill(at, page, round, COMPRESSIBLE));
                own.for_each(|&page| check(at, page, round, COMPRESSIBLE));
                leave(space);
            };
            let work = &work;
            let (pages, _) = touched(space, || {
                std::thread::scope(|scope| (0..THREADS).for_each(|thread| drop(scope.spawn(move || work(thread)))));
            });
            assert_eq!(pages as usize, UNITS * UNIT);
            space.validate().expect("consistent");
            let args = [at as u64, (UNITS * UNIT * PAGE) as u64, libc::MADV_DONTNEED as u64, 0, 0, 0];
            assert_eq!(space.madvise(ctx(space), args), 0);
        }
    });
}

#[test]
fn where_room_is_short_a_page_comes_alone() {
    alone(|| {
        const UNITS: usize = 2;
        let space = space_on(&[], true);
        let full = Pages::new(space, RAM_PAGES - RAM_PAGES / 16, COMPRESSIBLE);
        let at = fresh(space, UNITS);
        let order = shuffled(UNITS * UNIT / APART);
        let (pages, faults) = touched(space, || order.iter().for_each(|&i| fill(at, i * APART, 1, COMPRESSIBLE)));
        assert_eq!((pages as usize, faults as usize), (order.len(), order.len()));
        order.iter().for_each(|&i| check(at, i * APART, 1, COMPRESSIBLE));
        assert_sound(&full);
    });
}

#[test]
fn a_block_ends_where_its_region_does() {
    alone(|| {
        let space = space_on(&[], true);
        let at = fresh(space, 1);
        // Neither is at the edge of a block.
        let (first, end) = (203, 397);
        for (from, to) in [(0, first), (end, UNIT)] {
            // SAFETY: within the mapping.
            let addr = unsafe { at.add(from * PAGE) } as u64;
            let args = [addr, ((to - from) * PAGE) as u64, libc::PROT_NONE as u64, 0, 0, 0];
            assert_eq!(space.mprotect(ctx(space), libc::SYS_mprotect as u32, args), 0);
        }
        let order = shuffled(end - first);
        let (pages, faults) = touched(space, || order.iter().for_each(|&i| fill(at, first + i, 1, COMPRESSIBLE)));
        assert_eq!(pages as usize, end - first);
        assert!(faults < pages / 2, "{faults} faults");
        (first..end).for_each(|page| check(at, page, 1, COMPRESSIBLE));
        space.validate().expect("consistent");
    });
}

#[test]
fn a_group_gets_no_more_than_it_touches() {
    alone(|| {
        let space = space_on(&[], true);
        let limits = GroupLimits { ram_max_pages: Some(400), ram_high_pages: None, swap_max_pages: None };
        let group = space.create_group(ctx(space), GroupId::ROOT, &limits).expect("a group");
        let at = fresh(space, 1);
        space.move_to_group(ctx(space), at as usize, UNIT * PAGE, group).expect("moved");
        let order = shuffled(UNIT / APART);
        let (pages, _) = touched(space, || order.iter().for_each(|&i| fill(at, i * APART, 1, COMPRESSIBLE)));
        assert_eq!(pages as usize, order.len());
        assert_eq!(space.group_info(ctx(space), group).expect("the group").ram.current_pages, order.len() as u64);
    });
}
