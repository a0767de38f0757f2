//! The stock: frames of staging that hold no page any more and keep their memory for pages that come in next.
//!
//! To map a page by COPY the kernel allocates memory, and to drop one it frees memory: together 1.5 us a page. A program that
//! walks through more memory than it may have pays both for every page. MOVE maps a frame with its content, for a sixth of
//! that. So frames that swapping out leaves behind, and clean pages that are evicted, are kept in bundles of
//! [`BUNDLE_FRAMES`]. The next run of pages that comes in takes them. A swap-in fills the frames with decompressed pages, a
//! first touch with zeros.
//!
//! MOVE flushes the TLB once a call, which interrupts every processor that the program runs on (12 us). So only runs of at
//! least [`RUN_MIN`] pages come from the stock, and only where that proves cheaper (`ways`). The stock grows by as much as
//! such runs have asked for lately, to at most what background reclaim keeps free. Its frames stay charged, and a page takes
//! the charge along with the frame.
//!
//! MOVE cannot protect the pages that it maps. A page that is to be clean is protected right afterwards, and then compared with
//! what was put there. If a thread wrote to the page in between, it is an ordinary page.
//!
//! The kernel may hold a reference to a page for longer than the call that was given the page. If the page is pinned, MOVE
//! refuses it. If not, as with MSG_ZEROCOPY, other content written to the frame would be sent instead. A process that makes
//! such calls keeps no frames ([`Space::reuse_no_frames`]).
//!
//! Frames in the stock have owner 0 and memory behind them, and each is in the ring once. They are taken, used and put back
//! inside the gate. A fork finds the stock empty, because memory that a child shares cannot be moved.

use crate::base::uapi::uffd::UffdError;
use crate::base::{PAGE, clock, uapi};
use crate::counters::stats;
use crate::memory::table::{UNIT_BYTES, UNIT_PAGES};
use crate::pages::{account, folio, sharing};
use crate::places::frames::{BUNDLE_BYTES, Closed, Frames, Placed, RUN_MAX, RUN_MIN};
use crate::places::staging::{BUNDLE_FRAMES, BUNDLES, Part};
use crate::places::work::RunBuffers;
use crate::protocols::gate::Exclusive;
use crate::protocols::gate::Held;
use crate::protocols::page::{State, Tag};
use crate::space::Space;
use crate::threads::ctx::ThreadCtx;
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::{Relaxed, SeqCst};

/// Most pages of demand that are remembered.
const DEMAND_MAX: i64 = 4096;
/// How late pages are protected where that is forced.
const LATE_NS: u64 = 100_000;
/// How long nothing goes to the stock after it stood in the way of another charge.
const REFUSED_MS: u64 = 5;

/// Bundles on their way into the stock. Neighbouring bundles go in as one run.
struct NewFrames<'a> {
    space: &'a Space,
    run: Frames,
}

impl NewFrames<'_> {
    fn add_bundle(&mut self, first: u32) {
        if self.run.n == 0 || self.run.first + self.run.n as u32 != first {
            self.flush();
            self.run = Frames { first, n: 0 };
        }
        self.run.n += BUNDLE_FRAMES;
    }

    fn flush(&self) {
        if self.run.n > 0 {
            self.space.places.stock.demand.meet(self.run.n);
            self.space.budget.add_stocked(self.run.n as i64);
            push_frames(self.space, self.run);
        }
    }
}

impl Drop for NewFrames<'_> {
    fn drop(&mut self) {
        self.flush();
    }
}

/// True if the stock has frames for a run.
pub(crate) fn has_stock(space: &Space) -> bool {
    let kept = space.places.folios.nr_kept() * UNIT_PAGES;
    space.budget.stocked() >= kept + RUN_MIN && !space.budget.is_stock_too_large()
}

/// Whether the page at `addr`, seen in `state`, begins a run of pages that can be moved in: from frames of the stock, or, if
/// they are staged, from their own frames.
pub(crate) fn may_move_in(space: &Space, addr: usize, state: State, window: usize) -> bool {
    let is_next = |(i, next): (usize, State)| match state.tag() {
        Tag::Staged => next == State::staged(state.payload() as u32 + i as u32),
        tag => next.tag() == tag,
    };
    let end = addr + RUN_MIN * PAGE;
    window >= RUN_MIN
        && matches!(state.tag(), Tag::None | Tag::Staged | Tag::Swapped)
        && space.kernel.can_move()
        && end <= space.table.unit_start(addr) + UNIT_BYTES
        && (addr..end).step_by(PAGE).map_while(|at| Some(space.table.word(at)?.load())).enumerate().all(is_next)
}

