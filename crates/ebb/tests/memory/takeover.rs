//! Memory that was in use before it is managed keeps its content, its holes and its protection.

use crate::harness::alone::alone;
use crate::harness::{check, ctx, fill, force, leave, press, resident, space, unmap};
use ebb::{Mapping, PageMap, Space};
use proptest::prelude::*;
use std::ops::Range;

const PAGE: usize = 4096;
const BUDGET: u64 = 16 << 20;
const READ_WRITE: u32 = 3;
const READ_ONLY: u32 = 1;

/// Memory of the kernel's, not managed, that begins at a multiple of 2 MiB.
struct Plain {
    at: *mut u8,
    pages: usize,
    raw: (*mut libc::c_void, usize),
}

impl Plain {
    fn new(pages: usize) -> Self {
        let bytes = pages * PAGE + (2 << 20);
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a fresh mapping at an address of the kernel's choice.
        let raw = unsafe { libc::mmap(std::ptr::null_mut(), bytes, READ_WRITE as i32, flags, -1, 0) };
        assert_ne!(raw, libc::MAP_FAILED);
        let at = raw as usize;
        Self { at: at.next_multiple_of(2 << 20) as *mut u8, pages, raw: (raw, bytes) }
    }

    fn range(&self, pages: &Range<usize>) -> (usize, usize) {
        (self.at as usize + pages.start * PAGE, self.at as usize + pages.end * PAGE)
    }

    fn mapping(&self, pages: &Range<usize>) -> Mapping {
        let (start, end) = self.range(pages);
        Mapping { start, end, prot: READ_WRITE, ..Mapping::default() }
    }

    fn advise(&self, advice: i32) {
        // SAFETY: changes no content.
        unsafe { libc::madvise(self.at.cast(), self.pages * PAGE, advice) };
    }

    fn protect(&self, pages: &Range<usize>, prot: u32) {
        let (start, end) = self.range(pages);
        // SAFETY: memory of the test's own.
        assert_eq!(unsafe { libc::mprotect(start as *mut _, end - start, prot as i32) }, 0);
    }

    fn take_over(&self, space: &'static Space, mapping: Mapping) {
        let pages = PageMap::open().expect("procfs");
        ctx(space);
        assert!(space.take_over(&pages, &mapping));
    }

    /// Through the engine, which knows the part of it that is managed.
    fn unmap(self, space: &'static Space) {
        unmap(space, self.raw.0.cast(), self.raw.1);
    }
}

#[test]
fn what_was_taken_over_is_swapped_out_and_comes_back() {
    alone(|| {
        let space = space(BUDGET, force());
        let plain = Plain::new(1500);
        for page in 0..1500 {
            fill(plain.at, page, 1, page as u64 % 4);
        }
        plain.take_over(space, plain.mapping(&(0..1500)));
        assert_eq!(space.validate(), Ok(()));
        press(space, BUDGET);
        assert!(resident(plain.at, 1500) < 1500, "nothing was swapped out");
        for page in 0..1500 {
            check(plain.at, page, 1, page as u64 % 4);
        }
        assert_eq!(space.validate(), Ok(()));
        plain.unmap(space);
        leave(space);
    });
}

#[test]
fn huge_pages_are_taken_over_as_small_ones() {
    alone(|| {
        let space = space(BUDGET, force());
        let plain = Plain::new(1024);
        plain.advise(libc::MADV_HUGEPAGE);
        for page in 0..1024 {
            fill(plain.at, page, 2, 3);
        }
        plain.take_over(space, Mapping { has_huge: true, ..plain.mapping(&(0..1024)) });
        press(space, BUDGET);
        assert!(resident(plain.at, 1024) < 1024, "nothing was swapped out");
        for page in 0..1024 {
            check(plain.at, page, 2, 3);
        }
        assert_eq!(space.validate(), Ok(()));
        plain.unmap(space);
        leave(space);
    });
}

