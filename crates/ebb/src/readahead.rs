//! Read-ahead beside the program: while a thread walks through swapped memory in address order, the background thread brings
//! in what comes next, so that two processors decompress instead of one.
//!
//! A fault of a walk brings in a whole window and says where that ends, the *front*. The background thread takes the window
//! after the next one, because the walker is at the next one by then; and then that, as long as the front
//! does not move. When it does, it begins again from there: nobody tells the other who does which window, a page's claim
//! decides. Both end where the region does, because the next one may be another group's, and where there is no room: nothing is
//! reclaimed for it.
//!
//! It helps only where a processor has nothing else to do: while fewer threads walk than there are processors, and as long as
//! nobody who walks has lost its own since it asked a moment ago (`ru_nivcsw`). Then walks go on alone for some windows, twice as
//! many each time.
//!
//! The kernel's read-ahead is asynchronous where a device reads (`page_cache_async_ra`), and not at all in front of zram.

use crate::clock;
use crate::ctx::{ThreadCtx, WINDOW_MAX};
use crate::groups::Index;
use crate::page::Tag;
use crate::prefetch::Until;
use crate::space::Space;
use crate::stats;
use crate::stock::RUN_MAX;
use crate::table::{PAGE, UNIT_BYTES};
use crate::uapi;
use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};

/// Pages that a fault of a walk brings in at most, and the part of the budget that this is at most.
const WALK_WINDOW_MAX: usize = 128;
const WINDOW_PART: usize = 512;
/// Windows that the background thread is ahead of the page to which the walk comes next.
const WINDOWS: usize = 2;
/// Bytes from a walk's front to the end of what may be brought in for it.
const REACH: usize = (WINDOWS + 2) * WALK_WINDOW_MAX * PAGE;
/// What the background thread brings in for one walk before it looks for its other work: so many pieces, of so long.
const ROUND_PIECES: usize = 64;
const ROUND_NS: u64 = 10_000_000;
/// Windows that a walker does without help after it has lost its processor: at first and at most.
const ALONE_MIN: u32 = 8;
const ALONE_MAX: u32 = 1024;
/// Who has not walked for so long, in steps of [`clock::stamp`], walks no more.
const PERIOD_STAMPS: u32 = 8;

/// What else bounds a window.
#[derive(Clone, Copy)]
pub(crate) struct Limits {
    /// Where the region ends.
    pub end: usize,
    /// Whose it is.
    pub group: Index,
    /// Whether the walk writes.
    pub write: bool,
}

/// Where the last walk is.
#[derive(Default)]
pub struct ReadAhead {
    /// The front of the walk that asked last, and 1 when it writes; 0 for none.
    front: AtomicUsize,
    /// Where its region ends: stored first, and not with it, so that it may be another walk's for a moment.
    limit: AtomicUsize,
    /// The front that the background thread has seen last.
    seen: AtomicUsize,
    /// The front for which all is done that is to be done.
    served: AtomicUsize,
    /// Which threads walk in this period and walked in the one before, a bit each.
    walkers: [AtomicU64; 2],
    period: AtomicU32,
    /// Windows that walks go on alone.
    alone: AtomicU32,
    /// How many these were the last time.
    backoff: AtomicU32,
}

/// Walks that a thread is remembered to be on at the same time.
const WALKS: usize = 4;

/// What is known of a thread's walks, and of the help that it had. Only its own thread uses it.
#[derive(Default)]
pub struct Walker {
    /// Where each of its last walks is.
    fronts: [AtomicUsize; WALKS],
    /// Which of them is forgotten next.
    next: AtomicUsize,
    /// Times that it had lost its processor when it last looked, and when that was, as [`clock::stamp`].
    preempted: AtomicU32,
    looked: AtomicU32,
}

impl Walker {
    /// The walk that may have come from its front to `page` over pages that were brought in for it.
    fn walk_to(&self, page: usize) -> Option<usize> {
        let fronts = self.fronts.iter().map(|front| front.load(Relaxed));
        let nearest = fronts.min_by_key(|front| page.wrapping_sub(*front))?;
        (page.wrapping_sub(nearest) <= REACH).then_some(nearest)
    }

