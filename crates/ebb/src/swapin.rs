//! The way in: first touch, soft fault, swap-in, read-ahead. One fault brings in one page, or a window of neighbours
//! when the thread walks in address order.
//!
//! Everything here runs inside the gate, with the pages it works on claimed, and with `charge` pages charged before.

use crate::ctx::{ThreadCtx, WINDOW_MAX};
use crate::groups::{Cost, Index};
use crate::page::{PageWord, State, Tag};
use crate::space::Space;
use crate::stats;
use crate::stock::{Placed, RUN_MAX, RUN_MIN};
use crate::swapspace::{LoadError, NOT_LOCKED, Source, folio_at};
use crate::table::{PAGE, UNIT_BYTES, UNIT_PAGES};
use crate::uapi::uffd::UffdError;
use core::sync::atomic::Ordering::Relaxed;
use ebb_slots::{Entry, Locked, Slot};

/// Pages that a swap-in must bring in at once to leave clean pages in RAM and pool both.
const CLEAN_RUN_MIN: usize = 4;

/// What became of a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum In {
    /// This many pages are mapped now, from the first on; so much of the charge is used.
    Mapped(usize),
    /// Somebody else changed the page: look again.
    Retry,
    /// The content cannot be had.
    Unreadable,
    /// There are no frames for it, or they cannot be moved there: charge it, and do without.
    NotByMove,
    /// The kernel has no memory.
    NoMemory,
    /// The kernel knows no such registered page: not ours after all.
    NotRegistered,
}

/// What is wanted beside one page.
#[derive(Clone, Copy)]
pub(crate) struct Want {
    /// Most pages in all.
    pub window: usize,
    /// Address to stop at.
    pub end: usize,
    /// Pages from the first on that a system call uses now; 0 for a fault.
    pub used: usize,
    /// Somebody is about to write.
    pub write: bool,
    /// Nobody waits for any of them.
    pub ahead: bool,
    /// Nothing is charged: frames that are charged already are moved there.
    pub by_move: bool,
    /// Whose page it is.
    pub group: Index,
}

impl Space {
    /// Brings in the page at `addr`, seen in `state`, and up to `want.window` pages in all that follow it in the same
    /// unit and below `want.end`, all of the same kind.
    pub(crate) fn bring(&self, ctx: &ThreadCtx, addr: usize, word: PageWord<'_>, state: State, want: Want) -> In {
        let unit_end = self.table.unit_start(addr) + UNIT_BYTES;
        let end = want.end.min(unit_end).min(addr + want.window * PAGE);
        let want = Want { end, ..want };
        match state.tag() {
            Tag::None | Tag::Staged | Tag::Swapped if want.by_move && end < addr + RUN_MIN * PAGE => In::NotByMove,
            Tag::None if want.by_move => self.first_touch_by_move(addr, word, state, end),
            Tag::None => self.first_touch(addr, word, state, end),
            Tag::Staged => self.soft_fault(addr, word, state, want),
            Tag::Swapped if want.by_move => self.swap_in::<RUN_MAX>(ctx, addr, word, state, want),
            Tag::Swapped => self.swap_in::<WINDOW_MAX>(ctx, addr, word, state, want),
            Tag::Present => In::Mapped(0),
            Tag::Busy => In::Retry,
        }
    }

    /// Claims the run of pages from `addr` for which `want` holds; the first must.
    fn claim_run(
        &self,
        addr: usize,
        word: PageWord<'_>,
        state: State,
        end: usize,
        want: impl Fn(usize, State) -> bool,
    ) -> usize {
        if !word.try_claim(state) {
            return 0;
        }
        let mut n = 1;
        while addr + n * PAGE < end {
            let Some(next) = self.table.word(addr + n * PAGE) else { break };
            let seen = next.load();
            if !want(n, seen) || !next.try_claim(seen) {
                break;
            }
            n += 1;
        }
        n
    }

