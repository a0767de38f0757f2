//! Signals as the program sees them, on top of signals as the agent needs them.
//!
//! The agent can never do without SIGBUS (faults), SIGSYS (system calls) and SIGSEGV (its own accesses to program
//! memory). These are [`OURS`](crate::base::signum::OURS). The kernel never blocks them, and always delivers them to
//! the agent. Whether the program blocks, ignores or handles them is virtual.
//!
//! The kernel blocks and ignores every other signal as the program says, but the agent enters the handlers for these, too: the
//! kernel delivers on the agent's stack, and `delivery` builds the frame that the kernel would have built on the program's. So
//! the program's handler gets the context, mask and stack that it would have, wherever the signal found the thread.
//!
//! Invariants:
//! * a mask that the kernel sees never has a bit of [`OURS`](crate::base::signum::OURS), except for the length of an execve;
//! * the program's mask is the kernel's plus `ThreadBlock::blocked`;
//! * a program handler runs only when no agent code of its thread is on any stack, except an interposed function that
//!   is outside the engine;
//! * the agent's handlers run with everything blocked but SIGBUS and SIGSEGV. The handlers of those two run with everything
//!   blocked until they turn to the program's memory. So handlers nest no deeper than two, however many signals are sent.

pub mod delivery;
pub mod first;
pub mod masks;
pub mod own;
pub mod syscalls;
pub mod traced;
