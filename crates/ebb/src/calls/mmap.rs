//! Calls that make, move, change and end mappings.
//!
//! Most calls run beside other threads: see [`beside`]. The others run with the gate closed, the kernel's part first. If the
//! kernel refuses, nothing is lost. Each function returns what the system call returned: a value, or a negative errno.

use crate::base::PAGE;
use crate::base::uapi::Errno;
use crate::calls::beside::{self, New};
use crate::calls::mapping::{self, MREMAP_FIXED};
use crate::calls::{requests, widen};
use crate::groups::names::{GroupError, GroupId};
use crate::groups::table::Index;
use crate::memory::region::{Attr, Region};
use crate::memory::table::ADDR_END;
use crate::pages::{books, clean, tally};
use crate::protocols::gate::{Exclusive, Held};
use crate::space::Space;
use crate::threads::ctx::ThreadCtx;
use crate::way_in::fault;
use linux_raw_sys::general as g;

const MREMAP_MAYMOVE: u64 = 1;
const MREMAP_DONTUNMAP: u64 = 4;

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
        return Some(if is_managed { mapping::raw(result) } else { manage_alone(space, result, len, new) });
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

/// Manages what the kernel has mapped, with the gate closed. Whatever Ebb knew of the place belongs to a mapping that is gone.
fn manage_alone(space: &Space, result: Result<u64, Errno>, len: usize, new: Option<New<'_>>) -> i64 {
    if let (Ok(at), Some(New { attr, group })) = (result, new) {
        let (start, end) = (at as usize, at as usize + len);
        space.exclusive(|exclusive| {
            mapping::forget(space, exclusive, start, end);
            // A group that has gone meanwhile leaves the mapping to the kernel.
            if let Some(group) = group(exclusive) {
                mapping::manage(space, exclusive, start, end, attr, group);
            }
        });
    }
    mapping::raw(result)
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

    /// mremap(2). A moved range loses its registration in the kernel, and is registered again before anybody can look.
    pub fn mremap(&self, ctx: &ThreadCtx, a: [u64; 6]) -> i64 {
        let (old, old_len, new_len, flags) =
            (a[0] as usize, mapping::page_up(a[1] as usize), mapping::page_up(a[2] as usize), a[3]);
        let source = old..old.saturating_add(old_len.max(PAGE));
        let replaces = flags & MREMAP_FIXED != 0
            && mapping::touches(self, ctx, a[4] as usize, (a[4] as usize).saturating_add(new_len));
        if !mapping::touches(self, ctx, source.start, source.end) && !replaces {
            // SAFETY: the program's call on memory that is not managed.
            let result = unsafe { mapping::kernel(g::__NR_mremap, a) };
            if let Ok(at) = result
                && mapping::touches(self, ctx, at as usize, (at as usize).saturating_add(new_len))
            {
                // As for a new mapping: whatever Ebb knew of this place belongs to a mapping that is gone.
                self.exclusive(|exclusive| mapping::forget(self, exclusive, at as usize, at as usize + new_len));
            }
            return mapping::raw(result);
        }
        self.exclusive(|exclusive| {
            let moves = flags & (MREMAP_FIXED | MREMAP_DONTUNMAP) != 0;
            let kept = old_len.min(new_len);
            let region = self.regions.find(exclusive, old);
            let covered = region.map_or(old, |r| r.end);
            if (moves || new_len > old_len)
                && self
                    .regions
                    .first_in(exclusive, covered.min(old + kept), old + kept)
                    .is_some_and(|r| Some(r) != region)
            {
                // Several regions are several mappings. Only Linux 6.17 and later moves these together, and perhaps
                // only some of them.
                return -(linux_raw_sys::errno::EFAULT as i64);
            }
            let Some(region) = region else {
                // An unregistered mapping joins no registered one.
                // SAFETY: the program's call, under the exclusive gate.
                let result = unsafe { mapping::kernel(g::__NR_mremap, a) };
                if let Ok(new) = result {
                    // Whatever was at the new place, or beyond the new end, is gone.
                    let new = new as usize;
                    let gone = if new == old { old + kept..old + old_len } else { new..new + new_len };
                    mapping::forget(self, exclusive, gone.start, gone.end);
                } else {
                    mapping::forget_unmapped(self, exclusive, a);
                }
                return mapping::raw(result);
            };
            // In place, if possible: then nothing moves, and nothing is joined.
            if !moves {
                let mut b = a;
                b[3] &= !MREMAP_MAYMOVE;
                // SAFETY: as above.
                let result = unsafe { mapping::kernel(g::__NR_mremap, b) };
                match result {
                    Ok(_) => mapping::resized(self, exclusive, old, old_len, new_len, region),
                    Err(Errno::NOMEM) if flags & MREMAP_MAYMOVE != 0 => {
                        return move_mapping(self, exclusive, a, region);
                    }
                    Err(_) => {}
                }
                return mapping::raw(result);
            }
            move_mapping(self, exclusive, a, region)
        })
    }
}

