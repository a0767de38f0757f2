//! Versions: what many threads read while one replaces it.
//!
//! Threads that are inside the gate read the current version without a lock. One thread at a time makes the next one in a
//! buffer that nobody reads, and publishes it. The buffer of the version before becomes free once every thread that was
//! inside at that moment has left the gate: [`Gate::has_left`] tells.
//!
//! Invariants:
//! * a reader holds the gate from before it asks for the current version until it is done with it;
//! * the current buffer never changes while threads are inside, but for what its readers can bear (see [`super::bounds`]);
//! * whoever has closed the gate is alone, and may change the current buffer in place.
//!
//! The idea is the kernel's read-copy-update, with the gate's flags for the grace period.

use crate::protocols::gate::{Exclusive, Gate, GateFlag, Held};
use crate::protocols::primitive::{AtomicU32, AtomicU64, Ordering, model_fence};

/// Of a buffer: nobody reads it.
const FREE: u64 = u64::MAX;

/// Which of `N` buffers has the current version, and which are free.
#[derive(Debug)]
pub struct Versions<const N: usize> {
    current: AtomicU32,
    /// The generation that the buffer's replacement ended, or [`FREE`].
    replaced: [AtomicU64; N],
}

impl<const N: usize> Default for Versions<N> {
    fn default() -> Self {
        Self { current: AtomicU32::new(0), replaced: core::array::from_fn(|_| AtomicU64::new(FREE)) }
    }
}

impl<const N: usize> Versions<N> {
    /// The buffer of the current version. It stays as it is while the token is borrowed, unless its holder changes it.
    #[inline]
    pub fn current(&self, _held: &Held) -> usize {
        // Ordered behind the flag by which the thread entered, so that whoever sees the flag down knows what it will read.
        model_fence();
        self.current.load(Ordering::SeqCst) as usize
    }

    /// A buffer that nobody reads. None if threads that are inside may still read all of them. The caller is the
    /// only one that makes a version.
    pub fn free<'a, F: Iterator<Item = &'a GateFlag>>(
        &self,
        held: &Held,
        gate: &Gate,
        flags: impl Fn() -> F,
    ) -> Option<usize> {
        let current = self.current(held);
        (0..N).filter(|buffer| *buffer != current).find(|buffer| {
            let replaced = self.replaced[*buffer].load(Ordering::Relaxed);
            replaced == FREE || gate.has_left(replaced, flags())
        })
    }

    /// Makes `buffer`, which was free, the current version.
    pub fn publish(&self, held: &Held, gate: &Gate, buffer: usize) {
        let before = self.current(held);
        self.current.store(buffer as u32, Ordering::SeqCst);
        model_fence();
        self.replaced[before].store(gate.begin_generation(held), Ordering::Relaxed);
    }

    /// Makes `buffer` the current version. All others are free.
    pub fn set_current(&self, _exclusive: &Exclusive<'_>, buffer: usize) {
        self.current.store(buffer as u32, Ordering::SeqCst);
        self.replaced.iter().for_each(|replaced| replaced.store(FREE, Ordering::Relaxed));
    }
}
