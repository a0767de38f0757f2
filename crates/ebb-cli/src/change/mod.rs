//! What a user can change while a tree runs: its budget and its devices.

pub mod set;
pub mod swapon;
