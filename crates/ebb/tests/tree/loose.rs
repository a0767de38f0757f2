//! Loose claims: threads take pages back from sweeps that compress or copy them, and do with them whatever programs do.

use crate::harness::alone::{COMPRESSIBLE, PAGE, Pages, RAM_PAGES, RANDOM, StopsAtEnd, alone, fork, space_on, wait};
use crate::harness::{Random, ctx, leave};
use ebb::{GroupId, GroupLimits, PinResult, Space, SwapSpec};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

const THREADS: usize = 4;
/// The words of each page that are written and checked.
const WORDS: [usize; 3] = [3, 200, 508];

/// Pages at random of which each belongs to one thread, and what that thread wrote last.
struct Mine {
    space: &'static Space,
    at: usize,
    thread: usize,
    random: Random,
    written: Vec<Option<u64>>,
    /// A pipe from which the kernel writes to pages.
    pipe: [i32; 2],
}

impl Mine {
    fn new(space: &'static Space, at: usize, nr_pages: usize, thread: usize) -> Self {
        ctx(space);
        let mut pipe = [0; 2];
        // SAFETY: room for two numbers.
        assert_eq!(unsafe { libc::pipe(pipe.as_mut_ptr()) }, 0);
        Self { space, at, thread, random: Random(thread as u64 * 7 + 1), written: vec![None; nr_pages], pipe }
    }

    fn next(&mut self) -> usize {
        self.random.below(self.written.len() / THREADS) * THREADS + self.thread
    }

    fn range(&self, page: usize) -> [u64; 6] {
        [(self.at + page * PAGE) as u64, PAGE as u64, 0, 0, 0, 0]
    }

    fn check(&self, page: usize) {
        let Some(expected) = self.written[page] else { return };
        for word in WORDS {
            // SAFETY: mapped, and this thread's own.
            let found = unsafe { ((self.at + page * PAGE + word * 8) as *const u64).read_volatile() };
            assert_eq!(found, expected, "page {page}, word {word}");
        }
    }

    fn write(&mut self, page: usize, value: u64) {
        for word in WORDS {
            // SAFETY: as above.
            unsafe { ((self.at + page * PAGE + word * 8) as *mut u64).write_volatile(value) };
        }
        self.written[page] = Some(value);
    }

    /// The page is written, and given up at once.
    fn give_up(&mut self, page: usize, value: u64) {
        self.write(page, value);
        let [at, bytes, ..] = self.range(page);
        assert_eq!(self.space.madvise(ctx(self.space), [at, bytes, libc::MADV_DONTNEED as u64, 0, 0, 0]), 0);
        self.written[page] = Some(0);
    }

    /// The page is filled, so that it takes room again.
    fn fill(&mut self, page: usize, version: u64) {
        crate::harness::fill(self.at as *mut u8, page, version, COMPRESSIBLE);
        self.written[page] = None;
    }

    /// The kernel writes to the page, as in a system call.
    fn receive(&mut self, page: usize, value: u64) {
        let (space, at) = (self.space, self.at + page * PAGE);
        let sent = [value; PAGE / 8];
        // SAFETY: a page of bytes, in a pipe that has room for it.
        assert_eq!(unsafe { libc::write(self.pipe[1], sent.as_ptr().cast(), PAGE) }, PAGE as isize);
        let mask = ebb::uapi::thread::block_signals();
        if !space.pin_fast(ctx(space), 1, at, PAGE) {
            space.pin_begin(ctx(space), 1);
            assert_eq!(space.pin_add(ctx(space), at, PAGE), PinResult::Ok);
        }
        // SAFETY: this thread's own page, pinned.
        assert_eq!(unsafe { libc::read(self.pipe[0], at as *mut _, PAGE) }, PAGE as isize);
        space.pin_end(ctx(space));
        ebb::uapi::thread::restore_signals(mask);
        self.written[page] = Some(value);
    }

    fn lock_and_unlock(&mut self, page: usize, value: u64) {
        self.write(page, value);
        if self.space.mlock(ctx(self.space), libc::SYS_mlock as u32, self.range(page)) == 0 {
            self.check(page);
            self.write(page, value);
            assert_eq!(self.space.munlock(ctx(self.space), self.range(page)), 0);
        }
    }

    /// The unit is paged out, and the page used at once.
    fn page_out(&mut self, page: usize) {
        const UNIT: u64 = 2 << 20;
        let (start, end) = (self.at as u64, (self.at + self.written.len() * PAGE) as u64);
        let at = (self.range(page)[0] & !(UNIT - 1)).max(start);
        // Refused where another thread has locked a page.
        let _ = self.space.madvise(ctx(self.space), [at, UNIT.min(end - at), libc::MADV_PAGEOUT as u64, 0, 0, 0]);
    }
}

