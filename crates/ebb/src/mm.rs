//! Address-space calls: performed for the program, with regions and page states brought in line.
//!
//! A call that changes what is managed runs under the exclusive gate, the kernel's part first: if the kernel refuses,
//! nothing was lost, and nobody can look at a page between the two parts. Each function returns what the system call
//! returned: a value, or a negative errno.

use crate::ctx::ThreadCtx;
use crate::groups::{Cost, GroupError, GroupId, Index, Tally};
use crate::mlock;
use crate::page::{State, Tag};
use crate::region::{Attr, Region};
use crate::space::Space;
use crate::swapin::slot_of;
use crate::swapspace::folio_at;
use crate::table::{ADDR_END, PAGE};
use crate::uapi::{self, Errno};
use core::sync::atomic::Ordering::Relaxed;
use ebb_slots::CLUSTER_SLOTS;
use linux_raw_sys::general as g;

const MREMAP_MAYMOVE: u64 = 1;
const MREMAP_FIXED: u64 = 2;
const MREMAP_DONTUNMAP: u64 = 4;
const MADV_GUARD_INSTALL: u32 = 102;
const MADV_GUARD_REMOVE: u32 = 103;
const MADV_DONTNEED_LOCKED: u32 = 24;

pub(crate) fn raw(result: Result<u64, Errno>) -> i64 {
    match result {
        Ok(v) => v as i64,
        Err(e) => -(e.0 as i64),
    }
}

/// The group of a thread's new mappings. With the gate closed.
pub(crate) fn thread_group(ctx: &ThreadCtx) -> Index {
    Index::from_raw(ctx.group.load(Relaxed))
}

pub(crate) fn page_up(n: usize) -> usize {
    n.checked_next_multiple_of(PAGE).unwrap_or(usize::MAX & !(PAGE - 1))
}

impl Space {
    /// # Safety
    /// The program's own call; the gate is closed or the call concerns nothing managed.
    pub(crate) unsafe fn kernel(&self, nr: u32, a: [u64; 6]) -> Result<u64, Errno> {
        // SAFETY: forwarded contract.
        unsafe { uapi::forward(nr, a) }
    }

    /// True when some region meets the range.
    pub(crate) fn touches(&self, ctx: &ThreadCtx, start: usize, end: usize) -> bool {
        self.gate.enter(&ctx.gate);
        let found = self.regions.first_in(start, end).is_some();
        self.gate.leave(&ctx.gate);
        found
    }

    /// Takes a range under management. Under the exclusive gate, after the kernel mapped it.
    /// False when that failed: then it stays the kernel's.
    pub(crate) fn manage(&self, start: usize, end: usize, attr: Attr, group: Index) -> bool {
        if end <= start || end > ADDR_END || !self.regions.has_room(3) || self.table.cover(start, end).is_err() {
            return false;
        }
        // No huge pages: the kernel makes them of ranges with holes too, and in fork's child it may look at a range before
        // that is registered, and fill what is evicted with zeros. Fails where there are no huge pages at all.
        let _ = uapi::madvise(start, end - start, g::MADV_NOHUGEPAGE);
        let managed = self.uffd().register(start, end - start).is_ok();
        if managed {
            self.regions.insert(Region { start, end, attr, group });
        }
        managed
    }

    /// What was mapped in the range is gone. Under the exclusive gate.
    pub(crate) fn forget(&self, start: usize, end: usize) {
        self.drop_content(start, end);
        self.regions.remove(start, end);
        self.requests.trim(start as u64, end as u64);
    }

    /// Forgets the content of every page in the range. Under the exclusive gate, after the kernel dropped it.
    pub(crate) fn drop_content(&self, start: usize, end: usize) {
        let mut freed_slots = 0;
        let mut tally = Tally::new(self);
        self.table.for_each_content(start, end, |addr, word| {
            let state = word.load();
            match state.tag() {
                Tag::None | Tag::Busy => return,
                Tag::Present => {
                    if state.is_clean() {
                        self.forget_clean(addr, state);
                    }
                    self.break_if_shared(addr, state);
                    self.uncount_present(addr, 1);
                    self.group.uncharge(1);
                }
                Tag::Staged => self.staging.put_frame(state.payload() as u32),
                Tag::Swapped => {
                    let (slot, folio) = (slot_of(state), folio_at(addr));
                    if let Ok(was) = self.swap.claim(slot, folio) {
                        self.swap.release(&self.group, self.stats, slot, folio, was);
                        freed_slots += 1;
                    }
                }
            }
            word.set_exclusive(State::NONE);
            self.uncount_content(addr, 1);
            tally.add(addr, Cost::of(state).taken());
        });
        drop(tally);
        if freed_slots >= CLUSTER_SLOTS {
            self.release_unused_soon();
        }
    }

