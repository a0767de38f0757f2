//! Read-ahead beside the program: while a thread walks through swapped memory in address order, the background thread brings
//! in what comes next. So two processors decompress instead of one.
//!
//! A fault of a walk brings in a whole window and publishes where the window ends, the *front*. The background thread first
//! takes the window after the next one, because the walker is at the next one by then. After that it takes the next one
//! itself, as long as the front does not move. When the front moves, the background thread begins again from there. The two
//! threads do not agree on who does which window: the claim of each page decides. Both end where the region ends, because the
//! next region may belong to another group. Both also end where there is no room, because nothing is reclaimed for
//! read-ahead of single pages. Units that come in whole are read ahead as a whole: the background thread brings in the one after the
//! walker's next, and reclaims for that as the walker would.
//!
//! The background thread helps only where a processor has nothing else to do. So fewer threads must walk than there are
//! processors. And no walker may have lost its processor since it asked for help a moment ago (`ru_nivcsw`). If one has,
//! walks go on alone for some windows, for twice as many each time. That does not count where a walker waits for a device: its
//! processor is free meanwhile.
//!
//! The kernel's read-ahead is asynchronous where a device reads (`page_cache_async_ra`). In front of zram the kernel has none.

use crate::base::events::{self, Ahead, Kind};
use crate::base::{PAGE, clock, uapi};
use crate::counters::stats;
use crate::device::file::BATCH;
use crate::groups::table::Index;
use crate::memory::table::{UNIT_BYTES, UNIT_PAGES};
use crate::pages::stock;
use crate::places::fetches::Pace;
use crate::places::frames::RUN_MAX;
use crate::protocols::page::Tag;
use crate::space::Space;
use crate::space::read_ahead::PERIOD_STAMPS;
use crate::threads::ctx::{ThreadCtx, WINDOW_MAX};
use crate::threads::walker::{REACH, WINDOWS, Walker};
use crate::way_in::prefetch::{self, Until};
use crate::way_in::whole::{self, Reclaims};
use crate::way_in::{extent, fetch, window};
use crate::way_out::reclaim;
use core::sync::atomic::Ordering::{Relaxed, SeqCst};

/// The background thread looks for its other work after this many pieces for one walk, or after this time.
const ROUND_PIECES: usize = 64;
const ROUND_NS: u64 = 10_000_000;
/// The other bounds of a window, and what it is for.
#[derive(Clone, Copy)]
pub(crate) struct Limits {
    /// Where the region ends.
    pub end: usize,
    /// The region's group.
    pub group: Index,
    /// Whether the walk writes.
    pub write: bool,
}

/// Brings in the rest of the window of a fault that is a step of a walk. Outside the gate.
///
/// `first` is the address of the first pages of the window, which are in, and their number. The rest comes as far as there is
/// room in the unit, the region and RAM. Returns where it ended.
pub(crate) fn bring_rest(
    space: &Space,
    ctx: &ThreadCtx,
    first: (usize, usize),
    window: usize,
    limits: Limits,
) -> usize {
    let ((page, n), Limits { end, group, write }) = (first, limits);
    let start = page + n * PAGE;
    let most = extent::window_max(space).min(extent::window_of(space, space.groups.ram_max(group)));
    let unit_end = space.table.unit_start(page) + UNIT_BYTES;
    let end = (page + extent::to_run_end(space, page, window.min(most)) * PAGE).min(unit_end).min(end).max(start);
    events::record(Kind::Ahead, 0, 0, Ahead::Window.of(ctx.shard()));
    let came = prefetch::bring_range(space, ctx, start, end, write, Until::RoomIsHalfUsed);
    if window == most && !came.stopped {
        ask_ahead(space, ctx, page, came.end, limits);
    }
    came.end
}

