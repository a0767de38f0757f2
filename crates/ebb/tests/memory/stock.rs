//! The stock: frames that hold nothing any more become the next pages of a walk. Nothing of what they held is seen again, and
//! nothing that is written to such a page gets lost.

use crate::harness::alone::{PAGE, Pages, StopsAtEnd, alone, assert_sound, fork, wait};
use crate::harness::{PATIENCE, Random, check, ctx, fill, force, leave, map, space, unmap};
use ebb::{Force, Space};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Wide enough for runs that are moved.
const RAM: u64 = 128 << 20;
const RAM_PAGES: usize = RAM as usize / PAGE;
/// One and a half times as much.
const PAGES: usize = RAM_PAGES * 3 / 2;
/// Pages of a unit.
const UNIT: usize = 512;
/// Compresses well.
const HEAP: u64 = 2;

/// By MOVE where that can be, though COPY may cost less on this machine at this time.
fn moving() -> Force {
    Force { always_move: true, ..force() }
}

/// Pages that came in frames of Ebb's own, while `f` runs.
fn moved(space: &'static Space, f: impl FnOnce()) -> u64 {
    let counter = &space.stats().moved_in_pages;
    let before = counter.load(Relaxed);
    f();
    counter.load(Relaxed) - before
}

/// Repeats `f` until pages were moved: there have to be frames.
fn until_moved(space: &'static Space, f: impl FnMut()) {
    until_moved_after(space, || (), f);
}

/// The same of pages that `f` moves, each time after `before`, which makes frames.
fn until_moved_after(space: &'static Space, mut before: impl FnMut(), mut f: impl FnMut()) {
    let can_move = ebb::uapi::uffd::Uffd::open().is_ok_and(|uffd| uffd.has_move());
    if force().no_move || force().shared || !can_move {
        // Still correct.
        assert_eq!(moved(space, || (0..2).for_each(|_| f())), 0);
        return;
    }
    let since = Instant::now();
    let mut pages = 0;
    while pages < PAGES as u64 / 8 {
        assert!(since.elapsed() < PATIENCE, "only {pages} pages were moved");
        before();
        pages += moved(space, &mut f);
    }
}

fn has_plain_walks(space: &'static Space, pages: &Pages) {
    until_moved(space, || pages.check_all());
}

#[test]
fn what_is_walked_through_comes_in_frames_that_were_there() {
    alone(|| {
        let space = space(RAM, moving());
        let mut pages = Pages::aligned(space, PAGES, HEAP);
        has_plain_walks(space, &pages);
        assert_sound(&pages);
        // Also for writing.
        let mut version = 1;
        until_moved(space, || {
            version += 1;
            (0..PAGES).for_each(|page| pages.write(page, version, page as u64 % 4));
        });
        assert_sound(&pages);
        drop(pages);
        leave(space);
    });
}

#[test]
fn memory_never_touched_is_zero_whatever_its_frames_held() {
    alone(|| {
        let space = space(RAM, moving());
        let pages = Pages::aligned(space, PAGES, 1);
        has_plain_walks(space, &pages);
        // Without the walk all might fit at last: then nothing is swept, and no frame comes free.
        let walk = || pages.check_all();
        until_moved_after(space, walk, || {
            let n = PAGES / 4;
            let new = map(space, n * PAGE);
            for page in 0..n {
                check(new, page, 0, 0);
                // What they held is not to be zeros next time.
                fill(new, page, 1, 1);
            }
            (0..n).for_each(|page| check(new, page, 1, 1));
            unmap(space, new, n * PAGE);
        });
        assert_sound(&pages);
        drop(pages);
        leave(space);
    });
}

#[test]
fn what_staging_has_goes_back_as_it_is() {
    alone(|| {
        let space = space(RAM, moving());
        let mut pages = Pages::aligned(space, PAGES, HEAP);
        let (mut version, mut back) = (1, 0);
        let since = Instant::now();
        while back < 4 * UNIT as u64 {
            assert!(since.elapsed() < PATIENCE, "only {back} pages came back from staging");
            version += 1;
            (0..PAGES).for_each(|page| pages.write(page, version, HEAP));
            // What was swept last is staged: just below what is still there.
            let before = space.stats().staged_back_pages.load(Relaxed);
            for first in (0..PAGES).step_by(UNIT).rev() {
                (first..PAGES.min(first + UNIT)).for_each(|page| pages.check(page));
            }
            back += space.stats().staged_back_pages.load(Relaxed) - before;
        }
        assert_sound(&pages);
        drop(pages);
        leave(space);
    });
}

#[test]
fn a_system_call_has_its_pages_moved_in() {
    alone(|| {
        let space = space(RAM, moving());
        let pages = Pages::aligned(space, PAGES, HEAP);
        pages.check_all();
        let step = RAM_PAGES / 16;
        until_moved(space, || {
            for first in (0..PAGES).step_by(step) {
                assert!(space.bring_in(ctx(space), pages.addr(first), step * PAGE));
                pages.check(first + step / 2);
            }
        });
        assert_sound(&pages);
        drop(pages);
        leave(space);
    });
}

#[test]
fn what_is_charged_goes_with_the_pages() {
    alone(|| {
        let space = space(RAM, moving());
        for cycle in 0..6 {
            let pages = Pages::aligned(space, PAGES, HEAP);
            has_plain_walks(space, &pages);
            // Some comes back from where it is staged, some is paged out.
            let args = [pages.addr(0) as u64, (PAGES / 4 * PAGE) as u64, libc::MADV_PAGEOUT as u64, 0, 0, 0];
            assert_eq!(space.madvise(ctx(space), args), 0);
            (0..PAGES).rev().step_by(7).for_each(|page| pages.check(page));
            assert_sound(&pages);
            drop(pages);
            // What is in stock, or has no content, may be there: not what was moved in five times over.
            assert!(space.charged_pages() < RAM_PAGES / 4, "{} in cycle {cycle}", space.charged_pages());
        }
    });
}