/// True if there are frames for a run of pages in that state, and MOVE costs less than COPY.
pub(crate) fn has_frames_for(space: &Space, state: State) -> bool {
    let has_frames = match state.tag() {
        Tag::Staged => {
            let frame = state.payload() as u32;
            // To take a part out of a huge page would split that.
            !space.places.staging.is_shared(frame) && !space.places.staging.is_whole(frame)
        }
        Tag::Swapped => has_stock(space) && RunBuffers::are_allowed(space.budget.expected()),
        _ => has_stock(space),
    };
    has_frames && (space.places.ways.prefers_move(state.tag()) || space.kernel.force().always_move)
}

/// Notes that `n` pages, seen in `state`, came in for which frames of the stock are of use, whether it had any or not.
pub(crate) fn note_demand(space: &Space, n: usize, state: State) {
    let is_of_use = match state.tag() {
        Tag::Staged => false,
        Tag::Swapped => RunBuffers::are_allowed(space.budget.expected()),
        _ => true,
    };
    if !is_of_use {
        return;
    }
    space.places.stock.demand.note(n, DEMAND_MAX);
}

/// Takes frames for a run of at most `most` pages, and a few more if the rest would be too few for another run. Inside the
/// gate.
pub(crate) fn take_frames(space: &Space, most: usize) -> Option<Frames> {
    let all = Frames::from_bits(space.places.stock.frames.pop()?);
    let (taken, rest) = all.split(most);
    space.budget.add_stocked(-(taken.n as i64));
    if rest.n > 0 {
        push_frames(space, rest);
    }
    Some(taken)
}

/// Puts frames back of which the first `used` are pages now. The others are dropped if they are too few for a run. Inside the
/// gate.
pub(crate) fn put_frames(space: &Space, frames: Frames, used: usize) {
    if used > 0 {
        space.places.staging.frames_left(frames.first, used as u32);
        stats::add(&space.stats.moved_in_pages, used as u64);
    }
    let rest = Frames { first: frames.first + used as u32, n: frames.n - used };
    if rest.n >= RUN_MIN {
        space.budget.add_stocked(rest.n as i64);
        push_frames(space, rest);
    } else if rest.n > 0 {
        drop_frames(space, rest);
    }
}

/// Puts frames into the stock, to be used first: processors have the last ones in their caches.
fn push_frames(space: &Space, frames: Frames) {
    let pushed = space.places.stock.frames.push_first(frames.to_bits());
    assert!(pushed, "there are no more runs of frames than places");
}

fn drop_frames(space: &Space, frames: Frames) {
    space.places.staging.drop_kept(frames.first, frames.n as u32);
    space.budget.uncharge(frames.n);
}

/// Closes the stock: as long as the returned value lives, memory that is freed is freed for good.
pub(crate) fn close_stock(space: &Space) -> Closed<'_> {
    space.places.stock.closers.fetch_add(1, Relaxed);
    Closed(&space.places.stock)
}

/// Drops some of the stock, and buffers that are more than the process should have now. False if there was nothing to
/// drop. Outside the gate.
pub(crate) fn shrink_stock(space: &Space, ctx: &ThreadCtx) -> bool {
    let share = space.budget.expected();
    let (runs, works, fetches) = (&space.places.runs, &space.places.work, &space.swap.fetches);
    let are_too_many = runs.are_too_many(share) || works.are_too_many(share) || fetches.are_too_many(share);
    if !are_too_many && space.budget.stocked() == 0 {
        return false;
    }
    let inside = space.threads.enter(ctx);
    let trim = || {
        let budget = &space.budget;
        runs.trim(share, budget) + works.trim(share, budget) + fetches.trim(share, budget)
    };
    let mut freed = if are_too_many { trim() } else { 0 };
    match take_frames(space, RUN_MAX) {
        Some(frames) => {
            drop_frames(space, frames);
            freed += frames.n;
        }
        None => freed += folio::drop_kept(space),
    }
    drop(inside);
    freed > 0
}

