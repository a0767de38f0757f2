//! The group: what a space may hold, and what it holds now.
//!
//! A charge is a number of pages: resident, staged, pool and metadata alike. The limit is hard: a thread that would
//! pass it reclaims first. Work that frees memory may itself need a little (a frame beside the page it copies, a pool
//! block for what it compresses); such charges are forced, and bounded by one batch a thread.

use crate::stats::{self, Shared};
use core::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};

/// Charges of one space.
#[derive(Debug)]
pub struct Group {
    charged: AtomicI64,
    limit: i64,
    /// Below this reclaim rests.
    low: i64,
    /// Above this background reclaim works.
    high: i64,
    /// Bytes of metadata charged so far, for rounding to pages.
    meta_bytes: AtomicU64,
    /// Pages with content, wherever it is.
    wanted: AtomicI64,
}

impl Group {
    /// A group of `limit` pages; reclaim starts `gap` pages below it.
    pub fn new(limit: usize, gap: usize) -> Self {
        Self {
            charged: AtomicI64::new(0),
            limit: limit as i64,
            low: limit.saturating_sub(2 * gap) as i64,
            high: limit.saturating_sub(gap) as i64,
            meta_bytes: AtomicU64::new(0),
            wanted: AtomicI64::new(0),
        }
    }

    /// Charges `n` pages, or nothing when that would pass the limit.
    #[inline]
    pub fn try_charge(&self, n: usize) -> bool {
        let n = n as i64;
        if self.charged.fetch_add(n, Relaxed) + n <= self.limit {
            return true;
        }
        self.charged.fetch_sub(n, Relaxed);
        false
    }

    /// Charges `n` pages whatever the limit: for work that frees more.
    pub fn force_charge(&self, n: usize) {
        self.charged.fetch_add(n as i64, Relaxed);
    }

    /// Takes a charge back.
    pub fn uncharge(&self, n: usize) {
        let before = self.charged.fetch_sub(n as i64, Relaxed);
        debug_assert!(before >= n as i64, "uncharged more than was charged");
    }

    /// Charges metadata by the byte; whole pages of it count.
    pub fn charge_meta(&self, bytes: usize) {
        let before = self.meta_bytes.fetch_add(bytes as u64, Relaxed);
        let pages = (before + bytes as u64) / 4096 - before / 4096;
        if pages > 0 {
            self.force_charge(pages as usize);
        }
    }

    /// Takes a charge of metadata back.
    pub fn uncharge_meta(&self, bytes: usize) {
        let before = self.meta_bytes.fetch_sub(bytes as u64, Relaxed);
        debug_assert!(before >= bytes as u64, "uncharged more metadata than was charged");
        let pages = before / 4096 - (before - bytes as u64) / 4096;
        if pages > 0 {
            self.uncharge(pages as usize);
        }
    }

    /// Pages of metadata charged.
    pub fn meta_pages(&self) -> usize {
        (self.meta_bytes.load(Relaxed) / 4096) as usize
    }

    /// Pages charged now.
    pub fn charged(&self) -> usize {
        self.charged.load(Relaxed).max(0) as usize
    }

    /// The hard limit in pages.
    pub fn limit(&self) -> usize {
        self.limit as usize
    }

    /// Background reclaim should work.
    #[inline]
    pub fn is_above_high(&self) -> bool {
        self.charged.load(Relaxed) > self.high
    }

    /// Background reclaim may rest.
    pub fn is_below_low(&self) -> bool {
        self.charged.load(Relaxed) < self.low
    }

    /// `n` more pages have content.
    pub fn add_wanted(&self, n: usize, stats: &Shared) {
        let now = self.wanted.fetch_add(n as i64, Relaxed) + n as i64;
        stats::raise(&stats.peak_wanted_bytes, now as u64 * 4096);
        stats::raise(&stats.peak_held_bytes, self.charged() as u64 * 4096);
    }

    /// `n` pages lost their content.
    pub fn sub_wanted(&self, n: usize) {
        self.wanted.fetch_sub(n as i64, Relaxed);
    }

    /// Pages with content now.
    pub fn wanted(&self) -> usize {
        self.wanted.load(Relaxed).max(0) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_charge_beyond_the_limit_charges_nothing() {
        let g = Group::new(10, 1);
        assert!(g.try_charge(10));
        assert!(!g.try_charge(1));
        assert_eq!(g.charged(), 10);
    }

    #[test]
    fn metadata_is_charged_by_whole_pages() {
        let g = Group::new(10, 1);
        g.charge_meta(4000);
        assert_eq!(g.charged(), 0);
        g.charge_meta(200);
        assert_eq!(g.charged(), 1);
        g.charge_meta(8192);
        g.uncharge_meta(8000);
        assert_eq!((g.charged(), g.meta_pages()), (1, 1));
        g.uncharge_meta(400);
        assert_eq!(g.charged(), 0);
    }
}
