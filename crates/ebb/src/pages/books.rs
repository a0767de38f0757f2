//! Counts Ebb's books since a fork: a page counts once for as long as nobody has written to it.
//!
//! Books are Ebb's own tables and buffers, and the agent's own data. The kernel copies this memory when it is written to, and
//! tells nobody. But the kernel can say whether another process also maps a page.
//!
//! * At a fork, the pages of books that are in memory are shared by masks, like the program's own. The parent is charged for
//!   exactly these pages from then on.
//! * A quarter of a second after a process used them, it looks which of the pages are its own, and takes its bit out of their
//!   masks. The child looks before it does anything else, because it has written to some by then.
//! * A process at rest writes nothing, and does not look.
//! * Books leave the masks before their memory is dropped: see [`Budget::drop_books`](crate::budget::Budget::drop_books).
//!
//! All books count in full without `/proc`, and on Linux before 6.7, which cannot say which pages are in memory.

use crate::base::uapi::{self, Errno, own, pagemap};
use crate::base::{PAGE, clock};
use crate::device::file::keep_away;
use crate::protocols::gate::Exclusive;
use crate::space::Space;
use crate::space::books::{REFUSED, UNKNOWN};
use crate::threads::ctx::ThreadCtx;
use crate::tree::holding::Fork;
use core::sync::atomic::Ordering::{Relaxed, SeqCst};

/// Most runs of pages that are shared at a fork. The pages of further runs count in full.
const RUNS_MAX: usize = 256;
/// How often a process that works looks which pages are its own.
const LOOK_MS: u64 = 250;
/// Pages that a child needs for itself at once, beside those that it shares.
pub const CHILD_PAGES: usize = 32;

/// Runs of pages with memory. Within each range they are in the order of their addresses.
pub(crate) struct BookRuns {
    runs: [(usize, usize); RUNS_MAX],
    nr_runs: usize,
    pages: usize,
}

impl BookRuns {
    /// The start and end of each run.
    pub(crate) fn all(&self) -> impl Iterator<Item = (usize, usize)> {
        self.runs[..self.nr_runs].iter().copied()
    }
}

/// Opens the map before a fork, once for each process. Outside the gate.
pub(crate) fn open_books(space: &Space) {
    let open = || {
        // Two threads may fork for the first time at once. Nobody would close a second map.
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
    // Any other thread of the program might take the descriptor's number for its own meanwhile.
    let is_alone = space.threads.contexts.all().filter(|ctx| ctx.is_used()).count() <= 1;
    // A process that only shares the memory of another has descriptors of its own.
    let is_owner = space.tree().is_owner() && !space.tree().is_alone();
    if space.family.books.map.load(Relaxed) == UNKNOWN && is_owner && space.kernel.can_protect() {
        if is_alone { open() } else { uapi::fd::change(open) }
    }
}

/// Opens the map again in fork's child: the inherited one is its parent's. The calling thread is the only one.
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

/// True if this process can find out which pages of its books are in memory.
pub(crate) fn knows_books(space: &Space) -> bool {
    space.family.books.fd() >= 0
}

/// Calls `f` with the ranges in which books may have memory. The pool and staging are left out, because they are counted
/// separately.
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

/// Finds before a fork where books have memory, and charges this process for exactly that. None if that cannot be found out.
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
    // Memory that several processes map is not among these pages. Each of the processes is charged for it.
    let of_families = space.swap.devices.all(exclusive).map(|(_, file)| file.family_pages()).sum::<usize>();
    space.budget.correct_meta(exclusive, found.pages + of_families);
    // All earlier uses are charged now. The next use of books from here on has them looked at again.
    space.family.books.is_used.store(false, SeqCst);
    Some(found)
}

/// Marks the books as shared with the child of a fork.
pub(crate) fn share_books(runs: &BookRuns, fork: &mut Fork<'_>) {
    for (start, end) in runs.all() {
        (start..end).step_by(PAGE).for_each(|addr| {
            fork.share(addr);
        });
    }
}

/// Looks which pages of the books are this process's own. If that can no longer be seen, all of them count as its own. Inside
/// the gate.
pub(crate) fn look_at_books(space: &Space) {
    // Before the look: the next use of books from here on has them looked at again.
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

/// Notes that books may have been written to, and has them looked at. Outside the gate.
///
/// The background thread looks soon. If there is none, this thread looks now and then.
#[inline]
pub(crate) fn note_books_used(space: &Space, ctx: &ThreadCtx) {
    if space.family.is_sharing() && note_used(space) {
        let inside = space.threads.enter(ctx);
        look_at_books(space);
        drop(inside);
    }
}

/// Does the same as [`note_books_used`] with the gate closed.
pub(crate) fn note_books_used_exclusive(space: &Space, _exclusive: &Exclusive<'_>) {
    if space.family.is_sharing() && note_used(space) {
        look_at_books(space);
    }
}

/// Has the background thread look at the books. True if there is none, and the caller should look now.
fn note_used(space: &Space) -> bool {
    if !knows_books(space) {
        return false;
    }
    // After the writes to books, and before the check whether the background thread sleeps: see `look_at_books_in_ns`.
    if !space.family.books.is_used.load(SeqCst) {
        space.family.books.is_used.store(true, SeqCst);
        space.background.wake_if_started();
    }
    !space.background.has_thread() && look_at_books_in_ns(space) == Some(0) && space.tree().is_owner()
}

/// Nanoseconds until the next look at the books. None while nobody has used them.
///
/// The background thread asks once it is idle, so that a thread that uses books afterwards wakes it.
pub(crate) fn look_at_books_in_ns(space: &Space) -> Option<u64> {
    let is_used = space.family.books.is_used.load(SeqCst) && space.family.is_sharing() && knows_books(space);
    let rest_ms = LOOK_MS.saturating_sub(clock::ms_since(space.family.books.looked.load(Relaxed)));
    is_used.then_some(rest_ms * 1_000_000)
}

/// Looks at the books if it is time to. For the background thread, outside the gate.
pub(crate) fn look_at_books_in_time(space: &Space, ctx: &ThreadCtx) {
    if look_at_books_in_ns(space) == Some(0) {
        let inside = space.threads.enter(ctx);
        look_at_books(space);
        drop(inside);
    }
}
