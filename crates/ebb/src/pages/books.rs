//! What Ebb keeps books in, tables, buffers and the agent's own data, since a fork: counted once for as long as nobody has written there.
//!
//! The kernel copies such memory when it is written to, and tells nobody. But it tells whether another process maps a page, too.
//! So at a fork the pages that are in memory are shared by masks like the program's own, and what is charged for them is what
//! they are; afterwards a process looks which of them are its own, a quarter of a second after it used them, and takes its bit out
//! of their masks. The child does so first of all: it has written to some by then. Who is at rest writes nothing, and does not look.
//! Whoever drops memory of books says so before: see [`Budget::drop_books`](crate::budget::Budget::drop_books).
//!
//! Without `/proc`, or on Linux before 6.7, which cannot say which pages are in memory, all books count in full.

use crate::base::uapi::{self, Errno, own, pagemap};
use crate::base::{PAGE, clock};
use crate::device::file::keep_away;
use crate::protocols::gate::Exclusive;
use crate::space::Space;
use crate::space::books::{REFUSED, UNKNOWN};
use crate::threads::ctx::ThreadCtx;
use crate::tree::holding::Fork;
use core::sync::atomic::Ordering::{Relaxed, SeqCst};

/// Runs of pages that are shared at a fork; those in further ones count in full.
const RUNS_MAX: usize = 256;
/// How often a process that works looks which pages are its own.
const LOOK_MS: u64 = 250;
/// What a child has for itself at once, in pages, beside what it shares.
pub const CHILD_PAGES: usize = 32;

/// Runs of pages with memory, in order of their addresses within each range.
pub(crate) struct BookRuns {
    runs: [(usize, usize); RUNS_MAX],
    nr_runs: usize,
    pages: usize,
}

impl BookRuns {
    /// Start and end of each.
    pub(crate) fn all(&self) -> impl Iterator<Item = (usize, usize)> {
        self.runs[..self.nr_runs].iter().copied()
    }
}

/// Before a fork: opens the map, once a process. Outside the gate.
pub(crate) fn open_books(space: &Space) {
    let open = || {
        // Two threads may fork for the first time at once: a second map would be nobody's to close.
        if space.family.books.map.load(Relaxed) != UNKNOWN {
            return;
        }
        let page = (&raw const *space).addr() & !(PAGE - 1);
        let tells = |map: &i32| pagemap::for_each_held(*map, page, page + PAGE, |_, _| ()).is_ok();
        match pagemap::open().and_then(keep_away) {
            Ok(map) if tells(&map) => space.family.books.has(map),
            Ok(map) => {
                uapi::close(map);
                space.family.books.set_fd(REFUSED);
            }
            Err(_) => space.family.books.set_fd(REFUSED),
        }
    };
    // Another thread of the program might take the number for its own meanwhile.
    let is_alone = space.threads.contexts.all().filter(|ctx| ctx.is_used()).count() <= 1;
    // Who only shares the memory has descriptors of its own.
    let is_owner = space.tree().is_owner() && !space.tree().is_alone();
    if space.family.books.map.load(Relaxed) == UNKNOWN && is_owner && space.kernel.can_protect() {
        if is_alone { open() } else { uapi::fd::change(open) }
    }
}

/// In fork's child, the only thread: what it has inherited is its parent's map.
pub(crate) fn reopen_books(space: &Space) {
    let old = space.family.books.fd();
    if old < 0 {
        return;
    }
    if space.family.books.is_file() {
        uapi::close(old);
    }
    let opened = uapi::fd::beyond_limit(pagemap::open).and_then(keep_away);
    match opened {
        Ok(map) => space.family.books.has(map),
        Err(_) => space.family.books.set_fd(REFUSED),
    }
}

/// True when this process can tell what it keeps books in.
pub(crate) fn knows_books(space: &Space) -> bool {
    space.family.books.fd() >= 0
}

/// Calls `f` with the ranges in which books may have memory: not where the pool and staging have it, which are counted by
/// themselves.
fn for_each_book_range(space: &Space, mut f: impl FnMut(usize, usize) -> Result<(), Errno>) -> Result<(), Errno> {
    let (arena, arena_pages) = space.swap.arena();
    let (frames, frame_pages) = space.places.staging.memory();
    let mut apart = [(arena, arena + arena_pages * PAGE), (frames, frames + frame_pages * PAGE)];
    apart.sort_unstable();
    for (start, end) in own::all().chain([own::data()]) {
        let mut at = start;
        for (from, to) in apart {
            if from < end && to > at {
                if from > at {
                    f(at, from)?;
                }
                at = to;
            }
        }
        if at < end {
            f(at, end)?;
        }
    }
    Ok(())
}

