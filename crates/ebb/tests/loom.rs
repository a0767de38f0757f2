//! Every interleaving of a few threads at one page and one part of staging. The gate, shares, grants, charges and what the
//! kernel uses have files of their own.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p ebb --test loom --release`
//!
//! What is real here: the page word. What is modelled, with the engine's own orderings: the page
//! table entry (one relaxed atomic, because the processor's accesses order nothing), the frame, the slot and the frame's
//! owner. Frame and slot are loom cells, so that two threads in one of them at a time end the test.
#![cfg(loom)]

#[path = "loom/bucket.rs"]
mod bucket;
#[path = "loom/charges.rs"]
mod charges;
#[path = "loom/claims.rs"]
mod claims;
#[path = "loom/deposits.rs"]
mod deposits;
#[path = "loom/errand.rs"]
mod errand;
#[path = "loom/folios.rs"]
mod folios;
#[path = "loom/gate.rs"]
mod gate;
#[path = "loom/grants.rs"]
mod grants;
#[path = "loom/holders.rs"]
mod holders;
#[path = "loom/life.rs"]
mod life;
#[path = "loom/moves.rs"]
mod moves;
#[path = "loom/rest.rs"]
mod rest;
#[path = "loom/seals.rs"]
mod seals;
#[path = "loom/shares.rs"]
mod shares;
#[path = "loom/stalls.rs"]
mod stalls;
#[path = "loom/together.rs"]
mod together;
#[path = "loom/used.rs"]
mod used;
#[path = "loom/versions.rs"]
mod versions;

use ebb::gate::Gate;
use ebb::page::{PageWord, State, Tag};
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::thread;

/// Runs every interleaving with at most so many preemptions.
fn explore(preemptions_max: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions_max);
    builder.max_branches = 20_000;
    builder.check(model);
}

/// Sets the state of a page that nobody else has seen yet.
fn set(word: PageWord<'_>, state: State) {
    word.set_exclusive(&Gate::default().close(1, core::iter::empty()), state);
}

fn get<T: Copy>(cell: &UnsafeCell<T>) -> T {
    // SAFETY: loom ends the test when another thread writes meanwhile.
    cell.with(|value| unsafe { *value })
}

fn replace<T>(cell: &UnsafeCell<T>, new: T) -> T {
    // SAFETY: loom ends the test when another thread is in the cell meanwhile.
    cell.with_mut(|value| unsafe { core::mem::replace(&mut *value, new) })
}

/// The entry's marks; the content is above them. An entry of 0 is not mapped.
const MAPPED: u64 = 1;
const PROTECTED: u64 = 2;
const CONTENT_SHIFT: u32 = 2;

/// The address that owns the frame.
const ADDR: u64 = 0x1000;

/// One page with all the places where its content can be.
struct Page {
    word: AtomicU64,
    entry: AtomicU64,
    frame: UnsafeCell<Option<u64>>,
    owner: AtomicU64,
    slot: UnsafeCell<Option<u64>>,
}

/// How the sweep unmaps.
#[derive(Clone, Copy)]
enum Unmap {
    Move,
    Copy,
}

impl Page {
    fn new() -> Self {
        Self {
            word: AtomicU64::new(0),
            entry: AtomicU64::new(0),
            frame: UnsafeCell::new(None),
            owner: AtomicU64::new(0),
            slot: UnsafeCell::new(None),
        }
    }

    /// With `content` mapped.
    fn present(content: u64) -> Self {
        let page = Self::new();
        page.entry.store(content << CONTENT_SHIFT | MAPPED, Ordering::Relaxed);
        set(page.word(), State::PRESENT);
        page
    }

