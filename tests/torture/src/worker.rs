//! A worker: a thread with its own areas, its own random numbers and its share of everything else.

use crate::content::{PAGE, Stamp};
use crate::model::{Area, Page};
use crate::ops::coroutine::Coroutine;
use crate::ops::heap::Block;
use crate::ops::process::Child;
use crate::ops::program_break::Break;
use crate::ops::signals::Storm;
use crate::ops::{self, Op};
use crate::report::{COUNTS, add, detail, fail};
use crate::rng::Rng;
use crate::shared::Shared;
use crate::sys;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::fs::File;
use std::time::Instant;

/// Most workers a run can have.
pub const WORKERS_MAX: usize = 64;

/// The last eight operations of every worker, a byte each, the newest lowest, and how many it has begun: for the
/// report and the watchdog.
static HISTORY: [AtomicU64; WORKERS_MAX] = [const { AtomicU64::new(0) }; WORKERS_MAX];
static BEGUN: [AtomicU64; WORKERS_MAX] = [const { AtomicU64::new(0) }; WORKERS_MAX];

/// How many operations a worker has begun.
pub fn begun(worker: usize) -> u64 {
    BEGUN[worker].load(Ordering::Relaxed)
}

/// Set when the run is to end before its limit.
static STOP: AtomicBool = AtomicBool::new(false);

/// Lets every worker end after the operation that it is at.
pub fn stop() {
    STOP.store(true, Ordering::Relaxed);
}

/// Prints what every worker did last.
pub fn print_history() {
    for (worker, history) in HISTORY.iter().enumerate() {
        if begun(worker) > 0 {
            let history = history.load(Ordering::Relaxed);
            let name = |n: u32| ops::name((history >> (8 * n)) as u8);
            detail(format_args!(
                "worker {worker}, operation {}: {} (before it: {}, {}, {}, {}, {})",
                begun(worker),
                name(0),
                name(1),
                name(2),
                name(3),
                name(4),
                name(5)
            ));
        }
    }
}

/// What limits a run.
#[derive(Clone, Copy)]
pub struct Limit {
    pub until: Instant,
    pub operations: u64,
}

/// One thread's state.
pub struct Worker {
    pub index: usize,
    pub rng: Rng,
    pub shared: &'static Shared,
    pub areas: Vec<Area>,
    /// Pages this worker should have mapped, about.
    pub target: usize,
    pub words: Vec<u64>,
    pub counted: Vec<u64>,
    pub blocks: Vec<Block>,
    pub children: Vec<Child>,
    pub coroutines: Vec<Coroutine>,
    pub storm: Option<Box<Storm>>,
    pub program_break: Option<Break>,
    pub code: Option<(usize, u32)>,
    pub file: File,
    /// Pages for odd pieces of data: paths, structures. Not modelled between operations.
    pub scratch: usize,
    /// The stack of this thread's handlers while no storm brings its own.
    pub alt_stack: usize,
    next_area: u32,
    version: u32,
    owner: usize,
}

/// Pages of [`Worker::scratch`].
pub const SCRATCH_PAGES: usize = 8;

/// A run of pages: index of the area, first page, number of pages.
#[derive(Clone, Copy, PartialEq)]
pub struct Run {
    pub area: usize,
    pub start: usize,
    pub len: usize,
}

impl Run {
    pub fn overlaps(self, other: Self) -> bool {
        self.area == other.area && self.start < other.start + other.len && other.start < self.start + self.len
    }
}

impl Worker {
    pub fn new(index: usize, seed: u64, shared: &'static Shared, target: usize, program_break: Option<Break>) -> Self {
        Self {
            index,
            rng: Rng::new(seed, index as u64),
            shared,
            areas: Vec::new(),
            target,
            words: vec![0; shared.words_pages * shared.lanes()],
            counted: vec![0; shared.counters_pages],
            blocks: Vec::new(),
            children: Vec::new(),
            coroutines: Vec::new(),
            storm: None,
            program_break,
            code: None,
            file: ops::io::unlinked_file(),
            scratch: sys::map(SCRATCH_PAGES, sys::RW, 0),
            alt_stack: ops::signals::new_alt_stack(),
            next_area: 0,
            version: 0,
            owner: index,
        }
    }

