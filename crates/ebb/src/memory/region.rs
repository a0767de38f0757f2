//! The region table: which ranges of the address space Ebb manages, and with what protection.
//!
//! Threads inside the gate read it without a lock. Most calls publish a new version beside them, see [`crate::calls::beside`], or
//! move a bound of the current one. Any other change in place needs the gate closed.

use crate::base::uapi::Errno;
use crate::groups::table::Index;
use crate::memory::list::List;
use crate::protocols::gate::{Exclusive, Gate, GateFlag, Held, Inside};
use crate::protocols::primitive::{AtomicU32, AtomicU64, Ordering, spin, wait_on, waiting, wake_all, yield_now};
use crate::protocols::versions::Versions;
use core::cell::UnsafeCell;
use ebb_sync::Lock;
use linux_raw_sys::general as g;

ebb_sync::lock_classes! {
    /// The lock of whoever makes a version of the region table.
    RegionsLock = "regions";
}

/// Most regions there can be: more than any distribution's bound on mappings (vm.max_map_count, at most 2^20). Unused
/// entries take only address space.
const REGIONS_MAX: usize = 1 << 21;
/// Lists: the current one, and those that threads inside may still read.
const VERSIONS: usize = 64;
/// Most bounds of a list that a change beside other threads copies: 32 KiB.
const SHORT_MAX: usize = 2048;
/// Most calls under way that hide a range. Each may add a region when it ends.
const HIDING_MAX: usize = 1024;
/// Room of a list that may be current when such a call ends.
const LONG_MAX: usize = SHORT_MAX + REGION_BOUNDS * HIDING_MAX;
/// Turns of spinning before a thread that waits for such a call sleeps: a few microseconds.
const HIDING_SPINS: u32 = 120;
/// Bounds that one change adds at most.
const CHANGE_ROOM: usize = 8;
/// Bounds of a region at most, when it has no neighbours.
const REGION_BOUNDS: usize = 2;

/// A managed range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Region {
    /// First byte, page aligned.
    pub start: usize,
    /// End, page aligned, exclusive.
    pub end: usize,
    /// What may be done with the range.
    pub attr: Attr,
    /// The group that its pages are charged to.
    pub group: Index,
}

impl Region {
    /// True if all of the range is in the region.
    pub fn has(&self, start: usize, end: usize) -> bool {
        self.start <= start && end <= self.end
    }
}

/// Attributes of a region.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Attr(u16);

impl Attr {
    const READ: u16 = 1;
    const WRITE: u16 = 2;
    const EXEC: u16 = 4;
    const DONTFORK: u16 = 8;
    const WIPEONFORK: u16 = 16;
    const KEYED: u16 = 32;
    const DONTDUMP: u16 = 64;
    const KEPT: u16 = 128;
    const FROM_FILE: u16 = 256;
    const CHANGING: u16 = 512;
    const HIDDEN: u16 = 1024;
    const HUGE_ADVISED: u16 = 2048;
    const HUGE_REFUSED: u16 = 4096;

    /// All attributes, for reports.
    pub fn bits(self) -> u16 {
        self.0
    }

    /// From mmap's `prot`.
    pub fn from_prot(prot: u32) -> Self {
        let mut bits = 0;
        if prot & g::PROT_READ != 0 {
            bits |= Self::READ;
        }
        // On x86 memory that may be written may be read. So may memory that may be executed, unless there are
        // protection keys: then the kernel gives execute-only memory a key that forbids reading.
        if prot & g::PROT_WRITE != 0 {
            bits |= Self::WRITE | Self::READ;
        }
        if prot & g::PROT_EXEC != 0 {
            bits |= Self::EXEC;
        }
        Self(bits)
    }

    /// As mmap's `prot`.
    pub fn prot(self) -> u32 {
        let all = [(Self::READ, g::PROT_READ), (Self::WRITE, g::PROT_WRITE), (Self::EXEC, g::PROT_EXEC)];
        all.iter().filter(|(bit, _)| self.0 & bit != 0).map(|(_, prot)| prot).sum()
    }