    fn word(&self) -> PageWord<'_> {
        PageWord(&self.word)
    }

    /// The program adds one to the page's content, faulting as often as it takes.
    fn increment(&self) {
        self.increment_with(Self::fault);
    }

    /// The same, with a read that faults first.
    fn increment_read_first(&self) {
        self.increment_with(Self::fault_clean);
    }

    fn increment_with(&self, fault: impl Fn(&Self)) {
        loop {
            let entry = self.entry.load(Ordering::Relaxed);
            if entry & (MAPPED | PROTECTED) != MAPPED {
                fault(self);
                continue;
            }
            let more = entry + (1 << CONTENT_SHIFT);
            if self.entry.compare_exchange(entry, more, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
                return;
            }
        }
    }

    /// What the page holds now, wherever it is. Nobody else may be at work.
    fn content(&self) -> u64 {
        self.fault();
        self.entry.load(Ordering::Relaxed) >> CONTENT_SHIFT
    }

    fn map(&self, content: u64) {
        let entry = content << CONTENT_SHIFT | MAPPED;
        let mapped = self.entry.compare_exchange(0, entry, Ordering::Relaxed, Ordering::Relaxed);
        assert!(mapped.is_ok(), "the page was mapped already");
    }

    /// The way in, as in `swapin`: one claim, one copy, then the old place goes.
    fn fault(&self) {
        loop {
            let word = self.word();
            let seen = word.load();
            if seen.tag() == Tag::Busy {
                if self.take_back() {
                    return;
                }
                word.wait_while_busy();
                continue;
            }
            if !word.try_claim(seen) {
                continue;
            }
            match seen.tag() {
                Tag::None => self.map(0),
                Tag::Staged => self.map(get(&self.frame).expect("a staged page has a frame")),
                Tag::Swapped => self.map(replace(&self.slot, None).expect("a swapped page has a slot")),
                // Somebody else was faster, or a sweep gave the page back protected.
                Tag::Present => drop(self.entry.fetch_and(!PROTECTED, Ordering::Relaxed)),
                Tag::Busy => unreachable!("claimed"),
            }
            word.finish(State::PRESENT);
            if seen.tag() == Tag::Staged {
                self.owner.swap(0, Ordering::Release);
            }
            return;
        }
    }

    /// A fault for reading, which leaves a swapped page clean, and a first write to a clean page, as in `clean`.
    fn fault_clean(&self) {
        let word = self.word();
        let seen = word.load();
        if !seen.is_clean() && seen.tag() != Tag::Swapped {
            return self.fault();
        }
        if !word.try_claim(seen) {
            return word.wait_while_busy();
        }
        if seen.is_clean() {
            assert!(replace(&self.slot, None).is_some(), "a clean page has a slot");
            self.entry.fetch_and(!PROTECTED, Ordering::Relaxed);
            return word.finish(State::PRESENT);
        }
        let content = get(&self.slot).expect("a swapped page has a slot");
        let entry = content << CONTENT_SHIFT | MAPPED | PROTECTED;
        assert_eq!(self.entry.swap(entry, Ordering::Relaxed), 0, "the page was mapped already");
        word.finish(State::clean(0));
    }

    /// As in `drop_clean`: unmaps a clean page, whose content the slot holds.
    fn drop_clean(&self) {
        let word = self.word();
        let seen = word.load();
        if seen.is_clean() && word.try_claim(seen) {
            let dropped = self.entry.swap(0, Ordering::Relaxed);
            let kept = get(&self.slot).expect("a clean page has a slot");
            assert_eq!(dropped, kept << CONTENT_SHIFT | MAPPED | PROTECTED, "written while it was clean");
            word.finish(State::swapped(0));
        }
    }

    /// As in `sweep`, for a page whose frame is free. True when the page went.
    fn sweep(&self, how: Unmap) -> bool {
        let word = self.word();
        let seen = word.load();
        if seen.tag() != Tag::Present || !word.try_claim(seen) {
            return false;
        }
        let entry = match how {
            Unmap::Move => self.entry.swap(0, Ordering::Relaxed),
            Unmap::Copy => self.entry.fetch_or(PROTECTED, Ordering::Relaxed),
        };
        assert!(entry & MAPPED != 0, "a present page is mapped");
        assert_eq!(replace(&self.frame, Some(entry >> CONTENT_SHIFT)), None);
        if let Unmap::Copy = how {
            let dropped = self.entry.swap(0, Ordering::Relaxed);
            assert_eq!(dropped, entry | PROTECTED, "written while it was copied");
        }
        self.owner.store(ADDR, Ordering::Relaxed);
        word.finish(State::staged(0));
        true
    }

    /// As in `swapin`: who needs the page takes it back from a sweep.
    fn take_back(&self) -> bool {
        let is_back = self.word().try_take_back();
        if is_back {
            self.entry.fetch_and(!PROTECTED, Ordering::Relaxed);
            self.word().finish(State::PRESENT);
        }
        is_back
    }

    /// As in `in_place`: the claim is loose while the content is stored. True if the page went.
    fn evict_in_place(&self, ticket: u64) -> bool {
        let word = self.word();
        let seen = word.load();
        if !seen.is_open() || !word.try_claim(seen) {
            return false;
        }
        self.entry.fetch_or(PROTECTED, Ordering::Relaxed);
        word.loosen(ticket);
        // Its turn comes.
        if !word.firm_up(ticket) {
            return false;
        }
        let entry = self.entry.load(Ordering::Relaxed);
        assert_eq!(
            entry & (MAPPED | PROTECTED),
            MAPPED | PROTECTED,
            "a page that is read is mapped, and nobody writes to it"
        );
        let stored = entry >> CONTENT_SHIFT;
        word.loosen(ticket);
        // It is compressed.
        if !word.firm_up(ticket) {
            return false;
        }
        let dropped = self.entry.swap(0, Ordering::Relaxed);
        assert_eq!(dropped, stored << CONTENT_SHIFT | MAPPED | PROTECTED, "written while it was stored");
        assert_eq!(replace(&self.slot, Some(stored)), None);
        word.finish(State::swapped(0));
        true
    }

    /// As in `give_back`: a hole between pages that go. It is nobody's while these are compressed, and claimed again before one call
    /// drops all of them.
    fn drop_with_others(&self) {
        let claim_hole = || {
            let seen = self.word().load();
            (seen.tag() != Tag::Present && self.word().try_claim(seen)).then_some(seen)
        };
        if let Some(seen) = claim_hole() {
            self.word().finish(seen);
        }
        // They are compressed.
        if let Some(seen) = claim_hole() {
            assert_eq!(self.entry.swap(0, Ordering::Relaxed), 0, "a hole is not mapped");
            self.word().finish(seen);
        }
    }

    /// The sweep of a page that is not clean.
    fn sweep_open(&self) -> bool {
        self.word().load().is_open() && self.sweep(Unmap::Move)
    }

    /// As in `swapout`.
    fn swap_out(&self) {
        if self.owner.load(Ordering::Relaxed) == 0 {
            return;
        }
        let word = self.word();
        let seen = word.load();
        if seen.tag() != Tag::Staged || !word.try_claim(seen) {
            return;
        }
        let content = get(&self.frame).expect("a staged page has a frame");
        assert_eq!(replace(&self.slot, Some(content)), None);
        word.finish(State::swapped(0));
        self.owner.swap(0, Ordering::Release);
    }

    /// As in `discard`: a claim, one call of the kernel, then the content's place goes. Holes are claimed, too.
    fn discard(&self) {
        let word = self.word();
        loop {
            let seen = word.load();
            if !word.try_claim(seen) {
                if !self.take_back() {
                    word.wait_while_busy();
                }
                continue;
            }
            let dropped = self.entry.swap(0, Ordering::Relaxed);
            assert_eq!(dropped & MAPPED != 0, seen.tag() == Tag::Present, "the word says what is mapped");
            if seen.is_clean() || seen.tag() == Tag::Swapped {
                assert!(replace(&self.slot, None).is_some(), "it has a slot");
            }
            if seen.tag() == Tag::Staged {
                self.owner.swap(0, Ordering::Release);
            }
            return word.finish(State::NONE);
        }
    }

    /// As in `retire`: releases the frame's memory unless somebody needs it.
    fn release(&self) -> bool {
        let drained = self.owner.load(Ordering::Acquire) == 0;
        if drained {
            replace(&self.frame, None);
        }
        drained
    }
}

