//! How long a thread that cannot free memory itself waits for others to free some.

use crate::base::{killable, uapi};

/// Longest time without progress. What could be freed may be on its way to a slow disk, so this is long.
const PATIENCE_NS: u64 = 10_000_000_000;
/// [`Patience::has_a_claim`] begins after the first of these times. It then holds for the second out of every third.
const BEGUN_NS: u64 = 20_000_000;
const CLAIM_NS: u64 = 2_000_000_000;
const CLAIM_EVERY_NS: u64 = 3_000_000_000;
/// Time without progress from which on [`Patience::is_long`] is true.
const LONG_NS: u64 = 2_000_000_000;
/// For so long, and for so many rounds at most, a waiter only yields the processor to others.
const YIELD_NS: u64 = 200_000;
const YIELDS: u32 = 64;
/// How long one wait takes, at least and at most.
const WAIT_NS: u64 = 1_000_000;
const WAIT_NS_MAX: u64 = 20_000_000;
/// Of at least so many looks, over at least so long, only the smallest figure counts.
const LOOKS: u32 = 8;
const LOOKS_NS: u64 = 1_000_000_000;
/// Longest time that counts between two looks.
const STEP_NS_MAX: u64 = 1_000_000_000;

/// Lasts as long as somebody makes progress, and ten seconds beyond.
///
/// Progress means that fewer or more pages are held than before. A thread that finds no room has charged its pages for
/// a moment, and a step of reclaim that comes to nothing has charged a frame or two. With many such threads, some look
/// always meets such a charge. So the smallest figure of many looks counts.
///
/// Only time spent waiting counts: a process that was stopped goes on where it was.
#[derive(Default)]
pub(crate) struct Patience {
    rounds: u32,
    began_ns: Option<u64>,
    seen_ns: u64,
    idle_ns: u64,
    waited_ns: u64,
    looks: u32,
    looks_ns: u64,
    least: usize,
    held: Option<usize>,
}

impl Patience {
    /// True when this thread has waited longer than others take to free something, if they can. What comes free next
    /// should then be its own. The claim pauses now and then: a thread that wants fewer pages may be able to go on with
    /// those, and then free more.
    pub fn has_a_claim(&self) -> bool {
        self.waited_ns >= BEGUN_NS && self.waited_ns % CLAIM_EVERY_NS < CLAIM_NS
    }

    /// True when nobody has made progress for longer than a thread that could free something takes to begin.
    pub fn is_long(&self) -> bool {
        self.idle_ns >= LONG_NS
    }

    /// Waits a moment, while `held` pages are held. False when nobody has made progress for too long.
    pub fn wait(&mut self, held: usize) -> bool {
        self.rounds += 1;
        let now = uapi::now_ns();
        let began = *self.began_ns.get_or_insert(now);
        if self.rounds < YIELDS && now - began < YIELD_NS {
            uapi::sched_yield();
            return true;
        }
        if !self.look(now, held) {
            return false;
        }
        // Each wait is longer than the one before, because each look takes the processor from threads that could free
        // something.
        killable::sleep(((now - began) / 4).clamp(WAIT_NS, WAIT_NS_MAX));
        true
    }

    /// Notes that `held` pages are held now. False when there has been no progress for too long.
    fn look(&mut self, now: u64, held: usize) -> bool {
        if self.seen_ns > 0 {
            let step = now.saturating_sub(self.seen_ns).min(STEP_NS_MAX);
            self.idle_ns += step;
            self.waited_ns += step;
            self.looks_ns += step;
        }
        self.seen_ns = now;
        self.least = if self.looks == 0 { held } else { self.least.min(held) };
        self.looks += 1;
        if self.looks >= LOOKS && self.looks_ns >= LOOKS_NS {
            if self.held != Some(self.least) {
                (self.held, self.idle_ns) = (Some(self.least), 0);
            }
            (self.looks, self.looks_ns) = (0, 0);
        }
        self.idle_ns < PATIENCE_NS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// Looks every 20 ms for a hundred seconds; `held` says what each look finds. Returns the second in which patience ends.
    fn seconds(held: impl Fn(u64) -> usize) -> Option<u64> {
        let mut patience = Patience::default();
        (0..5000).find(|i| !patience.look((1 + 20 * i) * MS, held(*i))).map(|i| i * 20 / 1000)
    }

    #[test]
    fn without_progress_it_ends_after_ten_seconds() {
        // Ten seconds, after the first looks, which establish what is held.
        assert_eq!(seconds(|_| 1000), Some(11));
        // There was progress for five seconds, in either direction.
        assert!([15, 16].map(Some).contains(&seconds(|i| 1000 - (i / 10).min(25) as usize)));
        assert!([15, 16].map(Some).contains(&seconds(|i| 1000 + (i / 10).min(25) as usize)));
        assert_eq!(seconds(|i| 5000 - i as usize), None);
    }

    #[test]
    fn what_others_charge_for_a_moment_is_no_progress() {
        let charged_too = |i: u64| 1000 + if i.is_multiple_of(3) { 64 } else { i as usize % 3 };
        assert_eq!(seconds(charged_too), Some(11));
        // Most looks meet somebody.
        let by_many = |i: u64| 1000 + if (i * 7919).is_multiple_of(16) { 0 } else { (i * 7919 % 97) as usize };
        assert_eq!(seconds(by_many), Some(11));
    }

    #[test]
    fn who_waits_has_a_claim_two_seconds_of_three() {
        let mut patience = Patience::default();
        let claims: Vec<bool> = (0..450)
            .map(|i| {
                patience.look((1 + 20 * i) * MS, 1000);
                patience.has_a_claim()
            })
            .collect();
        assert!(!claims[0] && claims[1..99].iter().all(|claims| *claims));
        assert_eq!(claims[150..].iter().filter(|claims| **claims).count(), 200);
    }

    #[test]
    fn a_process_that_was_stopped_waits_on() {
        let mut patience = Patience::default();
        assert!((0..100).all(|i| patience.look((1 + 20 * i) * MS, 1000)));
        // An hour later.
        let later = 3_600_000;
        let seen = (0..5000).find(|i| !patience.look((later + 20 * i) * MS, 1000)).expect("it ends");
        // Ten seconds, and one for the first looks. Two of these were waited before, and one counts for the hour.
        assert!((380..=420).contains(&seen), "{seen}");
    }
}
