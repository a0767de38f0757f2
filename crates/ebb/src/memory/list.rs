//! The list of regions, in address order: a row of bounds, and what is between them. Neighbours of the same group with equal
//! attributes are joined.
//!
//! What changes a list needs it for itself, but for one thing: a bound moves beside threads that read, see
//! [`crate::protocols::bounds`].

use crate::base::uapi::{self, Errno};
use crate::groups::table::Index;
use crate::memory::region::{Attr, Region};
use crate::protocols::bounds::{self, Part};
use core::sync::atomic::{AtomicU64, Ordering};

/// What a range is: managed, with these attributes and for this group. None for a hole.
type What = Option<(Attr, Index)>;

/// Where a part begins, and what it is.
struct Bound {
    at: AtomicU64,
    what: What,
}

/// The list. It never moves: unused entries take only address space.
pub struct List {
    at: *mut Bound,
    len: usize,
    max: usize,
}

// SAFETY: the memory is the list's own.
unsafe impl Send for List {}

/// True when two neighbours are one part: holes, and equal regions unless two calls may be changing them.
fn joins(a: What, b: What) -> bool {
    a == b && a.is_none_or(|(attr, _)| !attr.is_changing())
}

impl List {
    /// An empty list with room for `max` bounds.
    pub(super) fn with_room(max: usize) -> Result<Self, Errno> {
        let at: *mut Bound = uapi::reserve(max * core::mem::size_of::<Bound>())?.cast();
        // SAFETY: the memory is new, and has room for one.
        unsafe { at.write(Bound { at: AtomicU64::new(0), what: None }) };
        Ok(Self { at, len: 1, max })
    }

    fn bounds(&self) -> &[Bound] {
        // SAFETY: the first `len` entries are initialised.
        unsafe { core::slice::from_raw_parts(self.at, self.len) }
    }

    fn bounds_mut(&mut self) -> &mut [Bound] {
        // SAFETY: as above, and the list is the caller's.
        unsafe { core::slice::from_raw_parts_mut(self.at, self.len) }
    }

    /// How many bounds it has.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Takes over what `other` has.
    pub(super) fn copy_from(&mut self, other: &Self) {
        assert!(other.len <= self.max, "there are more mappings than regions");
        for (i, bound) in other.bounds().iter().enumerate() {
            // SAFETY: there is room for as many. No bound of the other one moves, because whoever moves one is alone with that.
            unsafe { self.at.add(i).write(Bound { at: AtomicU64::new(bound.at.load(Ordering::Acquire)), ..*bound }) };
        }
        self.len = other.len;
    }

    /// The part that has `addr`.
    #[inline]
    fn look(&self, addr: usize) -> Part {
        let bounds = self.bounds();
        bounds::look(bounds.len(), |i| bounds[i].at.load(Ordering::Acquire), addr as u64)
    }

    /// The region that has `addr`.
    #[inline]
    pub(super) fn find(&self, addr: usize) -> Option<Region> {
        let Part { index, start, end } = self.look(addr);
        self.bounds()[index].what.map(|(attr, group)| Region { start: start as usize, end: end as usize, attr, group })
    }

    /// All regions in address order.
    pub fn all(&self) -> impl Iterator<Item = Region> {
        self.from(0)
    }

    /// The regions from the one that has `addr`, or follows it, on.
    fn from(&self, addr: usize) -> impl Iterator<Item = Region> {
        let bounds = self.bounds();
        let mut next = self.look(addr);
        core::iter::from_fn(move || {
            while next.index < bounds.len() {
                let Part { index, start, end } = next;
                let behind = bounds.get(index + 2).map_or(u64::MAX, |bound| bound.at.load(Ordering::Acquire));
                // Nothing is left of a part whose end has moved to before what was its start a moment ago.
                next = Part { index: index + 1, start: end, end: behind.max(end) };
                if let Some((attr, group)) = bounds[index].what
                    && start < end
                {
                    return Some(Region { start: start as usize, end: end as usize, attr, group });
                }
            }
            None
        })
    }

    /// The first region that meets `[start, end)`.
    pub fn first_in(&self, start: usize, end: usize) -> Option<Region> {
        self.from(start).next().filter(|region| region.start < end && start < end)
    }

