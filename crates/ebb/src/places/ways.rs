//! Which way in costs less: COPY, for which the kernel allocates a page that it frees again later, or MOVE of a frame that Ebb has,
//! which interrupts every processor that the program runs on.
//!
//! How long that takes depends on how many these are, and on whether a hypervisor has them at hand: from 0.2 to 10 µs a page for a
//! run of 64. So both are measured, for each kind of page, and the way that costs more is taken only once in a while.

use crate::base::clock;
use crate::protocols::page::Tag;
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::Relaxed;

/// A run says something of the cost of a page when it has so many.
const PAGES_MIN: usize = 16;
/// What a page that was copied costs more, when it goes again, in parts of a hundred of the copy: to drop one takes 0.4 µs, to
/// copy it 1.1 µs.
const DROP_PERCENT: u64 = 40;
/// One in so many runs goes the way that costs more.
const TRY_EVERY: u32 = 64;
/// The weight of a run that took longer than was usual is one in so many, and it counts as no more than so many times that: its
/// thread may have lost its processor. One that took less says more.
const WEIGHT: u32 = 8;
const OUTLIER: u32 = 4;
const WEIGHT_LESS: u32 = 4;
/// Of the first runs the one that took least counts, because nothing is usual yet: were it the first, and had that lost its
/// processor, the other way would be taken for the next hundred thousands of pages.
const FIRST_RUNS: u32 = 4;

/// What a page costs by one way.
#[derive(Default)]
struct Cost {
    /// Cycles.
    mean: AtomicU32,
    /// Runs that say so, no more than [`FIRST_RUNS`].
    nr_runs: AtomicU32,
}

/// Either way.
#[derive(Default)]
struct Costs {
    moved: Cost,
    copied: Cost,
    runs: AtomicU32,
}

/// What the ways in cost, for pages that were never touched, that are staged, that are swapped.
#[derive(Default)]
pub struct Ways([Costs; 3]);

impl Ways {
    fn of(&self, tag: Tag) -> &Costs {
        match tag {
            Tag::None => &self.0[0],
            Tag::Staged => &self.0[1],
            _ => &self.0[2],
        }
    }

    /// Whether a run of such pages should be moved in.
    pub fn prefers_move(&self, tag: Tag) -> bool {
        let costs = self.of(tag);
        let tries_other = costs.runs.fetch_add(1, Relaxed) % TRY_EVERY == TRY_EVERY - 1;
        costs.is_move_cheaper() != tries_other
    }

    /// Whether frames should be kept for such runs.
    pub fn wants_frames(&self) -> bool {
        [Tag::None, Tag::Swapped].iter().any(|tag| self.of(*tag).is_move_cheaper())
    }

    /// Runs `f`, which brings in pages by either way and says how many came.
    pub fn measure<T>(&self, tag: Tag, by_move: bool, f: impl FnOnce() -> T, came: impl FnOnce(&T) -> usize) -> T {
        let start = clock::cycles();
        let result = f();
        let cycles = clock::cycles().saturating_sub(start);
        let (pages, costs) = (came(&result), self.of(tag));
        if pages >= PAGES_MIN && cycles > 0 {
            let cost = if by_move { &costs.moved } else { &costs.copied };
            cost.note(cycles / pages as u64);
        }
        result
    }
}

impl Costs {
    fn is_move_cheaper(&self) -> bool {
        let (Some(moved), Some(copied)) = (self.moved.cycles(), self.copied.cycles()) else { return true };
        moved * 100 <= copied * (100 + DROP_PERCENT)
    }
}

impl Cost {
    /// Cycles a page, once that is known.
    fn cycles(&self) -> Option<u64> {
        (self.nr_runs.load(Relaxed) >= FIRST_RUNS).then(|| u64::from(self.mean.load(Relaxed)))
    }

