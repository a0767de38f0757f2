//! The function behind `ebb.h` (`docs/api.md`): what a program that knows of Ebb calls, by `dlsym`.
//!
//! It is one function, with a number for what is asked, so that each program's loader has one name more to look at, and an agent
//! that does not know a number says so. The name is reserved for the implementation, so that no program has it.
//!
//! It runs on the program's stack, and may be called by any thread at any time, in handlers of signals too. It takes no lock. All
//! that needs the engine is a system call that the agent catches (`syscalls::hints`). A process that is still dormant has no
//! engine, and is made a managed one first. Advice is the kernel's own madvise(2), and needs none: it is caught, too, where there
//! is an engine.

use crate::base::{calls, outside};
use crate::dormant::state;
use crate::kept::owner;
use crate::syscalls::hints;
use core::sync::atomic::AtomicU32;
use ebb::{ADDR_END, PAGE, uapi};
use linux_raw_sys::{errno as e, general as g};

/// What is asked; `ebb.h` has the same numbers.
const ACTIVE: u32 = 0;
const STATS: u32 = 1;
const RECLAIM: u32 = 2;
const SET_RAM: u32 = 3;
const ADVISE: u32 = 4;

const COLD: u64 = 1;
const DEAD: u64 = 2;
const SOON: u64 = 3;

const EINVAL: i64 = -(e::EINVAL as i64);
const EAGAIN: i64 = -(e::EAGAIN as i64);
const ENOSYS: i64 = -(e::ENOSYS as i64);
const ENOMEM: i64 = -(e::ENOMEM as i64);

/// How long to wait for another thread that gives memory up.
const BUSY_NS: u64 = 1_000_000;
/// After so long without progress towards a smaller budget, none is expected.
const PATIENCE_NS: u64 = 5_000_000_000;

unsafe extern "C" {
    fn ebb_wake();
}

/// Performs what `what` asks for, with three arguments. Returns the answer, or a negative error number.
///
/// # Safety
/// As `ebb.h` calls it.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn __ebb_call(what: u32, a: u64, b: u64, c: u64) -> i64 {
    match what {
        ACTIVE => i64::from(may_be_managed()),
        STATS if b < 2 * size_of::<u64>() as u64 => EINVAL,
        STATS => ask(hints::STATS, a, b),
        RECLAIM => reclaim(a),
        SET_RAM => set_ram(a),
        // A filter of the program's might end a process for advice that Ebb would not follow.
        ADVISE if !may_be_managed() => ENOSYS,
        ADVISE => advise(a, b, c),
        _ => ENOSYS,
    }
}

/// Whether the process is managed, or still may become so.
fn may_be_managed() -> bool {
    crate::base::here::space().is_some() || state::is_dormant() && !state::REFUSED.is_set()
}

/// Makes a request. A process that is not managed has nobody to ask, and the kernel is not asked: a filter of the program's might
/// end it for a call that nobody knows.
fn ask(nr: u32, a: u64, b: u64) -> i64 {
    if state::is_dormant() {
        // SAFETY: keeps all registers but those that a call may change.
        unsafe { ebb_wake() };
    }
    if crate::base::here::space().is_none() {
        return ENOSYS;
    }
    // SAFETY: a number that the kernel does not know, and the agent does.
    unsafe { outside::call_outside(u64::from(nr), &[a, b, 0, 0, 0, 0]) }
}

/// Gives up memory, some at a time, so that signals of the program come in between.
fn reclaim(bytes: u64) -> i64 {
    // What is small has nothing to give, and stays small.
    if state::is_dormant() && owner::is_owner() {
        return 0;
    }
    let (mut pages, mut given) = (bytes.div_ceil(PAGE as u64), 0);
    if pages > hints::RECLAIM_PAGES_MAX as u64 {
        // There is no more to give than what is held now: other threads may bring in again what was given up, without end.
        let mut sizes = [0u64; 3];
        let answer = ask(hints::STATS, sizes.as_mut_ptr() as u64, size_of_val(&sizes) as u64);
        if answer < 0 {
            return answer;
        }
        let [_, _, held] = sizes;
        pages = pages.min(held.div_ceil(PAGE as u64));
    }
    while given < pages {
        let step = (pages - given).min(hints::RECLAIM_PAGES_MAX as u64);
        match ask(hints::RECLAIM, step, 0) {
            EAGAIN => uapi::futex_wait(&AtomicU32::new(0), 0, Some(BUSY_NS)),
            error @ ..0 if given == 0 => return error,
            ..0 => break,
            answer => {
                given += answer as u64;
                if (answer as u64) < step {
                    break;
                }
            }
        }
    }
    (given * PAGE as u64) as i64
}

