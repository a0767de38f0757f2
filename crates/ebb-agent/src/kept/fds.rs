//! Keeps the descriptors that Ebb cannot do without out of the program's reach.
//!
//! To the program they look closed. Closing, duplicating or asking about one fails with EBADF, and a range of
//! descriptors is closed around them. If the program wants the number of one for another file, Ebb's file moves to
//! another number; the lifeline is given up instead. The program's call fails with EBUSY if Ebb's file cannot move.
//! Those of the control socket never can. No file can if some threads have descriptor tables of their own, because it
//! would move in one table only.

use crate::base::calls;
use crate::base::outcome::Outcome;
use crate::kept::{lifeline, listener, marks, owner};
use core::sync::atomic::AtomicI32;
use core::sync::atomic::Ordering::Relaxed;
use ebb::uapi::fd::wait_unchanged;
use ebb::{Space, uapi};
use linux_raw_sys::{errno as e, general as g};

/// The inherited descriptor of the counters, or -1.
static STATS_FD: AtomicI32 = AtomicI32::new(-1);

/// The most descriptors to protect: those of the engine, and six of the agent.
const FDS: usize = Space::FDS_MAX + 6;

/// The flag of close_range(2) that gives the caller a table of its own.
pub const CLOSE_RANGE_UNSHARE: u32 = 2;
const EBADF: i64 = -(e::EBADF as i64);
const EBUSY: i64 = -(e::EBUSY as i64);
const EINVAL: i64 = -(e::EINVAL as i64);

/// Protects the counters' descriptor.
pub fn protect_stats(fd: i32) {
    STATS_FD.store(fd, Relaxed);
}

/// Every protected descriptor; -1 in place of those that do not exist.
fn each(space: &Space) -> impl Iterator<Item = i32> {
    let own = core::iter::once(STATS_FD.load(Relaxed)).chain(lifeline::fds()).chain(listener::fds());
    own.chain(space.fds())
}

/// The descriptors that the process inherited.
fn inherited() -> [i32; 3] {
    let [line, keeper] = lifeline::fds();
    [STATS_FD.load(Relaxed), line, keeper]
}

/// True for a descriptor that an unmanaged process inherited, and that looks closed to the program.
pub fn is_inherited(fd: i32) -> bool {
    fd >= 0 && inherited().contains(&fd)
}

/// Gives up an inherited descriptor of a process that is not managed yet, because the program wants its number.
pub fn give_up(fd: i32) {
    let foreign = !owner::is_owner();
    if fd >= 0 && fd == STATS_FD.load(Relaxed) && !foreign {
        STATS_FD.store(-1, Relaxed);
    }
    if is_inherited(fd) {
        lifeline::give_up(fd, foreign);
    }
}

/// Calls `f` with the parts of `first..=last` between the inherited descriptors.
pub fn for_each_inherited_gap(first: u32, last: u32, f: impl FnMut(u32, u32)) {
    let mut kept = inherited();
    kept.sort_unstable();
    for_each_gap(first, last, &kept, f);
}

/// All protected descriptors in ascending order. Unused places are -1 and come first.
fn protected(space: &Space) -> [i32; FDS] {
    let mut all = [-1; FDS];
    for (place, fd) in all.iter_mut().zip(each(space)) {
        *place = fd;
    }
    all.sort_unstable();
    all
}

/// True for a descriptor that looks closed to the program.
pub fn is_protected(space: &Space, fd: u64) -> bool {
    let fd = fd as i32;
    fd >= 0 && each(space).any(|protected| protected == fd)
}

/// The number of the counters' descriptor, or -1.
pub fn stats() -> i32 {
    STATS_FD.load(Relaxed)
}

/// Moves the counters' descriptor to another number, open across exec as before.
fn move_stats(space: &Space, fd: i32) -> bool {
    uapi::fd::exclude(|| {
        if space.tree().has_own_tables() {
            return false;
        }
        let lowest = (fd + 1) as u64;
        // SAFETY: descriptors are numbers; this one is the agent's own.
        let duplicate = |lowest| unsafe {
            calls::raw_syscall(g::__NR_fcntl as u64, &[fd as u64, g::F_DUPFD as u64, lowest, 0, 0, 0])
        };
        let mut moved = duplicate(lowest);
        if moved < 0 {
            moved = duplicate(3);
        }
        if moved < 0 {
            return false;
        }
        STATS_FD.store(moved as i32, Relaxed);
        space.set_tree_fd(moved as i32, || uapi::close(fd)).is_ok()
    })
}

/// close(2).
pub fn close(space: &Space, a: &[u64; 6]) -> Outcome {
    wait_unchanged();
    if is_protected(space, a[0]) { Outcome::Done(EBADF) } else { Outcome::Forward(*a) }
}

