//! What the agent knows of each thread, and the stacks that it runs on.

pub mod actions;
pub mod entry;
pub mod stack;
pub mod thread;
