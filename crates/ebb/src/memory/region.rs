//! The region table: which ranges of the address space Ebb manages, and with what protection.
//!
//! A sorted array of ranges that never overlap. It changes only under the exclusive gate and is read only inside the
//! gate, so neither side locks. Neighbours of the same group with equal attributes are joined.

use crate::base::uapi::{self, Errno};
use crate::groups::table::Index;
use crate::protocols::gate::{Exclusive, Held};
use core::cell::UnsafeCell;
use linux_raw_sys::general as g;

/// Most regions there can be: more than any distribution's bound on mappings (vm.max_map_count, at most 2^20). Unused
/// entries take only address space.
const REGIONS_MAX: usize = 1 << 21;

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
    /// True when the two differ only in where they are. Such neighbours are one region.
    fn joins(&self, other: &Self) -> bool {
        self.attr == other.attr && self.group == other.group
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

    /// These attributes, with mmap's `prot` in place of the old protection. `keyed` says whether there is a protection
    /// key; without it the key stays as it was.
    pub fn with_prot(self, prot: u32, keyed: Option<bool>) -> Self {
        let keep = self.0 & (Self::DONTFORK | Self::WIPEONFORK | Self::DONTDUMP | Self::KEPT | Self::FROM_FILE);
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
        self.0 & Self::READ != 0 && self.0 & Self::KEYED == 0
    }

    /// True when it is readable and writable, nothing else. Evicting by MOVE needs that, because its two sides must agree.
    pub fn is_plain(self) -> bool {
        self.0 & (Self::READ | Self::WRITE | Self::EXEC | Self::KEYED) == Self::READ | Self::WRITE
    }
}

struct Table {
    at: *mut Region,
    len: usize,
    max: usize,
}

/// All regions of a space.
pub struct Regions {
    table: UnsafeCell<Table>,
}

// SAFETY: the tokens say that reads happen inside the gate, and changes with it closed, so no change races with anything.
unsafe impl Sync for Regions {}
// SAFETY: as above.
unsafe impl Send for Regions {}

impl Regions {
    /// An empty table.
    pub fn new() -> Result<Self, Errno> {
        Self::with_room(REGIONS_MAX)
    }

    fn with_room(max: usize) -> Result<Self, Errno> {
        let at = uapi::reserve(max * core::mem::size_of::<Region>())?.cast();
        Ok(Self { table: UnsafeCell::new(Table { at, len: 0, max }) })
    }

    /// All regions in address order.
    pub fn all<'a>(&'a self, _held: &'a Held) -> &'a [Region] {
        // SAFETY: the first `len` entries are initialised. While the token is borrowed nobody else changes them, and a
        // thread that has closed the gate keeps no slice across a change of its own.
        unsafe {
            let table = &*self.table.get();
            core::slice::from_raw_parts(table.at, table.len)
        }
    }

    /// Index of the first region that ends after `addr`.
    fn index(&self, held: &Held, addr: usize) -> usize {
        self.all(held).partition_point(|r| r.end <= addr)
    }

    /// The region that contains `addr`.
    #[inline]
    pub fn find(&self, held: &Held, addr: usize) -> Option<Region> {
        self.all(held).get(self.index(held, addr)).copied().filter(|r| r.start <= addr)
    }

    /// The first region that meets `[start, end)`.
    pub fn first_in(&self, held: &Held, start: usize, end: usize) -> Option<Region> {
        self.all(held).get(self.index(held, start)).copied().filter(|r| r.start < end && start < end)
    }

    /// True when there is room for `n` more regions.
    pub fn has_room(&self, held: &Held, n: usize) -> bool {
        // SAFETY: `max` never changes.
        self.all(held).len() + n <= unsafe { (*self.table.get()).max }
    }

    /// Takes `[start, end)` out. Needs room for one more region where the range lies within one region.
    pub fn remove(&self, exclusive: &Exclusive<'_>, start: usize, end: usize) {
        let first = self.index(exclusive, start);
        let mut last = first;
        let mut left = None;
        let mut right = None;
        while let Some(r) = self.all(exclusive).get(last).copied().filter(|r| r.start < end) {
            if r.start < start {
                left = Some(Region { end: start, ..r });
            }
            if r.end > end {
                right = Some(Region { start: end, ..r });
            }
            last += 1;
        }
        let keep = [left, right];
        self.splice(exclusive, first, last, keep.iter().flatten());
    }

