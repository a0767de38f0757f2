//! Stores staged pages that nobody touched, and releases their frames.

use crate::base::events::{self, Kind};
use crate::base::{PAGE, uapi};
use crate::counters::stats;
use crate::device::list::Writer;
use crate::groups::cost::Cost;
use crate::groups::table::Index;
use crate::memory::table::UNIT_PAGES;
use crate::pages::{account, clean, sharing, stock, tally};
use crate::places::staging::Part;
use crate::places::swapspace::Aim;
use crate::places::work::Work;
use crate::protocols::gate::Held;
use crate::protocols::page::{State, Tag};
use crate::space::Space;
use crate::threads::ctx::ThreadCtx;
use crate::way_out::store::{self, STORE_MAX, Taken};
use core::cell::Cell;
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::Relaxed;
use ebb_pool::codec;
use ebb_slots::{Entry, Slot};

/// How long to wait for a part that is not drained yet. If it takes longer, the thread that copies from the part has lost its
/// processor. It gets the processor back when others sleep or work, not when they yield a thousand times.
const DRAIN_NS: u64 = 500_000;
/// How long to wait for what other threads have taken of a folio. Each has a batch to write, at most.
const HELPERS_NS: u64 = 5_000_000;
/// Length of one step of that wait, after [`DRAIN_NS`].
const HELPERS_STEP_NS: u64 = 50_000;

/// Pages of zeros before one in a row that make it worth while to give it no slot. A walk that comes back finds a page without a slot
/// by a fault of its own, and that costs more than a slot.
const ZEROS_MIN: usize = 8;

/// A row of neighbouring pages of zeros.
#[derive(Default)]
struct Zeros {
    end: Cell<usize>,
    n: Cell<usize>,
}

impl Zeros {
    /// Notes that the page at `addr` holds zeros. True if it goes on a long row.
    fn note(&self, space: &Space, addr: usize) -> bool {
        // The row may have begun in another step.
        let is_after_none = || {
            addr > space.table.unit_start(addr)
                && space.table.word(addr - PAGE).is_some_and(|word| word.load() == State::NONE)
        };
        let n = match addr == self.end.get() {
            true => self.n.get() + 1,
            false if is_after_none() => ZEROS_MIN + 1,
            false => 1,
        };
        self.n.set(n);
        self.end.set(addr + PAGE);
        n > ZEROS_MIN
    }
}

/// The staged pages to swap out.
#[derive(Clone, Copy)]
pub(crate) enum Wanted {
    All,
    /// Pages of a group and its descendants.
    Group(Index),
    /// Pages between two addresses.
    Range(usize, usize),
}

/// Swaps the oldest staged part out, or helps another thread to do so. False if no page was stored for that, or nothing freed. Outside
/// the gate.
pub(crate) fn swap_out_oldest(space: &Space, ctx: &ThreadCtx, work: &mut Work) -> bool {
    if help(space, ctx, work) > 0 {
        return true;
    }
    swap_out_alone(space, ctx, work)
}

/// Swaps the oldest staged part out, to where the work buffer aims. False if no page was stored, and
/// nothing freed. Outside the gate.
pub(crate) fn swap_out_alone(space: &Space, ctx: &ThreadCtx, work: &mut Work) -> bool {
    let inside = space.threads.enter(ctx);
    let part = space.places.staging.pop_oldest();
    drop(inside);
    part.is_some_and(|part| {
        let (stored, freed) = swap_out_part(space, ctx, part, work, Wanted::All);
        stored + freed > 0
    })
}

