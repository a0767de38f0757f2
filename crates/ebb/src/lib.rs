//! The swap engine.
#![no_std]

pub mod stats;