    /// What is lost when two threads are at it does not matter.
    fn note(&self, cycles: u64) {
        let (old, new) = (self.mean.load(Relaxed), u32::try_from(cycles).unwrap_or(u32::MAX).max(1));
        let nr_runs = self.nr_runs.load(Relaxed);
        let mean = match nr_runs {
            0 => new,
            1..FIRST_RUNS => new.min(old),
            _ if new < old => old - old / WEIGHT_LESS + new / WEIGHT_LESS,
            _ => old - old / WEIGHT + new.min(old.saturating_mul(OUTLIER)) / WEIGHT,
        };
        self.mean.store(mean.max(1), Relaxed);
        if nr_runs < FIRST_RUNS {
            self.nr_runs.store(nr_runs + 1, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ways(moved: u32, copied: u32) -> Ways {
        let ways = Ways::default();
        let costs = ways.of(Tag::Swapped);
        set(&costs.moved, moved);
        set(&costs.copied, copied);
        ways
    }

    fn set(cost: &Cost, cycles: u32) {
        cost.mean.store(cycles, Relaxed);
        cost.nr_runs.store(if cycles > 0 { FIRST_RUNS } else { 0 }, Relaxed);
    }

    #[test]
    fn the_cheaper_way_is_taken_and_the_other_once_in_a_while() {
        let moves = |ways: &Ways| (0..640).filter(|_| ways.prefers_move(Tag::Swapped)).count();
        assert_eq!([ways(0, 0), ways(900, 0), ways(0, 900)].map(|ways| moves(&ways)), [630; 3]);
        assert_eq!([ways(100, 900), ways(1400, 1000), ways(1401, 1000)].map(|ways| moves(&ways)), [630, 630, 10]);
        // Each kind of page has its own.
        let ways = ways(9000, 1000);
        assert!((0..60).all(|_| ways.prefers_move(Tag::None) && ways.prefers_move(Tag::Staged)));
        assert!(ways.wants_frames());
        set(&ways.of(Tag::None).moved, 5000);
        set(&ways.of(Tag::None).copied, 100);
        assert!(!ways.wants_frames());
    }

    #[test]
    fn costs_follow_what_is_measured_and_one_run_does_not_decide() {
        let cost = Cost::default();
        let mean = || cost.mean.load(Relaxed);
        // The first one lost its processor.
        cost.note(1_000_000_000_000);
        assert_eq!(cost.cycles(), None);
        [1200, 1000, 40_000].iter().for_each(|cycles| cost.note(*cycles));
        assert_eq!(cost.cycles(), Some(1000));
        cost.note(1_000_000_000_000);
        assert!((1300..1500).contains(&mean()));
        (0..100).for_each(|_| cost.note(300));
        assert!((290..320).contains(&mean()), "{}", mean());
        (0..100).for_each(|_| cost.note(9000));
        assert!(mean() > 8900);
        // A few are enough to find that it costs less now.
        (0..8).for_each(|_| cost.note(300));
        assert!(mean() < 1500, "{}", mean());
        // What is too quick to be measured is not unknown.
        (0..1000).for_each(|_| cost.note(0));
        assert!((1..20).contains(&mean()), "{}", mean());
    }

    #[test]
    fn short_runs_say_nothing() {
        let ways = Ways::default();
        let known =
            || [&ways.of(Tag::None).moved, &ways.of(Tag::None).copied].map(|cost| cost.nr_runs.load(Relaxed) > 0);
        assert_eq!(ways.measure(Tag::None, true, || PAGES_MIN - 1, |n| *n), PAGES_MIN - 1);
        assert_eq!(known(), [false, false]);
        // Long enough for the counter to move.
        let work = || (0..PAGES_MIN * 1000).filter(|i| core::hint::black_box(*i) > 999).count();
        ways.measure(Tag::None, false, work, |_| PAGES_MIN);
        assert_eq!(known(), [false, true]);
        ways.measure(Tag::None, true, work, |_| PAGES_MIN);
        assert_eq!(known(), [true, true]);
    }
}
