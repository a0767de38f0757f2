//! Faults on pages that are present.

use crate::base::text::Text;
use crate::base::{PAGE, uapi};
use crate::counters::stats;
use crate::protocols::gate::Held;
use crate::protocols::page::{State, Tag};
use crate::space::Space;
use crate::threads::ctx::ThreadCtx;
use crate::way_in::fault::Fault;
use core::sync::atomic::Ordering::Relaxed;

/// Faults in a row on one present page before the page is looked at more closely.
const SPURIOUS_MAX: u32 = 64;
/// Faults in a row on a page that is not managed before the fault is the program's own.
const CHANGES_MAX: u32 = 8;

/// Serves a fault on a present page: another thread was faster, or this one has taken the page back from a sweep.
pub(crate) fn spurious(space: &Space, ctx: &ThreadCtx, page: usize, write: bool) -> Fault {
    stats::add(&space.stats.faults_spurious, 1);
    let same = ctx.spurious_addr.swap(page as u64, Relaxed) == page as u64;
    let count = if same { ctx.spurious_count.fetch_add(1, Relaxed) + 1 } else { 0 };
    if !same {
        ctx.spurious_count.store(0, Relaxed);
    }
    if count < SPURIOUS_MAX {
        return Fault::Resolved;
    }
    ctx.spurious_count.store(0, Relaxed);
    let inside = space.threads.enter(ctx);
    let fault = look_closer(space, &inside, page, write);
    drop(inside);
    fault
}

/// True for the first faults in a row on a page that is no longer managed, but may have been when the fault was taken.
///
/// More than one, because the page may be managed again when the instruction is made again, and no longer when that fault is served.
pub(crate) fn may_have_changed(space: &Space, ctx: &ThreadCtx, page: usize) -> bool {
    if !space.table.may_be_managed(page) {
        return false;
    }
    let same = ctx.spurious_addr.swap(page as u64, Relaxed) == page as u64;
    let count = if same { ctx.spurious_count.load(Relaxed) + 1 } else { 0 };
    ctx.spurious_count.store(count % CHANGES_MAX, Relaxed);
    count < CHANGES_MAX
}

/// Looks for the cause of many faults on a present page: a busy lock in it, a leftover protection, or a page that the kernel
/// lost.
fn look_closer(space: &Space, held: &Held, page: usize, write: bool) -> Fault {
    let Some(word) = space.table.word(page) else { return Fault::NotManaged };
    let state = word.load();
    // The claim keeps sweeps from relying on the protection while it is lifted.
    if state.tag() != Tag::Present || !word.try_claim(state) {
        return Fault::Resolved;
    }
    if write && !state.is_protected() {
        let _ = space.uffd().write_protect(page, PAGE, false);
    }
    // COPY fails where there is a page, even one in the kernel's own swap.
    let is_missing = space.uffd().copy(page, space.kernel.zeros(), PAGE).is_ok();
    if is_missing {
        // Better no page than zeros in place of what was there.
        let _ = uapi::madvise(page, PAGE, linux_raw_sys::general::MADV_DONTNEED);
    }
    word.finish(state);
    if !is_missing {
        return Fault::Resolved;
    }
    describe(space, held, page, state);
    space.inconsistent(b"a page that should be mapped is missing: this is a bug in Ebb; please report it");
    Fault::Unreadable
}

/// Prints what is known of a page and its neighbours, for a bug report.
#[cold]
fn describe(space: &Space, held: &Held, page: usize, state: State) {
    let mut line = Text::default();
    line.str(b"ebb: page ").hex(page).str(b" was ").hex(state.to_raw() as usize);
    if let Some(r) = space.regions.find(held, page) {
        line.str(b" in ").hex(r.start).str(b"-").hex(r.end).str(b" attributes ").number(r.attr.bits() as usize);
    }
    line.str(b" forked ").number(space.background.forked() as usize).str(b"; around it, state and mapped:");
    for i in 0..9 {
        let at = page.wrapping_sub(4 * PAGE) + i * PAGE;
        let raw = space.table.word(at).map_or(0, |word| word.load().to_raw());
        line.str(b" ").hex(raw as usize & 0xff).str(b":").number(uapi::is_mapped(at) as usize);
    }
    line.str(b"\n");
    uapi::stderr::say(line.bytes());
}
