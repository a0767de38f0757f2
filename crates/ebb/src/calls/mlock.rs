//! Locked memory: mlock(2), munlock(2) and their kin.
//!
//! An mlock brings the range in, marks its pages, and locks them in the kernel too, all before anybody may evict one:
//! the kernel moves no page between locked and unlocked memory, and drops no locked page. When a call is refused, or
//! stops at a hole, the kernel is asked what is still locked.
//!
//! A page that comes in later may be locked without a mark: with MLOCK_ONFAULT, after a discard, or where mremap made
//! the mapping larger (see [`Space::mremap`]). The thread that tries to evict it finds out and marks it.

use crate::base::PAGE;
use crate::calls::mapping::{self, raw};
use crate::calls::register;
use crate::counters::bound::Adding;
use crate::memory::table::ADDR_END;
use crate::pages::kept;
use crate::protocols::gate::{Exclusive, Held};
use crate::protocols::page::{State, Tag};
use crate::space::Space;
use crate::threads::ctx::ThreadCtx;
use crate::way_in::pins;
use linux_raw_sys::{errno, general as g};

/// One call locks at most this part of the budget.
const LOCKED_PART: usize = 2;
/// Pages that the kernel is asked about together. If some of them are locked, all keep their marks.
const ASKED_PAGES: usize = 64;

/// Start and end of the pages that overlap a range, rounded as the kernel rounds it, and at most [`ADDR_END`]. None
/// when the kernel takes the range for empty, or when the range wraps around.
fn pages(addr: u64, len: u64) -> Option<(usize, usize)> {
    let (start, inside) = (addr & !(PAGE as u64 - 1), addr & (PAGE as u64 - 1));
    let len = len.wrapping_add(inside).wrapping_add(PAGE as u64 - 1) & !(PAGE as u64 - 1);
    let end = start.checked_add(len).filter(|end| *end > start)?;
    Some(((start as usize).min(ADDR_END), (end as usize).min(ADDR_END)))
}

impl Space {
    /// mlock(2) and mlock2(2): locked pages stay resident until they are unlocked or unmapped. `nr` says which call it
    /// is.
    pub fn mlock(&self, ctx: &ThreadCtx, nr: u32, a: [u64; 6]) -> i64 {
        let flags = if nr == g::__NR_mlock2 { a[2] as u32 } else { 0 };
        let wanted = pages(a[0], a[1]).filter(|_| flags & !g::MLOCK_ONFAULT == 0);
        let Some((start, end)) = wanted.filter(|&(start, end)| mapping::touches(self, ctx, start, end)) else {
            // SAFETY: the program's call on memory that is not managed, or one that has no effect.
            return raw(unsafe { mapping::kernel(nr, a) });
        };
        if flags & g::MLOCK_ONFAULT != 0 {
            return mlock_on_fault(self, start, end, a);
        }
        let inside = self.threads.enter(ctx);
        let wanted = register::managed_pages(self, &inside, start, end);
        let adding = try_lock(self, &inside, start, end, wanted);
        drop(inside);
        let Some(_adding) = adding else { return -(errno::ENOMEM as i64) };
        let locked = pins::keep_in(
            self,
            ctx,
            start,
            end - start,
            |state: State| state.with_locked(true),
            |exclusive| {
                self.kernel.set_has_locked(true);
                // ONFAULT, because the gate is closed: bringing in unmanaged memory may take long.
                let args = [a[0], a[1], g::MLOCK_ONFAULT as u64, 0, 0, 0];
                // SAFETY: everything is present and stays so; locking changes no content.
                let result = raw(unsafe { mapping::kernel(g::__NR_mlock2, args) });
                if result < 0 {
                    unlock_if_unlocked(self, exclusive, start, end);
                }
                result
            },
        );
        // The kernel answers the same for a page that it cannot read from swap.
        let mut result = locked.unwrap_or(-(errno::ENOMEM as i64));
        if result == 0 && flags == 0 {
            // SAFETY: as above.
            let call = || raw(unsafe { mapping::kernel(nr, a) });
            result = call();
            // Another thread may have discarded pages since.
            if result < 0 && self.bring_in(ctx, start, end - start) {
                result = call();
            }
        }
        ctx.pins.end();
        result
    }
}