/// Performs an mremap that moves the mapping.
///
/// Other threads keep running. The kernel could join the moved mapping with a neighbour at its new place, and take the
/// registration from both. Until both were registered again, an evicted page of the neighbour would read as zero, and a
/// write to a clean page would go unnoticed. So the mapping is marked before it moves, with attributes that no other
/// mapping has. The kernel then joins it with none.
fn move_mapping(space: &Space, exclusive: &Exclusive<'_>, a: [u64; 6], region: Region) -> i64 {
    let Region { attr, group, .. } = region;
    let (old, old_len, new_len, flags) =
        (a[0] as usize, mapping::page_up(a[1] as usize), mapping::page_up(a[2] as usize), a[3]);
    // Moved pages lose their write protection.
    clean::open_range_exclusive(space, exclusive, old, old + old_len);
    let marked = mapping::mark(space, exclusive, old, old_len);
    if !marked {
        clean::open_all(space, exclusive);
    }
    // SAFETY: the program's call, under the exclusive gate.
    let result = unsafe { mapping::kernel(g::__NR_mremap, a) };
    let Ok(new) = result else {
        mapping::unmark(old, old_len, attr);
        mapping::forget_unmapped(space, exclusive, a);
        return mapping::raw(result);
    };
    let new = new as usize;
    if new == old {
        mapping::unmark(old, new_len, attr);
        mapping::resized(space, exclusive, old, old_len, new_len, region);
        return mapping::raw(result);
    }
    mapping::forget(space, exclusive, new, new + new_len);
    if new_len > old_len {
        // The kernel fills what mremap adds if the mapping is locked, past the budget and the books. Instead, the pages come in
        // when they are touched, as they do where a locked mapping grows in place.
        mapping::empty(new + old_len, new + new_len);
    }
    if !mapping::manage(space, exclusive, new, new + new_len, attr, group)
        || !mapping::register_around(space, exclusive, new, new + new_len)
    {
        // Evicted pages would silently read as zero at their new place.
        space.fatal(b"no memory to manage a range that mremap moved; raise RLIMIT_AS or vm.max_map_count");
    }
    mapping::unmark(new, new_len, attr);
    requests::keep_requested(space, exclusive, old, old + old_len);
    mapping::move_states(space, exclusive, old, new, old_len.min(new_len));
    mapping::drop_content(space, exclusive, old, old + old_len);
    space.threads.requests.trim(old as u64, (old + old_len) as u64);
    if flags & MREMAP_DONTUNMAP != 0 {
        mapping::unmark(old, old_len, attr);
        mapping::manage(space, exclusive, old, old + old_len, attr, group);
    } else {
        space.regions.remove(exclusive, old, old + old_len);
    }
    mapping::raw(result)
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
        let protect = |at| unsafe { beside::protect(self, ctx, at, || mapping::kernel(nr, a), after) };
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

    /// brk(2). Added memory belongs to the calling thread's group.
    pub fn brk(&self, ctx: &ThreadCtx, a: [u64; 6]) -> i64 {
        if let Some(new) = grow_break(self, ctx, a) {
            return new;
        }
        self.exclusive(|exclusive| {
            // SAFETY: asks for the current break only.
            let old = unsafe { mapping::kernel(g::__NR_brk, [0; 6]) }.unwrap_or(0) as usize;
            if a[0] == 0 {
                return old as i64;
            }
            // SAFETY: the program's call, under the exclusive gate.
            let new = unsafe { mapping::kernel(g::__NR_brk, a) }.unwrap_or(old as u64) as usize;
            let (old_end, new_end) = (mapping::page_up(old), mapping::page_up(new));
            if new_end > old_end {
                mapping::manage(
                    self,
                    exclusive,
                    old_end,
                    new_end,
                    Attr::from_prot(g::PROT_READ | g::PROT_WRITE),
                    tally::thread_group(exclusive, ctx),
                );
            } else if new_end < old_end {
                mapping::forget(self, exclusive, new_end, old_end);
            }
            new as i64
        })
    }
}

/// Performs a brk(2) that adds memory, beside other threads; the new break. None if the call needs the gate closed, and in part
/// or as a whole is still to be made.
fn grow_break(space: &Space, ctx: &ThreadCtx, a: [u64; 6]) -> Option<i64> {
    let mut inside = space.threads.enter(ctx);
    let one = space.kernel.program_break.lock();
    // SAFETY: asks for the current break only.
    let old = unsafe { mapping::kernel(g::__NR_brk, [0; 6]) }.ok()? as usize;
    if a[0] == 0 {
        return Some(old as i64);
    }
    let (old_end, new_end) = (mapping::page_up(old), mapping::page_up(a[0] as usize));
    if (a[0] as usize) < old || new_end < old_end {
        return None;
    }
    // SAFETY: the program's call, which adds memory.
    let new = unsafe { mapping::kernel(g::__NR_brk, a) }.ok()? as usize;
    drop(one);
    let group = |held: &Held| Some(tally::thread_group(held, ctx));
    let added = New { attr: Attr::from_prot(g::PROT_READ | g::PROT_WRITE), group: &group };
    let is_managed =
        new != a[0] as usize || new_end == old_end || beside::manage(space, &mut inside, old_end, new_end, added);
    drop(inside);
    if !is_managed {
        // Another thread may have moved the break back meanwhile.
        space.exclusive(|exclusive| {
            // SAFETY: asks for the current break only.
            let end = unsafe { mapping::kernel(g::__NR_brk, [0; 6]) }.unwrap_or(0) as usize;
            if mapping::page_up(end) >= new_end {
                mapping::forget(space, exclusive, old_end, new_end);
                mapping::manage(space, exclusive, old_end, new_end, added.attr, tally::thread_group(exclusive, ctx));
            }
        });
    }
    books::note_books_used(space, ctx);
    Some(new as i64)
}
