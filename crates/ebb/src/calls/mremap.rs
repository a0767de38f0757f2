//! mremap(2): mappings that grow, shrink and move.
//!
//! Most calls run beside other threads, as [`beside`] describes. What shrinks gives its end up, like a munmap. What grows in place
//! adds memory where nothing was. What moves is hidden in both places until it is whole in the new one.
//!
//! The gate is closed for MREMAP_DONTUNMAP, for ranges of several regions, and where Ebb manages a part of the new place only.

use crate::base::PAGE;
use crate::base::events::{self, Kind};
use crate::base::runs::Runs;
use crate::base::uapi::{self, Errno};
use crate::calls::beside::{self, New};
use crate::calls::{mapping, requests};
use crate::memory::list::List;
use crate::memory::region::{Attr, Region};
use crate::memory::table::{ADDR_END, BESIDE_BYTES};
use crate::pages::{account, books, clean, folio, stock};
use crate::protocols::gate::{Exclusive, Held, Inside};
use crate::protocols::page::Tag;
use crate::protocols::primitive::yield_now;
use crate::space::Space;
use crate::threads::ctx::ThreadCtx;
use core::ops::Range;
use core::sync::atomic::Ordering::{Acquire, Relaxed};
use linux_raw_sys::general as g;

const MAYMOVE: u64 = 1;
const FIXED: u64 = 2;
const DONTUNMAP: u64 = 4;

/// What the program asks for.
#[derive(Clone, Copy)]
struct Call {
    args: [u64; 6],
    old: usize,
    old_len: usize,
    new_len: usize,
}

impl Call {
    fn new(args: [u64; 6]) -> Self {
        let [old_len, new_len] = [args[1], args[2]].map(|len| mapping::page_up(len as usize));
        Self { args, old: args[0] as usize, old_len, new_len }
    }

    fn has(&self, flag: u64) -> bool {
        self.args[3] & flag != 0
    }

    /// The old mapping.
    fn source(&self) -> Range<usize> {
        self.old..self.old.saturating_add(self.old_len)
    }

    /// The place that the program names for the new mapping.
    fn target(&self) -> Option<Range<usize>> {
        let start = self.args[4] as usize;
        self.has(FIXED).then(|| start..start.saturating_add(self.new_len))
    }

    /// Asks the kernel to keep the mapping where it is.
    ///
    /// # Safety
    /// As for [`mapping::kernel`].
    unsafe fn in_place(&self) -> Result<u64, Errno> {
        let mut args = self.args;
        args[3] &= !MAYMOVE;
        // SAFETY: forwarded contract.
        unsafe { mapping::kernel(g::__NR_mremap, args) }
    }

    /// # Safety
    /// As for [`mapping::kernel`].
    unsafe fn perform(&self) -> Result<u64, Errno> {
        // SAFETY: forwarded contract.
        unsafe { mapping::kernel(g::__NR_mremap, self.args) }
    }
}

impl Space {
    /// mremap(2). A moved range loses its registration in the kernel, and is registered again before anybody can look.
    pub fn mremap(&self, ctx: &ThreadCtx, a: [u64; 6]) -> i64 {
        let call = Call::new(a);
        let source = call.old..call.old.saturating_add(call.old_len.max(PAGE));
        let replaces = call.target().is_some_and(|target| mapping::touches(self, ctx, target.start, target.end));
        if !mapping::touches(self, ctx, source.start, source.end) && !replaces {
            // SAFETY: the program's call on memory that is not managed.
            let result = unsafe { call.perform() };
            if let Ok(at) = result
                && mapping::touches(self, ctx, at as usize, (at as usize).saturating_add(call.new_len))
            {
                // As for a new mapping: whatever Ebb knew of this place belongs to a mapping that is gone.
                self.exclusive(|exclusive| mapping::forget(self, exclusive, at as usize, at as usize + call.new_len));
            }
            return mapping::raw(result);
        }
        if let Some(result) = remap_beside(self, ctx, &call) {
            return result;
        }
        self.exclusive(|exclusive| remap_alone(self, exclusive, &call))
    }
}

