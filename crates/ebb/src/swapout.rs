//! The way out: staged pages that nobody touched are stored and their frames released.

use crate::ctx::ThreadCtx;
use crate::device::file::{BATCH, FileError, Reclaim};
use crate::groups::{Cost, Index};
use crate::page::{State, Tag};
use crate::space::Space;
use crate::staging::Part;
use crate::stats;
use crate::swapspace::StoreResult;
use crate::table::PAGE;
use crate::uapi;
use crate::work::Work;
use core::sync::atomic::Ordering::Relaxed;
use ebb_slots::{Entry, Slot};

/// Pages claimed at a time: short enough that nobody waits long for the gate or for a page.
const STEP: usize = BATCH;
/// How long a part that is not drained yet is waited for. Longer means that who copies from it has lost its processor, and
/// gets it back when others sleep or work, not when they ask a thousand times.
const DRAIN_NS: u64 = 500_000;

/// Which of the staged pages are swapped out.
#[derive(Clone, Copy)]
pub(crate) enum Wanted {
    All,
    /// Those of a group.
    Group(Index),
    /// Those between two addresses.
    Range(usize, usize),
}

/// A page on its way to a file: which one of a batch, and its bytes in the work buffer.
#[derive(Clone, Copy)]
struct Pending {
    page: usize,
    len: u16,
}

impl Space {
    /// Swaps the oldest staged part out; how many pages of memory that freed, or none when nothing is staged.
    pub(crate) fn swap_out_oldest(&self, ctx: &ThreadCtx, work: &mut Work) -> Option<usize> {
        self.gate.enter(&ctx.gate);
        let part = self.staging.pop_oldest();
        self.gate.leave(&ctx.gate);
        Some(self.swap_out_part(ctx, part?, work, Wanted::All).1)
    }

    /// Swaps out what a part holds, or some of it: how many pages were stored, and how many pages of memory that freed. Outside
    /// the gate.
    pub(crate) fn swap_out_part(&self, ctx: &ThreadCtx, part: Part, work: &mut Work, only: Wanted) -> (usize, usize) {
        let (mut stored, mut all) = (0, true);
        let frames = self.staging.frames_of(part);
        let mut frame = frames.start;
        while frame < frames.end && all {
            let step = frame..(frame + STEP as u32).min(frames.end);
            frame = step.end;
            if step.clone().all(|f| self.staging.owner(f).load(Relaxed) == 0) {
                continue;
            }
            self.gate.enter(&ctx.gate);
            let (n, ok) = self.swap_out(ctx, step, work, only);
            self.gate.leave(&ctx.gate);
            stored += n;
            all = ok;
        }
        // What others have of the part stays: it is not waited for.
        (stored, self.retire(ctx, part, all && matches!(only, Wanted::All)))
    }

    /// Drops the frames that pages have left behind when they came back from staging; how many, 0 also while another thread
    /// does. All parts take their turn, so that they are in the order of their age afterwards but for what others took meanwhile.
    /// Outside the gate.
    pub(crate) fn release_vacated(&self, ctx: &ThreadCtx) -> usize {
        // One call for each range flushes as often.
        if !self.can_drop_vectored.load(Relaxed) || !self.staging.begin_vacating() {
            return 0;
        }
        self.gate.enter(&ctx.gate);
        let nr_parts = self.staging.nr_queued();
        self.gate.leave(&ctx.gate);
        let mut freed = 0;
        for _ in 0..nr_parts {
            self.gate.enter(&ctx.gate);
            if let Some(part) = self.staging.pop_oldest() {
                // A part that waits for nothing is done.
                if self.staging.is_drained(part) {
                    freed += self.release_part(part);
                } else {
                    let first = self.staging.frames_of(part).start;
                    let pages = self.staging.vacate(part, |ranges| {
                        let pages = |(at, len): &(usize, usize)| (*at..*at + *len).step_by(PAGE);
                        self.break_frames(first, ranges.iter().flat_map(pages));
                        self.drop_ranges(ranges)
                    });
                    self.group.uncharge(pages);
                    freed += pages;
                    self.staging.requeue(part);
                }
            }
            self.gate.leave(&ctx.gate);
        }
        self.staging.end_vacating(self.group.stocked());
        freed
    }

