//! Changes the budget of a tree while it runs, so that one run says what less RAM would cost (`ebb advise`).
//!
//! The budget goes down by steps, until swap takes three quarters of the threads' time, and then at once up to all that the program
//! wants. That is a sweep, and the run has as many as it has time for, so that most phases of the program are seen with most sizes.
//! While the program grows it has what it wants.
//!
//! On each step the tree is given time: what leaves first is what nobody needs, and misses rise until the resident set is another.
//! Only what happens after that is counted as the work of that size.

use std::collections::VecDeque;
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
/// Growth is judged over so many looks.
const LOOKS: usize = 3;
/// The steps of one sweep and of the next, in percent of what is wanted.
const SWEEPS: [&[u64]; 2] = [&[80, 60, 40, 20], &[90, 70, 50, 30, 10]];
/// All that is wanted, and a little more.
const ALL: [u64; 2] = [17, 16];
/// How long a step may take to become steady, and for how long it is watched then.
const SETTLING: Duration = Duration::from_millis(700);
const WATCHING: Duration = Duration::from_millis(400);
/// How long the tree may take to fit into its budget by itself. Processes that do not run have to be asked.
const SHRINKING: Duration = Duration::from_millis(250);
/// So long suffices where less than this part of the time went to swap meanwhile.
const QUICK: Duration = Duration::from_millis(150);
const QUIET: f64 = 0.05;
/// A resident set that grows by more than this part (1 / 16) between a few looks is not steady.
const RISING_PART: u64 = 16;
/// The budget goes up again when swap takes this part of the time.
const STALLED: f64 = 0.75;
/// It is not lowered below this part (1 / 12) of what is wanted, nor below [`LEAST`] pages.
const LEAST_PART: u64 = 12;
const LEAST: u64 = (8 << 20) / PAGE_BYTES;
/// Nor below so many times (in halves) what the pool takes. At twice of it nothing goes to a device. What went there stays there for
/// long, and most of the time the tree is to be as it would be with a budget that does not change. So only each third sweep goes lower.
const POOL_HALVES: [u64; 3] = [4, 4, 3];
/// What a process that waits for memory gets: this part (1 / 8) of what is wanted.
const RELIEF_PART: u64 = 8;
/// A program grows while more than this part (1 / 64) of what it wants is new.
const GROWN_PART: u64 = 64;

/// What a tree holds of its budget.
fn held(sample: &Sample) -> u64 {
    sample.resident + sample.staged + sample.pool
}

/// Where the budget is, and since when.
#[derive(Debug, Clone)]
struct Course {
    /// The budget.
    pages: u64,
    /// Sweeps before this one.
    sweeps: usize,
    /// Steps down from all that is wanted.
    steps: usize,
    /// As it was when the step began, and when it had become steady.
    began: Sample,
    steady: Option<Sample>,
}

impl Course {
    fn new(pages: u64, now: Sample) -> Self {
        Self { pages, sweeps: 0, steps: 0, began: now, steady: None }
    }

    /// Whether what happens now is the work of this size.
    fn is_steady(&self) -> bool {
        self.steady.is_some()
    }

    /// How long this step has taken.
    fn took(&self, now: &Sample) -> Duration {
        now.at.saturating_duration_since(self.began.at)
    }

    /// Goes to a step.
    fn step(&mut self, steps: usize, pages: u64, now: &Sample) {
        (self.steps, self.pages, self.began, self.steady) = (steps, pages, now.clone(), None);
    }

    /// Gives a process that waits for memory and finds nothing more to give up what it needs: it would end for want of it.
    fn relieve(&mut self, most: u64, now: &Sample) {
        if self.steps == 0 && self.took(now) < QUICK {
            return;
        }
        self.sweeps += usize::from(self.steps > 0);
        let pages = self.pages.max(held(now)) + now.wanted / RELIEF_PART;
        self.step(0, pages.max(LEAST).min(most), now);
    }

    /// Looks at the tree, which was as in `before` a few looks ago, and sets the budget. True if a sweep has ended.
    fn look(&mut self, most: u64, trap_ns: u64, before: &Sample, now: &Sample) -> bool {
        let wanted = now.wanted;
        let grown = wanted.saturating_sub(before.wanted);
        let of_pool = now.pool * POOL_HALVES[self.sweeps % POOL_HALVES.len()] / 2;
        let least = (wanted / LEAST_PART).max(LEAST).max(of_pool).min(most);
        // It is about to need more than it has now.
        if grown > wanted / GROWN_PART {
            let pages = self.pages.max(held(now)) + 2 * grown;
            self.step(self.steps, pages.max(least).min(most), now);
            return false;
        }
        if !self.is_done(trap_ns, before, now) {
            return false;
        }
        if self.steps > 0 && self.steady.is_none() {
            self.steady = Some(now.clone());
            return false;
        }
        let stalled = self.steady.as_ref().map_or(0.0, |steady| Interval::between(steady, now, trap_ns).stalled());
        // `--ram` may leave out the first of them.
        let pages_of = |percent: &u64| wanted * percent / 100;
        let mut lower = SWEEPS[self.sweeps % SWEEPS.len()].iter().enumerate().skip(self.steps);
        let next = lower.find(|(_, percent)| pages_of(percent) < self.pages);
        match next.map(|(at, percent)| (at + 1, pages_of(percent).max(least).min(most))) {
            Some((steps, pages)) if stalled <= STALLED && pages < self.pages => {
                self.step(steps, pages, now);
                false
            }
            _ => {
                self.sweeps += 1;
                self.step(0, (wanted * ALL[0] / ALL[1]).max(least).min(most), now);
                true
            }
        }
    }

