//! What the agent keeps for itself in the process: descriptors, variables, a lifeline. Also what a sandbox forbids it.

pub mod environment;
pub mod fds;
pub mod leaving;
pub mod lifeline;
pub mod listener;
pub mod marks;
pub mod owner;
pub mod refused;
pub mod shown;
pub mod stats;
pub mod texts;
