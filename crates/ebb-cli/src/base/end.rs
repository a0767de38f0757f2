//! How a program ended, and ending likewise.

use crate::base::sys;

/// How the program ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    Exited(i32),
    Signaled(i32),
    /// It could not take this signal, and may still be there: in an uninterruptible wait not even SIGKILL ends it.
    GivenUp(i32),
}

/// Ends this process as the program ended.
pub fn end_likewise(end: End) -> i32 {
    match end {
        End::Exited(status) => status,
        End::Signaled(signal) | End::GivenUp(signal) => {
            // SAFETY: changes limits, disposition and mask of this process, which is about to end.
            unsafe {
                // The program's core is the one that matters.
                let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
                libc::setrlimit(libc::RLIMIT_CORE, &none);
                libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0);
                sys::default_action(signal);
                libc::kill(libc::getpid(), signal);
                sys::change_mask(libc::SIG_UNBLOCK, &sys::one_signal(signal));
            }
            // The first process of a container outlives even that.
            128 + signal
        }
    }
}