    /// Whether it is time for the next part of this step.
    fn is_done(&self, trap_ns: u64, before: &Sample, now: &Sample) -> bool {
        let from = self.steady.as_ref().unwrap_or(&self.began);
        let took = now.at.saturating_duration_since(from.at);
        let is_quiet = || Interval::between(from, now, trap_ns).stalled() < QUIET;
        match self.steady {
            _ if took < QUICK => false,
            Some(_) => took >= WATCHING || is_quiet(),
            // What it had before comes back.
            None if now.resident > before.resident + before.resident / RISING_PART => took >= 2 * SETTLING,
            None if took >= SETTLING => true,
            // The resident set is another, or there is no need for that.
            None => {
                let missed = now.missed.saturating_sub(from.missed);
                held(now) <= self.pages + now.wanted / GROWN_PART && (missed >= now.resident || is_quiet())
            }
        }
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
            let (mut most, mut samples) = (page.limit(), VecDeque::new());
            let mut course = Course::new(most, Sample::take(&counters));
            while !its_end.load(Relaxed) {
                let now = Sample::take(&counters);
                its_curve.lock().unwrap_or_else(PoisonError::into_inner).add(now.clone(), course.is_steady());
                samples.push_back(now.clone());
                samples.drain(..samples.len().saturating_sub(LOOKS + 1));
                let pages = course.pages;
                let has_turned = match page.is_awaited(now_ms()) {
                    true => {
                        course.relieve(most, &now);
                        true
                    }
                    false => course.look(most, trap_ns, &samples[0], &now),
                };
                if has_turned && course.pages < most {
                    its_curve.lock().unwrap_or_else(PoisonError::into_inner).turn();
                }
                if !page.replace_limit(pages, course.pages) {
                    // The user has changed it (`ebb set`): that is the most from now on.
                    most = page.limit();
                    course.step(0, most, &now);
                }
                // Processes that run shrink by themselves. To ask them as well would have them give up twice as much.
                let lacking = -page.sum().free();
                if lacking > 0 && course.took(&now) >= SHRINKING {
                    squeeze::ask(page, lacking, OfShared::IfIdle);
                }
                std::thread::park_timeout(EVERY);
            }
            its_curve.lock().unwrap_or_else(PoisonError::into_inner).add(Sample::take(&counters), course.is_steady());
            // Daemons that outlive the program have the budget that the user gave.
            page.replace_limit(course.pages, most);
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

    const MOST: u64 = 100_000;

    /// A program that wants 64,000 pages, and a course over it.
    struct Made {
        course: Course,
        now: Sample,
    }

    impl Made {
        fn new() -> Self {
            let now = Sample { wanted: 64_000, resident: 64_000, ..Sample::empty() };
            Self { course: Course::new(MOST, now.clone()), now }
        }

        /// So much later, after so many misses of 10 us each; the tree holds its budget. True if a sweep has ended.
        fn later(&mut self, ms: u64, missed: u64) -> bool {
            let before = self.now.clone();
            self.now.at += Duration::from_millis(ms);
            self.now.cpu_ns += ms * 1_000_000;
            self.now.missed += missed;
            self.now.fault_ns += missed * 10_000;
            self.now.resident = self.course.pages.min(self.now.wanted);
            self.course.look(MOST, 0, &before, &self.now)
        }

        /// One step on which hardly anything is missed: the budget after it.
        fn quiet_step(&mut self) -> u64 {
            for _ in 0..2 {
                assert!(!self.later(150, 10));
            }
            self.course.pages
        }
    }

    #[test]
    fn a_sweep_goes_down_by_steps_and_the_next_one_between_them() {
        let mut made = Made::new();
        assert!(!made.later(140, 0) && made.course.pages == MOST, "too early");
        made.later(10, 0);
        let first: Vec<u64> = std::iter::once(made.course.pages).chain((0..3).map(|_| made.quiet_step())).collect();
        assert_eq!(first, [51_200, 38_400, 25_600, 12_800]);
        assert!(!made.later(150, 10) && made.later(150, 10), "the last one");
        assert_eq!((made.course.pages, made.course.is_steady()), (68_000, false));
        // All of it comes back.
        made.later(150, 10);
        made.later(150, 10);
        assert_eq!(made.course.pages, 57_600);
    }

    #[test]
    fn a_step_counts_once_the_resident_set_is_another() {
        let mut made = Made::new();
        made.later(150, 0);
        // 51,200 are resident.
        assert!(!made.later(150, 30_000) && !made.course.is_steady());
        assert!(!made.later(150, 25_000) && made.course.is_steady());
        // It is watched for longer where much is missed.
        assert!(!made.later(150, 5_000) && !made.later(200, 5_000));
        assert_eq!(made.course.pages, 51_200);
        assert!(!made.later(50, 1_000));
        assert_eq!((made.course.pages, made.course.is_steady()), (38_400, false));
        // So long is enough for a resident set that changes slowly.
        assert!(!made.later(690, 10_000) && !made.course.is_steady());
        assert!(!made.later(10, 0) && made.course.is_steady());
    }

    #[test]
    fn what_holds_more_than_its_budget_is_not_steady() {
        let mut made = Made::new();
        made.later(150, 0);
        let before = made.now.clone();
        made.now.at += Duration::from_millis(300);
        made.now.resident = 60_000;
        assert!(!made.course.look(MOST, 0, &before, &made.now) && !made.course.is_steady());
    }

    #[test]
    fn a_program_that_hardly_gets_on_has_all_again() {
        let mut made = Made::new();
        made.later(150, 0);
        assert!(!made.later(700, 10));
        // 400 ms, of which 350 went to swap.
        assert!(made.later(400, 35_000));
        assert_eq!((made.course.pages, made.course.steps, made.course.sweeps), (68_000, 0, 1));
    }

    #[test]
    fn a_growing_program_and_a_full_pool_have_room() {
        let mut made = Made::new();
        made.later(150, 0);
        made.now.wanted = 84_000;
        let before = Sample { wanted: 64_000, ..made.now.clone() };
        assert!(!made.course.look(MOST, 0, &before, &made.now));
        // What it holds and twice what was new, but no more than there is.
        assert_eq!((made.course.pages, made.course.steps), (MOST, 1));
        let mut made = Made::new();
        made.later(150, 0);
        made.now.pool = 28_000;
        made.now.resident = 20_000;
        made.course.pages = 58_000;
        let before = made.now.clone();
        made.now.at += Duration::from_millis(700);
        made.course.look(MOST, 0, &before, &made.now);
        made.now.at += Duration::from_millis(400);
        assert!(!made.course.look(MOST, 0, &before, &made.now));
        assert_eq!(made.course.pages, 56_000);
        // Lower it cannot go.
        made.now.at += Duration::from_millis(700);
        made.course.look(MOST, 0, &before, &made.now);
        made.now.at += Duration::from_millis(400);
        assert!(made.course.look(MOST, 0, &before, &made.now));
    }

    #[test]
    fn a_small_program_keeps_what_it_needs_to_run_at_all() {
        let mut made = Made::new();
        (made.now.wanted, made.now.resident) = (2_000, 2_000);
        made.later(150, 0);
        assert_eq!(made.course.pages, LEAST);
        assert!(!made.later(150, 0) && made.later(150, 0));
    }

    #[test]
    fn a_process_that_waits_for_memory_gets_some() {
        let mut made = Made::new();
        (made.now.resident, made.now.pool, made.course.pages, made.course.steps) = (1_000, 30_000, 20_000, 2);
        made.course.relieve(MOST, &made.now);
        assert_eq!((made.course.pages, made.course.steps), (39_000, 0));
        // Not again at once, and never more than there is.
        made.course.relieve(32_000, &made.now);
        assert_eq!(made.course.pages, 39_000);
        made.now.at += Duration::from_millis(200);
        made.course.relieve(32_000, &made.now);
        assert_eq!(made.course.pages, 32_000);
    }

    #[test]
    fn the_next_sweep_goes_by_other_steps_after_one_that_was_cut_short() {
        let mut made = Made::new();
        made.later(150, 0);
        made.course.relieve(MOST, &made.now);
        assert_eq!((made.course.steps, made.course.sweeps), (0, 1));
        made.later(150, 10);
        assert_eq!(made.course.pages, 57_600);
    }

    #[test]
    fn a_budget_below_the_first_steps_is_lowered_all_the_same() {
        let mut made = Made::new();
        made.course.pages = 30_000;
        made.now.resident = 30_000;
        let before = made.now.clone();
        made.now.at += Duration::from_millis(150);
        assert!(!made.course.look(30_000, 0, &before, &made.now));
        // 80 and 60 % are more than there is.
        assert_eq!((made.course.pages, made.course.steps), (25_600, 3));
    }

    #[test]
    fn what_comes_back_is_not_steady() {
        let mut made = Made::new();
        made.later(150, 0);
        let mut looks = 0;
        made.now.resident = 20_000;
        while !made.course.is_steady() {
            let before = made.now.clone();
            made.now.at += Duration::from_millis(150);
            made.now.resident += made.now.resident / 10;
            assert!(!made.course.look(MOST, 0, &before, &made.now));
            looks += 1;
        }
        assert_eq!(looks, 10);
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
}
