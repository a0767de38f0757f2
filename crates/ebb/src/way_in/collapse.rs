//! Makes one large folio of a unit of small pages: for MADV_COLLAPSE, and in the background for units that proved hot. In the kernel
//! khugepaged does that.
//!
//! All pages of the unit are claimed and write-protected, so nobody changes them. They are copied into the memory of a folio, and that
//! takes their place. Who touches the unit meanwhile waits. Nothing is done to pages that the kernel or a driver uses.

use crate::base::uapi::uffd::UffdError;
use crate::base::uapi::{self, Errno};
use crate::base::{PAGE, events};
use crate::counters::stats::{self, Thp};
use crate::memory::region::Attr;
use crate::memory::table::{UNIT_BYTES, UNIT_PAGES};
use crate::pages::folio::{self, Memory};
use crate::pages::{clean, drivers, in_use, kept};
use crate::protocols::gate::Held;
use crate::protocols::page::{State, Tag};
use crate::protocols::primitive::{Ordering as ModelOrdering, fence};
use crate::space::Space;
use crate::threads::ctx::ThreadCtx;
use crate::way_in::whole::{self, Reclaims, STEPS, Touch};
use crate::way_out::reclaim;
use core::ops::Range;
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::Relaxed;
use linux_raw_sys::general as g;

/// How long to wait before the kernel is asked again for memory that it must have: as much was just given back to it. And how often: others
/// that wait for this thread may be those who could free some.
const AGAIN_NS: u64 = 1_000_000;
const TRIES: u32 = 1000;

/// Makes a folio of the unit at `start`, which a program asks for: brings in first what is not in memory. Outside the gate.
///
/// Fails as the kernel does: EINVAL where there can be none, EAGAIN where something stands in the way now, ENOMEM without room.
pub(crate) fn collapse(space: &Space, ctx: &ThreadCtx, start: usize) -> Result<(), Errno> {
    let touch = Touch { space, ctx, page: start, start, write: true };
    let may_be_one = space.thp() != Thp::Never && is_possible(touch, |attr| !attr.is_huge_refused());
    if !may_be_one || events::is_filtering() {
        return Err(Errno::INVAL);
    }
    // Advice must not bring the process to its end, as touching more than there is room for would.
    let has_room = || space.budget.make_room(UNIT_PAGES);
    let mut steps = (0..STEPS).map_while(|_| reclaim::reclaim_step(space, ctx).then(has_room));
    if !is_all_in(touch) && !has_room() && !steps.any(|is_enough| is_enough) {
        return Err(Errno::NOMEM);
    }
    if !is_all_in(touch) && !space.bring_in(ctx, start, UNIT_BYTES) {
        return Err(Errno::INVAL);
    }
    if is_folio(touch) {
        return Ok(());
    }
    if has_users(space, start) || !folio::states(space, start).all(may_be_replaced) {
        return Err(Errno::AGAIN);
    }
    match whole::with_memory(touch, Reclaims::Alone, |held, memory| replace(touch, held, memory)) {
        Some(UNIT_PAGES) => Ok(()),
        Some(_) => Err(Errno::AGAIN),
        None => Err(Errno::NOMEM),
    }
}

/// Makes a folio of the unit at `start`, which proved hot, if that needs no reclaim. Outside the gate.
pub(crate) fn collapse_hot(space: &Space, ctx: &ThreadCtx, start: usize) {
    let touch = Touch { space, ctx, page: start, start, write: true };
    if is_all_in(touch)
        && !is_folio(touch)
        && !has_users(space, start)
        && folio::states(space, start).all(may_be_replaced)
        && is_possible(touch, |attr| folio::is_wanted(space, attr))
    {
        let _ = whole::with_memory(touch, Reclaims::No, |held, memory| replace(touch, held, memory));
    }
}

/// Whether the unit may be a folio in a region with attributes that `suit`.
fn is_possible(touch: Touch<'_>, suit: impl Fn(Attr) -> bool) -> bool {
    let Touch { space, ctx, start, .. } = touch;
    let inside = space.threads.enter(ctx);
    let region = space.regions.find(&inside, start);
    drop(inside);
    region.is_some_and(|region| {
        folio::may_be_whole(space, &region, start) && suit(region.attr) && folio::fit(space, region.group)
    })
}

fn is_all_in(touch: Touch<'_>) -> bool {
    touch.space.table.unit(touch.start).is_some_and(|unit| unit.present.load(Relaxed) as usize == UNIT_PAGES)
}

fn is_folio(touch: Touch<'_>) -> bool {
    is_all_in(touch) && touch.space.table.unit(touch.start).is_some_and(folio::is_mapped)
}

