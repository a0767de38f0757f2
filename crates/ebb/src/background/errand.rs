//! Does what other processes of the tree ask with `process_madvise`. `api::advise` asks.

use crate::base::{PAGE, uapi};
use crate::memory::table::ADDR_END;
use crate::protocols::errand::What;
use crate::space::Space;
use crate::threads::ctx::ThreadCtx;
use crate::way_out::{cold, pageout};

/// True if another process waits for this one to do something.
pub(crate) fn is_wanted(space: &Space) -> bool {
    // Others may have taken this process for dead, and given its place away.
    !space.tree().is_lost() && space.tree().member().errand.is_offered()
}

/// Most pages of one request to page out: a request is not interrupted.
const PAGES_MAX: u64 = (32 << 20) / PAGE as u64;

/// Does what another process asks for, if one does. Outside the gate.
pub(crate) fn run_errand(space: &Space, ctx: &ThreadCtx) {
    if !space.budget.hold_if_lost() {
        return;
    }
    // The same one to the end: this process may get another place meanwhile.
    let errand = &space.tree().member().errand;
    let Some(request) = errand.take() else { return };
    // Any process of the tree may have written the request.
    let start = (request.first as usize * PAGE).min(ADDR_END);
    let most = if request.what == What::PageOut { PAGES_MAX } else { request.pages };
    let end = (start + request.pages.min(most) as usize * PAGE).min(ADDR_END);
    match request.what {
        What::Cold => cold::note_cold(space, ctx, start, end),
        What::PageOut => pageout::page_out(space, ctx, start, end),
    }
    errand.end();
    uapi::futex_wake_shared(errand.ended());
}
