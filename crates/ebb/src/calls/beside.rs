//! Address-space calls beside other threads: they keep nobody out of the engine.
//!
//! A call that takes something away, or replaces it, goes in four steps:
//!
//! 1. It marks its range in a new version of the region table. *Hidden*, nobody else finds the range any more: its mapping is
//!    about to go. *Guarded*, no page of it goes out: its protection is about to change.
//! 2. It waits until every other thread has left the gate that was inside then, and may have read the version before. Others
//!    enter and leave meanwhile, because the gate stays open.
//! 3. It makes the call of the kernel, and drops the content that the kernel has dropped. The range is the caller's alone now,
//!    except for threads that store a staged page of it; these hold the page's claim.
//! 4. It publishes the range as it is from now on.
//!
//! A call that only adds something makes the call of the kernel, and publishes. If its range borders on a region like the new one,
//! it needs no new version: a bound of the current one moves.
//!
//! The caller stays inside from the first step to the last. So whoever closes the gate, to fork for instance, never meets a
//! range that is half changed.

use crate::base::uapi::Errno;
use crate::calls::drops::Drops;
use crate::calls::{discard, mapping};
use crate::groups::table::Index;
use crate::memory::list::List;
use crate::memory::region::{Attr, Region};
use crate::memory::table::ADDR_END;
use crate::pages::{books, folio};
use crate::protocols::gate::{Held, Inside};
use crate::space::Space;
use crate::threads::ctx::ThreadCtx;
use crate::way_out::shrink;
use ebb_slots::CLUSTER_SLOTS;

/// What becomes of a range that is to be managed.
#[derive(Clone, Copy)]
pub(crate) struct New<'a> {
    pub attr: Attr,
    /// Finds the group that pays for it. None if there is no such group any more.
    pub group: &'a dyn Fn(&Held) -> Option<Index>,
}

/// Performs a call that unmaps `[start, end)`, or maps something there in place of what there was. None if the call needs the gate
/// closed: nothing was done then.
///
/// # Safety
/// `call` is the program's own, and touches nothing that is managed outside the range.
pub(crate) unsafe fn replace(
    space: &Space,
    ctx: &ThreadCtx,
    (start, end): (usize, usize),
    new: Option<New<'_>>,
    call: impl FnOnce() -> Result<u64, Errno>,
) -> Option<Result<u64, Errno>> {
    let mut inside = space.threads.enter(ctx);
    // SAFETY: forwarded contract.
    let result = unsafe { replace_inside(space, &mut inside, (start, end), new, call) };
    drop(inside);
    books::note_books_used(space, ctx);
    result
}

/// As [`replace`], for a caller that is inside.
///
/// # Safety
/// As for [`replace`].
pub(crate) unsafe fn replace_inside(
    space: &Space,
    inside: &mut Inside<'_>,
    (start, end): (usize, usize),
    new: Option<New<'_>>,
    call: impl FnOnce() -> Result<u64, Errno>,
) -> Option<Result<u64, Errno>> {
    let new = match new {
        Some(new) => Some(Region { start, end, attr: new.attr, group: (new.group)(inside)? }),
        None => None,
    };
    if new.is_some() && !space.table.cover_beside(inside, start, end) {
        return None;
    }
    let hide = |regions: &mut List| regions.begin_change(start, end, Attr::hidden);
    if !space.regions.begin_hiding() || !space.threads.change_regions(&space.regions, inside, true, hide) {
        space.regions.end_hiding();
        return None;
    }
    space.threads.wait_for_earlier(inside);
    let result = call();
    if result.is_ok() {
        drop_hidden(space, inside, start, end);
        space.threads.requests.trim(start as u64, end as u64);
        // A failure leaves the new mapping to the kernel.
        let region = new.filter(|_| mapping::register(space, start, end));
        if region.is_some() {
            // What other threads have done to it by now, the kernel has served, unseen. That counts as done to the old
            // mapping: a page that Ebb does not know of would be lost to the next sweep.
            mapping::empty(start, end);
        }
        finish(space, inside, |regions| {
            regions.end_with_removal(start, end);
            if let Some(region) = region {
                regions.insert(region);
            }
        });
    } else {
        finish(space, inside, |regions| regions.end_change(start, end, |attr| attr));
    }
    space.regions.end_hiding();
    Some(result)
}