    /// These attributes, with mmap's `prot` in place of the old protection. `keyed` says whether there is a protection
    /// key; without it the key stays as it was.
    pub fn with_prot(self, prot: u32, keyed: Option<bool>) -> Self {
        let keep = self.0 & !(Self::READ | Self::WRITE | Self::EXEC | Self::KEYED);
        let is_keyed = keyed.unwrap_or(self.0 & Self::KEYED != 0);
        Self(Self::from_prot(prot).0 | keep | if is_keyed { Self::KEYED } else { 0 })
    }

    /// These attributes, left out of fork's child or not.
    pub fn with_dontfork(self, on: bool) -> Self {
        Self(if on { self.0 | Self::DONTFORK } else { self.0 & !Self::DONTFORK })
    }

    /// These attributes, emptied in fork's child or not.
    pub fn with_wipeonfork(self, on: bool) -> Self {
        Self(if on { self.0 | Self::WIPEONFORK } else { self.0 & !Self::WIPEONFORK })
    }

    /// These attributes, left out of core dumps or not.
    pub fn with_dontdump(self, on: bool) -> Self {
        Self(if on { self.0 | Self::DONTDUMP } else { self.0 & !Self::DONTDUMP })
    }

    /// These attributes, for memory that the program wants to have large folios, or not to have them.
    pub fn with_huge(self, is_wanted: bool) -> Self {
        let bits = self.0 & !(Self::HUGE_ADVISED | Self::HUGE_REFUSED);
        Self(bits | if is_wanted { Self::HUGE_ADVISED } else { Self::HUGE_REFUSED })
    }

    /// True for memory that the program wants to have large folios.
    pub fn is_huge_advised(self) -> bool {
        self.0 & Self::HUGE_ADVISED != 0
    }

    /// True for memory that the program wants to have small pages only.
    pub fn is_huge_refused(self) -> bool {
        self.0 & Self::HUGE_REFUSED != 0
    }

    /// These attributes, for pages that stay in memory from now on: see [`crate::pages::drivers`].
    pub fn with_kept(self) -> Self {
        Self(self.0 | Self::KEPT)
    }

    /// True when what is in memory stays there.
    pub fn is_kept(self) -> bool {
        self.0 & Self::KEPT != 0
    }

    /// These attributes, for what was a private mapping of a file before it was managed.
    pub fn with_from_file(self) -> Self {
        Self(self.0 | Self::FROM_FILE)
    }

    /// True for what was a private mapping of a file. Dropping its content would bring the file's content back, so it stays.
    pub fn is_from_file(self) -> bool {
        self.0 & Self::FROM_FILE != 0
    }

    /// True when core dumps leave it out.
    pub fn is_dontdump(self) -> bool {
        self.0 & Self::DONTDUMP != 0
    }

    /// These attributes while a call is under way that changes the range's protection beside other threads. Pages come in, but
    /// none go out, because nobody knows how they may be read. Other calls that change some of the range close the gate.
    pub fn guarded(self) -> Self {
        Self(self.0 | Self::CHANGING)
    }

    /// These attributes while a call replaces the range or takes it away beside other threads: nobody else finds the range.
    pub fn hidden(self) -> Self {
        Self(self.0 | Self::CHANGING | Self::HIDDEN)
    }

    /// These attributes once the call is done.
    pub fn settled(self) -> Self {
        Self(self.0 & !(Self::CHANGING | Self::HIDDEN))
    }

    /// True while a call changes the range beside other threads.
    pub fn is_changing(self) -> bool {
        self.0 & Self::CHANGING != 0
    }

    /// True while nobody but the call that changes the range finds it.
    pub fn is_hidden(self) -> bool {
        self.0 & Self::HIDDEN != 0
    }

    /// True if `new` differs from these only in what may be read and written, and takes none of that away.
    pub fn only_gains(self, new: Self) -> bool {
        let gained = self.0 ^ new.0;
        gained & self.0 == 0 && gained & !(Self::READ | Self::WRITE) == 0
    }

    /// True when fork's child does not have it.
    pub fn is_dontfork(self) -> bool {
        self.0 & Self::DONTFORK != 0
    }

    /// True when fork's child has it empty.
    pub fn is_wipeonfork(self) -> bool {
        self.0 & Self::WIPEONFORK != 0
    }

    /// True when Ebb can read its pages where they are, which evicting them by copying needs.
    pub fn is_readable(self) -> bool {
        self.0 & (Self::READ | Self::KEYED | Self::CHANGING) == Self::READ
    }

