//! Which process the agent's memory belongs to. A process that only shares the memory, as between vfork and exec, is
//! not the owner.

use crate::base::calls;
use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicBool, AtomicI32};
use ebb::uapi;
use linux_raw_sys::general as g;

/// The process that this memory belongs to.
pub(crate) static OWNER: AtomicI32 = AtomicI32::new(0);

/// True if this process may activate. A process that only shares its parent's memory may not.
pub fn is_owner() -> bool {
    const KCMP_VM: u64 = 1;
    let (pid, owner) = (uapi::getpid(), OWNER.load(Relaxed));
    if pid == owner {
        return true;
    }
    // The child of a fork that libc did not make has memory of its own, and becomes the owner.
    // SAFETY: compares only.
    let ret = unsafe { calls::raw_syscall(g::__NR_kcmp as u64, &[pid as u64, owner as u64, KCMP_VM, 0, 0, 0]) };
    // If the owner does not exist, nothing is known. Better leave this process unmanaged than take over its parent's
    // memory.
    let is_own = ret > 0;
    if is_own {
        OWNER.store(pid, Relaxed);
        FORKED.store(true, Relaxed);
    }
    is_own
}

/// A thread of this process gives memory up at the program's request. A new process gives nothing up yet.
pub(crate) static GIVES_UP: AtomicBool = AtomicBool::new(false);

/// The process has forked, or is the child of a fork: its pages may be shared.
pub(crate) static FORKED: AtomicBool = AtomicBool::new(false);
