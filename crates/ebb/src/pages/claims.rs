//! Claims runs of pages, and says which pages a sweep has claimed. Whoever turned a page's word to `BUSY` has claimed it.

use crate::base::PAGE;
use crate::protocols::page::{PageWord, State, Tag};
use crate::space::Space;

/// In place of a saved state: the sweep did not claim this page of the unit.
pub(crate) const NOT_CLAIMED: u64 = u64::MAX;

/// True for the saved state of a claimed page that is mapped.
pub(crate) fn is_present(raw: u64) -> bool {
    raw != NOT_CLAIMED && State::from_raw(raw).tag() == Tag::Present
}

/// Claims the page at `addr`, seen in `state`, and the pages after it below `end` for which `want` holds. Returns how many; 0
/// if another thread changed the first.
///
/// `want` gets the number of the page in the run, and its state. It is not asked about the first page.
pub(crate) fn claim_run(
    space: &Space,
    addr: usize,
    word: PageWord<'_>,
    state: State,
    end: usize,
    mut want: impl FnMut(usize, State) -> bool,
) -> usize {
    if !word.try_claim(state) {
        return 0;
    }
    let mut n = 1;
    while addr + n * PAGE < end {
        let Some(next) = space.table.word(addr + n * PAGE) else { break };
        let seen = next.load();
        if !want(n, seen) || !next.try_claim(seen) {
            break;
        }
        n += 1;
    }
    n
}
