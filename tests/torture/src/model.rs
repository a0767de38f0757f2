//! What a worker knows of its memory: for each page whether it is mapped, how it is protected and what it holds.
//!
//! The model itself lives on the heap, which is memory under test as well; so every entry carries a check of its own,
//! and a wrong model is told apart from a wrong page.

use crate::content::{Expect, PAGE, Stamp, Verdict, WORDS, Words, generate, matches};
use crate::report::{COUNTS, add, detail, fail};
use crate::rng::mix;
use crate::sys;

/// What is at a page's address.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum State {
    /// Nothing of this worker's.
    Hole,
    /// Mapped, reads as zero.
    Zero,
    /// Holds its stamp's content.
    Data,
    /// Holds its stamp's content or zeroes: given up with `MADV_FREE`.
    Freed,
}

/// What happens to a page in a forked child.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum AtFork {
    Keep,
    Drop,
    Wipe,
}

/// One page's model.
#[derive(Clone, Copy)]
pub struct Page {
    stamp: Stamp,
    check: u32,
    state: State,
    prot: u8,
    at_fork: AtFork,
}

impl Page {
    fn seal(stamp: Stamp, state: State, prot: i32, at_fork: AtFork) -> Self {
        let mut page = Self { stamp, check: 0, state, prot: prot as u8, at_fork };
        page.check = page.sum();
        page
    }

    fn sum(&self) -> u32 {
        let small = u64::from(self.state as u8) | u64::from(self.prot) << 8 | u64::from(self.at_fork as u8) << 16;
        (mix(self.stamp.0 ^ mix(small | 0xa5 << 24)) >> 32) as u32
    }

    pub fn hole() -> Self {
        Self::seal(Stamp(0), State::Hole, 0, AtFork::Keep)
    }

    pub fn zero(prot: i32) -> Self {
        Self::seal(Stamp(0), State::Zero, prot, AtFork::Keep)
    }

    /// Mapped with the same protection and rule for fork, but zero.
    pub fn wiped(self) -> Self {
        Self::seal(Stamp(0), State::Zero, self.prot(), self.at_fork)
    }

    pub fn holding(self, stamp: Stamp) -> Self {
        Self::seal(stamp, State::Data, self.prot(), self.at_fork)
    }

    /// The content of `other`, at this page.
    pub fn copied(self, other: Self) -> Self {
        Self::seal(other.stamp, other.state, self.prot(), self.at_fork)
    }

    pub fn freed(self) -> Self {
        let state = if self.state == State::Data { State::Freed } else { self.state };
        Self::seal(self.stamp, state, self.prot(), self.at_fork)
    }

    pub fn protected(self, prot: i32) -> Self {
        Self::seal(self.stamp, self.state, prot, self.at_fork)
    }

    pub fn forking(self, at_fork: AtFork) -> Self {
        Self::seal(self.stamp, self.state, self.prot(), at_fork)
    }

    /// This page as a forked child finds it.
    pub fn in_child(self) -> Self {
        match self.at_fork {
            AtFork::Keep => self,
            AtFork::Drop => Self::hole(),
            AtFork::Wipe => self.wiped(),
        }
    }

    pub fn state(self) -> State {
        self.state
    }

    pub fn prot(self) -> i32 {
        i32::from(self.prot)
    }

    pub fn at_fork(self) -> AtFork {
        self.at_fork
    }

    pub fn is_mapped(self) -> bool {
        self.state != State::Hole
    }

    pub fn is_readable(self) -> bool {
        self.is_mapped() && self.prot() & libc::PROT_READ != 0
    }

    pub fn is_writable(self) -> bool {
        self.is_mapped() && self.prot() & libc::PROT_WRITE != 0
    }

    /// Readable, and its content is known exactly.
    pub fn is_certain(self) -> bool {
        self.is_readable() && self.state != State::Freed
    }

    pub fn expect(self) -> Expect {
        match self.state {
            State::Hole | State::Zero => Expect::Zero,
            State::Data => Expect::Data(self.stamp),
            State::Freed => Expect::Either(self.stamp),
        }
    }
}

