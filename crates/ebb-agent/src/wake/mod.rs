//! From a dormant process to a managed one.

pub mod entry;
pub mod growing;
