//! Clean pages: present, write-protected, and with a swap slot that still holds the same content (see `page`).
//!
//! They make eviction of what is only read cheap: no copy into staging, no compression, no writing. What that costs is
//! room in pool or file for content that is in memory too; `swapin` decides which pages are worth it.
//!
//! A clean page ends as an ordinary present page, its slot freed (*opened*: written to, used by a system call, in a
//! unit that proved hot), or as a swapped page (*dropped*: evicted).

use crate::groups::{Cost, Tally};
use crate::page::{PageWord, State, Tag};
use crate::space::Space;
use crate::stats;
use crate::swapin::slot_of;
use crate::swapspace::folio_at;
use crate::table::{PAGE, UNIT_PAGES};
use crate::uapi::{self, Errno};
use core::sync::atomic::Ordering::Relaxed;
use ebb_slots::{Slot, TableEntry};
use linux_raw_sys::general as g;

/// Pages opened by one fault.
const OPEN_MAX: usize = 16;
/// After a write to a clean page, so many swap-ins of its unit leave none.
const WRITTEN_PENALTY: u32 = 8;

impl Space {
    /// A clean page that the caller owns gives up its slot.
    fn free_clean(&self, addr: usize, state: State) {
        let (slot, folio) = (slot_of(state), folio_at(addr));
        if let Ok(was) = self.swap.claim(slot, folio) {
            self.swap.release(&self.group, self.stats, slot, folio, was);
        }
    }

    /// Frees `slot`, whose page alone needs it and is clean, by opening that page, and clean pages that follow it. Never
    /// waits, so that it may be called with slots locked and pages claimed. Only if its content is at `at` of a file: the
    /// file's knowledge may be old. Inside the gate.
    pub(crate) fn reclaim_cache_only(&self, slot: Slot, at: u32) -> bool {
        if !self.swap.is_in_file(slot, at) {
            return false;
        }
        let TableEntry::Cached { count: 0, folio, locked: false, .. } = self.swap.entry(slot) else { return false };
        let addr = folio.get() as usize * PAGE;
        let Some(word) = self.table.word(addr) else { return false };
        let state = word.load();
        let opened = state.is_clean() && slot_of(state) == slot && self.open_claimed(addr, word, state, None) > 0;
        stats::add(&self.stats.cache_only_reclaimed, opened as u64);
        opened
    }

    /// Opens the clean page at `addr`, seen in `state`, and clean pages that follow it below `end`, with one call; how
    /// many, 0 when somebody else was faster. Inside the gate.
    pub(crate) fn open_run(&self, addr: usize, word: PageWord<'_>, state: State, end: usize) -> usize {
        if !state.is_clean() {
            return 0;
        }
        self.open_claimed(addr, word, state, Some(end.min(self.table.unit_start(addr) + UNIT_PAGES * PAGE)))
    }

    /// The same up to `end`; without an end as far as that goes without waiting.
    fn open_claimed(&self, addr: usize, word: PageWord<'_>, state: State, end: Option<usize>) -> usize {
        let mut states = [state; OPEN_MAX];
        if !word.try_claim(state) {
            return 0;
        }
        let limit = end.unwrap_or(self.table.unit_start(addr) + UNIT_PAGES * PAGE);
        let mut n = 1;
        while n < OPEN_MAX && addr + n * PAGE < limit {
            let Some(next) = self.table.word(addr + n * PAGE) else { break };
            let seen = next.load();
            if !seen.is_clean() || !next.try_claim(seen) {
                break;
            }
            states[n] = seen;
            n += 1;
        }
        // First the slots go: from the moment that the pages can be written nothing may rely on them.
        let mut freed = 0;
        let mut tally = Tally::new(self);
        for (i, state) in states[..n].iter().enumerate() {
            let (slot, folio) = (slot_of(*state), folio_at(addr + i * PAGE));
            let was = match end {
                Some(_) => self.swap.claim(slot, folio).ok(),
                None => self.swap.try_claim(slot, folio),
            };
            match was {
                Some(was) => self.swap.release(&self.group, self.stats, slot, folio, was),
                None if end.is_none() => break,
                None => {}
            }
            freed += 1;
            tally.add(addr + i * PAGE, Cost::SWAP.taken());
        }
        // The rest stay as they are.
        for (i, state) in states[..n].iter().enumerate().skip(freed) {
            if let Some(word) = self.table.word(addr + i * PAGE) {
                word.finish(*state);
            }
        }
        let n = freed;
        if n == 0 {
            return 0;
        }
        self.uncount_clean(addr, n);
        // A failure leaves pages protected that are open in the books: a write finds that out, see `spurious`.
        let _ = self.uffd().write_protect(addr, n * PAGE, false);
        for (i, state) in states[..n].iter().enumerate() {
            if let Some(word) = self.table.word(addr + i * PAGE) {
                word.finish(State::PRESENT.with_pinned(state.is_pinned()));
            }
        }
        n
    }