/// Two threads that write, and one that sends the page all the way out, twice.
fn writers_meet_an_evictor(how: Unmap) {
    let page = Arc::new(Page::present(5));
    let writers: [_; 2] = core::array::from_fn(|_| {
        let page = page.clone();
        thread::spawn(move || page.increment())
    });
    for _ in 0..2 {
        if page.sweep(how) {
            page.swap_out();
            while !page.release() {
                thread::yield_now();
                page.swap_out();
            }
        }
    }
    for writer in writers {
        writer.join().unwrap();
    }
    assert_eq!(page.content(), 7);
}

#[test]
fn two_writers_lose_nothing_to_an_eviction_by_move() {
    explore(2, || writers_meet_an_evictor(Unmap::Move));
}

#[test]
fn two_writers_lose_nothing_to_an_eviction_by_copy() {
    explore(2, || writers_meet_an_evictor(Unmap::Copy));
}

#[test]
fn a_writer_takes_its_page_back_from_an_eviction_in_place() {
    explore(2, || {
        let page = Arc::new(Page::present(5));
        let writers: [_; 2] = core::array::from_fn(|_| {
            let page = page.clone();
            thread::spawn(move || page.increment())
        });
        for ticket in 0..2 {
            page.evict_in_place(ticket);
        }
        writers.into_iter().for_each(|writer| writer.join().unwrap());
        assert_eq!(page.content(), 7);
    });
}

