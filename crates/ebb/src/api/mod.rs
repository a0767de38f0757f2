//! What changes a space as a whole, or tells of it: creation, devices, snapshots, groups, memory on demand, takeover, figures and
//! validation.

pub(crate) mod advise;
pub(crate) mod figures;
pub(crate) mod groups;
pub(crate) mod process;
pub(crate) mod reclaim;
pub(crate) mod snapshot;
pub(crate) mod swapon;
pub(crate) mod takeover;
pub(crate) mod validate;