/// Frees all buffers that no thread works in at this moment, for a process that would otherwise end for want of memory. False if
/// there were none. Outside the gate.
pub(crate) fn release_buffers(space: &Space, ctx: &ThreadCtx) -> bool {
    let inside = space.threads.enter(ctx);
    let budget = &space.budget;
    let freed = space.places.runs.trim(0, budget)
        + space.places.work.release(budget)
        + space.swap.fetches.trim(0, budget)
        + space.swap.codecs.trim(true, budget);
    drop(inside);
    freed > 0
}

/// Drops some of the stock for a charge that finds no room. False if there is none. Outside the gate.
///
/// For [`REFUSED_MS`] afterwards, memory that is freed is freed for good.
pub(crate) fn give_up_stock(space: &Space, ctx: &ThreadCtx) -> bool {
    let is_given = shrink_stock(space, ctx);
    if is_given {
        space.places.stock.demand.clear();
        space.places.stock.refused.store(clock::stamp(), Relaxed);
    }
    is_given
}

/// Drops all of the stock and the buffers of runs before a fork. Frames that the child will share never get into the stock.
pub(crate) fn empty_stock(space: &Space, exclusive: &Exclusive<'_>) {
    space.places.runs.trim(0, &space.budget);
    space.swap.fetches.trim(0, &space.budget);
    while let Some(frames) = take_frames(space, RUN_MAX) {
        drop_frames(space, frames);
    }
    while folio::drop_kept(space) > 0 {}
    space.places.staging.keep_no_more(exclusive);
}

/// Pages by which the stock may grow.
fn stock_room(space: &Space) -> usize {
    let demand = space.places.stock.demand.now();
    if demand == 0 || is_closed(space) || space.places.staging.is_scarce() {
        return 0;
    }
    let most = space.budget.stock_max().min(demand + BUNDLE_FRAMES - 1);
    // While MOVE does not pay, one run's frames are enough to measure its cost again.
    if space.places.ways.wants_frames() || space.kernel.force().always_move {
        most
    } else {
        most.min(RUN_MAX.saturating_sub(space.budget.stocked()))
    }
}

/// Pages of folios by which the stock may grow.
pub(crate) fn folio_room(space: &Space) -> usize {
    if is_closed(space) || space.places.staging.is_scarce() { 0 } else { space.budget.stock_max() }
}

/// True while nothing may be stocked.
fn is_closed(space: &Space) -> bool {
    let refused = clock::ms_since(space.places.stock.refused.load(Relaxed));
    space.places.stock.closers.load(Relaxed) > 0
        || space.places.stock.is_over.load(SeqCst)
        || refused <= REFUSED_MS && !clock::is_forbidden()
}

/// True if the unit at `unit` may have pages that the kernel still reads, by a reference from before they were managed, or
/// that a driver may have pinned.
pub(crate) fn may_be_lent(space: &Space, unit: usize) -> bool {
    space.table.unit(unit).is_some_and(|unit| unit.lent.load(Relaxed) != 0)
}

/// Releases a drained part. Its full bundles go to the stock, as far as it has room. Returns how many pages that gained.
/// Inside the gate.
pub(crate) fn release_part(space: &Space, part: Part) -> usize {
    if space.places.staging.is_whole_part(part) {
        return folio::release(space, part, folio_room(space));
    }
    let frames = space.places.staging.frames_of(part);
    sharing::break_frames(space, frames.start, frames.map(|frame| space.places.staging.addr(frame)));
    let (room, mut stocked) = (stock_room(space), 0);
    let mut new = NewFrames { space, run: Frames { first: 0, n: 0 } };
    let freed = space.places.staging.release(part, |first| {
        // A bundle is kept only if all of it is in memory: nobody may look into a frame that the kernel has lost.
        let keeps =
            stocked + BUNDLE_FRAMES <= room && uapi::are_resident(space.places.staging.addr(first), BUNDLE_FRAMES);
        if keeps {
            stocked += BUNDLE_FRAMES;
            new.add_bundle(first);
        }
        keeps
    });
    space.budget.uncharge(freed);
    freed + stocked
}

