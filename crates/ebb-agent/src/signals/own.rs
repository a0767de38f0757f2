//! Signals that a thread sends to its own process.
//!
//! The kernel wakes the thread that it chooses for such a signal, the first one if it can take it. But any thread takes a pending
//! signal of its process when it sets its mask, and the agent sets masks all the time: a thread that goes on with system calls
//! would take most of the signals that it sends, and the call in which the first thread waits would not be interrupted. So the
//! sender keeps all signals blocked until another thread has taken this one, or none does.

use crate::base::calls;
use crate::base::frame::Context;
use crate::base::signum::{OURS, SIGNALS, UNBLOCKABLE, bit};
use crate::kept::refused;
use crate::signals::masks;
use crate::threads::thread::ThreadBlock;
use ebb::uapi;
use linux_raw_sys::general as g;

/// How long the sender waits for another thread. If all others block the signal, it is the sender's.
const PATIENCE_NS: u64 = 2_000_000;

/// Whether kill(2) with these arguments sends a signal to the caller's process that another thread should take. In the handler of
/// SIGSYS. The process has so many threads. The first thread takes its own, as it would without Ebb.
pub fn is_for_another(b: &ThreadBlock, uc: &Context, a: &[u64; 6], threads: u32) -> bool {
    let (to, sig) = (a[0] as i32, a[1] as i32);
    (1..=SIGNALS).contains(&sig)
        && (OURS | UNBLOCKABLE | masks::program_mask(b, uc)) & bit(sig) == 0
        && threads > 1
        && (to == 0 || to as u64 == calls::getpid())
        && calls::gettid() != calls::getpid()
        && refused::may_make(g::__NR_rt_sigpending)
}

/// Makes such a call, and waits until the signal is taken. The caller has all signals blocked.
pub fn kill(a: &[u64; 6]) -> i64 {
    // SAFETY: the program's call, on numbers.
    let ret = unsafe { calls::raw_syscall(g::__NR_kill as u64, a) };
    if ret != 0 {
        return ret;
    }
    let end_ns = uapi::now_ns() + PATIENCE_NS;
    while is_pending(a[1] as i32) && uapi::now_ns() < end_ns {
        uapi::sched_yield();
    }
    ret
}

fn is_pending(sig: i32) -> bool {
    let mut set = 0u64;
    // SAFETY: the kernel writes one mask.
    let ret = unsafe { calls::raw_syscall(g::__NR_rt_sigpending as u64, &[&raw mut set as u64, 8, 0, 0, 0, 0]) };
    ret == 0 && set & bit(sig) != 0
}
