//! A process that is still small: nothing is managed, and a few patched sites of libc count how it grows.

pub mod sites;
pub mod state;
pub mod trampoline;