    /// Ends the claims of `n` pages from `addr` on.
    fn finish_run(&self, addr: usize, n: usize, state: impl Fn(usize) -> State) {
        for i in 0..n {
            if let Some(word) = self.table.word(addr + i * PAGE) {
                word.finish(state(i));
            }
        }
    }

    fn first_touch(&self, addr: usize, word: PageWord<'_>, state: State, end: usize) -> In {
        let n = self.claim_run(addr, word, state, end, |_, s| s == State::NONE);
        if n == 0 {
            return In::Retry;
        }
        let copy = || came(n, self.uffd().copy(addr, self.zeros, n * PAGE));
        let (mapped, error) = self.ways.measure(Tag::None, false, copy, |came| came.0);
        self.touched(addr, n, mapped, error)
    }

    fn first_touch_by_move(&self, addr: usize, word: PageWord<'_>, state: State, end: usize) -> In {
        let Some(frames) = self.take_frames((end - addr) / PAGE) else { return In::NotByMove };
        let end = end.min(addr + frames.n * PAGE);
        let n = self.claim_run(addr, word, state, end, |_, s| s == State::NONE);
        if n == 0 {
            self.put_frames(frames, 0);
            return In::Retry;
        }
        let place = || self.place_zeros(addr, frames, n);
        let Placed { mapped, error, .. } = self.ways.measure(Tag::None, true, place, |placed| placed.mapped);
        self.put_frames(frames, mapped);
        match error {
            // The page that exists is not charged.
            Some(e) if mapped == 0 && e != UffdError::Again => {
                self.finish_run(addr, n, |_| State::NONE);
                In::NotByMove
            }
            _ => self.touched(addr, n, mapped, error.filter(|e| *e != UffdError::Exists)),
        }
    }

    /// Of `n` claimed pages that nobody had touched `mapped` are there now, and then came an error: ends the claims.
    fn touched(&self, addr: usize, n: usize, mapped: usize, error: Option<UffdError>) -> In {
        if mapped > 0 {
            self.count_content(addr, mapped);
            self.count_present(addr, mapped);
            stats::add(&self.stats.first_touch_pages, mapped as u64);
        }
        // A page that the kernel mapped before it was managed is present, and counted from now on.
        let existed = mapped < n && error == Some(UffdError::Exists);
        if existed {
            self.count_content(addr + mapped * PAGE, 1);
            self.count_present(addr + mapped * PAGE, 1);
        }
        let done = mapped + existed as usize;
        self.finish_run(addr, n, |i| if i < done { State::PRESENT } else { State::NONE });
        self.outcome(done, error.filter(|_| !existed))
    }

    fn soft_fault(&self, addr: usize, word: PageWord<'_>, state: State, want: Want) -> In {
        let Want { end, group, used, by_move, .. } = want;
        let frame = state.payload() as u32;
        let n = self.claim_run(addr, word, state, end, |i, s| {
            s.tag() == Tag::Staged
                && s.payload() == frame as u64 + i as u64
                && !(frame + i as u32).is_multiple_of(UNIT_PAGES as u32)
        });
        if n == 0 {
            return In::Retry;
        }
        let from = self.staging.addr(frame);
        let bring = || match by_move {
            true => came(n, self.uffd().move_resident(addr, from, n * PAGE)),
            false => came(n, self.uffd().copy(addr, from, n * PAGE)),
        };
        let (mapped, error) = self.ways.measure(Tag::Staged, by_move, bring, |came| came.0);
        self.check_unmapped(error, b"a staged page was mapped already");
        if by_move {
            stats::add(&self.stats.move_refused, error.is_some() as u64);
            stats::add(&self.stats.moved_in_pages, mapped as u64);
            self.break_frames(frame, (0..mapped).map(|i| self.staging.addr(frame + i as u32)));
            self.staging.frames_taken(frame, mapped as u32);
        }
        if mapped > 0 {
            self.count_present(addr, mapped);
            if !group.is_root() {
                self.groups.force(group, Cost::STAGED.times(mapped as i64).taken());
            }
            stats::add(&self.stats.staged_back_pages, mapped as u64);
            self.nr_needed_again.fetch_add(mapped as u64, Relaxed);
            if let Some(unit) = self.table.unit(addr) {
                unit.returned.fetch_add(mapped as u32, Relaxed);
            }
        }
        let present = |i: usize| State::PRESENT.with_referenced(i < used);
        self.finish_run(addr, n, |i| if i < mapped { present(i) } else { State::staged(frame + i as u32) });
        for i in 0..mapped {
            self.staging.put_frame(frame + i as u32);
        }
        self.outcome_of(by_move, mapped, error)
    }

