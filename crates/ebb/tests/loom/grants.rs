//! What processes take of one budget and give back.

use super::explore;
use ebb::tree::Page as TreePage;
use loom::sync::Arc;
use loom::sync::atomic::Ordering;
use loom::thread;

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