/// Copies a page out of the memory under test.
pub fn read_page(addr: usize) -> Words {
    let mut words = [0; WORDS];
    // SAFETY: the caller knows the page to be mapped and readable.
    unsafe { core::ptr::copy_nonoverlapping(addr as *const u64, words.as_mut_ptr(), WORDS) };
    words
}

/// Writes a stamp's content to a page of the memory under test.
pub fn write_page(addr: usize, stamp: Stamp) {
    let mut words = [0; WORDS];
    generate(stamp, &mut words);
    // SAFETY: the caller owns the page and knows it to be writable.
    unsafe { core::ptr::copy_nonoverlapping(words.as_ptr(), addr as *mut u64, WORDS) };
    add(&COUNTS.pages_written, 1);
}

/// Checks every byte of a page in place; a wrong page is read again for the report.
pub fn check_in_place(what: &str, addr: usize, expect: Expect) {
    let found = read_page(addr);
    if !matches(&found, expect) {
        detail(format_args!("{what} at address {addr:#x}: {}", Verdict { found: &found, expect }));
        let again = read_page(addr);
        if matches(&again, expect) {
            detail(format_args!("a second read found the right content"));
        } else {
            detail(format_args!("a second read: {}", Verdict { found: &again, expect }));
        }
        fail(format_args!("{what} at address {addr:#x} has wrong content"));
    }
    add(&COUNTS.pages_checked, 1);
}

/// A range of addresses, page by page.
pub struct Area {
    pub id: u32,
    pub base: usize,
    pub pages: Vec<Page>,
}

impl Area {
    pub fn addr(&self, page: usize) -> usize {
        self.base + page * PAGE
    }

    /// The model of one page, after checking that the model is what was put there.
    pub fn page(&self, page: usize) -> Page {
        let model = self.pages[page];
        if model.check != model.sum() {
            fail(format_args!(
                "the heap is corrupt: the model of area {} page {page}, kept at {:#x}",
                self.id, &raw const self.pages[page] as usize
            ));
        }
        model
    }

    pub fn set(&mut self, page: usize, model: Page) {
        self.pages[page] = model;
    }

    /// Applies a change to the models of a run.
    pub fn update(&mut self, start: usize, len: usize, change: impl Fn(Page) -> Page) {
        for i in start..start + len {
            let model = self.page(i);
            self.set(i, change(model));
        }
    }

    /// Checks every byte of one page, as far as it is readable.
    pub fn check(&self, page: usize) {
        let model = self.page(page);
        if model.is_readable() {
            check_in_place("a page", self.addr(page), model.expect());
        }
    }

    /// Checks every readable page.
    pub fn check_all(&self) {
        for page in 0..self.pages.len() {
            self.check(page);
        }
    }

    /// Gives a page new content; it must be writable.
    pub fn write(&mut self, page: usize, stamp: Stamp) {
        let model = self.page(page);
        write_page(self.addr(page), stamp);
        self.set(page, model.holding(stamp));
    }

    /// Takes a run's models away and leaves a hole.
    pub fn take(&mut self, start: usize, len: usize) -> Vec<Page> {
        let taken = (start..start + len).map(|i| self.page(i)).collect();
        self.update(start, len, |_| Page::hole());
        taken
    }

    /// Turns the models into those of a forked child.
    pub fn enter_child(&mut self) {
        for i in 0..self.pages.len() {
            let model = self.page(i);
            self.set(i, model.in_child());
        }
    }

    /// Unmaps every mapped page, in runs.
    pub fn unmap_all(&mut self) {
        let mut start = 0;
        while start < self.pages.len() {
            let len = self.pages[start..].iter().take_while(|page| page.is_mapped()).count();
            if len > 0 {
                sys::unmap(self.addr(start), len);
                self.update(start, len, |_| Page::hole());
            }
            start += len.max(1);
        }
    }
}
