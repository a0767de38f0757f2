//! Loads the content of all pages of a unit, for a folio.

use crate::base::PAGE;
use crate::device::file::BATCH;
use crate::places::swapspace::{Source, slot_of};
use crate::protocols::gate::Held;
use crate::protocols::page::{State, Tag};
use crate::space::Space;
use crate::threads::ctx::ThreadCtx;
use crate::way_in::swapin::{Buffers, load, lock_slots, run_of_a_kind};
use ebb_slots::Locked;

/// The outcome of loading a whole unit.
pub(crate) struct AllLoaded {
    /// Pages that have no slot, or whose slots are locked, from the first on.
    pub locked: usize,
    /// Pages that are loaded.
    pub n: usize,
    pub source: Source,
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
    let mut all = AllLoaded { locked: 0, n: 0, source: Source::Same };
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
    // SAFETY: the context's bounce pages belong to the calling thread.
    let [bounce, spare] = unsafe { &mut *ctx.bounce.get() };
    if !load_from_files(space, held, ctx, entries, pages, [&mut bounce.0, &mut spare.0]) {
        return all;
    }
    for (i, (entry, page)) in entries.iter().zip(pages.as_chunks_mut().0).enumerate() {
        if entry.tag() != Tag::Swapped {
            page.fill(0);
            continue;
        }
        let slot = slot_of(*entry);
        if space.swap.place_in_file(slot).is_some() {
            all.source = if i == 0 { Source::File } else { all.source };
            continue;
        }
        match space.swap.load(held, slot, page, &mut spare.0) {
            Ok(source) if i == 0 => all.source = source,
            Ok(_) => {}
            Err(_) => return all,
        }
    }
    all.n = entries.len();
    all
}

/// Neighbouring pages with neighbouring slots of a file that come straight to where they belong: as many as fit into a buffer.
const STRAIGHT_MIN: usize = BATCH;
/// Most reads of a device for a unit that comes in whole. More would keep others from closing the gate.
pub(super) const READS_MAX: usize = 16;

/// Loads those pages whose content is in files, and whose slots are locked. What lies together there comes by one read, even if there are
/// other pages between in memory. False if any of it cannot be read, or that takes more than [`READS_MAX`] reads after all: there may be
/// no buffer, or more has gone to files since somebody last looked.
fn load_from_files(
    space: &Space,
    held: &Held,
    ctx: &ThreadCtx,
    entries: &[State],
    pages: &mut [u8],
    [bounce, spare]: [&mut [u8; PAGE]; 2],
) -> bool {
    let place = |i: usize| {
        let entry = entries.get(i).filter(|entry| entry.tag() == Tag::Swapped);
        entry.and_then(|entry| space.swap.place_in_file(slot_of(*entry)))
    };
    let (mut work, mut at, mut reads) = (None, 0, 0);
    while at < entries.len() {
        let Some((file, slot)) = place(at) else {
            at += 1;
            continue;
        };
        let is_next = |n: usize, i: usize| place(i) == Some((file, slot + n as u32));
        let straight = 1 + (1..entries.len() - at).take_while(|n| is_next(*n, at + n)).count();
        reads += 1;
        if reads > READS_MAX {
            return false;
        }
        if straight < STRAIGHT_MIN && work.is_none() {
            work = space.places.work.try_lease(&space.budget, ctx);
        }
        let (mut to, mut n) = ([0; BATCH], 0);
        let wide = match &mut work {
            Some(work) if straight < STRAIGHT_MIN => {
                let most = work.batch();
                // As far as the next page that a file has elsewhere.
                while at < entries.len() && n < most && (place(at).is_none() || is_next(n, at)) {
                    if place(at).is_some() {
                        (to[n], n) = (at as u16, n + 1);
                    }
                    at += 1;
                }
                work.pages()
            }
            _ => &mut [],
        };
        let is_loaded = if n > 0 {
            let is_loaded = space.swap.load_scattered(held, (file, slot), &to[..n], wide, pages, spare);
            space.stats.runs.note_in(if is_loaded { n } else { 0 });
            is_loaded
        } else {
            let entries = &entries[at..at + straight];
            let wide = Some(&mut pages[at * PAGE..(at + straight) * PAGE]);
            at += straight;
            let mut buffers = Buffers { wide, bounce, spare };
            load(space, held, entries, None, &mut buffers).n == straight
        };
        if !is_loaded {
            return false;
        }
    }
    true
}
