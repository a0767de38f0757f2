//! Counters of runs of pages on devices, by their size.
//!
//! The names are the kernel's, of `/sys/kernel/mm/transparent_hugepage/hugepages-*kB/stats`.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

/// Sizes that are counted: 2^1 to 2^9 pages.
const SIZES: usize = 9;
/// Sizes of the runs that are written: up to a batch.
pub const SIZES_OUT: usize = 6;

const SWPOUT: [&str; SIZES_OUT] =
    ["swpout_8kB", "swpout_16kB", "swpout_32kB", "swpout_64kB", "swpout_128kB", "swpout_256kB"];
const SWPOUT_FALLBACK: [&str; SIZES_OUT] = [
    "swpout_fallback_8kB",
    "swpout_fallback_16kB",
    "swpout_fallback_32kB",
    "swpout_fallback_64kB",
    "swpout_fallback_128kB",
    "swpout_fallback_256kB",
];
const SWPIN: [&str; SIZES] = [
    "swpin_8kB",
    "swpin_16kB",
    "swpin_32kB",
    "swpin_64kB",
    "swpin_128kB",
    "swpin_256kB",
    "swpin_512kB",
    "swpin_1024kB",
    "swpin_2048kB",
];

/// How many runs of 2, 4, 8 and so on pages went to devices and came from there.
#[repr(C)]
#[derive(Debug)]
pub struct Runs {
    /// Runs of slots that pages went to together.
    pub swpout: [AtomicU64; SIZES_OUT],
    /// Runs that a device had no room for, so that their pages went to shorter ones.
    pub swpout_fallback: [AtomicU64; SIZES_OUT],
    /// Reads that brought so many pages from neighbouring slots, rounded down.
    pub swpin: [AtomicU64; SIZES],
}

impl Runs {
    /// Notes that `pages` pages came from neighbouring slots by one read.
    pub fn note_in(&self, pages: usize) {
        if pages > 1 {
            self.swpin[(pages.ilog2() as usize - 1).min(SIZES - 1)].fetch_add(1, Relaxed);
        }
    }

    /// Calls `f` with each counter's name and value.
    pub fn for_each(&self, mut f: impl FnMut(&'static str, u64)) {
        let out = SWPOUT.iter().zip(&self.swpout).chain(SWPOUT_FALLBACK.iter().zip(&self.swpout_fallback));
        out.chain(SWPIN.iter().zip(&self.swpin)).for_each(|(name, count)| f(name, count.load(Relaxed)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_counter_is_named_by_its_size() {
        for (i, name) in SWPIN.iter().enumerate() {
            assert_eq!(*name, format!("swpin_{}kB", 8 << i));
        }
        for i in 0..SIZES_OUT {
            assert_eq!(SWPOUT[i], format!("swpout_{}kB", 8 << i));
            assert_eq!(SWPOUT_FALLBACK[i], format!("swpout_fallback_{}kB", 8 << i));
        }
    }

    #[test]
    fn a_read_counts_for_the_largest_size_that_it_has() {
        // SAFETY: zero is a valid counter.
        let runs: Runs = unsafe { core::mem::zeroed() };
        [1, 2, 3, 4, 511, 512, 600].into_iter().for_each(|pages| runs.note_in(pages));
        let mut seen = std::vec::Vec::new();
        runs.for_each(|name, count| seen.extend((count > 0).then_some((name, count))));
        assert_eq!(seen, [("swpin_8kB", 2), ("swpin_16kB", 1), ("swpin_1024kB", 1), ("swpin_2048kB", 2)]);
    }
}
