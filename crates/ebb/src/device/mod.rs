//! Where content goes that leaves RAM.

pub mod file;
pub mod list;
pub mod lives;
pub mod slots;

use core::ffi::CStr;

/// Devices that a process can write to at a time.
pub const DEVICES_MAX: usize = 8;
/// Longest name of a device's directory, with its NUL.
pub const NAME_BYTES_MAX: usize = 512;

/// A device, as it is asked for: a file in a directory.
#[derive(Clone, Copy, Debug)]
pub struct SwapSpec<'a> {
    /// Directory of the file.
    pub dir: &'a CStr,
    /// Largest size of the file.
    pub bytes: u64,
    /// Devices of higher priority are filled first, those of one priority in turn. Without one it is filled after all
    /// that are there.
    pub priority: Option<i16>,
}

/// A device, as it is.
#[derive(Clone, Copy, Debug)]
pub struct SwapInfo<'a> {
    /// Directory of the file.
    pub dir: &'a CStr,
    /// Largest size.
    pub bytes: u64,
    /// What this process has there.
    pub used_bytes: u64,
    /// None for one that this process only reads, because its parent wrote it.
    pub priority: Option<i16>,
}
