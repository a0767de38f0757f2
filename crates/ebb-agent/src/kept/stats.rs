//! Maps the counters that all processes of a tree share.

use crate::kept::fds;
use core::sync::atomic::Ordering;
use ebb::stats::Shared;
use ebb::uapi;

/// Maps the counters, if the descriptor is still what `ebb run` opened.
pub fn map_stats(fd: i32) -> Option<&'static Shared> {
    let at = uapi::map_shared(fd, Shared::MAP_BYTES).ok()?;
    uapi::own::add(at as usize, Shared::MAP_BYTES);
    // SAFETY: mapped above, never unmapped while referred to; all fields are atomics. A file that is too short is
    // recognized by its size first.
    let shared = unsafe { &*at.cast::<Shared>() };
    if file_bytes(fd) < Shared::MAP_BYTES as u64 || shared.magic.load(Ordering::Relaxed) != ebb::stats::MAGIC {
        // SAFETY: nobody refers to the mapping.
        let _ = unsafe { uapi::munmap(at as usize, Shared::MAP_BYTES) };
        return None;
    }
    fds::protect_stats(fd);
    Some(shared)
}

/// Size of an open file, in bytes; 0 if `fd` is no open file.
pub(crate) fn file_bytes(fd: i32) -> u64 {
    uapi::fd::bytes(fd).unwrap_or(0)
}
