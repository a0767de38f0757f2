//! Fetches of what a walk needs next: see `places/fetches.rs`.

use crate::base::{PAGE, clock};
use crate::device::file::BATCH;
use crate::device::kind::Kind;
use crate::memory::table::UNIT_BYTES;
use crate::places::fetches::{Begun, Fetches, Need, PIECES};
use crate::places::swapspace::{Reads, slot_of};
use crate::protocols::page::Tag;
use crate::space::Space;
use crate::threads::ctx::ThreadCtx;
use crate::threads::walker::REACH;
use crate::way_in::extent;
use core::sync::atomic::Ordering::{Acquire, Relaxed};

/// So many windows more are fetched each time.
const STEP: usize = 2;

/// Begins to fetch what a walk that is at `front` needs next of solid-state disks, from `from` on and below `limit`. Outside the gate.
///
/// What comes before `from` is about to be read by who helps, or by the walk.
/// The first time that is one window, because the walk may end there, and then more and more.
pub(crate) fn fetch_ahead(space: &Space, ctx: &ThreadCtx, (front, from): (usize, usize), limit: usize) {
    // Without a clock, nobody could tell what is of no use any more.
    if clock::is_forbidden() {
        return;
    }
    let (ahead, most) = (&space.background.read_ahead, Fetches::allowed(space.budget.expected()));
    let window = extent::window_max(space);
    let piece = window.min(BATCH);
    let known = ahead.fetched.load(Relaxed);
    let (mut at, step) = if (front..=front + REACH).contains(&known) { (known.max(from), STEP) } else { (from, 1) };
    let end = limit.min(front + most * piece * PAGE).min(at + step * window * PAGE);
    if at >= end {
        return;
    }
    let now = clock::stamp();
    let inside = space.threads.enter(ctx);
    while at < end {
        let unit_end = space.table.unit_start(at) + UNIT_BYTES;
        // The state words of pages that were never touched have no memory, and must not get any.
        if space.table.unit(at).is_none_or(|unit| unit.content.load(Acquire) == 0) {
            at = unit_end;
            continue;
        }
        let next = (at + extent::to_run_end(space, at, piece) * PAGE).min(unit_end).min(end).max(at + PAGE);
        let place = |page: usize| {
            let state = space.table.word(at + page * PAGE)?.load();
            let slot = (state.tag() == Tag::Swapped).then(|| slot_of(state))?;
            space.swap.place_in_file(slot)
        };
        let mut reads = Reads::new((next - at) / PAGE, place);
        let (mut spans, mut nr, mut left, mut number) = ([const { 0..0 }; PIECES], 0, BATCH, None);
        while nr < PIECES
            && left > 0
            && let Some((span, _)) = reads.next(left)
        {
            if *number.get_or_insert(span.file()) == span.file() {
                (spans[nr], nr, left) = (span.slots(), nr + 1, left - span.nr_slots());
            }
        }
        let devices = &space.swap.devices;
        let is_ssd = |number: &usize| devices.ahead(*number).is_some_and(|ahead| ahead.kind() == Kind::Ssd);
        if let Some(number) = number.filter(is_ssd)
            && let Some(file) = devices.file(&inside, number)
        {
            let need = Need { end: next, front, now };
            match space.swap.fetches.begin(file, &spans[..nr], need, (&space.budget, space.stats)) {
                Begun::Yes => devices.note_reads(number, nr as u64),
                Begun::Already => {}
                Begun::No => break,
            }
        }
        at = next;
    }
    ahead.fetched.store(at, Relaxed);
}
