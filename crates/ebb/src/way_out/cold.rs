//! MADV_COLD: what the program says it will not use soon is the next to go.
//!
//! The advice unmaps nothing, because that would cost a fault for each page that is still in use. It notes the range
//! (`space::cold`), and makes units that lie in it as old as can be, so that a process that runs short asks this one first. The
//! next sweep for the whole space takes what is noted before it looks at the ring of units. The pages go through staging like
//! others, so one that the program uses all the same comes back at little cost.

use crate::base::clock;
use crate::memory::table::UNIT_BYTES;
use crate::places::work::Work;
use crate::space::Space;
use crate::space::cold::Note;
use crate::threads::ctx::ThreadCtx;
use crate::tree::{AGE_BASE_MS, AGES};
use crate::way_out::sweep;
use core::sync::atomic::Ordering::Relaxed;

/// The age of a unit that is said to be cold: that of the oldest class.
const COLD_MS: u64 = AGE_BASE_MS << (AGES - 1);
/// Most notes that one sweep looks at.
const LOOKS_MAX: usize = 64;

/// Notes that the managed pages from `start` to `end` are cold. Outside the gate.
pub(crate) fn note_cold(space: &Space, ctx: &ThreadCtx, start: usize, end: usize) {
    let mut at = start;
    while at < end {
        let inside = space.threads.enter(ctx);
        match space.regions.first_in(&inside, at, end) {
            None => at = end,
            Some(region) => {
                let first = region.start.max(at);
                let unit_start = space.table.unit_start(first);
                at = region.end.min(end).min(unit_start + UNIT_BYTES);
                if let Some(unit) = space.table.unit(first).filter(|unit| unit.present.load(Relaxed) > 0) {
                    let note = Note::new(unit_start, first, at);
                    if note.is_whole() {
                        unit.touched.store(clock::stamp_before(COLD_MS), Relaxed);
                        unit.skip.store(0, Relaxed);
                        unit.generation.store(0, Relaxed);
                    }
                    space.eviction.cold.note(note, false);
                }
            }
        }
        drop(inside);
    }
}

/// Sweeps pages that are noted as cold. Returns how many that unmapped; none if there was nothing to unmap. Outside the gate.
pub(crate) fn sweep_cold(space: &Space, ctx: &ThreadCtx, takes_shared: bool, work: &mut Work) -> Option<usize> {
    let mut looks = LOOKS_MAX;
    while looks > 0 && space.eviction.cold.has_notes() {
        looks -= 1;
        let inside = space.threads.enter(ctx);
        let note = space.eviction.cold.take()?;
        // A unit that has needed a fault since then is in use after all.
        let is_used = |touched: u32| note.is_whole() && clock::ms_since(touched) < COLD_MS / 2;
        let is_cold = space
            .table
            .unit(note.unit)
            .is_some_and(|unit| unit.present.load(Relaxed) > 0 && !is_used(unit.touched.load(Relaxed)));
        let mut swept = 0;
        if is_cold {
            let range = note.range();
            let (pages, end) = sweep::sweep_noted(space, &inside, ctx, note.unit, &range, takes_shared, work);
            swept = pages;
            // A sweep takes no more than a batch.
            if end < range.end && end > range.start {
                space.eviction.cold.note(Note::new(note.unit, end, range.end), true);
            }
        }
        drop(inside);
        if swept > 0 {
            return Some(swept);
        }
    }
    None
}
