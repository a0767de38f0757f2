//! How long a program would take with more RAM or less, from one run.
//!
//! Each fault on a page that had left memory says how large a resident set would have kept that page (`ebb::stats::Reaches`). So
//! the faults of a run tell how many there would have been with every larger resident set. What a fault costs is measured in the
//! same run. And what the pool needs for what is not resident says how large a resident set a budget leaves room for.
//!
//! A run says nothing about resident sets that are smaller than its own. If the size of the resident set changes during the run,
//! each size is judged by the time for which the resident set was no larger, and that is scaled to the whole run.

use std::collections::BTreeMap;

use ebb::stats::reaches::{self, STEPS};

use crate::running::sample::Sample;

/// A resident set may be larger by this part (1 / 16) than the one that is judged: sizes change while a sample is taken.
const SLACK_PART: f64 = 16.0;
/// A size is not judged by less than this part (1 / 50) of the run.
const COVERED_PART: f64 = 50.0;
/// With a device, the pool may take a half of the budget; without one, all but a fifth (`ebb`, `budget::pool_max`).
const POOL_BEFORE_DEVICE: f64 = 0.5;
const POOL_ALONE: f64 = 0.8;

/// What happened while the resident set was of one size.
#[derive(Debug, Clone)]
struct Level {
    own_ns: f64,
    faults: [u64; STEPS],
}

/// Sums for the line of best fit: time waited = `touch` times first touches + `miss` times misses.
#[derive(Debug, Clone, Default)]
struct Fit {
    touch_touch: f64,
    touch_miss: f64,
    miss_miss: f64,
    touch_ns: f64,
    miss_ns: f64,
}

impl Fit {
    fn add(&mut self, touched: f64, missed: f64, stall_ns: f64) {
        self.touch_touch += touched * touched;
        self.touch_miss += touched * missed;
        self.miss_miss += missed * missed;
        self.touch_ns += touched * stall_ns;
        self.miss_ns += missed * stall_ns;
    }

    /// What a first touch and a miss cost, in nanoseconds; neither is negative.
    fn costs(&self) -> (f64, f64) {
        let det = self.touch_touch * self.miss_miss - self.touch_miss * self.touch_miss;
        let alone = |over: f64, under: f64| if under > 0.0 { (over / under).max(0.0) } else { 0.0 };
        if det > 1e-6 * self.touch_touch * self.miss_miss {
            let touch = (self.touch_ns * self.miss_miss - self.miss_ns * self.touch_miss) / det;
            let miss = (self.miss_ns * self.touch_touch - self.touch_ns * self.touch_miss) / det;
            if touch >= 0.0 && miss >= 0.0 {
                return (touch, miss);
            }
        }
        // One of them explains it alone: the one that does so better.
        let (touch, miss) = (alone(self.touch_ns, self.touch_touch), alone(self.miss_ns, self.miss_miss));
        if touch * self.touch_ns > miss * self.miss_ns { (touch, 0.0) } else { (0.0, miss) }
    }
}

/// A mean by weight.
#[derive(Debug, Clone, Copy, Default)]
struct Mean {
    sum: f64,
    weight: f64,
}

impl Mean {
    fn add(&mut self, value: f64, weight: f64) {
        self.sum += value * weight;
        self.weight += weight;
    }

    fn get(self) -> f64 {
        if self.weight > 0.0 { self.sum / self.weight } else { 0.0 }
    }
}

/// The time between two samples, as all threads together spent it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Interval {
    pub wall_ns: f64,
    /// In the program itself: running, or waiting for something else than swap.
    pub own_ns: f64,
    /// In faults: running, and waiting for devices.
    pub stall_ns: f64,
}

impl Interval {
    /// `trap_ns` is what a fault costs apart from what its handler does. Waiting for a processor counts nowhere: it is the other
    /// programs' doing, and would change from run to run.
    pub fn between(last: &Sample, now: &Sample, trap_ns: u64) -> Self {
        let grown = |now: u64, last: u64| now.saturating_sub(last) as f64;
        let wall_ns = now.at.saturating_duration_since(last.at).as_nanos() as f64;
        let device_ns = grown(now.device_ns, last.device_ns);
        let faults_ns = grown(now.fault_ns, last.fault_ns) + grown(now.faults, last.faults) * trap_ns as f64;
        let (cpu_ns, delay_ns) = (grown(now.cpu_ns, last.cpu_ns), grown(now.delay_ns, last.delay_ns));
        let idle_ns = (wall_ns - cpu_ns - delay_ns - device_ns).max(0.0);
        let own_ns = (cpu_ns - faults_ns - grown(now.background_ns, last.background_ns)).max(0.0) + idle_ns;
        Self { wall_ns, own_ns, stall_ns: faults_ns + device_ns }
    }

