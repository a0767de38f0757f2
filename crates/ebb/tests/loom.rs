//! Every interleaving of a few threads at one page, one gate, one part of staging; what the kernel uses and what groups charge
//! have files of their own.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p ebb --test loom --release`
//!
//! What is real here: the page word, the gate. What is modelled, with the engine's own orderings: the page
//! table entry (one relaxed atomic, because the processor's accesses order nothing), the frame, the slot and the frame's
//! owner. Frame and slot are loom cells, so that two threads in one of them at a time end the test.
#![cfg(loom)]

#[path = "loom/charges.rs"]
mod charges;
#[path = "loom/claims.rs"]
mod claims;
#[path = "loom/holders.rs"]
mod holders;
#[path = "loom/life.rs"]
mod life;
#[path = "loom/rest.rs"]
mod rest;
#[path = "loom/used.rs"]
mod used;

use ebb::gate::{Gate, GateFlag};
use ebb::page::{PageWord, State, Tag};
use ebb::tree::Page as TreePage;
use ebb::tree::share::{Bit, NEAR, Share};
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
        page.word().set_exclusive(State::PRESENT);
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
fn writes_to_a_clean_page_survive_its_eviction() {
    explore(2, || {
        let page = Arc::new(Page::new());
        replace(&page.slot, Some(5));
        page.word().set_exclusive(State::swapped(0));
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

/// A gate, the flags of its threads, and what it protects.
#[derive(Default)]
struct Gated {
    gate: Gate,
    flags: [GateFlag; 2],
    value: UnsafeCell<u64>,
}

impl Gated {
    fn read(&self, who: usize) -> u64 {
        self.gate.enter(&self.flags[who]);
        let value = get(&self.value);
        self.gate.leave(&self.flags[who]);
        value
    }

    fn write(&self, process: u32) {
        self.gate.close(process, self.flags.iter());
        // Whether somebody waits by now or not.
        assert_eq!(self.gate.closed_by(), Some(process));
        replace(&self.value, get(&self.value) + 1);
        self.gate.open();
    }
}

#[test]
fn whoever_closes_the_gate_is_alone() {
    explore(3, || {
        let gated = Arc::new(Gated::default());
        let readers: [_; 2] = core::array::from_fn(|who| {
            let gated = gated.clone();
            thread::spawn(move || {
                let first = gated.read(who);
                assert!(first <= gated.read(who));
            })
        });
        gated.write(7);
        for reader in readers {
            reader.join().unwrap();
        }
        assert_eq!(gated.read(0), 1);
    });
}

#[test]
fn of_two_who_close_the_gate_one_waits_for_the_other() {
    explore(3, || {
        let gated = Arc::new(Gated::default());
        let closer = {
            let gated = gated.clone();
            thread::spawn(move || gated.write(u32::MAX))
        };
        let reader = {
            let gated = gated.clone();
            thread::spawn(move || gated.read(0))
        };
        gated.write(7);
        closer.join().unwrap();
        assert!(reader.join().unwrap() <= 2);
        assert_eq!(gated.read(0), 2);
        assert_eq!(gated.gate.closed_by(), None);
    });
}

/// Two processes take memory from a budget that has room for one of them. Both may give up, never both keep.
#[test]
fn two_grants_at_once_never_pass_the_budget() {
    explore(3, || {
        let page = Arc::new(TreePage::with_members(10, 2));
        let grow = |index: u32| {
            let page = page.clone();
            move || page.try_grow(page.member(index), 7).is_some()
        };
        let other = thread::spawn(grow(1));
        let kept = [grow(0)(), other.join().unwrap()];
        assert!(kept != [true, true]);
        assert_eq!(page.sum().held, 7 * kept.iter().filter(|kept| **kept).count() as i64);
    });
}

/// One gives back while another takes: what is kept fits.
#[test]
fn a_grant_may_use_what_another_gives_back() {
    explore(3, || {
        let page = Arc::new(TreePage::with_members(10, 2));
        assert!(page.try_grow(page.member(0), 8).is_some());
        let giver = {
            let page = page.clone();
            thread::spawn(move || {
                page.member(0).granted.fetch_sub(6, Ordering::SeqCst);
            })
        };
        let kept = page.try_grow(page.member(1), 6).is_some();
        giver.join().unwrap();
        assert_eq!(page.sum().held, if kept { 8 } else { 2 });
    });
}

/// A member is found dead, and cleared, while others add up and grow: no sum passes the budget, and in the end all of it is
/// there again.
#[test]
fn what_the_dead_held_comes_back() {
    explore(3, || {
        let page = Arc::new(TreePage::with_members(10, 2));
        assert!(page.try_grow(page.member(1), 9).is_some());
        let reaper = {
            let page = page.clone();
            thread::spawn(move || page.member(1).clear())
        };
        let kept = page.try_grow(page.member(0), 5).is_some();
        assert!(page.sum().held <= 14);
        reaper.join().unwrap();
        assert_eq!(page.sum().held, if kept { 5 } else { 0 });
        assert!(page.try_grow(page.member(0), 5).is_some());
    });
}

/// A page of a share, and the word of the first plane for it.
struct SharedPage {
    share: Share,
    words: [AtomicU64; 2],
}

/// The bit of a holder in a page's mask and its word of the first plane.
fn bit([mask, far]: &[AtomicU64; 2], number: u32) -> Bit<'_> {
    Bit::new(number, mask, (number >= NEAR).then_some(far))
}

/// What a mask has of one far holder.
const FAR_ONE: u64 = 1 << NEAR;

impl SharedPage {
    fn new(mask: u64, far: u64) -> Arc<Self> {
        Arc::new(Self { share: Share::default(), words: [mask, far].map(AtomicU64::new) })
    }

    fn bit(&self, number: u32) -> Bit<'_> {
        bit(&self.words, number)
    }

    fn begin(&self, own: u32, child: u32) -> bool {
        self.share.begin(self.bit(own), self.bit(child))
    }

    fn join(&self, own: u32, child: u32) -> bool {
        self.share.join(self.bit(own), self.bit(child))
    }

    fn leave(&self, number: u32) -> Option<bool> {
        self.share.leave(self.bit(number), false)
    }

    fn words(&self) -> (u64, u64) {
        load(&self.words)
    }
}

fn load(words: &[AtomicU64; 2]) -> (u64, u64) {
    (words[0].load(Ordering::SeqCst), words[1].load(Ordering::SeqCst))
}

/// Holders as near ones, as far ones, and as both.
const NUMBERS: [[u32; 3]; 4] = [[0, 1, 2], [NEAR, NEAR + 1, NEAR + 2], [0, NEAR, 1], [NEAR, 0, NEAR + 1]];

/// What the words of a page have of some holders.
fn words_of(numbers: &[u32]) -> (u64, u64) {
    numbers.iter().fold((0, 0), |(mask, far), number| match number.checked_sub(NEAR) {
        None => (mask | 1 << number, far),
        Some(bit) => (mask + FAR_ONE, far | 1 << bit),
    })
}

/// Three processes hold a page. Two of them write to it, or give it up, at the same time, and one of them is taken for dead
/// meanwhile, by two: what is left out of the sum is never more than what is held by several, and in the end exactly that.
#[test]
fn leaving_a_share_is_counted_once() {
    for numbers in NUMBERS {
        explore(3, move || {
            let shared = SharedPage::new(0, 0);
            assert!(shared.begin(numbers[0], numbers[1]));
            assert!(shared.join(numbers[0], numbers[2]));
            assert_eq!(shared.words(), words_of(&numbers));
            shared.share.count(2, 0);
            let leave = |number: u32| {
                let shared = shared.clone();
                move || shared.leave(number)
            };
            let others = [thread::spawn(leave(numbers[0])), thread::spawn(leave(numbers[1]))];
            let again = leave(numbers[1])();
            let [first, second] = others.map(|other| other.join().unwrap());
            assert_eq!(first, Some(true));
            assert_eq!([again, second].iter().flatten().count(), 1);
            assert_eq!(shared.words(), words_of(&numbers[2..]));
            assert_eq!(shared.share.surplus(), 0);
            // The last one holds it alone.
            assert_eq!(leave(numbers[2])(), Some(false));
            assert_eq!((shared.share.surplus(), shared.words()), (0, (0, 0)));
        });
    }
}

/// The last two that hold a page leave at the same time: one of them is the last, and nothing is left out of the sum.
#[test]
fn one_of_two_that_leave_a_share_is_the_last() {
    for [first, second, _] in NUMBERS {
        explore(3, move || {
            let (mask, far) = words_of(&[first, second]);
            let shared = SharedPage::new(mask, far);
            shared.share.count(1, 0);
            let other = {
                let shared = shared.clone();
                thread::spawn(move || shared.leave(first))
            };
            let second = shared.leave(second);
            let first = other.join().unwrap();
            assert_eq!([first, second].iter().filter(|others| **others == Some(true)).count(), 1);
            assert_eq!([first, second].iter().filter(|others| **others == Some(false)).count(), 1);
            assert_eq!((shared.share.surplus(), shared.words()), (0, (0, 0)));
        });
    }
}

/// A holder that has the page alone writes to it while another process, whose page at the same address is its own, forks
/// and uses the mask for that: one counted surplus, whoever comes first. One that is far keeps its place until it leaves.
#[test]
fn a_mask_of_one_holder_is_used_again() {
    for numbers in NUMBERS {
        explore(3, move || {
            let (mask, far) = words_of(&numbers[..1]);
            let shared = SharedPage::new(mask, far);
            let writer = {
                let shared = shared.clone();
                thread::spawn(move || shared.leave(numbers[0]))
            };
            let begun = shared.begin(numbers[1], numbers[2]);
            shared.share.count(i64::from(begun), 0);
            assert_ne!(writer.join().unwrap(), Some(true));
            assert!(begun || numbers[0] >= NEAR);
            let words = if begun { words_of(&numbers[1..]) } else { (0, 0) };
            assert_eq!((shared.words(), shared.share.surplus()), (words, i64::from(begun)));
            assert!(!begun || !shared.begin(numbers[0], numbers[0] + 3));
        });
    }
}

/// Somebody adds up while a page is given up that another holds, too: no sum is below what is held.
#[test]
fn a_sum_beside_a_break_is_not_too_small() {
    for [first, second, _] in NUMBERS {
        explore(3, move || {
            let page = Arc::new(TreePage::with_members(10, 2));
            let words = [AtomicU64::new(0), AtomicU64::new(0)];
            let share = page.share(0);
            let bits = [first, second].map(|number| bit(&words, number));
            assert!(share.begin(bits[0], bits[1]));
            for index in 0..2 {
                page.member(index).granted.store(1, Ordering::SeqCst);
            }
            share.count(1, 0);
            let adder = {
                let page = page.clone();
                thread::spawn(move || page.sum().held)
            };
            // It gives the page up.
            assert_eq!(share.leave(bits[0], false), Some(true));
            page.member(0).granted.fetch_sub(1, Ordering::SeqCst);
            assert!((1..=2).contains(&adder.join().unwrap()));
            assert_eq!(page.sum().held, 1);
        });
    }
}

/// A process that holds a page alone forks, and lets its child join, while another uses the mask for its own page: both
/// are counted, or the first finds another place.
#[test]
fn joining_a_mask_that_is_used_again_is_refused() {
    for [own, child, other] in NUMBERS {
        explore(3, move || {
            let (mask, far) = words_of(&[own]);
            let shared = SharedPage::new(mask, far);
            let beginner = {
                let shared = shared.clone();
                thread::spawn(move || shared.begin(other, 3))
            };
            let joined = shared.join(own, child);
            let begun = beginner.join().unwrap();
            // Who is far keeps the mask.
            assert!(if own >= NEAR { joined && !begun } else { joined != begun });
            let holders = if joined { [own, child] } else { [other, 3] };
            assert_eq!(shared.words(), words_of(&holders));
        });
    }
}

/// A process forks, and lets its child join, while another that holds the page leaves: both are counted.
#[test]
fn who_joins_beside_one_that_leaves_is_counted() {
    for [own, other, child] in NUMBERS {
        explore(3, move || {
            let (mask, far) = words_of(&[own, other]);
            let shared = SharedPage::new(mask, far);
            shared.share.count(1, 0);
            let leaver = {
                let shared = shared.clone();
                thread::spawn(move || shared.leave(other))
            };
            assert!(shared.join(own, child));
            shared.share.count(1, 0);
            assert_eq!(leaver.join().unwrap(), Some(true));
            assert_eq!((shared.words(), shared.share.surplus()), (words_of(&[own, child]), 1));
        });
    }
}

/// Somebody was killed between the count of a far holder and its bit: the page seems to be held by one more, and counts too much at
/// worst, whoever leaves.
#[test]
fn a_far_holder_without_a_bit_is_never_counted_too_little() {
    for [first, second, third] in NUMBERS {
        explore(3, move || {
            let (mask, far) = words_of(&[first, second]);
            let shared = SharedPage::new(mask + FAR_ONE, far);
            shared.share.count(1, 0);
            let other = {
                let shared = shared.clone();
                thread::spawn(move || shared.leave(first))
            };
            // Each of them may think that it is not the last one.
            assert!(shared.leave(second).is_some());
            assert!(other.join().unwrap().is_some());
            assert_eq!((shared.words(), shared.share.surplus()), ((FAR_ONE, 0), 0));
            // Nobody has it, and nobody uses it again.
            assert!(!shared.begin(first, third));
        });
    }
}

/// A dead process's bits are taken back while another holder leaves: what is left out ends at what is held twice.
#[test]
fn bits_of_the_dead_are_taken_back_beside_a_break() {
    for [dead, other, third] in NUMBERS {
        explore(3, move || {
            let words = |numbers: &[u32]| <[u64; 2]>::from(words_of(numbers)).map(AtomicU64::new);
            let pages = [words(&[dead, other]), words(&[dead, other, third])];
            let shared = Arc::new((Share::default(), pages));
            shared.0.count(3, 0);
            let holder = {
                let shared = shared.clone();
                thread::spawn(move || [0, 1].map(|i: usize| shared.0.leave(bit(&shared.1[i], other), false)))
            };
            let pages = shared.0.leave_all(shared.1.iter().map(|words| bit(words, dead)), false);
            let left = holder.join().unwrap();
            // On the first page one of the two was the last.
            assert_eq!(pages == 2, left[0] == Some(false));
            assert!((1..=2).contains(&pages) && left[1] == Some(true));
            let masks = [load(&shared.1[0]), load(&shared.1[1])];
            assert_eq!((masks, shared.0.surplus()), ([(0, 0), words_of(&[third])], 0));
        });
    }
}