/// Helps to store the folio that another thread stores now, if there is one, until no step of it is left. That thread frees its memory,
/// and sooner so. Returns how many pages the calling thread stored. Outside the gate.
pub(crate) fn help(space: &Space, ctx: &ThreadCtx, work: &mut Work) -> usize {
    let (mut stored, mut taken) = (0, 0);
    // No more than one folio: the thread may have what it needs by then.
    while taken < UNIT_PAGES {
        let inside = space.threads.enter(ctx);
        let step = space.places.staging.take_of_offer(store::most(space, work) as u32);
        let helped = step.map(|step| {
            stats::add(&space.stats.thp_swpout_helped, 1);
            taken += step.len();
            let (n, all) = swap_out(space, &inside, ctx, step.clone(), work, Wanted::All, &Zeros::default());
            if !all {
                space.places.staging.fail_offer(&step);
            }
            n
        });
        drop(inside);
        let Some(n) = helped else { break };
        stored += n;
    }
    stored
}

/// Swaps out the pages of a part, or some of them. Returns how many pages it stored, and how many pages of memory that freed.
/// Outside the gate.
pub(crate) fn swap_out_part(
    space: &Space,
    ctx: &ThreadCtx,
    part: Part,
    work: &mut Work,
    only: Wanted,
) -> (usize, usize) {
    let (mut stored, mut all, zeros) = (0, true, Zeros::default());
    let mut frames = space.places.staging.frames_of(part);
    // A thread that helps would store pages where they go by themselves.
    let is_alone = work.aim() != Aim::Usual;
    let is_offered = matches!(only, Wanted::All) && !is_alone && space.places.staging.offer(part);
    // So many pages are stored inside the gate at a time: few enough that no thread waits long to close it.
    let most = store::most(space, work) as u32;
    let mut taken = 0;
    let mut next_step = || {
        if is_offered {
            let step = space.places.staging.take_of_offer(most);
            taken += step.as_ref().map_or(0, |step| step.len());
            return step;
        }
        let step = frames.start..(frames.start + most).min(frames.end);
        frames.start = step.end;
        (!step.is_empty()).then_some(step)
    };
    while all && let Some(step) = next_step() {
        if step.clone().all(|f| space.places.staging.owner(f).load(Relaxed) == 0) {
            continue;
        }
        let inside = space.threads.enter(ctx);
        let (n, ok) = swap_out(space, &inside, ctx, step, work, only, &zeros);
        drop(inside);
        stored += n;
        all = ok;
    }
    if is_offered && !space.places.staging.end_offer() {
        all = false;
    }
    // If not all pages were wanted, the others stay, and there is nothing to wait for.
    let waits_ns = match only {
        Wanted::All if all && is_offered && taken < UNIT_PAGES => HELPERS_NS,
        Wanted::All if all => DRAIN_NS,
        _ => 0,
    };
    (stored, retire(space, ctx, part, waits_ns))
}

/// Drops the frames that pages left behind when they came back from staging. Returns how many; 0 also if another thread is at
/// it. Outside the gate.
///
/// Every part is taken and put back, so that the queue is in the order of age afterwards, except for parts that other threads
/// took meanwhile.
pub(crate) fn release_vacated(space: &Space, ctx: &ThreadCtx) -> usize {
    // Without the vectored call, each range takes a call, and each call flushes the TLB.
    if !space.kernel.can_drop_vectored() || !space.places.staging.begin_vacating() {
        return 0;
    }
    let inside = space.threads.enter(ctx);
    let nr_parts = space.places.staging.nr_queued();
    drop(inside);
    let mut freed = 0;
    for _ in 0..nr_parts {
        let inside = space.threads.enter(ctx);
        if let Some(part) = space.places.staging.pop_oldest() {
            // A drained part has nothing to wait for.
            if space.places.staging.is_drained(part) {
                freed += stock::release_part(space, part);
            } else if space.places.staging.is_whole_part(part) {
                // To drop a part of a huge page gives nothing back.
                space.places.staging.requeue(part);
            } else {
                let first = space.places.staging.frames_of(part).start;
                let pages = space.places.staging.vacate(part, |ranges| {
                    let pages = |(at, len): &(usize, usize)| (*at..*at + *len).step_by(PAGE);
                    sharing::break_frames(space, first, ranges.iter().flat_map(pages));
                    space.kernel.drop_ranges(ranges)
                });
                space.budget.uncharge(pages);
                freed += pages;
                space.places.staging.requeue(part);
            }
        }
        drop(inside);
    }
    space.places.staging.end_vacating(space.budget.stocked());
    freed
}