    /// The same where pages may be such as cannot be moved to.
    fn outcome_of(&self, by_move: bool, mapped: usize, error: Option<UffdError>) -> In {
        match error {
            Some(e) if by_move && mapped == 0 && e != UffdError::Again => In::NotByMove,
            _ => self.outcome(mapped, error),
        }
    }

    /// Whether `n` pages brought in for reading from `addr` on stay clean. Long runs do: who walks through memory is
    /// likely to leave it as it is, and to go on before it comes again. So does what comes from a file, where a copy
    /// costs no RAM, and what is shared since a fork, where the other side has the copy anyhow. Not where such pages were written to lately.
    fn stays_clean(&self, addr: usize, n: usize, from_file: bool, ahead: bool) -> bool {
        let keeps = n >= CLEAN_RUN_MIN || from_file || self.shares_much();
        if !self.can_protect || !keeps || self.has_driver() || !self.swap.may_keep(&self.group) {
            return false;
        }
        let Some(unit) = self.table.unit(addr) else { return false };
        let mut written = unit.written.load(Relaxed);
        if written == 0
            && addr == self.table.unit_start(addr)
            && let Some(before) = self.table.unit(addr.wrapping_sub(PAGE))
        {
            // A walk that writes what it reads goes on doing so.
            written = before.written.load(Relaxed);
        }
        // A fault counts, the rest of its window does not.
        unit.written.store(written.saturating_sub(!ahead as u32), Relaxed);
        written == 0
    }

