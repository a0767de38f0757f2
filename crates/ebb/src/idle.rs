//! Whether the program of this process runs at all: what it shares with others it may use without a fault, so that the age of its
//! pages does not tell.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// For so long it must not have run.
const IDLE_MS: u64 = 1000;
/// A look that is older says nothing of now.
const LOOK_MS_MAX: u64 = 10_000;
/// The part of the time that one runs who wakes up now and then, and does nothing.
const IDLE_PART: u64 = 64;

/// The last look at the processor time of the program. For one thread.
#[derive(Default)]
pub(crate) struct Idle {
    at_ms: AtomicU64,
    ran_ns: AtomicU64,
}

impl Idle {
    /// At `now_ms` the program has run for `ran_ns` so far. True when it has hardly run since a look at least a second ago.
    pub fn look(&self, now_ms: u64, ran_ns: u64) -> bool {
        let since_ms = now_ms.saturating_sub(self.at_ms.load(Relaxed));
        let ran_since_ns = ran_ns.saturating_sub(self.ran_ns.load(Relaxed));
        let may_run_ns = since_ms.max(IDLE_MS) * 1_000_000 / IDLE_PART;
        if since_ms > LOOK_MS_MAX || ran_since_ns > may_run_ns {
            self.at_ms.store(now_ms, Relaxed);
            self.ran_ns.store(ran_ns, Relaxed);
            return false;
        }
        since_ms >= IDLE_MS
    }

    /// In fork's child, which has not run yet.
    pub fn reset(&self) {
        self.at_ms.store(0, Relaxed);
        self.ran_ns.store(0, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn who_has_not_run_for_a_second_is_idle() {
        let idle = Idle::default();
        // The first look tells nothing, whenever it comes.
        assert!(!idle.look(100_000, 5000 * MS));
        assert!(!idle.look(100_999, 5000 * MS));
        assert!(idle.look(101_000, 5001 * MS));
        // Fifteen milliseconds a second are allowed, not more.
        assert!(idle.look(104_000, 5040 * MS));
        assert!(!idle.look(104_001, 5100 * MS));
        assert!(!idle.look(105_000, 5100 * MS));
        assert!(idle.look(105_001, 5100 * MS));
        // Long ago says nothing: it may have begun to run just now.
        assert!(!idle.look(205_001, 6000 * MS));
        assert!(idle.look(206_001, 6000 * MS));
    }
}
