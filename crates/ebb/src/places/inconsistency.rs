//! What a recount can find wrong.

use core::fmt;

/// What a recount found wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inconsistency {
    /// The pages' states do not fit each other or what is counted of them.
    Pages(&'static str),
    /// What groups are charged, or how they hang together.
    Groups(&'static str),
    /// The slots.
    Slots(ebb_slots::Inconsistency),
    /// The pool.
    Pool(ebb_pool::Inconsistency),
    /// The slots of the file with this number.
    File(usize, ebb_slots::Inconsistency),
    /// The file's count of slots that this process has content in.
    FileUsed {
        /// The file's number in the list of devices.
        file: usize,
        /// Slots by the count that the file keeps.
        kept: u32,
        /// Slots by the recount.
        counted: u32,
    },
}

impl fmt::Display for Inconsistency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pages(what) | Self::Groups(what) => f.write_str(what),
            Self::Slots(what) => write!(f, "slots: {what}"),
            Self::Pool(what) => write!(f, "pool: {what}"),
            Self::File(file, what) => write!(f, "file {file}: {what}"),
            Self::FileUsed { file, kept, counted } => write!(f, "file {file} counts {kept} slots, but has {counted}"),
        }
    }
}

impl core::error::Error for Inconsistency {}
