//! What becomes of regions and page states when the kernel has changed a mapping.

use crate::base::PAGE;
use crate::base::uapi::{self, Errno};
use crate::calls::mmap::MREMAP_FIXED;
use crate::groups::cost::Cost;
use crate::groups::table::Index;
use crate::memory::region::{Attr, Region};
use crate::memory::table::ADDR_END;
use crate::pages::tally::Tally;
use crate::pages::{account, clean, sharing, stock};
use crate::places::swapspace::{folio_at, slot_of};
use crate::protocols::gate::{Exclusive, Held};
use crate::protocols::page::{State, Tag};
use crate::space::Space;
use crate::threads::ctx::ThreadCtx;
use crate::way_out::shrink;
use core::sync::atomic::Ordering::Relaxed;
use ebb_slots::CLUSTER_SLOTS;
use linux_raw_sys::general as g;

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
/// The program's own call; the gate is closed or the call concerns nothing managed.
pub(crate) unsafe fn kernel(nr: u32, a: [u64; 6]) -> Result<u64, Errno> {
    // SAFETY: forwarded contract.
    unsafe { uapi::forward(nr, a) }
}

/// True when some region meets the range.
pub(crate) fn touches(space: &Space, ctx: &ThreadCtx, start: usize, end: usize) -> bool {
    let inside = space.threads.enter(ctx);
    let found = space.regions.first_in(&inside, start, end).is_some();
    drop(inside);
    found
}

/// Takes a range under management. After the kernel mapped it.
/// False when that failed: then it stays the kernel's.
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
    {
        return false;
    }
    // No huge pages: the kernel makes them of ranges with holes too, and in fork's child it may look at a range before
    // that is registered, and fill what is evicted with zeros. Fails where there are no huge pages at all.
    let _ = uapi::madvise(start, end - start, g::MADV_NOHUGEPAGE);
    let managed = space.uffd().register(start, end - start).is_ok();
    if managed {
        space.regions.insert(exclusive, Region { start, end, attr, group });
    }
    managed
}

/// What was mapped in the range is gone.
pub(crate) fn forget(space: &Space, exclusive: &Exclusive<'_>, start: usize, end: usize) {
    drop_content(space, exclusive, start, end);
    space.regions.remove(exclusive, start, end);
    space.threads.requests.trim(start as u64, end as u64);
}

/// Forgets the content of every page in the range. After the kernel dropped it.
pub(crate) fn drop_content(space: &Space, exclusive: &Exclusive<'_>, start: usize, end: usize) {
    let mut freed_slots = 0;
    let mut tally = Tally::new(space, exclusive);
    space.table.for_each_content(start, end, |addr, word| {
        let state = word.load();
        match state.tag() {
            Tag::None | Tag::Busy => return,
            Tag::Present => {
                if state.is_clean() {
                    clean::forget_clean(space, exclusive, addr, state);
                }
                sharing::break_if_shared(space, addr, state);
                account::uncount_present(space, addr, 1);
                space.budget.uncharge(1);
            }
            Tag::Staged => space.places.staging.put_frame(state.payload() as u32),
            Tag::Swapped => {
                let (slot, folio) = (slot_of(state), folio_at(addr));
                if let Ok(was) = space.swap.claim(slot, folio) {
                    space.swap.release(exclusive, &space.budget, space.stats, slot, folio, was);
                    freed_slots += 1;
                }
            }
        }
        word.set_exclusive(exclusive, State::NONE);
        account::uncount_content(space, addr, 1);
        tally.add(addr, Cost::of(state).taken());
    });
    drop(tally);
    if freed_slots >= CLUSTER_SLOTS {
        shrink::release_unused_soon(space, exclusive);
    }
}

/// The kernel has dropped some of the range's present pages, it does not say which: those are pages of zeros now.
pub(crate) fn map_missing(space: &Space, exclusive: &Exclusive<'_>, start: usize, end: usize) {
    let mut tally = Tally::new(space, exclusive);
    space.table.for_each_content(start, end, |addr, word| {
        let state = word.load();
        // Fails where there is a page, even one in the kernel's own swap.
        if state.tag() == Tag::Present
            && space.uffd().copy(addr, space.kernel.zeros(), PAGE).is_ok()
            && state.is_protected()
        {
            if state.is_clean() {
                clean::forget_clean(space, exclusive, addr, state);
                tally.add(addr, Cost::SWAP.taken());
            }
            sharing::break_if_shared(space, addr, state);
            word.set_exclusive(exclusive, State::PRESENT);
        }
    });
}

