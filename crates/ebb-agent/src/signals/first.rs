//! Signals to the process that Linux would give to the first thread.
//!
//! For a signal to a process, the kernel wakes the first thread if that can take it. But any thread takes what is pending for its
//! process when it sets its mask, and the agent sets masks all the time: under Ebb, a thread that is busy with system calls takes
//! signals for which the first thread was woken. A program that has the call interrupted in which its first thread waits, as
//! Python does for SIGINT, would wait on. (`own` keeps a thread from taking what it sends itself.)
//!
//! So the other thread hands such a signal over. It leaves the details in a place of the signal's own, and sends the first thread
//! a mark with the place's address: the kernel lets nobody send another thread a signal that seems to come from elsewhere. When
//! the mark arrives there, the details are taken from the place. A place that is not empty is left alone, and the signal is handled
//! where it came: the first thread may have taken a mark in a way that the agent does not see (sigwait, signalfd).
//!
//! A first thread that ends blocks all signals for good, and then looks into the places. What it finds there it sends to the
//! process once more. Who hands over looks again whether there is still a first thread, and takes the signal back if not. Of the
//! two, one sees what the other did, and the place is emptied once (`crates/ebb/tests/loom/deposits.rs`).

use crate::base::calls;
use crate::base::frame::SigInfo;
use crate::base::signum::{
    OURS, SIGALRM, SIGHUP, SIGINT, SIGPIPE, SIGQUIT, SIGTSTP, SIGWINCH, SIGXFSZ, UNBLOCKABLE, bit,
};
use crate::kept::refused;
use crate::threads::thread::ThreadBlock;
use core::mem::transmute;
use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering, fence};
use ebb::deposit::{Deposit, Hold};
use linux_raw_sys::general as g;

/// The block of the process's first thread; null when that has ended.
static FIRST: AtomicPtr<ThreadBlock> = AtomicPtr::new(ptr::null_mut());

const WORDS: usize = size_of::<SigInfo>() / 8;
/// Signals of which one at a time is pending: of the others, each one counts, and their order.
const PLACES: usize = 32;
/// The details of the signals that were handed over and have not arrived.
static PLACES_BY_SIGNAL: [Deposit<WORDS>; PLACES] = [const { Deposit::new() }; PLACES];

const SI_USER: i32 = 0;
const SI_KERNEL: i32 = 0x80;
const SI_QUEUE: i32 = -1;

/// Signals that the kernel itself sends to a process, not to a thread: those of a terminal, and that of the alarm clock.
const BY_KERNEL: u64 = bit(SIGHUP) | bit(SIGINT) | bit(SIGQUIT) | bit(SIGALRM) | bit(SIGTSTP) | bit(SIGWINCH);

fn place(sig: i32) -> Option<&'static Deposit<WORDS>> {
    usize::try_from(sig).ok().and_then(|sig| PLACES_BY_SIGNAL.get(sig))
}

/// Makes `b` the block of the process's first thread: when the process becomes a managed one, and in fork's child.
pub fn set(b: &ThreadBlock) {
    PLACES_BY_SIGNAL.iter().for_each(Deposit::reset);
    FIRST.store(b.as_ptr(), Ordering::Release);
}

/// Sends on what was handed over to the first thread, which ends. The caller has every signal blocked, and keeps it so.
pub fn leave(b: &ThreadBlock) {
    if FIRST.load(Ordering::Relaxed) != b.as_ptr() {
        return;
    }
    FIRST.store(ptr::null_mut(), Ordering::Relaxed);
    // Pairs with the fence of `hand_over`.
    fence(Ordering::SeqCst);
    // Of the others, whoever hands over takes them back, or they have gone another way: by sigwait, or with a new action.
    let pending = pending();
    for (sig, place) in (0..).zip(&PLACES_BY_SIGNAL).skip(1) {
        if pending & bit(sig) != 0
            && let Some(info) = take(place)
            && refused::may_make(g::__NR_rt_sigqueueinfo)
        {
            let args = [calls::getpid(), info.signo as u64, &raw const info as u64, 0, 0, 0];
            // SAFETY: the kernel reads one siginfo.
            unsafe { calls::raw_syscall(g::__NR_rt_sigqueueinfo as u64, &args) };
        }
    }
}

/// The signals that wait for the calling thread, which has all blocked; all, if that cannot be asked.
fn pending() -> u64 {
    let mut set = u64::MAX;
    if refused::may_make(g::__NR_rt_sigpending) {
        // SAFETY: the kernel writes one mask.
        unsafe { calls::raw_syscall(g::__NR_rt_sigpending as u64, &[&raw mut set as u64, 8, 0, 0, 0, 0]) };
    }
    set
}

/// Takes what lies in `place`.
fn take(place: &Deposit<WORDS>) -> Option<SigInfo> {
    let hold = place.take(|_| true)?;
    // SAFETY: every value is a valid one, and a `SigInfo` was left there.
    let info = unsafe { transmute::<[u64; WORDS], SigInfo>(hold.label()) };
    hold.clear();
    Some(info)
}

/// Signals that the kernel sends to a thread as if its own process had: writing brings them about.
const BY_WRITING: u64 = bit(SIGPIPE) | bit(SIGXFSZ);

