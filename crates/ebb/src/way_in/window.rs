//! Decides how many pages a fault brings in.

use crate::base::{PAGE, clock, events};
use crate::memory::table::UNIT_PAGES;
use crate::protocols::page::{State, Tag};
use crate::space::Space;
use crate::threads::ctx::{ThreadCtx, WINDOW_MAX};
use crate::way_in::readahead;
use core::sync::atomic::Ordering::Relaxed;

/// A walk may leave out fewer pages than this between two faults.
const READAHEAD_GAP: u32 = 3;

/// How many pages a fault at `page` might bring in; 0 means just this page: no sequential pattern seen.
///
/// Each unit has a window of its own, because a program walks in several places in turn. A fault at the page where the unit's
/// last fault ended, or a little after it, doubles the window. Any other fault halves it, and cuts the window of a long walk
/// to half a piece at once. Two faults in a row on swapped pages are no walk yet: one object may lie on both pages. The idea
/// is the kernel's read-ahead by address (`swap_vma_readahead`).
pub(crate) fn window(space: &Space, ctx: &ThreadCtx, page: usize, is_swapped: bool) -> u32 {
    let Some(unit) = space.table.unit(page).filter(|_| !events::is_filtering()) else { return 0 };
    let most = readahead::window_max(space) as u32;
    let (at, next, window) = (page_of(page), unit.next.load(Relaxed), unit.window.load(Relaxed));
    let (steps, goes_on) = (&ctx.walker.steps, next > 0 && (next..next + READAHEAD_GAP).contains(&at));
    let note = |goes_on| {
        if is_swapped {
            steps.note(window, goes_on);
        }
    };
    // An untouched page costs little to bring in.
    let trusted = |window| if is_swapped { steps.trusted(window) } else { window };
    if goes_on {
        // A walk that leaves out what is not in memory is one with a stride: much of a window would be of no use.
        let is_left_out = |left_out: u32| {
            let word = space.table.word(page - (at - left_out) as usize * PAGE);
            word.is_some_and(|word| matches!(word.load().tag(), Tag::Swapped | Tag::Staged))
        };
        note(!(next..at).any(is_left_out));
        let least = if is_swapped && window == 0 { 1 } else { 2 };
        return trusted((window * 2).clamp(least, most));
    }
    if at == 0
        && let Some(before) = space.table.unit(page.wrapping_sub(PAGE))
        && before.next.load(Relaxed) as usize == UNIT_PAGES
    {
        // The walk continues from the unit before.
        return before.window.load(Relaxed).clamp(1, most);
    }
    if readahead::is_walked_to(space, ctx, page) {
        return most;
    }
    note(false);
    // A window of 1 means that a walk has made its first step. So half of 2 becomes 0, not 1.
    let half = trusted((window / 2).min(WINDOW_MAX as u32 / 2));
    if half > 1 { half } else { 0 }
}

/// How many pages around `page` a first touch might bring in when it is no step of a walk: a power of two.
///
/// The number is an eighth of the number of such touches in the unit, while there is plenty of room. A unit that is touched at
/// random all over will be used as a whole, and a fault costs as much as seven pages of zeros. A unit of which little is used
/// takes more memory this way: one and a half times as much with 32 pages in use, three times with 64. But a page of zeros that
/// was never used takes nothing but a slot when it is evicted.
pub(crate) fn window_around(space: &Space, page: usize) -> usize {
    /// Touches for each page of the window.
    const TOUCHES: u32 = 8;
    let Some(unit) = space.table.unit(page).filter(|_| !events::is_filtering()) else { return 1 };
    // Two threads at once may lose a touch. Pages that were discarded since no longer count.
    let touches = unit.touches.load(Relaxed).min(unit.content.load(Relaxed)) + 1;
    unit.touches.store(touches, Relaxed);
    let window = (touches / TOUCHES).clamp(1, WINDOW_MAX as u32);
    if window > 1 && space.budget.has_plenty() { 1 << window.ilog2() } else { 1 }
}

/// The part of the aligned block of `window` pages around `page` that a first touch brings in: its first address, and the
/// number of pages from there to the end of the block.
///
/// The part begins with the untouched pages right before `page`, as far as they are in the block and not below `start`.
pub(crate) fn block_around(space: &Space, page: usize, window: usize, start: usize) -> (usize, usize) {
    let block = page & !(window * PAGE - 1);
    let is_untouched = |at: usize| space.table.word(at).is_some_and(|word| word.load() == State::NONE);
    let mut at = page;
    while at > block.max(start) && is_untouched(at - PAGE) {
        at -= PAGE;
    }
    (at, window - (at - block) / PAGE)
}

pub(crate) fn note_window(space: &Space, page: usize, n: usize, window: u32) {
    if let Some(unit) = space.table.unit(page) {
        unit.next.store(page_of(page) + n as u32, Relaxed);
        unit.window.store(window, Relaxed);
        unit.touched.store(clock::stamp(), Relaxed);
    }
}

/// The number of the page within its unit.
fn page_of(addr: usize) -> u32 {
    (addr / PAGE % UNIT_PAGES) as u32
}