    /// Of a thread that is no more.
    pub fn reset(&self) {
        self.fronts.iter().for_each(|front| front.store(0, Relaxed));
        self.looked.store(0, Relaxed);
    }

    /// The walk that was at `from` is at `to` now.
    fn moved(&self, from: Option<usize>, to: usize) {
        let known = self.fronts.iter().find(|front| Some(front.load(Relaxed)) == from);
        let place = known.unwrap_or_else(|| {
            let next = self.next.load(Relaxed);
            self.next.store((next + 1) % WALKS, Relaxed);
            &self.fronts[next % WALKS]
        });
        place.store(to, Relaxed);
    }
}

impl ReadAhead {
    /// How many threads walk now, with that of number `thread`. Two that share a bit are one.
    fn nr_walkers(&self, thread: usize, period: u32) -> usize {
        if clock::is_forbidden() {
            // Nobody can tell who walks no more.
            return 1;
        }
        let [now, before] = &self.walkers;
        let last = self.period.swap(period, Relaxed);
        if last != period {
            let old = now.swap(0, Relaxed);
            before.store(if last.wrapping_add(1) == period { old } else { 0 }, Relaxed);
        }
        let bit = 1 << (thread % 64);
        if now.load(Relaxed) & bit == 0 {
            now.fetch_or(bit, Relaxed);
        }
        (now.load(Relaxed) | before.load(Relaxed)).count_ones() as usize
    }

    /// Whether a walker should ask for help with what comes next. `preempted`: how often it has lost its processor so far; `now`:
    /// as [`clock::stamp`].
    fn is_of_use(&self, walker: &Walker, preempted: u32, now: u32) -> bool {
        // To lose it long after the last help is not for that.
        let is_recent = now.wrapping_sub(walker.looked.swap(now, Relaxed)) < PERIOD_STAMPS;
        let is_preempted = walker.preempted.swap(preempted, Relaxed) != preempted && is_recent;
        let (alone, backoff) = (self.alone.load(Relaxed), self.backoff.load(Relaxed));
        if alone > 0 {
            // To lose it now is not for the help.
            self.alone.store(alone - 1, Relaxed);
            return false;
        }
        if !is_preempted {
            self.backoff.store(backoff.saturating_sub(1), Relaxed);
            return true;
        }
        let next = (2 * backoff).clamp(ALONE_MIN, ALONE_MAX);
        self.backoff.store(next, Relaxed);
        self.alone.store(next, Relaxed);
        false
    }

    /// A walk has moved, and nobody has looked at it yet.
    pub fn is_wanted(&self) -> bool {
        self.front.load(SeqCst) != self.served.load(Relaxed)
    }

    /// The front, as the background thread sees it.
    fn look(&self) -> usize {
        let front = self.front.load(SeqCst);
        self.seen.store(front, Relaxed);
        front
    }

    /// Nothing more is done for the walk as it was seen last, until it moves; also when there was no room or no time for all.
    pub fn rest(&self) {
        self.served.store(self.seen.load(Relaxed), Relaxed);
    }

    /// In fork's child, whose walk it is not.
    pub fn reset(&self) {
        self.look();
        self.rest();
        self.alone.store(0, Relaxed);
        self.backoff.store(0, Relaxed);
    }
}

impl Space {
    /// Pages that a fault of a walk brings in at most, all together: whole pieces.
    pub(crate) fn window_max(&self) -> usize {
        window_of(self.group.limit())
    }

    /// A fault of a walk brought in the first pages of its window (the address, how many): brings in the rest, as far as there is room in
    /// the unit, the region and RAM; where it ended. Outside the gate.
    pub(crate) fn bring_rest(&self, ctx: &ThreadCtx, first: (usize, usize), window: usize, limits: Limits) -> usize {
        let ((page, n), Limits { end, group, write }) = (first, limits);
        let start = page + n * PAGE;
        let most = self.window_max().min(window_of(self.groups.ram_max(group)));
        let unit_end = self.table.unit_start(page) + UNIT_BYTES;
        let end = (page + window.min(most) * PAGE).min(unit_end).min(end).max(start);
        let came = self.bring_range(ctx, start, end, write, Until::RoomIsHalfUsed);
        if window == most && !came.stopped {
            self.ask_ahead(ctx, page, came.end, limits);
        }
        came.end
    }

