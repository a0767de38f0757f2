//! Runs engine calls on a stack of the agent's.
//!
//! An interposed function runs on the program's stack. That stack may itself be managed memory, as a coroutine's is, or a
//! thread's that was given its stack. The engine might then sweep the very stack that it runs on, and wait for itself. So code
//! that may reclaim moves to the stack in the thread's block first. The agent's signal handlers are there already.

use crate::threads::thread::ThreadBlock;
use core::arch::asm;

/// Runs `f` on the agent's stack of the calling thread, whose block is `b`. Every signal must be blocked, so that
/// nobody else uses that stack.
pub fn on_own<R, F: FnOnce() -> R>(b: &ThreadBlock, f: F) -> R {
    let here = 0u8;
    if b.owns(&raw const here as u64) {
        return f();
    }
    let mut job = Job { f: Some(f), result: None };
    let top = b.stack_top() & !63;
    // SAFETY: the stack is unused: its users are signal handlers, and signals are blocked. `run` returns; r12 is
    // preserved across it by the calling convention.
    unsafe {
        asm!(
            "xchg rsp, r12",
            "call {run}",
            "mov rsp, r12",
            run = in(reg) run::<R, F> as unsafe extern "C" fn(*mut Job<R, F>),
            inout("r12") top => _,
            in("rdi") &raw mut job,
            clobber_abi("C"),
        );
    }
    match job.result {
        Some(result) => result,
        None => ebb::uapi::kill_self(),
    }
}

struct Job<R, F> {
    f: Option<F>,
    result: Option<R>,
}

/// # Safety
/// `job` must be valid.
unsafe extern "C" fn run<R, F: FnOnce() -> R>(job: *mut Job<R, F>) {
    // SAFETY: the caller waits for this function and keeps the job alive.
    let job = unsafe { &mut *job };
    if let Some(f) = job.f.take() {
        job.result = Some(f());
    }
}
