//! Which way in costs less: COPY or MOVE.
//!
//! For COPY the kernel allocates a page, which it frees again later. MOVE takes a frame that Ebb has, but interrupts
//! every processor that the program runs on.
//!
//! A MOVE costs from 0.2 to 10 µs a page for a run of 64. The cost depends on how many processors there are, and on
//! whether a hypervisor has them at hand. So both ways are measured, for each kind of page, and the dearer way is taken
//! only once in a while.

use crate::base::clock;
use crate::protocols::page::Tag;
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::Relaxed;

/// Fewest pages of a run whose time says what a page costs.
const PAGES_MIN: usize = 16;
/// What a copied page costs later, when it is dropped, in percent of the copy: dropping a page takes 0.4 µs, copying it
/// 1.1 µs.
const DROP_PERCENT: u64 = 40;
/// One run in so many takes the dearer way.
const TRY_EVERY: u32 = 64;
/// A run that is slower than the mean counts with a weight of 1/`WEIGHT`, and as at most `OUTLIER` times the mean,
/// because its thread may have lost its processor. A faster run says more: its weight is 1/`WEIGHT_LESS`.
const WEIGHT: u32 = 8;
const OUTLIER: u32 = 4;
const WEIGHT_LESS: u32 = 4;
/// The fastest of the first runs counts, because there is no mean yet. If the very first run counted and its thread had
/// lost its processor, the other way would be taken for the next hundreds of thousands of pages.
const FIRST_RUNS: u32 = 4;

/// What a page costs by one way.
#[derive(Default)]
struct Cost {
    /// Mean cost of a page, in cycles.
    mean: AtomicU32,
    /// Runs measured so far, at most [`FIRST_RUNS`].
    nr_runs: AtomicU32,
}

/// What a page of one kind costs by either way.
#[derive(Default)]
struct Costs {
    moved: Cost,
    copied: Cost,
    runs: AtomicU32,
}

/// What the ways in cost for each kind of page: never touched, staged, swapped.
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

    /// Whether a run of pages in state `tag` should come in by MOVE.
    pub fn prefers_move(&self, tag: Tag) -> bool {
        let costs = self.of(tag);
        let tries_other = costs.runs.fetch_add(1, Relaxed) % TRY_EVERY == TRY_EVERY - 1;
        costs.is_move_cheaper() != tries_other
    }

    /// Whether frames should be kept in the stock: MOVE is cheaper for pages that were never touched or are swapped.
    pub fn wants_frames(&self) -> bool {
        [Tag::None, Tag::Swapped].iter().any(|tag| self.of(*tag).is_move_cheaper())
    }

    /// Runs `f`, which brings in pages by MOVE or COPY, and notes its cost. `came` says how many pages came.
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
    /// Cycles a page; none until enough runs were measured.
    fn cycles(&self) -> Option<u64> {
        (self.nr_runs.load(Relaxed) >= FIRST_RUNS).then(|| u64::from(self.mean.load(Relaxed)))
    }

    /// Notes the cost of a page in one run. Two threads at once may lose a measurement, which does not matter.
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
        // Each kind of page has costs of its own.
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
        // The first run lost its processor.
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
        // A few runs are enough to find that the way costs less now.
        (0..8).for_each(|_| cost.note(300));
        assert!(mean() < 1500, "{}", mean());
        // A cost too small to measure still counts as known.
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
        // Long enough for the cycle counter to advance.
        let work = || (0..PAGES_MIN * 1000).filter(|i| core::hint::black_box(*i) > 999).count();
        ways.measure(Tag::None, false, work, |_| PAGES_MIN);
        assert_eq!(known(), [false, true]);
        ways.measure(Tag::None, true, work, |_| PAGES_MIN);
        assert_eq!(known(), [true, true]);
    }
}
