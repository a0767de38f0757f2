//! The gate: many threads inside the engine, or one alone.
//!
//! Each thread has a flag of its own. To enter, a thread raises its flag and then looks whether the gate is closed. To
//! close, a thread shuts the gate and then waits until every flag is down. One of the two always sees the other,
//! because both write first and read second, sequentially consistently. So threads that enter share no cache line that
//! they write, and a thread that has closed the gate knows that no thread is inside and no page is busy.
//!
//! The idea is the kernel's per-CPU reader-writer semaphore, with threads in place of processors.

use crate::protocols::primitive::{AtomicU64, Ordering, model_fence, spin, wait_on, waiting, wake_all, yield_now};
use core::marker::PhantomData;
use core::ops::Deref;
use core::sync::atomic::AtomicU32;

const OPEN: u64 = 0;
const CLOSED: u64 = 1;
/// Closed, and somebody sleeps until it opens.
const CLOSED_WAITERS: u64 = 2;
/// The bits above are the process that has closed the gate. They change together with the state, because a process may
/// be killed at any moment while it closes the gate.
const PROCESS_SHIFT: u32 = 32;
const STATE: u64 = (1 << PROCESS_SHIFT) - 1;

/// Turns of spinning before a closer yields the processor.
const SPINS: u32 = if cfg!(loom) { 1 } else { 200 };

/// Threads of the process that have waited for a while for others to leave a gate, or to open it.
static AWAITING: AtomicU32 = AtomicU32::new(0);

/// Whether a thread of the process waits for others to leave a gate, or to open it, so that they should not take long.
pub fn is_awaited() -> bool {
    AWAITING.load(core::sync::atomic::Ordering::Relaxed) > 0
}

/// Counts the calling thread among those that [`is_awaited`] tells of, from the call of `begin` on.
#[derive(Default)]
struct Awaiting(bool);

impl Awaiting {
    fn begin(&mut self) {
        if !self.0 {
            AWAITING.fetch_add(1, core::sync::atomic::Ordering::Relaxed);
        }
        self.0 = true;
    }
}

impl Drop for Awaiting {
    fn drop(&mut self) {
        if self.0 {
            AWAITING.fetch_sub(1, core::sync::atomic::Ordering::Relaxed);
        }
    }
}

/// One thread's flag: 0 while it is outside. While it is inside, the generation in which it entered, and a bit.
#[derive(Debug)]
pub struct GateFlag(AtomicU64);

impl Default for GateFlag {
    fn default() -> Self {
        Self(AtomicU64::new(0))
    }
}

impl GateFlag {
    /// True while the thread is inside, or has raised its flag and is about to step back.
    pub fn is_inside(&self) -> bool {
        self.0.load(Ordering::SeqCst) != 0
    }

    fn is_outside_or_after(&self, generation: u64) -> bool {
        let seen = self.0.load(Ordering::SeqCst);
        seen == 0 || seen >> 1 > generation
    }

    fn wait_outside(&self) {
        let (mut turns, mut awaiting) = (0, Awaiting::default());
        while self.is_inside() {
            turns += 1;
            if turns > SPINS {
                awaiting.begin();
                yield_now();
            } else {
                spin();
            }
        }
    }

    /// For fork's child: threads that did not come along are not inside.
    pub fn reset(&self) {
        self.0.store(0, Ordering::Release);
    }
}

/// Proof that the gate keeps changes away: the thread that has it is inside, or has closed the gate. A function that
/// reads what changes only with the gate closed demands it.
///
/// Only [`Gate::enter`], [`Gate::close`] and [`Gate::closed_before`] make one, so a thread outside reads nothing:
///
/// ```compile_fail
/// use ebb::gate::Held;
/// let held = Held(core::marker::PhantomData);
/// ```
///
/// It stays in its thread:
///
/// ```compile_fail
/// use ebb::gate::{Gate, GateFlag};
/// let (gate, flag) = (Gate::default(), GateFlag::default());
/// let inside = gate.enter(&flag);
/// std::thread::scope(|scope| scope.spawn(|| drop(inside)).join());
/// ```
#[derive(Debug)]
pub struct Held(PhantomData<*const ()>);