/// Releases a part that was swapped out, or queues it again if pages are still there after `waits_ns`. Returns how many pages of memory
/// that freed.
fn retire(space: &Space, ctx: &ThreadCtx, part: Part, waits_ns: u64) -> usize {
    // Soft faults that still copy from a frame finish in microseconds. They are inside the gate.
    let mut since = None;
    loop {
        let inside = space.threads.enter(ctx);
        if space.places.staging.is_drained(part) {
            let freed = stock::release_part(space, part);
            drop(inside);
            return freed;
        }
        // Otherwise a page is staged again after a failed store, or a slow thread still has it claimed. Neither is worth
        // waiting for.
        let now = uapi::now_ns();
        let waited_ns = now - *since.get_or_insert(now);
        if waited_ns >= waits_ns {
            space.places.staging.requeue(part);
            drop(inside);
            return 0;
        }
        drop(inside);
        if waited_ns > DRAIN_NS {
            uapi::futex_wait(&AtomicU32::new(0), 0, Some(HELPERS_STEP_NS));
        } else {
            uapi::sched_yield();
        }
    }
}

/// Stores the pages that `frames` hold, or some of them. Returns how many, and false if one had to stay because no device
/// takes it.
///
/// A page whose group may have no more swap is mapped again. So is one that does not reach the place that the work buffer aims
/// at: staging has little room, and the next page may reach it.
fn swap_out(
    space: &Space,
    held: &Held,
    ctx: &ThreadCtx,
    frames: core::ops::Range<u32>,
    work: &mut Work,
    only: Wanted,
    zeros: &Zeros,
) -> (usize, bool) {
    let mut slots = [Slot(0); STORE_MAX];
    let occupied = frames.clone().filter(|f| space.places.staging.owner(*f).load(Relaxed) != 0).count();
    let nr_slots = space.swap.alloc(ctx.shard(), &space.budget, space.stats, &mut slots[..occupied]);
    let mut wanted = [(0usize, 0u32); STORE_MAX];
    let mut nr_wanted = 0;
    for frame in frames {
        let addr = space.places.staging.owner(frame).load(Relaxed) as usize;
        if addr == 0 || nr_wanted == nr_slots {
            continue;
        }
        let is_wanted = match only {
            Wanted::All => true,
            Wanted::Group(group) => space.groups.is_within(tally::owner(space, held, addr), group),
            Wanted::Range(start, end) => (start..end).contains(&addr),
        };
        if is_wanted {
            wanted[nr_wanted] = (addr, frame);
            nr_wanted += 1;
        }
    }
    for slot in &slots[nr_wanted..nr_slots] {
        space.swap.unalloc(*slot);
    }
    let (all, nr_zero) = (Cell::new(nr_slots == occupied), Cell::new(0));
    let is_claimed = [const { Cell::new(false) }; STORE_MAX];
    // Each page is claimed when its turn comes: who wants one of the others finds it free, even while this thread has lost its
    // processor.
    let claim = |i: usize, _: &mut [u8; PAGE]| {
        let (addr, frame) = wanted[i];
        let Some(word) = space.table.word(addr) else { return Taken::Gone };
        let state = word.load();
        if state.tag() != Tag::Staged || state.payload() as u32 != frame || !word.try_claim(state) {
            return Taken::Gone;
        }
        let at = space.places.staging.addr(frame);
        // SAFETY: the page is staged and claimed, so its frame is mapped and nobody writes to it.
        if codec::same_filled(unsafe { &*(at as *const [u8; PAGE]) }) == Some(0) && zeros.note(space, addr) {
            end_zero(space, held, addr, frame);
            nr_zero.set(nr_zero.get() + 1);
            return Taken::Gone;
        }
        if !tally::charge_swap_at(space, held, addr) {
            let is_back = put_back(space, held, addr, frame);
            all.set(all.get() && is_back);
            return Taken::Gone;
        }
        is_claimed[i].set(true);
        Taken::At(at)
    };
    let reclaim = |slot, at| clean::reclaim_cache_only(space, held, slot, at);
    let writer = Writer { held, shard: ctx.shard(), reclaim: &reclaim, stats: space.stats };
    let (mut stored, gives_back) = (0, work.aim().gives_back());
    let to_files = store::store_pages(space, writer, &slots[..nr_wanted], claim, work, |i, is_stored| {
        let (addr, frame) = wanted[i];
        if is_stored {
            stored += 1;
            return end_staged(space, held, addr, frame, slots[i]);
        }
        space.swap.unalloc(slots[i]);
        if is_claimed[i].get() {
            tally::uncharge_swap_at(space, held, addr);
            if gives_back {
                let is_back = put_back(space, held, addr, frame);
                return all.set(all.get() && is_back);
            }
            all.set(false);
            if let Some(word) = space.table.word(addr) {
                word.finish(State::staged(frame));
            }
        }
    });
    if stored > 0 {
        // Where nothing flies, a larger part would only keep its memory for longer.
        space.places.staging.note_stored(to_files > 0 && store::most(space, work) == STORE_MAX);
    }
    if nr_zero.get() > 0 {
        stats::add(&space.stats.swpout_zero, nr_zero.get() as u64);
    }
    (stored + nr_zero.get(), all.get())
}