    /// True if all of the range of `region` is still what the caller found `before`: of one region, or a hole.
    pub fn is_still(&self, region: Region, before: Option<Region>) -> bool {
        match (self.first_in(region.start, region.end), before) {
            (None, None) => true,
            (Some(now), Some(before)) => {
                now.has(region.start, region.end) && (now.attr, now.group) == (before.attr, before.group)
            }
            _ => false,
        }
    }

    /// True when there is room for `n` more regions.
    pub fn has_room(&self, n: usize) -> bool {
        self.len + 2 * n <= self.max
    }

    /// Makes `[start, end)` what it is to be. Needs room for one more region, or two where the range lies within one.
    fn set(&mut self, start: usize, end: usize, what: What) {
        if start >= end {
            return;
        }
        let (first, last) = (self.look(start), self.look(end));
        let bounds = self.bounds();
        // Bounds before `from` and after `to` stay. What the range cuts off on the right begins at its end.
        let from = first.index + (first.start < start as u64) as usize;
        let is_cut = last.start < end as u64;
        let mut to = last.index + is_cut as usize;
        let behind = bounds[last.index].what;
        let is_joined = from > 0 && joins(bounds[from - 1].what, what);
        let joins_behind = joins(what, behind);
        to += (joins_behind && !is_cut) as usize;
        let new = [(!is_joined).then_some((start, what)), (is_cut && !joins_behind).then_some((end, behind))];
        self.splice(from, to, new.iter().flatten());
    }

    /// Takes `[start, end)` out. Needs room for one more region where the range lies within one region.
    pub fn remove(&mut self, start: usize, end: usize) {
        self.set(start, end, None);
    }

    /// Adds `region` in place of whatever was there. Needs room for three more regions.
    pub fn insert(&mut self, region: Region) {
        assert!(region.start < region.end);
        self.set(region.start, region.end, Some((region.attr, region.group)));
    }

