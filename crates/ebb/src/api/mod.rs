//! What changes a space as a whole: creation, devices, snapshots, groups, memory on demand, takeover and validation.

pub(crate) mod advise;
pub(crate) mod groups;
pub(crate) mod process;
pub(crate) mod reclaim;
pub(crate) mod snapshot;
pub(crate) mod swapon;
pub(crate) mod takeover;
pub(crate) mod validate;
