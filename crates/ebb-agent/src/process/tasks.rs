//! The state that each task has of its own in the kernel and that the program changes: user and group, capabilities, filters,
//! namespaces, where and how it is scheduled. Ebb's threads must not keep what the program gives up, nor lack what it takes.
//!
//! So Ebb's threads do not exist while such a call is made. The thread that makes the call ends them first (`ebb::life`), and
//! lets them begin again when the kernel has answered. The background thread has whatever the thread that makes it has. So a
//! thread may make it only if its state equals the state of the thread that changed itself last.
//!
//! libc has every thread of the process make the same call (`setresuid` and its like), and so do Go and libpsx.
//! Therefore each thread has a *version*, a sum over all calls that have changed it, and the process has the version of
//! its last change. A new thread has its parent's version.
//!
//! What the kernel allows only to a process with one thread (unshare of a user namespace) works as without Ebb.
//!
//! A child between vfork and exec changes itself, and Ebb's threads are its parent's. So nothing of this concerns the child.

use crate::base::change::Change;
use crate::kept::{listener, refused};
use crate::threads::thread::{self, ThreadBlock};
use core::sync::atomic::Ordering::{self, Relaxed};
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use ebb::{Space, uapi};
use linux_raw_sys::general as g;

/// The number of program threads in this process.
pub(crate) static LIVE: AtomicU32 = AtomicU32::new(1);

/// The number of program threads in this process.
pub fn live() -> u32 {
    LIVE.load(Ordering::Relaxed)
}

const PR_SET_KEEPCAPS: u32 = 8;
const PR_SET_SECCOMP: u32 = 22;
const PR_CAPBSET_DROP: u32 = 24;
const PR_SET_TSC: u32 = 26;
const PR_SET_SECUREBITS: u32 = 28;
const PR_SET_TIMERSLACK: u32 = 29;
const PR_MCE_KILL: u32 = 33;
const PR_SET_NO_NEW_PRIVS: u32 = 38;
const PR_CAP_AMBIENT: u32 = 47;
const PR_SET_SPECULATION_CTRL: u32 = 53;
const PR_SET_IO_FLUSHER: u32 = 57;
const PR_SCHED_CORE: u32 = 62;
const ARCH_SET_CPUID: u64 = 0x1012;
const LSM_SET_SELF_ATTR: u32 = 460;

/// Calls that may change a task, one bit each. [`of_call`] looks at them more closely.
static CANDIDATES: [u64; 8] = bits(&[
    g::__NR_setuid,
    g::__NR_setgid,
    g::__NR_setreuid,
    g::__NR_setregid,
    g::__NR_setgroups,
    g::__NR_setresuid,
    g::__NR_setresgid,
    g::__NR_setfsuid,
    g::__NR_setfsgid,
    g::__NR_capset,
    g::__NR_prctl,
    g::__NR_arch_prctl,
    g::__NR_seccomp,
    g::__NR_landlock_restrict_self,
    g::__NR_unshare,
    g::__NR_setns,
    g::__NR_keyctl,
    g::__NR_add_key,
    g::__NR_request_key,
    g::__NR_personality,
    g::__NR_iopl,
    g::__NR_ioperm,
    LSM_SET_SELF_ATTR,
    g::__NR_sched_setparam,
    g::__NR_sched_setscheduler,
    g::__NR_sched_setattr,
    g::__NR_sched_setaffinity,
    g::__NR_setpriority,
    g::__NR_ioprio_set,
    g::__NR_set_mempolicy,
]);

const fn bits(numbers: &[u32]) -> [u64; 8] {
    let mut bits = [0u64; 8];
    let mut i = 0;
    while i < numbers.len() {
        bits[numbers[i] as usize / 64] |= 1 << (numbers[i] % 64);
        i += 1;
    }
    bits
}

#[inline]
fn is_candidate(nr: u64) -> bool {
    is_one_of(&CANDIDATES, nr)
}

fn is_one_of(calls: &[u64; 8], nr: u64) -> bool {
    calls.get(nr as usize / 64).is_some_and(|word| word & 1 << (nr % 64) != 0)
}

/// Calls in which a program waits for something to do, one bit each. The calls that libc makes while it changes all
/// threads are not among them.
static SLEEPS: [u64; 8] = bits(&[
    g::__NR_wait4,
    g::__NR_waitid,
    g::__NR_epoll_wait,
    g::__NR_epoll_pwait,
    g::__NR_epoll_pwait2,
    g::__NR_poll,
    g::__NR_ppoll,
    g::__NR_select,
    g::__NR_pselect6,
    g::__NR_pause,
    g::__NR_nanosleep,
    g::__NR_clock_nanosleep,
    g::__NR_rt_sigsuspend,
    g::__NR_rt_sigtimedwait,
    g::__NR_accept,
    g::__NR_accept4,
]);

