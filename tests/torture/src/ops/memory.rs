//! Mapping, writing, checking, advising, moving and unmapping of a worker's own areas.

use crate::content::PAGE;
use crate::model::{Area, AtFork, Page, State};
use crate::report::{COUNTS, add, fail};
use crate::sys::{self, NONE, RW};
use crate::worker::{Run, Worker};

/// Maps a new area, or makes room when there is enough.
pub fn map(worker: &mut Worker) {
    if worker.mapped() > worker.target {
        let area = worker.rng.below(worker.areas.len());
        worker.areas[area].check_all();
        worker.areas[area].unmap_all();
        worker.tidy(area);
        return;
    }
    let len = worker.length();
    let flags = worker.rng.pick(&[0, 0, 0, libc::MAP_NORESERVE, libc::MAP_POPULATE]);
    let base = sys::map(len, RW, flags);
    let area = worker.adopt(base, vec![Page::zero(RW); len]);
    match worker.rng.below(4) {
        0 => worker.areas[area].check_all(),
        1 => (0..len).step_by(3).for_each(|page| worker.write(area, page)),
        _ => worker.write_run(Run { area, start: 0, len }),
    }
}

/// A large reservation without access, some pieces of which are made usable.
pub fn reserve(worker: &mut Worker) {
    if worker.mapped() > worker.target * 2 {
        return;
    }
    let len = worker.rng.between(64, 512.max(worker.target / 2));
    let base = sys::map(len, NONE, libc::MAP_NORESERVE);
    let area = worker.adopt(base, vec![Page::zero(NONE); len]);
    for _ in 0..4 {
        let start = worker.rng.below(len);
        let n = worker.rng.between(1, 32).min(len - start);
        sys::protect(worker.areas[area].addr(start), n, RW);
        worker.areas[area].update(start, n, |page| page.protected(RW));
        worker.write_run(Run { area, start, len: n });
    }
}

/// Checks every byte of a run.
pub fn check(worker: &mut Worker) {
    let max = worker.length();
    if let Some(run) = worker.run_of(max, Page::is_readable) {
        // Both directions, and every seventh page, so that no one pattern of faults is preferred.
        let area = &worker.areas[run.area];
        match worker.rng.below(3) {
            0 => (run.start..run.start + run.len).for_each(|page| area.check(page)),
            1 => (run.start..run.start + run.len).rev().for_each(|page| area.check(page)),
            _ => (run.start..run.start + run.len).step_by(7).for_each(|page| area.check(page)),
        }
    }
}

/// Gives a run new content, with a look before, after or neither.
pub fn write(worker: &mut Worker) {
    let max = worker.length();
    let Some(run) = worker.run_of(max, Page::is_writable) else { return };
    let look = worker.rng.below(4);
    for page in run.start..run.start + run.len {
        if look == 0 {
            worker.areas[run.area].check(page);
        }
        worker.write(run.area, page);
        if look == 1 {
            worker.areas[run.area].check(page);
        }
    }
}

/// Copies one run over another with the processor's own copy loop.
pub fn copy(worker: &mut Worker) {
    if let Some((from, to)) = two_runs(worker, 64) {
        let (source, dest) = (worker.addr(from), worker.addr(to));
        // SAFETY: disjoint runs of this worker, readable and writable.
        unsafe { core::ptr::copy_nonoverlapping(source as *const u8, dest as *mut u8, from.len * PAGE) };
        copy_models(worker, from, to);
    }
}

/// Two disjoint runs of the same length: content that is certain, and pages that are writable.
pub fn two_runs(worker: &mut Worker, max: usize) -> Option<(Run, Run)> {
    let mut from = worker.run_of(max, Page::is_certain)?;
    let mut to = worker.run_of(max, Page::is_writable)?;
    from.len = from.len.min(to.len);
    to.len = from.len;
    (!from.overlaps(to)).then_some((from, to))
}

