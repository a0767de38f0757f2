//! Read-ahead beside the program: while a thread walks through swapped memory in address order, the background thread brings
//! in what comes next, so that two processors decompress instead of one.
//!
//! A fault of a walk brings in a whole window and says where that ends, the *front*. The background thread takes the window
//! after the next one, because the walker is at the next one by then; then that, and then those beyond, as long as the front
//! does not move. When it does, it begins again from there: nobody tells the other who does which window, a page's claim
//! decides. Like MADV_WILLNEED it takes no room that would have to be made first.
//!
//! It helps only where a processor has nothing else to do: while fewer threads walk than there are processors, and as long as
//! nobody who walks has lost its own since it last asked (`ru_nivcsw`). Then walks go on alone for some windows, twice as many
//! each time.
//!
//! The kernel's read-ahead is asynchronous where a device reads (`page_cache_async_ra`), and not at all in front of zram.

use crate::clock;
use crate::ctx::{ThreadCtx, WINDOW_MAX};
use crate::page::Tag;
use crate::space::Space;
use crate::stats;
use crate::table::{PAGE, UNIT_BYTES};
use crate::uapi;
use crate::willneed::Until;
use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};

/// Pages that a fault of a walk brings in at most, and the part of the budget that this is at most.
const WALK_WINDOW_MAX: usize = 128;
const WINDOW_PART: usize = 512;
/// Windows that the background thread is ahead of a walk.
const WINDOWS: usize = 2;
/// Bytes from a walk's front to the end of what may be brought in for it.
const REACH: usize = (WINDOWS + 1) * WALK_WINDOW_MAX * PAGE;
/// Pieces of windows that the background thread brings in before it looks for its other work.
const ROUND_PIECES: usize = 64;
/// Windows that a walker does without help after it has lost its processor: at first and at most.
const ALONE_MIN: u32 = 8;
const ALONE_MAX: u32 = 1024;
/// Who has not walked for so long, in steps of [`clock::stamp`], walks no more.
const PERIOD_STAMPS: u32 = 8;

/// Where the last walk is.
#[derive(Default)]
pub struct ReadAhead {
    /// The front of the walk that asked last, and 1 when it writes; 0 for none.
    front: AtomicUsize,
    /// The front that the background thread has seen last.
    seen: AtomicUsize,
    /// The front for which all is done that there is to do.
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
    /// Times that it had lost its processor when it last looked.
    preempted: AtomicU32,
}

