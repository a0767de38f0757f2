//! MADV_PAGEOUT: stores now what the program says it will not need soon, as if memory were short.
//!
//! As in the kernel this is advice. Pages stay that are pinned, in use by a system call, or shared with another process since a
//! fork. All pages stay if no device takes more. Other staged pages keep their second chance, unless staging is full. The pages
//! come back as from any other reclaim.
//!
//! If staging gets full, the background thread helps to store what is staged, until staging is half empty.

use crate::base::uapi;
use crate::memory::table::UNIT_BYTES;
use crate::protocols::page::Tag;
use crate::space::page_out::{PATIENCE_NS, WAIT_NS};
use crate::space::{Space, background};
use crate::threads::ctx::ThreadCtx;
use crate::way_out::swapout::{self, Wanted};
use crate::way_out::{shrink, sweep};
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::{Relaxed, Release};

/// The outcome of a step.
enum Step {
    /// Nothing is left in the range.
    End,
    /// The range is swept up to this address.
    Swept(usize),
    /// Staging takes no more.
    Full,
}

/// Stores the present and staged pages from `start` to `end`. Outside the gate.
pub(crate) fn page_out(space: &Space, ctx: &ThreadCtx, start: usize, end: usize) {
    space.tree().look();
    space.background.page_out.threads.fetch_add(1, Relaxed);
    let (mut at, mut patience) = (start, Patience::default());
    while at < end && !patience.is_over() {
        match page_out_step(space, ctx, at, end) {
            Step::End => break,
            Step::Swept(next) => at = next,
            Step::Full => {
                space.background.kick_if(space, true);
                patience.look(store_oldest(space, ctx, Wanted::All));
            }
        }
    }
    space.background.page_out.threads.fetch_sub(1, Relaxed);
    space.background.page_out.wait();
    if !has_staged(space, ctx, start, end) {
        return;
    }
    let inside = space.threads.enter(ctx);
    let nr_parts = space.places.staging.nr_queued();
    drop(inside);
    let mut patience = Patience::default();
    // Every part is taken and put back, so that the queue is in the order of age afterwards.
    for _ in 0..nr_parts {
        let only = if patience.is_over() { Wanted::Range(0, 0) } else { Wanted::Range(start, end) };
        patience.look(store_oldest(space, ctx, only));
    }
}

/// Stores what is staged while a thread pages out more than staging holds. For the background thread, outside the gate.
pub(crate) fn help_page_out(space: &Space, ctx: &ThreadCtx) {
    let is_needed = || {
        let ages = space.eviction.ageing.period_ms.load(Relaxed) > 0;
        let is_filling = if ages { is_full(space) } else { space.places.staging.is_half_full() };
        space.background.page_out.is_under_way() && is_filling && !background::is_asked(space)
    };
    let mut goes_on = true;
    while goes_on && is_needed() {
        space.background.page_out.parts.fetch_add(1, Release);
        goes_on = matches!(store_oldest(space, ctx, Wanted::All), Stored::Some);
        space.background.page_out.parts.fetch_add(1, Release);
    }
}

/// Whether staging must give something up for what is paged out. What ageing has staged there is more than reclaim aims at, and
/// keeps its second chance while there is room.
fn is_full(space: &Space) -> bool {
    let staging = &space.places.staging;
    let ages = space.eviction.ageing.period_ms.load(Relaxed) > 0;
    if ages { staging.is_scarce() } else { staging.is_full() }
}

/// Makes one sweep of the range from `at` on. Holds a work buffer for that only, because other threads need one when memory is
/// short.
fn page_out_step(space: &Space, ctx: &ThreadCtx, at: usize, end: usize) -> Step {
    let mut work = space.places.work.lease(&space.budget, ctx);
    let inside = space.threads.enter(ctx);
    let step = match space.regions.first_in(&inside, at, end) {
        None => Step::End,
        Some(region) => {
            let at = region.start.max(at);
            let unit = space.table.unit_start(at);
            let stop = end.min(unit + UNIT_BYTES);
            let has_pages = space.table.unit(unit).is_some_and(|unit| unit.present.load(Relaxed) > 0);
            if !has_pages {
                Step::Swept(stop)
            } else if is_full(space) || !space.places.staging.has_room() {
                Step::Full
            } else {
                Step::Swept(sweep::sweep_range(space, &inside, ctx, unit, (at, stop), &mut work))
            }
        }
    };
    drop(inside);
    step
}

/// Whether a page of the range is staged. Outside the gate.
fn has_staged(space: &Space, ctx: &ThreadCtx, start: usize, end: usize) -> bool {
    let (mut at, mut found) = (start, false);
    while at < end && !found {
        let inside = space.threads.enter(ctx);
        match space.regions.first_in(&inside, at, end) {
            None => at = end,
            Some(region) => {
                let first = region.start.max(at);
                at = region.end.min(end).min(space.table.unit_start(first) + UNIT_BYTES);
                space.table.for_each_content(first, at, |_, word| found |= word.load().tag() == Tag::Staged);
            }
        }
        drop(inside);
    }
    found
}

/// Takes the oldest staged part and stores those of its pages that are wanted. A part with pages left goes to the end of the
/// queue. Outside the gate.
fn store_oldest(space: &Space, ctx: &ThreadCtx, only: Wanted) -> Stored {
    let mut work = space.places.work.lease(&space.budget, ctx);
    shrink::shrink_full_pool(space, ctx, &mut work);
    if matches!(only, Wanted::All) && swapout::help(space, ctx, &mut work) > 0 {
        return Stored::Some;
    }
    let inside = space.threads.enter(ctx);
    let part = space.places.staging.pop_oldest();
    // A part without a wanted page goes straight back to the queue.
    let wanted = part.filter(|part| match only {
        Wanted::Range(start, end) => {
            let owner = |frame| space.places.staging.owner(frame).load(Relaxed) as usize;
            space.places.staging.frames_of(*part).any(|frame| (start..end).contains(&owner(frame)))
        }
        _ => true,
    });
    if let (Some(part), None) = (part, wanted) {
        space.places.staging.requeue(part);
    }
    drop(inside);
    match (part, wanted) {
        (None, _) => Stored::NoPart,
        (Some(_), None) => Stored::Some,
        (_, Some(part)) => {
            let (stored, freed) = swapout::swap_out_part(space, ctx, part, &mut work, only);
            if stored + freed > 0 { Stored::Some } else { Stored::Nothing }
        }
    }
}

/// The outcome of a step of storing.
enum Stored {
    /// The queue has no part: none is staged, or other threads have them all.
    NoPart,
    Nothing,
    /// Something was stored, or there was nothing to store.
    Some,
}

/// Measures for how long nothing has been stored.
#[derive(Default)]
struct Patience {
    since_ns: Option<u64>,
    is_over: bool,
}

impl Patience {
    fn is_over(&self) -> bool {
        self.is_over
    }

    /// Notes the outcome of a step. Waits a moment if other threads may have the parts.
    fn look(&mut self, stored: Stored) {
        if matches!(stored, Stored::Some) {
            self.since_ns = None;
            return;
        }
        let now = uapi::now_ns();
        self.is_over = now - *self.since_ns.get_or_insert(now) > PATIENCE_NS;
        if matches!(stored, Stored::NoPart) {
            uapi::futex_wait(&AtomicU32::new(0), 0, Some(WAIT_NS));
        }
    }
}