#[test]
fn an_eviction_never_takes_the_loose_claim_of_another_for_its_own() {
    explore(3, || {
        let page = Arc::new(Page::present(5));
        let writer = {
            let page = page.clone();
            thread::spawn(move || page.increment())
        };
        let other = {
            let page = page.clone();
            thread::spawn(move || page.evict_in_place(1))
        };
        page.evict_in_place(2);
        writer.join().unwrap();
        other.join().unwrap();
        assert_eq!(page.content(), 6);
    });
}

#[test]
fn what_is_taken_back_may_be_given_up_at_once() {
    explore(2, || {
        let page = Arc::new(Page::present(5));
        let writer = {
            let page = page.clone();
            thread::spawn(move || page.increment())
        };
        let discarder = {
            let page = page.clone();
            thread::spawn(move || page.discard())
        };
        page.evict_in_place(0);
        writer.join().unwrap();
        discarder.join().unwrap();
        assert!(page.content() <= 1, "old content: {}", page.content());
    });
}

#[test]
fn writes_to_a_clean_page_survive_its_eviction() {
    explore(2, || {
        let page = Arc::new(Page::new());
        replace(&page.slot, Some(5));
        set(page.word(), State::swapped(0));
        let writers: [_; 2] = core::array::from_fn(|_| {
            let page = page.clone();
            thread::spawn(move || page.increment_read_first())
        });
        for _ in 0..2 {
            page.drop_clean();
            if page.sweep_open() {
                page.swap_out();
                while !page.release() {
                    thread::yield_now();
                    page.swap_out();
                }
            }
        }
        for writer in writers {
            writer.join().unwrap();
        }
        page.increment_read_first();
        assert_eq!(page.entry.load(Ordering::Relaxed) >> CONTENT_SHIFT, 8);
    });
}

#[test]
fn what_is_given_up_never_comes_back() {
    for how in [Unmap::Move, Unmap::Copy] {
        explore(2, move || {
            let page = Arc::new(Page::present(5));
            let writer = {
                let page = page.clone();
                thread::spawn(move || {
                    page.increment();
                    page.increment();
                })
            };
            let discarder = {
                let page = page.clone();
                thread::spawn(move || page.discard())
            };
            if page.sweep(how) {
                page.swap_out();
                while !page.release() {
                    thread::yield_now();
                    page.swap_out();
                }
            }
            writer.join().unwrap();
            discarder.join().unwrap();
            assert!(page.content() <= 2, "old content: {}", page.content());
        });
    }
}

