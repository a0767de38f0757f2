//! What eviction knows: where it looks next, how much it takes, and how much of what it took came back.

use crate::base::ring::Ring;
use crate::base::uapi::Errno;
use crate::space::ageing::Ageing;
use crate::space::cold::Cold;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use ebb_sync::CacheLine;

/// Most units that wait to be swept.
const UNITS_MAX: usize = 1 << 20;

/// State of eviction that belongs to no single page or unit.
pub struct Eviction {
    /// Units with present pages, in the order in which reclaim looks at them.
    pub(crate) units: Ring,
    /// Pages that the program said are cold. They come before all others.
    pub(crate) cold: Cold,
    /// How far ageing is.
    pub(crate) ageing: Ageing,
    /// Clean pages.
    nr_clean: CacheLine<AtomicUsize>,
    sweep_pages: AtomicUsize,
    young_ms: AtomicU64,
    nr_evicted: CacheLine<AtomicU64>,
    nr_needed_again: CacheLine<AtomicU64>,
    even_part: AtomicUsize,
    tickets: CacheLine<AtomicU64>,
    /// Set while a thread looks at the ages of all units.
    is_aging: AtomicBool,
}

impl Eviction {
    /// Nothing to sweep yet. A sweep will take at most `sweep_pages` pages.
    pub fn new(sweep_pages: usize) -> Result<Self, Errno> {
        Ok(Self {
            units: Ring::new(UNITS_MAX)?,
            cold: Cold::new()?,
            ageing: Ageing::default(),
            nr_clean: CacheLine(AtomicUsize::new(0)),
            sweep_pages: AtomicUsize::new(sweep_pages),
            young_ms: AtomicU64::new(0),
            nr_evicted: CacheLine(AtomicU64::new(0)),
            nr_needed_again: CacheLine(AtomicU64::new(0)),
            even_part: AtomicUsize::new(0),
            tickets: CacheLine(AtomicU64::new(1)),
            is_aging: AtomicBool::new(false),
        })
    }

    /// A ticket for loose claims that no other sweep has: 40 bits of it count.
    pub(crate) fn ticket(&self) -> u64 {
        self.tickets.fetch_add(1, Relaxed)
    }

    /// Clean pages.
    pub fn nr_clean(&self) -> usize {
        self.nr_clean.load(Relaxed)
    }

    /// Counts `n` more clean pages.
    pub fn add_clean(&self, n: usize) {
        self.nr_clean.fetch_add(n, Relaxed);
    }

    /// Counts `n` fewer clean pages.
    pub fn sub_clean(&self, n: usize) {
        self.nr_clean.fetch_sub(n, Relaxed);
    }

    /// Present pages that one sweep takes at most.
    pub fn sweep_max(&self) -> usize {
        self.sweep_pages.load(Relaxed)
    }

    /// Sets [`Self::sweep_max`].
    pub fn set_sweep_max(&self, pages: usize) {
        self.sweep_pages.store(pages, Relaxed);
    }

    /// Units touched within this many milliseconds are passed over while other processes are given memory; 0 when none
    /// are.
    pub fn young_ms(&self) -> u64 {
        self.young_ms.load(Relaxed)
    }

    /// Sets [`Self::young_ms`].
    pub fn set_young_ms(&self, ms: u64) {
        self.young_ms.store(ms, Relaxed);
    }

    /// Counts `n` evicted pages.
    pub fn add_evicted(&self, n: u64) {
        self.nr_evicted.fetch_add(n, Relaxed);
    }

    /// Returns how many pages were evicted since the last call, and counts from 0 again.
    pub fn take_evicted(&self) -> u64 {
        self.nr_evicted.swap(0, Relaxed)
    }

    /// Counts `n` pages that came back soon after they were evicted.
    pub fn add_needed_again(&self, n: u64) {
        self.nr_needed_again.fetch_add(n, Relaxed);
    }

    /// Returns how many such pages there were since the last call, and counts from 0 again.
    pub fn take_needed_again(&self) -> u64 {
        self.nr_needed_again.swap(0, Relaxed)
    }

    /// Pages that each process of the tree that has grown (`Budget::has_grown`) would have if all of them had the same.
    pub fn even_part(&self) -> usize {
        self.even_part.load(Relaxed)
    }

    /// Sets [`Self::even_part`].
    pub fn set_even_part(&self, pages: usize) {
        self.even_part.store(pages, Relaxed);
    }

    /// True if the caller is the one that looks at the ages of all units, until [`Self::end_aging`].
    pub fn begin_aging(&self) -> bool {
        !self.is_aging.swap(true, Acquire)
    }

    /// Ends what [`Self::begin_aging`] began.
    pub fn end_aging(&self) {
        self.is_aging.store(false, Release);
    }

    /// Begins anew in fork's child: its parent's evictions and refaults say nothing about the child.
    pub fn reset(&self) {
        self.nr_evicted.store(0, Relaxed);
        self.nr_needed_again.store(0, Relaxed);
        // A demand that was under way asks the parent.
        self.young_ms.store(0, Relaxed);
        self.end_aging();
        self.ageing.reset();
    }
}
