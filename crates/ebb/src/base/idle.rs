//! Whether this process's program does anything at all. A program takes no fault when it uses pages that it shares with
//! other processes, so the age of its pages does not tell.
//!
//! A thread that waits for a page or for a processor uses no processor time either. So faults and preemptions count too.

use crate::base::uapi;
use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicBool, AtomicU64};

/// How long the program must have done nothing to count as idle.
const IDLE_MS: u64 = 1000;
/// An older look says nothing about the present.
const LOOK_MS_MAX: u64 = 10_000;
/// An idle program, which only wakes up now and then, runs for at most one part in so many of the time.
const IDLE_PART: u64 = 64;
/// Most faults, and most preemptions, of an idle program in that time.
const FAULTS_MAX: u64 = 4;
const PREEMPTED_MAX: u64 = 1;

/// What a program has done so far.
#[derive(Clone, Copy, Default)]
pub(crate) struct Done {
    pub ran_ns: u64,
    pub preempted: u64,
    pub faults: u64,
}

impl Done {
    /// What this process has done, less what the calling thread, which is Ebb's, has done. None where the kernel does not tell.
    pub fn by_program(faults: u64) -> Option<Self> {
        let (thread, process) = (uapi::usage_of_thread()?, uapi::usage_of_process()?);
        Some(Self {
            ran_ns: process.ran_ns.saturating_sub(thread.ran_ns),
            preempted: process.preempted.saturating_sub(thread.preempted),
            faults,
        })
    }

    /// Whether the program has done next to nothing since `before`, which was `ms` ago.
    fn is_little_since(self, before: Self, ms: u64) -> bool {
        self.ran_ns.saturating_sub(before.ran_ns) <= ms * 1_000_000 / IDLE_PART
            && self.preempted.saturating_sub(before.preempted) <= PREEMPTED_MAX
            && self.faults.saturating_sub(before.faults) <= FAULTS_MAX
    }
}

/// What the last look found. Used by one thread only.
#[derive(Default)]
pub(crate) struct Idle {
    at_ms: AtomicU64,
    ran_ns: AtomicU64,
    preempted: AtomicU64,
    faults: AtomicU64,
    is_idle: AtomicBool,
}

impl Idle {
    /// Looks at what the program has `done` up to `now_ms`. True when it did next to nothing for a period of one to ten
    /// seconds, and has done next to nothing since.
    pub fn look(&self, now_ms: u64, done: Done) -> bool {
        let before = Done {
            ran_ns: self.ran_ns.load(Relaxed),
            preempted: self.preempted.load(Relaxed),
            faults: self.faults.load(Relaxed),
        };
        let since_ms = now_ms.saturating_sub(self.at_ms.load(Relaxed));
        let is_little = since_ms <= LOOK_MS_MAX && done.is_little_since(before, since_ms.max(IDLE_MS));
        if is_little && since_ms < IDLE_MS {
            return self.is_idle.load(Relaxed);
        }
        self.at_ms.store(now_ms, Relaxed);
        self.ran_ns.store(done.ran_ns, Relaxed);
        self.preempted.store(done.preempted, Relaxed);
        self.faults.store(done.faults, Relaxed);
        self.is_idle.store(is_little, Relaxed);
        is_little
    }

    /// For fork's child, which has done nothing yet.
    pub fn reset(&self) {
        self.at_ms.store(0, Relaxed);
        self.is_idle.store(false, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ran(ms: u64) -> Done {
        Done { ran_ns: ms * 1_000_000, ..Done::default() }
    }

    #[test]
    fn who_has_not_run_for_a_second_is_idle() {
        let idle = Idle::default();
        // The first look tells nothing, whenever it comes.
        assert!(!idle.look(100_000, ran(5000)));
        assert!(!idle.look(100_999, ran(5000)));
        assert!(idle.look(101_000, ran(5001)));
        // Fifteen milliseconds a second are allowed, not more, and not all at once.
        assert!(idle.look(101_500, ran(5015)));
        assert!(!idle.look(101_600, ran(5030)));
        assert!(!idle.look(102_599, ran(5030)));
        assert!(idle.look(102_600, ran(5030)));
        assert!(idle.look(105_600, ran(5070)));
        // A look of long ago says nothing: the program may have begun to run just now.
        assert!(!idle.look(205_600, ran(5070)));
        assert!(idle.look(206_600, ran(5070)));
    }

    #[test]
    fn who_waits_for_pages_or_for_a_processor_is_not() {
        let more = [Done { faults: 5, ..Done::default() }, Done { preempted: 2, ..Done::default() }];
        for done in more {
            let idle = Idle::default();
            idle.look(50_000, Done::default());
            assert!(idle.look(51_000, Done::default()));
            assert!(!idle.look(52_000, done));
            assert!(idle.look(53_000, done));
            assert!(!idle.look(53_001, Done { faults: 10, preempted: 10, ..done }));
        }
    }

    #[test]
    fn what_this_thread_does_is_not_the_programs() {
        let all_ns = || uapi::usage_of_process().unwrap().ran_ns;
        let (all_before, before) = (all_ns(), Done::by_program(0).unwrap());
        let begin = uapi::thread_time_ns();
        while uapi::thread_time_ns() - begin < 50_000_000 {}
        let (after, all_after) = (Done::by_program(7).unwrap(), all_ns());
        assert_eq!(after.faults, 7);
        // The tests beside this one run in this process, too.
        let others_ns = after.ran_ns.saturating_sub(before.ran_ns);
        assert!(all_after - all_before >= others_ns + 40_000_000, "{others_ns} of {}", all_after - all_before);
    }
}
