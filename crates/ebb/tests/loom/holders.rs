//! Bits of slots that move from process to process while the owner of the file looks for slots that nobody holds.
//!
//! All of it is real but the fork: what a child does it does in the thread of its parent, later.

use super::explore;
use ebb::holders::{Bits, Head, Holders, PAGE_SLOTS, clear};
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::thread;

const SLOT: u64 = 1 << 5;
const CHUNK: u32 = 0;
const PARENT: u64 = 1;
const CHILD: u64 = 2;
const GRANDCHILD: u64 = 3;
const GONE: u64 = 4;

struct Table {
    head: Head,
    names: [AtomicU64; 3],
    pages: [Bits; 3],
    ever: [Bits; 1],
}

impl Table {
    fn new() -> Arc<Self> {
        let bits = || [const { () }; PAGE_SLOTS as usize / 64].map(|()| AtomicU64::new(0));
        Arc::new(Self {
            head: Head::default(),
            names: [0; 3].map(AtomicU64::new),
            pages: [bits(), bits(), bits()],
            ever: [bits()],
        })
    }

    fn holders(&self) -> Holders<'_> {
        Holders { head: &self.head, names: &self.names, pages: &self.pages, ever: &self.ever }
    }

    /// A process with a page for the slot; its number.
    fn with(&self, life: u64) -> u32 {
        self.holders().take(life, CHUNK, |_| SLOT).expect("there is room")
    }

    /// `from` forks `to`, and then needs the slot no more.
    fn hand_on(&self, from: u32, to: u64) -> Option<u32> {
        let holders = self.holders();
        let page = holders.take(to, CHUNK, |word| holders.page(from)[word].load(Ordering::Relaxed));
        if page.is_none() {
            holders.hold_for_ever(CHUNK, |word| holders.page(from)[word].load(Ordering::Relaxed));
        }
        clear(holders.page(from), 0, SLOT);
        page
    }

    fn assert_held(&self) {
        let mut held = [0; PAGE_SLOTS as usize / 64];
        let is_known = self.holders().held(CHUNK, &mut held);
        assert!(!is_known || held[0] & SLOT != 0, "a slot that is held was taken for free");
        assert!(self.holders().is_held(CHUNK, 0, SLOT));
    }
}

#[test]
fn a_slot_that_goes_to_a_child_is_never_taken_for_free() {
    // The child's page lies behind its parent's, or before it.
    for before in [false, true] {
        explore(3, move || {
            let table = Table::new();
            let gone = before.then(|| table.with(GONE));
            let parent = table.with(PARENT);
            if let Some(gone) = gone {
                table.holders().give_back(gone, GONE, CHUNK);
            }
            let forks = {
                let table = table.clone();
                thread::spawn(move || table.hand_on(parent, CHILD).is_some())
            };
            table.assert_held();
            assert!(forks.join().expect("it forks"));
            table.assert_held();
        });
    }
}

#[test]
fn a_slot_that_goes_on_to_a_grandchild_is_never_taken_for_free() {
    explore(2, || {
        let table = Table::new();
        let parent = table.with(PARENT);
        let forks = {
            let table = table.clone();
            thread::spawn(move || {
                let child = table.hand_on(parent, CHILD).expect("there is room");
                table.holders().give_back(parent, PARENT, CHUNK);
                table.hand_on(child, GRANDCHILD).is_some()
            })
        };
        table.assert_held();
        assert!(forks.join().expect("they fork"));
        table.assert_held();
    });
}

#[test]
fn a_page_that_is_taken_from_a_dead_process_keeps_what_its_next_one_holds() {
    explore(2, || {
        let table = Table::new();
        let gone = table.with(GONE);
        let parent = table.with(PARENT);
        let forks = {
            let table = table.clone();
            thread::spawn(move || {
                table.holders().bury(|life| life != GONE);
                table.hand_on(parent, CHILD)
            })
        };
        table.holders().bury(|life| life != GONE);
        table.assert_held();
        assert_eq!(forks.join().expect("it forks"), Some(gone));
        table.holders().bury(|life| life != GONE);
        table.assert_held();
    });
}

#[test]
fn what_finds_no_page_is_held_for_ever() {
    explore(3, || {
        let table = Table::new();
        let parent = table.with(PARENT);
        table.with(GONE);
        table.with(GONE);
        // They hold other slots.
        (1..3).for_each(|page| clear(table.holders().page(page), 0, SLOT));
        let forks = {
            let table = table.clone();
            thread::spawn(move || table.hand_on(parent, CHILD))
        };
        table.assert_held();
        assert_eq!(forks.join().expect("it forks"), None);
        table.holders().bury(|_| false);
        table.assert_held();
    });
}

#[test]
fn a_slot_whose_holders_are_gone_is_free() {
    explore(3, || {
        let table = Table::new();
        let parent = table.with(PARENT);
        let ends = {
            let table = table.clone();
            thread::spawn(move || {
                let child = table.hand_on(parent, CHILD).expect("there is room");
                clear(table.holders().page(child), 0, SLOT);
            })
        };
        ends.join().expect("they end");
        assert!(!table.holders().is_held(CHUNK, 0, SLOT));
        table.with(GONE);
        assert!(table.holders().is_held(CHUNK, 0, SLOT));
        assert_eq!(table.holders().bury(|life| life != GONE), 1);
        assert!(!table.holders().is_held(CHUNK, 0, SLOT));
    });
}
