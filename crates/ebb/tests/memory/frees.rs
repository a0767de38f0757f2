//! Content that is given up many pages at a time: whatever has it, and whoever is busy with it or shares it, that content goes and
//! no other does. `EBB_FORCE` forces fallbacks.

use crate::harness::alone::{
    COMPRESSIBLE, PAGE, Pages, RAM_PAGES, RANDOM, StopsAtEnd, alone, assert_sound, fork, mixed, space_on, wait,
};
use crate::harness::folios::{HEAP, UNIT, advise, with_folios};
use crate::harness::{Random, check, ctx, fill, leave, map, map_at, unmap};
use ebb::stats::Thp;
use ebb::{GroupLimits, Space, SwapSpec};
use std::io::{Read, Write};
use std::ops::Range;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

const ROOMY: SwapSpec<'static> = SwapSpec { dir: c"/var/tmp", bytes: 1 << 30, priority: None, ..SwapSpec::DEFAULT };
/// How long threads work side by side.
const A_WHILE: Duration = Duration::from_secs(3);

/// Ways to give content up.
#[derive(Clone, Copy)]
enum Way {
    Discard,
    Unmap,
    Replace,
    /// By mremap of other memory onto the range.
    MoveOnto,
}

const WAYS: [Way; 4] = [Way::Discard, Way::Unmap, Way::Replace, Way::MoveOnto];

/// Gives up the content of the pages, and leaves pages without content in their place.
fn give_up(space: &'static Space, at: *mut u8, pages: &Range<usize>, way: Way) {
    // SAFETY: inside the mapping, or at its end.
    let (first, n) = (unsafe { at.add(pages.start * PAGE) }, pages.len());
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    match way {
        Way::Discard => advise(space, first, n, libc::MADV_DONTNEED),
        Way::Unmap => {
            unmap(space, first, n * PAGE);
            // Nobody else maps anything there: each thread of a test has address space of its own, and so has libc.
            map_at(space, first as usize, n, prot);
        }
        Way::Replace => _ = map_at(space, first as usize, n, prot),
        Way::MoveOnto => {
            let other = map(space, n * PAGE);
            let flags = (libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED) as u64;
            let args = [other as u64, (n * PAGE) as u64, (n * PAGE) as u64, flags, first as u64, 0];
            assert_eq!(space.mremap(ctx(space), args), first as i64);
        }
    }
}

impl Pages {
    fn give_up(&mut self, pages: Range<usize>, way: Way) {
        give_up(self.space, self.at, &pages, way);
        self.versions[pages].fill((0, 0));
    }
}

fn some_range(random: &mut Random, len: usize, most: usize) -> Range<usize> {
    let n = 1 + random.below(most);
    let start = random.below(len - n);
    start..start + n
}

/// Pages that files of this process have.
fn in_files(space: &Space) -> u64 {
    let mut pages = 0;
    space.devices(|device| pages += device.used_bytes / PAGE as u64);
    pages
}

#[test]
fn ranges_of_all_kinds_go_and_the_rest_keeps_its_content() {
    alone(|| {
        let space = space_on(&[ROOMY], true);
        let mut pages = mixed(space);
        let mut random = Random(7);
        for round in 0..60 {
            let range = some_range(&mut random, pages.len(), [3, 70, 600, 2500][round % 4]);
            pages.give_up(range, WAYS[random.below(WAYS.len())]);
            for page in some_range(&mut random, pages.len(), 700) {
                pages.write(page, 100 + round as u64, random.below(6) as u64);
            }
            if round % 10 == 9 {
                advise(space, pages.at, pages.len(), libc::MADV_PAGEOUT);
                assert_sound(&pages);
            }
        }
        assert!(in_files(space) > 0, "nothing was in a file");
        pages.give_up(0..pages.len(), Way::Unmap);
        assert_sound(&pages);
        assert_eq!(in_files(space), 0);
    });
}

#[test]
fn a_groups_swap_is_given_back_with_its_pages() {
    alone(|| {
        let space = space_on(&[ROOMY], true);
        let ctx = ctx(space);
        let group = space.create_group(ctx, ebb::GroupId::ROOT, &GroupLimits::default()).expect("a group");
        let mut pages = mixed(space);
        space.move_to_group(ctx, pages.at as usize, pages.len() * PAGE, group).expect("it moves");
        let swap = || space.group_info(ctx, group).expect("a group").swap.current_pages;
        let before = swap();
        // What a group has in swap is pages of it, whether these are clean or gone.
        pages.give_up(100..1700, Way::Discard);
        pages.give_up(2000..3111, Way::Unmap);
        assert!(swap() < before, "{} of {before}", swap());
        assert_sound(&pages);
        pages.give_up(0..pages.len(), Way::Replace);
        assert_eq!(swap(), 0);
        assert_sound(&pages);
    });
}