/// Performs the call beside other threads. None if it needs the gate closed: nothing was done then.
fn remap_beside(space: &Space, ctx: &ThreadCtx, call: &Call) -> Option<i64> {
    let Range { start, end } = call.source();
    if !start.is_multiple_of(PAGE) || start >= end || end > ADDR_END || call.new_len == 0 {
        return None;
    }
    if call.has(!(MAYMOVE | FIXED)) {
        return None;
    }
    if !call.has(FIXED) {
        if call.new_len < call.old_len {
            let cut_off = (start + call.new_len, end);
            // SAFETY: the program's call, which takes the end of the mapping away and moves nothing.
            let result = unsafe { beside::replace(space, ctx, cut_off, None, || call.perform()) };
            return result.map(mapping::raw);
        }
        match grow(space, ctx, call)? {
            Err(Errno::NOMEM) if call.has(MAYMOVE) => {}
            result => return Some(mapping::raw(result)),
        }
    }
    move_beside(space, ctx, call)
}

/// The region that has all of the old mapping, if no other call is changing it.
fn source_region(space: &Space, held: &Held, call: &Call) -> Option<Region> {
    let Range { start, end } = call.source();
    space.regions.find(held, start).filter(|region| region.has(start, end) && !region.attr.is_changing())
}

/// Makes the mapping larger where it is, or leaves it as it is. None if that needs the gate closed.
///
/// No mark keeps others from the old mapping: a call that takes something from it waits until this thread has left the gate.
fn grow(space: &Space, ctx: &ThreadCtx, call: &Call) -> Option<Result<u64, Errno>> {
    let mut inside = space.threads.enter(ctx);
    let region = source_region(space, &inside, call).filter(|_| space.regions.is_published(&inside))?;
    // SAFETY: the program's call, which adds memory.
    let result = unsafe { call.in_place() };
    let (start, end) = (call.source().end, call.old.saturating_add(call.new_len));
    let group = |held: &Held| space.regions.find(held, call.old).map(|region| region.group);
    let added = New { attr: region.attr, group: &group };
    let is_managed = result.is_err() || start == end || beside::manage(space, &mut inside, start, end, added);
    drop(inside);
    if !is_managed {
        beside::manage_alone(space, start, end, added);
    }
    books::note_books_used(space, ctx);
    Some(result)
}

/// Performs a call that moves the mapping, beside other threads. None if it needs the gate closed.
fn move_beside(space: &Space, ctx: &ThreadCtx, call: &Call) -> Option<i64> {
    let source = call.source();
    let mut inside = space.threads.enter(ctx);
    let Region { attr, group, .. } = source_region(space, &inside, call)?;
    let target = call.target();
    if let Some(Range { start, end }) = target {
        let overlaps = start < source.end && source.start < end;
        if !start.is_multiple_of(PAGE) || end > ADDR_END || overlaps || !space.table.cover_beside(&inside, start, end) {
            return None;
        }
    }
    let place = |at: &Range<usize>| Region { start: at.start, end: at.end, attr: attr.hidden(), group };
    let seen = Region { start: source.start, end: source.end, attr, group };
    let unpublished = space.regions.unpublished();
    let mut was_hole = false;
    let hide = |regions: &mut List| {
        if !regions.is_still(seen, Some(seen)) {
            return false;
        }
        was_hole = target.as_ref().is_some_and(|at| regions.first_in(at.start, at.end).is_none());
        regions.begin_change(source.start, source.end, Attr::hidden)
            && target.as_ref().is_none_or(|at| match was_hole {
                true => {
                    regions.insert(place(at));
                    true
                }
                false => regions.begin_change(at.start, at.end, Attr::hidden),
            })
    };
    if !space.regions.begin_hiding() || !space.threads.change_regions(&space.regions, &mut inside, true, hide) {
        space.regions.end_hiding();
        return None;
    }
    space.threads.wait_for_earlier(&mut inside);
    let is_as_seen = space.regions.unpublished() == unpublished && space.regions.is_published(&inside);
    let result = if is_as_seen {
        // Moved pages lose their write protection.
        clean::open_range(space, &inside, source.start, source.end);
        move_hidden(space, &mut inside, call, attr)
    } else {
        None
    };
    let moved = match result {
        Some(Ok(new)) => {
            let new = new as usize;
            let gained = if new == call.old { source.end..new + call.new_len } else { new..new + call.new_len };
            take_place(space, &mut inside, &gained, target.is_some());
            beside::finish(space, &mut inside, |regions| {
                regions.remove(gained.start, gained.end);
                regions.insert(place(&gained));
            });
            if new != call.old {
                move_content(space, &inside, call, new);
                beside::drop_hidden(space, &inside, source.start, source.end);
                space.threads.requests.trim(source.start as u64, source.end as u64);
            }
            Some((new, gained))
        }
        _ => None,
    };
    match &moved {
        Some((new, gained)) => beside::finish(space, &mut inside, |regions| {
            match *new == call.old {
                true => regions.end_change(source.start, source.end, |attr| attr),
                false => regions.end_with_removal(source.start, source.end),
            }
            regions.end_change(gained.start, gained.end, |attr| attr);
        }),
        None => {
            // Before a call with a fixed place fails, the kernel may have unmapped what was there, and the end to be cut off.
            let cut_off = source.start + call.new_len.min(call.old_len)..source.end;
            let gone =
                [target.clone(), Some(cut_off)].map(|at| at.filter(|at| !at.is_empty() && uapi::is_hole(at.start)));
            for at in gone.iter().flatten() {
                beside::drop_hidden(space, &inside, at.start, at.end);
                space.threads.requests.trim(at.start as u64, at.end as u64);
            }
            beside::finish(space, &mut inside, |regions| {
                for at in gone.iter().flatten() {
                    regions.remove(at.start, at.end);
                }
                regions.end_change(source.start, source.end, |attr| attr);
                if let Some(at) = &target {
                    match was_hole {
                        true => regions.end_with_removal(at.start, at.end),
                        false => regions.end_change(at.start, at.end, |attr| attr),
                    }
                }
            });
        }
    }
    space.regions.end_hiding();
    drop(inside);
    books::note_books_used(space, ctx);
    result.map(mapping::raw)
}

