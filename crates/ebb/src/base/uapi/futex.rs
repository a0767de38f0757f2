//! Waiting on words of memory, and letting others run.

use super::time::timespec;
use super::{Errno, call, now_ns};
use core::sync::atomic::AtomicU32;
use linux_raw_sys::general as g;

/// Sleeps while `*word == expected`, at most `timeout_ns` if given. Returns on any wake, also a spurious one.
pub fn futex_wait(word: &AtomicU32, expected: u32, timeout_ns: Option<u64>) {
    let time = timeout_ns.map(timespec);
    let op = (g::FUTEX_WAIT | g::FUTEX_PRIVATE_FLAG) as u64;
    let timeout = time.as_ref().map_or(0, |t| t as *const _ as u64);
    // SAFETY: the kernel only reads the word and the timeout, both alive here.
    let _ = unsafe { call(g::__NR_futex, [word as *const _ as u64, op, expected as u64, timeout, 0, 0]) };
}

/// Wakes up to `n` sleepers on `word`; the kernel takes `n` as a signed number.
pub fn futex_wake(word: &AtomicU32, n: u32) {
    debug_assert!(n <= i32::MAX as u32);
    let op = (g::FUTEX_WAKE | g::FUTEX_PRIVATE_FLAG) as u64;
    // SAFETY: the kernel only uses the word's address.
    let _ = unsafe { call(g::__NR_futex, [word as *const _ as u64, op, n as u64, 0, 0, 0]) };
}

/// Wakes everybody who sleeps on `word`, also in other processes.
pub fn futex_wake_shared(word: &AtomicU32) {
    // SAFETY: the kernel only uses the word's address.
    let _ = unsafe { call(g::__NR_futex, [word as *const _ as u64, g::FUTEX_WAKE as u64, i32::MAX as u64, 0, 0, 0]) };
}

/// Sleeps while `*word == expected`, at most `timeout_ns`. The word is in memory that other processes map too.
pub fn futex_wait_shared(word: &AtomicU32, expected: u32, timeout_ns: u64) {
    let time = timespec(timeout_ns);
    let args = [word as *const _ as u64, g::FUTEX_WAIT as u64, expected as u64, &raw const time as u64, 0, 0];
    // SAFETY: the kernel only reads the word and the timeout, both alive here.
    let _ = unsafe { call(g::__NR_futex, args) };
}

/// Sleeps while `*own == own_expected` and each word of `shared` has the value beside it, at most `timeout_ns` if
/// given. The words of `shared` are in memory that other processes map too. Returns on any wake, also a spurious one.
/// False where the kernel can wait for one word only.
pub fn futex_wait_any(
    own: &AtomicU32,
    own_expected: u32,
    shared: [(&AtomicU32, u32); 2],
    timeout_ns: Option<u64>,
) -> bool {
    const FUTEX_32: u64 = 2;
    const CLOCK_MONOTONIC: u64 = 1;
    // Value, address, flags, as in `struct futex_waitv`.
    let waiter = |(word, expected): (&AtomicU32, u32)| [expected as u64, word as *const _ as u64, FUTEX_32];
    let waiters = [
        [own_expected as u64, own as *const _ as u64, FUTEX_32 | g::FUTEX_PRIVATE_FLAG as u64],
        waiter(shared[0]),
        waiter(shared[1]),
    ];
    let end = timeout_ns.map(|ns| now_ns() + ns);
    let time = end.map(timespec);
    let timeout = time.as_ref().map_or(0, |t| t as *const _ as u64);
    // SAFETY: the kernel only reads the words, the structures and the timeout, all alive here.
    let result = unsafe {
        call(g::__NR_futex_waitv, [waiters.as_ptr() as u64, waiters.len() as u64, 0, timeout, CLOCK_MONOTONIC, 0])
    };
    // False with an older kernel, or under a filter that refuses the call.
    matches!(result, Ok(_) | Err(Errno::AGAIN | Errno::INTR | Errno::TIMEDOUT))
}

/// Lets another thread run.
pub fn sched_yield() {
    // SAFETY: no arguments, no effect on memory.
    let _ = unsafe { call(g::__NR_sched_yield, [0; 6]) };
}
