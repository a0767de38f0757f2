//! When objects of the pool become cold by themselves: the state of cooling in the background thread.

use crate::base::spare::{LOOK_NS_MAX, Program, Took};
use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicU32, AtomicU64};

/// How often the eviction clock is noted.
pub(crate) const MARK_NS: u64 = 10_000_000_000;
pub(crate) const MARKS: usize = 4;
/// Of the time, cooling takes one part in so many of a processor, and rests for the others.
const REST_PARTS: u64 = 4;
/// How long it rests at least; and after it had to share its processor, twice as long each time.
const REST_NS: u64 = 2_000_000;
const AWAY_NS: u64 = 20_000_000;
const AWAY_NS_MAX: u64 = 2_000_000_000;
/// While nothing grows old, a wait is at most `1 << (WAITS_MAX - 1)` times as long as the first.
const WAITS_MAX: u32 = 4;

// A look at the program must not come too late to tell anything.
const _: () = assert!(2 * AWAY_NS_MAX <= LOOK_NS_MAX);

/// What the background thread, and it alone, knows of cooling.
#[derive(Default)]
pub(crate) struct Cooling {
    /// Nothing is cooled before this time.
    next_ns: AtomicU64,
    /// How long cooling keeps away since it had to share its processor.
    away_ns: AtomicU64,
    pub(crate) program: Program,
    /// Objects that were tried since cooling last waited for some to grow old, and how often it has waited in vain in a row.
    tried: AtomicU32,
    waits: AtomicU32,
    /// Slots that were visited since an object was last tried.
    in_vain: AtomicU32,
    /// Readings of the eviction clock, the newest first.
    marks: [AtomicU32; MARKS],
    nr_marks: AtomicU32,
    marked_ns: AtomicU64,
}

impl Cooling {
    /// Nanoseconds until cooling may go on.
    pub fn rest_ns(&self, now_ns: u64) -> u64 {
        self.next_ns.load(Relaxed).saturating_sub(now_ns)
    }

    /// Notes the eviction clock if it is time to.
    pub fn note_clock(&self, now_ns: u64, clock: u32) {
        let is_first = self.nr_marks.load(Relaxed) == 0;
        if !is_first && now_ns.saturating_sub(self.marked_ns.load(Relaxed)) < MARK_NS {
            return;
        }
        for i in (1..MARKS).rev() {
            self.marks[i].store(self.marks[i - 1].load(Relaxed), Relaxed);
        }
        self.marks[0].store(clock, Relaxed);
        self.nr_marks.store((self.nr_marks.load(Relaxed) + 1).min(MARKS as u32), Relaxed);
        self.marked_ns.store(now_ns, Relaxed);
    }

    /// How many evictions ago an object must have gone out to have been in the pool for at least `times` times [`MARK_NS`], when the
    /// eviction clock reads `clock`. None before that can be told.
    pub fn age_after(&self, times: usize, clock: u32) -> Option<u32> {
        let is_known = self.nr_marks.load(Relaxed) as usize > times;
        is_known.then(|| clock.wrapping_sub(self.marks[times].load(Relaxed)).saturating_add(1))
    }

    /// Has cooling rest after it took some time, or keep away if it had to share its processor.
    pub fn rest(&self, now_ns: u64, took: Took) {
        if took.had_to_share() {
            return self.keep_away(now_ns);
        }
        self.away_ns.store(0, Relaxed);
        self.next_ns.store(now_ns + (REST_PARTS * took.ran_ns).max(REST_NS), Relaxed);
    }

    /// Has cooling keep away from a processor that others need.
    pub fn keep_away(&self, now_ns: u64) {
        let away_ns = (2 * self.away_ns.load(Relaxed)).clamp(AWAY_NS, AWAY_NS_MAX);
        self.away_ns.store(away_ns, Relaxed);
        self.next_ns.store(now_ns + away_ns, Relaxed);
    }

    /// Has cooling look at the program again soon, because nobody knows how it has been doing.
    pub fn look_again(&self, now_ns: u64) {
        self.next_ns.store(now_ns + AWAY_NS, Relaxed);
    }