#[test]
fn a_hole_reads_as_zero_and_is_not_charged() {
    alone(|| {
        let space = space(BUDGET, force());
        let plain = Plain::new(4096);
        fill(plain.at, 4000, 3, 3);
        let before = space.charged_pages();
        plain.take_over(space, plain.mapping(&(0..4096)));
        // Metadata of a unit beside the page.
        assert!(space.charged_pages() - before < 16, "{} pages charged for one", space.charged_pages() - before);
        check(plain.at, 0, 3, 0);
        check(plain.at, 4000, 3, 3);
        assert_eq!(space.validate(), Ok(()));
        plain.unmap(space);
        leave(space);
    });
}

#[test]
fn pages_shared_with_a_forks_child_leave_memory_too() {
    alone(|| {
        let space = space(BUDGET, force());
        let plain = Plain::new(1024);
        for page in 0..1024 {
            fill(plain.at, page, 4, 3);
        }
        // SAFETY: the child waits to be ended.
        let child = unsafe { libc::fork() };
        if child == 0 {
            loop {
                // SAFETY: waits.
                unsafe { libc::pause() };
            }
        }
        space.note_forked();
        plain.take_over(space, plain.mapping(&(0..1024)));
        press(space, BUDGET);
        assert!(resident(plain.at, 1024) < 1024, "nothing was swapped out");
        for page in 0..1024 {
            check(plain.at, page, 4, 3);
        }
        // SAFETY: the child above, not reaped yet.
        unsafe {
            libc::kill(child, libc::SIGKILL);
            libc::waitpid(child, std::ptr::null_mut(), 0);
        }
        assert_eq!(space.validate(), Ok(()));
        plain.unmap(space);
        leave(space);
    });
}

#[derive(Clone, Debug)]
struct Part {
    pages: usize,
    prot: u32,
    is_taken: bool,
    /// What each page has: 4 nothing, 5 a look only, else a kind of content.
    kinds: Vec<u64>,
}

fn part() -> impl Strategy<Value = Part> {
    let prot = prop_oneof![4 => Just(READ_WRITE), 1 => Just(READ_ONLY), 1 => Just(0)];
    (prop::collection::vec(0..6u64, 1..400), prot, prop::bool::weighted(0.8)).prop_map(|(kinds, prot, is_taken)| Part {
        pages: kinds.len(),
        prot,
        is_taken,
        kinds,
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    fn take_over_any_memory(parts in prop::collection::vec(part(), 1..8), huge: bool) {
        let space = space(BUDGET, force());
        let plain = Plain::new(parts.iter().map(|part| part.pages).sum());
        if huge {
            plain.advise(libc::MADV_HUGEPAGE);
        }
        let mut at = 0;
        let placed: Vec<_> = parts.iter().map(|part| { at += part.pages; (at - part.pages..at, part) }).collect();
        for (range, part) in &placed {
            for (page, kind) in range.clone().zip(&part.kinds) {
                match kind {
                    4 => {}
                    // SAFETY: memory of the test's own.
                    5 => assert_eq!(unsafe { plain.at.add(page * PAGE).read_volatile() }, 0),
                    kind => fill(plain.at, page, 5, *kind),
                }
            }
            plain.protect(range, part.prot);
        }
        for (range, part) in placed.iter().filter(|(_, part)| part.is_taken) {
            plain.take_over(space, Mapping { prot: part.prot, has_huge: huge, ..plain.mapping(range) });
        }
        prop_assert_eq!(space.validate(), Ok(()));
        press(space, BUDGET);
        for (range, part) in &placed {
            let (start, end) = plain.range(range);
            let protect = [start as u64, (end - start) as u64, READ_WRITE as u64, 0, 0, 0];
            prop_assert_eq!(space.mprotect(ctx(space), libc::SYS_mprotect as u32, protect), 0);
            for (page, kind) in range.clone().zip(&part.kinds) {
                check(plain.at, page, 5, if *kind > 3 { 0 } else { *kind });
            }
        }
        prop_assert_eq!(space.validate(), Ok(()));
        plain.unmap(space);
    }
}

#[test]
fn any_memory_is_after_the_change_what_it_was_before() {
    alone(|| {
        take_over_any_memory();
    });
}
