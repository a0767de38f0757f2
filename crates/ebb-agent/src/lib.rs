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
//! * threads, forks and execs stay under Ebb (`process`, `exec`).
//!
//! `start` is the way in. What the agent cannot hide is listed in `docs/compatibility.md`.
#![cfg_attr(not(test), no_std)]

mod actions;
mod aio;
mod contract;
mod control;
mod dormant;
mod entry;
mod entry_dormant;
mod exec;
mod fault;
mod fds;
mod frame;
mod guard;
mod interpose;
mod interpose_files;
mod leaving;
mod lifeline;
mod mem;
mod memory;
mod proc_files;
mod process;
mod queue;
mod refused;
mod seccomp;
mod sequences;
mod signals;
mod sites;
mod stack;
mod start;
mod table;
mod takeover;
mod tasks;
mod text;
mod thread;
mod traced;
mod trap;
mod uprobe;
mod user;
mod zerocopy;

pub(crate) use start::space;

#[cfg(not(test))]
#[panic_handler]
fn panic(info: &core::panic::PanicInfo<'_>) -> ! {
    let mut line = text::Line::new();
    line.str("ebb: the agent itself failed: panic");
    if let Some(at) = info.location() {
        line.str(" at ").str(at.file()).str(":").num(at.line() as u64);
    }
    line.str("; please report it\n").write();
    signals::abort()
}
