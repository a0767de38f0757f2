//! Ebb's agent: loaded by LD_PRELOAD into an unmodified program, it puts the program's memory under the engine.
//!
//! The program must not notice. So the agent keeps to these rules:
//!
//! * it runs on stacks, and with thread state, of its own (`thread`), never on the program's; it uses no thread-local
//!   storage, no allocator, no memory function of libc's (`mem`), and of the rest only what libc itself does in the functions
//!   that the agent takes the place of;
//! * every system call of the program passes through it (`trap`), those that wait do so with nothing of the agent on
//!   any stack (`entry`); pointers in them are made resident by the guard (`guard`, `table`);
//! * signals reach the program as they would without it (`signals`);
//! * threads, forks and execs stay under Ebb (`process`).
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
    let mut line = base::text::Line::new();
    line.str("ebb: the agent itself failed: panic");
    if let Some(at) = info.location() {
        line.str(" at ").str(at.file()).str(":").num(at.line() as u64);
    }
    line.str("; please report it\n").write();
    signals::delivery::abort()
}
