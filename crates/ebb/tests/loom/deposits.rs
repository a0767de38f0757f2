//! What is left in a place is taken once, whole, and only by who wants it, while others replace it.

use super::explore;
use ebb::deposit::{Deposit, Hold};
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, AtomicU32, Ordering, fence};
use loom::thread;

/// A place, and what is there: its label, twice.
#[derive(Default)]
struct Place {
    deposit: Deposit<2>,
    thing: UnsafeCell<[u64; 2]>,
}

// SAFETY: only who has the place touches what is there, which the model checks.
unsafe impl Sync for Place {}
// SAFETY: as above.
unsafe impl Send for Place {}

impl Place {
    fn leave(&self, hold: Hold<'_, 2>, number: u64) {
        // SAFETY: this thread has the place.
        self.thing.with_mut(|thing| unsafe { *thing = [number; 2] });
        hold.leave([number; 2]);
    }

    /// Leaves something there, if nothing is, or in the place of what has that number.
    fn put(&self, number: u64, instead_of: u64) -> bool {
        let hold = self.deposit.take_empty().or_else(|| self.deposit.take(|label| label[0] == instead_of));
        let Some(hold) = hold else { return false };
        self.leave(hold, number);
        true
    }

    /// Takes what has that number, if it is there.
    fn take(&self, number: u64) -> bool {
        let Some(hold) = self.deposit.take(|label| *label == [number; 2]) else { return false };
        // SAFETY: this thread has the place.
        let thing = self.thing.with(|thing| unsafe { *thing });
        assert_eq!((thing, hold.label()), ([number; 2], [number; 2]));
        hold.clear();
        true
    }
}

#[test]
fn what_was_left_is_taken_once_and_by_its_label() {
    explore(3, || {
        let place = Arc::new(Place::default());
        assert!(place.put(1, 0));
        let taker = |number| {
            let place = place.clone();
            thread::spawn(move || place.take(number))
        };
        let (first, second) = (taker(1), taker(2));
        let was_replaced = place.put(2, 1);
        let taken = [first.join().expect("it ends well"), second.join().expect("it ends well")];
        assert!(was_replaced || !taken[1], "nobody left it");
        let rest = [place.take(1), place.take(2)];
        // What nobody took is there still, unless the other took its place.
        assert_eq!(taken[1] || rest[1], was_replaced);
        assert!(!(taken[0] && rest[0]));
        assert!(taken[0] || rest[0] || was_replaced);
    });
}

#[test]
fn two_who_want_the_same_do_not_both_get_it() {
    explore(3, || {
        let place = Arc::new(Place::default());
        assert!(place.put(1, 0));
        let other = place.clone();
        let taker = thread::spawn(move || other.take(1));
        let taken = place.take(1);
        assert!(taken != taker.join().expect("it ends well"));
        assert!(place.put(2, 0) && place.take(2));
    });
}

/// A signal is handed over to a thread that may be about to end (`ebb-agent/src/signals/first.rs`).
#[test]
fn what_is_handed_over_to_one_who_leaves_is_handled_once() {
    #[derive(Default)]
    struct Model {
        place: Deposit<1>,
        has_left: AtomicBool,
        has_arrived: AtomicBool,
        handled: AtomicU32,
    }
    impl Model {
        fn handle(&self) {
            if let Some(hold) = self.place.take(|_| true) {
                assert_eq!(hold.label(), [7]);
                hold.clear();
                self.handled.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
    explore(3, || {
        let model = Arc::new(Model::default());
        let first = {
            let model = model.clone();
            thread::spawn(move || {
                // It may take the signal as long as it runs.
                if model.has_arrived.load(Ordering::Acquire) {
                    model.handle();
                }
                model.has_left.store(true, Ordering::Relaxed);
                fence(Ordering::SeqCst);
                model.handle();
            })
        };
        let hold = model.place.take_empty().expect("nothing was left there");
        hold.leave([7]);
        model.has_arrived.store(true, Ordering::Release);
        fence(Ordering::SeqCst);
        if model.has_left.load(Ordering::Relaxed) {
            model.handle();
        }
        first.join().expect("it ends well");
        assert_eq!(model.handled.load(Ordering::Relaxed), 1);
    });
}
