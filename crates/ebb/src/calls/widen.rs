//! mprotect(2) that takes nothing away from anybody: it allows more in a range without content. Allocators grow their heaps
//! like this, in reserved address space and page by page.
//!
//! Such a call closes no gate. Pages without content are not swept, not staged and not swapped, so no thread depends on what
//! the region table says of them, and a new version of the table is published beside the threads that are inside. An access
//! while the call is under way may be refused or not, as without Ebb.

use crate::base::PAGE;
use crate::calls::mapping;
use crate::memory::region::{Attr, Region};
use crate::memory::table::{UNIT_BYTES, UNIT_PAGES};
use crate::protocols::gate::Held;
use crate::protocols::page::{State, Tag};
use crate::space::Space;
use crate::threads::ctx::ThreadCtx;
use core::sync::atomic::Ordering::Acquire;
use linux_raw_sys::general as g;

/// Most units that are searched for content.
const UNITS_MAX: usize = 64;
/// A call that adds at most so many pages to those in use is a step of growth: the first of them is used at once.
const STEP_PAGES: usize = 16;

/// Performs mprotect(2) with arguments `a` on `[start, end)`, if it only allows more in a range without content; the kernel's
/// answer. None if the call needs the gate closed, and in part or as a whole is still to be made.
pub(crate) fn try_widen(space: &Space, ctx: &ThreadCtx, start: usize, end: usize, a: [u64; 6]) -> Option<i64> {
    let prot = a[2] as u32;
    if prot & !(g::PROT_READ | g::PROT_WRITE) != 0 || start >= end || !start.is_multiple_of(PAGE) {
        return None;
    }
    let widened = |attr: Attr| attr.with_prot(prot, None);
    let inside = space.threads.enter(ctx);
    let region = space.regions.find(&inside, start).filter(|region| end <= region.end)?;
    if !region.attr.only_gains(widened(region.attr)) || has_content(space, start, end) {
        return None;
    }
    // SAFETY: the program's call; protection changes no content.
    unsafe { mapping::kernel(g::__NR_mprotect, a) }.ok()?;
    let is_published =
        space.threads.change_regions(&space.regions, &inside, |regions| regions.change(start, end, widened));
    let is_step = is_published && prot & g::PROT_WRITE != 0 && is_step(space, &inside, region, start, end);
    drop(inside);
    if !is_published {
        return None;
    }
    if is_step {
        // The program is about to use it, and a call is cheaper than a fault.
        space.fault(ctx, start, true);
    }
    Some(0)
}

/// True if any page of the range has content, or may have.
fn has_content(space: &Space, start: usize, end: usize) -> bool {
    let mut unit_start = space.table.unit_start(start);
    if (end - unit_start).div_ceil(UNIT_BYTES) > UNITS_MAX {
        return true;
    }
    while unit_start < end {
        // The words of a unit that was never touched have no memory, and get none.
        if space.table.unit(unit_start).is_some_and(|unit| unit.content.load(Acquire) > 0) {
            let pages = (start.max(unit_start)..end.min(unit_start + UNIT_BYTES)).step_by(PAGE);
            let is_empty = |addr| space.table.word(addr).is_some_and(|word| word.load() == State::NONE);
            if !pages.into_iter().all(is_empty) {
                return true;
            }
        }
        unit_start += UNIT_PAGES * PAGE;
    }
    false
}

/// True if the range is small and follows a page that is in memory and may be used alike: a heap that grows.
fn is_step(space: &Space, held: &Held, was: Region, start: usize, end: usize) -> bool {
    let before = start.wrapping_sub(PAGE);
    let is_in_memory = || space.table.word(before).is_some_and(|word| word.load().tag() == Tag::Present);
    !was.attr.is_readable()
        && (end - start) / PAGE <= STEP_PAGES
        && space.regions.find(held, before).is_some_and(|region| region.end >= end)
        && is_in_memory()
}
