//! Pages that a sweep has claimed, and that a thread waits for.
//!
//! A thread that writes to a claimed page waits. That it does is a use that the sweep did not know of: to evict the page now would
//! be a mistake. So the claims on open pages are loose while they are compressed or copied, and the thread takes its page back.
//! Holes between these pages are nobody's meanwhile: they are claimed again before anything is dropped. Who waits for a page that
//! is shared since a fork waits for the segment.

use crate::base::PAGE;
use crate::memory::table::UNIT_PAGES;
use crate::pages::claims::{self, NOT_CLAIMED};
use crate::protocols::page::State;
use crate::space::Space;
use crate::way_out::unmap;
use core::cell::Cell;
use core::ops::Range;

/// The claims of a sweep on the open pages of a write-protected segment, made loose. They must be firmed up before anything is
/// dropped, and before any of them ends.
///
/// Who takes a page back may give it up at once, so that it is not even mapped. So each page is held while it is read.
pub(crate) struct Loose {
    ticket: u64,
    nr_lost: Cell<usize>,
}

/// Whether the claim on a page in this saved state is loose.
fn is_loose(raw: u64) -> bool {
    claims::is_present(raw) && State::from_raw(raw).is_open() && !State::from_raw(raw).is_pinned()
}

impl Loose {
    /// Makes the claims loose, and ends those on holes. The segment must be write-protected already: who takes a page back lifts the
    /// protection.
    pub(crate) fn new(space: &Space, unit: usize, segment: Range<usize>, saved: &mut [u64; UNIT_PAGES]) -> Self {
        let loose = Self { ticket: space.eviction.ticket(), nr_lost: Cell::new(0) };
        loose.let_go(space, unit, segment.clone(), saved);
        for page in segment {
            if !claims::is_present(saved[page]) {
                unmap::unclaim(space, unit, page, page + 1, saved);
            }
        }
        loose
    }

    /// Copies the page at `addr`. False if it was taken back.
    pub(crate) fn copy(&self, space: &Space, addr: usize, to: &mut [u8; PAGE]) -> bool {
        let Some(word) = space.table.word(addr).filter(|word| word.firm_up(self.ticket)) else {
            self.nr_lost.set(self.nr_lost.get() + 1);
            return false;
        };
        // SAFETY: the page is present, claimed and write-protected, so it is mapped and nobody writes to it.
        to.copy_from_slice(unsafe { &*(addr as *const [u8; PAGE]) });
        word.loosen(self.ticket);
        true
    }

    /// Pages that [`Self::copy`] found taken back.
    pub(crate) fn nr_lost(&self) -> usize {
        self.nr_lost.get()
    }

    /// Holds the first of these pages that are still claimed, and present: nobody takes them back until [`Self::let_go`]. Returns
    /// where they end.
    pub(crate) fn hold(&self, space: &Space, unit: usize, pages: Range<usize>, saved: &[u64; UNIT_PAGES]) -> usize {
        let firm_up = |page: usize| space.table.word(unit + page * PAGE).is_some_and(|word| word.firm_up(self.ticket));
        let may_go = |page: &usize| claims::is_present(saved[*page]) && (!is_loose(saved[*page]) || firm_up(*page));
        pages.start + pages.take_while(may_go).count()
    }

    /// Lets pages go that are held.
    pub(crate) fn let_go(&self, space: &Space, unit: usize, pages: Range<usize>, saved: &[u64; UNIT_PAGES]) {
        for page in pages.filter(|page| is_loose(saved[*page])) {
            if let Some(word) = space.table.word(unit + page * PAGE) {
                word.loosen(self.ticket);
            }
        }
    }

    /// Firms the claims up, and claims the holes again that still are holes. Calls `lost` for pages that were taken back: they are no
    /// longer claimed.
    pub(crate) fn firm_up(
        self,
        space: &Space,
        unit: usize,
        segment: Range<usize>,
        saved: &mut [u64; UNIT_PAGES],
        mut lost: impl FnMut(usize),
    ) {
        for page in segment.clone() {
            let firm_up = || space.table.word(unit + page * PAGE).is_some_and(|word| word.firm_up(self.ticket));
            if is_loose(saved[page]) && !firm_up() {
                saved[page] = NOT_CLAIMED;
                lost(page);
            }
        }
        // What was unmapped from the segment meanwhile is still there: that waits until this thread has left the gate.
        unmap::claim_holes(space, unit, segment, saved);
    }
}

/// The next run of pages of a segment that are still claimed, cut to begin and end with a present page.
pub(crate) fn next_run(pages: Range<usize>, saved: &[u64; UNIT_PAGES]) -> Option<Range<usize>> {
    let is_present = |page: &usize| claims::is_present(saved[*page]);
    let first = pages.clone().find(is_present)?;
    let end = (first..pages.end).find(|page| saved[*page] == NOT_CLAIMED).unwrap_or(pages.end);
    let last = (first..end).rfind(is_present)?;
    Some(first..last + 1)
}
