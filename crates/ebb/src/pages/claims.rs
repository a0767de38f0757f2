//! Claims: who has a page's word turned to busy, of one page after the other.

use crate::base::PAGE;
use crate::protocols::page::{PageWord, State, Tag};
use crate::space::Space;

/// A page of the unit that the sweep did not claim.
pub(crate) const NOT_CLAIMED: u64 = u64::MAX;

/// Whether a saved state is that of a claimed page that is mapped.
pub(crate) fn is_present(raw: u64) -> bool {
    raw != NOT_CLAIMED && State::from_raw(raw).tag() == Tag::Present
}

/// Claims the run of pages from `addr` for which `want` holds; the first must.
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
