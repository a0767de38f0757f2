//! How far a window may go: by the limits, and by where the content is.

use crate::base::PAGE;
use crate::device::file::BATCH;
use crate::device::kind::Kind;
use crate::places::swapspace::slot_of;
use crate::places::work::Work;
use crate::protocols::page::Tag;
use crate::space::Space;
use crate::threads::ctx::WINDOW_MAX;
use crate::threads::walker::WALK_WINDOW_MAX;

/// A window of a walk is at most a 512th of the budget.
const WINDOW_PART: usize = 512;
/// With a file, it is at most this part, and a power of two: what left together lies together there, in runs that are aligned.
const WINDOW_PART_IN_FILE: usize = 256;

/// Most pages that a fault of a walk brings in altogether, in whole pieces.
pub(crate) fn window_max(space: &Space) -> usize {
    window_of(space, space.budget.limit())
}

/// Pages of a walk's window under a limit of `limit` pages of RAM.
pub(crate) fn window_of(space: &Space, limit: usize) -> usize {
    let pages = match space.swap.has_file() {
        true => 1 << (limit / WINDOW_PART_IN_FILE).max(1).ilog2(),
        false => limit / WINDOW_PART / WINDOW_MAX * WINDOW_MAX,
    };
    pages.clamp(WINDOW_MAX, WALK_WINDOW_MAX)
}

/// Of `n` pages from `page` on, if these are as many as a run of slots may have, those up to where such a run may end: what left
/// together comes by one read.
pub(crate) fn to_run_end(space: &Space, page: usize, n: usize) -> usize {
    if n < BATCH || !space.swap.has_file() {
        return n;
    }
    n - (page / PAGE + n) % BATCH
}

/// Most pages from `at` on that are copied in together: with content that is in a file, as many as one read of a device
/// brings. A read of 256 KiB takes a device about twice as long as one of 64.
pub(crate) fn piece_at(space: &Space, at: usize) -> usize {
    match device_of(space, at) {
        Some(_) => Work::batch_of(space.budget.expected()).max(WINDOW_MAX),
        None => WINDOW_MAX,
    }
}

/// The number of the device that has the content of `page`, as far as can be seen from outside the gate.
pub(crate) fn device_of(space: &Space, page: usize) -> Option<usize> {
    let state = space.table.word(page)?.load();
    let slot = (state.tag() == Tag::Swapped).then(|| slot_of(state))?;
    space.swap.place_in_file(slot).map(|(device, _)| device)
}

/// Whether who comes to `page` waits for a device, and does not use its processor meanwhile. Not for one that turns: it would seek
/// to and fro for two who read.
pub(crate) fn waits_at(space: &Space, page: usize) -> bool {
    let ahead = device_of(space, page).and_then(|device| space.swap.devices.ahead(device));
    ahead.is_some_and(|ahead| ahead.kind() == Kind::Ssd)
}
