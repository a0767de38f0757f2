//! The memory that system calls and requests in flight use.

use crate::base::PAGE;
use crate::space::Space;

/// Pages that one call may pin whatever other calls have pinned.
pub const PIN_PAGES_MIN: usize = 16;

impl Space {
    /// Most bytes that one system call may pin.
    pub fn pin_max(&self) -> usize {
        (self.budget.limit() / 16).clamp(PIN_PAGES_MIN, 2048) * PAGE
    }
}

/// Pages that calls in flight have pinned, or are about to pin.
pub(crate) fn pinned_by_calls(space: &Space) -> usize {
    let range_max = (space.pin_max() / PAGE) as u64;
    space.threads.contexts.all().map(|ctx| ctx.pins.pages(range_max) as usize).sum()
}

/// Calls `f` with every range that overlaps `[start, end)` and that the kernel uses, for a system call or a request in flight.
///
/// The caller must first claim the pages that it wants to keep from such calls, then issue a fence, see `protocols::pin`.
pub(crate) fn for_each_used(space: &Space, start: usize, end: usize, mut f: impl FnMut(usize, usize)) {
    for ctx in space.threads.contexts.all() {
        ctx.pins.for_each_overlap(start as u64, end as u64, |first, last| f(first as usize, last as usize));
    }
    space.threads.requests.for_each_overlap(start as u64, end as u64, |first, last| f(first as usize, last as usize));
}
