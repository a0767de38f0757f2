//! What a user can change while a tree runs: its budget and its devices, and what it holds.

pub mod reclaim;
pub mod set;
pub mod swapon;
