//! Spill files: where content goes that leaves RAM.

pub mod ahead;
pub mod contexts;
pub mod file;
pub mod flights;
pub mod kind;
pub mod list;
pub mod lives;
pub mod slots;

use crate::counters::writes::Writes;
use crate::device::kind::{Discard, Kind};
use core::ffi::CStr;

/// Most devices that a process can write to at a time.
pub const DEVICES_MAX: usize = 8;
/// Longest name of a device's directory, in bytes, with its NUL.
pub const NAME_BYTES_MAX: usize = 512;

/// A device as somebody asks for it: a file in a directory.
#[derive(Clone, Copy, Debug)]
pub struct SwapSpec<'a> {
    /// Directory of the file.
    pub dir: &'a CStr,
    /// Largest size of the file.
    pub bytes: u64,
    /// Devices of higher priority are filled first; devices of equal priority take turns. With `None` the device is
    /// filled after all that are there.
    pub priority: Option<i16>,
    /// What the file's medium is.
    pub kind: Kind,
    /// What the file system is told of what nobody uses any more.
    pub discard: Discard,
    /// How much the processes of the tree may write to the directory. At the beginning, and in a child, the tree's own budget for the
    /// directory counts, if there is one.
    pub writes: Option<Writes>,
}

impl SwapSpec<'static> {
    /// A device of no size, as everything is where nobody says otherwise.
    pub const DEFAULT: Self =
        Self { dir: c"/var/tmp", bytes: 0, priority: None, kind: Kind::Ssd, discard: Discard::Pages, writes: None };
}

/// A device as it is.
#[derive(Clone, Copy, Debug)]
pub struct SwapInfo<'a> {
    /// Directory of the file.
    pub dir: &'a CStr,
    /// Largest size of the file.
    pub bytes: u64,
    /// What this process has in the file.
    pub used_bytes: u64,
    /// None for a file that this process only reads, because its parent wrote it.
    pub priority: Option<i16>,
    /// What the file's medium is.
    pub kind: Kind,
    /// The average time of a read, in nanoseconds; 0 before the first.
    pub read_ns: u32,
    /// Pages that this process read ahead from the file and used.
    pub readahead_hits: u64,
    /// Such pages that it did not use.
    pub readahead_misses: u64,
    /// Bytes that the processes of the tree wrote to the directory.
    pub written_bytes: u64,
    /// How much they may write there.
    pub writes: Option<Writes>,
    /// Whether it works.
    pub state: SwapState,
}

/// Whether a device works.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SwapState {
    /// As far as is known, it does.
    Good,
    /// Nothing more is written there, because it failed too often. What is there can still be read.
    Closed,
    /// A thread waits for it, and it has not answered for seconds.
    Stuck,
    /// Its write budget is spent: nothing is written there until some of it has come back.
    Held,
}