    /// Adds `region` in place of whatever was there. Needs room for three more regions.
    pub fn insert(&self, exclusive: &Exclusive<'_>, region: Region) {
        assert!(region.start < region.end);
        self.remove(exclusive, region.start, region.end);
        let mut region = region;
        let mut first = self.index(exclusive, region.start);
        let mut last = first;
        if let Some(next) = self.all(exclusive).get(first).copied()
            && next.start == region.end
            && next.joins(&region)
        {
            region.end = next.end;
            last += 1;
        }
        if first > 0 {
            let before = self.all(exclusive)[first - 1];
            if before.end == region.start && before.joins(&region) {
                region.start = before.start;
                first -= 1;
            }
        }
        self.splice(exclusive, first, last, [region].iter());
    }

    /// Changes the attributes of what is managed in `[start, end)`. False when there was no room for that: a part of
    /// the range still has its old attributes.
    #[must_use]
    pub fn change(&self, exclusive: &Exclusive<'_>, start: usize, end: usize, f: impl Fn(Attr) -> Attr) -> bool {
        let mut at = start;
        while let Some(r) = self.first_in(exclusive, at, end) {
            let part = Region { start: r.start.max(at), end: r.end.min(end), attr: f(r.attr), ..r };
            if part.attr != r.attr {
                if !self.has_room(exclusive, 3) {
                    return false;
                }
                self.insert(exclusive, part);
            }
            at = part.end;
        }
        true
    }

    /// Makes what is managed in `[start, end)` belong to `group`. Needs room for four more regions.
    pub fn change_group(&self, exclusive: &Exclusive<'_>, start: usize, end: usize, group: Index) {
        let mut at = start;
        while let Some(r) = self.first_in(exclusive, at, end) {
            let part = Region { start: r.start.max(at), end: r.end.min(end), group, ..r };
            if part.group != r.group {
                self.insert(exclusive, part);
            }
            at = part.end;
        }
    }

    /// Makes what belongs to group `old` belong to `new`.
    pub fn regroup(&self, _exclusive: &Exclusive<'_>, old: Index, new: Index) {
        // SAFETY: nobody else reads with the gate closed; the first `len` entries are initialised.
        let (all, len) = unsafe {
            let table = &mut *self.table.get();
            (core::slice::from_raw_parts_mut(table.at, table.len), &mut table.len)
        };
        // In place: the place to write to never overtakes the place to read from.
        let mut kept = 0;
        for i in 0..all.len() {
            let mut region = all[i];
            if region.group == old {
                region.group = new;
            }
            if kept > 0 && all[kept - 1].end == region.start && all[kept - 1].joins(&region) {
                all[kept - 1].end = region.end;
            } else {
                all[kept] = region;
                kept += 1;
            }
        }
        *len = kept;
    }

    /// Replaces entries `[first, last)` by `with`.
    fn splice<'a>(
        &self,
        _exclusive: &Exclusive<'_>,
        first: usize,
        last: usize,
        with: impl Iterator<Item = &'a Region> + Clone,
    ) {
        let n = with.clone().count();
        // SAFETY: nobody reads with the gate closed; indices are within the table, and callers checked room.
        unsafe {
            let table = &mut *self.table.get();
            assert!(table.len - (last - first) + n <= table.max, "there are more mappings than regions");
            core::ptr::copy(table.at.add(last), table.at.add(first + n), table.len - last);
            for (i, region) in with.enumerate() {
                table.at.add(first + i).write(*region);
            }
            table.len = table.len - (last - first) + n;
        }
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
        let ranges = |t: &Regions| t.all(&alone()).iter().map(|r| (r.start, r.end, r.group.raw())).collect::<Vec<_>>();
        assert_eq!(ranges(&t), [(10, 20, 0), (20, 50, 3), (60, 65, 3), (65, 70, 0)]);
        t.regroup(&alone(), group, Index::ROOT);
        assert_eq!(ranges(&t), [(10, 50, 0), (60, 70, 0)]);
    }

    #[test]
    fn new_attributes_leave_the_group_as_it_is() {
        let t = table(&[(10, 50, RW)]);
        t.change_group(&alone(), 10, 50, Index::from_raw(7));
        assert!(t.change(&alone(), 20, 30, |_| R));
        assert!(t.all(&alone()).len() == 3 && t.all(&alone()).iter().all(|r| r.group == Index::from_raw(7)));
    }
}
