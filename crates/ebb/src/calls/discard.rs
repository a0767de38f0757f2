//! madvise(2) that gives content up: MADV_DONTNEED and its kin. Allocators and collectors return memory like this, a few pages
//! at a time and from many threads.
//!
//! Such a call closes no gate. It claims the pages as eviction does, so it waits for nobody but a thread that is busy with one of
//! them, and delays nobody but who wants one of them. Pages without content are claimed, too: otherwise a page could come in
//! unseen, and the kernel would drop it.

use crate::base::PAGE;
use crate::base::uapi::{self, Errno};
use crate::calls::drops::Drops;
use crate::calls::mapping;
use crate::memory::table::UNIT_PAGES;
use crate::pages::tally::Tally;
use crate::pages::{books, claims, folio};
use crate::protocols::gate::Held;
use crate::protocols::page::State;
use crate::protocols::primitive::waiting;
use crate::space::Space;
use crate::threads::ctx::ThreadCtx;
use crate::way_in::swapin;
use crate::way_out::shrink;
use core::ops::Range;
use core::sync::atomic::Ordering::Acquire;
use ebb_slots::CLUSTER_SLOTS;
use linux_raw_sys::general as g;

/// Most pages that are dropped with one call of the kernel.
const RUN_MAX: usize = UNIT_PAGES;

/// The outcome of one step.
enum Step {
    /// Nothing before this address has content any more.
    To(usize),
    /// Another thread is busy with the page at this address.
    Busy(usize),
    /// The rest of the call needs the gate closed.
    Refused,
    /// The kernel has refused.
    Failed(Errno),
}

/// Performs madvise(2) with arguments `a`, which give the content of `range` up; the kernel's answer. `is_range` is false if the
/// arguments name no range.
///
/// MADV_FREE lets the kernel drop the content later. Ebb drops it now: the next touch reads zero.
pub(crate) fn discard(space: &Space, ctx: &ThreadCtx, range: Range<usize>, is_range: bool, a: [u64; 6]) -> i64 {
    let advice = if a[2] == g::MADV_FREE as u64 { g::MADV_DONTNEED } else { a[2] as u32 };
    let mut a = [a[0], a[1], advice as u64, 0, 0, 0];
    let mut range = range;
    if is_range {
        match try_discard(space, ctx, range.clone(), advice) {
            Ok(end) if end >= range.end => return 0,
            // What is done is not done again: others may have written there since.
            Ok(end) => {
                (a[0], a[1]) = (end as u64, (range.end - end) as u64);
                range.start = end;
            }
            Err(e) => return mapping::raw(Err(e)),
        }
    }
    space.exclusive(|exclusive| {
        if has_from_file(space, exclusive, range.start, range.end) {
            return -(linux_raw_sys::errno::EINVAL as i64);
        }
        // SAFETY: the program gives the content up.
        let result = unsafe { mapping::kernel(g::__NR_madvise, a) };
        let mut at = range.start;
        while let Some(r) = space.regions.first_in(exclusive, at, range.end) {
            let (first, last) = (r.start.max(at), r.end.min(range.end));
            match result {
                // ENOMEM: parts of the range are not mapped. The kernel dropped the rest all the same.
                Ok(_) | Err(Errno::NOMEM) => mapping::drop_content(space, exclusive, first, last),
                // A mapping in the range refused. The kernel dropped those before it.
                Err(_) => mapping::map_missing(space, exclusive, first, last),
            }
            at = r.end;
        }
        mapping::raw(result)
    })
}

/// True when part of the range was a file's before it was managed.
fn has_from_file(space: &Space, held: &Held, start: usize, end: usize) -> bool {
    let mut at = start;
    while let Some(r) = space.regions.first_in(held, at, end) {
        if r.attr.is_from_file() {
            return true;
        }
        at = r.end;
    }
    false
}