/// Changes the protection of pages.
fn protect(space: &'static Space, pages: &Pages, first: usize, n: usize, prot: i32) {
    let args = [pages.addr(first) as u64, (n * PAGE) as u64, prot as u64, 0, 0, 0];
    assert_eq!(space.mprotect(ctx(space), libc::SYS_mprotect as u32, args), 0);
}

#[test]
fn memory_that_frames_do_not_fit_is_copied_to() {
    alone(|| {
        let space = space(RAM, moving());
        let pages = Pages::aligned(space, PAGES, HEAP);
        has_plain_walks(space, &pages);
        for prot in [libc::PROT_READ, libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC] {
            protect(space, &pages, 0, PAGES, prot);
            assert_eq!(moved(space, || (0..2).for_each(|_| pages.check_all())), 0);
        }
        // By turns: a run ends where its mapping does.
        for first in (0..PAGES).step_by(100) {
            protect(space, &pages, first, 50.min(PAGES - first), libc::PROT_READ | libc::PROT_WRITE);
        }
        (0..3).for_each(|_| pages.check_all());
        protect(space, &pages, 0, PAGES, libc::PROT_READ | libc::PROT_WRITE);
        has_plain_walks(space, &pages);
        assert_sound(&pages);
        drop(pages);
        leave(space);
    });
}

#[test]
fn what_is_written_while_it_is_brought_in_is_not_lost() {
    alone(|| {
        const WRITERS: usize = 2;
        let space = space(RAM, moving());
        let at = map(space, PAGES * PAGE) as usize;
        (0..PAGES).for_each(|page| fill(at as *mut u8, page, 1, HEAP));
        // Where the reader is, and how often each page was counted up in its last word.
        let (reader, done) = (AtomicUsize::new(0), AtomicBool::new(false));
        let counts: Vec<AtomicU64> = (0..PAGES).map(|_| AtomicU64::new(0)).collect();
        let last = |page: usize| (at + page * PAGE + PAGE - 8) as *mut u64;
        // SAFETY: a word of the test's own memory.
        (0..PAGES).for_each(|page| unsafe { last(page).write_volatile(0) });
        std::thread::scope(|scope| {
            let stop = StopsAtEnd(&done);
            for writer in 0..WRITERS {
                let (reader, done, counts) = (&reader, &done, &counts);
                scope.spawn(move || {
                    ctx(space);
                    let mut random = Random(writer as u64 + 5);
                    while !done.load(Relaxed) {
                        // Each has its own pages, in what is just coming in.
                        let page = (reader.load(Relaxed) + random.below(160)) / WRITERS * WRITERS + writer;
                        if page < PAGES {
                            let count = counts[page].fetch_add(1, Relaxed) + 1;
                            // SAFETY: as above; nobody else writes to it.
                            unsafe {
                                assert_eq!(last(page).read_volatile(), count - 1, "page {page}");
                                last(page).write_volatile(count);
                            }
                        }
                    }
                    leave(space);
                });
            }
            let since = Instant::now();
            while since.elapsed() < Duration::from_secs(3) {
                for page in 0..PAGES {
                    reader.store(page, Relaxed);
                    // SAFETY: as above.
                    std::hint::black_box(unsafe { ((at + page * PAGE) as *const u64).read_volatile() });
                }
            }
            drop(stop);
        });
        for (page, count) in counts.iter().enumerate() {
            // SAFETY: as above.
            assert_eq!(unsafe { last(page).read_volatile() }, count.load(Relaxed), "page {page}");
            // SAFETY: as above.
            unsafe { last(page).write_volatile(crate::harness::word_of(page, 1, HEAP, PAGE / 8 - 1)) };
            check(at as *mut u8, page, 1, HEAP);
        }
        assert_eq!(space.validate(), Ok(()));
        unmap(space, at as *mut u8, PAGES * PAGE);
        leave(space);
    });
}

#[test]
fn a_child_shares_no_frame_that_is_to_be_a_page() {
    alone(|| {
        let space = space(RAM, moving());
        let mut pages = Pages::aligned(space, PAGES, HEAP);
        for generation in 0..3 {
            has_plain_walks(space, &pages);
            let child = fork(space, || {
                (0..2).for_each(|_| pages.check_all());
                assert_eq!(space.validate(), Ok(()));
            });
            (0..PAGES).for_each(|page| pages.write(page, generation + 2, HEAP));
            pages.check_all();
            assert_eq!(wait(child), 0);
            assert_sound(&pages);
        }
        // All that was shared is gone some day.
        has_plain_walks(space, &pages);
    });
}

#[test]
fn a_smaller_budget_is_kept_also_by_what_is_in_stock() {
    alone(|| {
        let space = space(RAM, moving());
        let pages = Pages::aligned(space, PAGES, HEAP);
        has_plain_walks(space, &pages);
        space.stats().tree.set_limit(RAM_PAGES as u64 / 2);
        (0..2).for_each(|_| pages.check_all());
        assert!(space.charged_pages() <= RAM_PAGES / 2 + 256, "{}", space.charged_pages());
        assert_sound(&pages);
        space.stats().tree.set_limit(RAM_PAGES as u64);
        has_plain_walks(space, &pages);
        assert_sound(&pages);
    });
}