    /// The kernel has dropped some of the range's present pages, it does not say which: those are pages of zeros now.
    /// Under the exclusive gate.
    fn map_missing(&self, start: usize, end: usize) {
        let mut tally = Tally::new(self);
        self.table.for_each_content(start, end, |addr, word| {
            let state = word.load();
            // Fails where there is a page, even one in the kernel's own swap.
            if state.tag() == Tag::Present && self.uffd().copy(addr, self.zeros, PAGE).is_ok() && state.is_protected() {
                if state.is_clean() {
                    self.forget_clean(addr, state);
                    tally.add(addr, Cost::SWAP.taken());
                }
                self.break_if_shared(addr, state);
                word.set_exclusive(State::PRESENT);
            }
        });
    }

    /// mmap(2). What it maps belongs to the calling thread's group.
    pub fn mmap(&self, ctx: &ThreadCtx, a: [u64; 6]) -> i64 {
        self.map(ctx, a, || Some(thread_group(ctx))).unwrap_or_default()
    }

    /// mmap(2) for a group of that name.
    pub fn mmap_in(&self, ctx: &ThreadCtx, a: [u64; 6], id: GroupId) -> Result<i64, GroupError> {
        self.map(ctx, a, || self.groups.find(id)).ok_or(GroupError::NotFound)
    }

    /// mmap(2); nothing when there is no such group. `group` is asked with the gate closed.
    fn map(&self, ctx: &ThreadCtx, a: [u64; 6], group: impl Fn() -> Option<Index>) -> Option<i64> {
        let (len, prot, flags) = (page_up(a[1] as usize), a[2] as u32, a[3] as u32);
        let anonymous = flags & g::MAP_ANONYMOUS != 0 && flags & 0x0f == g::MAP_PRIVATE;
        // Stacks must take a fault on the stack itself; locked and huge-TLB memory cannot be evicted.
        let never = g::MAP_GROWSDOWN | g::MAP_STACK | g::MAP_LOCKED | g::MAP_HUGETLB;
        let manageable = anonymous && flags & never == 0 && len > 0;
        let fixed = flags & g::MAP_FIXED != 0 && flags & g::MAP_FIXED_NOREPLACE == 0;
        if !manageable && !fixed {
            // SAFETY: a new mapping where the kernel finds room.
            let result = unsafe { self.kernel(g::__NR_mmap, a) };
            if let Ok(at) = result
                && self.touches(ctx, at as usize, at as usize + len)
            {
                // What was known of the place is of a mapping that is gone.
                self.exclusive(|| self.forget(at as usize, at as usize + len));
            }
            return Some(raw(result));
        }
        let mut b = a;
        if manageable {
            // Populating would go round the budget; pages come at first touch.
            b[3] &= !(g::MAP_POPULATE as u64);
        }
        self.exclusive(|| {
            let group = group()?;
            // SAFETY: the program's call, under the exclusive gate; what it replaces is dropped below.
            let result = unsafe { self.kernel(g::__NR_mmap, b) };
            if let Ok(at) = result {
                let (start, end) = (at as usize, at as usize + len);
                // Also when the kernel chose the place: whatever was known of it is of a mapping that is gone.
                self.forget(start, end);
                if manageable {
                    self.manage(start, end, Attr::from_prot(prot), group);
                }
            } else if fixed {
                self.forget_holes(a[0] as usize, len);
            }
            Some(raw(result))
        })
    }

    /// munmap(2).
    pub fn munmap(&self, ctx: &ThreadCtx, a: [u64; 6]) -> i64 {
        let (start, end) = (a[0] as usize, (a[0] as usize).saturating_add(page_up(a[1] as usize)));
        if !self.touches(ctx, start, end) {
            // SAFETY: the program's call on memory that is not managed.
            return raw(unsafe { self.kernel(g::__NR_munmap, a) });
        }
        self.exclusive(|| {
            // SAFETY: the program's call, under the exclusive gate.
            let result = unsafe { self.kernel(g::__NR_munmap, a) };
            if result.is_ok() {
                self.forget(start, end);
            }
            raw(result)
        })
    }

