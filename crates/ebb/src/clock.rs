//! Time for the price of an instruction: the processor's cycle counter, with its rate measured once.

use crate::uapi;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// Cycles of a stamp's step, as a power of two.
const STAMP_SHIFT: u32 = 20;

/// Nanoseconds per cycle, times 2^20.
static NS_PER_CYCLE: AtomicU64 = AtomicU64::new(0);

/// The program has forbidden the counter (PR_SET_TSC): reading it would be a fault, so time is not counted any more.
static FORBIDDEN: AtomicBool = AtomicBool::new(false);

/// Stops reading the counter, before the program forbids it.
pub fn forbid() {
    FORBIDDEN.store(true, Relaxed);
}

/// The counter now; 0 when it is forbidden.
#[inline]
pub fn cycles() -> u64 {
    if FORBIDDEN.load(Relaxed) {
        return 0;
    }
    // SAFETY: every x86-64 processor has the counter; reading it has no effect.
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// A moment, to about half a millisecond; it comes round again after some weeks.
#[inline]
pub fn stamp() -> u32 {
    (cycles() >> STAMP_SHIFT) as u32
}

/// Milliseconds since a [`stamp`] was taken.
pub fn ms_since(stamp_then: u32) -> u64 {
    ns(u64::from(stamp().wrapping_sub(stamp_then)) << STAMP_SHIFT) / 1_000_000
}

/// Learns the rate: from `known`, which all processes of a tree have, or by measuring it for them, which takes 100
/// microseconds.
pub fn calibrate(known: &AtomicU64) {
    if NS_PER_CYCLE.load(Relaxed) != 0 {
        return;
    }
    // The ban outlasts fork and exec.
    if uapi::counter_is_forbidden() {
        return forbid();
    }
    let rate = known.load(Relaxed);
    if rate != 0 {
        NS_PER_CYCLE.store(rate, Relaxed);
        return;
    }
    let (t0, c0) = (uapi::now_ns(), cycles());
    let mut t1 = t0;
    while t1 - t0 < 100_000 {
        t1 = uapi::now_ns();
    }
    let passed = cycles().wrapping_sub(c0).max(1);
    let rate = ((t1 - t0) << 20) / passed;
    NS_PER_CYCLE.store(rate, Relaxed);
    known.store(rate, Relaxed);
}

/// Cycles as nanoseconds.
pub fn ns(cycles: u64) -> u64 {
    ((cycles as u128 * NS_PER_CYCLE.load(Relaxed) as u128) >> 20) as u64
}
