//! `ebb run`: starts a program, stands in for it, looks after its tree, and reports what it did.

pub mod beside;
pub mod govern;
pub mod launch;
pub mod lifeline;
pub mod page;
pub mod record;
pub mod report;
pub mod request;
pub mod start;
pub mod supervise;
pub mod thrash;
pub mod unmanaged;
pub mod watch;