/// Moves claimed clean pages of the unit into the stock, in whole bundles. Returns which pages are gone now, a bit each.
///
/// `is_clean` says which pages may go.
pub(crate) fn move_to_stock(
    space: &Space,
    held: &Held,
    unit: usize,
    is_clean: impl Fn(usize) -> bool,
) -> [u64; BUNDLES] {
    let mut gone = [0; BUNDLES];
    let can_move = space.kernel.can_move() && !may_be_lent(space, unit);
    let mut room = if can_move { stock_room(space) } else { 0 };
    let mut wanted = 0u32;
    for bundle in 0..BUNDLES {
        let first = unit + bundle * BUNDLE_BYTES;
        let mut pages = bundle * BUNDLE_FRAMES..(bundle + 1) * BUNDLE_FRAMES;
        if room >= BUNDLE_FRAMES
            && pages.all(&is_clean)
            && account::is_plain_range(space, held, first, first + BUNDLE_BYTES)
        {
            wanted |= 1 << bundle;
            room -= BUNDLE_FRAMES;
        }
    }
    let block = if wanted != 0 { space.places.staging.take() } else { None };
    let Some(block) = block else { return gone };
    let frame = |bundle: usize| space.places.staging.frame(block, bundle * BUNDLE_FRAMES);
    let (mut fit, mut bundle) = (0u32, 0);
    while bundle < BUNDLES {
        let run = bundle..bundle + ((wanted >> bundle).trailing_ones() as usize).max(1);
        bundle = run.end;
        if wanted & 1 << run.start == 0 {
            continue;
        }
        stats::add(&space.stats.unmap_calls, 1);
        stats::add(&space.stats.unmap_move_calls, 1);
        let (src, len) = (unit + run.start * BUNDLE_BYTES, run.len() * BUNDLE_BYTES);
        let moved = match space.uffd().move_pages(space.places.staging.addr(frame(run.start)), src, len) {
            Ok(()) => len,
            Err((bytes, _)) => bytes,
        };
        // A page that the kernel itself had swapped out keeps its protection, so the protection is lifted here.
        let is_open = space.uffd().write_protect(space.places.staging.addr(frame(run.start)), len, false).is_ok();
        for (i, bundle) in run.enumerate() {
            let pages = (moved.saturating_sub(i * BUNDLE_BYTES) / PAGE).min(BUNDLE_FRAMES);
            gone[bundle] = if pages == BUNDLE_FRAMES { u64::MAX } else { (1 << pages) - 1 };
            // Each frame that is kept must have memory, even if the program's page was missing.
            let is_whole = is_open && pages == BUNDLE_FRAMES;
            if is_whole && uapi::are_resident(space.places.staging.addr(frame(bundle)), BUNDLE_FRAMES) {
                fit |= 1 << bundle;
            } else {
                space.places.staging.drop_frames(frame(bundle), BUNDLE_FRAMES);
            }
        }
    }
    let pages: u32 = gone.iter().map(|pages| pages.count_ones()).sum();
    space.budget.uncharge(pages as usize - fit.count_ones() as usize * BUNDLE_FRAMES);
    if fit == 0 {
        space.places.staging.give_back_unused(block);
    } else {
        // The rest of the block is empty, and nobody counts it.
        let mut new = NewFrames { space, run: Frames { first: 0, n: 0 } };
        space.places.staging.hold_bundles(block, fit, |first| new.add_bundle(first));
    }
    gone
}

