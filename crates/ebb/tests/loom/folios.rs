//! A large folio of two pages: it comes in whole and clean, leaves whole, comes back whole, and is made of small pages, beside threads
//! that write to either page. Modelled as in the head of `loom.rs`, with one page table entry for both: the processor sees all of a
//! huge page protected, moved or dropped at once.

use super::{explore, get, replace, set};
use ebb::page::{PageWord, State, Tag};
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::thread;

const PAGES: usize = 2;
/// The entry's marks: which pages are mapped, and that all are protected. Their contents are above, a byte each.
const MAPPED: [u64; PAGES] = [1, 2];
const ALL: u64 = 3;
const PROTECTED: u64 = 4;

fn one(page: usize) -> u64 {
    1 << (8 * (page + 1))
}

fn content(entry: u64, page: usize) -> u64 {
    entry >> (8 * (page + 1)) & 0xff
}

fn entry_of(contents: [u64; PAGES]) -> u64 {
    ALL | (0..PAGES).map(|page| contents[page] * one(page)).sum::<u64>()
}

struct Folio {
    words: [AtomicU64; PAGES],
    entry: AtomicU64,
    frames: [UnsafeCell<Option<u64>>; PAGES],
    owners: [AtomicU64; PAGES],
    slots: [UnsafeCell<Option<u64>>; PAGES],
}

impl Folio {
    fn new() -> Self {
        Self {
            words: [0, 1].map(|_| AtomicU64::new(0)),
            entry: AtomicU64::new(0),
            frames: [0, 1].map(|_| UnsafeCell::new(None)),
            owners: [0, 1].map(|_| AtomicU64::new(0)),
            slots: [0, 1].map(|_| UnsafeCell::new(None)),
        }
    }

    fn present(contents: [u64; PAGES]) -> Self {
        let folio = Self::new();
        folio.entry.store(entry_of(contents), Ordering::Relaxed);
        (0..PAGES).for_each(|page| set(folio.word(page), State::PRESENT));
        folio
    }

    fn swapped(contents: [u64; PAGES]) -> Self {
        let folio = Self::new();
        for (page, content) in contents.into_iter().enumerate() {
            replace(&folio.slots[page], Some(content));
            set(folio.word(page), State::swapped(page as u64));
        }
        folio
    }

