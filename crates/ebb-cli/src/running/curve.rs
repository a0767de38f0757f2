//! How long a program would take with more RAM or less, from one run.
//!
//! How often the program missed a page is counted for each size that its resident set had during the run; what a miss costs is
//! measured in the same run; and what the pool needs for what is not resident says how large a resident set a budget leaves room
//! for. Misses by size are made to fall with the size (isotonic regression), because phases of the program and what a change of the
//! size itself costs make them uneven.
//!
//! For sizes larger than all that were seen, refault distances say which of the misses would have been none: each page that comes
//! back says how large a resident set would have kept it (`ebb::stats::Reaches`). They are not used where sizes can be compared
//! directly, because they suppose that always the page leaves that was not used for longest. For sizes smaller than all that were
//! seen there is only a bound.

use std::collections::BTreeMap;

use ebb::stats::reaches::{self, STEPS};

use crate::running::fit::Fit;
use crate::running::sample::Sample;

/// Sizes that differ by less than this part (1 / 16) are taken for the same: they change while a sample is taken.
const SLACK_PART: f64 = 16.0;
/// Where less than this part (1 / 8) of the time was the program's own, it is too little to be told from what swap took.
const OWN_PART: f64 = 8.0;
/// A program fills memory while more than this part (1 / 64) of what it wants is new between two samples.
const FILLED_PART: u64 = 64;
/// What a miss costs the program besides its handler and the trap, in traps: what it finds gone from the processor's caches, and
/// that the kernel's ways are not in them either. With the trap that is 2 1/4 traps, about as much for each program and size
/// (`docs/decisions/2026-11-30-advise-steady.md`).
const AROUND: f64 = 1.25;
/// A program that missed less than this part (1 / 64) of what it wanted had room for it.
const MISSED_PART: f64 = 64.0;
/// A pool grows if more than this part (1 / 64) of it is new between two samples.
const GROWN_PART: u64 = 64;
/// A pool with less than two fifths of what is held has room: with a device behind it, it may have half.
const FULL_PARTS: [u64; 2] = [2, 5];
/// A curve has a knee if that is so far below the line between its ends, of a square around both.
const BEND: f64 = 0.15;

/// What happened while the resident set was of one size.
#[derive(Debug, Clone)]
struct Level {
    /// The program's own time. What is subtracted from it was sampled, so it may be less than nothing.
    own_ns: f64,
    stall_ns: f64,
    faults: [u64; STEPS],
}

impl Default for Level {
    fn default() -> Self {
        Self { own_ns: 0.0, stall_ns: 0.0, faults: [0; STEPS] }
    }
}

impl Level {
    fn add(&mut self, other: &Self) {
        self.own_ns += other.own_ns;
        self.stall_ns += other.stall_ns;
        self.faults.iter_mut().zip(other.faults).for_each(|(sum, more)| *sum += more);
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
    /// In the program itself: running, or waiting for something else than swap. What is subtracted for that was sampled, so it may
    /// be less than nothing.
    pub own_ns: f64,
    /// In faults: running, and waiting for devices.
    pub stall_ns: f64,
    /// Of that, waiting for devices.
    pub wait_ns: f64,
}

impl Interval {
    /// `trap_ns` is what a fault costs apart from what its handler does. Waiting for a processor counts nowhere: it is the other
    /// programs' doing, and would change from run to run.
    pub fn between(last: &Sample, now: &Sample, trap_ns: u64) -> Self {
        let grown = |now: u64, last: u64| now.saturating_sub(last) as f64;
        let wall_ns = now.at.saturating_duration_since(last.at).as_nanos() as f64;
        let in_faults_ns = grown(now.fault_ns, last.fault_ns);
        // What faults took by the clock has waits for processors in it, and what devices took, reads that nobody waited for.
        let beyond_ns = (grown(now.fault_wall_ns, last.fault_wall_ns) - in_faults_ns).max(0.0);
        let wait_ns = beyond_ns.min(grown(now.device_ns, last.device_ns));
        let traps = grown(now.faults, last.faults) + AROUND * grown(now.missed, last.missed);
        let faults_ns = in_faults_ns + traps * trap_ns as f64;
        let (cpu_ns, delay_ns) = (grown(now.cpu_ns, last.cpu_ns), grown(now.delay_ns, last.delay_ns));
        let own_cpu_ns = cpu_ns - grown(now.background_ns, last.background_ns);
        let idle_ns = (wall_ns - own_cpu_ns - delay_ns - wait_ns).max(0.0);
        let own_ns = own_cpu_ns - faults_ns + idle_ns;
        Self { wall_ns, own_ns, stall_ns: faults_ns + wait_ns, wait_ns }
    }

