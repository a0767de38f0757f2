//! Compressed objects that share slots of a file.

use crate::harness::alone::{
    COMPRESSIBLE, Pages, RAM, RAM_PAGES, RANDOM, StopsAtEnd, alone, assert_sound, fork, space_on, wait,
};
use crate::harness::{Random, ctx, leave, press};
use ebb::{Space, SwapSpec};
use std::ffi::CStr;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

const A: &CStr = c"/var/tmp";
const B: &CStr = c"/tmp";
/// Kinds of content: two that compress, one better than the other, and one that does not.
const KINDS: [u64; 4] = [COMPRESSIBLE, 5, COMPRESSIBLE, RANDOM];
/// So many budgets of pages do not fit into the pool.
const MANY: usize = 8 * RAM_PAGES;

fn space(mib: u64) -> &'static Space {
    space_on(&[SwapSpec { dir: A, bytes: mib << 20, priority: None, ..SwapSpec::DEFAULT }], true)
}

/// Pages of which most are in the file, several in a slot.
fn packed(space: &'static Space) -> Pages {
    let mut pages = Pages::new(space, MANY, COMPRESSIBLE);
    (0..MANY).for_each(|page| pages.write(page, 2, KINDS[page % KINDS.len()]));
    let written = space.stats().writeback_pages.load(Relaxed);
    assert!(written > MANY as u64 / 4, "{written} of {MANY} pages were written back");
    pages
}

/// Bytes that files have of content.
fn in_files(space: &'static Space) -> u64 {
    let mut bytes = 0;
    assert!(space.devices(|device| bytes += device.used_bytes));
    bytes
}

#[test]
fn a_file_takes_little_more_than_what_is_compressed() {
    alone(|| {
        let space = space(1 << 10);
        let pages = packed(space);
        let [objects, file] =
            [&space.stats().file_object_bytes, &space.stats().file_bytes].map(|count| count.load(Relaxed));
        assert!(file >= objects && file * 100 < objects * 115, "{file} bytes for {objects}");
        assert_sound(&pages);
    });
}

#[test]
fn a_slot_is_free_once_none_of_its_objects_is_needed() {
    alone(|| {
        let space = space(1 << 10);
        let mut pages = packed(space);
        let before = in_files(space);
        // Half of the objects go, but nearly each slot has another one.
        (0..MANY).step_by(2).for_each(|page| pages.write(page, 3, 1));
        assert_sound(&pages);
        let half = in_files(space);
        (0..MANY).for_each(|page| pages.write(page, 4, 1));
        press(space, RAM);
        assert_sound(&pages);
        let none = in_files(space);
        assert!(half < before && half > before / 4 && none < before / 16, "{before}, {half}, {none}");
        drop(pages);
        assert_eq!((in_files(space), space.validate()), (0, Ok(())));
    });
}

#[test]
fn parts_of_slots_are_used_and_freed_by_many_threads() {
    alone(|| {
        let space = space(1 << 10);
        // Threads have neighbouring pages, which share slots.
        let all = std::sync::Mutex::new(packed(space));
        let addr = all.lock().expect("nobody").at as usize;
        std::thread::scope(|scope| {
            for thread in 0..4u64 {
                let all = &all;
                scope.spawn(move || {
                    ctx(space);
                    let mut random = Random(thread * 7919 + 3);
                    let mut mine = vec![(2, None); MANY / 4];
                    for n in 0..MANY as u64 / 2 {
                        let i = random.below(MANY / 4);
                        let page = i * 4 + thread as usize;
                        let (version, kind) = mine[i];
                        let kind = kind.unwrap_or(KINDS[page % KINDS.len()]);
                        crate::harness::check(addr as *mut u8, page, version, kind);
                        if n % 2 == 0 {
                            let kind = KINDS[random.below(KINDS.len())];
                            crate::harness::fill(addr as *mut u8, page, 10 + n, kind);
                            mine[i] = (10 + n, Some(kind));
                        }
                    }
                    leave(space);
                    let mut all = all.lock().expect("nobody failed");
                    for (i, (version, kind)) in mine.into_iter().enumerate() {
                        let page = i * 4 + thread as usize;
                        all.versions[page] = (version, kind.unwrap_or(KINDS[page % KINDS.len()]));
                    }
                });
            }
        });
        assert_sound(&all.into_inner().expect("nobody failed"));
    });
}