    /// Works until the limit, then checks everything that is left.
    pub fn work(&mut self, limit: Limit, ops: &[&'static Op]) {
        let total: usize = ops.iter().map(|op| op.weight).sum();
        let mut done = 0;
        while done < limit.operations && Instant::now() < limit.until && !STOP.load(Ordering::Relaxed) {
            let mut ticket = self.rng.below(total);
            let op = ops.iter().find(|op| {
                let hit = ticket < op.weight;
                ticket = ticket.wrapping_sub(op.weight);
                hit
            });
            self.perform(op.unwrap_or(&ops[0]));
            done += 1;
        }
        self.perform(&ops::FINISH);
    }

    fn perform(&mut self, op: &Op) {
        let history = HISTORY[self.index].load(Ordering::Relaxed);
        HISTORY[self.index].store(history << 8 | u64::from(ops::number(op)), Ordering::Relaxed);
        BEGUN[self.index].fetch_add(1, Ordering::Relaxed);
        (op.run)(self);
        add(&COUNTS.operations, 1);
    }

    /// From now on this is a forked child's copy: what it writes carries a mark above the workers' numbers.
    pub fn become_child(&mut self, mark: usize) {
        self.owner |= mark;
    }

    /// A stamp never used before.
    pub fn stamp(&mut self, area: u32, page: usize) -> Stamp {
        self.version += 1;
        Stamp::new(self.owner, area, page, self.version)
    }

    /// Adds an area for what is mapped at `base`.
    pub fn adopt(&mut self, base: usize, pages: Vec<Page>) -> usize {
        self.next_area += 1;
        self.areas.push(Area { id: self.next_area, base, pages });
        self.areas.len() - 1
    }

    /// Writes new content to one page.
    pub fn write(&mut self, area: usize, page: usize) {
        let stamp = self.stamp(self.areas[area].id, page);
        self.areas[area].write(page, stamp);
    }

    /// Writes new content to a run.
    pub fn write_run(&mut self, run: Run) {
        for page in run.start..run.start + run.len {
            self.write(run.area, page);
        }
    }

    /// Address of a run.
    pub fn addr(&self, run: Run) -> usize {
        self.areas[run.area].addr(run.start)
    }

    /// A random run of at most `max` pages that all are as wanted.
    pub fn run_of(&mut self, max: usize, wanted: impl Fn(Page) -> bool) -> Option<Run> {
        self.run_where(max, |_, page| wanted(page))
    }

    /// A random run of pages with the same protection and rule for fork.
    pub fn uniform_run(&mut self, max: usize) -> Option<Run> {
        self.run_where(max, |first, page| {
            page.is_mapped() && page.prot() == first.prot() && page.at_fork() == first.at_fork()
        })
    }

    fn run_where(&mut self, max: usize, wanted: impl Fn(Page, Page) -> bool) -> Option<Run> {
        for _ in 0..8 {
            if self.areas.is_empty() {
                return None;
            }
            let area = self.rng.below(self.areas.len());
            let pages = self.areas[area].pages.len();
            let start = self.rng.below(pages);
            let first = self.areas[area].page(start);
            let max = self.rng.between(1, max.max(1)).min(pages - start);
            let len = (0..max).take_while(|i| wanted(first, self.areas[area].page(start + i))).count();
            if len > 0 {
                return Some(Run { area, start, len });
            }
        }
        None
    }

    /// A random length in pages: mostly small, sometimes a large part of this worker's memory.
    pub fn length(&mut self) -> usize {
        let target = self.target;
        match self.rng.below(16) {
            0..=7 => self.rng.between(1, 16),
            8..=12 => self.rng.between(1, 128),
            13 | 14 => self.rng.between(1, (target / 8).max(1)),
            _ => self.rng.between(1, (target / 3).max(1)),
        }
    }

    /// Pages that are mapped in all areas.
    pub fn mapped(&self) -> usize {
        self.areas.iter().map(|area| area.pages.iter().filter(|page| page.is_mapped()).count()).sum()
    }

    /// Drops an area's holes at both ends, or the whole area when nothing is left of it.
    pub fn tidy(&mut self, area: usize) {
        let pages = &mut self.areas[area].pages;
        let front = pages.iter().take_while(|page| !page.is_mapped()).count();
        let back = pages[front..].iter().rev().take_while(|page| !page.is_mapped()).count();
        pages.truncate(pages.len() - back);
        pages.drain(..front);
        self.areas[area].base += front * PAGE;
        if self.areas[area].pages.is_empty() {
            self.areas.swap_remove(area);
        }
    }

    /// Checks everything this worker knows.
    pub fn check_all(&mut self) {
        for area in &self.areas {
            area.check_all();
        }
        for block in &self.blocks {
            block.check();
        }
        if let Some(program_break) = &self.program_break {
            program_break.check_all();
        }
        self.check_words();
    }

    /// Checks every word this worker is the only writer of.
    pub fn check_words(&self) {
        let lanes = self.shared.lanes();
        for (i, &expected) in self.words.iter().enumerate() {
            let word = self.shared.word(i / lanes, i % lanes, self.index);
            let found = word.load(Ordering::Acquire);
            if found != expected {
                ops::shared::wrong_word(self.index, word, found, expected);
            }
        }
    }

    /// Waits for a condition that must come true within a minute.
    pub fn wait_for(what: &str, mut done: impl FnMut() -> bool) {
        let start = Instant::now();
        while !done() {
            if start.elapsed().as_secs() > 60 {
                fail(format_args!("{what} did not happen within 60 s"));
            }
            std::thread::sleep(std::time::Duration::from_micros(200));
        }
    }
}