    /// The part of the threads' time that went to swap.
    pub fn stalled(self) -> f64 {
        let all_ns = self.own_ns.max(0.0) + self.stall_ns;
        if all_ns > 0.0 { self.stall_ns / all_ns } else { 0.0 }
    }
}

/// Pages that are in no page table.
fn away_of(sample: &Sample) -> u64 {
    sample.wanted.saturating_sub(sample.resident)
}

/// A part of a whole; nothing is no part of nothing.
fn part_of(part: u64, whole: u64) -> f64 {
    if whole > 0 { (part as f64 / whole as f64).min(1.0) } else { 0.0 }
}

/// How often pages are missing with a resident set of a size.
#[derive(Debug, Clone, Copy)]
struct Rate {
    resident: f64,
    misses: f64,
}

enum Misses {
    Number(f64),
    /// At least so many.
    More(f64),
    Unknown,
}

/// Why a run whose budget changed does not say what others would do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lack {
    /// Ebb managed none of it.
    Unmanaged,
    /// It ended before half of what it wanted was tried, or as little as it can do with, or before that was steady.
    Short,
    /// The smallest budget that was tried had room for all of it, or almost.
    Small,
}

/// What a run has told so far.
#[derive(Debug, Clone, Default)]
pub struct Curve {
    has_turned: bool,
    trap_ns: u64,
    last: Option<Sample>,
    /// What happened while the resident set was steady, by the steps of its size and of what was wanted.
    levels: BTreeMap<(usize, usize), Level>,
    /// The program's own time by the steps of what was wanted, but for the time in which it filled new memory.
    wanted_ns: BTreeMap<usize, f64>,
    fit: Fit,
    /// Sums of the [`Interval`]s.
    own_ns: f64,
    wall_ns: f64,
    stall_ns: f64,
    wait_ns: f64,
    /// Misses, each for the part of what was not in page tables that was on a device.
    exposed: f64,
    /// All misses, and those on a device.
    missed: f64,
    of_file: f64,
    touched: f64,
    peak_wanted: u64,
    peak_resident: u64,
    /// While pages were missed, how many were wanted, staged, and in the pool for each that was neither resident nor on a device.
    wanted: Mean,
    staged: Mean,
    pool_part: PoolPart,
    /// Of what left while the pool had room, the part that went to a device all the same.
    direct: Mean,
}

/// How many pages of the pool a page takes that is there.
#[derive(Debug, Clone, Copy, Default)]
struct PoolPart {
    /// What the pool has held it keeps for a while. Only while it grows there is nothing else in it.
    growing: Mean,
    /// Where it never grew.
    ever: Mean,
}

impl PoolPart {
    fn add(&mut self, part: f64, away: f64, grows: bool) {
        self.ever.add(part, away);
        if grows {
            self.growing.add(part, away);
        }
    }

    fn get(self) -> f64 {
        let of = if self.growing.weight > 0.0 { self.growing } else { self.ever };
        of.get().min(0.99)
    }
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
    /// Longer than that: the run did not get that low.
    More(f64),
    /// Nothing was seen.
    Unknown,
    /// The pool and what is in use would not fit, and there is no device.
    TooSmall,
}

impl Curve {
    /// `trap_ns` is what a fault costs apart from what its handler does.
    pub fn new(trap_ns: u64) -> Self {
        Self { trap_ns, ..Self::default() }
    }

