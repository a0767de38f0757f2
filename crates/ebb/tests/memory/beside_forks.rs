//! Address-space calls of many threads at once, in groups with limits, beside forks: the books of parent, groups and children are
//! right, and nobody loses a page.

use crate::harness::alone::alone;
use crate::harness::{Random, check, ctx, fill, force, leave, map, map_at, protect, space, unmap};
use ebb::{GroupId, GroupLimits, Space};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

const RAM: u64 = 16 << 20;
const PAGE: usize = 4096;
const THREADS: usize = 4;
const ROUNDS: u64 = 5000;
const NONE: i32 = libc::PROT_NONE;
const RW: i32 = libc::PROT_READ | libc::PROT_WRITE;

/// Memory whose pages have versions; 0 reads as zeros.
struct Mapping {
    at: usize,
    versions: Vec<u64>,
}

impl Mapping {
    fn new(space: &'static Space, pages: usize) -> Self {
        Self { at: map_at(space, 0, pages, RW), versions: vec![0; pages] }
    }

    fn kind(page: usize) -> u64 {
        page as u64 % 7
    }

    fn verify(&self, pages: std::ops::Range<usize>) {
        for page in pages {
            let version = self.versions[page];
            check(self.at as *mut u8, page, version, if version == 0 { 0 } else { Self::kind(page) });
        }
    }

    fn verify_all(&self) {
        self.verify(0..self.versions.len());
    }

    fn fill(&mut self, pages: std::ops::Range<usize>, version: u64) {
        pages.clone().for_each(|page| fill(self.at as *mut u8, page, version, Self::kind(page)));
        self.versions[pages].fill(version);
    }
}

fn advise(space: &'static Space, at: usize, pages: usize, advice: i32) {
    assert_eq!(space.madvise(ctx(space), [at as u64, (pages * PAGE) as u64, advice as u64, 0, 0, 0]), 0);
}

/// Forks. The child checks its books and every page of `mappings`.
fn fork(space: &'static Space, mappings: &[Mapping]) {
    // SAFETY: the signals of this thread; the engine runs with all of them blocked.
    let old = unsafe {
        let (mut all, mut old) = (std::mem::zeroed(), std::mem::zeroed());
        libc::sigfillset(&mut all);
        libc::sigdelset(&mut all, libc::SIGBUS);
        libc::pthread_sigmask(libc::SIG_BLOCK, &all, &mut old);
        old
    };
    space.make_fork_room(ctx(space));
    space.fork_prepare(ctx(space));
    // SAFETY: the child calls nothing that needs another thread.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0);
    if pid == 0 {
        let verify = std::panic::AssertUnwindSafe(|| mappings.iter().for_each(Mapping::verify_all));
        let status = match () {
            () if space.fork_child(ctx(space)).is_err() => 3,
            () if space.validate().is_err() => 4,
            () if std::panic::catch_unwind(verify).is_err() => 5,
            () => 0,
        };
        // SAFETY: the child ends.
        unsafe { libc::_exit(status) }
    }
    space.fork_parent(true);
    let mut status = 0;
    // SAFETY: as above, and the child made here.
    unsafe {
        libc::pthread_sigmask(libc::SIG_SETMASK, &old, std::ptr::null_mut());
        assert_eq!(libc::waitpid(pid, &mut status, 0), pid);
    }
    assert_eq!(status, 0, "3: no child; 4: its books are wrong; 5: it lost a page");
}

fn work(space: &'static Space, mine: usize) {
    let limits = GroupLimits {
        ram_max_pages: Some(if mine.is_multiple_of(2) { 400 } else { 100_000 }),
        ram_high_pages: None,
        swap_max_pages: (mine == 3).then_some(200),
    };
    let id = space.create_group(ctx(space), GroupId::ROOT, &limits).expect("a group");
    space.set_thread_group(ctx(space), id).expect("the group exists");
    let mut random = Random(mine as u64 * 31 + 7);
    let mut mappings: Vec<Mapping> = Vec::new();
    for round in 1..=ROUNDS {
        if mappings.len() < 10 {
            mappings.push(Mapping::new(space, random.below(120) + 1));
        }
        let which = random.below(mappings.len());
        let mapping = &mut mappings[which];
        let first = random.below(mapping.versions.len());
        let n = random.below(mapping.versions.len() - first) + 1;
        let (start, pages) = (mapping.at + first * PAGE, first..first + n);
        match random.below(11) {
            0 if first > 0 => {
                unmap(space, start as *mut u8, (mapping.versions.len() - first) * PAGE);
                mapping.versions.truncate(first);
            }
            1 => {
                let mapping = mappings.swap_remove(which);
                mapping.verify_all();
                unmap(space, mapping.at as *mut u8, mapping.versions.len() * PAGE);
            }
            2 => {
                let reserves = random.below(2) == 0;
                map_at(space, start, n, if reserves { NONE } else { RW });
                if reserves {
                    protect(space, start, n, RW);
                }
                mapping.versions[pages].fill(0);
            }
            3 => {
                protect(space, start, n, libc::PROT_READ);
                mapping.verify(pages);
                protect(space, start, n, RW);
            }
            4 => mapping.verify_all(),
            5 => {
                advise(space, start, n, libc::MADV_DONTNEED);
                mapping.versions[pages].fill(0);
            }
            6 => advise(space, start, n, [libc::MADV_PAGEOUT, libc::MADV_WILLNEED][random.below(2)]),
            7 if mine == 0 && random.below(20) == 0 => fork(space, &mappings),
            _ => mapping.fill(pages, round),
        }
    }
    for mapping in mappings {
        mapping.verify_all();
        unmap(space, mapping.at as *mut u8, mapping.versions.len() * PAGE);
    }
    leave(space);
}

#[test]
fn groups_and_children_keep_their_books_beside_calls_that_change_memory() {
    alone(|| {
        let space = space(RAM, force());
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let is_over = &is_over;
            scope.spawn(move || {
                while !is_over.load(Relaxed) {
                    let at = map(space, 2048 * PAGE);
                    (0..2048).for_each(|page| fill(at, page, 5, 3));
                    (0..2048).for_each(|page| check(at, page, 5, 3));
                    unmap(space, at, 2048 * PAGE);
                    space.validate().expect("consistent");
                }
                leave(space);
            });
            let threads: Vec<_> = (0..THREADS).map(|mine| scope.spawn(move || work(space, mine))).collect();
            threads.into_iter().for_each(|thread| thread.join().expect("no page lost"));
            is_over.store(true, Relaxed);
        });
        space.validate().expect("consistent");
        leave(space);
    });
}
