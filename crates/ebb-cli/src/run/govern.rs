//! Changes the budget of a tree while it runs, so that one run says what less RAM would cost (`ebb advise`).
//!
//! A run tells about resident sets that are as large as its own, or larger. So the budget is lowered as far as the program still
//! gets on: until swap takes about half of its threads' time. While the program grows it has what it wants. Then it gives up a
//! part at a time.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use ebb::tree::ages::OfShared;

use crate::running::counters::{Counters, PAGE_BYTES};
use crate::running::curve::{Curve, Interval};
use crate::running::sample::Sample;
use crate::running::squeeze;

/// Time between two looks.
const EVERY: Duration = Duration::from_millis(50);
/// The budget changes after so many looks.
const LOOKS: usize = 4;
/// It is lowered while swap takes less than the first part of the time, and raised while it takes more than the second.
const STALLED: [f64; 2] = [0.35, 0.55];
/// It is lowered by a sixteenth of what is wanted at a time, and raised by an eighth.
const LOWER_PART: u64 = 16;
const RAISE_PART: u64 = 8;
/// It is not lowered below this part (1 / 12) of what is wanted, nor below [`LEAST`] pages.
const LEAST_PART: u64 = 12;
const LEAST: u64 = (8 << 20) / PAGE_BYTES;
/// Nor below what the pool takes and half as much again.
const POOL_TIMES: [u64; 2] = [3, 2];

/// The next budget, in pages, after one of `now`. `before` and `after` are the samples at the ends of the time that is judged.
fn next(now: u64, most: u64, trap_ns: u64, before: &Sample, after: &Sample) -> u64 {
    let wanted = after.wanted;
    let grown = wanted.saturating_sub(before.wanted);
    let stalled = Interval::between(before, after, trap_ns).stalled();
    let least = (wanted / LEAST_PART).max(LEAST).max(after.pool * POOL_TIMES[0] / POOL_TIMES[1]);
    let new = match stalled {
        // It is about to need more than it has now.
        _ if grown > wanted / 64 => now.max(after.resident + after.staged + after.pool) + 2 * grown,
        stalled if stalled > STALLED[1] => now + wanted / RAISE_PART,
        stalled if stalled < STALLED[0] => now.min(wanted + wanted / LOWER_PART).saturating_sub(wanted / LOWER_PART),
        _ => now,
    };
    new.max(least).min(most)
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
            let (most, mut samples) = (page.limit(), Vec::new());
            while !its_end.load(Relaxed) {
                let sample = Sample::take(&counters);
                its_curve.lock().unwrap_or_else(PoisonError::into_inner).add(sample.clone());
                samples.push(sample);
                if samples.len() > LOOKS {
                    let last = samples.len() - 1;
                    page.set_limit(next(page.limit(), most, trap_ns, &samples[0], &samples[last]));
                    samples.drain(..last);
                }
                let lacking = -page.sum().free();
                if lacking > 0 {
                    squeeze::ask(page, lacking, OfShared::IfIdle);
                }
                std::thread::park_timeout(EVERY);
            }
            its_curve.lock().unwrap_or_else(PoisonError::into_inner).add(Sample::take(&counters));
        };
        let thread = std::thread::Builder::new().name("ebb-govern".to_owned()).spawn(govern)?;
        Ok(Self { ends, curve, thread })
    }

    /// Ends the thread, and returns what it has seen.
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
    use ebb::stats::reaches::STEPS;
    use std::time::Instant;

    /// After a tenth of a second in which the program wanted so much more and waited for `stall_ms`.
    fn after(now: u64, wanted: [u64; 2], pool: u64, stall_ms: u64) -> u64 {
        let sample = |at, wanted, stall_ms: u64| Sample {
            at,
            resident: 1000,
            staged: 0,
            pool,
            wanted,
            on_device: 0,
            fault_ns: stall_ms * 1_000_000,
            device_ns: 0,
            background_ns: 0,
            faults: 0,
            touched: 0,
            missed: 0,
            cpu_ns: 100_000_000,
            delay_ns: 0,
            reaches: [0; STEPS],
        };
        let began = Instant::now();
        let ended = began + Duration::from_millis(100);
        next(now, 100_000, 0, &sample(began, wanted[0], 0), &sample(ended, wanted[1], stall_ms))
    }

    #[test]
    fn the_budget_falls_while_the_program_gets_on_and_rises_when_it_does_not() {
        let still = [64_000; 2];
        // From what it is far above, it falls to what is wanted at once.
        assert_eq!(after(100_000, still, 0, 0), 64_000);
        assert_eq!(after(32_000, still, 0, 10), 28_000);
        assert_eq!(after(32_000, still, 0, 45), 32_000);
        assert_eq!(after(32_000, still, 0, 80), 40_000);
        assert_eq!(after(99_000, still, 0, 80), 100_000);
    }

    #[test]
    fn a_growing_program_and_a_full_pool_have_room() {
        assert_eq!(after(2_500, [10_000, 20_000], 0, 0), 22_500);
        assert_eq!(after(20_000, [64_000; 2], 12_000, 0), 18_000);
        assert_eq!(after(2_100, [2_000; 2], 0, 0), 2_048);
    }
}