    /// A walk has brought in a whole window from `page` to `front`: has what follows it brought in. Outside the gate.
    fn ask_ahead(&self, ctx: &ThreadCtx, page: usize, front: usize, limits: Limits) {
        let (walker, ahead) = (&ctx.walker, &self.read_ahead);
        let from = walker.walk_to(page);
        walker.moved(from, front);
        let is_out = |at| at < limits.end && self.table.word(at).is_some_and(|word| word.load().tag() == Tag::Swapped);
        let now = clock::stamp();
        // From the second whole window on: the first may have been the last.
        if from.is_some()
            && ahead.nr_walkers(ctx.shard(), now / PERIOD_STAMPS) < self.background.cpus()
            && (is_out(front) || is_out(front + self.window_max() * PAGE))
            && ahead.is_of_use(walker, uapi::times_preempted(), now)
        {
            ahead.limit.store(limits.end, Relaxed);
            ahead.front.store(front | limits.write as usize, SeqCst);
            self.background.kick_if(self, true);
        }
    }

    /// Pages that come in at once.
    fn piece(&self) -> usize {
        if self.has_stock() { RUN_MAX } else { WINDOW_MAX }
    }

    /// A walk came to a page that somebody else is bringing in: brings in a piece after it rather than to wait. False when
    /// there is none below `end`. Outside the gate.
    pub(crate) fn go_ahead(&self, ctx: &ThreadCtx, page: usize, end: usize, write: bool) -> bool {
        let has = |at, tag| self.table.word(at).is_some_and(|word| word.load().tag() == tag);
        // After what is being brought in with it.
        let mut pieces = (page + WINDOW_MAX * PAGE..=page + self.piece() * PAGE).step_by(WINDOW_MAX * PAGE);
        let Some(next) = pieces.find(|next| *next >= end || !has(*next, Tag::Busy)) else { return false };
        let end = end.min(next + self.piece() * PAGE);
        next < end
            && has(page, Tag::Busy)
            && has(next, Tag::Swapped)
            && self.bring_range(ctx, next, end, write, Until::RoomIsHalfUsed).pages > 0
    }

    /// Brings in what the last walk comes to next, as long as there is room and nothing more urgent to do. By the background
    /// thread, outside the gate.
    pub(crate) fn read_ahead(&self, ctx: &ThreadCtx) {
        let ahead = &self.read_ahead;
        if !ahead.is_wanted() {
            return;
        }
        let (began, len) = (clock::cycles(), self.window_max() * PAGE);
        let mut front = ahead.look();
        let (mut base, mut window, mut done) = (self.first_out(front & !1), 0, 0);
        for _ in 0..ROUND_PIECES {
            let is_long = clock::ns(clock::cycles().saturating_sub(began)) > ROUND_NS;
            // What is paged out is not to come in again.
            if is_long || self.has_urgent_work() || self.page_out.is_under_way() {
                return;
            }
            // The walker is at the first of them.
            let start = base + (WINDOWS - 1 - window) * len;
            let limit = ahead.limit.load(Relaxed).min((front & !1) + REACH);
            let (at, end) = (start + done, (start + len).min(limit));
            let piece_end = end.min(at + self.piece() * PAGE);
            if at < piece_end {
                let came = self.bring_range(ctx, at, piece_end, front & 1 != 0, Until::RoomIsShort);
                stats::add(&self.stats.read_beside_pages, came.pages as u64);
                if came.stopped {
                    return;
                }
                done = came.end - start;
            }
            let now = ahead.look();
            if now != front {
                front = now;
                (base, window, done) = (self.first_out(front & !1), 0, 0);
            } else if start + done >= end {
                (window, done) = (window + 1, 0);
                if window == WINDOWS {
                    return ahead.rest();
                }
            }
        }
    }

