//! Ebb's agent: a library that LD_PRELOAD loads into an unmodified program, to put the program's memory under the engine.
//!
//! The program must not notice. So the agent keeps to these rules:
//!
//! * It runs on its own stacks and with its own thread state (`thread`), never on the program's. It uses no
//!   thread-local storage, no allocator and no memory function of libc's (`mem`). Of the rest of libc it uses only what
//!   libc itself does in the functions that the agent replaces.
//! * Every system call of the program passes through it (`trap`). While a call waits, nothing of the agent is on any
//!   stack (`entry`). The guard makes the memory resident that a call's pointers lead to (`guard`, `table`).
//! * Signals reach the program as they would without it (`signals`).
//! * Threads, forks and execs stay under Ebb (`process`).
//!
//! `start` is the way in. What the agent cannot hide is listed in `docs/compatibility.md`.
#![cfg_attr(not(test), no_std)]

mod base;
mod dormant;
mod guard;
mod handlers;
mod kept;
mod process;
mod signals;
mod start;
mod syscalls;
mod table;
mod threads;
mod wake;

#[cfg(not(test))]
#[panic_handler]
fn panic(info: &core::panic::PanicInfo<'_>) -> ! {
    base::relocations::apply();
    let mut line = base::text::Line::new();
    line.str("ebb: the agent itself failed: panic");
    if let Some(at) = info.location() {
        line.str(" at ").str(at.file()).str(":").num(at.line() as u64);
    }
    line.str("; please report this\n").write();
    signals::delivery::abort()
}