    /// Brings in at most `N` swapped pages. The frame of the wide one is large.
    #[inline(never)]
    fn swap_in<const N: usize>(
        &self,
        ctx: &ThreadCtx,
        addr: usize,
        word: PageWord<'_>,
        state: State,
        want: Want,
    ) -> In {
        let Want { end, write, group, used, ahead, by_move, .. } = want;
        let mut entries = [state; N];
        // More than one page needs a wide buffer; without one, one page at a time.
        let is_wide = end > addr + PAGE;
        let mut run = if by_move { self.runs.try_lease((end - addr) / PAGE, &self.group) } else { None };
        let mut work = if is_wide && !by_move { self.work.try_lease() } else { None };
        let frames = if run.is_some() { self.take_frames((end - addr) / PAGE) } else { None };
        if by_move && frames.is_none() {
            return In::NotByMove;
        }
        let mut wide = match (&mut run, &mut work) {
            (Some(run), _) => Some(&mut run.pages[..]),
            (None, Some(work)) => Some(&mut work.pages[..]),
            (None, None) => None,
        };
        let most = frames.map_or(wide.as_ref().map_or(1, |_| N), |frames| frames.n.min(N));
        let end = end.min(addr + most * PAGE);
        if !word.try_claim(state) {
            if let Some(frames) = frames {
                self.put_frames(frames, 0);
            }
            return In::Retry;
        }
        let mut n = 1;
        while addr + n * PAGE < end {
            let Some(next) = self.table.word(addr + n * PAGE) else { break };
            let seen = next.load();
            if seen.tag() != Tag::Swapped || !next.try_claim(seen) {
                break;
            }
            entries[n] = seen;
            n += 1;
        }
        // SAFETY: the context's bounce pages belong to the calling thread.
        let [bounce, spare] = unsafe { &mut *ctx.bounce.get() };
        let (bounce, spare) = (&mut bounce.0, &mut spare.0);
        let mut were = [NOT_LOCKED; N];
        let mut failure = None;
        let mut claimed = 0;
        while claimed < n {
            let (slot, folio) = (slot_of(entries[claimed]), folio_at(addr + claimed * PAGE));
            // Waits for the first slot only: who has slots locked waits for no other, as two pages may have one slot, and
            // runs of them the same slots in another order. The run ends before a slot that is taken.
            let was = match claimed {
                0 => self.swap.claim(slot, folio).map_err(|e| failure = Some(e)).ok(),
                _ => self.swap.try_claim(slot, folio),
            };
            let Some(was) = was else { break };
            were[claimed] = was;
            claimed += 1;
        }
        let mut loaded = 0;
        let mut source = Source::Same;
        let mut from_file = true;
        while loaded < claimed {
            let run = self.swap.run_in_file(entries[loaded..claimed].iter().map(|entry| slot_of(*entry)));
            if let (Some(run), Some(wide)) = (run, &mut wide) {
                let part = &mut wide[loaded * PAGE..(loaded + run.n) * PAGE];
                let (came, e) = self.swap.load_run(run, part, spare);
                source = if loaded == 0 && came > 0 { Source::File } else { source };
                loaded += came;
                failure = e;
                if failure.is_some() {
                    break;
                }
                if came > 0 {
                    continue;
                }
            }
            let slot = slot_of(entries[loaded]);
            let (out, scratch): (&mut [u8; PAGE], &mut [u8; PAGE]) = match &mut wide {
                Some(wide) => {
                    let part = &mut wide[loaded * PAGE..(loaded + 1) * PAGE];
                    match part.try_into() {
                        Ok(part) => (part, &mut *spare),
                        Err(_) => break,
                    }
                }
                None => (&mut *bounce, &mut *spare),
            };
            match self.swap.load(slot, out, scratch) {
                Ok(s) => {
                    source = if loaded == 0 { s } else { source };
                    from_file &= s == Source::File;
                }
                Err(e) => {
                    failure = Some(e);
                    break;
                }
            }
            loaded += 1;
        }
        for i in loaded..claimed {
            self.swap.unclaim(slot_of(entries[i]), were[i]);
        }
        let src = match &wide {
            Some(wide) => &wide[..loaded * PAGE],
            None => &bounce[..loaded * PAGE],
        };
        let clean = !write && loaded > 0 && self.stays_clean(addr, loaded, from_file, ahead);
        let bring = || match frames {
            _ if loaded == 0 => Placed { mapped: 0, clean: 0, error: None },
            Some(frames) => self.place(addr, frames, src, clean),
            None => {
                let (uffd, at) = (self.uffd(), src.as_ptr() as usize);
                let copied =
                    if clean { uffd.copy_protected(addr, at, src.len()) } else { uffd.copy(addr, at, src.len()) };
                let (mapped, error) = came(loaded, copied);
                Placed { mapped, clean: if clean { u128::MAX } else { 0 }, error }
            }
        };
        let Placed { mapped, clean, error } =
            self.ways.measure(Tag::Swapped, frames.is_some(), bring, |placed| placed.mapped);
        if let Some(frames) = frames {
            self.put_frames(frames, mapped);
        }
        let is_clean = |i: usize| clean >> i & 1 != 0;
        let nr_clean = (0..mapped).filter(|i| is_clean(*i)).count();
        self.check_unmapped(error, b"a swapped page was mapped already");
        let (mut near, mut soon) = (0, 0);
        // What was evicted before this process was forked, its parent needed.
        let (mut near_own, age) = (0, self.swap.clock().wrapping_sub(self.forked_at.load(Relaxed)));
        let even = self.group.share().max(self.even_share.load(Relaxed));
        for i in 0..loaded {
            let (slot, was) = (slot_of(entries[i]), were[i]);
            if i >= mapped {
                self.swap.unclaim(slot, was);
                continue;
            }
            if let Locked::Stored(stored) = was {
                let distance = self.swap.distance(stored.shadow);
                let is_near = distance as usize <= self.group.share();
                // It would be staged still.
                let is_soon = distance as usize <= self.staging.target();
                soon += is_soon as u32;
                near += (is_near && !is_soon) as u32;
                near_own += (distance as usize <= even && distance <= age) as u64;
            }
            if is_clean(i) {
                self.swap.keep(slot, was);
            } else {
                self.swap.release(&self.group, self.stats, slot, folio_at(addr + i * PAGE), was);
            }
        }
        if mapped > 0 {
            if nr_clean > 0 {
                self.count_clean(addr, nr_clean);
            }
            if nr_clean < mapped && !group.is_root() {
                self.groups.force(group, Cost::SWAP.times((mapped - nr_clean) as i64).taken());
            }
            self.count_present(addr, mapped);
            if let Some(unit) = self.table.unit(addr) {
                unit.refaulted.fetch_add(near, Relaxed);
                unit.returned.fetch_add(soon, Relaxed);
            }
            stats::add(&self.stats.refaults_near, (near + soon) as u64);
            if near_own > 0 {
                self.nr_needed_again.fetch_add(near_own, Relaxed);
            }
            stats::add(&self.stats.readahead_pages, mapped as u64 - !ahead as u64);
            let counter = if source == Source::File { &self.stats.faults_file } else { &self.stats.faults_pool };
            stats::add(counter, !ahead as u64);
        }
        self.finish_run(addr, n, |i| match entries[i] {
            entry if i >= mapped => entry,
            entry if is_clean(i) => State::clean(entry.payload()),
            // What a system call uses it most likely uses again. Of a fault that is not known.
            _ => State::PRESENT.with_referenced(i < used),
        });
        match failure {
            // Who touches it will be told.
            Some(_) if mapped == 0 && ahead => In::Unreadable,
            Some(e) if mapped == 0 => self.unreadable(e),
            _ => self.outcome_of(by_move, mapped, error),
        }
    }