/// Has the kernel move the hidden mapping, and registers it in its new place. None if the mapping cannot be marked, see
/// [`move_alone`]: nothing was done then.
fn move_hidden(space: &Space, inside: &mut Inside<'_>, call: &Call, attr: Attr) -> Option<Result<u64, Errno>> {
    // One at a time: two mappings with the same mark could be joined.
    let _one = space.threads.lock(inside, &space.kernel.moving_mapping);
    if !mark(space, inside, call.old, call.old_len) {
        unmark(call.old, call.old_len, attr);
        return None;
    }
    // SAFETY: the program's call. Both places are hidden from others, or nobody knows the new one.
    let result = unsafe { call.perform() };
    let Ok(new) = result else {
        unmark(call.old, call.old_len, attr);
        return Some(result);
    };
    let new = new as usize;
    if !mapping::register(space, new, new + call.new_len) {
        fail(space);
    }
    unmark(new, call.new_len, attr);
    Some(result)
}

/// Makes the hidden or unknown range `gained` the caller's: whatever Ebb knows of it belongs to a mapping that is gone.
fn take_place(space: &Space, inside: &mut Inside<'_>, gained: &Range<usize>, is_hidden: bool) {
    let Range { start, end } = *gained;
    // Others may still be ending calls that took a mapping away from here.
    while !is_hidden && let Some(known) = space.regions.first_in_any(inside, start, end) {
        let mut is_taken = false;
        if !known.attr.is_changing() {
            is_taken = space.threads.finish_change(&space.regions, inside, |regions| regions.hide_parts(start, end));
        }
        if is_taken {
            space.threads.wait_for_earlier(inside);
            break;
        }
        space.threads.renew(inside);
        yield_now();
    }
    let mut pieces = (start..end).step_by(BESIDE_BYTES);
    if !pieces.all(|at| space.table.cover_beside(inside, at, end.min(at + BESIDE_BYTES))) {
        fail(space);
    }
    beside::drop_hidden(space, inside, start, end);
    space.threads.requests.trim(start as u64, end as u64);
}

/// Moves content and requests of the hidden mapping to `new`, where it is hidden, too.
fn move_content(space: &Space, held: &Held, call: &Call, new: usize) {
    let kept = call.old_len.min(call.new_len);
    if call.has(FIXED) {
        drop_strays(space, call.old, new, kept);
    }
    if call.new_len > call.old_len {
        // The kernel fills what mremap adds if the mapping is locked, past the budget and the books. Instead, the pages come in
        // when they are touched, as they do where a locked mapping grows in place.
        mapping::empty(new + call.old_len, new + call.new_len);
    }
    requests::keep_requested(space, held, call.old, call.old + call.old_len);
    move_states(space, call.old, new, kept);
}