    /// What a fault costs apart from what its handler does.
    pub fn trap_ns(&self) -> u64 {
        self.trap_ns
    }

    /// Takes in what happened since the last sample. `is_steady` says whether the resident set was what its size makes it: not that of
    /// a budget that has just changed.
    pub fn add(&mut self, mut now: Sample, is_steady: bool) {
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
            let step = |last, now| reaches::step_of(u64::midpoint(last, now));
            // A program that fills new memory does not look back, whatever is resident. Its time says nothing of later times.
            let filled = now.wanted.saturating_sub(last.wanted);
            if filled <= now.wanted / FILLED_PART || filled as f64 <= missed {
                let wanted = step(last.wanted, now.wanted);
                *self.wanted_ns.entry(wanted).or_default() += spent.own_ns;
                if is_steady {
                    let mut level = Level { own_ns: spent.own_ns, stall_ns: spent.stall_ns, faults: now.reaches };
                    level.faults.iter_mut().zip(last.reaches).for_each(|(now, last)| *now = now.saturating_sub(last));
                    self.levels.entry((step(last.resident, now.resident), wanted)).or_default().add(&level);
                }
            }
            let of_file = grown(now.of_file, last.of_file).min(missed);
            self.fit.add([touched, missed - of_file, of_file], spent.stall_ns - spent.wait_ns);
            (self.missed, self.of_file) = (self.missed + missed, self.of_file + of_file);
            self.exposed += missed * part_of(last.on_device + now.on_device, away_of(&last) + away_of(&now));
            self.own_ns += spent.own_ns;
            self.wall_ns += spent.wall_ns;
            self.stall_ns += spent.stall_ns;
            self.wait_ns += spent.wait_ns;
            self.touched += touched;
            self.wanted.add(now.wanted as f64, missed + 0.001);
            self.staged.add(now.staged as f64, missed + 0.001);
            let out = |sample: &Sample| away_of(sample).saturating_sub(sample.staged);
            let left = grown(out(&now), out(&last));
            let held = now.resident + now.staged + now.pool;
            if left > 0.0 && now.pool * FULL_PARTS[1] < held * FULL_PARTS[0] {
                self.direct.add((grown(now.on_device, last.on_device) / left).min(1.0), left);
            }
            let away = out(&now).saturating_sub(now.on_device);
            if away > 0 {
                let part = (now.pool as f64 / away as f64).min(1.0);
                self.pool_part.add(part, away as f64, now.pool > last.pool + last.pool / GROWN_PART);
            }
        }
        self.peak_wanted = self.peak_wanted.max(now.wanted);
        self.peak_resident = self.peak_resident.max(now.resident);
        self.last = Some(now);
    }

    /// The budget has been down, and goes up again.
    pub fn turn(&mut self) {
        self.has_turned = true;
    }

    /// Why the run does not tell enough, if it was one in which the budget should have gone down and up.
    pub fn lack(&self) -> Option<Lack> {
        if self.peak_wanted == 0 {
            Some(Lack::Unmanaged)
        } else {
            let rates = self.rates();
            let was_halved = rates.first().is_some_and(|rate| rate.resident < self.peak_wanted as f64 / 2.0);
            match self.has_turned || was_halved {
                false => Some(Lack::Short),
                // One size is a point. A line has two.
                true if rates.len() >= 2 => None,
                true if self.missed > self.peak_wanted as f64 / MISSED_PART => Some(Lack::Short),
                true => Some(Lack::Small),
            }
        }
    }

    /// The most pages that the program wanted.
    pub fn peak_wanted(&self) -> u64 {
        self.peak_wanted
    }

    /// The part of its threads' time that went to swap; none if nothing has happened yet.
    pub fn stalled(&self) -> Option<f64> {
        let all =
            Interval { wall_ns: self.wall_ns, own_ns: self.own_ns, stall_ns: self.stall_ns, wait_ns: self.wait_ns };
        (self.wall_ns > 0.0).then(|| all.stalled())
    }

    /// Misses in a nanosecond of the program's own time, by the size of the resident set, while it wanted more: falling.
    fn rates(&self) -> Vec<Rate> {
        let mut sums = BTreeMap::<usize, Level>::new();
        for ((resident, wanted), level) in &self.levels {
            let is_short =
                reaches::pages_of(*wanted) as f64 > reaches::pages_of(*resident + 1) as f64 * (1.0 + 1.0 / SLACK_PART);
            if is_short {
                sums.entry(*resident).or_default().add(level);
            }
        }
        sums.retain(|_, level| level.own_ns > (level.own_ns + level.stall_ns) / OWN_PART);
        // Neighbours that rise are taken together, until none does (pool adjacent violators).
        let mut blocks: Vec<(Vec<usize>, f64, f64)> = Vec::new();
        for (step, level) in sums {
            blocks.push((vec![step], level.own_ns, level.faults.iter().sum::<u64>() as f64));
            while let [.., before, last] = blocks.as_mut_slice()
                && before.2 / before.1 < last.2 / last.1
            {
                before.0.append(&mut last.0);
                before.1 += last.1;
                before.2 += last.2;
                blocks.pop();
            }
        }
        let middle = |step: usize| u64::midpoint(reaches::pages_of(step), reaches::pages_of(step + 1)) as f64;
        blocks
            .iter()
            .flat_map(|(steps, own_ns, misses)| {
                steps.iter().map(move |step| Rate { resident: middle(*step), misses: misses / own_ns })
            })
            .collect()
    }

    /// Misses of the whole run with a resident set of so many pages.
    fn misses(&self, rates: &[Rate], resident: f64) -> Misses {
        let short_ns: f64 = self
            .wanted_ns
            .iter()
            .filter(|(wanted, _)| reaches::pages_of(**wanted) as f64 > resident)
            .map(|(_, own_ns)| own_ns.max(0.0))
            .sum();
        let (Some(first), Some(last)) = (rates.first(), rates.last()) else {
            // Nothing was ever missing, so nothing is known of the other side.
            let was_larger = self.wanted_ns.keys().any(|wanted| reaches::pages_of(*wanted) as f64 > resident);
            return if was_larger { Misses::Unknown } else { Misses::Number(0.0) };
        };
        if resident < first.resident * (1.0 - 1.0 / SLACK_PART) {
            return Misses::More(first.misses * short_ns);
        }
        let rate = match rates.iter().position(|rate| rate.resident > resident) {
            Some(0) => first.misses,
            Some(at) => {
                let (from, to) = (rates[at - 1], rates[at]);
                from.misses + (to.misses - from.misses) * (resident - from.resident) / (to.resident - from.resident)
            }
            None => {
                let (here, there) = (self.beyond(last.resident), self.beyond(resident));
                last.misses * if here > 0.0 { there / here } else { 1.0 }
            }
        };
        Misses::Number(rate * short_ns)
    }

    /// How many of the misses a resident set of so many pages would not have avoided, by refault distances.
    fn beyond(&self, resident: f64) -> f64 {
        let part = |step: usize| {
            let (from, to) = (reaches::pages_of(step) as f64, reaches::pages_of(step + 1) as f64);
            ((to - resident) / (to - from)).clamp(0.0, 1.0)
        };
        let of = |level: &Level| {
            level
                .faults
                .iter()
                .enumerate()
                .filter(|(_, n)| **n > 0)
                .map(|(step, n)| *n as f64 * part(step))
                .sum::<f64>()
        };
        self.levels.values().map(of).sum()
    }

    /// What would happen with a budget of `ram` pages, with a device or without.
    pub fn forecast(&self, ram: u64, has_device: bool) -> Forecast {
        let (budget, wanted) = (ram as f64, self.wanted.get());
        let away = (wanted - budget).max(0.0);
        let staged = self.staged.get().min(ebb::staging_target(ram as usize, away as usize) as f64).min(away);
        let part = self.pool_part.get();
        let [before_device, alone] = ebb::pool_max(ram as usize);
        let most = if has_device { before_device } else { alone } as f64;
        // Of what is not resident, this part is on a device at once, and the rest takes `part` of its size in the pool.
        let direct = if has_device { self.direct.get() } else { 0.0 };
        let in_pool = part * (1.0 - direct);
        let mut resident = ((budget - staged - in_pool * wanted) / (1.0 - in_pool)).min(wanted);
        let mut on_device = direct * (wanted - resident);
        let mut pool = in_pool * (wanted - resident);
        if pool > most && resident < wanted {
            pool = most;
            resident = (budget - staged - pool).clamp(0.0, wanted);
            on_device = wanted - resident - if part > 0.0 { pool / part } else { wanted };
        }
        // Without a device, what a short phase wanted has to fit as well: the program would end there.
        let peak = self.peak_wanted as f64;
        let ends_at_peak = peak > budget && part * (peak - (budget - most)) > most;
        let is_too_small = resident <= 0.0 || !has_device && (on_device > 0.0 || ends_at_peak);
        let outcome = match self.misses(&self.rates(), resident) {
            _ if is_too_small => Outcome::TooSmall,
            _ if resident >= wanted => Outcome::Times(1.0),
            // What swap took was sampled: it seems to have been more than all there was.
            _ if self.own_ns <= 0.0 => Outcome::Unknown,
            Misses::Number(misses) => Outcome::Times(self.times(misses, on_device / (wanted - resident))),
            Misses::More(misses) => Outcome::More(self.times(misses, on_device / (wanted - resident))),
            Misses::Unknown => Outcome::Unknown,
        };
        let [resident, pool, on_device] = [resident, pool, on_device].map(|pages| pages.max(0.0) as u64);
        Forecast { ram, resident, pool, on_device, outcome }
    }

    /// How many times as long the run would have taken with so many misses as with RAM for everything, if this part of what is not
    /// resident were on a device. A device has what is missed least, so fewer misses than that are for what is on it.
    fn times(&self, misses: f64, on_device: f64) -> f64 {
        let [touch_ns, near_ns, file_ns] = self.fit.costs();
        let part = if self.exposed > 0.0 { (on_device * self.of_file / self.exposed).min(1.0) } else { on_device };
        let on_file_ns = if self.of_file > 0.0 { file_ns + self.wait_ns / self.of_file } else { near_ns };
        let miss_ns = (1.0 - part) * near_ns + part * on_file_ns.max(near_ns);
        1.0 + misses * miss_ns / (self.own_ns + self.touched * touch_ns)
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
        let knee = points.iter().max_by(|a, b| below(a).total_cmp(&below(b)))?;
        (below(knee) >= BEND).then_some(knee.0)
    }

    /// The lowest size of the resident set while the program wanted more, and the highest of all, in pages; and for how long the tree
    /// was watched.
    pub fn seen(&self) -> Option<(u64, u64, std::time::Duration)> {
        self.wanted_ns.first_key_value()?;
        let highest = self.peak_resident;
        let lowest = self.rates().first().map_or(highest, |rate| rate.resident as u64);
        Some((lowest, highest, std::time::Duration::from_nanos(self.wall_ns as u64)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    /// A second of a run that has `resident` of 10,000 pages and misses as many as `missed`, each of which a resident set of
    /// `needed` pages would have kept.
    struct Made {
        curve: Curve,
        sample: Sample,
    }

    impl Made {
        fn new() -> Self {
            let sample = Sample { wanted: 10_000, ..Sample::empty() };
            Self { curve: Curve::default(), sample }
        }

        /// One second of its own time, with the waits on top: 10 us for each miss.
        fn second(&mut self, resident: u64, misses: &[(u64, u64)]) {
            let sample = &mut self.sample;
            sample.resident = resident;
            // Two to one, and just filled.
            let pool = (sample.wanted - resident) / 2;
            sample.pool = pool / 2;
            self.curve.add(sample.clone(), true);
            sample.pool = pool;
            let missed: u64 = misses.iter().map(|(_, n)| n).sum();
            for (needed, n) in misses {
                sample.reaches[reaches::step_of(*needed)] += n;
            }
            sample.missed += missed;
            sample.fault_ns += missed * 10_000;
            sample.cpu_ns += 1_000_000_000 + missed * 10_000;
            sample.at += Duration::from_nanos(1_000_000_000 + missed * 10_000);
            self.curve.add(sample.clone(), true);
        }

        fn times(&self, ram: u64) -> Outcome {
            self.curve.forecast(ram, false).outcome
        }
    }

    fn assert_close(outcome: Outcome, times: f64) {
        assert!(matches!(outcome, Outcome::Times(t) if (t - times).abs() < 0.02), "{outcome:?}, not {times}");
    }

    #[test]
    fn sizes_that_were_seen_are_compared_directly() {
        let mut made = Made::new();
        made.second(3_000, &[(9_000, 100_000)]);
        made.second(6_000, &[(9_000, 50_000)]);
        // 6,500 pages hold 3,000, and 7,000 at two to one; 8,000 hold 6,000, and 4,000. Sizes count for the middles of their steps.
        assert_close(made.times(6_472), 2.0);
        assert_close(made.times(7_944), 1.5);
        // In the middle between the two.
        assert_close(made.times(7_208), 1.75);
        assert_close(made.times(10_000), 1.0);
        assert!(matches!(made.times(6_000), Outcome::More(times) if times >= 2.0), "{:?}", made.times(6_000));
        assert_eq!(made.times(2_000), Outcome::TooSmall);
        let forecast = made.curve.forecast(8_000, false);
        assert_eq!((forecast.resident, forecast.pool, forecast.on_device), (6_000, 2_000, 0));
    }

    #[test]
    fn larger_sizes_than_all_that_were_seen_avoid_what_is_near() {
        let mut made = Made::new();
        made.second(3_000, &[(4_096, 50_000), (8_192, 25_000)]);
        assert_close(made.times(6_540), 1.75);
        assert_close(made.times(8_000), 1.25);
    }

    #[test]
    fn misses_that_rise_with_the_size_are_taken_together() {
        let mut made = Made::new();
        made.second(3_000, &[(9_000, 100_000)]);
        made.second(4_500, &[(9_000, 40_000)]);
        made.second(6_000, &[(9_000, 60_000)]);
        let rates: Vec<u64> = made.curve.rates().iter().map(|rate| (rate.misses * 1e9).round() as u64).collect();
        assert_eq!(rates, [100_000, 50_000, 50_000]);
    }

    #[test]
    fn time_in_which_the_program_wanted_less_counts_without_misses() {
        let mut made = Made::new();
        made.second(3_000, &[(9_000, 100_000)]);
        made.sample.wanted = 1_000;
        made.second(1_000, &[]);
        let rates = made.curve.rates();
        // In the second half nothing is missing.
        let Misses::Number(misses) = made.curve.misses(&rates, 3_100.0) else { panic!("{rates:?}") };
        assert!((misses - 100_000.0).abs() < 1_000.0, "{misses}");
    }

    #[test]
    fn the_smallest_budget_for_a_goal_and_the_knee_are_on_the_curve() {
        let mut made = Made::new();
        made.second(3_000, &[(9_000, 100_000)]);
        made.second(5_000, &[(9_000, 5_000)]);
        made.second(8_000, &[(9_000, 4_000)]);
        let smallest = made.curve.smallest(1.05, false).unwrap();
        assert!((7_400..7_700).contains(&smallest.ram), "{smallest:?}");
        assert!(made.curve.smallest(0.5, false).is_none());
        let knee = made.curve.knee(false).unwrap();
        assert!((7_300..7_700).contains(&knee.ram), "{knee:?}");
    }

    #[test]
    fn a_straight_curve_has_no_knee() {
        let mut made = Made::new();
        for resident in [3_000, 4_000, 5_000, 6_000, 7_000, 8_000, 9_000] {
            made.second(resident, &[(9_900, (10_000 - resident) * 20)]);
        }
        assert_eq!(made.curve.knee(false), None);
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
    fn what_goes_to_a_device_while_the_pool_has_room_does_so_with_any_budget() {
        let mut made = Made::new();
        (made.sample.resident, made.sample.missed) = (10_000, 1);
        made.curve.add(made.sample.clone(), true);
        let last = made.sample.clone();
        // Of 4,000 pages that left, half are on a device, and the others take half of their size.
        made.sample = Sample {
            at: last.at + Duration::from_secs(1),
            cpu_ns: last.cpu_ns + 1_000_000_000,
            resident: 6_000,
            pool: 1_000,
            on_device: 2_000,
            missed: 2,
            ..last
        };
        made.curve.add(made.sample.clone(), true);
        let forecast = made.curve.forecast(8_000, true);
        assert_eq!((forecast.resident, forecast.pool, forecast.on_device), (7_333, 666, 1_333));
        let forecast = made.curve.forecast(8_000, false);
        assert_eq!((forecast.resident, forecast.pool, forecast.on_device), (6_000, 2_000, 0));
    }

    #[test]
    fn waits_for_devices_count_for_the_part_that_is_on_them() {
        let mut made = Made::new();
        made.second(3_000, &[(9_000, 50_000)]);
        // As many again while half of what is away is on a device. There a miss takes 30 us and 20 us of waiting.
        made.sample.on_device = 3_500;
        made.curve.add(made.sample.clone(), true);
        let last = made.sample.clone();
        made.sample = Sample {
            at: last.at + Duration::from_millis(2_500),
            cpu_ns: last.cpu_ns + 2_000_000_000,
            fault_ns: last.fault_ns + 1_000_000_000,
            fault_wall_ns: last.fault_wall_ns + 1_500_000_000,
            device_ns: last.device_ns + 900_000_000,
            missed: last.missed + 50_000,
            of_file: last.of_file + 25_000,
            ..last
        };
        made.curve.add(made.sample.clone(), true);
        for (part, times) in [(0.0, 1.5), (0.5, 2.5), (1.0, 3.5)] {
            let told = made.curve.times(100_000.0, part);
            assert!((told - times).abs() < 0.02, "{part}: {told}, not {times}");
        }
    }

    #[test]
    fn the_program_s_own_time_is_what_neither_faults_nor_the_background_took() {
        let last = Sample::empty();
        // A second in which the program's thread waited for 100 ms in 1,000 faults, and background reclaim took 300 ms.
        let now = Sample {
            at: last.at + Duration::from_secs(1),
            cpu_ns: 1_200_000_000,
            background_ns: 300_000_000,
            fault_ns: 50_000_000,
            fault_wall_ns: 170_000_000,
            device_ns: 100_000_000,
            faults: 1_000,
            missed: 800,
            ..last.clone()
        };
        // Traps and what comes with misses: 1,000 + 800 * 1.25 of them.
        let spent = Interval::between(&last, &now, 10_000);
        assert_eq!((spent.own_ns, spent.stall_ns, spent.wait_ns), (830_000_000.0, 170_000_000.0, 100_000_000.0));
        assert!((spent.stalled() - 0.17).abs() < 1e-9);
        // What is sampled may be more than all there was.
        let over = Interval::between(&last, &Sample { fault_ns: 2_000_000_000, ..now }, 0);
        assert!(over.own_ns < 0.0 && over.stalled() == 1.0, "{over:?}");
    }

    #[test]
    fn what_happens_before_it_is_steady_is_no_work_of_its_size() {
        let mut made = Made::new();
        made.second(3_000, &[(9_000, 100_000)]);
        let before = made.curve.rates()[0].misses;
        // As long again, without a miss: the tree has just been given less.
        made.sample.at += Duration::from_secs(1);
        made.sample.cpu_ns += 1_000_000_000;
        made.curve.add(made.sample.clone(), false);
        assert_eq!(made.curve.rates()[0].misses, before);
        // But the program took so long.
        let Misses::Number(misses) = made.curve.misses(&made.curve.rates(), 3_100.0) else { panic!() };
        assert!((misses - 200_000.0).abs() < 1.0, "{misses}");
    }

    #[test]
    fn what_is_almost_all_swap_is_not_told_from_the_program() {
        let mut made = Made::new();
        made.second(3_000, &[(9_000, 100_000)]);
        made.second(1_500, &[(9_000, 900_000)]);
        assert_eq!(made.curve.rates().len(), 1);
        assert!(matches!(made.times(5_700), Outcome::More(_)), "{:?}", made.times(5_700));
    }

    #[test]
    fn what_the_pool_has_held_and_keeps_is_not_what_it_needs() {
        let mut made = Made::new();
        made.second(3_000, &[(9_000, 1_000)]);
        // Most has come back, and the pool is as large as it was.
        let pool = made.sample.pool;
        (made.sample.resident, made.sample.at) = (9_000, made.sample.at + Duration::from_secs(1));
        made.curve.add(made.sample.clone(), true);
        let forecast = made.curve.forecast(8_000, false);
        assert_eq!((pool, forecast.resident, forecast.pool), (3_500, 6_000, 2_000));
    }

    #[test]
    fn a_budget_in_which_the_program_would_end_at_its_peak_is_too_small() {
        let mut made = Made::new();
        // What a phase wanted was twice as much as the rest of the run.
        made.sample.wanted = 20_000;
        made.second(5_000, &[]);
        made.sample.wanted = 10_000;
        made.second(1_000, &[(9_000, 50_000)]);
        // At two to one, four fifths of the budget hold 1.6 budgets.
        assert_eq!(made.times(10_900), Outcome::TooSmall);
        assert_ne!(made.curve.forecast(10_900, true).outcome, Outcome::TooSmall);
        assert_close(made.times(11_300), 1.0);
        assert!(made.curve.smallest(9.0, false).unwrap().ram > 11_000);
    }

    #[test]
    fn memory_that_is_being_filled_says_nothing_of_later_times() {
        let mut made = Made::new();
        made.second(3_000, &[(9_000, 100_000)]);
        let before = made.curve.rates()[0].misses;
        // As many were resident for two seconds in which it filled new memory and missed nothing.
        for _ in 0..2 {
            let last = made.sample.clone();
            made.sample = Sample { at: last.at + Duration::from_secs(1), cpu_ns: last.cpu_ns + 1_000_000_000, ..last };
            made.sample.wanted += 2_000;
            made.curve.add(made.sample.clone(), true);
        }
        assert!((made.curve.rates()[0].misses / before - 1.0).abs() < 1e-9, "{:?}", made.curve.rates());
    }

    #[test]
    fn a_run_lacks_what_was_not_tried() {
        let mut made = Made::new();
        assert_eq!(made.curve.lack(), Some(Lack::Unmanaged));
        made.second(7_000, &[(9_000, 50_000)]);
        made.second(6_000, &[(9_000, 50_000)]);
        assert_eq!(made.curve.lack(), Some(Lack::Short));
        let mut turned = made.curve.clone();
        turned.turn();
        assert_eq!(turned.lack(), None);
        made.second(3_000, &[(9_000, 100_000)]);
        assert_eq!(made.curve.lack(), None);
        let mut small = Made::new();
        small.second(10_000, &[]);
        small.curve.turn();
        assert_eq!(small.curve.lack(), Some(Lack::Small));
        // It missed much, but each time the budget had just changed.
        let mut hasty = Made::new();
        hasty.second(6_000, &[]);
        hasty.sample.missed += 5_000;
        hasty.sample.at += Duration::from_secs(1);
        hasty.curve.add(hasty.sample.clone(), false);
        hasty.curve.turn();
        assert_eq!(hasty.curve.lack(), Some(Lack::Short));
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
