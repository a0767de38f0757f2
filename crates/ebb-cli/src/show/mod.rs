//! What a user can look at: processes, devices, locks.

pub mod advise;
pub mod devices;
pub mod locks;
pub mod look;
pub mod metrics;
pub mod ps;
pub mod reads;
pub mod validate;
