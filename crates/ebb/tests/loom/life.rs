//! The life of Ebb's background thread: who begins it, who ends it before the program gives something up.
//!
//! The word of life is real. The thread is a model's, with the background thread's own steps: it sleeps on a word that whoever
//! wakes it changes, and looks whether it is held after it has said that it sleeps. That its end was noticed too early would
//! show as two of them.

use super::explore;
use ebb::life::Life;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, Ordering, fence};
use loom::thread;

const NOT_STARTED: u32 = 0;
const WORKING: u32 = 1;
const IDLE: u32 = 2;

#[derive(Default)]
struct Process {
    life: Life,
    state: AtomicU32,
    /// Threads that the kernel has.
    alive: AtomicU32,
    /// What the program may do: whoever gives something up adds one. And what the thread was made with.
    given_up: AtomicU32,
    made_with: AtomicU32,
}

impl Process {
    /// `Background::kick` where there is no thread; true when it was made.
    fn begin(&self) -> bool {
        if self.state.compare_exchange(NOT_STARTED, WORKING, Ordering::AcqRel, Ordering::Relaxed).is_err() {
            return false;
        }
        if !self.life.try_begin() {
            self.state.store(NOT_STARTED, Ordering::Release);
            return false;
        }
        assert_eq!(self.alive.fetch_add(1, Ordering::SeqCst), 0, "two at a time");
        self.made_with.store(self.given_up.load(Ordering::SeqCst), Ordering::SeqCst);
        self.life.begun(7);
        true
    }

    /// The thread: one round, then it sleeps until it is woken, and ends when it is held.
    fn run(&self) {
        while !self.life.is_held() {
            self.state.store(IDLE, Ordering::SeqCst);
            fence(Ordering::SeqCst);
            if self.life.is_held() {
                self.state.store(WORKING, Ordering::Relaxed);
                continue;
            }
            while self.state.load(Ordering::SeqCst) == IDLE {
                thread::yield_now();
            }
        }
        self.alive.fetch_sub(1, Ordering::SeqCst);
    }

    fn hold(&self) -> bool {
        self.life.hold(
            || {
                fence(Ordering::SeqCst);
                let _ = self.state.compare_exchange(IDLE, WORKING, Ordering::SeqCst, Ordering::Relaxed);
            },
            |tid| {
                assert_eq!(tid, 7);
                self.alive.load(Ordering::SeqCst) == 0
            },
            |_| thread::yield_now(),
            || self.state.store(NOT_STARTED, Ordering::SeqCst),
        )
    }

    /// A call that gives something up.
    fn give_up(&self) {
        self.hold();
        assert_eq!(self.alive.load(Ordering::SeqCst), 0, "a thread keeps what was given up");
        self.given_up.fetch_add(1, Ordering::SeqCst);
        assert_eq!(self.alive.load(Ordering::SeqCst), 0, "one began meanwhile");
        self.life.release();
    }

    fn end(&self) {
        self.hold();
        assert_eq!(self.alive.load(Ordering::SeqCst), 0);
    }
}

#[test]
fn a_thread_that_sleeps_is_woken_to_its_end() {
    explore(3, || {
        let process = Arc::new(Process::default());
        assert!(process.begin());
        let own = {
            let process = process.clone();
            thread::spawn(move || process.run())
        };
        process.give_up();
        own.join().expect("it ended");
        // And it begins again, as the program is by then.
        assert!(process.begin());
        assert_eq!(process.made_with.load(Ordering::SeqCst), 1);
    });
}

#[test]
fn one_end_is_enough_for_all_who_hold() {
    explore(3, || {
        let process = Arc::new(Process::default());
        assert!(process.begin());
        // The kernel has it no more, and nobody has noticed.
        process.alive.store(0, Ordering::SeqCst);
        let other = {
            let process = process.clone();
            thread::spawn(move || process.give_up())
        };
        process.give_up();
        other.join().expect("it gave up");
        assert!(process.begin());
        assert_eq!(process.made_with.load(Ordering::SeqCst), 2);
    });
}

#[test]
fn one_that_is_made_while_somebody_gives_up_ends_or_comes_later() {
    explore(3, || {
        let process = Arc::new(Process::default());
        let other = {
            let process = process.clone();
            thread::spawn(move || {
                if process.begin() {
                    process.run();
                }
            })
        };
        process.give_up();
        process.end();
        other.join().expect("it ended");
    });
}
