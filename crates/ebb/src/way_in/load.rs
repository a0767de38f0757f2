//! Loads the content of all pages of a unit, for a folio.

use crate::base::PAGE;
use crate::device::file::{BATCH, Place};
use crate::places::swapspace::{PageSet, Reads, Source, slot_of};
use crate::protocols::gate::Held;
use crate::protocols::page::{State, Tag};
use crate::space::Space;
use crate::threads::ctx::ThreadCtx;
use crate::way_in::swapin::{lock_slots, run_of_a_kind};
use ebb_slots::Locked;

/// The outcome of loading a whole unit.
pub(crate) struct AllLoaded {
    /// Pages that have no slot, or whose slots are locked, from the first on.
    pub locked: usize,
    /// Pages that are loaded.
    pub n: usize,
    pub source: Source,
    /// The memory that pages were to be read into may not be all there any more.
    pub is_torn: bool,
}

/// Locks the slots of the claimed pages of the unit at `start`, and loads their content into `pages`. Pages without a slot are zeros. If
/// that does not work for all of them, the caller unlocks those that are locked. What cannot be read is reported by the fault that finds
/// it alone.
pub(crate) fn load_all(
    space: &Space,
    held: &Held,
    ctx: &ThreadCtx,
    start: usize,
    entries: &[State],
    were: &mut [Locked],
    pages: &mut [u8],
) -> AllLoaded {
    debug_assert_eq!(pages.len(), entries.len() * PAGE);
    let mut all = AllLoaded { locked: 0, n: 0, source: Source::Same, is_torn: false };
    while all.locked < entries.len() {
        let run = run_of_a_kind(entries, all.locked);
        all.locked = run.end;
        if entries[run.start].tag() == Tag::Swapped {
            let (entries, were) = (&entries[run.clone()], &mut were[run.clone()]);
            // Only the first slot of all may be waited for.
            let (locked, _) = lock_slots(space, start + run.start * PAGE, entries, were, run.start == 0);
            all.locked = run.start + locked;
        }
        if all.locked < run.end {
            return all;
        }
    }
    ctx.early.forget();
    // SAFETY: the context's bounce pages belong to the calling thread.
    let [_, spare] = unsafe { &mut *ctx.bounce.get() };
    let is_in_file = |i: usize| place_of(space, entries, i).is_some();
    let mut in_files = PageSet::default();
    if (0..entries.len()).any(is_in_file) {
        let Some(mut work) = space.places.work.try_lease(&space.budget, ctx) else { return all };
        (in_files, all.is_torn) = load_together(space, held, entries, pages, work.pages(), &mut spare.0, READS_MAX);
    }
    for (i, (entry, page)) in entries.iter().zip(pages.as_chunks_mut().0).enumerate() {
        if entry.tag() != Tag::Swapped {
            page.fill(0);
            continue;
        }
        let from_file = in_files.has(i);
        if !from_file && is_in_file(i) {
            return all;
        }
        let came = if from_file {
            Ok(Source::File)
        } else {
            space.swap.load(held, &space.budget, slot_of(*entry), page, &mut spare.0)
        };
        match came {
            Ok(source) if i == 0 => all.source = source,
            Ok(_) => {}
            Err(_) => {
                all.is_torn = true;
                return all;
            }
        }
    }
    all.n = entries.len();
    all
}

/// Most reads of a device for a unit that comes in whole. More would keep others from closing the gate.
pub(super) const READS_MAX: usize = 16;

/// Where the content of page `i` of these is, if it is in a file.
fn place_of(space: &Space, entries: &[State], i: usize) -> Option<(usize, Place)> {
    let entry = entries.get(i).filter(|entry| entry.tag() == Tag::Swapped)?;
    space.swap.place_in_file(slot_of(*entry))
}

/// Neighbouring pages with neighbouring slots of a file that come straight to where they belong: as many as fit into a buffer.
const STRAIGHT_MIN: usize = BATCH;

/// Loads pages that lie in a file as they do in memory, each alone in its slot, with one read for each long run of them. Returns the
/// pages that are loaded, and the number of reads: as many as can be once one has failed.
fn load_straight(
    space: &Space,
    held: &Held,
    entries: &[State],
    pages: &mut [u8],
    spare: &mut [u8; PAGE],
) -> (PageSet, usize) {
    let (mut loaded, mut nr_reads, mut at) = (PageSet::default(), 0, 0);
    while at + STRAIGHT_MIN <= entries.len() {
        let swapped = entries[at..].iter().map_while(|entry| (entry.tag() == Tag::Swapped).then(|| slot_of(*entry)));
        let run = space.swap.run_in_file(swapped);
        let Some(run) = run.filter(|run| run.n >= STRAIGHT_MIN) else {
            at += run.map_or(1, |run| run.n);
            continue;
        };
        let (came, _) =
            space.swap.load_run(held, &space.budget, run, &mut pages[at * PAGE..(at + run.n) * PAGE], spare);
        space.stats.runs.note_in(came);
        (at..at + came).for_each(|i| loaded.insert(i));
        if came < run.n {
            return (loaded, usize::MAX);
        }
        (at, nr_reads) = (at + run.n, nr_reads + 1);
    }
    (loaded, nr_reads)
}

/// Loads those pages whose content is in files, and whose slots are locked, with at most `reads_max` reads. What lies together in a file
/// comes by one read, wherever it belongs in memory. `room` is for the slots that are read. Returns the pages that are loaded, and whether a
/// read into `pages` failed; the others may come one by one, which also says which cannot be read, and why.
pub(super) fn load_together(
    space: &Space,
    held: &Held,
    entries: &[State],
    pages: &mut [u8],
    room: &mut [u8],
    spare: &mut [u8; PAGE],
    reads_max: usize,
) -> (PageSet, bool) {
    let (mut loaded, mut nr_reads) = load_straight(space, held, entries, pages, spare);
    let is_torn = nr_reads == usize::MAX;
    let mut reads = Reads::new(entries.len(), |i| place_of(space, entries, i));
    reads.leave_out(&loaded);
    let most = (room.len() / PAGE).min(BATCH);
    while nr_reads < reads_max && most > 0 {
        nr_reads += 1;
        let Some((span, found)) = reads.next(most) else { break };
        let slots = found.iter().map(|i| (i, slot_of(entries[i])));
        // A device that fails may take long for each read, and others wait for this thread to leave the gate.
        if !space.swap.load_span(held, &space.budget, &span, slots, room, pages) {
            break;
        }
        space.stats.runs.note_in(span.nr_slots());
        found.iter().for_each(|i| loaded.insert(i));
    }
    (loaded, is_torn)
}