/// Compares the stock with what is counted of it, and its frames with what they must be.
pub(crate) fn validate_stock(space: &Space, _exclusive: &Exclusive<'_>) -> Result<(), &'static str> {
    let (mut pages, mut bad) = (0, false);
    space.places.stock.frames.for_each(|bits| {
        let frames = Frames::from_bits(bits);
        pages += frames.n;
        let all = frames.first..frames.first + frames.n as u32;
        let is_empty = |frame| space.places.staging.owner(frame).load(Relaxed) == 0;
        bad |= !all.clone().all(|frame| is_empty(frame) && uapi::is_mapped(space.places.staging.addr(frame)));
        bad |= frames.n < RUN_MIN || space.places.staging.is_shared(frames.first);
    });
    space.places.folios.for_each_kept(|block| {
        let first = space.places.staging.frame(block, 0);
        pages += UNIT_PAGES;
        let is_empty = |frame| space.places.staging.owner(frame).load(Relaxed) == 0;
        bad |= !(first..first + UNIT_PAGES as u32).all(is_empty) || space.places.staging.is_shared(first);
        bad |= !uapi::are_resident(space.places.staging.addr(first), UNIT_PAGES);
    });
    if pages != space.budget.stocked() || space.places.staging.staged() + pages > space.places.staging.held() {
        return Err("the stock differs from its count");
    }
    if bad { Err("a frame in stock is in use, shared or gone") } else { Ok(()) }
}

/// Writes `pages` into the frames, and maps the frames from `addr` on. With `clean`, protects them. Inside the gate.
///
/// The caller must have claimed the pages from `addr` on, and none of them may be mapped.
pub(crate) fn place(space: &Space, addr: usize, frames: Frames, pages: &[u8], clean: bool) -> Placed {
    let n = pages.len() / PAGE;
    assert!(n <= frames.n && n <= RUN_MAX);
    // SAFETY: the frames belong to this thread, and are mapped for writing.
    unsafe { core::ptr::copy_nonoverlapping(pages.as_ptr(), frames_at(space, frames), n * PAGE) };
    let (mapped, error) = map_frames(space, addr, frames, n);
    let mut placed = Placed { mapped, clean: 0, error };
    if !clean || mapped == 0 {
        return placed;
    }
    let is_protected = protect(space, addr, mapped * PAGE);
    for (i, page) in pages.chunks_exact(PAGE).take(mapped).enumerate() {
        let at = addr + i * PAGE;
        // SAFETY: the page is mapped and readable, and as long as it is claimed nobody changes or unmaps it.
        let found = unsafe { core::slice::from_raw_parts(at as *const u8, PAGE) };
        if is_protected && found == page {
            placed.clean |= 1 << i;
        } else {
            // A failure leaves a page protected whose state says it is open. A write will find that out, see `spurious`.
            let _ = space.uffd().write_protect(at, PAGE, false);
        }
    }
    placed
}

/// Protects what was just mapped by MOVE. False if that failed.
pub(crate) fn protect(space: &Space, addr: usize, bytes: usize) -> bool {
    if space.kernel.force().late_protect {
        uapi::futex_wait(&AtomicU32::new(0), 0, Some(LATE_NS));
    }
    space.uffd().write_protect(addr, bytes, true).is_ok()
}

/// Maps `n` pages of zeros from `addr` on, as [`place`] does.
pub(crate) fn place_zeros(space: &Space, addr: usize, frames: Frames, n: usize) -> Placed {
    assert!(n <= frames.n);
    // SAFETY: the frames belong to this thread, and are mapped for writing.
    unsafe { core::ptr::write_bytes(frames_at(space, frames), 0, n * PAGE) };
    let (mapped, error) = map_frames(space, addr, frames, n);
    Placed { mapped, clean: 0, error }
}

fn frames_at(space: &Space, frames: Frames) -> *mut u8 {
    space.places.staging.addr(frames.first) as *mut u8
}

fn map_frames(space: &Space, addr: usize, frames: Frames, n: usize) -> (usize, Option<UffdError>) {
    match space.uffd().move_resident(addr, space.places.staging.addr(frames.first), n * PAGE) {
        Ok(()) => (n, None),
        Err((bytes, e)) => {
            stats::add(&space.stats.move_refused, 1);
            (bytes / PAGE, Some(e))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_cut_so_that_what_is_left_is_enough_for_another() {
        for n in RUN_MIN..=8 * BUNDLE_FRAMES {
            let all = Frames { first: 3, n };
            assert_eq!(Frames::from_bits(all.to_bits()).n, n);
            for most in RUN_MIN..=RUN_MAX {
                let (taken, rest) = all.split(most);
                assert_eq!((taken.first, rest.first, taken.n + rest.n), (3, 3 + taken.n as u32, n));
                assert!(taken.n >= RUN_MIN && (rest.n == 0 || rest.n >= RUN_MIN), "{n} for {most}");
                // No more beyond `most` than are dropped if they are not used.
                assert!(taken.n < most + RUN_MIN, "{n} for {most}");
            }
        }
    }
}