/// dup2(2) and dup3(2). `foreign`: the caller shares memory with another process, but perhaps not its descriptors.
pub fn dup_onto(space: &Space, foreign: bool, a: &[u64; 6]) -> Outcome {
    wait_unchanged();
    if is_protected(space, a[0]) {
        return Outcome::Done(EBADF);
    }
    marks::mark_like(a[0], a[1] as i32 as i64);
    if !is_protected(space, a[1]) {
        return Outcome::Forward(*a);
    }
    let fd = a[1] as i32;
    // A call that fails must not take the number.
    // SAFETY: the program's number, asked about.
    let is_open = || unsafe { calls::raw_syscall(g::__NR_fcntl as u64, &[a[0], g::F_GETFD as u64, 0, 0, 0, 0]) >= 0 };
    if !uapi::fd::is_below_limit(fd) || !is_open() {
        return Outcome::Forward(*a);
    }
    if fd == STATS_FD.load(Relaxed) {
        // The caller only shares the memory: what it starts finds no counters at this number, and goes without them.
        return if foreign || move_stats(space, fd) { Outcome::Forward(*a) } else { Outcome::Done(EBUSY) };
    }
    // If other threads have tables of their own, the lifeline would be given up in one table only.
    if (foreign || !space.tree().has_own_tables()) && lifeline::give_up(fd, foreign) {
        return Outcome::Forward(*a);
    }
    if foreign || !space.move_fd(fd) { Outcome::Done(EBUSY) } else { Outcome::Forward(*a) }
}

/// fcntl(2).
pub fn fcntl(space: &Space, a: &[u64; 6]) -> Outcome {
    if is_protected(space, a[0]) {
        return Outcome::Done(EBADF);
    }
    if marks::is_marked(a[0]) && matches!(a[1] as u32, g::F_DUPFD | g::F_DUPFD_CLOEXEC) {
        // SAFETY: the program's call, on numbers.
        let ret = unsafe { calls::raw_syscall(g::__NR_fcntl as u64, a) };
        marks::mark(ret);
        return Outcome::Done(ret);
    }
    Outcome::Forward(*a)
}

/// close_range(2).
pub fn close_range(space: &Space, a: &[u64; 6]) -> Outcome {
    let (first, last) = (a[0] as u32, a[1] as u32);
    if first > last {
        return Outcome::Done(EINVAL);
    }
    wait_unchanged();
    let mut made = None;
    for_each_gap(first, last, &protected(space), |from, to| {
        if made.is_none_or(|ret| ret == 0) {
            let args = [from as u64, to as u64, a[2], 0, 0, 0];
            // SAFETY: closes descriptors that the program gave up.
            made = Some(unsafe { calls::raw_syscall(g::__NR_close_range as u64, &args) });
        }
    });
    // The first call unshares the table. If only Ebb's descriptors are in the range, there was no call.
    if made.is_none() && a[2] as u32 & CLOSE_RANGE_UNSHARE != 0 {
        let args = [g::CLONE_FILES.into(), 0, 0, 0, 0, 0];
        // SAFETY: numbers only.
        made = Some(unsafe { calls::raw_syscall(g::__NR_unshare as u64, &args) });
    }
    Outcome::Done(made.unwrap_or(0))
}

/// Calls `f` with the parts of `first..=last` between the descriptors of `kept`, which ascend.
fn for_each_gap(first: u32, last: u32, kept: &[i32], mut f: impl FnMut(u32, u32)) {
    let mut from = first;
    for &fd in kept {
        let Ok(fd) = u32::try_from(fd) else { continue };
        if fd < from || fd > last {
            continue;
        }
        if fd > from {
            f(from, fd - 1);
        }
        from = fd + 1;
        if fd == last {
            return;
        }
    }
    f(from, last);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gaps(first: u32, last: u32, kept: &[i32]) -> Vec<(u32, u32)> {
        let mut out = Vec::new();
        for_each_gap(first, last, kept, |a, b| out.push((a, b)));
        out
    }

    #[test]
    fn a_range_without_kept_descriptors_is_closed_whole() {
        assert_eq!(gaps(3, u32::MAX, &[-1, -1, 1]), [(3, u32::MAX)]);
    }

    #[test]
    fn kept_descriptors_are_left_out() {
        assert_eq!(gaps(3, u32::MAX, &[-1, 5, 6, 1000]), [(3, 4), (7, 999), (1001, u32::MAX)]);
    }

    #[test]
    fn kept_descriptors_at_both_ends_are_left_out() {
        assert_eq!(gaps(3, 9, &[3, 9]), [(4, 8)]);
    }

    #[test]
    fn a_descriptor_kept_twice_is_left_out_once() {
        assert_eq!(gaps(3, 9, &[5, 5]), [(3, 4), (6, 9)]);
    }
}
