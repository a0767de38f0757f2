//! Changes the budget of a tree while it runs, so that one run says what less RAM would cost (`ebb advise`).
//!
//! The budget goes down and up, so that all sizes are seen in most phases of the program: down until swap takes three quarters of its
//! threads' time, and up again to what the program wants. While the program grows it has what it wants.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use ebb::tree::ages::OfShared;
use ebb::tree::now_ms;

use crate::running::counters::{Counters, PAGE_BYTES};
use crate::running::curve::{Curve, Interval};
use crate::running::sample::Sample;
use crate::running::squeeze;

/// Time between two looks.
const EVERY: Duration = Duration::from_millis(50);
/// The budget changes after so many looks.
const LOOKS: usize = 3;
/// It goes up again when swap takes this part of the time.
const STALLED: f64 = 0.75;
/// It goes down by a sixteenth of what is wanted at a time, and up by an eighth.
const LOWER_PART: u64 = 16;
const RAISE_PART: u64 = 8;
/// It is not lowered below this part (1 / 12) of what is wanted, nor below [`LEAST`] pages.
const LEAST_PART: u64 = 12;
const LEAST: u64 = (8 << 20) / PAGE_BYTES;
/// Nor below what the pool takes and half as much again.
const POOL_TIMES: [u64; 2] = [3, 2];

/// Where the budget is, in pages, and where it goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Budget {
    pages: u64,
    rises: bool,
}

impl Budget {
    /// One with room for a process that waits for memory and finds nothing more to give up: it would end for want of it.
    fn relieved(self, most: u64, now: &Sample) -> Self {
        let held = now.resident + now.staged + now.pool;
        let pages = self.pages.max(held) + now.wanted / RAISE_PART;
        Self { pages: pages.max(LEAST).min(most), rises: pages < most }
    }

    /// The next one. `before` and `after` are the samples at the ends of the time that is judged.
    fn next(self, most: u64, trap_ns: u64, before: &Sample, after: &Sample) -> Self {
        let wanted = after.wanted;
        let grown = wanted.saturating_sub(before.wanted);
        let least = (wanted / LEAST_PART).max(LEAST).max(after.pool * POOL_TIMES[0] / POOL_TIMES[1]);
        // It is about to need more than it has now.
        if grown > wanted / 64 {
            let pages = self.pages.max(after.resident + after.staged + after.pool) + 2 * grown;
            return Self { pages: pages.max(least).min(most), rises: self.rises };
        }
        let all = wanted + wanted / LOWER_PART;
        let is_stalled = Interval::between(before, after, trap_ns).stalled() > STALLED;
        let rises = match self.rises {
            true => self.pages < all,
            false => is_stalled || self.pages <= least,
        };
        let pages = match rises {
            true => self.pages + wanted / RAISE_PART,
            false => self.pages.min(all).saturating_sub(wanted / LOWER_PART),
        };
        Self { pages: pages.max(least).min(most), rises: rises && pages < most }
    }
}

/// The thread that does so.
pub struct Governor {
    ends: Arc<AtomicBool>,
    curve: Arc<Mutex<Curve>>,
    thread: JoinHandle<()>,
}

