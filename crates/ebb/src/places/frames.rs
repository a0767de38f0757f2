//! The stock: frames of staging that hold nothing more, kept for pages that come in. The idea is in `pages::stock`.

use crate::base::PAGE;
use crate::base::ring::Ring;
use crate::base::uapi::Errno;
use crate::base::uapi::uffd::UffdError;
use crate::places::staging::BUNDLE_FRAMES;
use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicBool, AtomicI64, AtomicU32};

/// Pages that come in from the stock together, at least and at most.
pub const RUN_MIN: usize = 32;
pub const RUN_MAX: usize = 2 * BUNDLE_FRAMES;
pub(crate) const BUNDLE_BYTES: usize = BUNDLE_FRAMES * PAGE;

/// Frames next to each other, of one block, taken out of the stock or on their way into it.
#[derive(Clone, Copy)]
pub(crate) struct Frames {
    pub(crate) first: u32,
    pub n: usize,
}

impl Frames {
    pub(crate) fn to_bits(self) -> u64 {
        (self.first as u64) << 16 | self.n as u64
    }

    pub(crate) fn from_bits(bits: u64) -> Self {
        Self { first: (bits >> 16) as u32, n: (bits & 0xffff) as usize }
    }

    /// The first ones, about `most`, and the others: none, or enough for a run. There are as many as for one in all.
    pub(crate) fn split(self, most: usize) -> (Self, Self) {
        let fewer = self.n.saturating_sub(RUN_MIN);
        let n = match self.n.saturating_sub(most) {
            0 => self.n,
            RUN_MIN.. => most,
            _ if fewer >= RUN_MIN => fewer,
            _ => self.n,
        };
        (Self { n, ..self }, Self { first: self.first + n as u32, n: self.n - n })
    }
}

/// What became of pages that were put in place.
pub(crate) struct Placed {
    /// So many are mapped, from the first on.
    pub mapped: usize,
    /// Which of them are clean, a bit each.
    pub clean: u128,
    /// Why there are no more.
    pub error: Option<UffdError>,
}

/// The stock of a space.
pub struct Stock {
    pub(crate) frames: Ring,
    /// Pages that came in for which frames of the stock were of use, less those that were stocked.
    pub(crate) demand: AtomicI64,
    /// When such pages came in last, as [`crate::clock::stamp`].
    pub(crate) asked: AtomicU32,
    /// When a charge found no room while there was stock, likewise.
    pub(crate) refused: AtomicU32,
    /// Threads that free memory for what frames are of no use for.
    pub(crate) closers: AtomicU32,
    /// Nothing is stocked any more.
    pub(crate) is_over: AtomicBool,
}

/// While it lives nothing goes to the stock.
pub(crate) struct Closed<'a>(pub(crate) &'a Stock);

impl Drop for Closed<'_> {
    fn drop(&mut self) {
        self.0.closers.fetch_sub(1, Relaxed);
    }
}

impl Stock {
    /// Room for so many bundles.
    pub fn new(bundles: usize) -> Result<Self, Errno> {
        // A bundle may be in it in pieces, each enough for a run.
        Ok(Self {
            frames: Ring::new(bundles * BUNDLE_FRAMES / RUN_MIN)?,
            demand: AtomicI64::new(0),
            asked: AtomicU32::new(0),
            refused: AtomicU32::new(0),
            closers: AtomicU32::new(0),
            is_over: AtomicBool::new(false),
        })
    }

    /// There are frames in it, as far as is known.
    /// Inside the gate.
    pub fn has_frames(&self) -> bool {
        self.frames.len() > 0
    }

    /// In fork's child, where nobody is at work.
    pub fn reset(&self) {
        self.closers.store(0, Relaxed);
    }
}