    fn unreadable(&self, e: LoadError) -> In {
        let text: &[u8] = match e {
            LoadError::Lost => b"a swapped page has no content: this is a bug in Ebb; please report it",
            LoadError::Corrupt => {
                b"a swapped page fails its check: memory or the spill file was damaged; the page is unreadable"
            }
            LoadError::Io(_) => {
                b"the spill file cannot be read; the page is unreadable: check the disk under EBB_TMPDIR"
            }
        };
        self.inconsistent(text);
        In::Unreadable
    }

    fn check_unmapped(&self, error: Option<UffdError>, text: &[u8]) {
        if error == Some(UffdError::Exists) {
            self.inconsistent(text);
        }
    }

    fn outcome(&self, mapped: usize, error: Option<UffdError>) -> In {
        match error {
            _ if mapped > 0 => In::Mapped(mapped),
            None | Some(UffdError::Again) => In::Retry,
            Some(UffdError::NoMemory) => In::NoMemory,
            Some(UffdError::NotRegistered | UffdError::Mismatch) => In::NotRegistered,
            Some(_) => In::Unreadable,
        }
    }
}

/// Of `n` pages so many came, and why no more.
fn came(n: usize, result: Result<(), (usize, UffdError)>) -> (usize, Option<UffdError>) {
    match result {
        Ok(()) => (n, None),
        Err((bytes, e)) => (bytes / PAGE, Some(e)),
    }
}

/// The slot in a swapped page's state.
pub(crate) fn slot_of(state: State) -> Slot {
    Entry::from_bits(state.payload()).slot
}