#[test]
fn a_clean_page_that_is_given_up_gives_its_slot_up_once() {
    explore(2, || {
        let page = Arc::new(Page::new());
        replace(&page.slot, Some(5));
        set(page.word(), State::swapped(0));
        let writer = {
            let page = page.clone();
            thread::spawn(move || page.increment_read_first())
        };
        let discarder = {
            let page = page.clone();
            thread::spawn(move || page.discard())
        };
        page.drop_clean();
        writer.join().unwrap();
        discarder.join().unwrap();
        page.increment_read_first();
        let content = page.entry.load(Ordering::Relaxed) >> CONTENT_SHIFT;
        assert!(content == 1 || content == 2, "old content: {content}");
    });
}

#[test]
fn a_page_that_comes_in_where_a_hole_is_given_up_is_not_dropped_unseen() {
    explore(3, || {
        let page = Arc::new(Page::new());
        let writer = {
            let page = page.clone();
            thread::spawn(move || page.increment())
        };
        page.discard();
        writer.join().unwrap();
        page.increment();
        assert!(page.content() >= 1, "a write was lost");
    });
}

#[test]
fn a_page_that_comes_in_where_a_sweep_had_a_hole_is_not_dropped() {
    explore(3, || {
        let page = Arc::new(Page::new());
        let writer = {
            let page = page.clone();
            thread::spawn(move || page.increment())
        };
        // Another sweep finds it there.
        let other = {
            let page = page.clone();
            thread::spawn(move || {
                if page.sweep_open() {
                    page.swap_out();
                }
                page.drop_with_others();
            })
        };
        page.drop_with_others();
        writer.join().unwrap();
        other.join().unwrap();
        assert_eq!(page.content(), 1, "a write was lost");
    });
}

#[test]
fn of_two_first_touches_one_maps_the_page() {
    explore(3, || {
        let page = Arc::new(Page::new());
        let other = {
            let page = page.clone();
            thread::spawn(move || page.increment())
        };
        page.increment();
        other.join().unwrap();
        assert_eq!(page.content(), 2);
    });
}

#[test]
fn a_frame_is_released_only_after_its_last_reader() {
    explore(3, || {
        let page = Arc::new(Page::present(5));
        assert!(page.sweep(Unmap::Move));
        let faulter = {
            let page = page.clone();
            thread::spawn(move || page.fault())
        };
        let evictor = {
            let page = page.clone();
            thread::spawn(move || page.swap_out())
        };
        while !page.release() {
            thread::yield_now();
        }
        faulter.join().unwrap();
        evictor.join().unwrap();
        assert_eq!(page.content(), 5);
    });
}

#[test]
fn everybody_who_waits_for_a_busy_page_goes_on() {
    explore(3, || {
        let word = Arc::new(AtomicU64::new(0));
        assert!(PageWord(&word).try_claim(State::NONE));
        let waiters: [_; 2] = core::array::from_fn(|_| {
            let word = word.clone();
            thread::spawn(move || {
                while PageWord(&word).load().tag() == Tag::Busy {
                    PageWord(&word).wait_while_busy();
                }
            })
        });
        PageWord(&word).finish(State::PRESENT);
        for waiter in waiters {
            waiter.join().unwrap();
        }
    });
}

#[test]
fn a_page_claimed_again_wakes_the_waiters_of_both_claims() {
    explore(3, || {
        let word = Arc::new(AtomicU64::new(0));
        assert!(PageWord(&word).try_claim(State::NONE));
        let waiter = {
            let word = word.clone();
            thread::spawn(move || {
                PageWord(&word).wait_while_busy();
                PageWord(&word).wait_while_busy();
            })
        };
        PageWord(&word).finish(State::PRESENT);
        assert!(PageWord(&word).try_claim(State::PRESENT));
        PageWord(&word).finish(State::staged(3));
        waiter.join().unwrap();
    });
}
