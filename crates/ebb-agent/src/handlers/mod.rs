//! Where the kernel enters the agent.

pub mod fault;
pub mod signal;
pub mod sigsys;