    /// True when it is readable and writable, nothing else. Evicting by MOVE needs that, because its two sides must agree.
    pub fn is_plain(self) -> bool {
        let all = Self::READ | Self::WRITE | Self::EXEC | Self::KEYED | Self::CHANGING;
        self.0 & all == Self::READ | Self::WRITE
    }
}

/// All regions of a space.
///
/// Threads read the current version of the list. With the gate closed it changes in place. Beside other threads a change moves a
/// bound, or makes a new version as long as the list is short: see [`Versions`].
pub struct Regions {
    lists: [UnsafeCell<List>; VERSIONS],
    versions: Versions<VERSIONS>,
    /// Held by the one thread that makes a version.
    changes: Lock<(), RegionsLock>,
    /// Calls under way that hide, or are about to.
    hiding: AtomicU32,
    /// Counts those that have ended, for whoever waits for one.
    ended: AtomicU64,
    waiters: AtomicU32,
    /// Counts calls that the kernel has made and the table does not know of yet: see [`Self::note_unpublished`].
    unpublished: AtomicU64,
    /// Counts those of them that it knows of by now, or that it will not be told of.
    published: AtomicU64,
    /// Nobody waits for calls with tickets below this.
    given_up: AtomicU64,
}

// SAFETY: the tokens say that lists are read inside the gate. One changes with the gate closed, or while it is free and the
// lock is held.
unsafe impl Sync for Regions {}
// SAFETY: as above.
unsafe impl Send for Regions {}

impl Regions {
    /// An empty table.
    pub fn new() -> Result<Self, Errno> {
        Self::with_room(REGIONS_MAX)
    }

    fn with_room(max: usize) -> Result<Self, Errno> {
        let list = |i| List::with_room(if i == 0 { REGION_BOUNDS * max + 1 } else { LONG_MAX }).map(UnsafeCell::new);
        let mut failed = None;
        let lists = core::array::from_fn(|i| list(i).map_err(|e| failed = Some(e)).ok());
        if let Some(e) = failed {
            return Err(e);
        }
        let lists = lists.map(|list| list.expect("none failed"));
        Ok(Self {
            lists,
            versions: Versions::default(),
            changes: Lock::new(()),
            hiding: AtomicU32::new(0),
            ended: AtomicU64::new(0),
            waiters: AtomicU32::new(0),
            unpublished: AtomicU64::new(0),
            published: AtomicU64::new(0),
            given_up: AtomicU64::new(0),
        })
    }

    /// The current version.
    #[inline]
    fn list<'a>(&'a self, held: &'a Held) -> &'a List {
        // SAFETY: while the token is borrowed nobody changes the current version but by a store to a bound, which is atomic. A
        // thread that has closed the gate keeps no reference across a change of its own.
        unsafe { &*self.lists[self.versions.current(held)].get() }
    }