    /// The part of the threads' time that went to swap.
    pub fn stalled(self) -> f64 {
        let all_ns = self.own_ns + self.stall_ns;
        if all_ns > 0.0 { self.stall_ns / all_ns } else { 0.0 }
    }
}

/// What a run has told so far.
#[derive(Debug, Clone, Default)]
pub struct Curve {
    trap_ns: u64,
    last: Option<Sample>,
    /// By the step of the size of the resident set.
    levels: BTreeMap<usize, Level>,
    fit: Fit,
    /// Sums of the [`Interval`]s.
    own_ns: f64,
    wall_ns: f64,
    stall_ns: f64,
    touched: f64,
    peak_wanted: u64,
    /// While pages were missed, how many were wanted, staged, and in the pool for each that was neither resident nor on a device.
    wanted: Mean,
    staged: Mean,
    pool_part: Mean,
}

/// What a budget would do.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Forecast {
    /// The budget, and where the content would be at the end: all in pages.
    pub ram: u64,
    pub resident: u64,
    pub pool: u64,
    pub on_device: u64,
    pub outcome: Outcome,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Outcome {
    /// So many times as long as with RAM for everything.
    Times(f64),
    /// The run did not get that low.
    Unknown,
    /// The pool and what is in use would not fit, and there is no device.
    TooSmall,
}

impl Curve {
    /// `trap_ns` is what a fault costs apart from what its handler does.
    pub fn new(trap_ns: u64) -> Self {
        Self { trap_ns, ..Self::default() }
    }

    /// Takes in what happened since the last sample.
    pub fn add(&mut self, mut now: Sample) {
        let Some(last) = self.last.take() else {
            self.last = Some(now);
            return;
        };
        // The processes that held it have ended.
        if now.wanted == 0 {
            let Sample { resident, staged, pool, wanted, on_device, .. } = last;
            now = Sample { resident, staged, pool, wanted, on_device, ..now };
        }
        let spent = Interval::between(&last, &now, self.trap_ns);
        let grown = |now: u64, last: u64| now.saturating_sub(last) as f64;
        let (touched, missed) = (grown(now.touched, last.touched), grown(now.missed, last.missed));
        if spent.wall_ns > 0.0 {
            let level = self
                .levels
                .entry(reaches::step_of(u64::midpoint(last.resident, now.resident)))
                .or_insert(Level { own_ns: 0.0, faults: [0; STEPS] });
            level.own_ns += spent.own_ns;
            for (sum, (now, last)) in level.faults.iter_mut().zip(now.reaches.iter().zip(last.reaches)) {
                *sum += now.saturating_sub(last);
            }
            self.fit.add(touched, missed, spent.stall_ns);
            self.own_ns += spent.own_ns;
            self.wall_ns += spent.wall_ns;
            self.stall_ns += spent.stall_ns;
            self.touched += touched;
            self.wanted.add(now.wanted as f64, missed + 0.001);
            self.staged.add(now.staged as f64, missed + 0.001);
            let away = now.wanted.saturating_sub(now.resident + now.staged + now.on_device);
            if away > 0 {
                self.pool_part.add((now.pool as f64 / away as f64).min(1.0), away as f64);
            }
        }
        self.peak_wanted = self.peak_wanted.max(now.wanted);
        self.last = Some(now);
    }

    /// The most pages that the program wanted.
    pub fn peak_wanted(&self) -> u64 {
        self.peak_wanted
    }

    /// The part of its threads' time that went to swap; none if nothing has happened yet.
    pub fn stalled(&self) -> Option<f64> {
        let all = Interval { wall_ns: self.wall_ns, own_ns: self.own_ns, stall_ns: self.stall_ns };
        (self.wall_ns > 0.0).then(|| all.stalled())
    }

    /// The smallest resident set that the run says something about, in pages.
    fn lowest(&self) -> Option<f64> {
        let mut covered_ns = 0.0;
        self.levels.iter().find_map(|(step, level)| {
            covered_ns += level.own_ns;
            (covered_ns >= self.own_ns / COVERED_PART).then(|| reaches::pages_of(*step) as f64)
        })
    }

    /// How many faults of the whole run a resident set of so many pages would not have avoided; none if the run does not say.
    fn misses(&self, resident: f64) -> Option<f64> {
        let step = reaches::step_of((resident * (1.0 + 1.0 / SLACK_PART)) as u64);
        let (mut own_ns, mut faults) = (0.0, 0.0);
        for level in self.levels.range(..=step).map(|(_, level)| level) {
            own_ns += level.own_ns;
            // Of the step that the size is in, a part.
            for (at, n) in level.faults.iter().enumerate().filter(|(_, n)| **n > 0) {
                let (from, to) = (reaches::pages_of(at) as f64, reaches::pages_of(at + 1) as f64);
                faults += *n as f64 * ((to - resident) / (to - from)).clamp(0.0, 1.0);
            }
        }
        (own_ns >= self.own_ns / COVERED_PART && own_ns > 0.0).then(|| faults * self.own_ns / own_ns)
    }