    /// Answers the first write to the clean page at `addr`. Inside the gate.
    pub(crate) fn open_for_write(&self, addr: usize, word: PageWord<'_>, state: State, end: usize) {
        if self.open_run(addr, word, state, end) > 0 {
            stats::add(&self.stats.faults_protected, 1);
            if let Some(unit) = self.table.unit(addr) {
                unit.written.store(WRITTEN_PENALTY, Relaxed);
            }
        }
    }

    /// Opens the clean pages of the unit at `unit`, which is to stay in memory: their slots are of use to others. How
    /// many. Inside the gate.
    pub(crate) fn open_unit(&self, unit: usize) -> usize {
        let end = unit + UNIT_PAGES * PAGE;
        let (mut at, mut sum) = (unit, 0);
        while at < end {
            let Some(word) = self.table.word(at) else { break };
            let state = word.load();
            let opened = if state.is_clean() { self.open_run(at, word, state, end) } else { 0 };
            sum += opened;
            at += opened.max(1) * PAGE;
        }
        sum
    }

    /// Opens clean pages of some units, because neither pool nor file takes more and their slots hold what is in memory
    /// too. False when there are none. Inside the gate.
    pub(crate) fn open_some(&self) -> bool {
        let mut opened = 0;
        let mut looks = if self.nr_clean.load(Relaxed) > 0 { self.units.len() } else { 0 };
        while looks > 0 && opened < UNIT_PAGES {
            looks -= 1;
            let Some(addr) = self.units.pop() else { break };
            if self.table.unit(addr as usize).is_some_and(|unit| unit.clean.load(Relaxed) > 0) {
                opened += self.open_unit(addr as usize);
            }
            self.queue_unit(addr as usize);
        }
        opened > 0
    }

    /// Opens every clean page. Under the exclusive gate. `is_protected`: they are write-protected, which they are not in
    /// fork's child.
    pub(crate) fn open_all(&self, is_protected: bool) {
        if self.nr_clean.load(Relaxed) == 0 {
            return;
        }
        for region in self.regions.all() {
            self.open_range_exclusive(region.start, region.end, is_protected);
        }
    }

    /// Opens every clean page of a range. Under the exclusive gate.
    pub(crate) fn open_range_exclusive(&self, start: usize, end: usize, is_protected: bool) {
        let mut run = start..start;
        let mut tally = Tally::new(self);
        let lift = |run: core::ops::Range<usize>| {
            if is_protected && !run.is_empty() {
                let _ = self.uffd().write_protect(run.start, run.len(), false);
            }
        };
        self.table.for_each_clean(start, end, |addr, word| {
            let state = word.load();
            if !state.is_clean() {
                return;
            }
            self.free_clean(addr, state);
            self.uncount_clean(addr, 1);
            tally.add(addr, Cost::SWAP.taken());
            word.set_exclusive(State::PRESENT.with_pinned(state.is_pinned()));
            if addr != run.end {
                lift(run.clone());
                run = addr..addr;
            }
            run.end = addr + PAGE;
        });
        lift(run);
    }