/// Changes the budget of the tree, and waits until the tree holds no more.
fn set_ram(bytes: u64) -> i64 {
    let answer = ask(hints::SET_RAM, bytes, 0);
    if answer < 0 {
        return answer;
    }
    let (mut least, mut since_ns) = (i64::MAX, uapi::now_ns());
    loop {
        let excess = ask(hints::KEEP_BUDGET, 0, 0);
        if excess <= 0 {
            return excess;
        }
        // Only a new minimum is progress.
        if excess < least {
            (least, since_ns) = (excess, uapi::now_ns());
        } else if uapi::now_ns() - since_ns > PATIENCE_NS {
            return EAGAIN;
        }
        uapi::futex_wait(&AtomicU32::new(0), 0, Some(BUSY_NS));
    }
}

/// Follows advice about whole pages. The kernel says first whether they are there.
fn advise(start: u64, bytes: u64, advice: u64) -> i64 {
    let page = PAGE as u64;
    let is_range = start.is_multiple_of(page)
        && bytes.is_multiple_of(page)
        && start.checked_add(bytes).is_some_and(|end| end <= ADDR_END as u64);
    if !is_range || !(COLD..=SOON).contains(&advice) {
        return EINVAL;
    }
    let call = |advice: u32| [start, bytes, u64::from(advice), 0, 0, 0];
    // What the engine does not manage, the kernel has to age. It also knows of holes, where the engine does not look.
    let (is_asked_first, own) = match advice {
        COLD => (true, g::MADV_COLD),
        DEAD => (false, g::MADV_FREE),
        _ => (false, g::MADV_WILLNEED),
    };
    let kernels = if is_asked_first {
        // SAFETY: changes no content.
        unsafe { calls::raw_syscall(g::__NR_madvise as u64, &call(own)) }
    } else {
        0
    };
    // SAFETY: the program's own wish. It is caught where there is an engine.
    let answer = unsafe { outside::call_outside(g::__NR_madvise as u64, &call(own)) };
    match if kernels < 0 { kernels } else { answer } {
        // Part of the range is not mapped. The rest took the advice.
        ENOMEM => EINVAL,
        answer => answer,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Asks in this process, which is not under Ebb.
    fn call(what: u32, args: [u64; 3]) -> i64 {
        // SAFETY: as `ebb.h` calls it; the memory is the test's own.
        unsafe { __ebb_call(what, args[0], args[1], args[2]) }
    }

    #[test]
    fn a_process_that_is_not_managed_asks_nobody() {
        let mut words = [7u64; 32];
        assert_eq!(call(ACTIVE, [0; 3]), 0);
        assert_eq!(call(STATS, [words.as_mut_ptr() as u64, 256, 0]), ENOSYS);
        assert_eq!((call(RECLAIM, [1, 0, 0]), call(SET_RAM, [1 << 30, 0, 0])), (ENOSYS, ENOSYS));
        assert_eq!((call(STATS, [0, 8, 0]), call(5, [0; 3]), call(u32::MAX, [0; 3])), (EINVAL, ENOSYS, ENOSYS));
        assert_eq!(words, [7; 32]);
        assert_eq!((call(ADVISE, [4096, 4096, COLD]), call(ADVISE, [1, 1, 9])), (ENOSYS, ENOSYS));
    }

    #[test]
    fn advice_is_about_whole_pages_that_are_there() {
        // SAFETY: a mapping of the test's own, with a hole in its middle afterwards.
        let at = unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let at = libc::mmap(core::ptr::null_mut(), 3 * PAGE, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0);
            assert_ne!(at, libc::MAP_FAILED);
            libc::munmap(at.byte_add(PAGE), PAGE);
            at as u64
        };
        let page = PAGE as u64;
        for advice in [COLD, DEAD, SOON] {
            assert_eq!(advise(at, page, advice), 0);
            assert_eq!(advise(at, 0, advice), 0);
            for range in
                [[at + 1, page], [at, page - 1], [at, 3 * page], [at, u64::MAX - page + 1], [!(page - 1), page]]
            {
                assert_eq!(advise(range[0], range[1], advice), EINVAL, "{range:x?}");
            }
        }
        for advice in [0, 4, u64::MAX] {
            assert_eq!(advise(at, page, advice), EINVAL);
        }
        // SAFETY: the test's own.
        unsafe { libc::munmap(at as *mut _, 3 * PAGE) };
    }
}
