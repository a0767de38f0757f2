//! Time at the price of one instruction: the processor's cycle counter, whose rate is measured once.

use crate::base::uapi;
use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicBool, AtomicU64};

/// Cycles per step of a stamp, as a power of two.
const STAMP_SHIFT: u32 = 20;

/// Nanoseconds per cycle, times 2^20.
static NS_PER_CYCLE: AtomicU64 = AtomicU64::new(0);

/// Plausible rates: from 10 GHz down to 100 MHz.
const RATES: core::ops::RangeInclusive<u64> = (1 << 20) / 10..=10 << 20;

/// True once the program has forbidden the counter (PR_SET_TSC). Reading it would be a fault, so time is no longer counted.
static FORBIDDEN: AtomicBool = AtomicBool::new(false);

/// Stops reading the counter, before the program forbids it.
pub fn forbid() {
    FORBIDDEN.store(true, Relaxed);
}

/// True once the counter is forbidden and tells nothing.
pub fn is_forbidden() -> bool {
    FORBIDDEN.load(Relaxed)
}

/// Returns the counter's value in cycles; 0 when it is forbidden.
#[inline]
pub fn cycles() -> u64 {
    if FORBIDDEN.load(Relaxed) {
        return 0;
    }
    // SAFETY: every x86-64 processor has the counter; reading it has no effect.
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// The current moment, to about half a millisecond. The value wraps around after some weeks.
#[inline]
pub fn stamp() -> u32 {
    (cycles() >> STAMP_SHIFT) as u32
}

/// Milliseconds since a [`stamp`] was taken.
pub fn ms_since(stamp_then: u32) -> u64 {
    ns(u64::from(stamp().wrapping_sub(stamp_then)) << STAMP_SHIFT) / 1_000_000
}

/// What [`stamp`] returned about `ms` milliseconds ago.
pub fn stamp_before(ms: u64) -> u32 {
    let cycles = ((u128::from(ms) * 1_000_000) << 20) / u128::from(NS_PER_CYCLE.load(Relaxed).max(1));
    stamp().wrapping_sub((cycles >> STAMP_SHIFT) as u32)
}

/// Nanoseconds of one [`tick`], as a power of two: 67 ms.
const TICK_SHIFT: u32 = 26;

/// The current moment in steps of 67 ms; never 0. It takes a system call, but no counter that the program may forbid, and wraps
/// only after nine years.
pub fn tick() -> u32 {
    ((uapi::now_ns() >> TICK_SHIFT) as u32).max(1)
}

/// How many ticks `ms` milliseconds are, rounded up.
pub fn ticks_of(ms: u64) -> u32 {
    (ms.saturating_mul(1_000_000) >> TICK_SHIFT).min(u64::from(u32::MAX / 2)) as u32 + 1
}

/// Reads time and counter at one moment, as nearly as possible: another thread may get the processor between the two reads.
fn both() -> (u64, u64) {
    let looks = (0..8).map(|_| {
        let before = cycles();
        let time = uapi::now_ns();
        let took = cycles().wrapping_sub(before);
        (took, (time, before.wrapping_add(took / 2)))
    });
    looks.min_by_key(|(took, _)| *took).map_or((0, 0), |(_, both)| both)
}

/// Learns the counter's rate. Takes it from `known`, which all processes of a tree share, or measures it and stores it
/// there, which takes 100 microseconds.
pub fn calibrate(known: &AtomicU64) {
    if NS_PER_CYCLE.load(Relaxed) != 0 {
        return;
    }
    // The ban outlasts fork and exec.
    if uapi::counter_is_forbidden() {
        return forbid();
    }
    let rate = known.load(Relaxed);
    // Any process of the tree may have written to `known`.
    if RATES.contains(&rate) {
        NS_PER_CYCLE.store(rate, Relaxed);
        return;
    }
    let (t0, c0) = both();
    while uapi::now_ns() - t0 < 100_000 {}
    let (t1, c1) = both();
    let rate = ((t1 - t0) << 20) / c1.wrapping_sub(c0).max(1);
    NS_PER_CYCLE.store(rate, Relaxed);
    known.store(rate, Relaxed);
}

/// Converts cycles to nanoseconds.
pub fn ns(cycles: u64) -> u64 {
    ((cycles as u128 * NS_PER_CYCLE.load(Relaxed) as u128) >> 20) as u64
}