/// Asks the background thread for the pages after a whole window of a walk, which goes from `page` to `front`. Outside the
/// gate.
pub(crate) fn ask_ahead(space: &Space, ctx: &ThreadCtx, page: usize, front: usize, limits: Limits) {
    let (walker, ahead) = (&ctx.walker, &space.background.read_ahead);
    let from = walker.walk_to(page);
    walker.moved(from, front);
    let is_out = |at| at < limits.end && space.table.word(at).is_some_and(|word| word.load().tag() == Tag::Swapped);
    // The background thread may have what comes first in its hands.
    let next = [0, extent::window_max(space) * PAGE, UNIT_BYTES].map(|ahead| front + ahead);
    let now = clock::stamp();
    // Only from the second whole window on: a walk may end after its first.
    if from.is_some()
        && ahead.nr_walkers(ctx.shard(), now / PERIOD_STAMPS) < space.background.cpus()
        && next.into_iter().any(is_out)
        && is_help_of_use(space, walker, next.into_iter().any(|at| is_out(at) && extent::waits_at(space, at)), now)
    {
        ahead.limit.store(limits.end, Relaxed);
        ahead.front.store(front | limits.write as usize, SeqCst);
        space.background.kick_if(space, true);
    }
    if from.is_some() {
        fetch::fetch_ahead(space, ctx, (front, front), limits.end);
    }
}

/// Whether a walk should be helped. `waits` if the content of what it needs next is on a device for which it may have to wait.
fn is_help_of_use(space: &Space, walker: &Walker, waits: bool, now: u32) -> bool {
    // Without a clock, nothing is fetched.
    match if clock::is_forbidden() { Pace::Unknown } else { space.swap.fetches.pace(now) } {
        Pace::Unknown if waits => true,
        // Who helps would wait for the device, too.
        Pace::Device if waits => false,
        _ => space.background.read_ahead.is_of_use(walker, uapi::times_preempted(), now),
    }
}

/// Asks the background thread for the unit after that of `page`, which a walk is about to load itself. Outside the gate.
pub(crate) fn ask_next_unit(space: &Space, ctx: &ThreadCtx, page: usize, limits: Limits) {
    let (ahead, start) = (&space.background.read_ahead, space.table.unit_start(page));
    let next = start + UNIT_BYTES;
    let is_out = || {
        let tag = space.table.word(next).map(|word| word.load().tag());
        matches!(tag, Some(Tag::Swapped | Tag::Staged))
    };
    if next < limits.end
        && ctx.walker.walk_to(page).is_some()
        && ahead.alone.load(Relaxed) == 0
        && ahead.nr_walkers(ctx.shard(), clock::stamp() / PERIOD_STAMPS) < space.background.cpus()
        && is_out()
    {
        ahead.limit.store(limits.end, Relaxed);
        ahead.front.store(start | limits.write as usize, SeqCst);
        space.background.kick_if(space, true);
    }
}

/// Has the background thread help a walk that must reclaim, if a processor has nothing else to do.
pub(crate) fn ask_to_help(space: &Space, ctx: &ThreadCtx) {
    if space.background.read_ahead.nr_walkers(ctx.shard(), clock::stamp() / PERIOD_STAMPS) < space.background.cpus() {
        reclaim::begin_early(space);
    }
}

/// Most pages that come in at a time.
fn piece(space: &Space) -> usize {
    if stock::has_stock(space) { RUN_MAX } else { BATCH }
}

/// Brings in a piece after `page`, at which a walk met another thread, instead of waiting for that thread. False if nothing
/// came in, as when no swapped page follows below `end`. Outside the gate.
pub(crate) fn go_ahead(space: &Space, ctx: &ThreadCtx, page: usize, end: usize, write: bool) -> bool {
    let has = |at, tag| space.table.word(at).is_some_and(|word| word.load().tag() == tag);
    // Begin after the pages that the other thread is bringing in together with `page`.
    let mut pieces = (page + WINDOW_MAX * PAGE..=page + piece(space) * PAGE).step_by(WINDOW_MAX * PAGE);
    let Some(next) = pieces.find(|next| *next >= end || !has(*next, Tag::Busy)) else { return false };
    let end = end.min(next + piece(space) * PAGE);
    events::record(Kind::Ahead, 0, 0, Ahead::Window.of(ctx.shard()));
    next < end
        && has(page, Tag::Busy)
        && has(next, Tag::Swapped)
        && prefetch::bring_range(space, ctx, next, end, write, Until::RoomIsHalfUsed).pages > 0
}

