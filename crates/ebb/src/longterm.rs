//! Pages that somebody has pinned for longer than a call: a device's buffers, registered memory (FOLL_LONGTERM).
//!
//! The kernel writes to such a page, or reads it, by its frame, whatever the page table says. Were it copied and dropped, the
//! device would go on with the old frame, and the program with a new one: neither would see what the other writes.
//!
//! What a call is known to register stays for good ([`Space::register`]). What an unknown driver does with the pointers that it
//! is given nobody can know; but the kernel can be asked. MOVE refuses a page that is pinned, atomically with unmapping
//! it: it clears the page table entry first and then looks for pins, and who pins without a lock looks at the entry again. So
//! from the first such call on the process is *move-only*: what it gives up goes by MOVE or stays. Clean pages, which
//! would be dropped, there are none of any more.
//!
//! MOVE also refuses a page that is not exclusively this process's, as many are after a fork. Such a page is not pinned: who pins
//! one makes it exclusive, or a copy of it, and fork copies pinned pages for the child at once. So a refused page is made
//! exclusive by a write fault that changes nothing, and MOVE is asked again. What it refuses then is pinned.
//!
//! Units that had pages when they were taken over are move-only from the start: what became of those before, nobody saw.
//!
//! Without MOVE (before Linux 6.8) nobody can be asked. There the mappings that a driver's pointers lead to are *kept*: what is
//! in memory stays there.

use crate::clock;
use crate::ctx::ThreadCtx;
use crate::page::{State, Tag};
use crate::runs::Runs;
use crate::space::Space;
use crate::sweep::is_present;
use crate::table::{PAGE, UNIT_PAGES};
use crate::uapi;
use core::sync::atomic::{AtomicU32, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};
use linux_raw_sys::general::MADV_POPULATE_WRITE;

/// A page that the kernel still refuses to move after so long is no passing reader's, as a debugger is.
const REFUSED_MS: u64 = 100;
/// The part of the budget that can be registered, so that something is left to work in.
const REGISTERED_PART: (usize, usize) = (3, 4);
/// Passes that reclaim leaves a unit alone most of which is pinned.
pub(crate) const PINNED_SKIP: u32 = 15;

const SUSPECTED: u32 = 1;
const KNOWN: u32 = 2;

/// What is known of drivers.
#[derive(Default)]
pub(crate) struct Drivers(AtomicU32);

impl Drivers {
    /// In fork's child, which has none of its parent's pins.
    pub fn reset(&self) {
        self.0.store(0, Relaxed);
    }
}

impl Space {
    /// A driver may have pinned any page.
    #[inline]
    pub(crate) fn has_driver(&self) -> bool {
        self.drivers.0.load(Relaxed) != 0
    }

    /// The kernel can be asked whether a page is pinned.
    pub fn can_ask_for_pins(&self) -> bool {
        self.can_move.load(Relaxed)
    }

    /// Pages of the unit at `unit` go by MOVE only.
    pub(crate) fn is_move_only(&self, unit: usize) -> bool {
        self.can_move.load(Relaxed) && (self.has_driver() || self.may_be_lent(unit))
    }

    /// True when nothing is left to be done before a driver is given `addr`.
    #[inline]
    pub fn is_known_to_drivers(&self, addr: usize) -> bool {
        if self.can_move.load(Relaxed) { self.drivers.0.load(Acquire) == KNOWN } else { !self.is_managed(addr) }
    }

    /// Before a driver is given `addr`, which may lead to memory that it pins for as long as it likes.
    pub fn give_to_driver(&self, ctx: &ThreadCtx, addr: usize) {
        if self.is_known_to_drivers(addr) {
            return;
        }
        if self.can_move.load(Relaxed) {
            // It may have plain references, too, which MOVE does not see.
            self.reuse_no_frames();
            // With the gate closed: whoever was dropping pages is done with it.
            self.exclusive(|| self.drivers.0.store(KNOWN, Release));
            return;
        }
        self.gate.enter(&ctx.gate);
        let is_done = self.regions.find(addr).is_none_or(|region| region.attr.is_kept());
        self.gate.leave(&ctx.gate);
        if !is_done {
            self.exclusive(|| self.keep_mapping(addr));
        }
    }

