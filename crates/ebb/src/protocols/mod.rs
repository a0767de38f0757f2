//! How threads and processes agree without a lock. Each file is one protocol; loom explores it in all its orders.

pub mod bounds;
pub mod bucket;
pub mod counter;
pub mod deposit;
pub mod errand;
pub mod gate;
pub mod holders;
pub mod life;
pub mod page;
pub mod pin;
pub(crate) mod primitive;
pub mod request;
pub mod rest;
pub mod seal;
pub mod stalls;
pub mod together;
pub mod versions;
