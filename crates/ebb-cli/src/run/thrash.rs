//! Tells early that a program spends its time waiting for memory, and what would end that.

use std::collections::VecDeque;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use crate::host::trap;
use crate::running::advice::ram;
use crate::running::counters::Counters;
use crate::running::curve::{Curve, Forecast, Interval, Outcome};
use crate::running::sample::Sample;

/// Time between two samples, at least: a little less than between two looks of a quiet watcher.
const EVERY: Duration = Duration::from_millis(900);
/// The time that is judged, give or take a sample.
const SPAN: Duration = Duration::from_secs(10);
/// Waiting for so much of it is thrashing.
const THRASHING: f64 = 0.5;
/// The end of the run says what swap cost if that was more than this part of the time.
const WORTH_A_WORD: f64 = 0.1;
/// Nothing is said of a shorter run: a few samples do not tell.
const LEAST: Duration = Duration::from_secs(5);
/// What is recommended: a budget with which the program takes at most so many times as long as with RAM for everything.
const GOAL: f64 = 1.1;

/// What was seen of a tree.
#[derive(Debug, Default)]
pub struct Thrash {
    last: VecDeque<Sample>,
    curve: Curve,
    is_told: bool,
}

impl Thrash {
    /// Takes a sample if it is time. Returns a line for the user, at most once.
    pub fn look(&mut self, counters: &Counters, has_device: bool) -> Option<String> {
        if self.last.back().is_some_and(|last| last.at.elapsed() < EVERY) {
            return None;
        }
        let stats = counters.page();
        // Where nothing is missed, nothing is to be said.
        if self.last.is_empty() {
            if stats.faults_pool.load(Relaxed) + stats.faults_file.load(Relaxed) == 0 {
                return None;
            }
            self.curve = Curve::new(trap::cost_ns());
        }
        self.add(Sample::take(counters));
        self.judge(counters.tree().limit(), has_device)
    }

    /// A line for the user, if the samples say that the tree is thrashing, and if nothing was said before.
    fn judge(&mut self, budget: u64, has_device: bool) -> Option<String> {
        let (first, last) = (self.last.front()?, self.last.back()?);
        let is_thrashing = last.at.duration_since(first.at) + EVERY >= SPAN
            && Interval::between(first, last, self.curve.trap_ns()).stalled() > THRASHING;
        if !is_thrashing || std::mem::replace(&mut self.is_told, true) {
            return None;
        }
        Some(match self.better(budget, has_device) {
            Some(better) => format!(
                "ebb: more than half of the last {} s went to swap; --ram {} would end that (`ebb set` while it runs)",
                SPAN.as_secs(),
                ram(better.ram)
            ),
            None => format!(
                "ebb: more than half of the last {} s went to swap; only much more --ram would end that, see `ebb advise --help`",
                SPAN.as_secs()
            ),
        })
    }

    fn add(&mut self, sample: Sample) {
        self.curve.add(sample.clone(), true);
        self.last.push_back(sample);
        while self.last.len() > 2 && self.last[1].at.elapsed() >= SPAN {
            self.last.pop_front();
        }
    }

    /// The smallest larger budget that is good enough.
    fn better(&self, budget: u64, has_device: bool) -> Option<Forecast> {
        self.curve.smallest(GOAL, has_device).filter(|forecast| forecast.ram > budget)
    }

    /// What swap cost the run, in plain words; none if that was little, or if the run was too short to say.
    pub fn summary(&self, budget: u64, has_device: bool) -> Option<String> {
        self.curve.seen().filter(|(_, _, watched)| *watched >= LEAST)?;
        let stalled = self.curve.stalled().filter(|stalled| *stalled > WORTH_A_WORD)?;
        let cost = format!("ebb: swap took about {:.0}% of the time of the program's threads", stalled * 100.0);
        Some(match self.better(budget, has_device) {
            Some(Forecast { ram: pages, outcome: Outcome::Times(times), .. }) => {
                // The run took `1 / (1 - stalled)` times as long as without swap.
                let part = times * (1.0 - stalled);
                format!(
                    "{cost}; with --ram {} it would need about {:.0}% of the time",
                    ram(pages),
                    part.min(1.0) * 100.0
                )
            }
            _ => cost,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ebb::stats::reaches::{self, STEPS};
    use std::time::Instant;

    /// A program that wants 10,000 pages, has 4,000, and waits for `stalled` of `seconds`.
    fn seen(seconds: u64, stalled: f64) -> Thrash {
        let mut thrash = Thrash::default();
        let mut reaches = [0; STEPS];
        for second in 0..=seconds {
            let missed = (second as f64 * stalled * 100_000.0) as u64;
            reaches[reaches::step_of(9_000)] = missed;
            thrash.add(Sample {
                at: Instant::now() - Duration::from_secs(seconds - second),
                resident: 4_000,
                pool: 3_000,
                wanted: 10_000,
                fault_ns: missed * 10_000,
                faults: missed,
                missed,
                cpu_ns: second * 1_000_000_000,
                reaches,
                ..Sample::empty()
            });
        }
        thrash
    }

    #[test]
    fn the_end_says_what_swap_cost_and_what_would_be_better() {
        let told = seen(20, 0.6).summary(7_000, false).unwrap();
        assert!(
            told.starts_with("ebb: swap took about 60% of the time of the program's threads; with --ram 3"),
            "{told}"
        );
        assert!(told.ends_with(" it would need about 41% of the time"), "{told}");
        assert_eq!(seen(20, 0.05).summary(7_000, false), None);
        assert_eq!(seen(3, 0.6).summary(7_000, false), None);
        assert_eq!(Thrash::default().summary(7_000, false), None);
    }

    #[test]
    fn thrashing_is_told_once_and_only_after_ten_seconds() {
        let mut thrash = seen(20, 0.6);
        let told = thrash.judge(7_000, false).unwrap();
        assert_eq!(
            told,
            "ebb: more than half of the last 10 s went to swap; --ram 38M would end that (`ebb set` while it runs)"
        );
        assert_eq!(thrash.judge(7_000, false), None);
        assert_eq!(seen(20, 0.45).judge(7_000, false), None);
        assert_eq!(seen(5, 0.9).judge(7_000, false), None);
        // Nothing larger is known to be better.
        assert!(seen(20, 0.6).judge(70_000, false).unwrap().contains("only much more --ram"));
    }

    #[test]
    fn only_the_last_ten_seconds_are_kept() {
        let thrash = seen(30, 0.6);
        assert!((10..=12).contains(&thrash.last.len()), "{}", thrash.last.len());
    }

    #[test]
    fn nothing_is_said_of_a_tree_that_misses_nothing() {
        let counters = Counters::create().unwrap();
        let mut thrash = Thrash::default();
        assert_eq!(thrash.look(&counters, true), None);
        assert!(thrash.last.is_empty());
    }
}
