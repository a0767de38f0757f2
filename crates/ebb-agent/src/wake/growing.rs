//! What becomes of a dormant process when it makes a call that Ebb has to know of: it stays small, or it becomes managed.

use crate::base::user;
use crate::dormant::state::{self, FDS_AT_START, LOOK_SHARE, REFUSED, SCRATCH, THRESHOLD};
use crate::dormant::trampoline::{ANSWER, CALL_FORK, CALL_THERE, Frame, IN_CHILD, TRAMPOLINE, WAKE};
use crate::kept::owner::FORKED;
use crate::kept::{leaving, lifeline, owner, refused};
use crate::start::start;
use core::sync::atomic::Ordering::Relaxed;
use ebb::uapi;
use linux_raw_sys::general as g;

/// Decides what becomes of the call in `frame`: the trampoline's slow way. Runs on the agent's dormant stack, with
/// signals blocked.
pub unsafe extern "C" fn on_call(frame: *mut Frame) -> u64 {
    // SAFETY: on the program's stack; the trampoline made it, and waits.
    let frame = unsafe { &mut *frame };
    if frame.nr == IN_CHILD {
        state::in_child();
        frame.answer = 0;
        return ANSWER;
    }
    if !state::is_dormant() {
        return CALL_THERE;
    }
    if frame.nr == WAKE {
        if owner::is_owner() && REFUSED.load().is_none() && uapi::fd::has_room(FDS_AT_START) {
            activate();
        }
        return CALL_THERE;
    }
    match frame.nr as u32 {
        g::__NR_brk | g::__NR_mmap | g::__NR_mremap => {
            if state::has_grown(frame) && owner::is_owner() {
                if uapi::fd::has_room(FDS_AT_START) {
                    activate();
                } else {
                    // Try another time: the program may close some.
                    TRAMPOLINE.limit.store(THRESHOLD.load(Relaxed) / LOOK_SHARE, Relaxed);
                }
            }
            CALL_THERE
        }
        g::__NR_clone => by_flags(frame.di & 0xffff_ffff, frame.si),
        g::__NR_clone3 => {
            const FLAGS: usize = 0;
            const STACK: usize = 5;
            // The kernel refuses what cannot be read.
            match state::with_faults(|| user::read::<[u64; 8]>(frame.di)) {
                Ok(args) => by_flags(args[FLAGS], args[STACK]),
                Err(user::Fault) => CALL_THERE,
            }
        }
        g::__NR_fork => by_flags(0, 0),
        g::__NR_execve => state::exec(frame, 0),
        g::__NR_execveat => state::exec(frame, 1),
        nr => {
            let args = [frame.di, frame.si, frame.dx, frame.r10, frame.r8, frame.r9];
            if refused::is_load(nr, &args) {
                before_filter(nr, &args);
            } else if REFUSED.load().is_none() && state::is_for_the_agent(nr, frame) {
                activate();
            }
            CALL_THERE
        }
    }
}

/// Decides about a call that makes a child, by clone's `flags` and the child's stack, 0 for its parent's.
fn by_flags(flags: u64, stack: u64) -> u64 {
    const VM: u64 = g::CLONE_VM as u64;
    const VFORK: u64 = g::CLONE_VFORK as u64;
    const THREAD: u64 = g::CLONE_THREAD as u64;
    const FILES: u64 = g::CLONE_FILES as u64;
    // In a pid namespace of its own, the child could not be told from its parent by its number.
    let has_name = flags & g::CLONE_NEWPID as u64 == 0;
    // The child must have descriptors of its own: what it locks before an exec must go with it.
    if flags & (VM | THREAD | FILES) == VM && flags & VFORK != 0 && has_name {
        // The parent waits, and the child execs or ends.
        return CALL_THERE;
    }
    if flags & (VM | FILES) != 0 || stack != 0 {
        activate();
        return CALL_THERE;
    }
    FORKED.store(true, Relaxed);
    CALL_FORK
}

/// Decides about a seccomp filter that the program is about to load. A filter that refuses what Ebb needs leaves the
/// process, and whatever it forks, unmanaged for good. With any other filter the process becomes a managed one first,
/// because then it has what Ebb opens.
fn before_filter(nr: u32, args: &[u64; 6]) {
    if !owner::is_owner() {
        return;
    }
    let Some(refusal) = state::with_faults(|| refused::by_load(nr, args, refused::Life::Dormant)) else {
        if REFUSED.load().is_none() {
            activate();
        }
        return;
    };
    if REFUSED.set(refusal.name) {
        leaving::take_place(0);
    }
    if refusal.is_deadly {
        // From here on the trampoline sends every call straight back to libc.
        TRAMPOLINE.is_dormant.store(0, Relaxed);
    }
}

/// Makes the process a managed one, unless its memory is its parent's.
fn activate() {
    if owner::is_owner() && state::is_alone() {
        if let Some(name) = REFUSED.load().or_else(|| refused::by_inherited(lifeline::holder())) {
            return state::go_without(name);
        }
        if !uapi::fd::has_room(FDS_AT_START) {
            return state::go_without_descriptors();
        }
        let (at, bytes) = (SCRATCH[0].swap(0, Relaxed), SCRATCH[1].swap(0, Relaxed));
        if bytes != 0 {
            // SAFETY: no exec is under way.
            let _ = unsafe { uapi::munmap(at as usize, bytes as usize) };
        }
        let mask = start::activate_running(TRAMPOLINE.mask.load(Relaxed));
        TRAMPOLINE.mask.store(mask, Relaxed);
        TRAMPOLINE.is_dormant.store(0, Relaxed);
    }
}
