//! A place where one thread leaves something, with a label, and another takes it by that label.
//!
//! Nobody waits: who finds the place in other hands goes elsewhere. What is left there may be of any kind, and belongs to the
//! thread that has the place. The label may be read by anybody at any time, so it is a hint until the place is taken: then it is
//! read again, because something else may have been left there meanwhile.

use crate::protocols::primitive::{AtomicU32, AtomicU64, Ordering};

/// Nothing is there.
const EMPTY: u32 = 0;
/// A thread has the place.
const TAKEN: u32 = 1;
/// Something is there.
const LEFT: u32 = 2;

/// A place with a label of `N` words.
pub struct Deposit<const N: usize> {
    state: AtomicU32,
    label: [AtomicU64; N],
}

impl<const N: usize> Default for Deposit<N> {
    fn default() -> Self {
        Self { state: AtomicU32::new(EMPTY), label: core::array::from_fn(|_| AtomicU64::new(0)) }
    }
}

/// The right to a place, which one thread has. It ends with [`Self::leave`] or [`Self::clear`].
#[must_use = "nobody else can have the place"]
pub struct Hold<'a, const N: usize>(&'a Deposit<N>);

impl<const N: usize> Deposit<N> {
    /// An empty place, for a static.
    #[cfg(not(loom))]
    pub const fn new() -> Self {
        Self { state: AtomicU32::new(EMPTY), label: [const { AtomicU64::new(0) }; N] }
    }

    fn label(&self) -> [u64; N] {
        core::array::from_fn(|i| self.label[i].load(Ordering::Relaxed))
    }

    fn try_take(&self, from: u32) -> Option<Hold<'_, N>> {
        let taken = self.state.compare_exchange(from, TAKEN, Ordering::Acquire, Ordering::Relaxed);
        taken.is_ok().then_some(Hold(self))
    }

    /// The label of what is there, as far as can be seen from outside.
    pub fn peek(&self) -> Option<[u64; N]> {
        (self.state.load(Ordering::Relaxed) == LEFT).then(|| self.label())
    }

    /// Takes the place if nothing is there.
    pub fn take_empty(&self) -> Option<Hold<'_, N>> {
        (self.state.load(Ordering::Relaxed) == EMPTY).then(|| self.try_take(EMPTY)).flatten()
    }

    /// Takes the place, with what is there, if `wants` says so of its label.
    pub fn take(&self, wants: impl Fn(&[u64; N]) -> bool) -> Option<Hold<'_, N>> {
        if !self.peek().is_some_and(|label| wants(&label)) {
            return None;
        }
        let hold = self.try_take(LEFT)?;
        let label = self.label();
        if wants(&label) {
            return Some(hold);
        }
        hold.leave(label);
        None
    }

    /// Makes the place empty, whoever had it. The calling thread is the only one.
    pub fn reset(&self) {
        self.state.store(EMPTY, Ordering::Relaxed);
    }
}

impl<const N: usize> Hold<'_, N> {
    /// The label of what was there last.
    pub fn label(&self) -> [u64; N] {
        self.0.label()
    }

    /// Leaves something there.
    pub fn leave(self, label: [u64; N]) {
        self.0.label.iter().zip(label).for_each(|(word, value)| word.store(value, Ordering::Relaxed));
        self.0.state.store(LEFT, Ordering::Release);
    }

    /// Leaves nothing there.
    pub fn clear(self) {
        self.0.state.store(EMPTY, Ordering::Release);
    }
}
