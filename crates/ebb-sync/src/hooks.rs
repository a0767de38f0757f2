//! What this crate needs from the system and cannot do itself.

use core::panic::Location;
use core::sync::atomic::{AtomicPtr, Ordering};

/// Functions that the user of this crate provides. Each may be called with locks held, and from a signal handler.
#[derive(Clone, Copy, Debug)]
pub struct Hooks {
    /// Lets another thread run. Called when a lock stays held for so long that its holder was preempted, perhaps by
    /// this very wait.
    pub yield_now: fn(),
    /// Nanoseconds since some fixed moment.
    pub now_ns: fn() -> u64,
    /// Reports a wait: the lock's class, the place that asked for it, and the nanoseconds waited. The caller holds the
    /// lock now.
    pub contended: fn(class: &'static str, caller: &'static Location<'static>, wait_ns: u64),
}

/// Set once; null until then.
static HOOKS: AtomicPtr<Hooks> = AtomicPtr::new(core::ptr::null_mut());

/// Sets the hooks, once in a process; false if they were set before. Without hooks, a wait only spins and is not
/// reported.
pub fn set_hooks(hooks: &'static Hooks) -> bool {
    // Release, so that whatever the hooks rely on is set up for every thread that calls them.
    let hooks = core::ptr::from_ref(hooks).cast_mut();
    HOOKS.compare_exchange(core::ptr::null_mut(), hooks, Ordering::Release, Ordering::Relaxed).is_ok()
}

pub(crate) fn hooks() -> Option<&'static Hooks> {
    // SAFETY: null, or what set_hooks stored: a reference that lives forever.
    unsafe { HOOKS.load(Ordering::Acquire).as_ref() }
}

/// Waits for something that is not a [`Lock`](crate::Lock), and reports it as a wait at the caller's place.
#[track_caller]
pub fn waiting<R>(class: &'static str, wait: impl FnOnce() -> R) -> R {
    let caller = Location::caller();
    let Some(hooks) = hooks() else { return wait() };
    let begin_ns = (hooks.now_ns)();
    let result = wait();
    (hooks.contended)(class, caller, (hooks.now_ns)().saturating_sub(begin_ns));
    result
}
