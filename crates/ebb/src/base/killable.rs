//! Waits that a fatal signal ends together with the program, as the kernel's killable waits do.
//!
//! Whoever is in the engine has every signal blocked. In a wait that lasts, SIGINT and SIGTERM would come to nothing until the wait
//! is over. So for the length of such a wait, the thread lets through what the agent, which knows the program's masks and actions,
//! names: signals that end or stop the whole process by their default action. The kernel then acts at once.
//!
//! Whatever the thread holds, the end of the process is no worse here than SIGKILL, which may come at any instruction. So no caller
//! needs to give anything up first.

use crate::base::uapi;
use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicPtr, AtomicU32};

static FATAL: AtomicPtr<()> = AtomicPtr::new(core::ptr::null_mut());

/// Sets the function that names the signals which a wait of the calling thread lets through now: bit n - 1 stands for signal n. It
/// may be called with locks held and in a signal handler. A signal among them that has a handler after all, because another thread
/// has just set one, may run it in the middle of the wait.
pub fn set_fatal(f: fn() -> u64) {
    FATAL.store(f as *mut (), Relaxed);
}

fn fatal() -> u64 {
    let f = FATAL.load(Relaxed);
    if f.is_null() {
        return 0;
    }
    // SAFETY: only `set_fatal` stores here, functions of this type.
    let f: fn() -> u64 = unsafe { core::mem::transmute(f) };
    f()
}

/// Calls `wait`, which does nothing but wait, and lets fatal signals through meanwhile. One that is pending acts before `wait` begins.
pub fn wait<R>(wait: impl FnOnce() -> R) -> R {
    let fatal = fatal();
    if fatal == 0 {
        return wait();
    }
    let mask = uapi::thread::open_only(fatal);
    let result = wait();
    uapi::thread::restore_signals(mask);
    result
}

/// Sleeps for `ns` nanoseconds, and lets fatal signals through meanwhile. May return early.
pub fn sleep(ns: u64) {
    wait(|| uapi::futex_wait(&AtomicU32::new(0), 0, Some(ns)));
}

/// Lets fatal signals act that are pending.
pub fn look() {
    wait(|| {});
}
