//! How a dormant process becomes a managed one.

pub mod entry;
pub mod growing;
pub mod hints;
