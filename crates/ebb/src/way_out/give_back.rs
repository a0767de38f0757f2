//! Pages that a sweep has claimed and gives back, because a thread waits for them.
//!
//! A thread that writes to a claimed page waits. That it does is a use that the sweep did not know of: to evict the page now would
//! be a mistake. So sweeps that take long look, from time to time, whether somebody waits.

use crate::base::PAGE;
use crate::counters::stats;
use crate::memory::table::UNIT_PAGES;
use crate::pages::claims::{self, NOT_CLAIMED};
use crate::protocols::page::State;
use crate::space::Space;
use crate::way_out::unmap;
use core::ops::Range;

/// Ends the claims on those pages of a write-protected segment that a thread waits for. They stay as they are.
///
/// `undo` is called for each of them that is present, before its claim ends.
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
        if claims::is_present(raw) {
            undo(page);
            if !State::from_raw(raw).is_protected() {
                // A failure leaves a page protected whose state says it is open. A write will find that out, see `spurious`.
                let _ = space.uffd().write_protect(unit + page * PAGE, PAGE, false);
            }
            stats::add(&space.stats.given_back_pages, 1);
        }
        unmap::unclaim(space, unit, page, page + 1, saved);
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