    /// mremap(2). A moved range loses its registration in the kernel and gets it again before anybody can look.
    pub fn mremap(&self, ctx: &ThreadCtx, a: [u64; 6]) -> i64 {
        let (old, old_len, new_len, flags) = (a[0] as usize, page_up(a[1] as usize), page_up(a[2] as usize), a[3]);
        let source = old..old.saturating_add(old_len.max(PAGE));
        let replaces =
            flags & MREMAP_FIXED != 0 && self.touches(ctx, a[4] as usize, (a[4] as usize).saturating_add(new_len));
        if !self.touches(ctx, source.start, source.end) && !replaces {
            // SAFETY: the program's call on memory that is not managed.
            let result = unsafe { self.kernel(g::__NR_mremap, a) };
            if let Ok(at) = result
                && self.touches(ctx, at as usize, (at as usize).saturating_add(new_len))
            {
                // As for a new mapping.
                self.exclusive(|| self.forget(at as usize, at as usize + new_len));
            }
            return raw(result);
        }
        self.exclusive(|| {
            let moves = flags & (MREMAP_FIXED | MREMAP_DONTUNMAP) != 0;
            let kept = old_len.min(new_len);
            let region = self.regions.find(old);
            let covered = region.map_or(old, |r| r.end);
            if (moves || new_len > old_len)
                && self.regions.first_in(covered.min(old + kept), old + kept).is_some_and(|r| Some(r) != region)
            {
                // Several regions are several mappings, which only Linux 6.17 and later moves, and perhaps in part.
                return -(linux_raw_sys::errno::EFAULT as i64);
            }
            let Some(region) = region else {
                // What is not registered joins nothing that is.
                // SAFETY: the program's call, under the exclusive gate.
                let result = unsafe { self.kernel(g::__NR_mremap, a) };
                if let Ok(new) = result {
                    // What was at the new place is gone, or what was beyond the new end.
                    let new = new as usize;
                    let gone = if new == old { old + kept..old + old_len } else { new..new + new_len };
                    self.forget(gone.start, gone.end);
                } else {
                    self.forget_unmapped(a);
                }
                return raw(result);
            };
            // In place, if that is possible: nothing moves, and nothing is joined.
            if !moves {
                let mut b = a;
                b[3] &= !MREMAP_MAYMOVE;
                // SAFETY: as above.
                let result = unsafe { self.kernel(g::__NR_mremap, b) };
                match result {
                    Ok(_) => self.resized(old, old_len, new_len, region),
                    Err(Errno::NOMEM) if flags & MREMAP_MAYMOVE != 0 => return self.move_mapping(a, region),
                    Err(_) => {}
                }
                return raw(result);
            }
            self.move_mapping(a, region)
        })
    }

    /// A mapping became longer or shorter in its place.
    fn resized(&self, start: usize, old_len: usize, new_len: usize, region: Region) {
        if new_len < old_len {
            self.forget(start + new_len, start + old_len);
        } else if new_len > old_len {
            self.manage(start + old_len, start + new_len, region.attr, region.group);
        }
    }

    /// An mremap that moves. Under the exclusive gate.
    ///
    /// Other threads run on meanwhile. The kernel could join the moved mapping with a neighbour at its new place and
    /// take the registration from both; until they are registered again, an evicted page of the neighbour would read as
    /// zero and a write to a clean one go unnoticed. So the mapping is marked before it moves, by attributes that no
    /// other mapping has: then it is joined with none.
    fn move_mapping(&self, a: [u64; 6], region: Region) -> i64 {
        let Region { attr, group, .. } = region;
        let (old, old_len, new_len, flags) = (a[0] as usize, page_up(a[1] as usize), page_up(a[2] as usize), a[3]);
        // The moved pages lose their protection.
        self.open_range_exclusive(old, old + old_len);
        let marked = self.mark(old, old_len);
        if !marked {
            self.open_all();
        }
        // SAFETY: the program's call, under the exclusive gate.
        let result = unsafe { self.kernel(g::__NR_mremap, a) };
        let Ok(new) = result else {
            self.unmark(old, old_len, attr);
            self.forget_unmapped(a);
            return raw(result);
        };
        let new = new as usize;
        if new == old {
            self.unmark(old, new_len, attr);
            self.resized(old, old_len, new_len, region);
            return raw(result);
        }
        self.forget(new, new + new_len);
        if new_len > old_len {
            self.empty_grown(new + old_len, new_len - old_len);
        }
        if !self.manage(new, new + new_len, attr, group) || !self.register_around(new, new + new_len) {
            // Evicted pages would silently read as zero at their new place.
            self.fatal(b"no memory to manage a range that mremap moved; raise RLIMIT_AS or vm.max_map_count");
        }
        self.unmark(new, new_len, attr);
        self.keep_requested(old, old + old_len);
        self.move_states(old, new, old_len.min(new_len));
        self.drop_content(old, old + old_len);
        self.requests.trim(old as u64, (old + old_len) as u64);
        if flags & MREMAP_DONTUNMAP != 0 {
            self.unmark(old, old_len, attr);
            self.manage(old, old + old_len, attr, group);
        } else {
            self.regions.remove(old, old + old_len);
        }
        raw(result)
    }

