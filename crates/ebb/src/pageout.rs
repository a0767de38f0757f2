//! MADV_PAGEOUT: what the program says it will not need soon is stored now, as if memory were short.
//!
//! As in the kernel it is advice: what is pinned, in use by a system call or shared with another process since a fork
//! stays, and so does everything where no device takes more. What else is staged stays there, and has its second chance,
//! unless staging is full. Pages come back as from any other reclaim.
//!
//! Where staging gets full the background thread stores what is in it, too, until it is half empty.

use crate::ctx::ThreadCtx;
use crate::page::Tag;
use crate::space::Space;
use crate::swapout::Wanted;
use crate::table::UNIT_BYTES;
use crate::uapi;
use core::sync::atomic::{AtomicU32, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

/// For so long nothing may have been stored before the call ends: one step may only have met a slow reader, or everything that
/// is staged is in the hands of other threads, which store it.
const PATIENCE_NS: u64 = 50_000_000;
/// A moment, to let those go on.
const WAIT_NS: u64 = 100_000;

/// Who pages out.
#[derive(Default)]
pub struct PageOut {
    /// Threads that do.
    threads: AtomicU32,
    /// Twice the parts that the background thread stored for them, and one while it stores one.
    parts: AtomicU32,
}

impl PageOut {
    /// Whether a thread pages out.
    pub fn is_under_way(&self) -> bool {
        self.threads.load(Relaxed) > 0
    }

    /// Waits for the part that the background thread stores just now.
    fn wait(&self) {
        let (parts, since) = (self.parts.load(Acquire), uapi::now_ns());
        while parts % 2 == 1 && self.parts.load(Acquire) == parts && uapi::now_ns() - since < PATIENCE_NS {
            uapi::futex_wait(&self.parts, parts, Some(WAIT_NS));
        }
    }

    /// In fork's child, whose one thread does not.
    pub fn reset(&self) {
        self.threads.store(0, Relaxed);
        self.parts.store(0, Relaxed);
    }
}

/// What a step did.
enum Step {
    /// Nothing is left in the range.
    End,
    /// All was swept up to here.
    Swept(usize),
    /// Staging takes no more.
    Full,
}

impl Space {
    /// Stores the pages from `start` to `end` that are present or staged. Outside the gate.
    pub(crate) fn page_out(&self, ctx: &ThreadCtx, start: usize, end: usize) {
        self.tree().look();
        self.page_out.threads.fetch_add(1, Relaxed);
        let (mut at, mut patience) = (start, Patience::default());
        while at < end && !patience.is_over() {
            match self.page_out_step(ctx, at, end) {
                Step::End => break,
                Step::Swept(next) => at = next,
                Step::Full => {
                    self.background.kick_if(self, true);
                    patience.look(self.store_oldest(ctx, Wanted::All));
                }
            }
        }
        self.page_out.threads.fetch_sub(1, Relaxed);
        self.page_out.wait();
        if !self.has_staged(ctx, start, end) {
            return;
        }
        self.gate.enter(&ctx.gate);
        let nr_parts = self.staging.nr_queued();
        self.gate.leave(&ctx.gate);
        let mut patience = Patience::default();
        // All parts take their turn, so that they are in the order of their age afterwards.
        for _ in 0..nr_parts {
            let only = if patience.is_over() { Wanted::Range(0, 0) } else { Wanted::Range(start, end) };
            patience.look(self.store_oldest(ctx, only));
        }
    }

    /// Stores what is staged while a thread pages out more than staging holds. By the background thread, outside the gate.
    pub(crate) fn help_page_out(&self, ctx: &ThreadCtx) {
        let is_needed = || self.page_out.is_under_way() && self.staging.is_half_full() && !self.is_asked();
        let mut goes_on = true;
        while goes_on && is_needed() {
            self.page_out.parts.fetch_add(1, Release);
            goes_on = matches!(self.store_oldest(ctx, Wanted::All), Stored::Some);
            self.page_out.parts.fetch_add(1, Release);
        }
    }

    /// Sweeps what one sweep takes. A work buffer is held for that only: others run short, too.
    fn page_out_step(&self, ctx: &ThreadCtx, at: usize, end: usize) -> Step {
        let mut work = self.work.lease();
        self.gate.enter(&ctx.gate);
        let step = match self.regions.first_in(at, end) {
            None => Step::End,
            Some(region) => {
                let at = region.start.max(at);
                let unit = self.table.unit_start(at);
                let stop = end.min(unit + UNIT_BYTES);
                let has_pages = self.table.unit(unit).is_some_and(|unit| unit.present.load(Relaxed) > 0);
                if !has_pages {
                    Step::Swept(stop)
                } else if self.staging.is_full() || !self.staging.has_room() {
                    Step::Full
                } else {
                    Step::Swept(self.sweep_range(ctx, unit, (at, stop), &mut work))
                }
            }
        };
        self.gate.leave(&ctx.gate);
        step
    }

    /// Whether a page of the range is staged. Outside the gate.
    fn has_staged(&self, ctx: &ThreadCtx, start: usize, end: usize) -> bool {
        let (mut at, mut found) = (start, false);
        while at < end && !found {
            self.gate.enter(&ctx.gate);
            match self.regions.first_in(at, end) {
                None => at = end,
                Some(region) => {
                    let first = region.start.max(at);
                    at = region.end.min(end).min(self.table.unit_start(first) + UNIT_BYTES);
                    self.table.for_each_content(first, at, |_, word| found |= word.load().tag() == Tag::Staged);
                }
            }
            self.gate.leave(&ctx.gate);
        }
        found
    }

    /// Takes the oldest part of what is staged and stores those of its pages that are wanted; what is left goes to the end of
    /// the queue. Outside the gate.
    fn store_oldest(&self, ctx: &ThreadCtx, only: Wanted) -> Stored {
        let mut work = self.work.lease();
        self.shrink_full_pool(ctx, &mut work);
        self.gate.enter(&ctx.gate);
        let part = self.staging.pop_oldest();
        // No part has to wait for nothing.
        let wanted = part.filter(|part| match only {
            Wanted::Range(start, end) => {
                let owner = |frame| self.staging.owner(frame).load(Relaxed) as usize;
                self.staging.frames_of(*part).any(|frame| (start..end).contains(&owner(frame)))
            }
            _ => true,
        });
        if let (Some(part), None) = (part, wanted) {
            self.staging.requeue(part);
        }
        self.gate.leave(&ctx.gate);
        match (part, wanted) {
            (None, _) => Stored::NoPart,
            (Some(_), None) => Stored::Some,
            (_, Some(part)) => {
                let (stored, freed) = self.swap_out_part(ctx, part, &mut work, only);
                if stored + freed > 0 { Stored::Some } else { Stored::Nothing }
            }
        }
    }
}

/// What a step of storing came to.
enum Stored {
    /// There is no part that nobody has.
    NoPart,
    Nothing,
    /// Something, or there was nothing to do.
    Some,
}

/// How long nothing has been stored.
#[derive(Default)]
struct Patience {
    since_ns: Option<u64>,
    is_over: bool,
}

impl Patience {
    fn is_over(&self) -> bool {
        self.is_over
    }

    /// Takes note of a step; waits a moment where others are at work.
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
