//! What Ebb keeps books in, tables, buffers and the agent's own data, since a fork: counted once for as long as nobody has written there.
//!
//! The kernel copies such memory when it is written to, and tells nobody. But it tells whether another process maps a page, too.
//! So at a fork the pages that are in memory are shared by masks like the program's own, and what is charged for them is what
//! they are; afterwards a process looks which of them are its own, a quarter of a second after it used them, and takes its bit out
//! of their masks. The child does so first of all: it has written to some by then. Who is at rest writes nothing, and does not look.
//! Whoever drops memory of books says so before: see [`Group::drop_books`](crate::group::Group::drop_books).
//!
//! Without `/proc`, or on Linux before 6.7, which cannot say which pages are in memory, all books count in full.

use crate::clock;
use crate::ctx::ThreadCtx;
use crate::device::file::keep_away;
use crate::space::Space;
use crate::table::PAGE;
use crate::tree::holding::Fork;
use crate::uapi::{self, Errno, own, pagemap};
use core::sync::atomic::{
    AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering::Relaxed, Ordering::Release, Ordering::SeqCst,
};

/// Runs of pages that are shared at a fork; those in further ones count in full.
const RUNS_MAX: usize = 256;
/// How often a process that works looks which pages are its own.
const LOOK_MS: u64 = 250;
/// What a child has for itself at once, in pages, beside what it shares.
pub const CHILD_PAGES: usize = 32;

/// In place of the map's number: the process has not forked yet.
const UNKNOWN: i32 = -1;
/// The same where it cannot be had, or does not tell.
const REFUSED: i32 = -2;

/// How a process knows what it keeps books in.
pub struct Books {
    /// `/proc/self/pagemap`, or [`UNKNOWN`], or [`REFUSED`].
    map: AtomicI32,
    /// Which file that is.
    file: [AtomicU64; 2],
    /// When it last looked.
    looked: AtomicU32,
    /// Somebody has used them since.
    is_used: AtomicBool,
}

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

impl Books {
    pub(crate) const fn new() -> Self {
        Self {
            map: AtomicI32::new(UNKNOWN),
            file: [const { AtomicU64::new(0) }; 2],
            looked: AtomicU32::new(0),
            is_used: AtomicBool::new(false),
        }
    }

    /// The descriptor that it has, or -1.
    pub(crate) fn fd(&self) -> i32 {
        self.map.load(Relaxed).max(-1)
    }

    /// Gives the descriptor another number, because the program wants this one; without one it knows no more.
    pub(crate) fn keep_away(&self) {
        self.set_fd(keep_away(self.fd()).unwrap_or(REFUSED));
    }

    /// The descriptor has this number now.
    fn set_fd(&self, fd: i32) {
        self.map.store(fd, Relaxed);
    }

    /// It has this one. Which file that is comes first: a fork's child closes what it knows.
    fn has(&self, fd: i32) {
        let file = uapi::fd::identity_of(fd).map_or([0, 0], uapi::fd::Identity::to_raw);
        self.file.iter().zip(file).for_each(|(to, word)| to.store(word, Relaxed));
        self.map.store(fd, Release);
    }

    /// True when the number still is that file. In a process that only shared the memory of this one it may be any.
    fn is_file(&self) -> bool {
        let file = uapi::fd::identity_of(self.fd()).map(uapi::fd::Identity::to_raw);
        file == Ok([0, 1].map(|i| self.file[i].load(Relaxed)))
    }
}

impl Space {
    /// Before a fork: opens the map, once a process. Outside the gate.
    pub(crate) fn open_books(&self) {
        let open = || {
            // Two threads may fork for the first time at once: a second map would be nobody's to close.
            if self.books.map.load(Relaxed) != UNKNOWN {
                return;
            }
            let page = (&raw const *self).addr() & !(PAGE - 1);
            let tells = |map: &i32| pagemap::for_each_held(*map, page, page + PAGE, |_, _| ()).is_ok();
            match pagemap::open().and_then(keep_away) {
                Ok(map) if tells(&map) => self.books.has(map),
                Ok(map) => {
                    uapi::close(map);
                    self.books.set_fd(REFUSED);
                }
                Err(_) => self.books.set_fd(REFUSED),
            }
        };
        // Another thread of the program might take the number for its own meanwhile.
        let is_alone = self.contexts.all().filter(|ctx| ctx.is_used()).count() <= 1;
        // Who only shares the memory has descriptors of its own.
        let is_owner = self.tree().is_owner() && !self.tree().is_alone();
        if self.books.map.load(Relaxed) == UNKNOWN && is_owner && self.can_protect {
            if is_alone { open() } else { uapi::fd::change(open) }
        }
    }

    /// What the process may do is about to change, and the map would show it what it could see before. All books count in full until
    /// the next fork opens it anew. Outside the gate.
    pub fn close_books(&self) {
        if self.knows_books() && self.tree().is_owner() {
            self.exclusive(|| {
                let map = self.books.map.swap(UNKNOWN, Relaxed);
                if map >= 0 {
                    uapi::close(map);
                    self.look_at_books();
                }
            });
        }
    }

