//! Calls that make, move, change and end mappings.
//!
//! Most calls run beside other threads: see [`beside`]. The others run with the gate closed, the kernel's part first. If the
//! kernel refuses, nothing is lost. Each function returns what the system call returned: a value, or a negative errno.

use crate::base::PAGE;
use crate::base::uapi::Errno;
use crate::calls::beside::{self, New};
use crate::calls::mapping;
use crate::calls::widen;
use crate::groups::names::{GroupError, GroupId};
use crate::groups::table::Index;
use crate::memory::region::Attr;
use crate::memory::table::ADDR_END;
use crate::pages::{books, tally};
use crate::protocols::gate::Held;
use crate::space::Space;
use crate::threads::ctx::ThreadCtx;
use crate::way_in::fault;
use linux_raw_sys::general as g;

impl Space {
    /// mmap(2). The mapping belongs to the calling thread's group.
    pub fn mmap(&self, ctx: &ThreadCtx, a: [u64; 6]) -> i64 {
        map(self, ctx, a, |held| Some(tally::thread_group(held, ctx))).unwrap_or_default()
    }

    /// mmap(2) for the group `id`. Fails when there is no such group. A mapping that is neither managed nor fixed does
    /// not need one.
    pub fn mmap_in(&self, ctx: &ThreadCtx, a: [u64; 6], id: GroupId) -> Result<i64, GroupError> {
        map(self, ctx, a, |_| self.groups.find(id)).ok_or(GroupError::NotFound)
    }
}

/// mmap(2). None when there is no such group.
fn map(space: &Space, ctx: &ThreadCtx, a: [u64; 6], group: impl Fn(&Held) -> Option<Index>) -> Option<i64> {
    let (len, prot, flags) = (mapping::page_up(a[1] as usize), a[2] as u32, a[3] as u32);
    let anonymous = flags & g::MAP_ANONYMOUS != 0 && flags & 0x0f == g::MAP_PRIVATE;
    // A stack would have to take a fault on itself. Locked and huge-TLB memory cannot be evicted.
    let never = g::MAP_GROWSDOWN | g::MAP_STACK | g::MAP_LOCKED | g::MAP_HUGETLB;
    let manageable = anonymous && flags & never == 0 && len > 0;
    let fixed = flags & g::MAP_FIXED != 0 && flags & g::MAP_FIXED_NOREPLACE == 0;
    if !manageable && !fixed {
        // SAFETY: a new mapping where the kernel finds room.
        let result = unsafe { mapping::kernel(g::__NR_mmap, a) };
        if let Ok(at) = result
            && mapping::touches(space, ctx, at as usize, at as usize + len)
        {
            // Whatever Ebb knew of this place belongs to a mapping that is gone.
            space.exclusive(|exclusive| mapping::forget(space, exclusive, at as usize, at as usize + len));
        }
        return Some(mapping::raw(result));
    }
    let mut b = a;
    if manageable {
        // Populating would bypass the budget. Pages come in at first touch instead.
        b[3] &= !(g::MAP_POPULATE as u64);
    }
    let inside = space.threads.enter(ctx);
    let has_group = group(&inside).is_some();
    drop(inside);
    if !has_group {
        return None;
    }
    let new = manageable.then_some(New { attr: Attr::from_prot(prot), group: &group });
    let range = range(a[0], a[1]).filter(|_| fixed);
    // SAFETY: the program's call; what it replaces is hidden from others, and dropped.
    let replace = |at| unsafe { beside::replace(space, ctx, at, new, || mapping::kernel(g::__NR_mmap, b)) };
    if let Some(result) = range.and_then(replace) {
        if result.is_err() {
            space.exclusive(|exclusive| mapping::forget_holes(space, exclusive, a[0] as usize, len));
        }
        return Some(mapping::raw(result));
    }
    if !fixed {
        let mut inside = space.threads.enter(ctx);
        // SAFETY: a new mapping where the kernel finds room.
        let result = unsafe { mapping::kernel(g::__NR_mmap, b) };
        let is_managed = match (result, new) {
            (Ok(at), Some(new)) => beside::manage(space, &mut inside, at as usize, at as usize + len, new),
            _ => true,
        };
        drop(inside);
        books::note_books_used(space, ctx);
        if let (Ok(at), Some(new), false) = (result, new, is_managed) {
            beside::manage_alone(space, at as usize, at as usize + len, new);
        }
        return Some(mapping::raw(result));
    }
    space.exclusive(|exclusive| {
        let group = group(exclusive)?;
        // SAFETY: the program's call, under the exclusive gate; what it replaces is dropped below.
        let result = unsafe { mapping::kernel(g::__NR_mmap, b) };
        if let Ok(at) = result {
            let (start, end) = (at as usize, at as usize + len);
            mapping::forget(space, exclusive, start, end);
            if manageable && mapping::manage(space, exclusive, start, end, Attr::from_prot(prot), group) {
                mapping::empty(start, end);
            }
        } else {
            mapping::forget_holes(space, exclusive, a[0] as usize, len);
        }
        Some(mapping::raw(result))
    })
}

