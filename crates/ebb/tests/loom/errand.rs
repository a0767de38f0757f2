//! Two processes ask a third: each request that is done was done between its offer and its end, and none is done twice.

use super::explore;
use ebb::errand::{Errand, Request, Stage, What};
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, Ordering};
use loom::thread;

#[derive(Default)]
struct Place {
    errand: Errand,
    /// Times that the request for each page was done.
    done: [AtomicU32; 2],
}

impl Place {
    /// Asks once, and looks twice. Returns whether it is known to be done, and whether it may still be.
    fn ask(&self, page: u64) -> (bool, bool) {
        let request = Request { what: What::Cold, first: page, pages: 1 };
        let Some(offer) = self.errand.offer(request) else { return (false, false) };
        for _ in 0..2 {
            if self.errand.stage(offer) == Stage::Done {
                assert_eq!(self.done[page as usize].load(Ordering::Relaxed), 1, "done when it is said to be");
                return (true, false);
            }
            thread::yield_now();
        }
        (false, !self.errand.withdraw(offer))
    }

    fn run(&self) {
        if let Some(request) = self.errand.take() {
            self.done[request.first as usize].fetch_add(1, Ordering::Relaxed);
            self.errand.end();
        }
    }
}

#[test]
fn a_request_is_done_once_or_withdrawn() {
    explore(3, || {
        let place = Arc::new(Place::default());
        let askers = [0, 1].map(|page| {
            let place = place.clone();
            thread::spawn(move || place.ask(page))
        });
        place.run();
        place.run();
        for (page, asker) in askers.into_iter().enumerate() {
            let (is_done, may_be_done) = asker.join().unwrap();
            let times = place.done[page].load(Ordering::Relaxed);
            assert!(times == is_done as u32 || may_be_done && times == 1, "{times}");
        }
        assert!(place.errand.take().is_none(), "nothing is left behind");
    });
}
