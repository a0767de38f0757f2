//! Decides how many pages a fault brings in.
//!
//! Each swapped page is judged by where its content is. In RAM only the walk counts. On a device of any kind it counts, too, how long
//! a read takes there and what read-ahead was good for ([`crate::device::ahead`]). On a disk that turns, a fault also brings in what
//! lies around it there, see [`crate::places::swapspace`]; only what lies together there comes in together.

use crate::base::{PAGE, clock, events};
use crate::device::kind::Kind;
use crate::memory::table::{UNIT_BYTES, UNIT_PAGES, Unit};
use crate::protocols::page::{State, Tag};
use crate::space::Space;
use crate::threads::ctx::{ThreadCtx, WINDOW_MAX};
use crate::way_in::extent;
use core::sync::atomic::Ordering::Relaxed;

/// In [`Unit::ahead`], the number of the device is above that of the pages.
const DEVICE_SHIFT: u32 = 16;

/// A walk may leave out fewer pages than this between two faults.
const READAHEAD_GAP: u32 = 3;

/// How many pages a fault at `page` might bring in; 0 means just this page: no sequential pattern seen.
///
/// Each unit has a window of its own, because a program walks in several places in turn. A fault at the page where the unit's
/// last fault ended, or a little after it, doubles the window. Any other fault halves it, and cuts the window of a long walk
/// to half a piece at once. Two faults in a row on swapped pages are no walk yet: one object may lie on both pages. The idea
/// is the kernel's read-ahead by address (`swap_vma_readahead`).
///
/// `device` is the one that has the page's content. On a disk that turns, it is not its window of neighbouring slots that counts here.
pub(crate) fn window(space: &Space, ctx: &ThreadCtx, page: usize, is_swapped: bool, device: Option<usize>) -> u32 {
    let most = extent::window_max(space) as u32;
    let (window, is_walk) = walks_window(space, ctx, page, is_swapped, most);
    let ahead = device.and_then(|device| space.swap.devices.ahead(device));
    ahead.filter(|ahead| ahead.kind() != Kind::Hdd).map_or(window, |ahead| ahead.bound(window, is_walk, most))
}

/// Of the pages that came ahead of a walk in this unit when there was last a fault, says whether they were of use.
fn note_use(space: &Space, unit: &Unit, is_used: bool) {
    let ahead = unit.ahead.load(Relaxed);
    // Most faults have nothing to say.
    if ahead != 0 && unit.ahead.swap(0, Relaxed) == ahead {
        let (device, pages) = ((ahead >> DEVICE_SHIFT) as usize, ahead & ((1 << DEVICE_SHIFT) - 1));
        space.swap.devices.note_ahead(device, if is_used { pages } else { 0 }, if is_used { 0 } else { pages });
    }
}

/// The window as far as the walk decides, and whether the fault is a step of one.
fn walks_window(space: &Space, ctx: &ThreadCtx, page: usize, is_swapped: bool, most: u32) -> (u32, bool) {
    let Some(unit) = space.table.unit(page).filter(|_| !events::is_filtering()) else { return (0, false) };
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
        note_use(space, unit, true);
        // A walk that leaves out what is not in memory is one with a stride: much of a window would be of no use.
        let is_left_out = |left_out: u32| {
            let word = space.table.word(page - (at - left_out) as usize * PAGE);
            word.is_some_and(|word| matches!(word.load().tag(), Tag::Swapped | Tag::Staged))
        };
        note(!(next..at).any(is_left_out));
        let least = if is_swapped && window == 0 { 1 } else { 2 };
        return (trusted((window * 2).clamp(least, most)), true);
    }
    if at == 0
        && let Some(before) = space.table.unit(page.wrapping_sub(PAGE))
        && before.next.load(Relaxed) as usize == UNIT_PAGES
    {
        // The walk continues from the unit before.
        note_use(space, before, true);
        return (before.window.load(Relaxed).clamp(1, most), true);
    }
    if let Some(front) = walked_from(space, ctx, page) {
        // The walk has been through whole units since without a fault.
        let first = space.table.unit_start(front.saturating_sub(PAGE));
        let units = (first..=page).step_by(UNIT_BYTES).filter_map(|at| space.table.unit(at));
        units.for_each(|unit| note_use(space, unit, true));
        return (most, true);
    }
    note_use(space, unit, false);
    note(false);
    // A window of 1 means that a walk has made its first step. So half of 2 becomes 0, not 1.
    let half = trusted((window / 2).min(WINDOW_MAX as u32 / 2));
    (if half > 1 { half } else { 0 }, false)
}

/// The front from which a walk of the thread got to `page` over pages that were brought in for it, if one did.
pub(crate) fn walked_from(space: &Space, ctx: &ThreadCtx, page: usize) -> Option<usize> {
    let is_in = |at| space.table.word(at).is_some_and(|word| matches!(word.load().tag(), Tag::Present | Tag::Busy));
    ctx.walker.walk_to(page).filter(|front| (*front..page).step_by(PAGE).all(is_in))
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

/// Notes that a fault at `page` brought `n` pages in, and might have brought `window`. The content of the first was on `device`.
pub(crate) fn note_window(space: &Space, page: usize, n: usize, window: u32, device: Option<usize>) {
    if let Some(unit) = space.table.unit(page) {
        match device {
            Some(_) if n > 1 && window > 1 => add_ahead(space, unit, device, n - 1),
            Some(_) => {}
            None => unit.ahead.store(0, Relaxed),
        }
        unit.next.store(page_of(page) + n as u32, Relaxed);
        unit.window.store(window, Relaxed);
        unit.touched.store(clock::stamp(), Relaxed);
    }
}

/// Notes that `n` pages came in beside a walk, from `page` on. The content of the first was on `device`.
pub(crate) fn note_beside(space: &Space, page: usize, n: usize, device: Option<usize>) {
    if let Some(unit) = space.table.unit(page).filter(|_| n > 0) {
        add_ahead(space, unit, device, n);
    }
}

/// Counts `n` more pages that came ahead of a walk in this unit, until it turns out whether they were of use. On a disk that turns,
/// pages are counted one by one.
fn add_ahead(space: &Space, unit: &Unit, device: Option<usize>, n: usize) {
    let is_counted = |device: &usize| space.swap.devices.ahead(*device).is_some_and(|ahead| ahead.kind() != Kind::Hdd);
    let Some(device) = device.filter(is_counted) else { return };
    let ahead = unit.ahead.load(Relaxed);
    let (last, pages) = ((ahead >> DEVICE_SHIFT) as usize, ahead & ((1 << DEVICE_SHIFT) - 1));
    let before = if last == device { pages as usize } else { 0 };
    // What another thread counts at the same time may be lost.
    unit.ahead.store((device << DEVICE_SHIFT | (before + n).min(UNIT_PAGES)) as u32, Relaxed);
}

/// The number of the page within its unit.
fn page_of(addr: usize) -> u32 {
    (addr / PAGE % UNIT_PAGES) as u32
}