/// Gives up the content of `range`, beside other threads. Returns how far it has come. The rest needs the gate closed.
fn try_discard(space: &Space, ctx: &ThreadCtx, range: Range<usize>, advice: u32) -> Result<usize, Errno> {
    let mut call = Call { space, advice, end: range.end, freed_slots: 0 };
    let mut at = range.start;
    while at < call.end {
        let inside = space.threads.enter(ctx);
        let step = call.step(&inside, at);
        drop(inside);
        match step {
            Step::To(next) => at = next,
            Step::Refused => return Ok(at),
            Step::Failed(e) => return Err(e),
            Step::Busy(page) => {
                if let Some(word) = space.table.word(page) {
                    waiting("page", || word.wait_while_busy());
                }
            }
        }
    }
    if call.freed_slots >= CLUSTER_SLOTS {
        let inside = space.threads.enter(ctx);
        shrink::release_unused_soon(space, &inside);
        drop(inside);
    }
    books::note_books_used(space, ctx);
    Ok(at)
}

/// A call that is under way.
struct Call<'a> {
    space: &'a Space,
    advice: u32,
    end: usize,
    freed_slots: u32,
}

impl Call<'_> {
    /// Gives up a run of pages, from `at` on.
    fn step(&mut self, held: &Held, at: usize) -> Step {
        let Some(region) = self.space.regions.find(held, at) else { return Step::Refused };
        if region.attr.is_from_file() {
            return Step::Refused;
        }
        // A claim would give memory to the words of a unit that was never touched. There is nothing to give up, but only the
        // kernel knows whether it refuses the range because that is locked.
        let (unit, unit_end) = self.space.table.used_unit(at);
        let word = unit.filter(|unit| unit.is_charged()).and_then(|_| self.space.table.word(at));
        let Some(word) = word else {
            let end = unit_end.min(self.end).min(region.end);
            return if self.space.kernel.has_locked() { Step::Refused } else { Step::To(end) };
        };
        let state = word.load();
        let limit = self.end.min(region.end).min(unit_end).min(at + RUN_MAX * PAGE);
        let mut states = [state; RUN_MAX];
        let n = claims::claim_run(self.space, at, word, state, limit, |i, seen| {
            states[i] = seen;
            true
        });
        match n {
            0 if swapin::take_back(self.space, at, word) => Step::To(at),
            0 => Step::Busy(at),
            _ => self.drop_run(held, at, &states[..n]),
        }
    }

    /// Drops claimed pages, which were in `states` before, and ends the claims.
    fn drop_run(&mut self, held: &Held, first: usize, states: &[State]) -> Step {
        let space = self.space;
        let result = uapi::madvise(first, states.len() * PAGE, self.advice);
        let (end, is_gone) = (first + states.len() * PAGE, result.is_ok());
        if is_gone && states.len() == UNIT_PAGES {
            // As long as the claims last: a new folio may come right after them.
            folio::forget(space, held, first, end);
        }
        let addrs = || (first..end).step_by(PAGE);
        match result {
            Ok(()) => {
                let mut drops = Drops::new(space, held);
                addrs().zip(states).for_each(|(addr, state)| drops.page(addr, *state));
                self.freed_slots += drops.end();
                finish(space, addrs(), |_| State::NONE);
            }
            // One of several mappings refused. The kernel dropped those before it.
            Err(_) => {
                let mut tally = Tally::new(space, held);
                finish(space, addrs(), |i| {
                    mapping::map_if_missing(space, held, first + i * PAGE, states[i], &mut tally)
                });
            }
        }
        if is_gone && states.len() < UNIT_PAGES {
            folio::forget(space, held, first, end);
        }
        result.map_or_else(Step::Failed, |()| Step::To(end))
    }
}

/// Ends the claims on pages.
fn finish(space: &Space, addrs: impl Iterator<Item = usize>, mut state: impl FnMut(usize) -> State) {
    for (i, addr) in addrs.enumerate() {
        if let Some(word) = space.table.word(addr) {
            word.finish(state(i));
        }
    }
}

/// The first page of the range that has content, or with which a thread is busy.
pub(crate) fn first_content(space: &Space, start: usize, end: usize) -> Option<usize> {
    let mut at = start;
    while at < end {
        let (unit, next) = space.table.used_unit(at);
        let next = next.min(end);
        if unit.is_some_and(|unit| unit.content.load(Acquire) > 0) {
            let has_content = |page: &usize| space.table.word(*page).is_some_and(|word| word.load() != State::NONE);
            if let Some(page) = (at..next).step_by(PAGE).find(has_content) {
                return Some(page);
            }
        }
        at = next;
    }
    None
}
