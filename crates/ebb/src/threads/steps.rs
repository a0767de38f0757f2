//! What a thread's windows of read-ahead were good for: how often the thread went on beyond a window of some size.

use core::sync::atomic::AtomicU8;
use core::sync::atomic::Ordering::Relaxed;

/// Sizes that are told apart: 2 pages, 4, 8, 16, and more.
const SIZES: usize = 5;
/// Windows from here on are of one size.
const LARGE: u32 = 1 << SIZES;
/// A size is not trusted if the walk stopped in more of its last windows than this, in 255ths: two fifths. Less than half, because a
/// walk that stops after every second page is trusted just after the wrong one.
const STOPPED_MAX: u8 = 102;
/// The part by which each window changes the share.
const WEIGHT: i16 = 8;

/// How far a thread's walks can be trusted to go on. Only its own thread uses it.
#[derive(Default)]
pub struct Steps {
    /// For each size the share of windows in which the walk stopped, in 255ths, weighted towards the last ones.
    stopped: [AtomicU8; SIZES],
}

impl Steps {
    fn of(&self, window: u32) -> Option<&AtomicU8> {
        let power = window.checked_ilog2()?.checked_sub(1)?;
        Some(&self.stopped[(power as usize).min(SIZES - 1)])
    }

    /// Notes whether a walk went on beyond a window of `window` pages. That says as much of a window twice as large: it would have
    /// been of use, or not.
    pub(crate) fn note(&self, window: u32, goes_on: bool) {
        let larger = self.of(2 * window).filter(|_| window < LARGE);
        for stopped in [self.of(window), larger].into_iter().flatten() {
            let before = i16::from(stopped.load(Relaxed));
            let away = if goes_on { 0 } else { i16::from(u8::MAX) } - before;
            // Rounded away from 0, so that the share gets to both ends.
            let now = before + away / WEIGHT + (away % WEIGHT).signum();
            stopped.store(now as u8, Relaxed);
        }
    }

    /// The largest window up to `window` pages beyond which most walks go. A window of one page needs no trust.
    pub(crate) fn trusted(&self, mut window: u32) -> u32 {
        while self.of(window).is_some_and(|stopped| stopped.load(Relaxed) > STOPPED_MAX) {
            window /= 2;
        }
        window
    }

    /// Forgets what is known of a thread that has ended.
    pub(crate) fn reset(&self) {
        self.stopped.iter().for_each(|stopped| stopped.store(0, Relaxed));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trusted(steps: &Steps) -> [u32; 7] {
        [0, 1, 2, 4, 8, 16, 128].map(|window| steps.trusted(window))
    }

    #[test]
    fn windows_that_walks_stop_in_get_smaller_and_a_walk_makes_them_large_again() {
        let steps = Steps::default();
        assert_eq!(trusted(&steps), [0, 1, 2, 4, 8, 16, 128], "trusted at first");
        (0..8).for_each(|_| steps.note(4, false));
        assert_eq!(trusted(&steps), [0, 1, 2, 2, 2, 16, 128]);
        (0..8).for_each(|_| steps.note(1, false));
        assert_eq!(trusted(&steps), [0, 1, 1, 1, 1, 16, 128]);
        let mut window = 1;
        let windows = (0..40).map(|_| {
            steps.note(window, true);
            window = steps.trusted((2 * window).min(128));
            window
        });
        let windows: Vec<u32> = windows.collect();
        assert!(windows.is_sorted() && windows[1] == 1 && windows[39] == 128, "{windows:?}");
        steps.note(1, false);
        steps.reset();
        assert_eq!(trusted(&steps), [0, 1, 2, 4, 8, 16, 128]);
    }

    #[test]
    fn a_window_is_trusted_if_most_of_the_last_ones_were_right() {
        let (mostly, seldom) = (Steps::default(), Steps::default());
        (0..300).for_each(|i| mostly.note(2, i % 4 > 0));
        (0..300).for_each(|i| seldom.note(2, i % 4 == 0));
        assert_eq!((mostly.trusted(2), seldom.trusted(2)), (2, 1));
    }
}