/// After a copy: the models follow the content.
pub fn copy_models(worker: &mut Worker, from: Run, to: Run) {
    for i in 0..from.len {
        let source = worker.areas[from.area].page(from.start + i);
        let dest = worker.areas[to.area].page(to.start + i);
        worker.areas[to.area].set(to.start + i, dest.copied(source));
    }
}

/// Unmaps a run; what is left may have a hole.
pub fn unmap(worker: &mut Worker) {
    let max = worker.length();
    if let Some(run) = worker.run_of(max, Page::is_mapped) {
        sys::unmap(worker.addr(run), run.len);
        worker.areas[run.area].update(run.start, run.len, |_| Page::hole());
        worker.tidy(run.area);
    }
}

/// New memory over old.
pub fn map_over(worker: &mut Worker) {
    let max = worker.length();
    if let Some(run) = worker.run_of(max, Page::is_mapped) {
        sys::map_over(worker.addr(run), run.len, RW);
        worker.areas[run.area].update(run.start, run.len, |_| Page::zero(RW));
        settle(worker, run);
    }
}

/// New memory in a hole, if nobody else took it.
pub fn fill_hole(worker: &mut Worker) {
    if let Some(run) = worker.run_of(64, |page| !page.is_mapped())
        && sys::map_hole(worker.addr(run), run.len, RW)
    {
        worker.areas[run.area].update(run.start, run.len, |_| Page::zero(RW));
        settle(worker, run);
    }
}

/// Writes to, checks, or leaves alone what just became zero.
fn settle(worker: &mut Worker, run: Run) {
    match worker.rng.below(3) {
        0 => worker.write_run(run),
        1 => (run.start..run.start + run.len).for_each(|page| worker.areas[run.area].check(page)),
        _ => {}
    }
}

/// Drops content: what is read afterwards is zero.
pub fn dontneed(worker: &mut Worker) {
    let max = worker.length();
    if let Some(run) = worker.run_of(max, Page::is_mapped) {
        expect_success("MADV_DONTNEED", sys::advise(worker.addr(run), run.len, libc::MADV_DONTNEED));
        worker.areas[run.area].update(run.start, run.len, Page::wiped);
        if worker.areas[run.area].page(run.start).is_writable() && run.len < 256 {
            let writable = |run: Run| {
                (0..run.len).take_while(|i| worker.areas[run.area].page(run.start + i).is_writable()).count()
            };
            let len = writable(run);
            settle(worker, Run { len, ..run });
        }
    }
}

/// Gives content up: it may be there still, or be zero.
pub fn free(worker: &mut Worker) {
    let max = worker.length();
    if let Some(run) = worker.run_of(max, Page::is_mapped) {
        expect_success("MADV_FREE", sys::advise(worker.addr(run), run.len, libc::MADV_FREE));
        worker.areas[run.area].update(run.start, run.len, Page::freed);
    }
}

fn expect_success(what: &str, error: i32) {
    if error != 0 {
        fail(format_args!("{what}: error {error}"));
    }
}

const MADV_POPULATE_READ: i32 = 22;
const MADV_POPULATE_WRITE: i32 = 23;
const MADV_COLLAPSE: i32 = 25;

/// Advice that changes nothing a program could see. Errors are the kernel's business.
pub fn advise(worker: &mut Worker) {
    let max = worker.length();
    let advice = worker.rng.pick(&[
        libc::MADV_NORMAL,
        libc::MADV_RANDOM,
        libc::MADV_SEQUENTIAL,
        libc::MADV_WILLNEED,
        libc::MADV_COLD,
        libc::MADV_PAGEOUT,
        libc::MADV_NOHUGEPAGE,
        libc::MADV_DODUMP,
        libc::MADV_DONTDUMP,
        MADV_POPULATE_READ,
        MADV_POPULATE_WRITE,
        MADV_COLLAPSE,
    ]);
    if let Some(run) = worker.run_of(max, Page::is_writable) {
        let error = sys::advise(worker.addr(run), run.len, advice);
        if error != 0 && (advice == MADV_POPULATE_READ || advice == MADV_POPULATE_WRITE) && error != libc::EINTR {
            fail(format_args!("madvise {advice} of writable memory: error {error}"));
        }
    }
}

