//! What a program asks Ebb for by `ebb.h` (`docs/api.md`), where the agent performs it.
//!
//! A request is a system call with a number that Linux does not have. So it is caught like any call of the program's, and runs
//! where the agent may use the engine: on the agent's stack, with every signal blocked. The function that the program calls is in
//! `wake::hints`.

use crate::base::user;
use crate::kept::owner::GIVES_UP;
use crate::threads::thread::ThreadBlock;
use core::sync::atomic::Ordering::{Acquire, Release};
use ebb::{PAGE, Reclaim, ReclaimTo, Space};
use linux_raw_sys::errno as e;

/// Numbers of the requests, far from those of Linux.
pub const STATS: u32 = 0x0ebb_0001;
pub const RECLAIM: u32 = 0x0ebb_0002;
pub const SET_RAM: u32 = 0x0ebb_0003;
pub const KEEP_BUDGET: u32 = 0x0ebb_0004;

/// Most pages that one request gives up. Signals wait meanwhile.
pub const RECLAIM_PAGES_MAX: usize = (8 << 20) / PAGE;
/// How long one request works for a smaller budget, at most; signals wait meanwhile.
const KEEP_NS: u64 = 20_000_000;

/// Whether a system call is a request.
pub fn is_one(nr: u32) -> bool {
    (STATS..=KEEP_BUDGET).contains(&nr)
}

/// Performs a request. Returns its answer, or a negative error number.
pub fn perform(space: &Space, b: &ThreadBlock, nr: u32, a: &[u64; 6]) -> i64 {
    // Between vfork and exec the process works on its parent's memory. It gives nothing of that up.
    if b.foreign.get() {
        return -i64::from(e::EBUSY);
    }
    match nr {
        STATS => stats(space, b, a[0], a[1]),
        RECLAIM => reclaim(space, b, a[0]),
        SET_RAM if space.set_ram(a[0]) => 0,
        SET_RAM => -i64::from(e::EINVAL),
        _ => space.keep_budget(b.ctx(), KEEP_NS) as i64,
    }
}

/// Writes `struct ebb_stats` to `at`, as much of it as `bytes` has room for. Its first word says how much that is.
fn stats(space: &Space, b: &ThreadBlock, at: u64, bytes: u64) -> i64 {
    const WORD: u64 = size_of::<u64>() as u64;
    let f = space.figures(b.ctx());
    let mut words = [
        0,
        f.wanted,
        f.held,
        f.resident,
        f.staged,
        f.pool,
        f.pool_content,
        f.swapped,
        f.device,
        f.faults,
        f.ram,
        f.tree_held,
        f.tree_peak,
        f.faults_staged,
        f.faults_pool,
        f.faults_device,
        f.read_ahead,
        f.out,
        f.written,
        f.stall_ns,
    ];
    let known = (words.len() as u64 * WORD).min(bytes & !(WORD - 1));
    words[0] = known;
    let mut written = words[..(known / WORD) as usize].iter().zip((at..).step_by(WORD as usize));
    match written.try_for_each(|(word, to)| user::write(to, word)) {
        Ok(()) => known as i64,
        Err(user::Fault) => -i64::from(e::EFAULT),
    }
}

/// Gives up some pages. Returns how many. There is one thread at a time, or each would count what the others give.
fn reclaim(space: &Space, b: &ThreadBlock, pages: u64) -> i64 {
    if GIVES_UP.swap(true, Acquire) {
        return -i64::from(e::EAGAIN);
    }
    let pages = usize::try_from(pages).unwrap_or(usize::MAX).min(RECLAIM_PAGES_MAX);
    let given = space.reclaim(b.ctx(), Reclaim { pages, to: ReclaimTo::Usual, shared: false }, &mut |_| true);
    GIVES_UP.store(false, Release);
    // Only a demand for a device fails.
    given.map_or(0, |pages| pages as i64)
}
