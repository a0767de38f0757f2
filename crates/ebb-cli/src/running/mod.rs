//! Running trees of processes: how to find them, read their counters, and talk to their agents.

pub mod advice;
pub mod control;
pub mod counters;
pub mod curve;
pub mod fit;
pub mod outside;
pub mod pressure;
pub mod process;
pub mod sample;
pub mod squeeze;
pub mod trees;