/// Huge pages where the alignment allows them.
pub fn huge(worker: &mut Worker) {
    if worker.mapped() > worker.target || worker.target < 1024 {
        return;
    }
    let len = 512 * worker.rng.between(1, 3);
    let base = sys::map(len, RW, 0);
    let _ = sys::advise(base, len, libc::MADV_HUGEPAGE);
    let area = worker.adopt(base, vec![Page::zero(RW); len]);
    worker.write_run(Run { area, start: 0, len });
    match worker.rng.below(4) {
        // Out, and back by walks: the pages are clean then.
        0 => {
            for _ in 0..2 {
                expect_success("MADV_PAGEOUT", sys::advise(base, len, libc::MADV_PAGEOUT));
                worker.areas[area].check_all();
            }
        }
        // Split, and made one again.
        1 => {
            let page = worker.rng.below(len);
            expect_success("MADV_DONTNEED", sys::advise(worker.areas[area].addr(page), 1, libc::MADV_DONTNEED));
            worker.areas[area].update(page, 1, Page::wiped);
            let _ = sys::advise(base, len, MADV_COLLAPSE);
            worker.areas[area].check_all();
        }
        _ => {}
    }
}

/// Memory that a forked child does not get, or gets as zeroes.
pub fn at_fork(worker: &mut Worker) {
    let max = worker.length();
    let Some(run) = worker.run_of(max, Page::is_mapped) else { return };
    let (first, second, rule) = match worker.rng.below(4) {
        0 => (libc::MADV_DONTFORK, None, AtFork::Drop),
        1 => (libc::MADV_DOFORK, Some(libc::MADV_WIPEONFORK), AtFork::Wipe),
        _ => (libc::MADV_DOFORK, Some(libc::MADV_KEEPONFORK), AtFork::Keep),
    };
    let addr = worker.addr(run);
    expect_success("madvise for fork", sys::advise(addr, run.len, first));
    if let Some(second) = second {
        expect_success("madvise for fork", sys::advise(addr, run.len, second));
    }
    worker.areas[run.area].update(run.start, run.len, |page| page.forking(rule));
}

/// Locks a few pages, checks them, and unlocks them again.
pub fn lock(worker: &mut Worker) {
    if let Some(run) = worker.run_of(16, Page::is_writable) {
        let (addr, bytes) = (worker.addr(run) as *const libc::c_void, run.len * PAGE);
        // SAFETY: locking changes no content.
        let locked = unsafe { libc::mlock(addr, bytes) } == 0;
        (run.start..run.start + run.len).for_each(|page| worker.areas[run.area].check(page));
        worker.write_run(run);
        // SAFETY: as above.
        if locked && unsafe { libc::munlock(addr, bytes) } != 0 {
            fail(format_args!("munlock: {}", std::io::Error::last_os_error()));
        }
    }
}

/// Makes a run larger, wherever that puts it.
pub fn grow(worker: &mut Worker) {
    let max = worker.length();
    let more = worker.rng.between(1, 64);
    let Some(run) = worker.uniform_run(max) else { return };
    let addr = worker.addr(run);
    if let Ok(to) = sys::remap(addr, run.len, run.len + more, libc::MREMAP_MAYMOVE, 0) {
        add(&COUNTS.mremaps, 1);
        let mut pages = worker.areas[run.area].take(run.start, run.len);
        let last = pages[run.len - 1];
        pages.extend(std::iter::repeat_n(last.wiped(), more));
        finish_move(worker, run, to, pages);
    }
}