    /// Drops what the kernel has put into the part of a mapping that mremap added: of one that is locked it brings in all of
    /// that, past the budget and the books. It comes in when it is touched, as where a locked mapping grows in its place.
    fn empty_grown(&self, start: usize, len: usize) {
        if uapi::madvise(start, len, MADV_DONTNEED_LOCKED).is_ok() {
            return;
        }
        // Before Linux 5.18 only what is not locked can be dropped, so it is another mapping from now on.
        let is_locked = mlock::is_locked(start, len);
        let _ = uapi::munlock(start, len);
        let _ = uapi::madvise(start, len, g::MADV_DONTNEED);
        if is_locked {
            let _ = uapi::mlock_on_fault(start, len);
        }
    }

    /// An mremap to a fixed place failed: the kernel may have unmapped what was there before it found out, and what was to be cut
    /// off.
    fn forget_unmapped(&self, a: [u64; 6]) {
        if a[3] & MREMAP_FIXED == 0 {
            return;
        }
        let (old, old_len, new_len) = (a[0] as usize, page_up(a[1] as usize), page_up(a[2] as usize));
        self.forget_holes(a[4] as usize, new_len);
        self.forget_holes(old.saturating_add(new_len), old_len.saturating_sub(new_len));
    }

    /// A call that was to replace what is mapped in a range failed: the kernel may have unmapped some of that first. Under the
    /// exclusive gate.
    fn forget_holes(&self, start: usize, len: usize) {
        let (mut at, end) = (start, start.saturating_add(len).min(ADDR_END));
        while let Some(r) = self.regions.first_in(at, end) {
            let (first, stop) = (r.start.max(at), r.end.min(end));
            let looked_through = if uapi::may_have_hole(first, stop - first) { first..stop } else { first..first };
            for page in looked_through.step_by(PAGE).filter(|page| uapi::is_hole(*page)) {
                self.forget(page, page + PAGE);
            }
            at = stop;
        }
    }

    /// Gives a range attributes that no managed mapping has; false when that is not possible.
    fn mark(&self, start: usize, len: usize) -> bool {
        let taken = |r: &Region| r.attr.is_dontfork() && r.attr.is_wipeonfork() && r.attr.is_dontdump();
        !self.regions.all().iter().any(taken)
            && uapi::madvise(start, len, g::MADV_DONTFORK).is_ok()
            && uapi::madvise(start, len, g::MADV_WIPEONFORK).is_ok()
            && uapi::madvise(start, len, g::MADV_DONTDUMP).is_ok()
    }

