//! Threads and processes: how they begin and end, what all of them follow, and what is asked of them from outside.

pub mod clone;
pub mod control;
pub mod exec;
pub mod tasks;
