//! The way in: start-up.

#[expect(clippy::module_inception, reason = "the way in of the way in")]
pub mod start;
pub mod takeover;