    /// What is in memory of the mapping at `addr`, and of those without a gap before and behind it, stays there. Under the
    /// exclusive gate.
    fn keep_mapping(&self, addr: usize) {
        let Some(region) = self.regions.find(addr) else { return };
        let (mut start, mut end) = (region.start, region.end);
        while let Some(before) = self.regions.find(start.wrapping_sub(1)) {
            start = before.start;
        }
        while let Some(behind) = self.regions.find(end) {
            end = behind.end;
        }
        self.change_attributes(start, end, |attr| attr.with_kept());
    }

    /// Brings the range in for good, because a device or a guest uses it from now on. False, and nothing is done, where that is
    /// more than the budget can bear.
    pub fn register(&self, ctx: &ThreadCtx, addr: usize, len: usize) -> bool {
        let (start, end) = (addr & !(PAGE - 1), addr.saturating_add(len).div_ceil(PAGE) * PAGE);
        let (part, whole) = REGISTERED_PART;
        let limit = self.group.limit() / whole * part;
        let wanted = self.managed_pages(ctx, start, end);
        // To count what is registered is to look at everything: small ranges count once they are many.
        if wanted > limit || wanted > limit / 16 && wanted + self.registered_beside(ctx, start, end) > limit {
            return false;
        }
        self.exclude(ctx, addr, len);
        true
    }

    /// Pages of a range that are managed.
    fn managed_pages(&self, ctx: &ThreadCtx, start: usize, end: usize) -> usize {
        self.gate.enter(&ctx.gate);
        let (mut at, mut pages) = (start, 0);
        while let Some(region) = self.regions.first_in(at, end) {
            let stop = region.end.min(end);
            pages += (stop - region.start.max(at)) / PAGE;
            at = stop;
        }
        self.gate.leave(&ctx.gate);
        pages
    }

    /// Pages that stay for good, but for those of a range.
    fn registered_beside(&self, ctx: &ThreadCtx, start: usize, end: usize) -> usize {
        self.gate.enter(&ctx.gate);
        let mut pages = 0;
        for region in self.regions.all() {
            self.table.for_each_content(region.start, region.end, |at, word| {
                pages += (word.load().is_pinned() && !(start..end).contains(&at)) as usize;
            });
        }
        self.gate.leave(&ctx.gate);
        pages
    }

    /// Makes the claimed present pages `first..end` of a unit exclusively this process's, by write faults that change
    /// nothing. They are not protected any more, and not shared. Inside the gate.
    pub(crate) fn make_exclusive(&self, unit: usize, first: usize, end: usize, saved: &mut [u64; UNIT_PAGES]) {
        let mut runs = Runs::new(|run| {
            // What fails is refused by MOVE again, and stays.
            let _ = self.uffd().write_protect(run.start, run.len(), false);
            let _ = uapi::madvise(run.start, run.len(), MADV_POPULATE_WRITE);
        });
        for (page, raw) in saved.iter_mut().enumerate().take(end).skip(first).filter(|(_, raw)| is_present(**raw)) {
            let (addr, state) = (unit + page * PAGE, State::from_raw(*raw));
            debug_assert!(state.tag() == Tag::Present && !state.is_clean());
            self.break_if_shared(addr, state);
            *raw = state.with_shared(false).to_raw();
            runs.add(addr);
        }
    }

    /// The kernel refuses to move a page of the unit that is exclusively this process's: somebody has it pinned.
    pub(crate) fn note_refused(&self, unit: usize) {
        let Some(unit) = self.table.unit(unit) else { return };
        unit.lent.store(1, Relaxed);
        let now = clock::stamp().max(1);
        match unit.refused.load(Relaxed) {
            0 => unit.refused.store(now, Relaxed),
            // By whom no call told.
            since if !clock::is_forbidden() && clock::ms_since(since) > REFUSED_MS => {
                let _ = self.drivers.0.compare_exchange(0, SUSPECTED, Relaxed, Relaxed);
            }
            _ => {}
        }
    }
}
