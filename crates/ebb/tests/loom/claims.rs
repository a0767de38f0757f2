//! Processes of a tree that wait for memory at once: what comes free is kept for one of them, and for nobody who is gone.
//!
//! No time passes here: a claim that ends by itself is in the unit tests of `tree::ages`.

use super::explore;
use ebb::tree::{Kind, MemberId, Page};
use loom::sync::Arc;
use loom::thread;

const A: MemberId = MemberId { index: 0, generation: 0 };
const B: MemberId = MemberId { index: 1, generation: 0 };

/// A tree of two that have nothing yet.
fn tree(limit: u64) -> Arc<Page> {
    Arc::new(Page::with_members(limit, 2))
}

fn grows(page: &Page, id: MemberId) -> bool {
    page.try_grow(page.member(id.index), 1).is_some()
}

#[test]
fn of_two_that_wait_one_is_first_and_the_other_after_it() {
    explore(3, || {
        let page = tree(1);
        let waits = |id| {
            let page = page.clone();
            move || {
                page.wait(id, 0);
                grows(&page, id)
            }
        };
        let other = thread::spawn(waits(B));
        let got = [waits(A)(), other.join().expect("it waits")];
        assert_ne!(got, [true; 2], "the budget is one page");
        for (id, _) in [A, B].iter().zip(got).filter(|(_, got)| *got) {
            page.member(id.index).granted.fetch_sub(1, loom::sync::atomic::Ordering::SeqCst);
        }
        // What one does not get is kept for the other, which is there.
        let (first, second) = if grows(&page, A) { (A, B) } else { (B, A) };
        if first == B {
            assert!(grows(&page, B), "nobody is first");
        }
        page.member(first.index).granted.fetch_sub(1, loom::sync::atomic::Ordering::SeqCst);
        assert!(!grows(&page, second), "it is kept for nobody");
        page.wait_no_more(first);
        assert!(grows(&page, second), "who has found some still waits");
    });
}

#[test]
fn who_has_found_some_leaves_the_place_to_who_comes_at_that_moment() {
    explore(3, || {
        let page = tree(1);
        page.wait(A, 0);
        let ends = {
            let page = page.clone();
            thread::spawn(move || page.wait_no_more(A))
        };
        page.wait(B, 0);
        ends.join().expect("it ends its wait");
        assert!(grows(&page, B), "a claim has outlived its wait");
    });
}

#[test]
fn nothing_is_kept_for_who_died_while_it_waited() {
    explore(3, || {
        let page = tree(1);
        page.wait(A, 0);
        let dies = {
            let page = page.clone();
            thread::spawn(move || {
                page.member(A.index).clear();
                // Its place is the next one's at once.
                page.member(A.index).set_kind(Kind::Managed);
            })
        };
        let was_early = grows(&page, B);
        dies.join().expect("it is found dead");
        assert!(was_early || grows(&page, B), "who is gone still waits");
    });
}