/// Cuts the tail of a run off.
pub fn shrink(worker: &mut Worker) {
    let max = worker.length();
    let Some(run) = worker.uniform_run(max) else { return };
    let keep = worker.rng.between(1, run.len);
    let addr = worker.addr(run);
    if let Ok(to) = sys::remap(addr, run.len, keep, 0, 0) {
        if to != addr {
            fail(format_args!("a shrinking mremap moved {addr:#x} to {to:#x}"));
        }
        add(&COUNTS.mremaps, 1);
        worker.areas[run.area].update(run.start + keep, run.len - keep, |_| Page::hole());
        worker.tidy(run.area);
    }
}

/// Moves a run to a place reserved for it.
pub fn move_away(worker: &mut Worker) {
    let max = worker.length();
    let Some(run) = worker.uniform_run(max) else { return };
    // One page in front and behind stays without access, so that the moved range never merges with a neighbour.
    let reserved = sys::map(run.len + 2, NONE, libc::MAP_NORESERVE);
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    let moved = sys::remap(worker.addr(run), run.len, run.len, flags, reserved + PAGE);
    if let Ok(to) = moved {
        add(&COUNTS.mremaps, 1);
        sys::unmap(reserved, 1);
        sys::unmap(reserved + (run.len + 1) * PAGE, 1);
        let pages = worker.areas[run.area].take(run.start, run.len);
        finish_move(worker, run, to, pages);
    }
    // After a failure the kernel may or may not have unmapped the place: it is left alone for good.
}

/// Moves a run over another that holds content of its own.
pub fn move_over(worker: &mut Worker) {
    let max = worker.length();
    let (Some(mut from), Some(mut to)) = (worker.uniform_run(max), worker.run_of(max, Page::is_mapped)) else { return };
    from.len = from.len.min(to.len);
    to.len = from.len;
    if from.overlaps(to) {
        return;
    }
    let (source, dest) = (worker.addr(from), worker.addr(to));
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    let moved = sys::remap(source, from.len, from.len, flags, dest);
    worker.areas[to.area].update(to.start, to.len, |_| Page::hole());
    if moved.is_ok() {
        add(&COUNTS.mremaps, 1);
        let pages = worker.areas[from.area].take(from.start, from.len);
        for (i, page) in pages.into_iter().enumerate() {
            worker.areas[to.area].set(to.start + i, page);
        }
    }
    // The area of the higher index first: tidying may put the last area in its place.
    let (first, second) = (from.area.max(to.area), from.area.min(to.area));
    worker.tidy(first);
    if second != first {
        worker.tidy(second);
    }
}

const MREMAP_DONTUNMAP: i32 = 4;

/// Moves the content away and leaves the old place mapped and empty.
pub fn move_keeping(worker: &mut Worker) {
    let max = worker.length();
    if worker.mapped() > worker.target * 2 {
        return;
    }
    let Some(run) = worker.uniform_run(max) else { return };
    let flags = libc::MREMAP_MAYMOVE | MREMAP_DONTUNMAP;
    if let Ok(to) = sys::remap(worker.addr(run), run.len, run.len, flags, 0) {
        add(&COUNTS.mremaps, 1);
        let pages = (run.start..run.start + run.len).map(|i| worker.areas[run.area].page(i)).collect();
        worker.areas[run.area].update(run.start, run.len, Page::wiped);
        let moved = worker.adopt(to, pages);
        if worker.rng.one_in(2) {
            worker.areas[moved].check_all();
            worker.areas[run.area].check_all();
        }
    }
}

/// The moved pages become an area of their own; what is left of the old one is tidied.
fn finish_move(worker: &mut Worker, old: Run, to: usize, pages: Vec<Page>) {
    let moved = worker.adopt(to, pages);
    if worker.rng.one_in(2) {
        worker.areas[moved].check_all();
    }
    if worker.rng.one_in(8) {
        touch_some(&worker.areas[moved]);
    }
    worker.tidy(old.area);
}

fn touch_some(area: &Area) {
    for page in (0..area.pages.len()).step_by(5) {
        if area.page(page).state() == State::Data {
            area.check(page);
        }
    }
}
