//! Several who share a budget: parents and their children, the processes of a tree, and the groups of a process.

#[allow(dead_code, reason = "each room uses its part")]
#[path = "../harness/mod.rs"]
mod harness;

mod families;
mod generations;
mod groups;
mod groups_model;
mod groups_stress;
mod loose;
mod tree;
