//! Heat: for how many sweeps a page that came back soon after its eviction stays in memory.
//!
//! There is no accessed bit. But a page's shadow tells how many evictions ago the page left. The fewer, the more often the page
//! is used compared with what else there is, and the longer it should stay. Each sweep that passes over the page cools it.
//!
//! The idea is that of Linux's workingset detection, which activates a page that refaults within the resident set, with more
//! than two classes.

/// Most heat. A page that is used all the time costs one refault in so many sweeps.
pub(crate) const HEAT_MAX: u32 = 5;

/// The heat of a page that came back `distance` evictions after its own, where `fits` pages fit in memory.
pub(crate) fn of_refault(distance: u32, fits: usize) -> u32 {
    (fits / (distance as usize).max(1)).checked_ilog2().unwrap_or(0).min(HEAT_MAX)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn what_comes_back_sooner_is_hotter() {
        let heats = [4000, 2001, 2000, 1000, 500, 250, 125, 60, 1, 0].map(|distance| of_refault(distance, 4000));
        assert_eq!(heats, [0, 0, 1, 2, 3, 4, 5, 5, 5, 5]);
    }

    #[test]
    fn what_comes_back_late_has_none() {
        assert_eq!(of_refault(u32::MAX, 4000), 0);
        assert_eq!(of_refault(0, 0), 0);
    }
}
