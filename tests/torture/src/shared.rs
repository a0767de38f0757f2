//! Memory that all workers use at once, each part with its own kind of synchronisation.
//!
//! * groups: 16 pages behind one lock, which also guards their model;
//! * words: every 64-bit word has one writer, and all workers have words in every page, so that a page moved out
//!   while somebody writes to it loses that write visibly;
//! * counters: words that all workers add to with atomic instructions; the sum is checked at the end.

use crate::content::{PAGE, WORDS};
use crate::model::Page;
use crate::sys::{self, RW};
use core::sync::atomic::{AtomicU64, Ordering};
use std::sync::Mutex;

/// Pages of a group.
pub const GROUP: usize = 16;

/// All shared memory.
pub struct Shared {
    pub groups_base: usize,
    pub groups: Vec<Mutex<[Page; GROUP]>>,
    words_base: usize,
    pub words_pages: usize,
    counters_base: usize,
    pub counters_pages: usize,
    pub workers: usize,
}

impl Shared {
    /// Maps the shared memory for so many pages altogether.
    pub fn new(pages: usize, workers: usize) -> Self {
        let groups = (pages / 2 / GROUP).max(1);
        let words_pages = (pages / 4).max(2);
        let counters_pages = (pages / 4).max(2);
        Self {
            groups_base: sys::map(groups * GROUP, RW, 0),
            groups: (0..groups).map(|_| Mutex::new([Page::zero(RW); GROUP])).collect(),
            words_base: sys::map(words_pages, RW, 0),
            words_pages,
            counters_base: sys::map(counters_pages, RW, 0),
            counters_pages,
            workers,
        }
    }

    /// Address of a page of a group.
    pub fn group_page(&self, group: usize, page: usize) -> usize {
        self.groups_base + (group * GROUP + page) * PAGE
    }

    /// Words of every page that one worker writes.
    pub fn lanes(&self) -> usize {
        WORDS / self.workers
    }

    /// A worker's word: the worker is its only writer.
    pub fn word(&self, page: usize, lane: usize, worker: usize) -> &AtomicU64 {
        self.atomic(self.words_base + page * PAGE + (lane * self.workers + worker) * 8)
    }

    /// A counter that everybody adds to.
    pub fn counter(&self, page: usize, index: usize) -> &AtomicU64 {
        self.atomic(self.counters_base + page * PAGE + index * 8)
    }

    /// The sum of one page's counters.
    pub fn counter_sum(&self, page: usize) -> u64 {
        (0..WORDS).fold(0, |sum: u64, i| sum.wrapping_add(self.counter(page, i).load(Ordering::Acquire)))
    }

    fn atomic(&self, addr: usize) -> &AtomicU64 {
        // SAFETY: inside a mapping of this structure that is never unmapped; aligned; only used atomically.
        unsafe { AtomicU64::from_ptr(addr as *mut u64) }
    }
}
