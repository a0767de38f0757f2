//! What this crate needs of the system that it cannot do itself.

use core::panic::Location;
use core::sync::atomic::{AtomicPtr, Ordering};

/// Functions of whoever runs on a system. Each may be called with locks held, and from a signal handler.
#[derive(Clone, Copy, Debug)]
pub struct Hooks {
    /// Lets another thread run: a lock stays held for long, so its holder was preempted, perhaps by this very wait.
    pub yield_now: fn(),
    /// Nanoseconds since some moment.
    pub now_ns: fn() -> u64,
    /// A lock of this class, asked for at this place, was waited for so many nanoseconds. The caller holds it now.
    pub contended: fn(class: &'static str, caller: &'static Location<'static>, wait_ns: u64),
}

/// Set once; null until then.
static HOOKS: AtomicPtr<Hooks> = AtomicPtr::new(core::ptr::null_mut());

/// Sets the hooks, once in a process; false if they were set before. Without, a wait spins and is not told of.
pub fn set_hooks(hooks: &'static Hooks) -> bool {
    // Release, so that whatever the hooks rely on is set up for every thread that calls them.
    let hooks = core::ptr::from_ref(hooks).cast_mut();
    HOOKS.compare_exchange(core::ptr::null_mut(), hooks, Ordering::Release, Ordering::Relaxed).is_ok()
}

pub(crate) fn hooks() -> Option<&'static Hooks> {
    // SAFETY: null, or what set_hooks stored: a reference that lives for ever.
    unsafe { HOOKS.load(Ordering::Acquire).as_ref() }
}

/// Waits for something that is no [`Lock`](crate::Lock), and tells of that: a wait at the caller's place.
#[track_caller]
pub fn waiting<R>(class: &'static str, wait: impl FnOnce() -> R) -> R {
    let caller = Location::caller();
    let Some(hooks) = hooks() else { return wait() };
    let begin_ns = (hooks.now_ns)();
    let result = wait();
    (hooks.contended)(class, caller, (hooks.now_ns)().saturating_sub(begin_ns));
    result
}