    /// The list, to be changed in place.
    #[expect(clippy::mut_from_ref, reason = "the gate is closed: the caller is the only user")]
    fn list_mut<'a>(&'a self, exclusive: &'a Exclusive<'_>) -> &'a mut List {
        let current = self.versions.current(exclusive);
        // SAFETY: the gate is closed, so nobody else has a reference.
        let list = unsafe { &mut *self.lists[0].get() };
        if current != 0 {
            // Only the first list has room for everything.
            // SAFETY: as above; it is another list.
            list.copy_from(unsafe { &*self.lists[current].get() });
            self.versions.set_current(exclusive, 0);
        }
        list
    }

    /// Makes a new version beside threads that are inside: `edit` changes a copy of the list and says whether the copy is to be
    /// published. False if it is not, or if the list is too long to be copied for a change. `flags` are those of all threads.
    ///
    /// If threads may still read every list, it `waits` for one, and the caller has forgotten what it read; or the answer is false.
    pub fn change_beside<'a, F: Iterator<Item = &'a GateFlag>>(
        &self,
        inside: &mut Inside<'_>,
        gate: &Gate,
        flags: impl Fn() -> F,
        waits: bool,
        edit: impl FnOnce(&mut List) -> bool,
    ) -> bool {
        let edit = |list: &mut List| list.len() + CHANGE_ROOM <= SHORT_MAX && edit(list);
        self.edit_beside(inside, gate, flags, waits, edit)
    }

    /// As [`Self::change_beside`], for a call that has begun: it has room for one more region than there were before.
    pub fn finish_beside<'a, F: Iterator<Item = &'a GateFlag>>(
        &self,
        inside: &mut Inside<'_>,
        gate: &Gate,
        flags: impl Fn() -> F,
        edit: impl FnOnce(&mut List) -> bool,
    ) -> bool {
        let mut has_room = false;
        let is_done = self.edit_beside(inside, gate, flags, true, |list| {
            has_room = true;
            edit(list)
        });
        // Otherwise a range would stay hidden, and threads would wait for it for ever.
        assert!(has_room, "a call has begun without room to end");
        is_done
    }

    fn edit_beside<'a, F: Iterator<Item = &'a GateFlag>>(
        &self,
        inside: &mut Inside<'_>,
        gate: &Gate,
        flags: impl Fn() -> F,
        waits: bool,
        edit: impl FnOnce(&mut List) -> bool,
    ) -> bool {
        loop {
            let one = self.changes.lock();
            let current = self.list(inside);
            if current.len() > LONG_MAX {
                return false;
            }
            if let Some(free) = self.versions.free(inside, gate, &flags) {
                // SAFETY: the list is free, and only the holder of the lock uses free lists.
                let next = unsafe { &mut *self.lists[free].get() };
                next.copy_from(current);
                let is_wanted = edit(next);
                if is_wanted {
                    self.versions.publish(inside, gate, free);
                }
                return is_wanted;
            }
            drop(one);
            if !waits {
                return false;
            }
            // Others may wait for this thread in the same way.
            inside.renew(gate);
            waiting("regions, for a list", yield_now);
        }
    }

    /// Makes `region` part of the current version, beside threads that are inside, if that takes no more than to move a bound.
    /// `before` is what the caller found there: a region, or a hole. False if it takes more, or if there is something else by now.
    pub fn widen_beside(&self, held: &Held, region: Region, before: Option<Region>) -> bool {
        let _one = self.changes.lock();
        let list = self.list(held);
        list.is_still(region, before) && list.widen(region)
    }

    /// All regions in address order.
    pub fn all<'a>(&'a self, held: &'a Held) -> impl Iterator<Item = Region> + 'a {
        self.list(held).all()
    }

    /// The region that contains `addr`.
    #[inline]
    pub fn find(&self, held: &Held, addr: usize) -> Option<Region> {
        self.find_any(held, addr).filter(|region| !region.attr.is_hidden())
    }

    /// As [`Self::find`], hidden or not.
    #[inline]
    pub fn find_any(&self, held: &Held, addr: usize) -> Option<Region> {
        self.list(held).find(addr)
    }

    /// The first region that meets `[start, end)`.
    pub fn first_in(&self, held: &Held, start: usize, end: usize) -> Option<Region> {
        let mut at = start;
        loop {
            let region = self.first_in_any(held, at, end)?;
            if !region.attr.is_hidden() {
                return Some(region);
            }
            at = region.end;
        }
    }

    /// As [`Self::first_in`], hidden or not.
    pub fn first_in_any(&self, held: &Held, start: usize, end: usize) -> Option<Region> {
        self.list(held).first_in(start, end)
    }

    /// Counts a call that is about to hide. False if there are too many: [`Self::end_hiding`] is still due.
    pub fn begin_hiding(&self) -> bool {
        (self.hiding.fetch_add(1, Ordering::SeqCst) as usize) < HIDING_MAX
    }

    /// Counts a call that no longer hides anything, and wakes those that wait for one.
    pub fn end_hiding(&self) {
        self.hiding.fetch_sub(1, Ordering::SeqCst);
        self.ended.fetch_add(1, Ordering::SeqCst);
        if self.waiters.load(Ordering::SeqCst) > 0 {
            wake_all(&self.ended);
        }
    }

    /// Notes that the kernel has changed the attributes of a range which another call is changing, so that the table cannot be told
    /// now. The caller is inside, and is about to close the gate, to tell it then.
    ///
    /// Returns the call's ticket, for [`Self::note_published`].
    pub fn note_unpublished(&self) -> u64 {
        self.unpublished.fetch_add(1, Ordering::SeqCst)
    }

    /// Ends what [`Self::note_unpublished`] began.
    pub fn note_published(&self, _exclusive: &Exclusive<'_>, ticket: u64) {
        // Whoever gave up on the call has counted it.
        if ticket >= self.given_up.load(Ordering::SeqCst) {
            self.published.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// Whether the table knows of all that the kernel has done. Where it does not, its attributes may be wrong even while the gate is
    /// closed.
    pub fn is_published(&self, _held: &Held) -> bool {
        self.published() == self.unpublished()
    }

    /// Counts calls that the table was told of late. Changes only while the gate is closed.
    pub fn published(&self) -> u64 {
        self.published.load(Ordering::SeqCst)
    }

    /// Waits no longer for the calls that the table does not know of.
    pub fn give_up_publishing(&self, _exclusive: &Exclusive<'_>) {
        let all = self.unpublished();
        self.given_up.store(all, Ordering::SeqCst);
        self.published.store(all, Ordering::SeqCst);
    }

    /// How often that has happened. Whoever asks before it marks a range, and again when all have left who were inside then, knows
    /// whether the attributes it found are the kernel's.
    pub fn unpublished(&self) -> u64 {
        self.unpublished.load(Ordering::SeqCst)
    }

    /// Calls that no longer hide anything. To be asked before a look that may find something hidden.
    pub fn ended_hidings(&self) -> u64 {
        self.ended.load(Ordering::SeqCst)
    }

    /// Waits until a call no longer hides anything, if none has ended since there were `seen`; may return early. Outside the gate.
    pub fn wait_for_hiding(&self, seen: u64) {
        let wait = || {
            for _ in 0..HIDING_SPINS {
                if self.ended_hidings() != seen {
                    return;
                }
                spin();
            }
            // Whoever ends a call counts it first, and then looks for waiters.
            self.waiters.fetch_add(1, Ordering::SeqCst);
            wait_on(&self.ended, seen);
            self.waiters.fetch_sub(1, Ordering::SeqCst);
        };
        waiting("mapping", wait);
    }

    /// True when there is room for `n` more regions.
    pub fn has_room(&self, exclusive: &Exclusive<'_>, n: usize) -> bool {
        self.list_mut(exclusive).has_room(n)
    }

    /// See [`List::remove`].
    pub fn remove(&self, exclusive: &Exclusive<'_>, start: usize, end: usize) {
        self.list_mut(exclusive).remove(start, end);
    }

    /// See [`List::insert`].
    pub fn insert(&self, exclusive: &Exclusive<'_>, region: Region) {
        self.list_mut(exclusive).insert(region);
    }

    /// See [`List::change`].
    #[must_use]
    pub fn change(&self, exclusive: &Exclusive<'_>, start: usize, end: usize, f: impl Fn(Attr) -> Attr) -> bool {
        self.list_mut(exclusive).change(start, end, f)
    }

    /// See [`List::change_group`].
    pub fn change_group(&self, exclusive: &Exclusive<'_>, start: usize, end: usize, group: Index) {
        self.list_mut(exclusive).change_group(start, end, group);
    }

    /// See [`List::regroup`].
    pub fn regroup(&self, exclusive: &Exclusive<'_>, old: Index, new: Index) {
        self.list_mut(exclusive).regroup(old, new);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocols::gate::tests::alone;

    const RW: Attr = Attr(3);
    const R: Attr = Attr(1);

    fn table(parts: &[(usize, usize, Attr)]) -> Regions {
        let t = Regions::new().expect("reserve");
        for &(start, end, attr) in parts {
            t.insert(&alone(), Region { start, end, attr, group: Index::ROOT });
        }
        t
    }

    fn list(t: &Regions) -> [Option<(usize, usize, u16)>; 6] {
        let mut out = [None; 6];
        for (o, r) in out.iter_mut().zip(t.all(&alone())) {
            *o = Some((r.start, r.end, r.attr.0));
        }
        out
    }

    #[test]
    fn a_call_that_was_given_up_is_not_counted_for_another() {
        let (t, alone) = (Regions::new().expect("reserve"), alone());
        let [first, second] = core::array::from_fn(|_| t.note_unpublished());
        t.note_published(&alone, second);
        assert!(!t.is_published(&alone));
        t.give_up_publishing(&alone);
        assert!(t.is_published(&alone));
        let third = t.note_unpublished();
        t.note_published(&alone, first);
        assert!(!t.is_published(&alone));
        t.note_published(&alone, third);
        assert!(t.is_published(&alone));
    }

    #[test]
    fn a_protection_key_stays_until_another_call_names_one() {
        let keyed = Attr::from_prot(g::PROT_READ | g::PROT_WRITE).with_prot(g::PROT_READ | g::PROT_WRITE, Some(true));
        assert!(!keyed.is_readable() && !keyed.is_plain());
        let changed = keyed.with_prot(g::PROT_READ, None).with_prot(g::PROT_READ | g::PROT_WRITE, None);
        assert_eq!(changed, keyed);
        assert_eq!(changed.with_prot(g::PROT_READ | g::PROT_WRITE, Some(false)), RW);
        assert_eq!(RW.with_prot(g::PROT_READ, None), R);
    }

    #[test]
    fn what_is_kept_stays_so_with_another_protection() {
        assert!(RW.with_kept().with_prot(g::PROT_READ, None).with_dontfork(true).is_kept());
        assert!(RW.with_kept().is_plain() && !RW.is_kept());
        assert!(R.with_from_file().with_prot(g::PROT_READ | g::PROT_WRITE, None).is_from_file() && !R.is_from_file());
    }

    #[test]
    fn what_may_only_be_executed_may_not_be_read() {
        assert!(!Attr::from_prot(g::PROT_EXEC).is_readable());
        assert!(!Attr::from_prot(g::PROT_NONE).is_readable());
        for prot in [g::PROT_READ, g::PROT_WRITE, g::PROT_READ | g::PROT_EXEC, g::PROT_WRITE | g::PROT_EXEC] {
            assert!(Attr::from_prot(prot).is_readable(), "{prot}");
        }
    }

    #[test]
    fn a_change_without_room_is_told() {
        let t = Regions::with_room(4).expect("reserve");
        t.insert(&alone(), Region { start: 10, end: 20, attr: RW, group: Index::ROOT });
        assert!(t.change(&alone(), 12, 14, |_| R));
        assert_eq!(list(&t)[..4], [Some((10, 12, 3)), Some((12, 14, 1)), Some((14, 20, 3)), None]);
        assert!(!t.change(&alone(), 16, 18, |_| R));
        assert!(t.change(&alone(), 16, 18, |_| RW));
        assert_eq!(list(&t)[2], Some((14, 20, 3)));
    }

    #[test]
    fn equal_neighbours_are_joined() {
        let t = table(&[(10, 20, RW), (30, 40, RW), (20, 30, RW)]);
        assert_eq!(list(&t)[..2], [Some((10, 40, 3)), None]);
    }

    #[test]
    fn removing_the_middle_leaves_both_ends() {
        let t = table(&[(10, 50, RW)]);
        t.remove(&alone(), 20, 30);
        assert_eq!(list(&t)[..3], [Some((10, 20, 3)), Some((30, 50, 3)), None]);
    }

    #[test]
    fn changing_a_part_splits_the_region() {
        let t = table(&[(10, 50, RW)]);
        assert!(t.change(&alone(), 20, 30, |_| R));
        assert_eq!(list(&t)[..4], [Some((10, 20, 3)), Some((20, 30, 1)), Some((30, 50, 3)), None]);
    }

    #[test]
    fn a_new_region_replaces_what_it_covers() {
        let t = table(&[(10, 20, RW), (25, 40, R)]);
        t.insert(&alone(), Region { start: 15, end: 30, attr: RW, group: Index::ROOT });
        assert_eq!(list(&t)[..3], [Some((10, 30, 3)), Some((30, 40, 1)), None]);
    }

    #[test]
    fn an_empty_range_meets_no_region() {
        let t = table(&[(10, 50, RW)]);
        assert_eq!(t.first_in(&alone(), 20, 20), None);
    }

    #[test]
    fn an_address_between_regions_is_found_in_none() {
        let t = table(&[(10, 20, RW), (30, 40, RW)]);
        assert_eq!(t.find(&alone(), 20), None);
        assert_eq!(t.find(&alone(), 39).map(|r| r.start), Some(30));
    }

    #[test]
    fn neighbours_of_different_groups_stay_apart_until_they_are_of_one() {
        let t = table(&[(10, 50, RW), (60, 70, RW)]);
        let group = Index::from_raw(3);
        t.change_group(&alone(), 20, 65, group);
        let ranges = |t: &Regions| t.all(&alone()).map(|r| (r.start, r.end, r.group.raw())).collect::<Vec<_>>();
        assert_eq!(ranges(&t), [(10, 20, 0), (20, 50, 3), (60, 65, 3), (65, 70, 0)]);
        t.regroup(&alone(), group, Index::ROOT);
        assert_eq!(ranges(&t), [(10, 50, 0), (60, 70, 0)]);
    }

    #[test]
    fn new_attributes_leave_the_group_as_it_is() {
        let t = table(&[(10, 50, RW)]);
        t.change_group(&alone(), 10, 50, Index::from_raw(7));
        assert!(t.change(&alone(), 20, 30, |_| R));
        assert!(t.all(&alone()).count() == 3 && t.all(&alone()).all(|r| r.group == Index::from_raw(7)));
    }

    /// Changes a copy beside threads with these flags.
    fn change_beside(t: &Regions, gate: &Gate, flags: &[GateFlag], edit: impl FnOnce(&mut List) -> bool) -> bool {
        let own = GateFlag::default();
        t.change_beside(&mut gate.enter(&own), gate, || flags.iter(), true, edit)
    }

    #[test]
    fn a_thread_that_is_inside_keeps_the_version_that_it_reads() {
        let t = table(&[(10, 20, R), (20, 500, RW)]);
        let (gate, flags) = (Gate::default(), [GateFlag::default(), GateFlag::default()]);
        let inside = gate.enter(&flags[0]);
        let seen = t.list(&inside);
        for step in 1..VERSIONS {
            assert!(change_beside(&t, &gate, &flags, |list| list.change(20, 20 + step, |_| R)));
            assert_eq!(seen.all().map(|r| (r.start, r.end)).collect::<Vec<_>>(), [(10, 20), (20, 500)]);
        }
        // All other versions are older than what this thread may still read: the next change waits for it.
        std::thread::scope(|scope| {
            let change = scope.spawn(|| change_beside(&t, &gate, &flags, |list| list.change(20, 300, |_| R)));
            std::thread::sleep(std::time::Duration::from_millis(20));
            assert!(!change.is_finished());
            assert_eq!(
                [&t.list(&inside), &seen].map(|list| list.find(10).map(|r| r.end)),
                [Some(19 + VERSIONS), Some(20)]
            );
            flags[0].reset();
            assert!(change.join().expect("it goes on"));
        });
        drop(inside);
        assert_eq!(list(&t)[..3], [Some((10, 300, 1)), Some((300, 500, 3)), None]);
    }

    #[test]
    fn a_call_under_way_keeps_others_from_its_range() {
        let t = table(&[(10, 20, RW), (20, 30, RW), (40, 50, RW)]);
        let gate = Gate::default();
        let begin = |start, end| change_beside(&t, &gate, &[], |list| list.begin_change(start, end, Attr::hidden));
        assert!(!begin(30, 40), "there is nothing");
        assert!(!begin(25, 45), "others may map something in between");
        assert!(begin(12, 14) && begin(14, 16), "side by side");
        assert!(!begin(13, 15) && !begin(5, 60));
        let hidden = RW.hidden().bits();
        let parts = [(10, 12, 3), (12, 14, hidden), (14, 16, hidden), (16, 30, 3), (40, 50, 3)].map(Some);
        assert_eq!(list(&t)[..5], parts, "they stay apart");
        let inside = alone();
        assert!(t.find(&inside, 13).is_none() && t.find_any(&inside, 13).is_some_and(|r| r.start == 12));
        assert_eq!(t.first_in(&inside, 12, 60).map(|r| r.start), Some(16));
        assert!(change_beside(&t, &gate, &[], |list| {
            list.end_change(12, 14, |attr| attr);
            list.end_with_removal(14, 16);
            true
        }));
        assert_eq!(list(&t)[..4], [Some((10, 14, 3)), Some((16, 30, 3)), Some((40, 50, 3)), None]);
    }

    #[test]
    fn what_is_guarded_is_found_and_not_swept() {
        let guarded = RW.guarded();
        assert!(!guarded.is_readable() && !guarded.is_plain() && !guarded.is_hidden() && guarded.prot() == RW.prot());
        assert_eq!(guarded.with_prot(g::PROT_READ, None).settled(), R);
        assert_eq!(RW.hidden().settled(), RW);
    }

    #[test]
    fn a_change_in_place_goes_on_from_the_last_version() {
        let t = table(&[(10, 20, R), (20, 50, RW)]);
        let gate = Gate::default();
        for step in 1..10 {
            assert!(change_beside(&t, &gate, &[], |list| list.change(20, 20 + step, |_| R)));
            t.insert(&alone(), Region { start: 60 + step, end: 61 + step, attr: R, group: Index::ROOT });
        }
        assert_eq!(list(&t)[..4], [Some((10, 29, 1)), Some((29, 50, 3)), Some((61, 70, 1)), None]);
    }

    #[test]
    fn a_copy_that_is_not_wanted_is_no_version() {
        let t = table(&[(10, 50, RW)]);
        assert!(!change_beside(&t, &Gate::default(), &[], |list| !list.change(20, 30, |_| R)));
        assert_eq!(list(&t)[..2], [Some((10, 50, 3)), None]);
    }

    #[test]
    fn a_long_list_is_not_copied() {
        let parts: Vec<_> = (0..SHORT_MAX / 2).map(|i| (i * 20 + 10, i * 20 + 20, RW)).collect();
        let t = table(&parts);
        assert!(!change_beside(&t, &Gate::default(), &[], |_| panic!("copied")));
        t.remove(&alone(), 0, 20 * CHANGE_ROOM);
        assert!(change_beside(&t, &Gate::default(), &[], |list| list.change(0, usize::MAX, |_| R)));
    }

    #[test]
    fn a_region_that_borders_on_its_like_takes_no_new_version() {
        const NONE: Attr = Attr(0);
        let t = table(&[(10, 20, RW), (20, 50, NONE), (60, 70, RW)]);
        let (inside, group) = (alone(), Index::ROOT);
        let region = |start, end| Region { start, end, attr: RW, group };
        let none = || t.find(&inside, 40);
        assert!(t.widen_beside(&inside, region(20, 22), none()), "as a heap grows");
        assert!(!t.widen_beside(&inside, region(50, 52), None), "what it borders on is another");
        assert!(t.widen_beside(&inside, region(55, 60), None), "as mappings do that grow down");
        assert!(t.widen_beside(&inside, region(70, 80), None), "as the break does");
        assert_eq!(list(&t)[..4], [Some((10, 22, 3)), Some((22, 50, 0)), Some((55, 80, 3)), None]);
        assert!(!t.widen_beside(&inside, region(30, 32), none()), "in the middle");
        assert!(!t.widen_beside(&inside, region(22, 50), none()), "nothing would be left");
        assert!(!t.widen_beside(&inside, region(22, 55), none()), "of two");
        assert!(!t.widen_beside(&inside, region(22, 24), None), "not as it was before");
        assert!(!t.widen_beside(&inside, region(80, 90), t.find(&inside, 70)), "not as it was before");
        assert!(change_beside(&t, &Gate::default(), &[], |list| list.begin_change(24, 50, Attr::guarded)));
        assert!(!t.widen_beside(&inside, region(48, 50), t.find(&inside, 48)), "another call changes it");
        assert!(t.widen_beside(&inside, region(22, 23), t.find(&inside, 22)), "and not this");
        t.change_group(&alone(), 55, 80, Index::from_raw(5));
        assert!(!t.widen_beside(&inside, region(80, 90), None), "of another group");
    }

    #[test]
    fn only_reading_and_writing_can_be_gained() {
        let none = Attr::from_prot(g::PROT_NONE);
        assert!(none.only_gains(RW) && none.only_gains(R) && R.only_gains(RW) && RW.only_gains(RW));
        assert!(!RW.only_gains(R) && !R.only_gains(none) && !none.only_gains(RW.with_kept()));
        let runs = Attr::from_prot(g::PROT_READ | g::PROT_EXEC);
        assert!(!R.only_gains(runs) && !runs.only_gains(RW));
    }
}
