//! Brings regions and page states in line after the kernel has changed a mapping.

use crate::base::PAGE;
use crate::base::uapi::{self, Errno};
use crate::calls::drops::Drops;
use crate::groups::cost::Cost;
use crate::groups::table::Index;
use crate::memory::region::{Attr, Region};
use crate::memory::table::ADDR_END;
use crate::pages::tally::Tally;
use crate::pages::{clean, folio, kept, sharing};
use crate::protocols::gate::{Exclusive, Held};
use crate::protocols::page::{State, Tag};
use crate::space::Space;
use crate::threads::ctx::ThreadCtx;
use crate::way_out::shrink;
use ebb_slots::CLUSTER_SLOTS;
use linux_raw_sys::general as g;

pub(crate) const MADV_DONTNEED_LOCKED: u32 = 24;

pub(crate) fn raw(result: Result<u64, Errno>) -> i64 {
    match result {
        Ok(v) => v as i64,
        Err(e) => -(e.0 as i64),
    }
}

pub(crate) fn page_up(n: usize) -> usize {
    n.checked_next_multiple_of(PAGE).unwrap_or(usize::MAX & !(PAGE - 1))
}

/// # Safety
/// The call is the program's own. The gate is closed, or the call concerns nothing managed, or it changes no content.
pub(crate) unsafe fn kernel(nr: u32, a: [u64; 6]) -> Result<u64, Errno> {
    // SAFETY: forwarded contract.
    unsafe { uapi::forward(nr, a) }
}

/// True when a region overlaps the range.
pub(crate) fn touches(space: &Space, ctx: &ThreadCtx, start: usize, end: usize) -> bool {
    let inside = space.threads.enter(ctx);
    let found = space.regions.first_in_any(&inside, start, end).is_some();
    drop(inside);
    found
}

/// Puts a range under management, after the kernel has mapped it. False when that fails: the range then stays the
/// kernel's.
pub(crate) fn manage(
    space: &Space,
    exclusive: &Exclusive<'_>,
    start: usize,
    end: usize,
    attr: Attr,
    group: Index,
) -> bool {
    if end <= start
        || end > ADDR_END
        || !space.regions.has_room(exclusive, 3)
        || space.table.cover(exclusive, start, end).is_err()
        || !register(space, start, end)
    {
        return false;
    }
    space.regions.insert(exclusive, Region { start, end, attr, group });
    true
}

/// Drops the pages that the kernel has put into a mapping that begins empty, locked or not.
pub(crate) fn empty(start: usize, end: usize) {
    let len = end - start;
    if uapi::madvise(start, len, MADV_DONTNEED_LOCKED).is_ok() {
        return;
    }
    // Before Linux 5.18, only unlocked memory can be dropped. So the part is unlocked and locked again, and is a
    // mapping of its own from now on.
    let is_locked = kept::is_locked(start, len);
    let _ = uapi::munlock(start, len);
    let _ = uapi::madvise(start, len, g::MADV_DONTNEED);
    if is_locked {
        let _ = uapi::mlock_on_fault(start, len);
    }
}

/// Registers a range with the kernel. False when the kernel refuses.
pub(crate) fn register(space: &Space, start: usize, end: usize) -> bool {
    // No huge pages: the kernel also makes them from ranges with holes. In fork's child, it might do so before a range
    // is registered, and fill evicted pages with zeros. The call fails where the kernel has no huge pages.
    let _ = uapi::madvise(start, end - start, g::MADV_NOHUGEPAGE);
    space.uffd().register(start, end - start).is_ok()
}

/// Forgets a range whose mapping is gone: its content, its regions and its requests in flight.
pub(crate) fn forget(space: &Space, exclusive: &Exclusive<'_>, start: usize, end: usize) {
    drop_content(space, exclusive, start, end);
    space.regions.remove(exclusive, start, end);
    space.threads.requests.trim(start as u64, end as u64);
}

/// Forgets the content of every page in the range, after the kernel has dropped it.
pub(crate) fn drop_content(space: &Space, exclusive: &Exclusive<'_>, start: usize, end: usize) {
    let mut drops = Drops::new(space, exclusive);
    space.table.for_each_content(start, end, |addr, word| {
        let state = word.load();
        if !matches!(state.tag(), Tag::None | Tag::Busy) {
            drops.page(addr, state);
            word.set_exclusive(exclusive, State::NONE);
        }
    });
    let freed_slots = drops.end();
    folio::forget(space, exclusive, start, end);
    if freed_slots >= CLUSTER_SLOTS {
        shrink::release_unused_soon(space, exclusive);
    }
}

/// Maps pages of zeros where the kernel has dropped some of the range's present pages. It does not say which.
pub(crate) fn map_missing(space: &Space, exclusive: &Exclusive<'_>, start: usize, end: usize) {
    let mut tally = Tally::new(space, exclusive);
    space.table.for_each_content(start, end, |addr, word| {
        let state = word.load();
        let now = map_if_missing(space, exclusive, addr, state, &mut tally);
        if now != state {
            word.set_exclusive(exclusive, now);
        }
    });
}

/// Maps a page of zeros if the kernel has dropped the page at `addr`, last seen in `state`. Returns its state then. The caller
/// has claimed the page or closed the gate, and sets the word.
pub(crate) fn map_if_missing(space: &Space, held: &Held, addr: usize, state: State, tally: &mut Tally<'_>) -> State {
    // The copy fails where there is a page, even one in the kernel's own swap.
    if state.tag() != Tag::Present
        || space.uffd().copy(addr, space.kernel.zeros(), PAGE).is_err()
        || !state.is_protected()
    {
        return state;
    }
    if state.is_clean() {
        clean::forget_clean(space, held, addr, state);
        tally.add(addr, Cost::SWAP.taken());
    }
    sharing::break_if_shared(space, addr, state);
    State::PRESENT
}

/// Forgets what a call has unmapped before it failed, in a range whose mappings it was to replace.
pub(crate) fn forget_holes(space: &Space, exclusive: &Exclusive<'_>, start: usize, len: usize) {
    let (mut at, end) = (start, start.saturating_add(len).min(ADDR_END));
    while let Some(r) = space.regions.first_in(exclusive, at, end) {
        let (first, stop) = (r.start.max(at), r.end.min(end));
        let looked_through = if uapi::may_have_hole(first, stop - first) { first..stop } else { first..first };
        for page in looked_through.step_by(PAGE).filter(|page| uapi::is_hole(*page)) {
            forget(space, exclusive, page, page + PAGE);
        }
        at = stop;
    }
}

/// Changes the attributes of a range by `f`, after the kernel has changed them. Ends the program when there are too
/// many regions.
pub(crate) fn change_attributes(
    space: &Space,
    exclusive: &Exclusive<'_>,
    start: usize,
    end: usize,
    f: impl Fn(Attr) -> Attr,
) {
    if !space.regions.change(exclusive, start, end, f) {
        // Otherwise pages could be read that must not be, or appear in a child that must not have them.
        space.fatal(b"more mappings than Ebb has room for; lower vm.max_map_count below 2000000 or run without Ebb");
    }
}
