//! Growth in steps: an allocator makes the next pages of a heap accessible, and uses them at once.

use crate::base::PAGE;
use crate::protocols::page::Tag;
use crate::space::Space;
use crate::threads::ctx::ThreadCtx;

/// A call that adds at most so many pages to those in use is a step.
const STEP_PAGES: usize = 16;

/// True if it is a step of growth to make `[start, end)` writable: the range was not accessible, is small, and follows a page
/// that is in memory. To be asked before the call.
pub(crate) fn is_step(space: &Space, ctx: &ThreadCtx, start: usize, end: usize) -> bool {
    if end.saturating_sub(start) > STEP_PAGES * PAGE {
        return false;
    }
    let before = start.wrapping_sub(PAGE);
    let inside = space.threads.enter(ctx);
    let find = |addr| space.regions.find(&inside, addr);
    let is_step = find(start).is_some_and(|region| !region.attr.is_readable())
        && find(before).is_some_and(|region| region.attr.is_plain())
        && space.table.word(before).is_some_and(|word| word.load().tag() == Tag::Present);
    drop(inside);
    is_step
}
