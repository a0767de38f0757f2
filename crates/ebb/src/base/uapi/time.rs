//! Time that passes, and processor time that was used.

use super::call;
use linux_raw_sys::general as g;

/// A time for the kernel.
pub(super) fn timespec(ns: u64) -> g::__kernel_timespec {
    g::__kernel_timespec { tv_sec: (ns / 1_000_000_000) as i64, tv_nsec: (ns % 1_000_000_000) as i64 }
}

/// Monotonic time in nanoseconds.
pub fn now_ns() -> u64 {
    clock_ns(g::CLOCK_MONOTONIC)
}

/// Nanoseconds since 1970, as the system's clock says: the same in all namespaces, but somebody may set that clock.
pub fn calendar_ns() -> u64 {
    clock_ns(g::CLOCK_REALTIME)
}

fn clock_ns(clock: u32) -> u64 {
    let mut t = g::__kernel_timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel writes the timespec given.
    let _ = unsafe { call(g::__NR_clock_gettime, [u64::from(clock), &mut t as *mut _ as u64, 0, 0, 0, 0]) };
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

/// True when reading the cycle counter would be a fault (PR_SET_TSC).
pub fn counter_is_forbidden() -> bool {
    const PR_GET_TSC: u64 = 25;
    const PR_TSC_SIGSEGV: u32 = 2;
    let mut mode = 0u32;
    // SAFETY: the kernel writes one word.
    let got = unsafe { call(g::__NR_prctl, [PR_GET_TSC, &raw mut mode as u64, 0, 0, 0, 0]) };
    got.is_ok() && mode == PR_TSC_SIGSEGV
}

/// Processor time of the calling thread in nanoseconds.
pub fn thread_time_ns() -> u64 {
    let mut t = g::__kernel_timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel writes the timespec given.
    let _ = unsafe {
        call(g::__NR_clock_gettime, [g::CLOCK_THREAD_CPUTIME_ID as u64, &mut t as *mut _ as u64, 0, 0, 0, 0])
    };
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

/// What threads have used of processors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Usage {
    /// Time in nanoseconds.
    pub ran_ns: u64,
    /// How often they lost their processor although they could have run.
    pub preempted: u64,
}

/// Usage of the calling thread; none where the kernel does not tell.
pub fn usage_of_thread() -> Option<Usage> {
    usage(g::RUSAGE_THREAD as u64)
}

/// Usage of all threads that the process has and had; none where the kernel does not tell.
pub fn usage_of_process() -> Option<Usage> {
    usage(u64::from(g::RUSAGE_SELF))
}

fn usage(who: u64) -> Option<Usage> {
    // SAFETY: zero is a valid value of these integers.
    let mut usage: g::rusage = unsafe { core::mem::zeroed() };
    // SAFETY: the kernel writes the structure given.
    unsafe { call(g::__NR_getrusage, [who, &mut usage as *mut _ as u64, 0, 0, 0, 0]) }.ok()?;
    let ns = |t: g::__kernel_old_timeval| t.tv_sec as u64 * 1_000_000_000 + t.tv_usec as u64 * 1000;
    Some(Usage { ran_ns: ns(usage.ru_utime) + ns(usage.ru_stime), preempted: usage.ru_nivcsw as u64 })
}

/// How often the calling thread has lost its processor although it could have run.
pub fn times_preempted() -> u32 {
    usage_of_thread().map_or(0, |usage| usage.preempted as u32)
}
