//! Random sequences of what a program does to its address space, on several times the budget, against a plain map of
//! what every page must hold.
//!
//! `EBB_FORCE` forces fallbacks, `EBB_TRACE=1` prints each sequence before it runs, `PROPTEST_CASES` says how many.

use crate::harness::alone::alone;
use crate::harness::{ctx, force, leave, space, word_of};
use ebb::stats::Thp;
use ebb::{PinResult, Space, ThreadCtx};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, TestRunner};
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Pages of a folio, and the least budget that has any.
const UNIT: usize = 512;
const RAM_FOR_FOLIOS: u64 = 20 << 20;
const PAGE: usize = 4096;
/// Pages of an arena: four times the budget, or more than that where there are folios.
const PAGES: usize = 6144;
/// Pages that a case excludes at most in one operation, and so many operations.
const EXCLUDED_MAX: usize = 8;
const EXCLUDES_MAX: usize = 4;
/// Pages that one modelled system call uses at most.
const CALL_PAGES_MAX: usize = 40;

/// Each thread's arena lies far below where the kernel puts mappings, so that nobody else maps into its holes; and
/// across a border of leaves.
static NEXT_ARENA: AtomicUsize = AtomicUsize::new((32 << 40) - (10 << 20));

thread_local! {
    static ARENA: usize = NEXT_ARENA.fetch_add(1 << 40, Relaxed);
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Prot {
    None,
    Read,
    Write,
}

impl Prot {
    fn bits(self) -> u64 {
        match self {
            Prot::None => 0,
            Prot::Read => libc::PROT_READ as u64,
            Prot::Write => (libc::PROT_READ | libc::PROT_WRITE) as u64,
        }
    }
}

/// What a page holds: words made from three numbers, and perhaps a first word of its own.
#[derive(Clone, Copy, Debug)]
struct Content {
    key: usize,
    version: u64,
    kind: u64,
    first: Option<u64>,
}

const ZERO: Content = Content { key: 0, version: 0, kind: 0, first: None };

impl Content {
    fn word(&self, index: usize) -> u64 {
        match (index, self.first) {
            (0, Some(first)) => first,
            _ => word_of(self.key, self.version, self.kind, index),
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Page {
    prot: Prot,
    content: Content,
}

#[derive(Clone, Debug)]
enum Op {
    Write {
        at: Range<usize>,
        kind: u64,
    },
    Stamp {
        at: Range<usize>,
    },
    Read {
        at: Range<usize>,
    },
    Drop {
        at: Range<usize>,
        free: bool,
    },
    Protect {
        at: Range<usize>,
        prot: Prot,
    },
    Unmap {
        at: Range<usize>,
    },
    Map {
        at: Range<usize>,
        prot: Prot,
    },
    Resize {
        at: Range<usize>,
        pages: usize,
    },
    Move {
        at: Range<usize>,
        pages: usize,
        to: usize,
        keep: bool,
    },
    Exclude {
        at: Range<usize>,
    },
    BringIn {
        at: Range<usize>,
    },
    Lock {
        at: Range<usize>,
    },
    /// Advice that changes no content.
    Advise {
        at: Range<usize>,
        advice: i32,
    },
    KernelReads {
        at: Range<usize>,
        pressure: Range<usize>,
    },
    KernelWrites {
        at: Range<usize>,
        pressure: Range<usize>,
        kind: u64,
    },
}

fn ram() -> u64 {
    if force().always_huge { RAM_FOR_FOLIOS } else { 6 << 20 }
}

fn pages(n: Range<usize>) -> impl Strategy<Value = Range<usize>> {
    (0..PAGES, n).prop_map(|(at, n)| at..(at + n).min(PAGES))
}

fn prot() -> impl Strategy<Value = Prot> {
    prop_oneof![1 => Just(Prot::None), 1 => Just(Prot::Read), 2 => Just(Prot::Write)]
}

/// Whole units: an arena begins with one.
fn units() -> impl Strategy<Value = Range<usize>> {
    (0..PAGES / UNIT, 1..4usize).prop_map(|(at, n)| at * UNIT..((at + n) * UNIT).min(PAGES))
}

fn advice() -> impl Strategy<Value = i32> {
    /// `MADV_COLLAPSE`
    const COLLAPSE: i32 = 25;
    let all = [libc::MADV_PAGEOUT, COLLAPSE, libc::MADV_HUGEPAGE, libc::MADV_NOHUGEPAGE, libc::MADV_WILLNEED];
    (0..all.len()).prop_map(move |i| all[i])
}

fn op() -> impl Strategy<Value = Op> {
    let wide = || pages(1..900);
    let narrow = || pages(1..100);
    prop_oneof![
        6 => (wide(), 0..4u64).prop_map(|(at, kind)| Op::Write { at, kind }),
        6 => wide().prop_map(|at| Op::Stamp { at }),
        6 => wide().prop_map(|at| Op::Read { at }),
        3 => (wide(), any::<bool>()).prop_map(|(at, free)| Op::Drop { at, free }),
        4 => (wide(), prot()).prop_map(|(at, prot)| Op::Protect { at, prot }),
        2 => narrow().prop_map(|at| Op::Unmap { at }),
        3 => (wide(), prot()).prop_map(|(at, prot)| Op::Map { at, prot }),
        3 => (narrow(), 1..150usize).prop_map(|(at, pages)| Op::Resize { at, pages }),
        4 => (pages(1..600), 1..700usize, 0..PAGES, any::<bool>())
            .prop_map(|(at, pages, to, keep)| Op::Move { at, pages, to, keep }),
        1 => pages(1..EXCLUDED_MAX).prop_map(|at| Op::Exclude { at }),
        2 => pages(1..300).prop_map(|at| Op::BringIn { at }),
        1 => pages(1..EXCLUDED_MAX).prop_map(|at| Op::Lock { at }),
        4 => (prop_oneof![wide(), units()], advice()).prop_map(|(at, advice)| Op::Advise { at, advice }),
        2 => units().prop_map(|at| Op::Read { at }),
        2 => (units(), 0..4u64).prop_map(|(at, kind)| Op::Write { at, kind }),
        2 => units().prop_map(|at| Op::Map { at, prot: Prot::Write }),
        3 => (pages(1..CALL_PAGES_MAX), wide()).prop_map(|(at, pressure)| Op::KernelReads { at, pressure }),
        3 => (pages(1..CALL_PAGES_MAX), wide(), 0..4u64)
            .prop_map(|(at, pressure, kind)| Op::KernelWrites { at, pressure, kind }),
    ]
}

/// An arena of the space beside the map of what must be in it.
struct Machine {
    space: &'static Space,
    ctx: &'static ThreadCtx,
    base: usize,
    model: Vec<Option<Page>>,
    version: u64,
    excludes: usize,
    file: i32,
}

impl Machine {
    fn new() -> Self {
        let space = space(ram(), force());
        let base = ARENA.with(|arena| *arena);
        // SAFETY: makes a descriptor.
        let file = unsafe { libc::memfd_create(c"plain-map".as_ptr(), libc::MFD_CLOEXEC) };
        assert!(file >= 0);
        let mut this = Self { space, ctx: ctx(space), base, model: vec![None; PAGES], version: 0, excludes: 0, file };
        this.map(0..PAGES, Prot::Write);
        this.write(0..PAGES / 3, 2);
        this.write(PAGES / 3..PAGES, 3);
        this.stamp(PAGES / 2..PAGES);
        this
    }

    fn addr(&self, page: usize) -> usize {
        self.base + page * PAGE
    }

    fn bytes(&self, at: &Range<usize>) -> [u64; 2] {
        [self.addr(at.start) as u64, (at.len() * PAGE) as u64]
    }

    fn page(&self, page: usize) -> Option<Page> {
        self.model[page]
    }

    fn can_read(&self, page: usize) -> bool {
        self.page(page).is_some_and(|p| p.prot != Prot::None)
    }

    fn can_write(&self, page: usize) -> bool {
        self.page(page).is_some_and(|p| p.prot == Prot::Write)
    }

    /// The first run of pages in `at` for which `want` holds, at most `max` long; may be empty.
    fn run(&self, at: &Range<usize>, max: usize, want: impl Fn(usize) -> bool) -> Range<usize> {
        let Some(start) = at.clone().find(|i| want(*i)) else { return 0..0 };
        let end = (start..at.end.min(start + max)).find(|i| !want(*i)).unwrap_or(at.end.min(start + max));
        start..end
    }

    fn check_page(&self, page: usize) {
        let content = self.page(page).expect("mapped").content;
        let at = self.addr(page) as *const u64;
        for i in 0..PAGE / 8 {
            // SAFETY: the page is mapped and readable.
            let found = unsafe { at.add(i).read_volatile() };
            assert_eq!(found, content.word(i), "page {page} word {i} of {content:?}");
        }
    }

    fn map(&mut self, at: Range<usize>, prot: Prot) {
        let [addr, len] = self.bytes(&at);
        let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED) as u64;
        assert_eq!(self.space.mmap(self.ctx, [addr, len, prot.bits(), flags, u64::MAX, 0]), addr as i64);
        self.model[at].fill(Some(Page { prot, content: ZERO }));
    }

    fn unmap(&mut self, at: Range<usize>) {
        let [addr, len] = self.bytes(&at);
        assert_eq!(self.space.munmap(self.ctx, [addr, len, 0, 0, 0, 0]), 0);
        self.model[at].fill(None);
    }

    fn write(&mut self, at: Range<usize>, kind: u64) {
        self.version += 1;
        for page in at {
            if !self.can_write(page) {
                continue;
            }
            let content = Content { key: page, version: self.version, kind, first: None };
            let to = self.addr(page) as *mut u64;
            for i in 0..PAGE / 8 {
                // SAFETY: the page is mapped and writable.
                unsafe { to.add(i).write_volatile(content.word(i)) };
            }
            self.model[page] = Some(Page { prot: Prot::Write, content });
        }
    }

    fn stamp(&mut self, at: Range<usize>) {
        self.version += 1;
        for page in at {
            if !self.can_write(page) {
                continue;
            }
            let first = self.version << 32 | page as u64;
            // SAFETY: the page is mapped and writable.
            unsafe { (self.addr(page) as *mut u64).write_volatile(first) };
            if let Some(p) = &mut self.model[page] {
                p.content.first = Some(first);
            }
        }
    }

    fn read(&self, at: Range<usize>) {
        at.filter(|page| self.can_read(*page)).for_each(|page| self.check_page(page));
    }

    fn drop_content(&mut self, at: Range<usize>, free: bool) {
        let [addr, len] = self.bytes(&at);
        let advice = if free { libc::MADV_FREE } else { libc::MADV_DONTNEED } as u64;
        let has_holes = self.model[at.clone()].iter().any(Option::is_none);
        let want = if has_holes { -libc::ENOMEM as i64 } else { 0 };
        assert_eq!(self.space.madvise(self.ctx, [addr, len, advice, 0, 0, 0]), want);
        for page in self.model[at].iter_mut().flatten() {
            page.content = ZERO;
        }
    }

    fn protect(&mut self, at: Range<usize>, prot: Prot) {
        let at = self.run(&at, PAGES, |i| self.page(i).is_some());
        let [addr, len] = self.bytes(&at);
        let nr = libc::SYS_mprotect as u32;
        assert_eq!(self.space.mprotect(self.ctx, nr, [addr, len, prot.bits(), 0, 0, 0]), 0);
        for page in self.model[at].iter_mut().flatten() {
            page.prot = prot;
        }
    }

    /// A run of pages that the kernel may hold in one mapping.
    fn movable(&self, at: &Range<usize>) -> Range<usize> {
        let Some(first) = at.clone().find(|i| self.page(*i).is_some()) else { return 0..0 };
        let prot = self.page(first).map(|p| p.prot);
        self.run(at, PAGES, |i| self.page(i).map(|p| p.prot) == prot)
    }

    /// The kernel's answer to mremap; none when it finds several mappings in the range.
    fn mremap(&self, a: [u64; 5]) -> Option<usize> {
        let result = self.space.mremap(self.ctx, [a[0], a[1], a[2], a[3], a[4], 0]);
        assert!(result > 0 || result == -libc::EFAULT as i64, "mremap: {result}");
        usize::try_from(result).ok()
    }

    /// Takes `at` out of the model; what its first `pages` pages become.
    fn lift(&mut self, at: Range<usize>, pages: usize, keep: bool) -> Vec<Option<Page>> {
        let prot = self.page(at.start).expect("mapped").prot;
        let fresh = Some(Page { prot, content: ZERO });
        let mut lifted = self.model[at.clone()].to_vec();
        lifted.resize(pages, fresh);
        self.model[at].fill(if keep { fresh } else { None });
        lifted
    }

    /// mremap without a place: the kernel keeps, grows, shrinks, or moves out of the arena; then it is moved back.
    fn resize(&mut self, at: Range<usize>, pages: usize) {
        let at = self.movable(&at);
        let pages = pages.min(PAGES - at.start);
        if at.is_empty() {
            return;
        }
        let [addr, len] = self.bytes(&at);
        let new_len = (pages * PAGE) as u64;
        let Some(new) = self.mremap([addr, len, new_len, libc::MREMAP_MAYMOVE as u64, 0]) else { return };
        let content = self.lift(at.clone(), pages, false);
        if new != addr as usize {
            let flags = (libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED) as u64;
            assert_eq!(self.mremap([new as u64, new_len, new_len, flags, addr]), Some(addr as usize));
        }
        self.model[at.start..at.start + pages].copy_from_slice(&content);
    }

    /// mremap to a place in the arena, over whatever is there.
    fn move_to(&mut self, at: Range<usize>, pages: usize, to: usize, keep: bool) {
        let at = self.movable(&at);
        let pages = if keep { at.len() } else { pages };
        let target = to..(to + pages).min(PAGES);
        let overlap = target.start < at.end && at.start < target.end;
        if at.is_empty() || overlap || keep && target.len() < pages {
            return;
        }
        let [addr, len] = self.bytes(&at);
        let [to_addr, to_len] = self.bytes(&target);
        let keep_flag = if keep { libc::MREMAP_DONTUNMAP as u64 } else { 0 };
        let flags = (libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED) as u64 | keep_flag;
        match self.mremap([addr, len, to_len, flags, to_addr]) {
            Some(new) => assert_eq!(new, to_addr as usize),
            None => return self.give_up(at, target),
        }
        let content = self.lift(at, target.len(), keep);
        self.model[target].copy_from_slice(&content);
    }

    /// The kernel unmaps the target of a refused move, and perhaps the end of the source: what is left is not told.
    fn give_up(&mut self, at: Range<usize>, target: Range<usize>) {
        self.unmap(at);
        self.unmap(target);
    }

    fn exclude(&mut self, at: Range<usize>) {
        self.excludes += 1;
        if self.excludes > EXCLUDES_MAX {
            return;
        }
        let [addr, len] = self.bytes(&at);
        self.space.exclude(self.ctx, addr as usize, len as usize);
    }

    fn lock(&self, at: Range<usize>) {
        let at = self.run(&at, EXCLUDED_MAX, |i| self.can_read(i));
        let [addr, len] = self.bytes(&at);
        let call = [addr, len, 0, 0, 0, 0];
        assert_eq!(self.space.mlock(self.ctx, libc::SYS_mlock as u32, call), 0);
        self.read(at);
        assert_eq!(self.space.munlock(self.ctx, call), 0);
    }

    /// Makes `call` with the pages pinned, after others have been touched meanwhile.
    fn pinned(&self, at: &Range<usize>, pressure: Range<usize>, call: impl FnOnce(usize, usize) -> isize) {
        let [addr, len] = self.bytes(at);
        let (addr, len) = (addr as usize, len as usize);
        let sp = &raw const addr as u64;
        if !self.space.pin_fast(self.ctx, sp, addr, len) {
            self.space.pin_begin(self.ctx, sp);
            assert_eq!(self.space.pin_add(self.ctx, addr, len), PinResult::Ok);
        }
        self.read(pressure);
        assert_eq!(call(addr, len), len as isize, "{}", std::io::Error::last_os_error());
        self.space.pin_end(self.ctx);
    }

    fn kernel_reads(&self, at: Range<usize>, pressure: Range<usize>) {
        let at = self.run(&at, CALL_PAGES_MAX, |i| self.can_read(i));
        // SAFETY: the kernel reads the pinned buffer.
        self.pinned(&at, pressure, |addr, len| unsafe { libc::pwrite(self.file, addr as *const _, len, 0) });
        let mut copy = vec![0u64; at.len() * PAGE / 8];
        // SAFETY: the kernel writes within the vector.
        let got = unsafe { libc::pread(self.file, copy.as_mut_ptr().cast(), copy.len() * 8, 0) };
        assert_eq!(got as usize, copy.len() * 8);
        for (page, words) in at.zip(copy.chunks_exact(PAGE / 8)) {
            let content = self.page(page).expect("mapped").content;
            let wrong = words.iter().enumerate().find(|(i, w)| **w != content.word(*i));
            assert_eq!(wrong, None, "page {page} of {content:?} as the kernel saw it");
        }
    }

    fn kernel_writes(&mut self, at: Range<usize>, pressure: Range<usize>, kind: u64) {
        self.version += 1;
        let at = self.run(&at, CALL_PAGES_MAX, |i| self.can_write(i));
        let new = |page| Content { key: page, version: self.version, kind, first: None };
        let words: Vec<u64> = at.clone().flat_map(|page| (0..PAGE / 8).map(move |i| new(page).word(i))).collect();
        // SAFETY: the kernel reads the vector.
        let put = unsafe { libc::pwrite(self.file, words.as_ptr().cast(), words.len() * 8, 0) };
        assert_eq!(put as usize, words.len() * 8);
        // SAFETY: the kernel writes the pinned buffer.
        self.pinned(&at, pressure, |addr, len| unsafe { libc::pread(self.file, addr as *mut _, len, 0) });
        for page in at {
            self.model[page] = Some(Page { prot: Prot::Write, content: new(page) });
        }
    }

    fn apply(&mut self, op: Op) {
        match op {
            Op::Write { at, kind } => self.write(at, kind),
            Op::Stamp { at } => self.stamp(at),
            Op::Read { at } => self.read(at),
            Op::Drop { at, free } => self.drop_content(at, free),
            Op::Protect { at, prot } => self.protect(at, prot),
            Op::Unmap { at } => self.unmap(at),
            Op::Map { at, prot } => self.map(at, prot),
            Op::Resize { at, pages } => self.resize(at, pages),
            Op::Move { at, pages, to, keep } => self.move_to(at, pages, to, keep),
            Op::Exclude { at } => self.exclude(at),
            Op::BringIn { at } => {
                let [addr, len] = self.bytes(&at);
                assert!(self.space.bring_in(self.ctx, addr as usize, len as usize));
            }
            Op::Lock { at } => self.lock(at),
            Op::Advise { at, advice } => {
                let call =
                    [self.base as u64 + (at.start * PAGE) as u64, (at.len() * PAGE) as u64, advice as u64, 0, 0, 0];
                // Holes and locked memory are errors, but nobody's mistake.
                self.space.madvise(self.ctx, call);
            }
            Op::KernelReads { at, pressure } => self.kernel_reads(at, pressure),
            Op::KernelWrites { at, pressure, kind } => self.kernel_writes(at, pressure, kind),
        }
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let call = [self.base as u64, (PAGES * PAGE) as u64, 0, 0, 0, 0];
        self.space.munmap(self.ctx, call);
        // SAFETY: the descriptor is the machine's own.
        unsafe { libc::close(self.file) };
    }
}

/// Runs one sequence on a fresh arena and checks every page at its end.
fn run(ops: Vec<Op>) {
    if std::env::var_os("EBB_TRACE").is_some() {
        eprintln!("{ops:?}");
    }
    let mut machine = Machine::new();
    for op in ops {
        machine.apply(op);
    }
    machine.read(0..PAGES);
    machine.space.validate().expect("consistent");
    drop(machine);
    space(ram(), force()).validate().expect("consistent without the arena");
}

#[test]
fn every_page_holds_what_a_plain_map_says() {
    alone(|| {
        let mut config = Config { failure_persistence: None, max_shrink_iters: 200, ..Config::default() };
        config.cases = config.cases.min(24);
        let mut runner = TestRunner::new(config);
        runner
            .run(&prop::collection::vec(op(), 10..50), |ops| {
                run(ops);
                Ok(())
            })
            .expect("the map and the memory agree");
        let space = space(ram(), force());
        let has_folios = space.thp() != Thp::Never && force().always_huge;
        assert!(!has_folios || space.stats().thp_unmapped.load(Relaxed) > 0, "no folio was used");
        leave(space);
    });
}

#[test]
fn threads_with_maps_of_their_own_do_not_disturb_each_other() {
    alone(|| {
        let threads: Vec<_> = (0..3)
            .map(|_| {
                std::thread::spawn(|| {
                    let mut runner = TestRunner::new(Config::default());
                    let cases = prop::collection::vec(op(), 10..50);
                    for _ in 0..6 {
                        run(cases.new_tree(&mut runner).expect("a sequence").current());
                    }
                    leave(space(ram(), force()));
                })
            })
            .collect();
        for thread in threads {
            thread.join().expect("the map and the memory agree");
        }
    });
}
