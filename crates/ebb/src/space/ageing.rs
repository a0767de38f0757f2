//! How far ageing is: what `background::ageing` remembers from one wake-up to the next.

use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicU32, AtomicU64};

/// Readings of the eviction clock for each period. They say to an eighth of a period how long an object has been in the pool.
const READINGS: usize = 8;

/// State of ageing. Only the background thread uses it.
#[derive(Default)]
pub(crate) struct Ageing {
    /// The period that the rest of the state is for, in milliseconds; 0 while ageing is off.
    pub(crate) period_ms: AtomicU64,
    /// When to go on.
    pub(crate) next_ms: AtomicU64,
    /// When the current turn began; 0 between turns.
    pub(crate) turn_ms: AtomicU64,
    /// Units, staged parts and slots that are still to be looked at in this turn.
    pub(crate) units_left: AtomicU32,
    pub(crate) parts_left: AtomicU32,
    pub(crate) slots_left: AtomicU32,
    /// Faults of the process when the last turn began.
    pub(crate) faults: AtomicU64,
    /// What the eviction clock said at which time, in a ring.
    readings: [(AtomicU64, AtomicU32); READINGS + 1],
    nr_readings: AtomicU32,
}

impl Ageing {
    /// Begins anew: with another period, and in fork's child.
    pub(crate) fn reset(&self) {
        self.period_ms.store(0, Relaxed);
        self.next_ms.store(0, Relaxed);
        self.turn_ms.store(0, Relaxed);
        self.nr_readings.store(0, Relaxed);
    }

    /// Notes what the eviction clock says at `now_ms`, if the last note is an eighth of `period_ms` old.
    pub(crate) fn note_clock(&self, now_ms: u64, period_ms: u64, clock: u32) {
        let n = self.nr_readings.load(Relaxed);
        let last_ms = self.reading(n.wrapping_sub(1)).0.load(Relaxed);
        if n == 0 || now_ms.saturating_sub(last_ms) >= period_ms / READINGS as u64 {
            let (at_ms, reading) = self.reading(n);
            at_ms.store(now_ms, Relaxed);
            reading.store(clock, Relaxed);
            self.nr_readings.store(n + 1, Relaxed);
        }
    }

    /// What the eviction clock said when the period before `now_ms` began, or a little earlier; none if nobody noted it then.
    pub(crate) fn clock_a_period_ago(&self, now_ms: u64, period_ms: u64) -> Option<u32> {
        let n = self.nr_readings.load(Relaxed);
        let mut kept = (n.saturating_sub(READINGS as u32 + 1)..n).rev().map(|i| self.reading(i));
        let (_, reading) = kept.find(|(at_ms, _)| now_ms.saturating_sub(at_ms.load(Relaxed)) >= period_ms)?;
        Some(reading.load(Relaxed))
    }

    fn reading(&self, i: u32) -> &(AtomicU64, AtomicU32) {
        &self.readings[i as usize % (READINGS + 1)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_clock_said_a_period_ago_is_known_to_an_eighth() {
        let ageing = Ageing::default();
        assert_eq!(ageing.clock_a_period_ago(50_000, 800), None);
        for at_ms in (50_000..60_000).step_by(30) {
            ageing.note_clock(at_ms, 800, at_ms as u32);
            let found = ageing.clock_a_period_ago(at_ms, 800);
            let age = found.map(|reading| at_ms - u64::from(reading));
            match at_ms - 50_000 {
                0..800 => assert_eq!(age, None, "{at_ms}"),
                _ => assert!(age.is_some_and(|age| (800..=920).contains(&age)), "{age:?} at {at_ms}"),
            }
        }
        ageing.reset();
        assert_eq!(ageing.clock_a_period_ago(99_000, 800), None);
    }

    #[test]
    fn after_a_long_sleep_the_last_reading_counts() {
        let ageing = Ageing::default();
        ageing.note_clock(1000, 800, 7);
        assert_eq!(ageing.clock_a_period_ago(1_000_000, 800), Some(7));
    }
}