/// A thread is inside as long as this lives. Dropping it releases everything that the thread did to whoever closes the
/// gate next.
///
/// What was learned inside with a borrow of the token ends with the token:
///
/// ```compile_fail
/// use ebb::gate::{Gate, GateFlag, Held};
/// fn first(_: &Held) -> &usize { &0 }
/// let (gate, flag) = (Gate::default(), GateFlag::default());
/// let inside = gate.enter(&flag);
/// let seen = first(&inside);
/// drop(inside);
/// println!("{seen}");
/// ```
#[derive(Debug)]
#[must_use = "the thread is inside only as long as this lives"]
pub struct Inside<'a> {
    held: Held,
    flag: &'a GateFlag,
}

/// The gate is closed, and nobody is inside, as long as this lives. A function that changes what others read demands
/// it. To be inside is not enough:
///
/// ```compile_fail
/// use ebb::gate::{Exclusive, Gate, GateFlag};
/// fn change(_: &Exclusive<'_>) {}
/// let (gate, flag) = (Gate::default(), GateFlag::default());
/// let inside = gate.enter(&flag);
/// change(&inside);
/// ```
///
/// A thread that has closed the gate may read, too:
///
/// ```
/// use ebb::gate::{Gate, GateFlag, Held};
/// fn read(_: &Held) {}
/// let (gate, flag) = (Gate::default(), GateFlag::default());
/// read(&gate.enter(&flag));
/// read(&gate.close(1, [&flag].into_iter()));
/// ```
#[derive(Debug)]
#[must_use = "the gate is closed only as long as this lives"]
pub struct Exclusive<'a> {
    held: Held,
    gate: &'a Gate,
}

impl Deref for Inside<'_> {
    type Target = Held;

    fn deref(&self) -> &Held {
        &self.held
    }
}

impl Deref for Exclusive<'_> {
    type Target = Held;

    fn deref(&self) -> &Held {
        &self.held
    }
}

impl Drop for Inside<'_> {
    #[inline]
    fn drop(&mut self) {
        self.flag.0.store(0, Ordering::Release);
    }
}

impl Inside<'_> {
    /// Makes the thread count as one that enters now. Whatever it read before, it has forgotten.
    pub fn renew(&mut self, gate: &Gate) {
        let generation = gate.generation.load(Ordering::Acquire);
        self.flag.0.swap(generation << 1 | 1, Ordering::SeqCst);
        model_fence();
    }
}

impl Drop for Exclusive<'_> {
    fn drop(&mut self) {
        self.gate.open();
    }
}

impl Exclusive<'_> {
    /// Leaves the gate closed, for [`Gate::closed_before`] to go on with: across a fork.
    pub fn keep(self) {
        core::mem::forget(self);
    }
}

/// The gate of one space.
#[derive(Debug)]
pub struct Gate {
    state: AtomicU64,
    /// Counts what was replaced beside threads that are inside: see [`Gate::begin_generation`].
    generation: AtomicU64,
}

impl Default for Gate {
    fn default() -> Self {
        Self { state: AtomicU64::new(OPEN), generation: AtomicU64::new(0) }
    }
}