    fn word(&self, page: usize) -> PageWord<'_> {
        PageWord(&self.words[page])
    }

    /// As `folio::claim_unit`: all or none.
    fn claim_all(&self, is_meant: impl Fn(State) -> bool) -> Option<[State; PAGES]> {
        let mut saved = [State::NONE; PAGES];
        for page in 0..PAGES {
            let seen = self.word(page).load();
            if !is_meant(seen) || !self.word(page).try_claim(seen) {
                (0..page).for_each(|page| self.word(page).finish(saved[page]));
                return None;
            }
            saved[page] = seen;
        }
        Some(saved)
    }

    fn finish_all(&self, state: impl Fn(usize) -> State) {
        (0..PAGES).for_each(|page| self.word(page).finish(state(page)));
    }

    fn free_slots(&self, states: [State; PAGES]) {
        for page in (0..PAGES).filter(|page| states[*page].is_clean() || states[*page].tag() == Tag::Swapped) {
            assert!(replace(&self.slots[page], None).is_some(), "it has a slot");
        }
    }

    fn map_all(&self, contents: [u64; PAGES]) {
        let mapped = self.entry.compare_exchange(0, entry_of(contents), Ordering::Relaxed, Ordering::Relaxed);
        assert!(mapped.is_ok(), "something was mapped already");
    }

    /// As `whole::load`, for a walk that reads: MOVE, protection, comparison.
    fn load(&self) {
        let Some(states) = self.claim_all(|state| state.tag() == Tag::Swapped) else { return };
        let loaded = [0, 1].map(|page| get(&self.slots[page]).expect("a swapped page has a slot"));
        self.map_all(loaded);
        self.entry.fetch_or(PROTECTED, Ordering::Relaxed);
        if self.entry.load(Ordering::Relaxed) == entry_of(loaded) | PROTECTED {
            return self.finish_all(|page| State::clean(states[page].payload()));
        }
        self.entry.fetch_and(!PROTECTED, Ordering::Relaxed);
        self.free_slots(states);
        self.finish_all(|_| State::PRESENT);
    }

    /// As `clean_folio::open`.
    fn open(&self) {
        let Some(states) = self.claim_all(|state| state.tag() == Tag::Present) else { return };
        self.free_slots(states);
        self.entry.fetch_and(!PROTECTED, Ordering::Relaxed);
        self.finish_all(|_| State::PRESENT);
    }

    /// As `whole::from_staging`.
    fn come_back(&self) {
        if self.claim_all(|state| state.tag() == Tag::Staged).is_none() {
            return;
        }
        self.map_all([0, 1].map(|page| get(&self.frames[page]).expect("a staged page has a frame")));
        self.finish_all(|_| State::PRESENT);
        self.owners.iter().for_each(|owner| _ = owner.swap(0, Ordering::Release));
    }

    /// The fault on one page.
    fn fault(&self, page: usize) {
        let word = self.word(page);
        let seen = word.load();
        match seen.tag() {
            Tag::Present if seen.is_clean() => {
                self.open();
                return (0..PAGES).for_each(|page| self.word(page).wait_while_busy());
            }
            _ if !word.try_claim(seen) => return word.wait_while_busy(),
            _ => {}
        }
        let alone = match seen.tag() {
            Tag::Staged => get(&self.frames[page]).expect("a staged page has a frame"),
            Tag::Swapped => replace(&self.slots[page], None).expect("a swapped page has a slot"),
            _ => return word.finish(seen),
        };
        let before = self.entry.fetch_add(MAPPED[page] + alone * one(page), Ordering::Relaxed);
        assert!(before & MAPPED[page] == 0 && content(before, page) == 0, "the page was mapped already");
        word.finish(State::PRESENT);
        if seen.tag() == Tag::Staged {
            self.owners[page].swap(0, Ordering::Release);
        }
    }

    /// The program adds one to a page.
    fn increment(&self, page: usize) {
        loop {
            let entry = self.entry.load(Ordering::Relaxed);
            if entry & MAPPED[page] == 0 || entry & PROTECTED != 0 {
                self.fault(page);
            } else if self
                .entry
                .compare_exchange(entry, entry + one(page), Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
            {
                return;
            }
        }
    }

    /// As the sweep of a folio: drops it if it is clean, and stages it otherwise. True if it is staged.
    fn sweep(&self) -> bool {
        if let Some(states) = self.claim_all(State::is_clean) {
            let dropped = self.entry.swap(0, Ordering::Relaxed);
            let kept = [0, 1].map(|page| get(&self.slots[page]).expect("a clean page has a slot"));
            assert_eq!(dropped, entry_of(kept) | PROTECTED, "written while it was clean");
            self.finish_all(|page| State::swapped(states[page].payload()));
            return false;
        }
        if self.claim_all(State::is_open).is_none() {
            return false;
        }
        let moved = self.entry.swap(0, Ordering::Relaxed);
        assert_eq!(moved & (ALL | PROTECTED), ALL, "open pages are mapped");
        for page in 0..PAGES {
            assert_eq!(replace(&self.frames[page], Some(content(moved, page))), None);
            self.owners[page].store(1, Ordering::Relaxed);
        }
        self.finish_all(|page| State::staged(page as u32));
        true
    }

    /// As `swapout`, page by page, until all frames can go.
    fn swap_out(&self) {
        while self.owners.iter().any(|owner| owner.load(Ordering::Acquire) != 0) {
            for page in 0..PAGES {
                let (word, seen) = (self.word(page), self.word(page).load());
                if seen.tag() == Tag::Staged && word.try_claim(seen) {
                    let content = get(&self.frames[page]).expect("a staged page has a frame");
                    assert_eq!(replace(&self.slots[page], Some(content)), None);
                    word.finish(State::swapped(page as u64));
                    self.owners[page].swap(0, Ordering::Release);
                }
            }
            thread::yield_now();
        }
        self.frames.iter().for_each(|frame| _ = replace(frame, None));
    }

    /// As `collapse::replace`.
    fn collapse(&self) {
        if self.claim_all(State::is_open).is_none() {
            return;
        }
        let copied = self.entry.fetch_or(PROTECTED, Ordering::Relaxed);
        assert_eq!(copied & (ALL | PROTECTED), ALL, "open pages are mapped");
        assert_eq!(self.entry.swap(0, Ordering::Relaxed), copied | PROTECTED, "written while it was copied");
        self.map_all([0, 1].map(|page| content(copied, page)));
        self.finish_all(|_| State::PRESENT);
    }

    /// What a page holds now. Nobody else may be at work.
    fn content(&self, page: usize) -> u64 {
        self.increment(page);
        content(self.entry.load(Ordering::Relaxed), page) - 1
    }
}

/// A writer for each page, beside `work`. Each page holds one more than it did afterwards.
fn writers_beside(folio: impl Fn() -> Folio + Sync + Send + 'static, work: impl Fn(&Folio) + Sync + Send + 'static) {
    explore(1, move || {
        let folio = Arc::new(folio());
        let writers: [_; PAGES] = core::array::from_fn(|page| {
            let folio = folio.clone();
            thread::spawn(move || folio.increment(page))
        });
        work(&folio);
        writers.into_iter().for_each(|writer| writer.join().unwrap());
        assert_eq!([0, 1].map(|page| folio.content(page)), [6, 8]);
    });
}

#[test]
fn writes_to_a_folio_that_comes_in_clean_survive_its_eviction() {
    writers_beside(
        || Folio::swapped([5, 7]),
        |folio| {
            folio.load();
            if folio.sweep() {
                folio.swap_out();
            }
        },
    );
}

#[test]
fn writes_to_a_folio_that_leaves_and_comes_back_are_not_lost() {
    writers_beside(
        || Folio::present([5, 7]),
        |folio| {
            if folio.sweep() {
                folio.come_back();
                folio.swap_out();
                folio.load();
            }
        },
    );
}

#[test]
fn writes_to_pages_that_become_a_folio_are_not_lost() {
    writers_beside(
        || Folio::present([5, 7]),
        |folio| {
            folio.collapse();
            if folio.sweep() {
                folio.swap_out();
            }
        },
    );
}
