//! Snapshots: two views of one range share what is swapped out, and neither sees what the other writes. `EBB_FORCE` forces
//! fallbacks.

use crate::harness::alone::{
    COMPRESSIBLE, PAGE, Pages, RAM_PAGES, RANDOM, StopsAtEnd, alone, assert_sound, fork, mixed, rewrite, space_on, wait,
};
use crate::harness::{Random, ctx, leave, map};
use ebb::{PinResult, SnapshotError, Space, SwapSpec};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

const ROOMY: SwapSpec<'static> = SwapSpec { dir: c"/var/tmp", bytes: 1 << 30, priority: None, ..SwapSpec::DEFAULT };

fn try_snapshot(of: &Pages) -> Result<Pages, SnapshotError> {
    let at = of.space.snapshot(ctx(of.space), of.at as usize, of.len() * PAGE)?;
    Ok(Pages { space: of.space, at: at as *mut u8, versions: of.versions.clone() })
}

fn snapshot(of: &Pages) -> Pages {
    try_snapshot(of).expect("there is room")
}

/// Pages stored anywhere so far.
fn stored(space: &Space) -> u64 {
    let stats = space.stats();
    [&stats.out_pool_pages, &stats.out_same_pages, &stats.out_file_pages].iter().map(|c| c.load(Relaxed)).sum()
}

#[test]
fn neither_view_sees_what_the_other_writes() {
    alone(|| {
        let space = space_on(&[ROOMY], true);
        let mut pages = mixed(space);
        let mut view = snapshot(&pages);
        assert_sound(&view);
        assert_sound(&pages);
        for seed in 1..4 {
            rewrite(&mut pages, seed);
            rewrite(&mut view, 100 + seed);
            assert_sound(&view);
            assert_sound(&pages);
        }
    });
}

#[test]
fn what_is_swapped_out_is_shared_and_stored_once() {
    alone(|| {
        let space = space_on(&[ROOMY], true);
        let pages = Pages::new(space, 4 * RAM_PAGES, COMPRESSIBLE);
        let before = stored(space);
        let view = snapshot(&pages);
        // What was in memory, which the budget bounds, and nothing else.
        let once = stored(space) - before;
        assert!(once <= RAM_PAGES as u64 + 64, "{once} pages");
        let second = snapshot(&pages);
        let again = stored(space) - before - once;
        assert!(again <= RAM_PAGES as u64 / 4, "{again} pages");
        for other in [&view, &second, &pages] {
            assert_sound(other);
        }
    });
}

#[test]
fn views_go_in_any_order_and_the_last_takes_the_content_along() {
    alone(|| {
        let space = space_on(&[ROOMY], true);
        for order in 0..6 {
            let mut all = vec![mixed(space)];
            all.push(snapshot(&all[0]));
            rewrite(&mut all[order % 2], 7);
            let of_view = snapshot(&all[1]);
            all.push(of_view);
            rewrite(&mut all[2], 9);
            all.iter().for_each(assert_sound);
            drop(all.remove(order % 3));
            all.iter().for_each(assert_sound);
            drop(all.remove(order / 3));
            all.iter().for_each(assert_sound);
            drop(all);
            assert_eq!(space.validate(), Ok(()));
            let mut used = 0;
            space.devices(|device| used += device.used_bytes);
            assert_eq!(used, 0, "order {order}");
        }
    });
}

#[test]
fn a_page_has_a_limit_of_views() {
    alone(|| {
        let space = space_on(&[ROOMY], true);
        let pages = Pages::new(space, RAM_PAGES / 4, COMPRESSIBLE);
        let mut views = Vec::new();
        let error = loop {
            match try_snapshot(&pages) {
                Ok(view) => views.push(view),
                Err(error) => break error,
            }
        };
        assert_eq!((error, views.len()), (SnapshotError::TooMany, 28));
        views.iter().for_each(assert_sound);
        views.truncate(20);
        views.push(snapshot(&pages));
        views.iter().for_each(assert_sound);
        assert_sound(&pages);
    });
}

#[test]
fn without_room_there_is_no_snapshot_and_nothing_changes() {
    alone(|| {
        let space = space_on(&[], true);
        let mut pages = Pages::new(space, RAM_PAGES * 3 / 4, RANDOM);
        assert_eq!(try_snapshot(&pages).err(), Some(SnapshotError::NoRoom));
        assert_sound(&pages);
        rewrite(&mut pages, 2);
        assert_sound(&pages);
        assert_eq!(space.swapon(ctx(space), &ROOMY, &mut || true), Ok(()));
        let view = snapshot(&pages);
        rewrite(&mut pages, 3);
        assert_sound(&view);
        assert_sound(&pages);
    });
}

#[test]
fn what_is_no_managed_memory_is_refused() {
    alone(|| {
        let space = space_on(&[ROOMY], true);
        let at = map(space, 8 * PAGE) as usize;
        let range = Err(SnapshotError::Range);
        assert_eq!(space.snapshot(ctx(space), at + 1, PAGE), range);
        assert_eq!(space.snapshot(ctx(space), at, 0), range);
        assert_eq!(space.snapshot(ctx(space), at, 1 << 40), range);
        assert_eq!(space.snapshot(ctx(space), usize::MAX & !4095, 8192), range);
        assert_eq!(space.snapshot(ctx(space), 4096, 4096), range);
        assert!(space.snapshot(ctx(space), at, 8 * PAGE).is_ok());
    });
}