    /// Gives a range the attributes back that the program gave it.
    fn unmark(&self, start: usize, len: usize, attr: Attr) {
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
    fn register_around(&self, start: usize, end: usize) -> bool {
        [start.checked_sub(1), Some(start), Some(end)]
            .into_iter()
            .flatten()
            .filter_map(|at| self.regions.find(at))
            .all(|r| self.uffd().register(r.start, r.end - r.start).is_ok())
    }

    /// Moves the states of `len` bytes of pages from `old` to `new`, which belongs to the same group. Under the exclusive gate.
    fn move_states(&self, old: usize, new: usize, len: usize) {
        self.table.for_each_content(old, old + len, |addr, word| {
            let state = word.load();
            if state == State::NONE {
                return;
            }
            let to = new + (addr - old);
            let Some(target) = self.table.word(to) else { return };
            target.set_exclusive(state);
            word.set_exclusive(State::NONE);
            self.uncount_content(addr, 1);
            self.count_content(to, 1);
            if self.may_be_lent(addr)
                && let Some(unit) = self.table.unit(to)
            {
                unit.lent.store(1, Relaxed);
            }
            match state.tag() {
                Tag::Present => {
                    self.uncount_present(addr, 1);
                    self.count_present(to, 1);
                }
                Tag::Staged => self.staging.owner(state.payload() as u32).store(to as u64, Relaxed),
                _ => {}
            }
        });
    }

    /// The kernel has changed attributes of a range. Under the exclusive gate.
    pub(crate) fn change_attributes(&self, start: usize, end: usize, f: impl Fn(Attr) -> Attr) {
        if !self.regions.change(start, end, f) {
            // Pages would be read that may not be, or be there in a child that is not to have them.
            self.fatal(
                b"more mappings than there is room for; lower vm.max_map_count below 2000000 or run without Ebb",
            );
        }
    }

    /// mprotect(2) and pkey_mprotect(2): `nr` says which.
    pub fn mprotect(&self, ctx: &ThreadCtx, nr: u32, a: [u64; 6]) -> i64 {
        let (start, end) = (a[0] as usize, (a[0] as usize).saturating_add(page_up(a[1] as usize)));
        if !self.touches(ctx, start, end) {
            // SAFETY: the program's call on memory that is not managed.
            return raw(unsafe { self.kernel(nr, a) });
        }
        // Without a key, or with key -1, a mapping has the key that it had.
        let key = if nr == g::__NR_pkey_mprotect { a[3] as i32 } else { -1 };
        let keyed = (key >= 0).then_some(key > 0);
        self.exclusive(|| {
            // SAFETY: the program's call; protection changes no content.
            let result = unsafe { self.kernel(nr, a) };
            // Also after a failure part of the range may have changed; the stricter reading is the safe one.
            match result {
                Ok(_) => self.change_attributes(start, end, |attr| attr.with_prot(a[2] as u32, keyed)),
                Err(Errno::INVAL) => {}
                Err(_) => self.change_attributes(start, end, |attr| attr.with_prot(0, keyed)),
            }
            raw(result)
        })
    }

    /// madvise(2).
    pub fn madvise(&self, ctx: &ThreadCtx, a: [u64; 6]) -> i64 {
        let (start, advice) = (a[0] as usize, a[2] as u32);
        let end = start.saturating_add(page_up(a[1] as usize));
        if !start.is_multiple_of(PAGE) || !self.touches(ctx, start, end) {
            // SAFETY: the program's call on memory that is not managed.
            return raw(unsafe { self.kernel(g::__NR_madvise, a) });
        }
        // A length may be too large for any range: the kernel says so.
        let is_range = start.checked_add(a[1] as usize).is_some_and(|end| end <= ADDR_END);
        match advice {
            // What MADV_FREE allows the kernel to do later is done now: the next touch reads zero.
            g::MADV_DONTNEED | g::MADV_FREE | MADV_DONTNEED_LOCKED => self.exclusive(|| {
                if self.has_from_file(start, end) {
                    return -(linux_raw_sys::errno::EINVAL as i64);
                }
                let b = [a[0], a[1], if advice == g::MADV_FREE { g::MADV_DONTNEED } else { advice } as u64, 0, 0, 0];
                // SAFETY: the program gives the content up.
                let result = unsafe { self.kernel(g::__NR_madvise, b) };
                let mut at = start;
                while let Some(r) = self.regions.first_in(at, end) {
                    let (first, last) = (r.start.max(at), r.end.min(end));
                    match result {
                        // ENOMEM: parts of the range are not mapped, the rest was dropped all the same.
                        Ok(_) | Err(Errno::NOMEM) => self.drop_content(first, last),
                        // Some mapping in the range refused; the kernel dropped those before it.
                        Err(_) => self.map_missing(first, last),
                    }
                    at = r.end;
                }
                raw(result)
            }),
            g::MADV_DONTFORK | g::MADV_DOFORK => self.exclusive(|| {
                // SAFETY: changes no content.
                let result = unsafe { self.kernel(g::__NR_madvise, a) };
                // ENOMEM: parts of the range are not mapped, the rest has it all the same.
                if matches!(result, Ok(_) | Err(Errno::NOMEM)) {
                    self.change_attributes(start, end, |attr| attr.with_dontfork(advice == g::MADV_DONTFORK));
                }
                raw(result)
            }),
            g::MADV_DONTDUMP | g::MADV_DODUMP => self.exclusive(|| {
                // SAFETY: changes no content.
                let result = unsafe { self.kernel(g::__NR_madvise, a) };
                // ENOMEM: parts of the range are not mapped, the rest has it all the same.
                if matches!(result, Ok(_) | Err(Errno::NOMEM)) {
                    self.change_attributes(start, end, |attr| attr.with_dontdump(advice == g::MADV_DONTDUMP));
                }
                raw(result)
            }),
            g::MADV_WIPEONFORK | g::MADV_KEEPONFORK => self.exclusive(|| {
                // SAFETY: changes no content.
                let result = unsafe { self.kernel(g::__NR_madvise, a) };
                // ENOMEM: parts of the range are not mapped, the rest has it all the same.
                if matches!(result, Ok(_) | Err(Errno::NOMEM)) {
                    self.change_attributes(start, end, |attr| attr.with_wipeonfork(advice == g::MADV_WIPEONFORK));
                }
                raw(result)
            }),
            g::MADV_POPULATE_READ | g::MADV_POPULATE_WRITE if is_range => self.populate(ctx, start, end, advice),
            g::MADV_PAGEOUT => {
                if is_range {
                    self.page_out(ctx, start, end);
                }
                // The kernel knows what is no range, of holes and of what is locked. It is not to swap by itself.
                // SAFETY: changes no content.
                raw(unsafe { self.kernel(g::__NR_madvise, [a[0], a[1], g::MADV_COLD as u64, 0, 0, 0]) })
            }
            g::MADV_WILLNEED => {
                if is_range {
                    self.will_need(ctx, start, end);
                }
                // SAFETY: changes no content.
                raw(unsafe { self.kernel(g::__NR_madvise, a) })
            }
            // The kernel would age what it does not see used, merge pages that Ebb moves, or build huge pages around Ebb's
            // back. All of these are hints.
            g::MADV_COLD | g::MADV_MERGEABLE | g::MADV_UNMERGEABLE | g::MADV_COLLAPSE | g::MADV_HUGEPAGE => 0,
            // As kernels before 6.13 answer; programs fall back to mprotect.
            MADV_GUARD_INSTALL | MADV_GUARD_REMOVE => -(linux_raw_sys::errno::EINVAL as i64),
            // SAFETY: changes no content.
            _ => raw(unsafe { self.kernel(g::__NR_madvise, a) }),
        }
    }

    /// Whether some of the range was a file's before it was managed. Inside the gate.
    fn has_from_file(&self, start: usize, end: usize) -> bool {
        let mut at = start;
        while let Some(r) = self.regions.first_in(at, end) {
            if r.attr.is_from_file() {
                return true;
            }
            at = r.end;
        }
        false
    }

    /// MADV_POPULATE_READ and MADV_POPULATE_WRITE, in pieces that stay in memory while the kernel looks at them: it knows of
    /// holes and of what may not be read or written, and would meet a page that has gone again with EFAULT. Where the range is
    /// more than the budget its beginning is out when its end is in.
    fn populate(&self, ctx: &ThreadCtx, start: usize, end: usize, advice: u32) -> i64 {
        let piece_max = self.pin_piece_max();
        let mut at = start;
        while at < end {
            let piece = (end - at).min(piece_max);
            ctx.pins.begin(0, |_| false);
            let result = if ctx.pins.add(at as u64, (at + piece) as u64, u64::MAX) && self.bring_in(ctx, at, piece) {
                // SAFETY: everything managed is present, and stays so meanwhile; what is not managed the kernel populates.
                raw(unsafe { self.kernel(g::__NR_madvise, [at as u64, piece as u64, advice as u64, 0, 0, 0]) })
            } else {
                -(linux_raw_sys::errno::EFAULT as i64)
            };
            ctx.pins.end();
            if result != 0 {
                return result;
            }
            at += piece;
        }
        0
    }

    /// brk(2). What it adds belongs to the calling thread's group.
    pub fn brk(&self, ctx: &ThreadCtx, a: [u64; 6]) -> i64 {
        self.exclusive(|| {
            // SAFETY: asks for the current break only.
            let old = unsafe { self.kernel(g::__NR_brk, [0; 6]) }.unwrap_or(0) as usize;
            if a[0] == 0 {
                return old as i64;
            }
            // SAFETY: the program's call, under the exclusive gate.
            let new = unsafe { self.kernel(g::__NR_brk, a) }.unwrap_or(old as u64) as usize;
            let (old_end, new_end) = (page_up(old), page_up(new));
            if new_end > old_end {
                self.manage(old_end, new_end, Attr::from_prot(g::PROT_READ | g::PROT_WRITE), thread_group(ctx));
            } else if new_end < old_end {
                self.forget(new_end, old_end);
            }
            new as i64
        })
    }
}
