//! The background thread sleeps until somebody wants it, and no longer.
//!
//! The words are real; what the thread is wanted for is a number that it reads in its round. One that sleeps for ever though it was
//! wanted ends the model.

use super::explore;
use ebb::rest::{IDLE, Rest};
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, Ordering, fence};
use loom::thread;

#[derive(Default)]
struct Process {
    rest: Rest,
    wanted: AtomicU32,
}

impl Process {
    /// The thread, which ends once it has seen so much wanted in one round.
    fn run(&self, enough: u32) {
        while self.wanted.load(Ordering::SeqCst) < enough {
            if !self.rest.begin_idle() {
                while self.rest.word().load(Ordering::SeqCst) == IDLE {
                    thread::yield_now();
                }
            }
            self.rest.end_idle();
        }
    }

    /// A fault that charges, and finds too little room.
    fn fault(&self) {
        self.wanted.fetch_add(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        if self.rest.want() {
            fence(Ordering::SeqCst);
            let _ = self.rest.wake();
        }
    }
}

#[test]
fn a_fault_that_comes_while_the_thread_goes_to_sleep_is_seen() {
    explore(4, || {
        let process = Arc::new(Process::default());
        assert!(process.rest.try_start());
        let own = {
            let process = process.clone();
            thread::spawn(move || process.run(2))
        };
        process.fault();
        process.fault();
        own.join().expect("it saw both");
    });
}

#[test]
fn of_two_faults_at_once_both_are_seen() {
    explore(3, || {
        let process = Arc::new(Process::default());
        assert!(process.rest.try_start());
        let own = {
            let process = process.clone();
            thread::spawn(move || process.run(2))
        };
        let other = {
            let process = process.clone();
            thread::spawn(move || process.fault())
        };
        process.fault();
        other.join().expect("it faulted");
        own.join().expect("it saw both");
    });
}