impl Drop for Mine {
    fn drop(&mut self) {
        // SAFETY: its own descriptors.
        self.pipe.iter().for_each(|end| assert_eq!(unsafe { libc::close(*end) }, 0));
        leave(self.space);
    }
}

fn space_and_pages(part: usize) -> (&'static Space, Pages) {
    let space = space_on(&[SwapSpec { dir: c"/var/tmp", bytes: 1 << 30, priority: None, ..SwapSpec::DEFAULT }], true);
    let mut pages = Pages::new(space, RAM_PAGES * part / 4, COMPRESSIBLE);
    (0..pages.len()).filter(|page| page % 5 == 0).for_each(|page| pages.write(page, 2, RANDOM));
    (space, pages)
}

/// How many pages went in place, and how many were taken back.
fn used(space: &Space) -> (u64, u64) {
    let stats = space.stats();
    (stats.in_place_pages.load(Relaxed), stats.taken_back_pages.load(Relaxed))
}

/// Whether step `step` of `nr_steps` is to be made. On a busy machine it takes more of them until a page is taken back.
fn goes_on(space: &Space, step: u64, nr_steps: u64) -> bool {
    let (in_place, back) = used(space);
    step <= nr_steps || ((in_place == 0 || back == 0) && step <= 20 * nr_steps)
}

fn assert_used(space: &Space) {
    let (in_place, back) = used(space);
    assert!(in_place > 0 && back > 0, "{in_place} pages went in place, {back} were taken back");
    space.validate().expect("consistent");
    assert_eq!(space.stats().error_bytes()[0], 0);
}

/// Runs `work` in four threads, and `beside` in this one, until the first of them is done.
fn in_threads(pages: &Pages, work: impl Fn(&mut Mine) + Copy + Send, beside: impl Fn()) {
    let (space, at, nr_pages) = (pages.space, pages.at as usize, pages.len());
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let is_done = &is_done;
        for thread in 0..THREADS {
            scope.spawn(move || {
                let _end = StopsAtEnd(is_done);
                work(&mut Mine::new(space, at, nr_pages, thread));
            });
        }
        while !is_done.load(Relaxed) {
            beside();
        }
    });
}

#[test]
fn what_is_taken_back_and_given_up_at_once_is_not_read() {
    alone(|| {
        let (space, pages) = space_and_pages(8);
        let work = |mine: &mut Mine| {
            for value in (1..).take_while(|step| goes_on(space, *step, 120_000)) {
                let page = mine.next();
                mine.check(page);
                mine.write(page, value);
                if mine.random.below(4) == 0 {
                    mine.give_up(page, value);
                    mine.fill(page, value);
                }
            }
        };
        in_threads(&pages, work, || std::thread::sleep(std::time::Duration::from_millis(1)));
        assert_used(space);
    });
}

/// Whatever programs do with pages, at random, beside forks; in a group that may have little swap.
fn everything(swap_max_pages: Option<u64>) {
    let space = space_on(&[SwapSpec { dir: c"/var/tmp", bytes: 1 << 30, priority: None, ..SwapSpec::DEFAULT }], true);
    let limits = GroupLimits { ram_max_pages: None, ram_high_pages: None, swap_max_pages };
    let group = space.create_group(ctx(space), GroupId::ROOT, &limits).expect("a group");
    space.set_thread_group(ctx(space), group).expect("the group");
    let (_, pages) = space_and_pages(7);
    let work = |mine: &mut Mine| {
        for value in (1..).take_while(|step| goes_on(space, *step, 40_000)) {
            let page = mine.next();
            mine.check(page);
            match mine.random.below(64) {
                0..4 => mine.receive(page, value),
                4..10 => mine.give_up(page, value),
                10 => mine.lock_and_unlock(page, value),
                // Seldom, because it leaves so much RAM free that nothing else is evicted.
                11 if mine.random.below(64) == 0 => mine.page_out(page),
                _ => mine.write(page, value),
            }
        }
    };
    let (at, nr_pages) = (pages.at as usize, pages.len());
    in_threads(&pages, work, || {
        std::thread::sleep(std::time::Duration::from_millis(150));
        let child = fork(space, || {
            let mut random = Random(5);
            for _ in 0..2000 {
                // SAFETY: the child's own copy of a mapped page.
                unsafe { ((at + random.below(nr_pages) * PAGE + 64) as *mut u64).write_volatile(1) };
            }
        });
        assert_eq!(wait(child), 0);
    });
    assert_used(space);
}

#[test]
fn nothing_is_lost_whatever_is_done_with_pages_that_go() {
    alone(|| everything(None));
}

#[test]
fn nothing_is_lost_in_a_group_that_may_have_little_swap() {
    alone(|| everything(Some(6000)));
}
