//! A page that the kernel uses, for a system call or for a request in flight, beside its eviction.
//!
//! Page word, pins and requests are real; the memory is a loom cell, so that a use beside an eviction ends the test.

use super::{ADDR, explore, get, replace, set};
use ebb::page::{PageWord, State, Tag};
use ebb::pin::Pins;
use ebb::request::Requests;
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering, fence};
use loom::thread;

/// A page that the kernel uses for a call, or that was evicted.
struct Pinned {
    word: AtomicU64,
    pins: Pins,
    requests: Requests,
    /// The page where it is mapped: the kernel reads, an eviction takes it away.
    memory: UnsafeCell<bool>,
}

impl Pinned {
    fn new() -> Self {
        let this = Self {
            word: AtomicU64::new(0),
            pins: Pins::default(),
            requests: Requests::default(),
            memory: UnsafeCell::new(true),
        };
        set(PageWord(&this.word), State::PRESENT);
        this
    }

    /// A request that uses the page, if it is there, until it is reported.
    fn request(&self, block: u64) {
        self.requests.begin(1, &[block]);
        assert!(self.requests.add(1, block, ADDR, ADDR + 4096));
        if PageWord(&self.word).load().tag() == Tag::Present {
            assert!(get(&self.memory), "the kernel finds no page");
        }
        self.requests.end(1, &[block]);
    }

    /// A call that uses the page, if it is there.
    fn call(&self, sp: u64) {
        self.pins.begin(sp, |_| true);
        assert!(self.pins.add(ADDR + 8, ADDR + 16, 1 << 20));
        if PageWord(&self.word).load().tag() == Tag::Present {
            assert!(get(&self.memory), "the kernel finds no page");
        }
        self.pins.end();
    }

    /// As in `sweep`.
    fn evict(&self) {
        let word = PageWord(&self.word);
        let seen = word.load();
        if seen.tag() != Tag::Present || !word.try_claim(seen) {
            return;
        }
        fence(Ordering::SeqCst);
        let mut is_pinned = false;
        self.pins.for_each_overlap(ADDR, ADDR + 4096, |_, _| is_pinned = true);
        self.requests.for_each_overlap(ADDR, ADDR + 4096, |_, _| is_pinned = true);
        if is_pinned {
            word.finish(seen);
            return;
        }
        replace(&self.memory, false);
        word.finish(State::swapped(0));
    }
}

#[test]
fn a_page_that_a_call_uses_is_not_evicted() {
    explore(3, || {
        let page = Arc::new(Pinned::new());
        let caller = {
            let page = page.clone();
            thread::spawn(move || page.call(1000))
        };
        page.evict();
        caller.join().unwrap();
    });
}

#[test]
fn a_page_that_a_request_uses_is_not_evicted() {
    explore(2, || {
        let page = Arc::new(Pinned::new());
        let submitter = {
            let page = page.clone();
            thread::spawn(move || {
                page.request(0x10);
                // In the place of the first.
                page.request(0x20);
            })
        };
        page.evict();
        page.evict();
        submitter.join().unwrap();
    });
}

#[test]
fn the_end_of_one_request_leaves_another_threads() {
    explore(2, || {
        let page = Arc::new(Pinned::new());
        let other = {
            let page = page.clone();
            thread::spawn(move || {
                page.requests.begin(1, &[0x30]);
                assert!(page.requests.add(1, 0x30, 0x9000, 0xa000));
                page.requests.end(1, &[0x30]);
            })
        };
        let submitter = {
            let page = page.clone();
            thread::spawn(move || page.request(0x10))
        };
        page.evict();
        other.join().unwrap();
        submitter.join().unwrap();
        assert!(page.requests.is_empty());
    });
}

/// A control block that is submitted again before its first request is reported: the page stays for both.
#[test]
fn one_report_of_two_leaves_the_second_request() {
    explore(2, || {
        let page = Arc::new(Pinned::new());
        page.requests.begin(1, &[0x10]);
        assert!(page.requests.add(1, 0x10, ADDR, ADDR + 4096));
        let reporter = {
            let page = page.clone();
            thread::spawn(move || page.requests.end(1, &[0x10]))
        };
        let evictor = {
            let page = page.clone();
            thread::spawn(move || page.evict())
        };
        page.request(0x10);
        reporter.join().unwrap();
        evictor.join().unwrap();
        assert!(page.requests.is_empty());
    });
}

#[test]
fn the_end_of_one_call_does_not_unpin_the_next() {
    explore(2, || {
        let page = Arc::new(Pinned::new());
        let caller = {
            let page = page.clone();
            thread::spawn(move || {
                page.call(1000);
                page.call(900);
            })
        };
        page.evict();
        page.evict();
        caller.join().unwrap();
    });
}

#[test]
fn the_call_of_a_handler_leaves_the_interrupted_calls_pin() {
    explore(2, || {
        let page = Arc::new(Pinned::new());
        let caller = {
            let page = page.clone();
            thread::spawn(move || {
                page.pins.begin(1000, |_| true);
                assert!(page.pins.add(ADDR, ADDR + 8, 1 << 20));
                let is_there = PageWord(&page.word).load().tag() == Tag::Present;
                page.pins.begin(500, |_| true);
                assert!(page.pins.add(0x9000, 0x9008, 1 << 20));
                page.pins.end();
                if is_there {
                    assert!(get(&page.memory), "the kernel finds no page");
                }
                page.pins.end();
            })
        };
        page.evict();
        caller.join().unwrap();
    });
}
