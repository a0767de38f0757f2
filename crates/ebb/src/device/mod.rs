//! Spill files: where content goes that leaves RAM.

pub mod file;
pub mod flights;
pub mod list;
pub mod lives;
pub mod slots;

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
}