    /// Where the walk with this front comes to a page that is not there.
    fn first_out(&self, front: usize) -> usize {
        let is_in = |at: &usize| self.table.word(*at).is_some_and(|word| word.load().tag() == Tag::Present);
        front + (front..front + REACH).step_by(PAGE).take_while(is_in).count() * PAGE
    }

    /// Whether a walk of the thread came to `page` over pages that were brought in for it.
    pub(crate) fn is_walked_to(&self, ctx: &ThreadCtx, page: usize) -> bool {
        let is_in = |at| self.table.word(at).is_some_and(|word| matches!(word.load().tag(), Tag::Present | Tag::Busy));
        ctx.walker.walk_to(page).is_some_and(|front| (front..page).step_by(PAGE).all(is_in))
    }
}

/// Pages of a walk's window where so many may be held.
fn window_of(limit: usize) -> usize {
    (limit / WINDOW_PART / WINDOW_MAX * WINDOW_MAX).clamp(WINDOW_MAX, WALK_WINDOW_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_loses_its_processor_goes_on_alone_for_longer_each_time() {
        let (ahead, walker) = (ReadAhead::default(), Walker::default());
        let mut now = 100;
        // What happened before is nobody's fault.
        assert!(ahead.is_of_use(&walker, 7, now) && ahead.is_of_use(&walker, 7, now));
        let mut alone = |preempted: u32| {
            assert!(!ahead.is_of_use(&walker, preempted, now));
            let times = (0..).take_while(|_| !ahead.is_of_use(&walker, preempted, now)).count() as u32;
            now += PERIOD_STAMPS - 1;
            times
        };
        assert_eq!(alone(8), ALONE_MIN);
        assert_eq!(alone(10), 2 * (ALONE_MIN - 1));
        (2..20).for_each(|i| assert!(alone(10 * i) <= ALONE_MAX));
        assert_eq!(ahead.backoff.load(Relaxed), ALONE_MAX - 1);
        // Long without: the next time is short again.
        let now = now - 1;
        (0..ALONE_MAX).for_each(|_| assert!(ahead.is_of_use(&walker, 190, now)));
        assert!(!ahead.is_of_use(&walker, 203, now));
        assert_eq!(ahead.backoff.load(Relaxed), ALONE_MIN);
        // And what happens between two walks is nobody's fault either.
        ahead.reset();
        assert!(ahead.is_of_use(&walker, 300, now + PERIOD_STAMPS));
    }

    #[test]
    fn who_walks_counts_until_the_next_period_ends() {
        let ahead = ReadAhead::default();
        assert_eq!([ahead.nr_walkers(3, 7), ahead.nr_walkers(3, 7), ahead.nr_walkers(4, 7)], [1, 1, 2]);
        assert_eq!([ahead.nr_walkers(4, 8), ahead.nr_walkers(4, 9)], [2, 1]);
        assert_eq!([ahead.nr_walkers(5, 9), ahead.nr_walkers(5, 11)], [2, 1]);
    }

    #[test]
    fn a_walker_knows_several_walks() {
        let walker = Walker::default();
        let start = |walk: usize| (walk + 1) << 30;
        (0..WALKS).for_each(|walk| walker.moved(None, start(walk)));
        for step in 0..3 {
            for walk in 0..WALKS {
                let front = start(walk) + step * REACH;
                assert_eq!([front - PAGE, front + REACH + PAGE].map(|page| walker.walk_to(page)), [None, None]);
                assert_eq!([front, front + REACH].map(|page| walker.walk_to(page)), [Some(front), Some(front)]);
                walker.moved(Some(front), front + REACH);
            }
        }
        // One more, and the first is forgotten.
        walker.moved(None, start(9));
        assert_eq!(walker.walk_to(start(0) + 3 * REACH + PAGE), None);
        assert!(walker.walk_to(start(1) + 3 * REACH + PAGE).is_some());
    }
}