/// Whom a call would change if it succeeds. `tid` returns the caller's number.
fn of_call(nr: u32, a: &[u64; 6], tid: impl Fn() -> u64) -> Change {
    let is_self = |target: u64| target as u32 == 0 || target as u32 == tid() as u32;
    let privileges = |yes: bool| if yes { Change::Privileges } else { Change::None };
    let scheduling = |yes: bool| if yes { Change::Scheduling } else { Change::None };
    match nr {
        g::__NR_prctl => match a[0] as u32 {
            PR_SET_KEEPCAPS
            | PR_SET_SECCOMP
            | PR_CAPBSET_DROP
            | PR_SET_TSC
            | PR_SET_SECUREBITS
            | PR_MCE_KILL
            | PR_SET_NO_NEW_PRIVS
            | PR_SET_SPECULATION_CTRL
            | PR_SET_IO_FLUSHER
            | PR_SCHED_CORE => Change::Privileges,
            // PR_CAP_AMBIENT_IS_SET only asks.
            PR_CAP_AMBIENT => privileges(a[1] != 1),
            PR_SET_TIMERSLACK => Change::Scheduling,
            _ => Change::None,
        },
        g::__NR_arch_prctl => privileges(a[0] == ARCH_SET_CPUID),
        // Operations 0 and 1 set a mode; the others only ask.
        g::__NR_seccomp => privileges(a[0] as u32 <= 1),
        // A descriptor table of its own gives a thread no rights, and Ebb's threads must keep the process's table.
        g::__NR_unshare => privileges(a[0] as u32 & !g::CLONE_FILES != 0),
        // KEYCTL_GET_KEYRING_ID may make a keyring of the task's; KEYCTL_JOIN_SESSION_KEYRING and
        // KEYCTL_SET_REQKEY_KEYRING change one.
        g::__NR_keyctl => privileges(matches!(a[0] as u32, 1 | 14) || a[0] as u32 == 0 && a[2] as u32 != 0),
        // Negative numbers are the task's keyrings, which the call may make.
        g::__NR_add_key => privileges((a[4] as i32) < 0),
        g::__NR_request_key => privileges((a[3] as i32) < 0),
        g::__NR_personality => privileges(a[0] as u32 != u32::MAX),
        g::__NR_sched_setparam | g::__NR_sched_setscheduler | g::__NR_sched_setattr | g::__NR_sched_setaffinity => {
            scheduling(is_self(a[0]))
        }
        // PRIO_PROCESS is 0, IOPRIO_WHO_PROCESS 1. The other kinds of target are set for all tasks.
        g::__NR_setpriority => scheduling(a[0] as u32 == 0 && is_self(a[1])),
        g::__NR_ioprio_set => scheduling(a[0] as u32 == 1 && is_self(a[1])),
        g::__NR_set_mempolicy => Change::Scheduling,
        _ => Change::Privileges,
    }
}

/// The version of the last change in this process.
static VERSION: AtomicU64 = AtomicU64::new(0);
/// A value that is no thread's version.
const NOBODY: u64 = u64::MAX;
/// The last call that changed a thread, by its sum, and how many threads have made that call one after the other.
static STEP: AtomicU64 = AtomicU64::new(0);
static STEPS: AtomicU32 = AtomicU32::new(0);
/// Whether the background thread was there, and is to begin again.
static IS_MISSED: AtomicBool = AtomicBool::new(false);
/// When the last changes were made, in units of [`OFTEN_MS`], and how many in that unit.
static RECENT: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];
const OFTEN_MS: u64 = 100;
/// A process that changes itself more often than this in [`OFTEN_MS`] is taken to do so all day, as a server does that
/// becomes the user of each request. It goes without the background thread until it has rested.
const OFTEN: u64 = 16;
const REST_MS: u64 = 10;