    /// What would happen with a budget of `ram` pages, with a device or without.
    pub fn forecast(&self, ram: u64, has_device: bool) -> Forecast {
        let (budget, wanted) = (ram as f64, self.wanted.get());
        let staged = self.staged.get().min(budget / SLACK_PART);
        let part = self.pool_part.get().min(0.99);
        let most = budget * if has_device { POOL_BEFORE_DEVICE } else { POOL_ALONE };
        // What is not resident takes `part` of its size in the pool.
        let fitting = (budget - staged - part * wanted) / (1.0 - part);
        let (mut resident, mut on_device) = (fitting.min(wanted), 0.0);
        let mut pool = part * (wanted - resident);
        if pool > most && resident < wanted {
            pool = most;
            resident = (budget - staged - pool).clamp(0.0, wanted);
            on_device = wanted - resident - if part > 0.0 { pool / part } else { wanted };
        }
        let is_too_small = resident <= 0.0 || (on_device > 0.0 && !has_device);
        let outcome = match self.misses(resident) {
            _ if is_too_small => Outcome::TooSmall,
            _ if resident >= wanted => Outcome::Times(1.0),
            None => Outcome::Unknown,
            Some(misses) => Outcome::Times(1.0 + self.cost_ns(misses) / self.alone_ns()),
        };
        let [resident, pool, on_device] = [resident, pool, on_device].map(|pages| pages.max(0.0) as u64);
        Forecast { ram, resident, pool, on_device, outcome }
    }

    /// How long so many misses keep the program from getting on.
    fn cost_ns(&self, misses: f64) -> f64 {
        misses * self.fit.costs().1
    }

    /// How long the run would have taken with RAM for everything.
    fn alone_ns(&self) -> f64 {
        (self.own_ns + self.touched * self.fit.costs().0).max(1.0)
    }

    /// The smallest budget in steps of a hundredth of what was wanted with which the program takes no longer than `times` as long as
    /// with RAM for everything.
    pub fn smallest(&self, times: f64, has_device: bool) -> Option<Forecast> {
        let keeps = |forecast: &Forecast| matches!(forecast.outcome, Outcome::Times(t) if t <= times);
        let all = (1..=120).rev().map(|percent| self.forecast(self.peak_wanted * percent / 100, has_device));
        all.skip_while(|forecast| !keeps(forecast)).take_while(keeps).last()
    }

    /// The budget at which more begins to gain little: where the curve is farthest below the line between its ends (Kneedle,
    /// Satopaa and others, 2011).
    pub fn knee(&self, has_device: bool) -> Option<Forecast> {
        let points: Vec<(Forecast, f64)> = (1..=100)
            .map(|percent| self.forecast(self.peak_wanted * percent / 100, has_device))
            .filter_map(|forecast| match forecast.outcome {
                Outcome::Times(times) => Some((forecast, times)),
                _ => None,
            })
            .collect();
        let ((first, most), (last, least)) = (points.first()?, points.last()?);
        // A curve that is as good as flat has none.
        if most - least < 0.05 || first.ram == last.ram {
            return None;
        }
        let below = |(forecast, times): &(Forecast, f64)| {
            let along = (forecast.ram - first.ram) as f64 / (last.ram - first.ram) as f64;
            1.0 - along - (times - least) / (most - least)
        };
        points.iter().max_by(|a, b| below(a).total_cmp(&below(b))).map(|(forecast, _)| *forecast)
    }