/// Ends the swap-out of a claimed page of zeros: it is as if nobody had touched it yet, and needs no slot.
fn end_zero(space: &Space, held: &Held, addr: usize, frame: u32) {
    events::record(Kind::Stored, addr, 1, 0);
    space.groups.force(tally::owner(space, held, addr), Cost::of(State::staged(frame)).taken());
    if let Some(word) = space.table.word(addr) {
        word.finish(State::NONE);
    }
    // Last: who looks for content, to wait for whoever has it, passes over a unit that has none.
    account::uncount_content(space, addr, 1);
    space.places.staging.put_frame(frame);
}

/// Maps the claimed page at `addr` again with the content of `frame`, and ends the claim. False if that failed and the page
/// stays staged.
fn put_back(space: &Space, held: &Held, addr: usize, frame: u32) -> bool {
    let Some(word) = space.table.word(addr) else { return false };
    // The page of a hidden range may be about to move, and what is mapped at its address may be another's by now. Who hides a range
    // waits for those that have found it before.
    let is_hidden = space.regions.find(held, addr).is_none();
    if is_hidden || space.uffd().copy(addr, space.places.staging.addr(frame), PAGE).is_err() {
        word.finish(State::staged(frame));
        return false;
    }
    // The page is in memory twice until the part is released: at most the pages of one part for each thread.
    space.budget.force_charge(1);
    account::count_present(space, addr, 1);
    space.groups.force(tally::owner(space, held, addr), Cost::STAGED.taken());
    stats::add(&space.stats.staged_back_pages, 1);
    if let Some(unit) = space.table.unit(addr) {
        unit.unstored.fetch_add(1, Relaxed);
    }
    word.finish(State::PRESENT);
    space.places.staging.put_frame(frame);
    true
}

/// Ends the swap-out of a page whose content is in `slot`, which is charged: lets page, slot and frame go.
pub(crate) fn end_staged(space: &Space, held: &Held, addr: usize, frame: u32, slot: Slot) {
    events::record(Kind::Stored, addr, 1, 0);
    space.swap.commit(slot);
    space.groups.force(tally::owner(space, held, addr), Cost::of(State::staged(frame)).taken());
    if let Some(word) = space.table.word(addr) {
        word.finish(State::swapped(Entry { device: 0, slot }.to_bits()));
    }
    space.places.staging.put_frame(frame);
}
