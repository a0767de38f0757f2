//! What a user can look at: processes, devices, locks.

pub mod advise;
pub mod columns;
pub mod devices;
pub mod locks;
pub mod look;
pub mod metrics;
pub mod ps;
pub mod reads;
pub mod top;
pub mod validate;
