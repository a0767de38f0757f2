//! What this host is and allows: limits, checks, the agent's file, where pages may spill, and what a program is before
//! it runs.

pub mod agent;
pub mod budget;
pub mod checks;
pub mod doctor;
pub mod idle;
pub mod image;
pub mod kind;
pub mod limit;
pub mod place;
pub mod probe;
pub mod profile;
pub mod shown;
pub mod sites;
pub mod spill;
pub mod thp;
pub mod trap;