#[test]
fn both_sides_of_a_fork_have_what_they_share_in_a_slot() {
    alone(|| {
        let space = space(1 << 10);
        let mut pages = packed(space);
        let child = fork(space, || {
            // The parent gives up its objects meanwhile, and then goes on without them.
            (0..MANY).step_by(3).for_each(|page| pages.check(page));
            let grandchild = fork(space, || {
                pages.check_all();
                assert_eq!(space.validate(), Ok(()));
            });
            (0..MANY).step_by(2).for_each(|page| pages.write(page, 9, KINDS[page % 3]));
            assert_sound(&pages);
            assert_eq!(wait(grandchild), 0);
        });
        (0..MANY).for_each(|page| pages.write(page, 5, KINDS[(page + 1) % KINDS.len()]));
        assert_sound(&pages);
        assert_eq!(wait(child), 0);
        (0..MANY).for_each(|page| pages.write(page, 6, COMPRESSIBLE));
        assert_sound(&pages);
    });
}

#[test]
fn swapoff_takes_objects_out_of_their_slots_while_they_are_used() {
    alone(|| {
        let space = space(1 << 10);
        let mut pages = packed(space);
        let spec = SwapSpec { dir: B, bytes: 1 << 30, priority: None, ..SwapSpec::DEFAULT };
        assert_eq!(space.swapon(ctx(space), &spec, &mut || true), Ok(()));
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let _stop = StopsAtEnd(&is_over);
            let (pages, is_over) = (&mut pages, &is_over);
            scope.spawn(move || {
                ctx(space);
                let mut random = Random(11);
                while !is_over.load(Relaxed) {
                    let page = random.below(MANY);
                    pages.check(page);
                    pages.write(page, 3 + random.below(1000) as u64, KINDS[random.below(3)]);
                }
                leave(space);
            });
            assert_eq!(space.swapoff(ctx(space), A, &mut |_| true), Ok(()));
        });
        assert_sound(&pages);
        assert!(in_files(space) > 0);
    });
}

#[test]
fn clusters_with_several_objects_in_a_slot_are_cleaned() {
    alone(|| {
        let space = space(90);
        let mut pages = packed(space);
        let mut random = Random(5);
        // Gaps everywhere, and writes that want runs.
        for n in 0..4 * MANY as u64 {
            let page = random.below(MANY);
            pages.check(page);
            pages.write(page, 10 + n, KINDS[random.below(KINDS.len())]);
            if n > MANY as u64 && space.stats().cleaned_pages.load(Relaxed) > 2000 {
                break;
            }
        }
        let cleaned = space.stats().cleaned_pages.load(Relaxed);
        assert!(cleaned > 2000, "{cleaned} pages were moved");
        assert_sound(&pages);
    });
}

#[test]
fn a_full_file_gives_up_copies_of_what_is_in_memory() {
    alone(|| {
        // Just enough for what does not fit into memory and pool.
        let space = space(64);
        let mut pages = packed(space);
        for version in 3..5 {
            // Walks that read leave clean pages, whose copies stay in the file.
            (0..2).for_each(|_| pages.check_all());
            (0..MANY).step_by(3).for_each(|page| pages.write(page, version, KINDS[page % KINDS.len()]));
        }
        let reclaimed = space.stats().cache_only_reclaimed.load(Relaxed);
        assert!(reclaimed > 0, "no copy was given up");
        assert_sound(&pages);
    });
}
