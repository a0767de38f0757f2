//! `ebb run`: starting a program, standing in for it, looking after its tree, and telling what it was.

pub mod beside;
pub mod launch;
pub mod lifeline;
pub mod report;
pub mod request;
pub mod start;
pub mod supervise;
pub mod unmanaged;
pub mod watch;
