//! How a program ended, and how this process ends the same way.

use crate::base::sys;

/// How the program ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    Exited(i32),
    Signaled(i32),
    /// It could not take this signal and may still be there: in an uninterruptible wait not even SIGKILL ends it.
    GivenUp(i32),
}

/// Ends this process the way the program ended, or returns the exit status to end with.
pub fn end_likewise(end: End) -> i32 {
    match end {
        End::Exited(status) => status,
        End::Signaled(signal) | End::GivenUp(signal) => {
            // SAFETY: changes limits, disposition and mask of this process, which is about to end.
            unsafe {
                // The program's core dump is the one that matters, so `ebb` writes none.
                let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
                libc::setrlimit(libc::RLIMIT_CORE, &none);
                libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0);
                sys::default_action(signal);
                libc::kill(libc::getpid(), signal);
                sys::change_mask(libc::SIG_UNBLOCK, &sys::one_signal(signal));
            }
            // Reached only by the first process of a container, which the signal does not end.
            128 + signal
        }
    }
}