/// A mapping became longer or shorter in its place.
pub(crate) fn resized(
    space: &Space,
    exclusive: &Exclusive<'_>,
    start: usize,
    old_len: usize,
    new_len: usize,
    region: Region,
) {
    if new_len < old_len {
        forget(space, exclusive, start + new_len, start + old_len);
    } else if new_len > old_len {
        manage(space, exclusive, start + old_len, start + new_len, region.attr, region.group);
    }
}

/// An mremap to a fixed place failed: the kernel may have unmapped what was there before it found out, and what was to be cut
/// off.
pub(crate) fn forget_unmapped(space: &Space, exclusive: &Exclusive<'_>, a: [u64; 6]) {
    if a[3] & MREMAP_FIXED == 0 {
        return;
    }
    let (old, old_len, new_len) = (a[0] as usize, page_up(a[1] as usize), page_up(a[2] as usize));
    forget_holes(space, exclusive, a[4] as usize, new_len);
    forget_holes(space, exclusive, old.saturating_add(new_len), old_len.saturating_sub(new_len));
}

/// A call that was to replace what is mapped in a range failed: the kernel may have unmapped some of that first.
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

/// Gives a range attributes that no managed mapping has; false when that is not possible.
pub(crate) fn mark(space: &Space, held: &Held, start: usize, len: usize) -> bool {
    let taken = |r: &Region| r.attr.is_dontfork() && r.attr.is_wipeonfork() && r.attr.is_dontdump();
    !space.regions.all(held).iter().any(taken)
        && uapi::madvise(start, len, g::MADV_DONTFORK).is_ok()
        && uapi::madvise(start, len, g::MADV_WIPEONFORK).is_ok()
        && uapi::madvise(start, len, g::MADV_DONTDUMP).is_ok()
}

/// Gives a range the attributes back that the program gave it.
pub(crate) fn unmark(start: usize, len: usize, attr: Attr) {
    if !attr.is_dontfork() {
        let _ = uapi::madvise(start, len, g::MADV_DOFORK);
    }
    if !attr.is_wipeonfork() {
        let _ = uapi::madvise(start, len, g::MADV_KEEPONFORK);
    }
    if !attr.is_dontdump() {
        let _ = uapi::madvise(start, len, g::MADV_DODUMP);
    }
}

/// Registers what lies next to a range that mremap moved there. The kernel may have joined the mappings, and
/// takes the registration from the joined one as a whole.
pub(crate) fn register_around(space: &Space, held: &Held, start: usize, end: usize) -> bool {
    [start.checked_sub(1), Some(start), Some(end)]
        .into_iter()
        .flatten()
        .filter_map(|at| space.regions.find(held, at))
        .all(|r| space.uffd().register(r.start, r.end - r.start).is_ok())
}

/// Moves the states of `len` bytes of pages from `old` to `new`, which belongs to the same group.
pub(crate) fn move_states(space: &Space, exclusive: &Exclusive<'_>, old: usize, new: usize, len: usize) {
    space.table.for_each_content(old, old + len, |addr, word| {
        let state = word.load();
        if state == State::NONE {
            return;
        }
        let to = new + (addr - old);
        let Some(target) = space.table.word(to) else { return };
        target.set_exclusive(exclusive, state);
        word.set_exclusive(exclusive, State::NONE);
        account::uncount_content(space, addr, 1);
        account::count_content(space, to, 1);
        if stock::may_be_lent(space, addr)
            && let Some(unit) = space.table.unit(to)
        {
            unit.lent.store(1, Relaxed);
        }
        match state.tag() {
            Tag::Present => {
                account::uncount_present(space, addr, 1);
                account::count_present(space, to, 1);
            }
            Tag::Staged => space.places.staging.owner(state.payload() as u32).store(to as u64, Relaxed),
            _ => {}
        }
    });
}

/// The kernel has changed attributes of a range.
pub(crate) fn change_attributes(
    space: &Space,
    exclusive: &Exclusive<'_>,
    start: usize,
    end: usize,
    f: impl Fn(Attr) -> Attr,
) {
    if !space.regions.change(exclusive, start, end, f) {
        // Pages would be read that may not be, or be there in a child that is not to have them.
        space.fatal(b"more mappings than there is room for; lower vm.max_map_count below 2000000 or run without Ebb");
    }
}