    /// Releases a part that was swapped out, or queues it again when a page had to stay.
    fn retire(&self, ctx: &ThreadCtx, part: Part, ok: bool) -> usize {
        // Soft faults that still copy from a frame finish in microseconds; they are inside the gate.
        let mut since = None;
        loop {
            self.gate.enter(&ctx.gate);
            if self.staging.is_drained(part) {
                let freed = self.release_part(part);
                self.gate.leave(&ctx.gate);
                return freed;
            }
            // A page can also have become staged again here only by a failed store, or still be claimed by a slow
            // thread; neither is worth waiting for.
            let now = uapi::now_ns();
            if !ok || now - *since.get_or_insert(now) > DRAIN_NS {
                self.staging.requeue(part);
                self.gate.leave(&ctx.gate);
                return 0;
            }
            self.gate.leave(&ctx.gate);
            uapi::sched_yield();
        }
    }

    /// Stores the pages that `frames` hold, or some of them: how many, and false when one had to stay because no device
    /// takes it. What its group may not have in swap goes back to where it was.
    fn swap_out(&self, ctx: &ThreadCtx, frames: core::ops::Range<u32>, work: &mut Work, only: Wanted) -> (usize, bool) {
        let mut slots = [Slot(0); STEP];
        let occupied = frames.clone().filter(|f| self.staging.owner(*f).load(Relaxed) != 0).count();
        let nr_slots = self.swap.alloc(ctx.shard(), &self.group, self.stats, &mut slots[..occupied]);
        let mut claimed = [(0usize, 0u32); STEP];
        let mut contents = [0usize; STEP];
        let (mut used, mut stored) = (0, 0);
        let mut all = nr_slots == occupied;
        for frame in frames {
            let addr = self.staging.owner(frame).load(Relaxed) as usize;
            if addr == 0 || used == nr_slots {
                continue;
            }
            let is_wanted = match only {
                Wanted::All => true,
                Wanted::Group(group) => self.groups.is_within(self.owner(addr), group),
                Wanted::Range(start, end) => (start..end).contains(&addr),
            };
            if !is_wanted {
                continue;
            }
            let Some(word) = self.table.word(addr) else { continue };
            let state = word.load();
            if state.tag() != Tag::Staged || state.payload() as u32 != frame || !word.try_claim(state) {
                continue;
            }
            if !self.charge_swap_at(addr) {
                all &= self.put_back(addr, frame);
                continue;
            }
            (claimed[used], contents[used]) = ((addr, frame), self.staging.addr(frame));
            used += 1;
        }
        for slot in &slots[used..nr_slots] {
            self.swap.unalloc(*slot);
        }
        let reclaim = |slot, at| self.reclaim_cache_only(slot, at);
        self.store_pages(ctx, &contents[..used], &slots[..used], work, &reclaim, |i, is_stored| {
            let (addr, frame) = claimed[i];
            if is_stored {
                stored += 1;
                return self.settle(addr, frame, slots[i]);
            }
            all = false;
            self.swap.unalloc(slots[i]);
            self.uncharge_swap_at(addr);
            if let Some(word) = self.table.word(addr) {
                word.finish(State::staged(frame));
            }
        });
        (stored, all)
    }

