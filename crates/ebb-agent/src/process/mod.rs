//! Threads and processes: how they begin and end, what Ebb's threads follow, and what is asked of the process from outside.

mod binding;
pub mod clone;
pub mod control;
pub mod exec;
pub mod tasks;
