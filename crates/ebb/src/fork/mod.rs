//! Fork: one space becomes two.

#[allow(clippy::module_inception)]
pub(crate) mod fork;
pub(crate) mod share;