    /// Maps the claimed page at `addr` again, whose content `frame` has, and ends the claim. False when that failed, and it
    /// stays staged.
    fn put_back(&self, addr: usize, frame: u32) -> bool {
        let Some(word) = self.table.word(addr) else { return false };
        if self.uffd().copy(addr, self.staging.addr(frame), PAGE).is_err() {
            word.finish(State::staged(frame));
            return false;
        }
        // Until the part is released the page is in memory twice: at most a part's pages for each thread.
        self.group.force_charge(1);
        self.count_present(addr, 1);
        self.groups.force(self.owner(addr), Cost::STAGED.taken());
        stats::add(&self.stats.staged_back_pages, 1);
        word.finish(State::PRESENT);
        self.staging.put_frame(frame);
        true
    }

    /// Stores pages in the claimed `slots`, at most a batch. `contents` are their addresses: mapped memory of pages that the
    /// caller has claimed, and that nobody writes to: what changes while it is compressed may spoil other words of the page. `done` is told of each, once
    /// and as soon as possible, whether it is stored.
    pub(crate) fn store_pages(
        &self,
        ctx: &ThreadCtx,
        contents: &[usize],
        slots: &[Slot],
        work: &mut Work,
        reclaim: Reclaim<'_>,
        mut done: impl FnMut(usize, bool),
    ) {
        let mut pending = [Pending { page: 0, len: 0 }; BATCH];
        let mut nr_pending = 0;
        for (i, (content, slot)) in contents.iter().zip(slots).enumerate() {
            // SAFETY: see the contract.
            let page = unsafe { &*(*content as *const [u8; PAGE]) };
            match self.swap.store(&self.group, self.stats, *slot, page, &mut work.lz4, &mut work.out) {
                StoreResult::Done => done(i, true),
                StoreResult::File(len) => {
                    let to = &mut work.pages[nr_pending * PAGE..(nr_pending + 1) * PAGE];
                    let len = match len {
                        Some(len) => {
                            to[..len].copy_from_slice(&work.out[..len]);
                            len
                        }
                        None => {
                            to.copy_from_slice(page);
                            PAGE
                        }
                    };
                    pending[nr_pending] = Pending { page: i, len: len as u16 };
                    nr_pending += 1;
                }
            }
        }
        self.store_in_file(ctx, &pending[..nr_pending], slots, work, reclaim, done);
    }

    fn store_in_file(
        &self,
        ctx: &ThreadCtx,
        pending: &[Pending],
        all_slots: &[Slot],
        work: &mut Work,
        reclaim: Reclaim<'_>,
        mut done: impl FnMut(usize, bool),
    ) {
        if pending.is_empty() {
            return;
        }
        let mut slots = [Slot(0); BATCH];
        let mut lens = [0u16; BATCH];
        for (i, p) in pending.iter().enumerate() {
            (slots[i], lens[i]) = (all_slots[p.page], p.len);
        }
        let n = pending.len();
        let (group, shard) = (&self.group, ctx.shard());
        let whole = self.swap.store_file(group, shard, &slots[..n], &lens[..n], &mut work.pages, reclaim);
        let mut stored = if whole.is_ok() { n } else { 0 };
        // A file that is almost full has room for some. What could not be made plain again stays in its frame.
        while stored < n && whole != Err(FileError::Corrupt) {
            let part = &mut work.pages[stored * PAGE..(stored + 1) * PAGE];
            let one = stored..stored + 1;
            if self.swap.store_file(group, shard, &slots[one.clone()], &lens[one], part, reclaim).is_err() {
                break;
            }
            stored += 1;
        }
        stats::add(&self.stats.out_file_pages, stored as u64);
        for (i, p) in pending.iter().enumerate() {
            done(p.page, i < stored);
        }
    }

    /// The page's content is in `slot`, which is charged: lets page, slot and frame go.
    pub(crate) fn settle(&self, addr: usize, frame: u32, slot: Slot) {
        self.swap.commit(slot);
        self.groups.force(self.owner(addr), Cost::of(State::staged(frame)).taken());
        if let Some(word) = self.table.word(addr) {
            word.finish(State::swapped(Entry { device: 0, slot }.to_bits()));
        }
        self.staging.put_frame(frame);
    }
}