/// Whether `info` is of a signal to the process `pid`, not to one of its threads. A queued one (sigqueue) may be either.
fn is_to_process(info: &SigInfo, pid: u64) -> bool {
    match info.code {
        // By kill: also to the group that the process is in.
        SI_USER => info.addr as u32 != pid as u32 || BY_WRITING & bit(info.signo) == 0,
        SI_KERNEL => BY_KERNEL & bit(info.signo) != 0,
        _ => false,
    }
}

/// What is sent for the signal `signo` whose details are in `place`.
fn mark(signo: i32, place: &Deposit<WORDS>, pid: u64) -> SigInfo {
    let at = ptr::from_ref(place) as u64;
    // The value of a queued signal.
    SigInfo { signo, code: SI_QUEUE, addr: pid, syscall: at as i32, arch: (at >> 32) as u32, ..SigInfo::ZERO }
}

fn is_mark(info: &SigInfo, place: &Deposit<WORDS>) -> bool {
    let mark = mark(info.signo, place, 0);
    (info.code, info.syscall, info.arch) == (mark.code, mark.syscall, mark.arch)
}

/// Hands a signal over to the first thread, if that should have it. True if it is on its way there.
pub fn hand_over(b: &ThreadBlock, info: &SigInfo) -> bool {
    let first = FIRST.load(Ordering::Acquire);
    let Some(place) = place(info.signo) else { return false };
    if first.is_null() || first == b.as_ptr() || b.foreign.get() || (OURS | UNBLOCKABLE) & bit(info.signo) != 0 {
        return false;
    }
    // SAFETY: blocks stay mapped. That of a first thread which has ended meanwhile may be another thread's; see below.
    let is_open = unsafe { &*first }.open.load(Ordering::Relaxed) & bit(info.signo) != 0;
    let pid = calls::getpid();
    if !is_open || !is_to_process(info, pid) {
        return false;
    }
    // One is on its way already.
    let Some(hold) = place.take_empty() else { return false };
    // SAFETY: plain words.
    hold.leave(unsafe { transmute::<SigInfo, [u64; WORDS]>(*info) });
    let mark = mark(info.signo, place, pid);
    let args = [pid, pid, info.signo as u64, &raw const mark as u64, 0, 0];
    // SAFETY: the kernel reads one siginfo, on the agent's stack.
    let ret = unsafe { calls::raw_syscall(g::__NR_rt_tgsigqueueinfo as u64, &args) };
    // Pairs with the fence of `leave`.
    fence(Ordering::SeqCst);
    (ret == 0 && FIRST.load(Ordering::Relaxed) == first) || place.take(|_| true).map(Hold::clear).is_none()
}

/// The details of a signal that was handed over, whose mark arrived at the first thread as `info`.
pub fn handed_over(b: &ThreadBlock, info: &SigInfo) -> Option<SigInfo> {
    let place = place(info.signo)?;
    // Beyond RLIMIT_SIGPENDING the kernel delivers the number alone, as if process 0 had sent it.
    let is_bare = info.code == SI_USER && info.addr == 0;
    let is_for_this = FIRST.load(Ordering::Relaxed) == b.as_ptr() && !b.foreign.get();
    (is_for_this && (is_bare || is_mark(info, place))).then(|| take(place)).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(signo: i32, code: i32, pid: u64) -> SigInfo {
        SigInfo { signo, code, addr: pid, ..SigInfo::ZERO }
    }

    #[test]
    fn a_signal_to_the_process_is_told_from_one_to_a_thread() {
        for (to_process, of) in [
            (true, info(SIGINT, SI_USER, 7)),
            (true, info(SIGINT, SI_KERNEL, 0)),
            (true, info(SIGALRM, SI_KERNEL, 0)),
            // As kill(0, SIGINT) sends it.
            (true, info(SIGINT, SI_USER, 9)),
            (true, info(SIGPIPE, SI_USER, 7)),
            // What writing brings about; a queued one to a thread; a thread's; a timer that counts a thread's time.
            (false, info(SIGPIPE, SI_USER, 9)),
            (false, info(SIGXFSZ, SI_USER, 9)),
            (false, info(SIGINT, SI_QUEUE, 7)),
            (false, info(SIGINT, -6, 7)),
            (false, info(27, SI_KERNEL, 0)),
            (false, info(14, -2, 0)),
        ] {
            assert_eq!(is_to_process(&of, 9), to_process, "{} {}", of.signo, of.code);
        }
    }

    #[test]
    fn details_go_through_a_place_unchanged() {
        let place = Deposit::<WORDS>::new();
        let mut sent = info(SIGINT, SI_QUEUE, 7);
        sent.rest = core::array::from_fn(|i| i as u64 * 3);
        let hold = place.take_empty().expect("empty");
        // SAFETY: plain words.
        hold.leave(unsafe { transmute::<SigInfo, [u64; WORDS]>(sent) });
        let got = take(&place).expect("left there");
        assert_eq!((got.signo, got.code, got.addr, got.rest), (SIGINT, SI_QUEUE, 7, sent.rest));
        assert!(take(&place).is_none());
    }

    #[test]
    fn a_mark_is_that_of_its_place_alone() {
        let places = [const { Deposit::<WORDS>::new() }; 2];
        let sent = mark(SIGINT, &places[0], 9);
        assert!(is_mark(&sent, &places[0]) && !is_mark(&sent, &places[1]));
        assert!(!is_mark(&SigInfo { code: -6, ..sent }, &places[0]));
    }

    #[test]
    fn signals_with_a_queue_have_no_place() {
        assert!(place(31).is_some() && place(32).is_none() && place(64).is_none() && place(-1).is_none());
    }
}