impl Governor {
    /// Starts the thread. The tree's budget is the largest that it may have.
    pub fn start(counters: &Arc<Counters>, trap_ns: u64) -> std::io::Result<Self> {
        let (ends, curve) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(Curve::new(trap_ns))));
        let (counters, its_end, its_curve) = (Arc::clone(counters), Arc::clone(&ends), Arc::clone(&curve));
        let govern = move || {
            let page = counters.tree();
            let (mut most, mut samples) = (page.limit(), Vec::new());
            let mut budget = Budget { pages: most, rises: false };
            while !its_end.load(Relaxed) {
                let sample = Sample::take(&counters);
                its_curve.lock().unwrap_or_else(PoisonError::into_inner).add(sample.clone());
                samples.push(sample);
                if samples.len() > LOOKS {
                    let last = samples.len() - 1;
                    let next = match page.is_awaited(now_ms()) {
                        true => budget.relieved(most, &samples[last]),
                        false => budget.next(most, trap_ns, &samples[0], &samples[last]),
                    };
                    if next.rises && next.pages < most {
                        its_curve.lock().unwrap_or_else(PoisonError::into_inner).turn();
                    }
                    budget = match page.replace_limit(budget.pages, next.pages) {
                        true => next,
                        // The user has changed it (`ebb set`): that is the most from now on.
                        false => {
                            most = page.limit();
                            Budget { pages: most, rises: false }
                        }
                    };
                    samples.drain(..last);
                }
                let lacking = -page.sum().free();
                if lacking > 0 {
                    squeeze::ask(page, lacking, OfShared::IfIdle);
                }
                std::thread::park_timeout(EVERY);
            }
            its_curve.lock().unwrap_or_else(PoisonError::into_inner).add(Sample::take(&counters));
            // Daemons that outlive the program have the budget that the user gave.
            page.replace_limit(budget.pages, most);
        };
        let thread = std::thread::Builder::new().name("ebb-govern".to_owned()).spawn(govern)?;
        Ok(Self { ends, curve, thread })
    }

    /// Ends the thread, gives the tree its budget back, and returns what was seen.
    pub fn end(self) -> Curve {
        self.ends.store(true, Relaxed);
        self.thread.thread().unpark();
        let _ = self.thread.join();
        self.curve.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    /// After a tenth of a second in which the program wanted so much more and waited for `stall_ms`.
    fn after(pages: u64, rises: bool, wanted: [u64; 2], pool: u64, stall_ms: u64) -> (u64, bool) {
        let sample = |at, wanted, stall_ms: u64, cpu_ns| Sample {
            at,
            resident: 1000,
            pool,
            wanted,
            fault_ns: stall_ms * 1_000_000,
            cpu_ns,
            ..Sample::empty()
        };
        let began = Instant::now();
        let ended = began + Duration::from_millis(100);
        let [before, after] = [sample(began, wanted[0], 0, 0), sample(ended, wanted[1], stall_ms, 100_000_000)];
        let next = Budget { pages, rises }.next(100_000, 0, &before, &after);
        (next.pages, next.rises)
    }

    #[test]
    fn the_budget_falls_until_the_program_hardly_gets_on_and_rises_to_what_it_wants() {
        let still = [64_000; 2];
        // From what it is far above, it falls to what is wanted at once.
        assert_eq!(after(100_000, false, still, 0, 0), (64_000, false));
        assert_eq!(after(32_000, false, still, 0, 10), (28_000, false));
        assert_eq!(after(32_000, false, still, 0, 80), (40_000, true));
        assert_eq!(after(40_000, true, still, 0, 80), (48_000, true));
        assert_eq!(after(64_000, true, still, 0, 80), (72_000, true));
        assert_eq!(after(72_000, true, still, 0, 0), (64_000, false));
        // The largest that it may have is as good.
        assert_eq!(after(99_000, true, [200_000; 2], 0, 80), (100_000, false));
    }

    #[test]
    fn a_process_that_waits_for_memory_gets_some() {
        let sample = Sample { wanted: 64_000, resident: 1_000, staged: 0, pool: 30_000, ..Sample::empty() };
        let budget = Budget { pages: 20_000, rises: false };
        assert_eq!(budget.relieved(100_000, &sample), Budget { pages: 39_000, rises: true });
        assert_eq!(budget.relieved(32_000, &sample), Budget { pages: 32_000, rises: false });
    }

    #[test]
    fn the_tree_gets_its_budget_back_or_keeps_what_the_user_has_set_meanwhile() {
        for set in [None, Some(300 << 20)] {
            let counters = Arc::new(Counters::create().unwrap());
            counters.set_budget(1 << 30);
            let governor = Governor::start(&counters, 0).unwrap();
            let wait = |until: &dyn Fn(u64) -> bool| {
                let began = Instant::now();
                while !until(counters.tree().limit()) {
                    assert!(began.elapsed() < Duration::from_secs(20), "{}", counters.tree().limit());
                    std::thread::sleep(Duration::from_millis(5));
                }
            };
            // Nobody wants anything.
            wait(&|pages| pages == LEAST);
            if let Some(bytes) = set {
                counters.set_budget(bytes);
            }
            governor.end();
            assert_eq!(counters.tree().limit(), set.unwrap_or(1 << 30) / PAGE_BYTES);
        }
    }

    #[test]
    fn a_growing_program_and_a_full_pool_have_room() {
        assert_eq!(after(2_500, false, [10_000, 20_000], 0, 0), (22_500, false));
        assert_eq!(after(20_000, false, [64_000; 2], 12_000, 0), (18_000, false));
        assert_eq!(after(18_000, false, [64_000; 2], 12_000, 0), (26_000, true));
        assert_eq!(after(2_100, false, [2_000; 2], 0, 0), (2_048, false));
    }
}