#[test]
fn a_child_keeps_what_its_parent_gives_up_and_its_parent_what_the_child_does() {
    alone(|| {
        let space = space_on(&[ROOMY], true);
        let mut pages = mixed(space);
        advise(space, pages.at, pages.len(), libc::MADV_PAGEOUT);
        let (mut from_parent, mut to_child) = std::io::pipe().expect("a pipe");
        let mut of_child = Pages { space, at: pages.at, versions: pages.versions.clone() };
        let child = fork(space, || {
            from_parent.read_exact(&mut [0]).expect("a byte");
            // Some of it is given up before anybody has looked at it.
            of_child.give_up(900..3000, Way::Discard);
            assert_sound(&of_child);
            of_child.give_up(5000..7777, Way::Unmap);
            (5000..6000).for_each(|page| of_child.write(page, 33, page as u64 % 6));
            assert_sound(&of_child);
            of_child.give_up(0..of_child.len(), Way::Discard);
            assert_sound(&of_child);
        });
        pages.give_up(500..2500, Way::Discard);
        pages.give_up(6000..9000, Way::Unmap);
        (6000..7500).for_each(|page| pages.write(page, 44, page as u64 % 6));
        to_child.write_all(&[1]).expect("a byte");
        assert_sound(&pages);
        assert_eq!(wait(child), 0);
        // The parent's slots that the child held come back, and are used again.
        (0..pages.len()).for_each(|page| pages.write(page, 55, [RANDOM, COMPRESSIBLE][page % 2]));
        pages.give_up(3..pages.len() - 3, Way::Discard);
        assert_sound(&pages);
        std::mem::forget(of_child);
    });
}

#[test]
fn two_views_share_slots_and_each_gives_up_its_own() {
    alone(|| {
        let space = space_on(&[ROOMY], true);
        let mut pages = mixed(space);
        let at = space.snapshot(ctx(space), pages.at as usize, pages.len() * PAGE).expect("there is room");
        let mut view = Pages { space, at: at as *mut u8, versions: pages.versions.clone() };
        pages.give_up(200..4000, Way::Discard);
        view.give_up(3000..8000, Way::Unmap);
        assert_sound(&pages);
        assert_sound(&view);
        pages.give_up(0..pages.len(), Way::Replace);
        assert_sound(&view);
        view.give_up(0..view.len(), Way::Discard);
        assert_sound(&view);
        assert_eq!(in_files(space), 0);
    });
}

#[test]
fn parts_of_folios_go_swapped_out_clean_or_present() {
    alone(|| {
        let (space, _) = with_folios(Thp::Always);
        let mut pages = Pages::aligned(space, 24 * UNIT, HEAP);
        let mut random = Random(3);
        for round in 0..8u64 {
            // Every other folio stays in memory, and some of what is out is read, so that it is clean.
            advise(space, pages.at, pages.len(), libc::MADV_PAGEOUT);
            (0..pages.len()).filter(|page| page / UNIT % 2 == 1).for_each(|page| pages.check(page));
            for unit in (0..24).filter(|unit| unit % 3 != 2) {
                let first = unit * UNIT + random.below(UNIT / 2);
                pages.give_up(first..first + 1 + random.below(UNIT), WAYS[random.below(WAYS.len())]);
            }
            assert_sound(&pages);
            (0..pages.len()).for_each(|page| pages.write(page, round + 2, [HEAP, RANDOM, 4][page / UNIT % 3]));
        }
        assert_sound(&pages);
    });
}

/// Strips of pages that belong to threads in turn, so that threads use the same units of memory, clusters and blocks.
struct Strips {
    at: *mut u8,
    pages: usize,
    threads: usize,
}

// SAFETY: a page is used by the thread that its strip belongs to.
unsafe impl Sync for Strips {}

impl Strips {
    const PAGES: usize = 150;

    fn of(&self, thread: usize) -> Vec<Range<usize>> {
        let strips = (0..self.pages).step_by(Self::PAGES).map(|at| at..(at + Self::PAGES).min(self.pages));
        strips.skip(thread).step_by(self.threads).collect()
    }

    /// Gives pages up, and fills, reads and pages out others, all of its own.
    fn work(&self, space: &'static Space, thread: usize, is_over: &AtomicBool) {
        ctx(space);
        let (strips, mut random) = (self.of(thread), Random(99 + thread as u64));
        let mut versions = vec![(0, 0); self.pages];
        let mut round = 0;
        while !is_over.load(Relaxed) {
            round += 1;
            let strip = &strips[random.below(strips.len())];
            let n = 1 + random.below(strip.len());
            let pages = strip.start..strip.start + n;
            match random.below(6) {
                0 | 1 => {
                    give_up(space, self.at, &pages, [Way::Discard, Way::Replace][random.below(2)]);
                    versions[pages].fill((0, 0));
                }
                2 => {
                    let kind = random.below(6) as u64;
                    pages.clone().for_each(|page| fill(self.at, page, round, kind));
                    versions[pages].fill((round, kind));
                }
                3 => {
                    // SAFETY: inside the mapping.
                    let first = unsafe { self.at.add(pages.start * PAGE) };
                    advise(space, first, n, libc::MADV_PAGEOUT);
                }
                _ => pages.for_each(|page| check(self.at, page, versions[page].0, versions[page].1)),
            }
        }
        for page in strips.into_iter().flatten() {
            check(self.at, page, versions[page].0, versions[page].1);
        }
        leave(space);
    }
}

#[test]
fn ranges_go_while_threads_use_their_neighbours() {
    alone(|| {
        let space = space_on(&[ROOMY], true);
        let pages = 3 * RAM_PAGES;
        let strips = Strips { at: map(space, pages * PAGE), pages, threads: 4 };
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let _stop = StopsAtEnd(&is_over);
            for thread in 0..strips.threads {
                let (strips, is_over) = (&strips, &is_over);
                scope.spawn(move || strips.work(space, thread, is_over));
            }
            let began = Instant::now();
            while began.elapsed() < A_WHILE {
                std::thread::sleep(A_WHILE / 10);
                assert_eq!(space.validate(), Ok(()));
            }
        });
        assert_eq!(space.validate(), Ok(()));
        unmap(space, strips.at, pages * PAGE);
        assert_eq!((space.validate(), in_files(space)), (Ok(()), 0));
        assert_eq!(space.stats().error_bytes()[0], 0);
    });
}
