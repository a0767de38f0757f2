//! Which process the agent's memory belongs to: one that only shares it, as between vfork and exec, is not that.

use crate::base::calls;
use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicBool, AtomicI32};
use ebb::uapi;
use linux_raw_sys::general as g;

/// The process that this memory is.
pub(crate) static OWNER: AtomicI32 = AtomicI32::new(0);

/// Whether this process may activate: not one that only shares the memory of its parent.
pub fn is_owner() -> bool {
    const KCMP_VM: u64 = 1;
    let (pid, owner) = (uapi::getpid(), OWNER.load(Relaxed));
    if pid == owner {
        return true;
    }
    // The child of a fork that libc did not make has memory of its own, and takes over.
    // SAFETY: compares only.
    let ret = unsafe { calls::raw_syscall(g::__NR_kcmp as u64, &[pid as u64, owner as u64, KCMP_VM, 0, 0, 0]) };
    // An owner that is not there says nothing: better not managed than its parent's memory taken along.
    let is_own = ret > 0;
    if is_own {
        OWNER.store(pid, Relaxed);
        FORKED.store(true, Relaxed);
    }
    is_own
}

/// The process forked, or is a fork's child: its pages may be shared.
pub(crate) static FORKED: AtomicBool = AtomicBool::new(false);