    /// The lowest and the highest size of the resident set that was seen, in pages, and for how long the tree was watched.
    pub fn seen(&self) -> Option<(u64, u64, std::time::Duration)> {
        let (highest, lowest) = (self.levels.keys().next_back()?, self.lowest()?);
        let wall = std::time::Duration::from_nanos(self.wall_ns as u64);
        Some((lowest as u64, reaches::pages_of(*highest), wall))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    /// A second of a run that has `resident` of 10,000 pages and misses as many as `missed`, each of which a resident set of
    /// `needed` pages would have kept.
    struct Made {
        curve: Curve,
        sample: Sample,
    }

    impl Made {
        fn new() -> Self {
            let sample = Sample {
                at: Instant::now(),
                resident: 0,
                staged: 0,
                pool: 0,
                wanted: 10_000,
                on_device: 0,
                fault_ns: 0,
                device_ns: 0,
                background_ns: 0,
                faults: 0,
                touched: 0,
                missed: 0,
                cpu_ns: 0,
                delay_ns: 0,
                reaches: [0; STEPS],
            };
            Self { curve: Curve::default(), sample }
        }

        /// One second of its own time, with the waits on top: 10 us for each miss.
        fn second(&mut self, resident: u64, misses: &[(u64, u64)]) {
            let sample = &mut self.sample;
            sample.resident = resident;
            // Two to one.
            sample.pool = (sample.wanted - resident) / 2;
            self.curve.add(sample.clone());
            let missed: u64 = misses.iter().map(|(_, n)| n).sum();
            for (needed, n) in misses {
                sample.reaches[reaches::step_of(*needed)] += n;
            }
            sample.missed += missed;
            sample.fault_ns += missed * 10_000;
            sample.cpu_ns += 1_000_000_000 + missed * 10_000;
            sample.at += Duration::from_nanos(1_000_000_000 + missed * 10_000);
            self.curve.add(sample.clone());
        }

        fn times(&self, ram: u64) -> Outcome {
            self.curve.forecast(ram, false).outcome
        }
    }

    fn assert_close(outcome: Outcome, times: f64) {
        assert!(matches!(outcome, Outcome::Times(t) if (t - times).abs() < 0.02), "{outcome:?}, not {times}");
    }

    #[test]
    fn faults_that_a_size_avoids_cost_nothing_there() {
        let mut made = Made::new();
        // The steps around 4,096 and 8,192 begin there.
        made.second(3_000, &[(4_096, 50_000), (8_192, 25_000)]);
        // 6,500 pages hold 3,000, and 7,000 at two to one.
        assert_close(made.times(6_500), 1.75);
        // 8,000 pages hold 6,000, and 4,000 at two to one.
        assert_close(made.times(8_000), 1.25);
        assert_close(made.times(10_000), 1.0);
        // The run did not have so few.
        assert_eq!(made.times(6_000), Outcome::Unknown);
        assert_eq!(made.times(2_000), Outcome::TooSmall);
        let forecast = made.curve.forecast(8_000, false);
        assert_eq!((forecast.resident, forecast.pool, forecast.on_device), (6_000, 2_000, 0));
    }

    #[test]
    fn a_size_is_judged_by_the_time_for_which_the_resident_set_was_no_larger() {
        let mut made = Made::new();
        for _ in 0..3 {
            made.second(9_000, &[]);
        }
        made.second(3_000, &[(8_192, 25_000)]);
        // A quarter of the run is the measure for all of it.
        assert_close(made.times(6_500), 1.25);
    }

    #[test]
    fn the_smallest_budget_for_a_goal_and_the_knee_are_on_the_curve() {
        let mut made = Made::new();
        made.second(3_000, &[(4_096, 90_000), (8_192, 5_000)]);
        let smallest = made.curve.smallest(1.10, false).unwrap();
        assert!((6_900..7_300).contains(&smallest.ram), "{smallest:?}");
        assert!(made.curve.smallest(0.5, false).is_none());
        let knee = made.curve.knee(false).unwrap();
        assert!((6_900..7_600).contains(&knee.ram), "{knee:?}");
    }

    #[test]
    fn what_the_pool_does_not_take_goes_to_a_device() {
        let mut made = Made::new();
        made.second(1_000, &[(8_192, 1_000)]);
        let forecast = made.curve.forecast(3_000, true);
        // Half of the budget, with twice as much content, and half of the rest.
        assert_eq!((forecast.resident, forecast.pool, forecast.on_device), (1_500, 1_500, 5_500));
    }

    #[test]
    fn first_touches_are_told_from_misses() {
        let mut fit = Fit::default();
        for (touched, missed) in [(1000.0, 10.0), (10.0, 900.0), (500.0, 500.0), (0.0, 100.0)] {
            fit.add(touched, missed, 2.0 * touched + 9.0 * missed);
        }
        let (touch, miss) = fit.costs();
        assert!((touch - 2.0).abs() < 0.01 && (miss - 9.0).abs() < 0.01, "{touch} {miss}");
        let mut fit = Fit::default();
        fit.add(0.0, 100.0, 700.0);
        assert_eq!(fit.costs(), (0.0, 7.0));
        assert_eq!(Fit::default().costs(), (0.0, 0.0));
    }

    #[test]
    fn a_run_that_never_missed_says_so() {
        let mut made = Made::new();
        made.second(10_000, &[]);
        assert_close(made.times(10_000), 1.0);
        assert!(made.curve.knee(false).is_none());
        assert_eq!(made.curve.stalled(), Some(0.0));
        assert_eq!(Curve::default().stalled(), None);
    }
}