/// A sum over a call: two threads that make the same call have the same sum. Never 0 or [`NOBODY`].
fn sum(nr: u64, args: &[u64; 6]) -> u64 {
    let mix = |sum: u64, word: &u64| (sum ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    args.iter().fold(mix(0x6562_6266, &nr), mix).clamp(1, NOBODY - 1)
}

/// Whether this thread may make the background thread, which can then do whatever this thread can.
pub fn may_start() -> bool {
    thread::here().is_some_and(|b| !b.foreign.get() && b.version.load(Relaxed) == VERSION.load(Relaxed))
        && refused::may_have_threads()
}

/// Prepares for a call that the thread is about to make with arguments `used`. What the call changes is in `b.call`
/// until [`answered`] or [`not_made`].
#[inline]
pub fn before(space: &'static Space, b: &ThreadBlock, used: &[u64; 6]) {
    if is_candidate(b.call.nr.get()) {
        look(space, b, used);
    }
}

#[cold]
fn look(space: &'static Space, b: &ThreadBlock, used: &[u64; 6]) {
    if b.foreign.get() {
        return;
    }
    let change = of_call(b.call.nr.get() as u32, used, crate::base::calls::gettid);
    let is_first = || crate::base::calls::gettid() == crate::base::calls::getpid();
    b.call.change.set(change);
    match change {
        Change::None => {}
        Change::Scheduling if !is_first() => {}
        _ => {
            end_threads(space);
            b.call.holds.set(true);
            if change == Change::Privileges {
                // An open map would show what its opener could see before the change.
                space.close_books();
            }
        }
    }
}

/// Ends Ebb's threads, and keeps them from beginning again.
fn end_threads(space: &'static Space) {
    // The background thread goes first: it makes the other one.
    let was_there = space.background().hold();
    listener::hold();
    if was_there {
        IS_MISSED.store(true, Relaxed);
    }
    // Others know by locks that this process lives. The descriptor table with those locks may have gone with the threads.
    if space.tree().has_own_tables() {
        space.hold_membership();
    }
}

/// Whether Ebb's threads would be counted, if a program of one thread looked.
pub fn would_be_counted(space: &Space) -> bool {
    live() == 1 && (space.background().has_thread() || listener::has_thread())
}

/// Whether a task of the process is Ebb's.
pub fn is_ebbs(space: &Space, tid: u64) -> bool {
    space.background().is_thread(tid) || listener::is_thread(tid)
}

/// Takes back [`before`]: the call was not made, and will be made again.
#[cold]
pub fn not_made(space: &'static Space, b: &ThreadBlock) {
    b.call.change.set(Change::None);
    if b.call.holds.take() {
        let_go(space, 0);
    }
}

/// Handles the kernel's answer `ret` to the call.
#[cold]
pub fn answered(space: &'static Space, b: &ThreadBlock, ret: i64) {
    let change = b.call.change.take();
    let holds = b.call.holds.take();
    let sum = sum(b.call.nr.get(), &b.call.args.get());
    // Calls that return the old value never fail.
    let (is_done, mut all) = (!(-4095..0).contains(&ret), true);
    if is_done && change != Change::None {
        let old = b.version.load(Relaxed);
        let new = old.wrapping_mul(31).wrapping_add(sum).clamp(1, NOBODY - 1);
        b.version.store(new, Relaxed);
        if holds {
            VERSION.store(new, Relaxed);
            if ret == 0 && is_for_all(b.call.nr.get() as u32, &b.call.args.get()) {
                thread::for_each_used(|other| {
                    let _ = other.version.compare_exchange(old, new, Relaxed, Relaxed);
                });
            } else {
                all = all_have_made(sum);
            }
        }
    }
    if holds {
        let often = is_often();
        let_go(space, if often || !all { REST_MS } else { 0 });
        if all && !often {
            begin_again(space);
        }
    }
}

/// Whether a call sets a filter for all threads (TSYNC). The kernel answers 0 when it does.
fn is_for_all(nr: u32, a: &[u64; 6]) -> bool {
    const SECCOMP_FILTER_FLAG_TSYNC: u64 = 1;
    const LANDLOCK_RESTRICT_SELF_TSYNC: u64 = 1 << 3;
    match nr {
        g::__NR_seccomp => a[0] as u32 == 1 && a[1] & SECCOMP_FILTER_FLAG_TSYNC != 0,
        g::__NR_landlock_restrict_self => a[1] & LANDLOCK_RESTRICT_SELF_TSYNC != 0,
        _ => false,
    }
}

/// Whether as many threads as there are have made this call one after the other. The last of them makes the background thread.
fn all_have_made(sum: u64) -> bool {
    if STEP.swap(sum, Relaxed) != sum {
        STEPS.store(0, Relaxed);
    }
    STEPS.fetch_add(1, Relaxed) + 1 >= live()
}

fn is_often() -> bool {
    let now = uapi::now_ns() / 1_000_000 / OFTEN_MS;
    if RECENT[0].swap(now, Relaxed) != now {
        RECENT[1].store(0, Relaxed);
    }
    RECENT[1].fetch_add(1, Relaxed) >= OFTEN
}

fn let_go(space: &'static Space, pause_ms: u64) {
    listener::release();
    space.background().release(pause_ms);
}

/// Lets the background thread begin again, if it was there and this thread may make it. Every signal must be blocked.
fn begin_again(space: &'static Space) {
    if IS_MISSED.load(Relaxed) && space.background().begin_again(space) {
        IS_MISSED.store(false, Relaxed);
    }
}

/// Lets the background thread begin again if it could not at once. Called at system call `nr`, which the agent sees.
#[inline]
pub fn at_call(space: &'static Space, nr: u64) {
    if IS_MISSED.load(Relaxed) {
        begin_again_later(space, nr);
    }
}

#[cold]
fn begin_again_later(space: &'static Space, nr: u64) {
    if may_start() {
        // The thread may sleep for ever, and nobody but the background thread gives up what the process holds.
        if is_one_of(&SLEEPS, nr) && space.has_grown() {
            space.background().end_pause(REST_MS);
        }
        begin_again(space);
    }
}

/// Handles the end of a program thread while others go on. If it was the last thread with the version of Ebb's threads,
/// they end, too.
pub fn leave(space: &'static Space, b: &ThreadBlock) {
    let own = b.version.load(Relaxed);
    if b.foreign.get() || VERSION.load(Relaxed) == 0 || own != VERSION.load(Relaxed) {
        return;
    }
    let mut has_like = false;
    thread::for_each_used(|other| {
        has_like |= !core::ptr::eq(other, b) && !other.foreign.get() && other.version.load(Relaxed) == own;
    });
    if !has_like {
        end_threads(space);
        VERSION.store(NOBODY, Relaxed);
        IS_MISSED.store(false, Relaxed);
        let_go(space, 0);
    }
}

/// Gives the process, in fork's child, the version of its one thread.
pub fn in_child(b: &ThreadBlock) {
    VERSION.store(b.version.load(Relaxed), Relaxed);
    IS_MISSED.store(false, Relaxed);
    STEPS.store(0, Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(nr: u32, args: [u64; 3]) -> Change {
        assert!(is_candidate(nr.into()));
        of_call(nr, &[args[0], args[1], args[2], 0, 0, 0], || 77)
    }

    #[test]
    fn what_a_task_gives_up_is_known() {
        for nr in [
            g::__NR_setuid,
            g::__NR_setgroups,
            g::__NR_setfsuid,
            g::__NR_capset,
            g::__NR_landlock_restrict_self,
            g::__NR_setns,
            g::__NR_iopl,
        ] {
            assert_eq!(of(nr, [0; 3]), Change::Privileges);
        }
        for option in [8, 22, 24, 28, 38, 47] {
            assert_eq!(of(g::__NR_prctl, [option, 2, 0]), Change::Privileges, "{option}");
        }
        assert_eq!(of(g::__NR_seccomp, [1, 0, 0]), Change::Privileges);
        assert_eq!(of(g::__NR_unshare, [0x1000_0000, 0, 0]), Change::Privileges);
        assert_eq!(of(g::__NR_unshare, [0x400 | 0x200, 0, 0]), Change::Privileges);
        assert_eq!(of(g::__NR_keyctl, [1, 0, 0]), Change::Privileges);
        assert_eq!(of(g::__NR_personality, [0x4_0000, 0, 0]), Change::Privileges);
    }

    #[test]
    fn questions_change_nothing() {
        // PR_GET_NO_NEW_PRIVS, PR_CAP_AMBIENT_IS_SET, PR_SET_NAME.
        for args in [[39, 0, 0], [47, 1, 3], [15, 0, 0]] {
            assert_eq!(of(g::__NR_prctl, args), Change::None);
        }
        assert_eq!(of(g::__NR_personality, [0xffff_ffff, 0, 0]), Change::None);
        assert_eq!(of(g::__NR_seccomp, [2, 0, 0]), Change::None);
        // CLONE_FILES.
        assert_eq!(of(g::__NR_unshare, [0x400, 0, 0]), Change::None);
        assert_eq!(of(g::__NR_keyctl, [0, 0, 0]), Change::None);
        assert!(!is_candidate(g::__NR_read.into()) && !is_candidate(u64::from(u32::MAX)));
    }

    #[test]
    fn scheduling_of_others_is_no_change_of_the_callers() {
        assert_eq!(of(g::__NR_sched_setaffinity, [0, 8, 0]), Change::Scheduling);
        assert_eq!(of(g::__NR_sched_setaffinity, [77, 8, 0]), Change::Scheduling);
        assert_eq!(of(g::__NR_sched_setaffinity, [78, 8, 0]), Change::None);
        assert_eq!(of(g::__NR_setpriority, [0, 77, 5]), Change::Scheduling);
        assert_eq!(of(g::__NR_setpriority, [1, 0, 5]), Change::None);
    }

    #[test]
    fn threads_that_make_the_same_calls_have_one_version() {
        let (a, b) = (sum(117, &[1, 2, 3, 0, 0, 0]), sum(117, &[1, 2, 4, 0, 0, 0]));
        assert_ne!(a, b);
        assert_eq!(a, sum(117, &[1, 2, 3, 0, 0, 0]));
    }
}
