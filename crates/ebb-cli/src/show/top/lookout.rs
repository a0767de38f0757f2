//! A thread that looks at the shown trees some twenty times a second: whether anybody could run while somebody waited for swap.
//!
//! A tree in which nobody faults is looked at once a second. However many threads there are to look at, the looks take less than one
//! hundredth of a processor.

use std::collections::VecDeque;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::base::sys;
use crate::running::pressure::{self, Moment};
use crate::running::trees::{Inode, RunningTree};
use crate::show::look::{Events, STALL_OVER_MS};

const SPAN: Duration = Duration::from_millis(STALL_OVER_MS);
/// Time between two looks, in nanoseconds. It is drawn by chance, so that no program keeps time with it.
const EVERY_NS: std::ops::Range<u64> = 30_000_000..70_000_000;
/// Time between two looks at a tree in which nothing happens.
const AT_REST: Duration = Duration::from_secs(1);
/// Looks take one part in so many of the time.
const PART: u32 = 100;

/// A tree, and what was seen of it.
struct Seen {
    id: Inode,
    tree: RunningTree,
    faults: u64,
    looked: Option<Instant>,
    was_calm: bool,
    stalled: Stalled,
}

/// The moments of the last seconds at which somebody waited, and whether nobody could have run.
#[derive(Debug, Default)]
struct Stalled(VecDeque<(Instant, bool)>);

impl Stalled {
    fn add(&mut self, at: Instant, moment: Moment) {
        if moment != Moment::Calm {
            self.0.push_back((at, moment == Moment::Full));
        }
        while self.0.front().is_some_and(|(then, _)| at.saturating_duration_since(*then) > SPAN) {
            self.0.pop_front();
        }
    }

    /// How many there were, and at how many of them nobody could have run.
    fn count(&self) -> (u64, u64) {
        (self.0.len() as u64, self.0.iter().filter(|(_, is_full)| *is_full).count() as u64)
    }
}

impl Seen {
    fn look(&mut self, now: Instant) {
        let faults =
            Events::of(self.tree.counters.page()).faults().iter().fold(0u64, |sum, (_, n)| sum.wrapping_add(*n));
        let is_at_rest = self.was_calm && faults == std::mem::replace(&mut self.faults, faults);
        if is_at_rest && self.looked.is_some_and(|looked| now.saturating_duration_since(looked) < AT_REST) {
            return;
        }
        self.looked = Some(now);
        // What cannot be seen counts as nothing, so `full` stays unknown.
        let moment = pressure::look(&self.tree).unwrap_or(Moment::Calm);
        self.was_calm = moment == Moment::Calm;
        self.stalled.add(now, moment);
    }
}

/// The thread, until this is dropped.
pub struct Lookout {
    ends: Arc<AtomicBool>,
    seen: Arc<Mutex<Vec<Seen>>>,
    thread: Option<JoinHandle<()>>,
}

impl Lookout {
    /// Starts the thread. Where there can be no further thread, nothing is seen.
    pub fn begin() -> Self {
        let (ends, seen) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(Vec::new())));
        let (its_end, its_seen) = (Arc::clone(&ends), Arc::clone(&seen));
        // Signals are for the thread that has the terminal.
        let before = sys::change_mask(libc::SIG_BLOCK, &sys::signals(1..32));
        let builder = std::thread::Builder::new().name("ebb-lookout".to_owned());
        let thread = builder.spawn(move || look_on(&its_end, &its_seen)).ok();
        sys::change_mask(libc::SIG_SETMASK, &before);
        Self { ends, seen, thread }
    }

    /// Looks at these trees from now on, and at no others. What was seen of one that was there before is kept.
    pub fn follow(&self, trees: Vec<(Inode, RunningTree)>) {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let mut before = std::mem::take(&mut *seen);
        *seen = trees
            .into_iter()
            .map(|(id, tree)| match before.iter().position(|one| one.id == id) {
                Some(at) => Seen { tree, ..before.swap_remove(at) },
                None => Seen { id, tree, faults: 0, looked: None, was_calm: true, stalled: Stalled::default() },
            })
            .collect();
    }

    /// The share of the last seconds in which somebody waited and nobody could have run, in millionths, where `some` is the share in which
    /// somebody waited. None if it is not known.
    pub fn full(&self, id: Inode, some: Option<u64>) -> Option<u64> {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let (stalled, full) = seen.iter().find(|one| one.id == id).map_or((0, 0), |one| one.stalled.count());
        pressure::full(some, stalled, full)
    }
}

impl Drop for Lookout {
    fn drop(&mut self) {
        self.ends.store(true, Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}

/// Times between two looks.
fn pauses(seed: u64) -> impl Iterator<Item = Duration> {
    let step =
        |state: &u64| Some(state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407));
    let span_ns = EVERY_NS.end - EVERY_NS.start;
    std::iter::successors(Some(seed), step)
        .map(move |state| Duration::from_nanos(EVERY_NS.start + (state >> 33) % span_ns))
}

fn look_on(ends: &AtomicBool, seen: &Mutex<Vec<Seen>>) {
    for pause in pauses(u64::from(std::process::id())).skip(1) {
        let began = Instant::now();
        seen.lock().unwrap_or_else(PoisonError::into_inner).iter_mut().for_each(|one| one.look(began));
        if ends.load(Relaxed) {
            return;
        }
        std::thread::park_timeout(pause.max(began.elapsed() * PART));
        if ends.load(Relaxed) {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_are_fifty_milliseconds_give_or_take() {
        let all: Vec<u64> = pauses(7).skip(1).take(1000).map(|pause| pause.as_nanos() as u64).collect();
        assert!(all.iter().all(|ns| EVERY_NS.contains(ns)), "{all:?}");
        assert!((48_000_000..52_000_000).contains(&(all.iter().sum::<u64>() / 1000)));
        assert!(all.iter().filter(|ns| **ns < 40_000_000).count() > 200, "they are not even");
    }

    #[test]
    fn what_is_older_than_ten_seconds_is_forgotten() {
        let (mut stalled, began) = (Stalled::default(), Instant::now());
        for second in 0..15 {
            let moment = if second % 2 == 0 { Moment::Full } else { Moment::Some };
            stalled.add(began + Duration::from_secs(second), moment);
        }
        // From the fourth second to the fourteenth.
        assert_eq!(stalled.count(), (11, 6));
        stalled.add(began + Duration::from_secs(40), Moment::Calm);
        assert_eq!(stalled.count(), (0, 0));
    }
}
