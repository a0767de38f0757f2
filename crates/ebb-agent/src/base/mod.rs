//! What knows nothing of the other rooms: constants and plain data, text, the agent's own system calls, copies.

pub mod action;
pub mod arguments;
pub mod calls;
pub mod change;
pub mod contract;
pub mod copy;
pub mod entries;
pub mod frame;
pub mod here;
pub mod images;
mod mem;
#[cfg(not(test))]
mod no_allocator;
pub mod outcome;
pub mod outside;
pub mod queue;
pub mod relocations;
pub mod seccomp;
pub mod sequences;
pub mod signum;
pub mod text;
pub mod user;
pub mod zerocopy;
