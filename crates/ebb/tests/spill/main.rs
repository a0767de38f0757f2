//! Spill files: devices of all kinds, what is written to them and how, and what becomes of those that fail.

#[allow(dead_code, reason = "each room uses its part")]
#[path = "../harness/mod.rs"]
mod harness;

mod devices;
mod early;
mod faults;
mod faulty;
mod fetches;
mod flights;
mod incompressible;
mod kinds;
mod late;
mod often;
mod packed;
mod runs;
mod swapoff_kinds;
mod writes;
