//! How much more memory would have kept the pages that programs had to wait for: the samples of a miss-ratio curve.
//!
//! A page that comes back says how many others left after it. Had the resident set been larger by so many pages, it would
//! not have left (the refault distance of Linux's workingset.c). Sums over all sizes above one give the faults that a
//! resident set of that size would have seen, in one run for all sizes (Mattson's stack distances).
//!
//! Sizes are counted in steps of an eighth of a power of two.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

/// Steps in which sizes are counted.
pub const STEPS: usize = 256;
/// Steps between two powers of two.
const FINE: usize = 8;
const FINE_SHIFT: u32 = FINE.ilog2();

/// How many faults a resident set of each size would have avoided, that a smaller one would not.
#[repr(C)]
#[derive(Debug)]
pub struct Reaches {
    counts: [AtomicU64; STEPS],
}

/// The step that `pages` belong to.
pub fn step_of(pages: u64) -> usize {
    if pages < FINE as u64 {
        return pages as usize;
    }
    let power = pages.ilog2() - FINE_SHIFT;
    ((power as usize) * FINE + (pages >> power) as usize).min(STEPS - 1)
}

/// The least pages that belong to a step.
pub const fn pages_of(step: usize) -> u64 {
    if step < 2 * FINE {
        return step as u64;
    }
    let power = step / FINE - 1;
    ((FINE + step % FINE) as u64) << power
}

impl Reaches {
    /// Notes a fault that a resident set of `pages` pages would have avoided.
    #[inline]
    pub fn note(&self, pages: usize) {
        self.counts[step_of(pages as u64)].fetch_add(1, Relaxed);
    }

    /// The counts of all steps, see [`pages_of`].
    pub fn counts(&self) -> [u64; STEPS] {
        let mut counts = [0; STEPS];
        for (to, from) in counts.iter_mut().zip(&self.counts) {
            *to = from.load(Relaxed);
        }
        counts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_step_begins_where_the_one_before_it_ends() {
        for step in 1..STEPS - 1 {
            assert_eq!(step_of(pages_of(step)), step);
            assert_eq!(step_of(pages_of(step) - 1), step - 1);
        }
        assert_eq!((step_of(0), step_of(u64::MAX)), (0, STEPS - 1));
        // The last step begins beyond a tebibyte.
        assert!(pages_of(STEPS - 1) > 1 << 28);
    }

    #[test]
    fn steps_are_an_eighth_of_a_power_of_two() {
        for step in 2 * FINE..STEPS - 1 {
            let (from, to) = (pages_of(step), pages_of(step + 1));
            assert!((to - from) * 8 <= from && (to - from) * 16 >= from, "{step}: {from} to {to}");
        }
    }
}
