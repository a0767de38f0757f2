//! A mapping that moves beside a thread that stores one of its staged pages: the page is in one place, and what holds it leads there.

use super::explore;
use ebb::gate::{Gate, GateFlag};
use ebb::page::{PageWord, State, Tag};
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::sync::{Arc, Mutex};
use loom::thread;

const FRAME: u32 = 5;
const SLOT: u64 = 9;
const OLD: usize = 0;
const NEW: usize = 1;
/// In place of a page, for a frame that holds none.
const NOBODY: u64 = 9;

/// One page, staged, in two places. What is mapped at the old one after the move is another's.
struct Moving {
    gate: Gate,
    flags: [GateFlag; 3],
    /// 1 once the old place is hidden.
    hidden: AtomicU64,
    words: [AtomicU64; 2],
    /// Which page the frame holds.
    owner: AtomicU64,
    /// Whether the kernel has the page, in each place.
    kernel: Mutex<[bool; 2]>,
}

impl Moving {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            words: [State::staged(FRAME), State::NONE].map(|state| AtomicU64::new(state.to_raw())),
            gate: Gate::default(),
            flags: Default::default(),
            hidden: AtomicU64::new(0),
            owner: AtomicU64::new(OLD as u64),
            kernel: Mutex::new([false; 2]),
        })
    }

    fn word(&self, place: usize) -> PageWord<'_> {
        PageWord(&self.words[place])
    }

    /// As `swapout`: stores the page that the frame holds, or maps it again.
    fn store(&self, who: usize, puts_back: bool) {
        let _inside = self.gate.enter(&self.flags[who]);
        let place = self.owner.load(Ordering::Relaxed);
        if place == NOBODY {
            return;
        }
        let word = self.word(place as usize);
        let state = word.load();
        if state.tag() != Tag::Staged || state.payload() != FRAME as u64 || !word.try_claim(state) {
            return;
        }
        if puts_back && self.hidden.load(Ordering::SeqCst) != 0 {
            return word.finish(state);
        }
        if puts_back {
            self.kernel.lock().unwrap()[place as usize] = true;
            word.finish(State::PRESENT);
        } else {
            word.finish(State::swapped(SLOT));
        }
        self.owner.store(NOBODY, Ordering::Release);
    }

    /// As `mremap`. Nobody finds the page by its address meanwhile.
    fn relocate(&self, who: usize) {
        let mut inside = self.gate.enter(&self.flags[who]);
        self.hidden.store(1, Ordering::SeqCst);
        self.gate.wait_for_earlier(&mut inside, || self.flags.iter());
        {
            let mut kernel = self.kernel.lock().unwrap();
            *kernel = [false, kernel[OLD]];
        }
        // Somebody may have touched the new place before it was registered.
        if self.word(OLD).settled().tag() != Tag::Present {
            self.kernel.lock().unwrap()[NEW] = false;
        }
        let state = self.word(OLD).claim_content().expect("it has content");
        self.word(OLD).move_to(self.word(NEW), state, || {
            if state.tag() == Tag::Staged {
                self.owner.store(NEW as u64, Ordering::Relaxed);
            }
        });
    }

    fn check(&self) {
        assert_eq!(self.word(OLD).load(), State::NONE);
        let (now, owner) = (self.word(NEW).load(), self.owner.load(Ordering::Relaxed));
        let [at_old, has_page] = *self.kernel.lock().unwrap();
        assert!(!at_old, "what is mapped at the old place now has the page");
        match now.tag() {
            Tag::Staged => assert!(now.payload() == FRAME as u64 && owner == NEW as u64 && !has_page),
            Tag::Swapped => assert!(now.payload() == SLOT && owner == NOBODY && !has_page),
            Tag::Present => assert!(owner == NOBODY && has_page),
            _ => panic!("the page is lost"),
        }
    }
}

#[test]
fn a_staged_page_that_moves_is_stored_once_or_stays() {
    for puts_back in [false, true] {
        explore(3, move || {
            let moving = Moving::new();
            let other = {
                let moving = moving.clone();
                thread::spawn(move || moving.store(1, puts_back))
            };
            moving.relocate(0);
            other.join().unwrap();
            moving.check();
        });
    }
}

#[test]
fn two_that_store_a_page_that_moves_do_so_once() {
    explore(2, || {
        let moving = Moving::new();
        let others = [(1, false), (2, true)].map(|(who, puts_back)| {
            let moving = moving.clone();
            thread::spawn(move || moving.store(who, puts_back))
        });
        moving.relocate(0);
        others.into_iter().for_each(|other| other.join().unwrap());
        moving.check();
    });
}
