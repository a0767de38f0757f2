//! Waits that nobody will end. A process that shares this one's memory, as between vfork and exec, may be killed while
//! it is inside the engine. What it had locked then stays locked.
//!
//! Every long wait passes through this file: waits for a lock, and for the gate to empty, by [`yield_now`]; waits for a
//! page, and for the gate to open, by [`SLEEP_NS`]. Now and then each wait has the agent, which knows the processes,
//! look for dead ones, and lets [fatal signals](killable) through.

use crate::base::{killable, uapi};
use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicPtr, AtomicU32};

/// How long a wait sleeps before it has the agent look.
pub const SLEEP_NS: u64 = 1_000_000_000;
/// Turns of all waits together between two looks.
const TURNS: u32 = 1 << 14;

static LOOK: AtomicPtr<()> = AtomicPtr::new(core::ptr::null_mut());
static TURN: AtomicU32 = AtomicU32::new(0);

/// Sets the function that long waits call to look for dead processes. It may be called with locks held and in a signal handler.
pub fn set_look(f: fn()) {
    LOOK.store(f as *mut (), Relaxed);
}

/// Has the agent look for dead processes, and lets fatal signals act.
#[cold]
pub fn look() {
    killable::look();
    let f = LOOK.load(Relaxed);
    if !f.is_null() {
        // SAFETY: only `set_look` stores here, functions of this type.
        let f: fn() = unsafe { core::mem::transmute(f) };
        f();
    }
}

/// Lets other threads run, in a wait that may last.
pub fn yield_now() {
    uapi::sched_yield();
    if TURN.fetch_add(1, Relaxed) % TURNS == TURNS - 1 {
        look();
    }
}