/// Grants that a call locks the `wanted` pages of a range. None if they are more than half of the budget, or if too much stays in
/// memory then.
fn try_lock<'a>(space: &'a Space, held: &Held, start: usize, end: usize, wanted: usize) -> Option<Adding<'a>> {
    let is_too_much = wanted > space.budget.limit() / LOCKED_PART;
    if is_too_much { None } else { register::try_stay(space, held, start, end, wanted) }
}

/// mlock2(2) with MLOCK_ONFAULT for the pages in `[start, end)`. Present pages stay in memory from now on, all others
/// from the moment they come in.
fn mlock_on_fault(space: &Space, start: usize, end: usize, a: [u64; 6]) -> i64 {
    space.exclusive(|exclusive| {
        let mut present = 0;
        space.table.for_each_content(start, end, |_, word| present += (word.load().tag() == Tag::Present) as usize);
        let Some(_adding) = try_lock(space, exclusive, start, end, present) else {
            return -(errno::ENOMEM as i64);
        };
        // SAFETY: under the exclusive gate; locking changes no content, and brings nothing in.
        let result = raw(unsafe { mapping::kernel(g::__NR_mlock2, a) });
        space.kernel.set_has_locked(true);
        if result == 0 {
            space.table.for_each_content(start, end, |_, word| {
                let state = word.load();
                if state.is_open() {
                    word.set_exclusive(exclusive, state.with_locked(true));
                }
            });
        }
        result
    })
}

impl Space {
    /// munlock(2).
    pub fn munlock(&self, ctx: &ThreadCtx, a: [u64; 6]) -> i64 {
        let Some((start, end)) = pages(a[0], a[1]).filter(|&(start, end)| mapping::touches(self, ctx, start, end))
        else {
            // SAFETY: the program's call on memory that is not managed, or one that has no effect.
            return raw(unsafe { mapping::kernel(g::__NR_munlock, a) });
        };
        self.exclusive(|exclusive| {
            // SAFETY: unlocking changes no content.
            let result = raw(unsafe { mapping::kernel(g::__NR_munlock, a) });
            match result {
                0 => unlock(self, exclusive, start, end),
                _ => unlock_if_unlocked(self, exclusive, start, end),
            }
            result
        })
    }

    /// mlockall(2): succeeds without effect. Managed memory stays within the budget, which the caller asked for by
    /// running under it.
    pub fn mlockall(&self) -> i64 {
        0
    }

    /// munlockall(2): undoes each mlock.
    pub fn munlockall(&self, a: [u64; 6]) -> i64 {
        self.exclusive(|exclusive| {
            // SAFETY: as for munlock.
            let result = raw(unsafe { mapping::kernel(g::__NR_munlockall, a) });
            if result == 0 {
                unlock_all(self, exclusive);
            }
            result
        })
    }
}

/// Lets all locked pages be evicted again: after munlockall, and in fork's child, which inherits no locks.
pub(crate) fn unlock_all(space: &Space, exclusive: &Exclusive<'_>) {
    space.regions.all(exclusive).for_each(|r| unlock(space, exclusive, r.start, r.end));
    space.kernel.set_has_locked(false);
    space.kernel.staying.forget();
}

/// Lets the locked pages of a range be evicted again.
fn unlock(space: &Space, exclusive: &Exclusive<'_>, start: usize, end: usize) {
    if !space.kernel.has_locked() {
        return;
    }
    space.table.for_each_content(start, end, |_, word| {
        let state = word.load();
        if state.is_locked() {
            word.set_exclusive(exclusive, state.with_locked(false));
        }
    });
}

/// Lets pages of a range be evicted again if the kernel no longer has them locked. Asks about [`ASKED_PAGES`] at a
/// time.
fn unlock_if_unlocked(space: &Space, exclusive: &Exclusive<'_>, start: usize, end: usize) {
    const BLOCK: usize = ASKED_PAGES * PAGE;
    let mut asked = None;
    space.table.for_each_content(start, end, |at, word| {
        let state = word.load();
        if !state.is_locked() {
            return;
        }
        let block = at & !(BLOCK - 1);
        let is_block_locked = match asked {
            Some((seen, answer)) if seen == block => answer,
            _ => {
                let first = block.max(start);
                kept::is_locked(first, end.min(block + BLOCK) - first)
            }
        };
        asked = Some((block, is_block_locked));
        if !is_block_locked {
            word.set_exclusive(exclusive, state.with_locked(false));
        }
    });
}
