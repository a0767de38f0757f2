//! Pages that a sweep has claimed, and that stay mapped: pages with heat, and pages that a thread waits for.
//!
//! A page with heat lies among pages that go. It is claimed with them, so that write protection can cover all of a segment by
//! one call, and be lifted by one call. What goes is dropped around it.

use crate::base::PAGE;
use crate::counters::stats;
use crate::memory::table::UNIT_PAGES;
use crate::pages::claims::{self, NOT_CLAIMED};
use crate::space::Space;
use crate::way_out::unmap;
use core::ops::Range;

/// Ends the claims on those claimed pages of a write-protected segment that a thread waits for. They stay as they are: who waits
/// uses them, so to evict them now would be a mistake.
///
/// `undo` is called for each page before its claim ends.
pub(crate) fn give_back_wanted(
    space: &Space,
    unit: usize,
    segment: Range<usize>,
    saved: &mut [u64; UNIT_PAGES],
    mut undo: impl FnMut(usize),
) {
    for page in segment {
        let raw = saved[page];
        if raw == NOT_CLAIMED || !space.table.word(unit + page * PAGE).is_some_and(|word| word.is_wanted()) {
            continue;
        }
        undo(page);
        if claims::is_mapped(raw) {
            // A failure leaves a page protected whose state says it is open. A write will find that out, see `spurious`.
            let _ = space.uffd().write_protect(unit + page * PAGE, PAGE, false);
            stats::add(&space.stats.given_back_pages, 1);
        }
        unmap::unclaim(space, unit, page, page + 1, saved);
    }
}

/// Lifts the write protection of claimed pages that are still mapped.
///
/// A call covers no page that is not claimed: another sweep may rely on the protection of such a page.
pub(crate) fn lift(space: &Space, unit: usize, pages: Range<usize>, saved: &[u64; UNIT_PAGES]) {
    let mut at = pages.start;
    while at < pages.end {
        let end = (at..pages.end).find(|page| saved[*page] == NOT_CLAIMED).unwrap_or(pages.end);
        let is_mapped = |page: &usize| claims::is_mapped(saved[*page]);
        if let (Some(first), Some(last)) = ((at..end).find(is_mapped), (at..end).rfind(is_mapped)) {
            // As in `give_back_wanted`.
            let _ = space.uffd().write_protect(unit + first * PAGE, (last + 1 - first) * PAGE, false);
        }
        at = end + 1;
    }
}

/// Ends the claims on those of the pages that stay, before the others move.
pub(crate) fn release(space: &Space, unit: usize, pages: Range<usize>, saved: &mut [u64; UNIT_PAGES]) {
    for page in pages {
        if claims::stays(saved[page]) {
            unmap::unclaim(space, unit, page, page + 1, saved);
        }
    }
}
