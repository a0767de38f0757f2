//! Charges of two threads that go up lines of counters with one ancestor, whose limit they meet.
//!
//! All of it is real. Groups that come, go and change have no model: that happens with the gate closed, whose model is
//! beside this one.

use super::explore;
use ebb::protocols::counter::{Counter, NO_LIMIT, try_charge_line};
use loom::sync::Arc;
use loom::thread;

/// Two groups below one.
struct Tree {
    top: Counter,
    leaves: [Counter; 2],
}

impl Tree {
    fn new(top_max: u64, leaf_max: u64) -> Arc<Self> {
        Arc::new(Self { top: Counter::new(top_max), leaves: [Counter::new(leaf_max), Counter::new(leaf_max)] })
    }

    fn charge(&self, leaf: usize, n: u64) -> bool {
        try_charge_line([&self.leaves[leaf], &self.top].into_iter(), n).is_ok()
    }

    fn uncharge(&self, leaf: usize, n: u64) {
        self.leaves[leaf].uncharge(n);
        self.top.uncharge(n);
    }

    fn now(&self) -> [u64; 3] {
        [&self.leaves[0], &self.leaves[1], &self.top].map(Counter::current)
    }
}

#[test]
fn of_two_charges_that_do_not_fit_together_one_is_made_and_nothing_is_left_of_the_other() {
    explore(3, || {
        let tree = Tree::new(3, NO_LIMIT);
        let other = {
            let tree = tree.clone();
            thread::spawn(move || tree.charge(1, 2))
        };
        let mine = tree.charge(0, 2);
        // Never above the limit, at no moment.
        assert!(tree.top.current() <= 3);
        let theirs = other.join().expect("charged or not");
        // A refusal leaves no trace, so one of the two always fits.
        assert!(mine != theirs);
        assert_eq!(tree.now(), [2 * u64::from(mine), 2 * u64::from(theirs), 2]);
        assert_eq!(tree.top.peak(), 2);
    });
}

#[test]
fn charges_and_their_ends_leave_exact_sums_and_a_peak_that_was() {
    explore(3, || {
        let tree = Tree::new(2, 2);
        let other = {
            let tree = tree.clone();
            thread::spawn(move || {
                let charged = tree.charge(1, 1);
                assert!(charged);
                tree.uncharge(1, 1);
            })
        };
        assert!(tree.charge(0, 1));
        other.join().expect("charged");
        assert_eq!(tree.now(), [1, 0, 1]);
        let peak = tree.top.peak();
        assert!((1..=2).contains(&peak));
        tree.uncharge(0, 1);
        assert_eq!(tree.now(), [0; 3]);
    });
}

#[test]
fn a_limit_that_is_lowered_meanwhile_holds_for_every_later_charge() {
    explore(3, || {
        let tree = Tree::new(4, NO_LIMIT);
        let other = {
            let tree = tree.clone();
            thread::spawn(move || tree.top.set_max(1))
        };
        let first = tree.charge(0, 1);
        other.join().expect("lowered");
        assert!(first && !tree.charge(0, 1) && tree.top.is_full());
        assert_eq!(tree.now(), [1, 0, 1]);
    });
}