impl Walker {
    /// The walk that may have come from its front to `page` over pages that were brought in for it.
    fn walk_to(&self, page: usize) -> Option<usize> {
        let is_near = |front: &AtomicUsize| (0..=REACH).contains(&page.wrapping_sub(front.load(Relaxed)));
        self.fronts.iter().find(|front| is_near(front)).map(|front| front.load(Relaxed))
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

    /// Whether a walker should ask for help with what comes next. `preempted`: how often it has lost its processor so far.
    fn is_of_use(&self, walker: &Walker, preempted: u32) -> bool {
        let is_preempted = walker.preempted.swap(preempted, Relaxed) != preempted;
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

    /// Nothing more is done for the walk as it was seen last: until it moves.
    pub fn rest(&self) {
        self.served.store(self.seen.load(Relaxed), Relaxed);
    }

    /// In fork's child, whose walk it is not.
    pub fn reset(&self) {
        self.look();
        self.rest();
    }
}

impl Space {
    /// Pages that a fault of a walk brings in at most, all together.
    pub(crate) fn window_max(&self) -> usize {
        (self.group.limit() / WINDOW_PART).clamp(WINDOW_MAX, WALK_WINDOW_MAX)
    }

    /// A fault of a walk brought in the first `n` pages of its window at `page`: brings in the rest, as far as there is room in
    /// the unit and in RAM; where it ended. Outside the gate.
    pub(crate) fn bring_rest(&self, ctx: &ThreadCtx, page: usize, n: usize, window: usize, write: bool) -> usize {
        let (start, unit_end) = (page + n * PAGE, self.table.unit_start(page) + UNIT_BYTES);
        let whole = page + window * PAGE;
        let (end, _) = self.bring_range(ctx, start, whole.min(unit_end).max(start), write, Until::RoomIsUsed);
        if window == self.window_max() && end >= whole.min(unit_end) {
            self.ask_ahead(ctx, page, end, write);
        }
        end
    }

    /// A walk has brought in a whole window from `page` to `front`: has what follows it brought in. Outside the gate.
    fn ask_ahead(&self, ctx: &ThreadCtx, page: usize, front: usize, write: bool) {
        ctx.walker.moved(ctx.walker.walk_to(page), front);
        let is_out = |at| self.table.word(at).is_some_and(|word| word.load().tag() == Tag::Swapped);
        if self.read_ahead.nr_walkers(ctx.shard(), clock::stamp() / PERIOD_STAMPS) < self.background.cpus()
            && (is_out(front) || is_out(front + self.window_max() * PAGE))
            && self.read_ahead.is_of_use(&ctx.walker, uapi::times_preempted())
        {
            self.read_ahead.front.store(front | write as usize, SeqCst);
            self.background.kick_if(self, true);
        }
    }

    /// A walk came to a page that somebody else is bringing in: brings in the next window rather than to wait. False when
    /// there is none. Outside the gate.
    pub(crate) fn go_ahead(&self, ctx: &ThreadCtx, page: usize, write: bool) -> bool {
        let next = page + WINDOW_MAX * PAGE;
        let is_out = self.table.word(next).is_some_and(|word| word.load().tag() == Tag::Swapped);
        let is_busy = self.table.word(page).is_some_and(|word| word.load().tag() == Tag::Busy);
        is_busy && is_out && self.bring_range(ctx, next, next + WINDOW_MAX * PAGE, write, Until::RoomIsUsed).1 > 0
    }

    /// Brings in what the last walk comes to next, as long as there is room and nobody waits for the background thread's other
    /// work. By that thread, outside the gate.
    pub(crate) fn read_ahead(&self, ctx: &ThreadCtx) {
        let ahead = &self.read_ahead;
        if !ahead.is_wanted() {
            return;
        }
        let len = self.window_max() * PAGE;
        let mut front = ahead.look();
        let (mut base, mut window, mut done) = (self.first_out(front & !1), 0, 0);
        for _ in 0..ROUND_PIECES {
            if self.group.is_above_high() || self.is_asked() {
                return;
            }
            // The walker is at the first of them.
            let start = base + (WINDOWS - 1 - window) * len;
            let at = start + done;
            let (end, pages) = self.bring_range(ctx, at, at + WINDOW_MAX * PAGE, front & 1 != 0, Until::RoomIsShort);
            stats::add(&self.stats.read_beside_pages, pages as u64);
            done = end - start;
            let now = ahead.look();
            if now != front {
                front = now;
                (base, window, done) = (self.first_out(front & !1), 0, 0);
            } else if done >= len {
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

    /// The front of the walk that came to `page` over pages that were brought in for it; none for another fault.
    pub(crate) fn walk_to(&self, ctx: &ThreadCtx, page: usize) -> Option<usize> {
        let front = ctx.walker.walk_to(page)?;
        let is_in = |at| self.table.word(at).is_some_and(|word| matches!(word.load().tag(), Tag::Present | Tag::Busy));
        (front..page).step_by(PAGE).all(is_in).then_some(front)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_loses_its_processor_goes_on_alone_for_longer_each_time() {
        let (ahead, walker) = (ReadAhead::default(), Walker::default());
        assert!(ahead.is_of_use(&walker, 0) && ahead.is_of_use(&walker, 0));
        let alone = |preempted: u32| {
            assert!(!ahead.is_of_use(&walker, preempted));
            // Losing it while alone is nobody's fault.
            (1..).take_while(|i| !ahead.is_of_use(&walker, preempted + 1 + (*i > 1) as u32)).count() as u32
        };
        assert_eq!(alone(1), ALONE_MIN);
        assert_eq!(alone(10), 2 * (ALONE_MIN - 1));
        (2..20).for_each(|i| assert!(alone(10 * i) <= ALONE_MAX));
        assert_eq!(ahead.backoff.load(Relaxed), ALONE_MAX - 1);
        // Long without: the next time is short again.
        (0..ALONE_MAX).for_each(|_| assert!(ahead.is_of_use(&walker, 192)));
        assert_eq!(alone(203), ALONE_MIN);
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