/// Before fork: where books have memory now, for which this process is charged from now on. None where nobody knows.
pub(crate) fn find_books(space: &Space, exclusive: &Exclusive<'_>) -> Option<BookRuns> {
    if !knows_books(space) || !own::is_complete() {
        return None;
    }
    let mut found = BookRuns { runs: [(0, 0); RUNS_MAX], nr_runs: 0, pages: 0 };
    let done = for_each_book_range(space, |start, end| {
        pagemap::for_each_held(space.family.books.fd(), start, end, |start, end| {
            found.pages += (end - start) / PAGE;
            if found.nr_runs < RUNS_MAX {
                found.runs[found.nr_runs] = (start, end);
                found.nr_runs += 1;
            }
        })
    });
    if done.is_err() {
        return None;
    }
    // Memory that several processes map is none of these, and charged to each.
    let of_families = space.swap.devices.all(exclusive).map(|(_, file)| file.family_pages()).sum::<usize>();
    space.budget.correct_meta(exclusive, found.pages + of_families);
    // What was used before is charged now, and who uses books from here on has them looked at again.
    space.family.books.is_used.store(false, SeqCst);
    Some(found)
}

/// The child will have the same books.
pub(crate) fn share_books(runs: &BookRuns, fork: &mut Fork<'_>) {
    for (start, end) in runs.all() {
        (start..end).step_by(PAGE).for_each(|addr| {
            fork.share(addr);
        });
    }
}

/// Looks which pages of the books are this process's own. Where that cannot be seen any more all of them are. Inside the gate.
pub(crate) fn look_at_books(space: &Space) {
    // First of all: who uses them from here on has them looked at again.
    space.family.books.is_used.store(false, SeqCst);
    space.family.books.looked.store(clock::stamp(), Relaxed);
    let fd = space.family.books.fd();
    let mut has_seen = fd >= 0;
    let looked = for_each_book_range(space, |start, end| {
        pagemap::for_each_held(fd, start, end, |start, end| {
            let break_page = |addr| {
                space.tree().break_page(addr);
            };
            has_seen &= pagemap::for_each_exclusive(fd, start, end, break_page).is_ok();
        })
    });
    if looked.is_err() || !has_seen {
        let _ = for_each_book_range(space, |start, end| {
            space.tree().break_range(start, end);
            Ok(())
        });
    }
}

/// Something was done that may have written to books: has them looked at soon, by the background thread if there is one, else here,
/// now and then. Outside the gate.
#[inline]
pub(crate) fn note_books_used(space: &Space, ctx: &ThreadCtx) {
    if space.family.is_sharing() && note_used(space) {
        let inside = space.threads.enter(ctx);
        look_at_books(space);
        drop(inside);
    }
}

/// The same for whoever has closed the gate.
pub(crate) fn note_books_used_exclusive(space: &Space, _exclusive: &Exclusive<'_>) {
    if space.family.is_sharing() && note_used(space) {
        look_at_books(space);
    }
}

/// Has the background thread look at the books; true when there is none, and it is time to.
fn note_used(space: &Space) -> bool {
    if !knows_books(space) {
        return false;
    }
    // After what was written, and before the look whether the thread sleeps: see `look_at_books_in_ns`.
    if !space.family.books.is_used.load(SeqCst) {
        space.family.books.is_used.store(true, SeqCst);
        space.background.wake_if_started();
    }
    !space.background.has_thread() && look_at_books_in_ns(space) == Some(0) && space.tree().is_owner()
}

/// In how many nanoseconds to look which books are this process's own; none while nobody has used them. By the background thread
/// once it is idle, so that who uses them then wakes it.
pub(crate) fn look_at_books_in_ns(space: &Space) -> Option<u64> {
    let is_used = space.family.books.is_used.load(SeqCst) && space.family.is_sharing() && knows_books(space);
    let rest_ms = LOOK_MS.saturating_sub(clock::ms_since(space.family.books.looked.load(Relaxed)));
    is_used.then_some(rest_ms * 1_000_000)
}

/// The background thread's part: looks if it is time to. Outside the gate.
pub(crate) fn look_at_books_in_time(space: &Space, ctx: &ThreadCtx) {
    if look_at_books_in_ns(space) == Some(0) {
        let inside = space.threads.enter(ctx);
        look_at_books(space);
        drop(inside);
    }
}