/// Drops the pages of the mapping now at `new` that other threads had the kernel put there before it was registered. They knew the
/// place, because the program names it, and what they did counts as done to the mapping that was there before.
fn drop_strays(space: &Space, old: usize, new: usize, len: usize) {
    let mut strays = Runs::new(|run: Range<usize>| mapping::empty(run.start, run.end));
    let mut at = old;
    while at < old + len {
        let (unit, next) = space.table.used_unit(at);
        let next = next.min(old + len);
        if unit.is_none_or(|unit| unit.content.load(Acquire) == 0) {
            strays.add_all(new + (at - old)..new + (next - old));
            at = next;
        }
        while at < next {
            // A thread that stores a staged page may have put it back just before the move.
            if space.table.word(at).is_none_or(|word| word.settled().tag() != Tag::Present) {
                strays.add(new + (at - old));
            }
            at += PAGE;
        }
    }
}

/// No way back: evicted pages would silently read as zero at their new place.
fn fail(space: &Space) -> ! {
    space.fatal(b"no memory to manage a range that mremap moved; raise RLIMIT_AS or vm.max_map_count")
}

/// Performs the call with the gate closed.
fn remap_alone(space: &Space, exclusive: &Exclusive<'_>, call: &Call) -> i64 {
    let &Call { old, old_len, new_len, .. } = call;
    if call.source().end > ADDR_END {
        // No mapping is so long.
        // SAFETY: the program's call, under the exclusive gate.
        let result = unsafe { call.perform() };
        forget_unmapped(space, exclusive, call);
        return mapping::raw(result);
    }
    let moves = call.has(FIXED | DONTUNMAP);
    let kept = old_len.min(new_len);
    let region = space.regions.find(exclusive, old);
    let covered = region.map_or(old, |r| r.end);
    if (moves || new_len > old_len)
        && space.regions.first_in(exclusive, covered.min(old + kept), old + kept).is_some_and(|r| Some(r) != region)
    {
        // Several regions are several mappings. Only Linux 6.17 and later moves these together, and perhaps only some of them.
        return -(linux_raw_sys::errno::EFAULT as i64);
    }
    let Some(region) = region else {
        // An unregistered mapping joins no registered one.
        // SAFETY: the program's call, under the exclusive gate.
        let result = unsafe { call.perform() };
        if let Ok(new) = result {
            // Whatever was at the new place, or beyond the new end, is gone.
            let new = new as usize;
            let gone = if new == old { old + kept..old + old_len } else { new..new + new_len };
            mapping::forget(space, exclusive, gone.start, gone.end);
        } else {
            forget_unmapped(space, exclusive, call);
        }
        return mapping::raw(result);
    };
    // In place, if possible: then nothing moves, and nothing is joined.
    if !moves {
        // SAFETY: as above.
        let result = unsafe { call.in_place() };
        match result {
            Ok(_) => resized(space, exclusive, call, region),
            Err(Errno::NOMEM) if call.has(MAYMOVE) => return move_alone(space, exclusive, call, region),
            Err(_) => {}
        }
        return mapping::raw(result);
    }
    move_alone(space, exclusive, call, region)
}

