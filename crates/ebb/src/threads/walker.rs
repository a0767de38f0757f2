//! The walks that a thread is on, as far as read-ahead knows them.

use crate::base::PAGE;
use crate::threads::steps::Steps;
use crate::threads::strides::Strides;
use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicU32, AtomicUsize};

/// Most pages that a fault of a walk brings in.
pub(crate) const WALK_WINDOW_MAX: usize = 128;
/// How many windows the background thread is ahead of the page to which the walk comes next.
pub(crate) const WINDOWS: usize = 2;
/// Bytes from a walk's front to the end of what may be brought in for the walk.
pub(crate) const REACH: usize = (WINDOWS + 2) * WALK_WINDOW_MAX * PAGE;
/// Walks that a thread is remembered to be on at a time.
const WALKS: usize = 4;

/// What is known of a thread's walks, and of the help that it had. Only its own thread uses it.
#[derive(Default)]
pub struct Walker {
    /// The front of each of the thread's last walks.
    pub(crate) fronts: [AtomicUsize; WALKS],
    /// Which of the walks is forgotten next.
    pub(crate) next: AtomicUsize,
    /// How often the thread had lost its processor when it last looked, and when that was, as [`crate::clock::stamp`].
    pub(crate) preempted: AtomicU32,
    pub(crate) looked: AtomicU32,
    /// How far the thread's walks can be trusted to go on.
    pub(crate) steps: Steps,
    /// Its walks with a stride.
    pub(crate) strides: Strides,
}

impl Walker {
    /// The front of the walk that may have come to `page` over pages that were brought in for it.
    pub(crate) fn walk_to(&self, page: usize) -> Option<usize> {
        let fronts = self.fronts.iter().map(|front| front.load(Relaxed));
        let nearest = fronts.min_by_key(|front| page.wrapping_sub(*front))?;
        (page.wrapping_sub(nearest) <= REACH).then_some(nearest)
    }

    /// Forgets the walks of a thread that has ended.
    pub fn reset(&self) {
        self.fronts.iter().for_each(|front| front.store(0, Relaxed));
        self.looked.store(0, Relaxed);
        self.steps.reset();
        self.strides.reset();
    }

    /// Moves the front of the walk that was at `from` to `to`. A walk that is not known takes the place of another.
    pub(crate) fn moved(&self, from: Option<usize>, to: usize) {
        let known = self.fronts.iter().find(|front| Some(front.load(Relaxed)) == from);
        let place = known.unwrap_or_else(|| {
            let next = self.next.load(Relaxed);
            self.next.store((next + 1) % WALKS, Relaxed);
            &self.fronts[next % WALKS]
        });
        place.store(to, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_walker_knows_several_walks() {
        let walker = Walker::default();
        let start = |walk: usize| (walk + 1) << 30;
        (0..WALKS).for_each(|walk| walker.moved(None, start(walk)));
        for step in 0..3 {
            for walk in 0..WALKS {
                let front = start(walk) + step * REACH;
                assert_eq!([front - PAGE, front + REACH + PAGE].map(|page| walker.walk_to(page)), [None, None]);
                assert_eq!([front, front + REACH].map(|page| walker.walk_to(page)), [Some(front), Some(front)]);
                walker.moved(Some(front), front + REACH);
            }
        }
        // One more walk, and the first is forgotten.
        walker.moved(None, start(9));
        assert_eq!(walker.walk_to(start(0) + 3 * REACH + PAGE), None);
        assert!(walker.walk_to(start(1) + 3 * REACH + PAGE).is_some());
    }
}
