//! Counters, in the page that all processes of a tree share.

pub(crate) mod bound;
pub mod devices;
pub(crate) mod lockstat;
pub mod reaches;
pub mod runs;
pub mod stats;
pub(crate) mod thp;
pub mod writes;