impl Gate {
    /// Enters; waits while the gate is closed. The thread must not be inside already.
    #[inline]
    pub fn enter<'a>(&self, flag: &'a GateFlag) -> Inside<'a> {
        loop {
            let generation = self.generation.load(Ordering::Acquire);
            flag.0.swap(generation << 1 | 1, Ordering::SeqCst);
            model_fence();
            if self.state.load(Ordering::SeqCst) == OPEN {
                return Inside { held: Held(PhantomData), flag };
            }
            flag.0.store(0, Ordering::Release);
            waiting("gate, to enter", || self.wait_open());
        }
    }

    /// Closes the gate for `process` and waits until all `flags` are down. The caller must not be inside.
    #[cfg_attr(not(loom), track_caller)]
    pub fn close<'a>(&self, process: u32, flags: impl Iterator<Item = &'a GateFlag>) -> Exclusive<'_> {
        let closed = CLOSED | u64::from(process) << PROCESS_SHIFT;
        while self.state.compare_exchange(OPEN, closed, Ordering::SeqCst, Ordering::Relaxed).is_err() {
            waiting("gate, to close", || self.wait_open());
        }
        model_fence();
        for flag in flags {
            if flag.is_inside() {
                waiting("gate, to close", || flag.wait_outside());
            }
        }
        Exclusive { held: Held(PhantomData), gate: self }
    }

    /// Goes on with a gate that was left closed.
    ///
    /// # Safety
    /// The calling thread, or the thread that forked it, has closed the gate and called [`Exclusive::keep`]. This is
    /// the first call since then in the calling thread's process.
    pub unsafe fn closed_before(&self) -> Exclusive<'_> {
        Exclusive { held: Held(PhantomData), gate: self }
    }

    /// Begins a generation, and returns the one that it ends. The caller has replaced something that threads inside may
    /// still use: a thread that enters from now on finds what replaced it.
    pub fn begin_generation(&self, _held: &Held) -> u64 {
        self.generation.fetch_add(1, Ordering::SeqCst)
    }

    /// True if no thread is inside any more that entered in `generation` or before. `flags` are those of all threads.
    pub fn has_left<'a>(&self, generation: u64, flags: impl Iterator<Item = &'a GateFlag>) -> bool {
        model_fence();
        flags.into_iter().all(|flag| flag.is_outside_or_after(generation))
    }

    /// Waits until no other thread is inside any more that entered before this call: whoever is inside then finds what the caller
    /// replaced before. The caller stays inside, and has forgotten what it read. `flags` are those of all threads.
    pub fn wait_for_earlier<'a, F: Iterator<Item = &'a GateFlag>>(
        &self,
        inside: &mut Inside<'_>,
        flags: impl Fn() -> F,
    ) {
        let ended = self.begin_generation(inside);
        let (mut turns, mut awaiting) = (0, Awaiting::default());
        loop {
            // Before each look, because others may wait for this thread in the same way.
            inside.renew(self);
            if self.has_left(ended, flags()) {
                return;
            }
            turns += 1;
            if turns > SPINS {
                awaiting.begin();
                yield_now();
            } else {
                spin();
            }
        }
    }

    fn open(&self) {
        if self.state.swap(OPEN, Ordering::SeqCst) & STATE == CLOSED_WAITERS {
            wake_all(&self.state);
        }
    }

    /// The process that has closed the gate, while it is closed.
    pub fn closed_by(&self) -> Option<u32> {
        let seen = self.state.load(Ordering::SeqCst);
        (seen != OPEN).then_some((seen >> PROCESS_SHIFT) as u32)
    }

    fn wait_open(&self) {
        for _ in 0..SPINS {
            if self.state.load(Ordering::SeqCst) == OPEN {
                return;
            }
            spin();
        }
        let seen = self.state.load(Ordering::Relaxed);
        if seen == OPEN {
            return;
        }
        let waited = seen & !STATE | CLOSED_WAITERS;
        let mut awaiting = Awaiting::default();
        awaiting.begin();
        if seen == waited || self.state.compare_exchange(seen, waited, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            wait_on(&self.state, waited);
        }
    }
}

#[cfg(all(test, not(loom)))]
pub(crate) mod tests {
    use super::*;

    /// The closed gate of a test that is alone with what it looks at.
    pub(crate) fn alone() -> Exclusive<'static> {
        let gate: &'static Gate = Box::leak(Box::default());
        gate.close(1, core::iter::empty())
    }
}