/// Writers count up through pages in order, so at each moment the counters fall from the first page to the last, by one at
/// most. A view must show such a moment.
#[test]
fn a_snapshot_is_one_moment_beside_threads_that_write() {
    alone(|| {
        const THREADS: usize = 3;
        const EACH: usize = 24;
        let space = space_on(&[ROOMY], true);
        let filler = Pages::new(space, 2 * RAM_PAGES, RANDOM);
        let at = map(space, THREADS * EACH * PAGE) as usize;
        let counter = |base: usize, page: usize| (base + page * PAGE + 64) as *const AtomicU64;
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let stop = &stop;
                scope.spawn(move || {
                    ctx(space);
                    let mut value = 0;
                    while !stop.load(Relaxed) {
                        value += 1;
                        for page in thread * EACH..(thread + 1) * EACH {
                            // SAFETY: managed memory of this test.
                            unsafe { &*counter(at, page) }.store(value, std::sync::atomic::Ordering::Release);
                        }
                    }
                    leave(space);
                });
            }
            let _stop = StopsAtEnd(&stop);
            let mut random = Random(5);
            for round in 0..400 {
                let view = space.snapshot(ctx(space), at, THREADS * EACH * PAGE).expect("there is room");
                // SAFETY: managed memory of this test.
                let read = |page: usize| unsafe { &*counter(view, page) }.load(Relaxed);
                for thread in 0..THREADS {
                    let (first, last) = (read(thread * EACH), read(thread * EACH + EACH - 1));
                    assert!(first == last || first == last + 1, "round {round}: {first} .. {last}");
                    let mut before = first;
                    for page in thread * EACH..(thread + 1) * EACH {
                        let value = read(page);
                        assert!(value == before || (value + 1 == before && value == last), "round {round} page {page}");
                        before = value;
                    }
                }
                filler.check(random.below(filler.len()));
                assert_eq!(space.munmap(ctx(space), [view as u64, (THREADS * EACH * PAGE) as u64, 0, 0, 0, 0]), 0);
            }
        });
        assert_sound(&filler);
    });
}

#[test]
fn views_and_forks_go_together() {
    alone(|| {
        let space = space_on(&[ROOMY], true);
        let mut pages = mixed(space);
        let mut view = snapshot(&pages);
        let child = fork(space, || {
            let own = |of: &Pages| Pages { space, at: of.at, versions: of.versions.clone() };
            let (mut pages, mut view) = (own(&pages), own(&view));
            rewrite(&mut pages, 5);
            let third = snapshot(&view);
            rewrite(&mut view, 6);
            [&pages, &view, &third].into_iter().for_each(assert_sound);
            std::mem::forget((pages, view));
        });
        rewrite(&mut view, 7);
        rewrite(&mut pages, 8);
        assert_eq!(wait(child), 0);
        assert_sound(&pages);
        assert_sound(&view);
    });
}

#[test]
fn a_full_device_takes_nothing_of_a_snapshot_away() {
    alone(|| {
        // A device that holds half of what is in memory: it looks for slots whose pages are there too.
        let space = space_on(&[SwapSpec { bytes: 4 << 20, ..ROOMY }], true);
        let mut pages = Pages::new(space, 2000, RANDOM);
        for round in 0..4 {
            match try_snapshot(&pages) {
                Ok(view) => assert_sound(&view),
                Err(error) => assert_eq!(error, SnapshotError::NoRoom),
            }
            assert_sound(&pages);
            rewrite(&mut pages, round);
        }
    });
}

/// A page that a system call uses cannot be frozen: what threads write to meanwhile may be there in part, but nothing that
/// nobody writes changes.
#[test]
fn a_page_in_use_by_the_kernel_is_copied_whole() {
    alone(|| {
        let space = space_on(&[ROOMY], true);
        let at = map(space, 4 * PAGE) as usize;
        // SAFETY: managed memory of this test, and of its view.
        let word = |base: usize, i: usize| unsafe { &*((base + i * 8) as *const AtomicU64) };
        let value = |i: u64| 0x1234_5678_9abc_def1_u64.wrapping_mul(i % 16 + 1);
        (256..512).for_each(|i| word(at, i).store(value(i as u64), Relaxed));
        let (stop, go) = (AtomicBool::new(false), AtomicBool::new(false));
        std::thread::scope(|scope| {
            let _stop = StopsAtEnd(&stop);
            scope.spawn(|| {
                let ctx = ctx(space);
                space.pin_begin(ctx, 1);
                assert_eq!(space.pin_add(ctx, at, 64), PinResult::Ok);
                go.store(true, Relaxed);
                let mut n = 0;
                while !stop.load(Relaxed) {
                    n += 1;
                    (0..256).for_each(|i| word(at, i).store(value(i as u64 + n), Relaxed));
                }
                space.pin_end(ctx);
                leave(space);
            });
            while !go.load(Relaxed) {
                std::hint::spin_loop();
            }
            for round in 0..1500 {
                let view = space.snapshot(ctx(space), at, 4 * PAGE).expect("there is room");
                let is_right = |i: &usize| word(view, *i).load(Relaxed) == value(*i as u64);
                assert_eq!((256..512).find(|i| !is_right(i)), None, "round {round}");
                assert_eq!(space.munmap(ctx(space), [view as u64, (4 * PAGE) as u64, 0, 0, 0, 0]), 0);
            }
        });
    });
}
