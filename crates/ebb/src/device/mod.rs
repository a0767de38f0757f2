//! Where content goes that leaves RAM.

pub mod file;
