//! Which way in costs less: COPY, for which the kernel allocates a page that it frees again later, or MOVE of a frame that Ebb has,
//! which interrupts every processor that the program runs on.
//!
//! How long that takes depends on how many these are, and on whether a hypervisor has them at hand: from 0.2 to 10 µs a page for a
//! run of 64. So both are measured, for each kind of page, and the way that costs more is taken only once in a while.

use crate::clock;
use crate::page::Tag;
use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// A run says something of the cost of a page when it has so many.
const PAGES_MIN: usize = 16;
/// What a page that was copied costs more, when it goes again, in parts of a hundred of the copy: to drop one takes 0.4 µs, to
/// copy it 1.1 µs.
const DROP_PERCENT: u64 = 40;
/// One in so many runs goes the way that costs more.
const TRY_EVERY: u32 = 64;
/// The weight of a run is one in so many, and it counts as no more than so many times what was usual: its thread may
/// have lost its processor.
const WEIGHT: u32 = 8;
const OUTLIER: u32 = 4;

/// Cycles a page by either way; 0 until there was one.
#[derive(Default)]
struct Costs {
    moved: AtomicU32,
    copied: AtomicU32,
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
            note(if by_move { &costs.moved } else { &costs.copied }, cycles / pages as u64);
        }
        result
    }
}

impl Costs {
    fn is_move_cheaper(&self) -> bool {
        let [moved, copied] = [&self.moved, &self.copied].map(|cost| u64::from(cost.load(Relaxed)));
        moved == 0 || copied == 0 || moved * 100 <= copied * (100 + DROP_PERCENT)
    }
}

/// What is lost when two threads are at it does not matter.
fn note(cost: &AtomicU32, cycles: u64) {
    let (old, new) = (cost.load(Relaxed), u32::try_from(cycles).unwrap_or(u32::MAX).max(1));
    let new = if old == 0 { new } else { new.min(old.saturating_mul(OUTLIER)) };
    let mean = if old == 0 { new } else { old - old / WEIGHT + new / WEIGHT };
    cost.store(mean.max(1), Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ways(moved: u32, copied: u32) -> Ways {
        let ways = Ways::default();
        ways.of(Tag::Swapped).moved.store(moved, Relaxed);
        ways.of(Tag::Swapped).copied.store(copied, Relaxed);
        ways
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
        [&ways.of(Tag::None).moved, &ways.of(Tag::None).copied]
            .iter()
            .zip([5000, 100])
            .for_each(|(c, v)| c.store(v, Relaxed));
        assert!(!ways.wants_frames());
    }

    #[test]
    fn costs_follow_what_is_measured_and_one_run_does_not_decide() {
        let cost = AtomicU32::new(0);
        note(&cost, 1000);
        assert_eq!(cost.load(Relaxed), 1000);
        note(&cost, 1_000_000_000_000);
        assert!((1300..1500).contains(&cost.load(Relaxed)));
        (0..100).for_each(|_| note(&cost, 300));
        assert!((290..320).contains(&cost.load(Relaxed)), "{cost:?}");
        (0..100).for_each(|_| note(&cost, 9000));
        assert!(cost.load(Relaxed) > 8900);
        // What is too quick to be measured is not unknown.
        (0..1000).for_each(|_| note(&cost, 0));
        assert!((1..20).contains(&cost.load(Relaxed)), "{cost:?}");
    }

    #[test]
    fn short_runs_say_nothing() {
        let ways = Ways::default();
        let known = || [&ways.of(Tag::None).moved, &ways.of(Tag::None).copied].map(|cost| cost.load(Relaxed) > 0);
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
