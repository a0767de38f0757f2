//! Helpers that know nothing of pages: system calls, time, text, rings.

pub mod clock;
pub mod events;
pub(crate) mod idle;
pub mod killable;
pub mod outlived;
pub(crate) mod patience;
pub(crate) mod ring;
pub(crate) mod runs;
pub(crate) mod spare;
pub(crate) mod text;
pub mod uapi;

/// Bytes of a page.
pub const PAGE: usize = 4096;