    /// In fork's child, the only thread: what it has inherited is its parent's map.
    pub(crate) fn reopen_books(&self) {
        let old = self.books.fd();
        if old < 0 {
            return;
        }
        if self.books.is_file() {
            uapi::close(old);
        }
        let opened = uapi::fd::beyond_limit(pagemap::open).and_then(keep_away);
        match opened {
            Ok(map) => self.books.has(map),
            Err(_) => self.books.set_fd(REFUSED),
        }
    }

    /// True when this process can tell what it keeps books in.
    pub(crate) fn knows_books(&self) -> bool {
        self.books.fd() >= 0
    }

    /// Calls `f` with the ranges in which books may have memory: not where the pool and staging have it, which are counted by
    /// themselves.
    fn for_each_book_range(&self, mut f: impl FnMut(usize, usize) -> Result<(), Errno>) -> Result<(), Errno> {
        let (arena, arena_pages) = self.swap.arena();
        let (frames, frame_pages) = self.staging.memory();
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

    /// Before fork: where books have memory now, for which this process is charged from now on. None where nobody knows. Under the
    /// exclusive gate.
    pub(crate) fn find_books(&self) -> Option<BookRuns> {
        if !self.knows_books() || !own::is_complete() {
            return None;
        }
        let mut found = BookRuns { runs: [(0, 0); RUNS_MAX], nr_runs: 0, pages: 0 };
        let done = self.for_each_book_range(|start, end| {
            pagemap::for_each_held(self.books.fd(), start, end, |start, end| {
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
        let of_families = self.swap.devices.all().map(|(_, file)| file.family_pages()).sum::<usize>();
        self.group.correct_meta(found.pages + of_families);
        // What was used before is charged now, and who uses books from here on has them looked at again.
        self.books.is_used.store(false, SeqCst);
        Some(found)
    }

    /// The child will have the same books.
    pub(crate) fn share_books(&self, runs: &BookRuns, fork: &mut Fork<'_>) {
        for (start, end) in runs.all() {
            (start..end).step_by(PAGE).for_each(|addr| {
                fork.share(addr);
            });
        }
    }

    /// Looks which pages of the books are this process's own. Where that cannot be seen any more all of them are. Inside the gate.
    pub(crate) fn look_at_books(&self) {
        // First of all: who uses them from here on has them looked at again.
        self.books.is_used.store(false, SeqCst);
        self.books.looked.store(clock::stamp(), Relaxed);
        let fd = self.books.fd();
        let mut has_seen = fd >= 0;
        let looked = self.for_each_book_range(|start, end| {
            pagemap::for_each_held(fd, start, end, |start, end| {
                let break_page = |addr| {
                    self.tree().break_page(addr);
                };
                has_seen &= pagemap::for_each_exclusive(fd, start, end, break_page).is_ok();
            })
        });
        if looked.is_err() || !has_seen {
            let _ = self.for_each_book_range(|start, end| {
                self.tree().break_range(start, end);
                Ok(())
            });
        }
    }

    /// Something was done that may have written to books: has them looked at soon, by the background thread if there is one, else here,
    /// now and then. Outside the gate.
    #[inline]
    pub(crate) fn note_books_used(&self, ctx: &ThreadCtx) {
        if self.is_sharing() && self.note_used() {
            self.gate.enter(&ctx.gate);
            self.look_at_books();
            self.gate.leave(&ctx.gate);
        }
    }

    /// The same under the exclusive gate.
    pub(crate) fn note_books_used_exclusive(&self) {
        if self.is_sharing() && self.note_used() {
            self.look_at_books();
        }
    }

    /// Has the background thread look at the books; true when there is none, and it is time to.
    fn note_used(&self) -> bool {
        if !self.knows_books() {
            return false;
        }
        // After what was written, and before the look whether the thread sleeps: see `look_at_books_in_ns`.
        if !self.books.is_used.load(SeqCst) {
            self.books.is_used.store(true, SeqCst);
            self.background.wake_if_started();
        }
        !self.background.has_thread() && self.look_at_books_in_ns() == Some(0) && self.tree().is_owner()
    }

    /// In how many nanoseconds to look which books are this process's own; none while nobody has used them. By the background thread
    /// once it is idle, so that who uses them then wakes it.
    pub(crate) fn look_at_books_in_ns(&self) -> Option<u64> {
        let is_used = self.books.is_used.load(SeqCst) && self.is_sharing() && self.knows_books();
        let rest_ms = LOOK_MS.saturating_sub(clock::ms_since(self.books.looked.load(Relaxed)));
        is_used.then_some(rest_ms * 1_000_000)
    }

    /// The background thread's part: looks if it is time to. Outside the gate.
    pub(crate) fn look_at_books_in_time(&self, ctx: &ThreadCtx) {
        if self.look_at_books_in_ns() == Some(0) {
            self.gate.enter(&ctx.gate);
            self.look_at_books();
            self.gate.leave(&ctx.gate);
        }
    }
}
