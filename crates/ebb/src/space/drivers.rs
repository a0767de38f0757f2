//! Whether a driver may have pinned memory for long.

use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::Relaxed;

pub(crate) const SUSPECTED: u32 = 1;
pub(crate) const KNOWN: u32 = 2;

/// What is known of drivers: 0, [`SUSPECTED`] or [`KNOWN`].
#[derive(Default)]
pub(crate) struct Drivers(pub(crate) AtomicU32);

impl Drivers {
    /// Begins anew in fork's child, which has none of its parent's pins.
    pub fn reset(&self) {
        self.0.store(0, Relaxed);
    }
}