/// Brings in what the walk that asked last needs next, as long as there is room and nothing more urgent to do. For the
/// background thread, outside the gate.
pub(crate) fn read_ahead(space: &Space, ctx: &ThreadCtx) {
    let ahead = &space.background.read_ahead;
    if !ahead.is_wanted() {
        return;
    }
    events::record(Kind::Ahead, 0, 0, Ahead::Beside.of(ctx.shard()));
    let (began, len) = (clock::cycles(), extent::window_max(space) * PAGE);
    let mut front = ahead.look();
    let (mut base, mut window, mut done) = (first_out(space, front & !1), 0, 0);
    for _ in 0..ROUND_PIECES {
        let is_long = clock::ns(clock::cycles().saturating_sub(began)) > ROUND_NS;
        // A range that is being paged out must not come in again.
        if is_long || reclaim::has_urgent_work(space) || space.background.page_out.is_under_way() {
            return;
        }
        // The last window comes first, because the walker is at the first one.
        let start = base + (WINDOWS - 1 - window) * len;
        let limit = ahead.limit.load(Relaxed).min((front & !1) + REACH);
        let (at, end) = (start + done, (start + len).min(limit));
        let piece_end = end.min(at + piece(space) * PAGE);
        let write = front & 1 != 0;
        let is_whole = at < piece_end && bring_whole(space, ctx, at, base, write);
        if at < piece_end && !is_whole {
            let device = extent::device_of(space, at);
            fetch::fetch_ahead(space, ctx, (base, base + WINDOWS * len), limit);
            let came = prefetch::bring_range(space, ctx, at, piece_end, write, Until::RoomIsShort);
            window::note_beside(space, at, came.pages, device);
            stats::add(&space.stats.read_beside_pages, came.pages as u64);
            if came.stopped {
                return;
            }
            done = came.end - start;
        }
        let now = ahead.look();
        if is_whole && now == front {
            return ahead.rest();
        }
        if now != front {
            front = now;
            (base, window, done) = (first_out(space, front & !1), 0, 0);
        } else if start + done >= end {
            (window, done) = (window + 1, 0);
            if window == WINDOWS {
                return ahead.rest();
            }
        }
    }
}

/// Brings in the unit around `at`, if it comes whole, for a walk that meets its next fault at `first`. If that is in the unit, the walk
/// brings it in itself, and this the next one. False if the unit does not come whole: a part of it would keep it from that.
fn bring_whole(space: &Space, ctx: &ThreadCtx, at: usize, first: usize, write: bool) -> bool {
    let unit = space.table.unit_start(at);
    if unit < first || !whole::comes_whole(space, ctx, unit) {
        return false;
    }
    let next = if unit == first { unit + UNIT_BYTES } else { unit };
    if next + UNIT_BYTES <= space.background.read_ahead.limit.load(Relaxed)
        && whole::bring_ahead(space, ctx, next, write, Reclaims::Alone)
    {
        stats::add(&space.stats.read_beside_pages, UNIT_PAGES as u64);
    }
    true
}

/// Where the walk with this front first meets a page that is not present.
fn first_out(space: &Space, front: usize) -> usize {
    let is_in = |at: &usize| space.table.word(*at).is_some_and(|word| word.load().tag() == Tag::Present);
    front + (front..front + REACH).step_by(PAGE).take_while(is_in).count() * PAGE
}