/// Replaces the small pages of the unit by `memory`, with their content. Gives the memory back if something stands in the way. Returns
/// how many pages of it are in use then.
#[inline(never)]
fn replace(touch: Touch<'_>, held: &Held, memory: Memory<'_>) -> usize {
    let Touch { space, start, .. } = touch;
    let is_possible = space.regions.find(held, start).is_some_and(|region| folio::may_be_whole(space, &region, start));
    let is_quiet = !has_users(space, start) && folio::states(space, start).all(may_be_replaced);
    if !is_possible || !is_quiet || !space.kernel.can_protect() {
        return refuse(space, memory);
    }
    clean::open_unit(space, held, start);
    let mut saved = [0; UNIT_PAGES];
    if !folio::claim_unit(space, start, &mut saved, |_, state| state.is_open() && !state.is_pinned()) {
        return refuse(space, memory);
    }
    let end_claims = || folio::finish(space, start, UNIT_PAGES, |i| State::from_raw(saved[i]));
    // The claims come first, then the look at the pins, see `protocols::pin`.
    fence(ModelOrdering::SeqCst);
    let mut is_used = false;
    in_use::for_each_used(space, start, start + UNIT_BYTES, |_, _| is_used = true);
    let is_still = !is_used && space.uffd().write_protect(start, UNIT_BYTES, true).is_ok();
    if is_still {
        // SAFETY: the pages are mapped and claimed, and nobody writes to them; the memory is this thread's.
        unsafe { core::ptr::copy_nonoverlapping(start as *const u8, memory.addr(space) as *mut u8, UNIT_BYTES) };
    }
    if !is_still || uapi::madvise(start, UNIT_BYTES, g::MADV_DONTNEED).is_err() {
        if is_still {
            // Some of it may be gone.
            copy_missing(space, start, memory.addr(space), UNIT_BYTES);
        }
        // A failure leaves pages protected whose states say they are open. A write will find that out, see `spurious`.
        let _ = space.uffd().write_protect(start, UNIT_BYTES, false);
        end_claims();
        return refuse(space, memory);
    }
    let moved = memory.place_or(space, start, |from, to, len| copy_missing(space, to, from, len));
    // What was in small pages needs no memory of its own any more.
    space.budget.uncharge(moved);
    space.table.unit(start).iter().for_each(|unit| folio::mark(space, unit));
    end_claims();
    if moved == UNIT_PAGES {
        stats::add(&space.stats.thp_collapse_alloc, 1);
    }
    moved
}

fn may_be_replaced(state: State) -> bool {
    state.tag() == Tag::Present && !state.is_pinned() && !state.is_shared()
}

/// Whether the kernel or a driver may have pages of the unit for long, or its memory is locked, and so is not dropped.
fn has_users(space: &Space, start: usize) -> bool {
    drivers::is_move_only(space, start) || space.kernel.has_locked() && kept::is_locked(start, UNIT_BYTES)
}

fn refuse(space: &Space, memory: Memory<'_>) -> usize {
    memory.put_back(space);
    0
}

/// Maps copies of those of these pages that are missing. They are nowhere else, so the process ends if the kernel has no memory for them.
fn copy_missing(space: &Space, start: usize, from: usize, len: usize) {
    let (mut done, mut tries) = (0, 0);
    while done < len {
        let Err((bytes, error)) = space.uffd().copy(start + done, from + done, len - done) else { return };
        done += bytes;
        match error {
            UffdError::Exists => done += PAGE,
            UffdError::NoMemory if tries < TRIES => {
                tries += 1;
                uapi::futex_wait(&AtomicU32::new(0), 0, Some(AGAIN_NS));
            }
            UffdError::NoMemory => {
                space.fatal(b"the kernel has no memory left: a cgroup limit is below --ram; give a smaller --ram")
            }
            _ => space.fatal(
                b"the kernel takes no page back that it has just given up: this is a bug in Ebb; please report it",
            ),
        }
    }
}

/// Calls `collapse` for each unit of the range. Returns how the last one failed, as madvise(MADV_COLLAPSE) does.
pub(crate) fn collapse_range(
    range: Range<usize>,
    mut collapse: impl FnMut(usize) -> Result<(), Errno>,
) -> Result<(), Errno> {
    let units = range.start.next_multiple_of(UNIT_BYTES)..range.end & !(UNIT_BYTES - 1);
    if units.start > units.end {
        return Err(Errno::INVAL);
    }
    let mut result = Ok(());
    for unit in units.step_by(UNIT_BYTES) {
        result = collapse(unit).and(result);
    }
    result
}