/// The range of a call that names whole pages; none if the kernel would refuse it.
fn range(at: u64, len: u64) -> Option<(usize, usize)> {
    let (start, len) = (at as usize, mapping::page_up(len as usize));
    let end = start.checked_add(len).filter(|end| *end <= ADDR_END)?;
    (start.is_multiple_of(PAGE) && start < end).then_some((start, end))
}

impl Space {
    /// munmap(2).
    pub fn munmap(&self, ctx: &ThreadCtx, a: [u64; 6]) -> i64 {
        let (start, end) = (a[0] as usize, (a[0] as usize).saturating_add(mapping::page_up(a[1] as usize)));
        if !mapping::touches(self, ctx, start, end) {
            // SAFETY: the program's call on memory that is not managed.
            return mapping::raw(unsafe { mapping::kernel(g::__NR_munmap, a) });
        }
        let range = range(a[0], a[1]);
        // SAFETY: the program's call; what it unmaps is hidden from others, and dropped.
        let unmap = |at| unsafe { beside::replace(self, ctx, at, None, || mapping::kernel(g::__NR_munmap, a)) };
        if let Some(result) = range.and_then(unmap) {
            return mapping::raw(result);
        }
        self.exclusive(|exclusive| {
            // SAFETY: the program's call, under the exclusive gate.
            let result = unsafe { mapping::kernel(g::__NR_munmap, a) };
            if result.is_ok() {
                mapping::forget(self, exclusive, start, end);
            }
            mapping::raw(result)
        })
    }
}

impl Space {
    /// mprotect(2) and pkey_mprotect(2): `nr` says which.
    pub fn mprotect(&self, ctx: &ThreadCtx, nr: u32, a: [u64; 6]) -> i64 {
        let (start, end) = (a[0] as usize, (a[0] as usize).saturating_add(mapping::page_up(a[1] as usize)));
        if !mapping::touches(self, ctx, start, end) {
            // SAFETY: the program's call on memory that is not managed.
            return mapping::raw(unsafe { mapping::kernel(nr, a) });
        }
        // Without a key, or with key -1, a mapping keeps the key that it has.
        let key = if nr == g::__NR_pkey_mprotect { a[3] as i32 } else { -1 };
        let keyed = (key >= 0).then_some(key > 0);
        let is_step = a[2] as u32 & g::PROT_WRITE != 0 && widen::is_step(self, ctx, start, end);
        let after = |result, attr: Attr| match result {
            Ok(_) => attr.with_prot(a[2] as u32, keyed),
            Err(Errno::INVAL) => attr,
            // Part of the range may have changed. The stricter reading is the safe one.
            Err(_) => attr.with_prot(0, keyed),
        };
        // SAFETY: the program's call; protection changes no content, and the range is guarded.
        let protect = |at| unsafe { beside::protect(self, ctx, at, |_| true, || mapping::kernel(nr, a), after) };
        if let Some(result) = range(a[0], a[1]).and_then(protect) {
            if is_step && result.is_ok() {
                // The program is about to use the first page, and this costs less than the fault.
                fault::touch_ahead(self, ctx, start);
            }
            return mapping::raw(result);
        }
        self.exclusive(|exclusive| {
            // SAFETY: the program's call; protection changes no content.
            let result = unsafe { mapping::kernel(nr, a) };
            mapping::change_attributes(self, exclusive, start, end, |attr| after(result, attr));
            mapping::raw(result)
        })
    }
}
