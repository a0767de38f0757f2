//! How many pages a fault brings in.

use crate::base::{PAGE, clock};
use crate::memory::table::UNIT_PAGES;
use crate::protocols::page::State;
use crate::space::Space;
use crate::threads::ctx::{ThreadCtx, WINDOW_MAX};
use crate::way_in::readahead;
use core::sync::atomic::Ordering::Relaxed;

/// Pages a walk may leave out and still be one.
const READAHEAD_GAP: u32 = 3;

/// How many pages a fault at `page` might bring in; 0 is one, by a fault that says nothing of the next. Read-ahead is judged per
/// unit, because a program walks in
/// several places by turns: a fault a little behind where the last one in the unit ended doubles the window, any
/// other halves it, and that of a long walk at once to half a piece. The idea is the kernel's read-ahead by address
/// (`swap_vma_readahead`). Two faults in a row on swapped pages are no walk yet: an object may lie on both.
pub(crate) fn window(space: &Space, ctx: &ThreadCtx, page: usize, is_swapped: bool) -> u32 {
    let Some(unit) = space.table.unit(page) else { return 0 };
    let most = readahead::window_max(space) as u32;
    let (at, next, window) = (page_of(page), unit.next.load(Relaxed), unit.window.load(Relaxed));
    if next > 0 && (next..next + READAHEAD_GAP).contains(&at) {
        let least = if is_swapped && window == 0 { 1 } else { 2 };
        return (window * 2).clamp(least, most);
    }
    if at == 0
        && let Some(before) = space.table.unit(page.wrapping_sub(PAGE))
        && before.next.load(Relaxed) as usize == UNIT_PAGES
    {
        // The walk goes on from the unit before.
        return before.window.load(Relaxed).clamp(1, most);
    }
    if readahead::is_walked_to(space, ctx, page) {
        return most;
    }
    // One is what the first step of a walk makes of none.
    let half = (window / 2).min(WINDOW_MAX as u32 / 2);
    if half > 1 { half } else { 0 }
}

/// How many pages around `page` a first touch might bring in, a power of two, when it is no step of a walk: an eighth of the
/// number of such touches in the unit, while there is plenty of room. What is used at random all over will be used as a whole,
/// and a fault costs as much as seven pages of zeros. What is used here and there costs more memory for it: of a unit one and a half
/// times as much with 32 pages in use, and three times with 64. A page of zeros that nobody used is evicted to nothing but
/// a slot.
pub(crate) fn window_around(space: &Space, page: usize) -> usize {
    /// Touches that are worth a page more.
    const TOUCHES: u32 = 8;
    let Some(unit) = space.table.unit(page) else { return 1 };
    // Threads may lose one of the other's. What was discarded since counts no more.
    let touches = unit.touches.load(Relaxed).min(unit.content.load(Relaxed)) + 1;
    unit.touches.store(touches, Relaxed);
    let window = (touches / TOUCHES).clamp(1, WINDOW_MAX as u32);
    if window > 1 && space.budget.has_plenty() { 1 << window.ilog2() } else { 1 }
}

/// The block of `window` pages that `page` is in, from the first of the pages right before it, at or after `start`, that
/// nobody has touched either; with the pages from there to the block's end.
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

/// Number of the page in its unit.
fn page_of(addr: usize) -> u32 {
    (addr / PAGE % UNIT_PAGES) as u32
}
