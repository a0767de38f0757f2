//! A sorted array of regions that never overlap. Neighbours of the same group with equal attributes are joined.

use crate::base::uapi::{self, Errno};
use crate::groups::table::Index;
use crate::memory::region::{Attr, Region};

/// The array. It never moves: unused entries take only address space.
pub struct List {
    at: *mut Region,
    len: usize,
    max: usize,
}

// SAFETY: the memory is the list's own.
unsafe impl Send for List {}

impl List {
    /// An empty list with room for `max` regions.
    pub(super) fn with_room(max: usize) -> Result<Self, Errno> {
        let at = uapi::reserve(max * core::mem::size_of::<Region>())?.cast();
        Ok(Self { at, len: 0, max })
    }

    /// All regions in address order.
    pub fn all(&self) -> &[Region] {
        // SAFETY: the first `len` entries are initialised.
        unsafe { core::slice::from_raw_parts(self.at, self.len) }
    }

    /// How many regions it has.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Takes over what `other` has.
    pub(super) fn copy_from(&mut self, other: &Self) {
        assert!(other.len <= self.max, "there are more mappings than regions");
        // SAFETY: both have so many entries, and are two.
        unsafe { core::ptr::copy_nonoverlapping(other.at, self.at, other.len) };
        self.len = other.len;
    }

    /// Index of the first region that ends after `addr`.
    fn index(&self, addr: usize) -> usize {
        index(self.all(), addr)
    }

    /// The first region that meets `[start, end)`.
    pub fn first_in(&self, start: usize, end: usize) -> Option<Region> {
        first_in(self.all(), start, end)
    }

    /// True when there is room for `n` more regions.
    pub fn has_room(&self, n: usize) -> bool {
        self.len + n <= self.max
    }

    /// Takes `[start, end)` out. Needs room for one more region where the range lies within one region.
    pub fn remove(&mut self, start: usize, end: usize) {
        let first = self.index(start);
        let mut last = first;
        let mut left = None;
        let mut right = None;
        while let Some(r) = self.all().get(last).copied().filter(|r| r.start < end) {
            if r.start < start {
                left = Some(Region { end: start, ..r });
            }
            if r.end > end {
                right = Some(Region { start: end, ..r });
            }
            last += 1;
        }
        let keep = [left, right];
        self.splice(first, last, keep.iter().flatten());
    }

    /// Adds `region` in place of whatever was there. Needs room for three more regions.
    pub fn insert(&mut self, region: Region) {
        assert!(region.start < region.end);
        self.remove(region.start, region.end);
        let mut region = region;
        let mut first = self.index(region.start);
        let mut last = first;
        if let Some(next) = self.all().get(first).copied()
            && next.start == region.end
            && next.joins(&region)
        {
            region.end = next.end;
            last += 1;
        }
        if first > 0 {
            let before = self.all()[first - 1];
            if before.end == region.start && before.joins(&region) {
                region.start = before.start;
                first -= 1;
            }
        }
        self.splice(first, last, [region].iter());
    }

    /// Changes the attributes of the managed parts of `[start, end)`. False when there was no room for that: a part of
    /// the range still has its old attributes.
    #[must_use]
    pub fn change(&mut self, start: usize, end: usize, f: impl Fn(Attr) -> Attr) -> bool {
        let mut at = start;
        while let Some(r) = self.first_in(at, end) {
            let part = Region { start: r.start.max(at), end: r.end.min(end), attr: f(r.attr), ..r };
            if part.attr != r.attr {
                if !self.has_room(3) {
                    return false;
                }
                self.insert(part);
            }
            at = part.end;
        }
        true
    }

    /// Makes the managed parts of `[start, end)` belong to `group`. Needs room for four more regions.
    pub fn change_group(&mut self, start: usize, end: usize, group: Index) {
        let mut at = start;
        while let Some(r) = self.first_in(at, end) {
            let part = Region { start: r.start.max(at), end: r.end.min(end), group, ..r };
            if part.group != r.group {
                self.insert(part);
            }
            at = part.end;
        }
    }

    /// Changes the attributes of `[start, end)` by `f` for the time of a call beside other threads. False if such a call changes
    /// some of the range already, if the range has a hole, in which others might map something meanwhile, or if there is no room.
    #[must_use]
    pub fn begin_change(&mut self, start: usize, end: usize, f: impl Fn(Attr) -> Attr) -> bool {
        let mut at = start;
        for region in &self.all()[self.index(start)..] {
            if at >= end {
                break;
            }
            if region.start > at || region.attr.is_changing() {
                return false;
            }
            at = region.end;
        }
        at >= end && self.change(start, end, f)
    }

    /// Ends what [`Self::begin_change`] began for the same range: changes the attributes by `f`. Adds no regions.
    pub fn end_change(&mut self, start: usize, end: usize, f: impl Fn(Attr) -> Attr) {
        self.edit_all(|region| {
            if start <= region.start && region.end <= end && region.attr.is_changing() {
                region.attr = f(region.attr).settled();
            }
        });
    }

    /// Ends what [`Self::begin_change`] began for the same range: takes it out.
    pub fn end_with_removal(&mut self, start: usize, end: usize) {
        let mut at = self.index(start);
        while let Some(r) = self.all().get(at).copied().filter(|r| r.start < end) {
            if r.attr.is_changing() && start <= r.start && r.end <= end {
                self.splice(at, at + 1, [].iter());
            } else {
                at += 1;
            }
        }
    }

    /// Makes the regions of group `old` belong to `new`.
    pub fn regroup(&mut self, old: Index, new: Index) {
        self.edit_all(|region| {
            if region.group == old {
                region.group = new;
            }
        });
    }

    /// Changes each region by `f`, which leaves it where it is, and joins neighbours.
    fn edit_all(&mut self, f: impl Fn(&mut Region)) {
        // SAFETY: the first `len` entries are initialised.
        let all = unsafe { core::slice::from_raw_parts_mut(self.at, self.len) };
        // In place: the place to write to never overtakes the place to read from.
        let mut kept = 0;
        for i in 0..all.len() {
            let mut region = all[i];
            f(&mut region);
            if kept > 0 && all[kept - 1].end == region.start && all[kept - 1].joins(&region) {
                all[kept - 1].end = region.end;
            } else {
                all[kept] = region;
                kept += 1;
            }
        }
        self.len = kept;
    }

    /// Replaces entries `[first, last)` by `with`.
    fn splice<'a>(&mut self, first: usize, last: usize, with: impl Iterator<Item = &'a Region> + Clone) {
        let n = with.clone().count();
        assert!(self.len - (last - first) + n <= self.max, "there are more mappings than regions");
        // SAFETY: indices are within the list, and there is room for what moves.
        unsafe {
            core::ptr::copy(self.at.add(last), self.at.add(first + n), self.len - last);
            for (i, region) in with.enumerate() {
                self.at.add(first + i).write(*region);
            }
        }
        self.len = self.len - (last - first) + n;
    }
}

/// Index of the first region that ends after `addr`.
pub(super) fn index(all: &[Region], addr: usize) -> usize {
    all.partition_point(|r| r.end <= addr)
}

/// The first region that meets `[start, end)`.
pub(super) fn first_in(all: &[Region], start: usize, end: usize) -> Option<Region> {
    all.get(index(all, start)).copied().filter(|r| r.start < end && start < end)
}