/// Performs a call that changes protection or other attributes of `[start, end)`. `after` says what the attributes are after the kernel's answer.
/// None if the call needs the gate closed, as it does where attributes are not as they `may` be.
///
/// # Safety
/// As for [`replace`].
pub(crate) unsafe fn protect(
    space: &Space,
    ctx: &ThreadCtx,
    (start, end): (usize, usize),
    may: impl Fn(Attr) -> bool,
    call: impl Fn() -> Result<u64, Errno>,
    after: impl Fn(Result<u64, Errno>, Attr) -> Attr,
) -> Option<Result<u64, Errno>> {
    let mut inside = space.threads.enter(ctx);
    if let Some(seen) = space.regions.find(&inside, start).filter(|region| region.has(start, end)) {
        let allowed = Region { start, end, attr: after(Ok(0), seen.attr), group: seen.group };
        let gains = seen.attr != allowed.attr && !seen.attr.is_changing() && seen.attr.only_gains(allowed.attr);
        if gains && discard::first_content(space, start, end).is_none() {
            return Some(allow(space, ctx, inside, seen, allowed, call, after));
        }
    }
    let guard = |regions: &mut List| regions.all_in(start, end, may) && regions.begin_change(start, end, Attr::guarded);
    if !space.threads.change_regions(&space.regions, &mut inside, true, guard) {
        return None;
    }
    space.threads.wait_for_earlier(&mut inside);
    let result = call();
    finish(space, &mut inside, |regions| {
        regions.end_change(start, end, |attr| after(result, attr));
    });
    drop(inside);
    books::note_books_used(space, ctx);
    Some(result)
}

/// Performs a call that allows more than before in a range of one region that has no content.
///
/// It marks nothing and waits for nobody: no thread depends on what it read of such a range. Allocators grow their heaps like
/// this, in reserved address space and page by page. An access while the call is under way may be refused or not, as without Ebb.
fn allow(
    space: &Space,
    ctx: &ThreadCtx,
    mut inside: Inside<'_>,
    seen: Region,
    allowed: Region,
    call: impl Fn() -> Result<u64, Errno>,
    after: impl Fn(Result<u64, Errno>, Attr) -> Attr,
) -> Result<u64, Errno> {
    let Region { start, end, attr, .. } = allowed;
    let result = call();
    let is_published = result.is_ok()
        && (space.regions.widen_beside(&inside, allowed, Some(seen))
            // Without a wait, in which others might change the range and change it back.
            || space.threads.change_regions(&space.regions, &mut inside, false, |regions| {
                regions.is_still(allowed, Some(seen)) && regions.change(start, end, |_| attr)
            }));
    // Who hides the range, or a part of it, to move it may rely on the attributes from before.
    let ticket = (result.is_ok() && !is_published).then(|| space.regions.note_unpublished());
    drop(inside);
    let result = match is_published {
        true => result,
        // The kernel has refused, or another call has changed some of the range. Nobody knows which of the two the kernel made
        // first, so this one is made again.
        false => space.exclusive_to_publish(|exclusive| {
            let result = if ticket.is_some() { call() } else { result };
            mapping::change_attributes(space, exclusive, start, end, |attr| after(result, attr));
            if let Some(ticket) = ticket {
                space.regions.note_published(exclusive, ticket);
            }
            result
        }),
    };
    books::note_books_used(space, ctx);
    result
}

/// Manages a range that the kernel has just mapped where nothing was. False if that needs the gate closed.
pub(crate) fn manage(space: &Space, inside: &mut Inside<'_>, start: usize, end: usize, new: New<'_>) -> bool {
    // What is known of the place belongs to a mapping that is gone, or about to go.
    let is_known =
        space.regions.first_in_any(inside, start, end).is_some() || discard::first_content(space, start, end).is_some();
    let Some(group) = (new.group)(inside) else { return false };
    if is_known
        || start >= end
        || end > ADDR_END
        || !space.table.cover_beside(inside, start, end)
        || !mapping::register(space, start, end)
    {
        return false;
    }
    let region = Region { start, end, attr: new.attr, group };
    space.regions.widen_beside(inside, region, None)
        || space.threads.change_regions(&space.regions, inside, true, |regions| {
            let is_free = regions.is_still(region, None);
            if is_free {
                regions.insert(region);
            }
            is_free
        })
}

pub(crate) fn finish(space: &Space, inside: &mut Inside<'_>, edit: impl FnOnce(&mut List)) {
    space.threads.finish_change(&space.regions, inside, |regions| {
        edit(regions);
        true
    });
}

/// Manages what the kernel has mapped, with the gate closed. Whatever Ebb knew of the place belongs to a mapping that is gone. A
/// group that has gone meanwhile leaves the mapping to the kernel.
pub(crate) fn manage_alone(space: &Space, start: usize, end: usize, new: New<'_>) {
    space.exclusive(|exclusive| {
        mapping::forget(space, exclusive, start, end);
        if let Some(group) = (new.group)(exclusive) {
            mapping::manage(space, exclusive, start, end, new.attr, group);
        }
    });
}

/// Forgets the content of a hidden range, after the kernel has dropped it.
pub(crate) fn drop_hidden(space: &Space, held: &Held, start: usize, end: usize) {
    let mut drops = Drops::new(space, held);
    space.table.for_each_content(start, end, |addr, word| drops.hidden_page(addr, word));
    let freed_slots = drops.end();
    folio::forget(space, held, start, end);
    if freed_slots >= CLUSTER_SLOTS {
        shrink::release_unused_soon(space, held);
    }
}