/// Performs a call that moves the mapping, with the gate closed.
///
/// Other threads keep running. The kernel could join the moved mapping with a neighbour at its new place, and take the
/// registration from both. Until both were registered again, an evicted page of the neighbour would read as zero, and a
/// write to a clean page would go unnoticed. So the mapping is marked before it moves, with attributes that no other
/// mapping has. The kernel then joins it with none.
fn move_alone(space: &Space, exclusive: &Exclusive<'_>, call: &Call, region: Region) -> i64 {
    let Region { attr, group, .. } = region;
    let &Call { old, old_len, new_len, .. } = call;
    // Moved pages lose their write protection.
    clean::open_range(space, exclusive, old, old + old_len);
    let marked = mark(space, exclusive, old, old_len);
    if !marked {
        clean::open_all(space, exclusive);
    }
    // SAFETY: the program's call, under the exclusive gate.
    let result = unsafe { call.perform() };
    let Ok(new) = result else {
        unmark(old, old_len, attr);
        forget_unmapped(space, exclusive, call);
        return mapping::raw(result);
    };
    let new = new as usize;
    if new == old {
        unmark(old, new_len, attr);
        resized(space, exclusive, call, region);
        return mapping::raw(result);
    }
    mapping::forget(space, exclusive, new, new + new_len);
    if !mapping::manage(space, exclusive, new, new + new_len, attr, group)
        || !register_around(space, exclusive, new, new + new_len)
    {
        fail(space);
    }
    unmark(new, new_len, attr);
    move_content(space, exclusive, call, new);
    mapping::drop_content(space, exclusive, old, old + old_len);
    space.threads.requests.trim(old as u64, (old + old_len) as u64);
    if call.has(DONTUNMAP) {
        unmark(old, old_len, attr);
        mapping::manage(space, exclusive, old, old + old_len, attr, group);
    } else {
        space.regions.remove(exclusive, old, old + old_len);
    }
    mapping::raw(result)
}

/// Follows a mapping that grew or shrank in place.
fn resized(space: &Space, exclusive: &Exclusive<'_>, call: &Call, region: Region) {
    let &Call { old, old_len, new_len, .. } = call;
    if new_len < old_len {
        mapping::forget(space, exclusive, old + new_len, old + old_len);
    } else if new_len > old_len {
        mapping::manage(space, exclusive, old + old_len, old + new_len, region.attr, region.group);
    }
}

/// Forgets what a call with a fixed place has unmapped before it failed. That may be what was mapped there, and the part of the old
/// mapping that was to be cut off.
fn forget_unmapped(space: &Space, exclusive: &Exclusive<'_>, call: &Call) {
    if let Some(target) = call.target() {
        mapping::forget_holes(space, exclusive, target.start, target.len());
        let &Call { old, old_len, new_len, .. } = call;
        mapping::forget_holes(space, exclusive, old.saturating_add(new_len), old_len.saturating_sub(new_len));
    }
}

/// Gives a range attributes that no managed mapping has. False when that is not possible.
fn mark(space: &Space, held: &Held, start: usize, len: usize) -> bool {
    let taken = |r: Region| r.attr.is_dontfork() && r.attr.is_wipeonfork() && r.attr.is_dontdump();
    !space.regions.all(held).any(taken)
        && uapi::madvise(start, len, g::MADV_DONTFORK).is_ok()
        && uapi::madvise(start, len, g::MADV_WIPEONFORK).is_ok()
        && uapi::madvise(start, len, g::MADV_DONTDUMP).is_ok()
}

/// Undoes [`mark`]: gives a range back the attributes that the program gave it.
fn unmark(start: usize, len: usize, attr: Attr) {
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

/// Registers a range that mremap has moved, and its neighbours. The kernel may have joined the mappings; it then takes
/// the registration from the joined mapping as a whole. False when a registration fails.
fn register_around(space: &Space, held: &Held, start: usize, end: usize) -> bool {
    [start.checked_sub(1), Some(start), Some(end)]
        .into_iter()
        .flatten()
        .filter_map(|at| space.regions.find(held, at))
        .all(|r| space.uffd().register(r.start, r.end - r.start).is_ok())
}

/// Moves the page states of `len` bytes from `old` to `new`, which belongs to the same group and has no content. The gate is closed, or
/// both places are hidden.
fn move_states(space: &Space, old: usize, new: usize, len: usize) {
    folio::follow(space, old, new, len);
    space.table.for_each_content(old, old + len, |addr, word| {
        let Some(state) = word.claim_content() else { return };
        let to = new + (addr - old);
        let Some(target) = space.table.word(to) else { fail(space) };
        events::record(Kind::Moved, addr, 1, (to / PAGE) as u64);
        account::uncount_content(space, addr, 1);
        account::count_content(space, to, 1);
        if stock::may_be_lent(space, addr)
            && let Some(unit) = space.table.unit(to)
        {
            unit.lent.store(1, Relaxed);
        }
        if state.tag() == Tag::Present {
            account::uncount_present(space, addr, 1);
            account::count_present(space, to, 1);
        }
        word.move_to(target, state, || {
            if state.tag() == Tag::Staged {
                space.places.staging.owner(state.payload() as u32).store(to as u64, Relaxed);
            }
        });
    });
}
