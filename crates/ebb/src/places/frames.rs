//! The stock: empty frames of staging, kept for pages that come in. `pages::stock` explains the idea.

use crate::base::ring::Ring;
use crate::base::uapi::Errno;
use crate::base::uapi::uffd::UffdError;
use crate::base::{PAGE, clock};
use crate::places::staging::BUNDLE_FRAMES;
use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicBool, AtomicI64, AtomicU32};

/// Fewest and most pages that come in from the stock together.
pub const RUN_MIN: usize = 32;
pub const RUN_MAX: usize = 2 * BUNDLE_FRAMES;
pub(crate) const BUNDLE_BYTES: usize = BUNDLE_FRAMES * PAGE;

/// Neighbouring frames of one block, taken out of the stock or on their way into it.
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

    /// Splits off the first frames, about `most`. The rest is empty, or has at least [`RUN_MIN`] frames. `self` must
    /// have at least [`RUN_MIN`].
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

/// What became of pages that were to be mapped from frames of the stock.
pub(crate) struct Placed {
    /// How many pages are mapped, from the first on.
    pub mapped: usize,
    /// Which of the mapped pages are clean, a bit each.
    pub clean: u128,
    /// Why no more pages are mapped.
    pub error: Option<UffdError>,
}

/// How long demand counts. Without a limit, a process that walked once would keep memory that others of its tree need.
const DEMAND_MS: u64 = 50;

/// How much came in for which kept memory was of use, less what was kept since.
#[derive(Default)]
pub(crate) struct Demand {
    left: AtomicI64,
    /// When something last came in, as [`clock::stamp`].
    asked: AtomicU32,
}

impl Demand {
    /// Notes that `n` more came in. No more than about `most` are remembered.
    pub(crate) fn note(&self, n: usize, most: i64) {
        self.asked.store(clock::stamp(), Relaxed);
        if self.left.load(Relaxed) < most {
            self.left.fetch_add(n as i64, Relaxed);
        }
    }

    /// Notes that `n` are kept.
    pub(crate) fn meet(&self, n: usize) {
        self.left.fetch_sub(n as i64, Relaxed);
    }

    /// What should be kept now.
    pub(crate) fn now(&self) -> usize {
        let left = self.left.load(Relaxed).max(0) as usize;
        if left > 0 && clock::ms_since(self.asked.load(Relaxed)) <= DEMAND_MS { left } else { 0 }
    }

    /// Forgets all of it.
    pub(crate) fn clear(&self) {
        self.left.store(0, Relaxed);
    }
}

/// The stock of a space.
pub struct Stock {
    pub(crate) frames: Ring,
    /// Pages that came in and could have used frames of the stock, less the frames that were stocked.
    pub(crate) demand: Demand,
    /// When a charge last found no room although the stock had frames, as [`crate::clock::stamp`].
    pub(crate) refused: AtomicU32,
    /// Threads that free memory for a purpose that frames in the stock do not serve. While there are any, nothing is
    /// stocked.
    pub(crate) closers: AtomicU32,
    /// Set once nothing may be stocked any more.
    pub(crate) is_over: AtomicBool,
}

/// Keeps frames out of the stock while it lives.
pub(crate) struct Closed<'a>(pub(crate) &'a Stock);

impl Drop for Closed<'_> {
    fn drop(&mut self) {
        self.0.closers.fetch_sub(1, Relaxed);
    }
}

impl Stock {
    /// A stock with room for `bundles` bundles.
    pub fn new(bundles: usize) -> Result<Self, Errno> {
        // A bundle may be in the stock in pieces, each large enough for a run.
        Ok(Self {
            frames: Ring::new(bundles * BUNDLE_FRAMES / RUN_MIN)?,
            demand: Demand::default(),
            refused: AtomicU32::new(0),
            closers: AtomicU32::new(0),
            is_over: AtomicBool::new(false),
        })
    }

    /// True when the stock has frames, as far as is known. Call it inside the gate.
    pub fn has_frames(&self) -> bool {
        self.frames.len() > 0
    }

    /// In fork's child, where no thread is at work that closed the stock.
    pub fn reset(&self) {
        self.closers.store(0, Relaxed);
    }
}
