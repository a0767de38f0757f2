//! What a recount can find wrong: the error of validation.

use core::fmt;

/// What a recount found wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inconsistency {
    /// The states of pages contradict each other, or the counts of pages.
    Pages(&'static str),
    /// The charges of groups, or the tree of groups.
    Groups(&'static str),
    /// The swap space's slots.
    Slots(ebb_slots::Inconsistency),
    /// The pool.
    Pool(ebb_pool::Inconsistency),
    /// The slots of the file with this number in the list of devices.
    File(usize, ebb_slots::Inconsistency),
    /// The file's count of the slots that this process has content in.
    FileUsed {
        /// The file's number in the list of devices.
        file: usize,
        /// The number of slots that the file keeps.
        kept: u32,
        /// The number of slots that the recount found.
        counted: u32,
    },
    /// The file's count of the objects that this process has in it.
    FileObjects {
        /// The file's number in the list of devices.
        file: usize,
        /// The number of objects that the file keeps.
        kept: u32,
        /// The number of objects that slots of the swap space have there.
        counted: u32,
    },
    /// The counts of what cooling has settled: cold objects, their bytes, and objects that were tried and are not cold.
    Settled {
        /// The numbers that are kept.
        kept: [u64; 3],
        /// The numbers that the recount found.
        counted: [u64; 3],
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
            Self::FileObjects { file, kept, counted } => {
                write!(f, "file {file} counts {kept} objects, but slots have {counted}")
            }
            Self::Settled { kept: [cold, bytes, tried], counted: [has_cold, has_bytes, has_tried] } => write!(
                f,
                "the pool counts {cold} cold objects of {bytes} bytes and {tried} tried ones, \
                 but has {has_cold} of {has_bytes} and {has_tried}"
            ),
        }
    }
}

impl core::error::Error for Inconsistency {}