    /// Has cooling wait for objects to grow old; for longer and longer while none does.
    pub fn wait(&self, now_ns: u64, ns: u64) {
        let waits = if self.tried.swap(0, Relaxed) > 0 { 0 } else { (self.waits.load(Relaxed) + 1).min(WAITS_MAX) };
        self.waits.store(waits, Relaxed);
        self.away_ns.store(0, Relaxed);
        self.in_vain.store(0, Relaxed);
        self.next_ns.store(now_ns + (ns << waits.saturating_sub(1)), Relaxed);
    }

    /// Counts objects that were tried.
    pub fn note_tried(&self, n: usize) {
        self.tried.fetch_add(n as u32, Relaxed);
    }

    /// Counts slots that were visited, in vain or not. True after a whole round over `all` of them in vain.
    pub fn note_looks(&self, looked: u32, was_in_vain: bool, all: u32) -> bool {
        let in_vain = if was_in_vain { self.in_vain.load(Relaxed).saturating_add(looked) } else { 0 };
        self.in_vain.store(in_vain, Relaxed);
        in_vain >= all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_went_out_before_a_note_has_been_out_since() {
        let cooling = Cooling::default();
        let s = |seconds: u64| seconds * 1_000_000_000;
        cooling.note_clock(s(100), 1000);
        cooling.note_clock(s(105), 1500);
        cooling.note_clock(s(110), 2000);
        cooling.note_clock(s(125), 3000);
        assert_eq!((cooling.age_after(3, 3000), cooling.age_after(1, 3000)), (None, Some(1001)));
        cooling.note_clock(s(135), 3000);
        // The object of reading 1000 went out after the note.
        assert_eq!(cooling.age_after(3, 3000), Some(2001));
        cooling.note_clock(s(145), 3000);
        assert_eq!((cooling.age_after(3, 3100), cooling.age_after(1, 3100)), (Some(1101), Some(101)));
    }

    #[test]
    fn who_had_to_share_keeps_away_for_longer_and_longer() {
        let cooling = Cooling::default();
        let free = Took { wall_ns: 1_000_000, ran_ns: 1_000_000 };
        let shared = Took { wall_ns: 9_000_000, ran_ns: 1_000_000 };
        cooling.rest(0, free);
        assert_eq!((cooling.rest_ns(0), cooling.rest_ns(5_000_000)), (4_000_000, 0));
        let away = [0; 9].map(|now| {
            cooling.rest(now, shared);
            cooling.rest_ns(now) / 1_000_000
        });
        assert_eq!(away, [20, 40, 80, 160, 320, 640, 1280, 2000, 2000]);
        cooling.rest(0, free);
        cooling.rest(0, shared);
        assert_eq!(cooling.rest_ns(0), AWAY_NS);
    }

    #[test]
    fn a_round_in_vain_visits_all_slots() {
        let cooling = Cooling::default();
        assert!(!cooling.note_looks(60, true, 100));
        assert!(!cooling.note_looks(60, false, 100));
        assert!(!cooling.note_looks(60, true, 100));
        assert!(cooling.note_looks(40, true, 100));
        cooling.wait(0, 7);
        assert_eq!((cooling.rest_ns(0), cooling.note_looks(60, true, 100)), (7, false));
    }

    #[test]
    fn while_nothing_grows_old_the_waits_are_longer_and_longer() {
        let cooling = Cooling::default();
        let wait = || {
            cooling.wait(0, 10);
            cooling.rest_ns(0)
        };
        assert_eq!([0; 6].map(|_| wait()), [10, 20, 40, 80, 80, 80]);
        cooling.note_tried(3);
        assert_eq!([wait(), wait(), wait()], [10, 10, 20]);
    }

    #[test]
    fn after_a_busy_program_cooling_goes_on() {
        let (cooling, second) = (Cooling::default(), 1_000_000_000);
        let (mut now, mut ran, mut cooled_at) = (0, 0, None);
        while now < 60 * second && cooled_at.is_none() {
            let is_busy = now < 20 * second;
            match cooling.program.look(now, ran, 2) {
                Some(true) => cooled_at = Some(now),
                Some(false) => cooling.keep_away(now),
                None => cooling.look_again(now),
            }
            // Each wake-up comes a little late.
            let next = cooling.rest_ns(now) + 60_000;
            (now, ran) = (now + next, ran + if is_busy { 2 * next } else { 0 });
        }
        assert!(cooled_at.is_some_and(|at| (20 * second..25 * second).contains(&at)), "{cooled_at:?}");
    }
}
