//! What eviction knows: where it looks next, how much it takes, and what became of what it took.

use crate::base::ring::Ring;
use crate::base::uapi::Errno;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

/// Most units that wait to be swept.
const UNITS_MAX: usize = 1 << 20;

/// State of eviction that is no page's and no unit's.
pub struct Eviction {
    /// Units with present pages, in the order in which reclaim looks at them.
    pub(crate) units: Ring,
    /// Clean pages.
    nr_clean: AtomicUsize,
    sweep_pages: AtomicUsize,
    young_ms: AtomicU64,
    nr_evicted: AtomicU64,
    nr_needed_again: AtomicU64,
    even_part: AtomicUsize,
}

impl Eviction {
    /// Nothing to sweep yet, and then so many pages at a time.
    pub fn new(sweep_pages: usize) -> Result<Self, Errno> {
        Ok(Self {
            units: Ring::new(UNITS_MAX)?,
            nr_clean: AtomicUsize::new(0),
            sweep_pages: AtomicUsize::new(sweep_pages),
            young_ms: AtomicU64::new(0),
            nr_evicted: AtomicU64::new(0),
            nr_needed_again: AtomicU64::new(0),
            even_part: AtomicUsize::new(0),
        })
    }

    /// Clean pages.
    pub fn nr_clean(&self) -> usize {
        self.nr_clean.load(Relaxed)
    }

    /// So many more pages are clean.
    pub fn add_clean(&self, n: usize) {
        self.nr_clean.fetch_add(n, Relaxed);
    }

    /// So many are clean no more.
    pub fn sub_clean(&self, n: usize) {
        self.nr_clean.fetch_sub(n, Relaxed);
    }

    /// Present pages that one sweep takes at most.
    pub fn sweep_max(&self) -> usize {
        self.sweep_pages.load(Relaxed)
    }

    /// From now on so many.
    pub fn set_sweep_max(&self, pages: usize) {
        self.sweep_pages.store(pages, Relaxed);
    }

    /// Units touched so recently are passed over while other processes are given memory; 0 for none.
    pub fn young_ms(&self) -> u64 {
        self.young_ms.load(Relaxed)
    }

    /// From now on those touched so recently.
    pub fn set_young_ms(&self, ms: u64) {
        self.young_ms.store(ms, Relaxed);
    }

    /// So many pages were evicted.
    pub fn add_evicted(&self, n: u64) {
        self.nr_evicted.fetch_add(n, Relaxed);
    }

    /// Pages evicted since they were taken last.
    pub fn take_evicted(&self) -> u64 {
        self.nr_evicted.swap(0, Relaxed)
    }

    /// So many pages came back soon after they were evicted.
    pub fn add_needed_again(&self, n: u64) {
        self.nr_needed_again.fetch_add(n, Relaxed);
    }

    /// Such pages since they were taken last.
    pub fn take_needed_again(&self) -> u64 {
        self.nr_needed_again.swap(0, Relaxed)
    }

    /// Pages that each process of the tree with memory to speak of would have if all had the same.
    pub fn even_part(&self) -> usize {
        self.even_part.load(Relaxed)
    }

    /// From now on so many.
    pub fn set_even_part(&self, pages: usize) {
        self.even_part.store(pages, Relaxed);
    }

    /// In fork's child: what its parent evicted and needed again says nothing of the child.
    pub fn reset(&self) {
        self.nr_evicted.store(0, Relaxed);
        self.nr_needed_again.store(0, Relaxed);
    }
}