    /// Adds `region`, if that takes no more than to move one bound: where a hole or a region of other attributes borders on a
    /// region that joins it, and is not used up. False if it takes more, or if another call changes what is there.
    ///
    /// The one change beside threads that read the list. The caller is the only one that changes it.
    #[must_use]
    pub(super) fn widen(&self, region: Region) -> bool {
        let (start, end, bounds) = (region.start as u64, region.end as u64, self.bounds());
        let part = self.look(region.start);
        let is_changing = bounds[part.index].what.is_some_and(|(attr, _)| attr.is_changing());
        if is_changing || end > part.end {
            return false;
        }
        let takes_over =
            |index: usize| bounds.get(index).is_some_and(|bound| joins(bound.what, Some((region.attr, region.group))));
        let moved = if start == part.start && end < part.end && part.index > 0 && takes_over(part.index - 1) {
            Some((part.index, end))
        } else if start > part.start && end == part.end && takes_over(part.index + 1) {
            Some((part.index + 1, start))
        } else {
            None
        };
        let Some((index, to)) = moved else { return false };
        bounds[index].at.store(to, Ordering::Release);
        true
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
        for region in self.from(start) {
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

    /// Hides the managed parts of `[start, end)` for the time of a call beside other threads. False if such a call changes some of the
    /// range already, or if there is no room.
    #[must_use]
    pub fn hide_parts(&mut self, start: usize, end: usize) -> bool {
        self.all_in(start, end, |attr| !attr.is_changing()) && self.change(start, end, Attr::hidden)
    }

    /// True if all regions that meet `[start, end)` are as they `may` be.
    pub fn all_in(&self, start: usize, end: usize, may: impl Fn(Attr) -> bool) -> bool {
        self.from(start).take_while(|region| region.start < end).all(|region| may(region.attr))
    }

    /// Ends what [`Self::begin_change`] began for the same range: changes the attributes by `f`. Adds no regions.
    pub fn end_change(&mut self, start: usize, end: usize, f: impl Fn(Attr) -> Attr) {
        self.edit_all(|region, what| {
            if region.attr.is_changing() && start <= region.start && region.end <= end {
                *what = Some((f(region.attr).settled(), region.group));
            }
        });
    }

    /// Ends what [`Self::begin_change`] began for the same range: takes it out.
    pub fn end_with_removal(&mut self, start: usize, end: usize) {
        self.edit_all(|region, what| {
            if region.attr.is_changing() && start <= region.start && region.end <= end {
                *what = None;
            }
        });
    }

    /// Makes the regions of group `old` belong to `new`.
    pub fn regroup(&mut self, old: Index, new: Index) {
        self.edit_all(|region, what| {
            if region.group == old {
                *what = Some((region.attr, new));
            }
        });
    }

    /// Changes what each region is by `f`, and joins neighbours.
    fn edit_all(&mut self, f: impl Fn(Region, &mut What)) {
        let bounds = self.bounds_mut();
        // In place: the place to write to never overtakes the place to read from.
        let mut kept = 0;
        for i in 0..bounds.len() {
            let at = *bounds[i].at.get_mut();
            let end = bounds.get_mut(i + 1).map_or(u64::MAX, |next| *next.at.get_mut());
            let mut what = bounds[i].what;
            if let Some((attr, group)) = what {
                f(Region { start: at as usize, end: end as usize, attr, group }, &mut what);
            }
            if kept == 0 || !joins(bounds[kept - 1].what, what) {
                bounds[kept] = Bound { at: AtomicU64::new(at), what };
                kept += 1;
            }
        }
        self.len = kept;
    }

    /// Replaces bounds `[first, last)` by `with`.
    fn splice<'a>(&mut self, first: usize, last: usize, with: impl Iterator<Item = &'a (usize, What)> + Clone) {
        let n = with.clone().count();
        assert!(self.len - (last - first) + n <= self.max, "there are more mappings than regions");
        // SAFETY: indices are within the list, and there is room for what moves.
        unsafe {
            core::ptr::copy(self.at.add(last), self.at.add(first + n), self.len - last);
            for (i, (at, what)) in with.enumerate() {
                self.at.add(first + i).write(Bound { at: AtomicU64::new(*at as u64), what: *what });
            }
        }
        self.len = self.len - (last - first) + n;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PAGES: usize = 24;

    /// What each page is.
    type Plain = [What; PAGES];

    fn plain(list: &List) -> Plain {
        let mut pages = [None; PAGES];
        list.all().for_each(|r| pages[r.start..r.end].fill(Some((r.attr, r.group))));
        pages
    }

    fn check(list: &List, pages: &Plain) {
        assert_eq!(plain(list), *pages);
        let bounds = list.bounds();
        for (i, pair) in bounds.windows(2).enumerate() {
            let [a, b] = [&pair[0], &pair[1]].map(|bound| bound.at.load(Ordering::Relaxed));
            assert!(a < b && !joins(pair[0].what, pair[1].what), "bound {i}");
        }
        for (page, what) in pages.iter().enumerate() {
            let found = list.find(page);
            assert_eq!(found.map(|r| (r.attr, r.group)), *what);
            assert!(found.is_none_or(|r| r.start <= page && page < r.end));
            for end in page + 1..PAGES {
                let first = (page..end).find(|at| pages[*at].is_some());
                assert_eq!(list.first_in(page, end).map(|r| r.start.max(page)), first);
            }
        }
    }

    proptest! {
        #[test]
        fn a_list_says_of_each_page_what_was_said_last(
            changes in proptest::collection::vec((0..5u8, 1..PAGES, 1..PAGES, 0..3u32, 0..2u32), 1..60)
        ) {
            let mut list = List::with_room(2 * PAGES + 8).expect("reserve");
            let mut pages: Plain = [None; PAGES];
            for (kind, a, b, prot, group) in changes {
                let (start, end) = (a.min(b), a.max(b));
                let (attr, group) = (Attr::from_prot(prot), Index::from_raw(group));
                let region = Region { start, end, attr, group };
                match kind {
                    _ if start == end => continue,
                    0 => {
                        list.remove(start, end);
                        pages[start..end].fill(None);
                    }
                    1 => {
                        list.insert(region);
                        pages[start..end].fill(Some((attr, group)));
                    }
                    2 => {
                        let before = list.len();
                        if list.widen(region) {
                            prop_assert!(pages[start..end].iter().all(|page| *page == pages[start]));
                            prop_assert_eq!(list.len(), before);
                            pages[start..end].fill(Some((attr, group)));
                        }
                    }
                    3 => {
                        prop_assert!(list.change(start, end, |_| attr));
                        pages[start..end].iter_mut().flatten().for_each(|page| page.0 = attr);
                    }
                    _ => {
                        list.change_group(start, end, group);
                        pages[start..end].iter_mut().flatten().for_each(|page| page.1 = group);
                    }
                }
                check(&list, &pages);
            }
        }
    }
}