    /// The clean page at `addr` has lost its place in memory: frees its slot. Under the exclusive gate; the caller sets
    /// the word.
    pub(crate) fn forget_clean(&self, addr: usize, state: State) {
        debug_assert!(state.is_clean());
        self.free_clean(addr, state);
        self.uncount_clean(addr, 1);
    }

    /// Gives the memory of ranges `(address, length)` back, with one call where the kernel takes several ranges (6.13);
    /// how many leading ranges are gone for sure.
    fn drop_ranges(&self, ranges: &[(usize, usize)]) -> usize {
        if ranges.len() > 1 && self.can_drop_vectored.load(Relaxed) {
            match uapi::drop_vectored(ranges) {
                Ok(bytes) => {
                    let mut left = bytes;
                    let whole = |(_, len): &&(usize, usize)| {
                        let fits = *len <= left;
                        left = left.saturating_sub(*len);
                        fits
                    };
                    return ranges.iter().take_while(whole).count();
                }
                // An older kernel, or a seccomp filter: not again.
                Err(Errno::BADF | Errno::INVAL | Errno::PERM | Errno::NOSYS) => {
                    self.can_drop_vectored.store(false, Relaxed);
                }
                Err(_) => return 0,
            }
        }
        ranges.iter().take_while(|(at, len)| uapi::madvise(*at, *len, g::MADV_DONTNEED).is_ok()).count()
    }

    /// Unmaps the claimed clean pages of a unit that is being swept; how many. `saved` holds the states of claimed
    /// pages and gets the new ones. Pages that could not be unmapped are let go as they were.
    pub(crate) fn drop_clean(&self, unit: usize, saved: &mut [u64; UNIT_PAGES], not_claimed: u64) -> usize {
        // First and end page of each range, then address and length.
        let mut ranges = [(0usize, 0usize); UNIT_PAGES / 2];
        let mut nr_ranges = 0;
        let (mut first, mut end, mut at) = (0, 0, 0);
        // Ranges run over claimed pages that are not present, up to a page that must stay.
        while at <= UNIT_PAGES {
            let raw = saved.get(at).copied().unwrap_or(not_claimed);
            let state = State::from_raw(raw);
            let is_clean = raw != not_claimed && state.is_clean();
            let is_absent = raw != not_claimed && state.tag() != Tag::Present;
            if is_clean {
                if end == first {
                    first = at;
                }
                end = at + 1;
            } else if !is_absent && end > first {
                ranges[nr_ranges] = (first, end);
                nr_ranges += 1;
                (first, end) = (0, 0);
            }
            at += 1;
        }
        if nr_ranges == 0 {
            return 0;
        }
        let ranges = &mut ranges[..nr_ranges];
        for (start, len) in ranges.iter_mut() {
            (*start, *len) = (unit + *start * PAGE, (*len - *start) * PAGE);
        }
        stats::add(&self.stats.unmap_calls, 1);
        let done = self.drop_ranges(ranges);
        let mut dropped = 0;
        let mut tally = Tally::new(self);
        for (i, &(start, len)) in ranges.iter().enumerate() {
            for addr in (start..start + len).step_by(PAGE) {
                let page = (addr - unit) / PAGE;
                let state = State::from_raw(saved[page]);
                let Some(word) = self.table.word(addr) else { continue };
                if !state.is_clean() {
                    continue;
                }
                // After a failure some pages of the range may be gone: only one by one is it sure which.
                if i < done || uapi::madvise(addr, PAGE, g::MADV_DONTNEED).is_ok() {
                    self.swap.evict(slot_of(state), folio_at(addr));
                    saved[page] = State::swapped(state.payload()).to_raw();
                    dropped += 1;
                    tally.add(addr, Cost::RAM.taken());
                } else {
                    word.finish(state);
                    saved[page] = not_claimed;
                }
            }
        }
        self.uncount_clean(unit, dropped);
        self.uncount_present(unit, dropped);
        self.group.uncharge(dropped);
        stats::add(&self.stats.dropped_clean_pages, dropped as u64);
        stats::add(&self.stats.unmap_pages, dropped as u64);
        dropped
    }
}
