//! Maps pages: first touch, soft fault, swap-in, read-ahead. One call brings in one page, or a window of neighbours if the
//! thread walks in address order.
//!
//! Everything here runs inside the gate, on pages that it has claimed. They were charged before, or come by MOVE of frames that
//! are charged already.

use crate::base::PAGE;
use crate::base::events::{self, Kind};
use crate::base::uapi::uffd::UffdError;
use crate::counters::stats;
use crate::groups::cost::Cost;
use crate::groups::table::Index;
use crate::memory::table::{UNIT_BYTES, UNIT_PAGES};
use crate::pages::claims;
use crate::pages::{account, drivers, sharing, stock};
use crate::places::frames::{Frames, Placed, RUN_MAX, RUN_MIN};
use crate::places::swapspace::{LoadError, NOT_LOCKED, PageSet, Source, Window, folio_at, slot_of};
use crate::places::work::{Lease, Work};
use crate::protocols::gate::Held;
use crate::protocols::page::{PageWord, State, Tag};
use crate::space::Space;
use crate::threads::ctx::{ThreadCtx, WINDOW_MAX};
use crate::way_in::load::{READS_MAX, load_together};
use crate::way_in::reach;
use core::ops::Range;
use core::sync::atomic::Ordering::Relaxed;
use ebb_slots::Locked;

/// Pages that a swap-in must bring in at once to leave them clean, with their content in both RAM and pool.
const CLEAN_RUN_MIN: usize = 4;

/// A page that comes back before so many others have left after it as are this part (1 / 4) of what the process holds is used so often
/// that a device is no place for it (`docs/decisions/2026-11-30-used-often.md`).
const OFTEN_PART: usize = 4;

/// The outcome of bringing a page in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum In {
    /// This many pages are mapped now, from the first on, and use as much of the charge. 0 if the page was present already.
    Mapped(usize),
    /// Another thread changed the page: look again.
    Retry,
    /// The content cannot be read; why not, as far as is known.
    Unreadable(Option<LoadError>),
    /// There are no frames for the page, or frames cannot be moved there. Charge the page, and do without MOVE.
    NotByMove,
    /// The kernel has no memory.
    NoMemory,
    /// The page is not registered with the kernel, so Ebb does not manage it after all.
    NotRegistered,
}

/// What to bring in, beside one page, and for whom.
#[derive(Clone, Copy)]
pub(crate) struct Want {
    /// Most pages in all.
    pub window: usize,
    /// Address to stop at.
    pub end: usize,
    /// Pages from the first on that a system call uses now; 0 for a fault.
    pub used: usize,
    /// The pages are about to be written.
    pub write: bool,
    /// Nobody waits for any of the pages.
    pub ahead: bool,
    /// The pages come by MOVE of frames that are charged already: nothing is charged for them.
    pub by_move: bool,
    /// The group that owns the page.
    pub group: Index,
    /// The page comes in even if that exceeds the group's limits.
    pub force: bool,
}

/// Brings in the page at `addr`, seen in `state`, and pages of the same kind that follow it: up to `want.window` pages in
/// all, in the same unit and below `want.end`.
pub(crate) fn bring(
    space: &Space,
    held: &Held,
    ctx: &ThreadCtx,
    addr: usize,
    word: PageWord<'_>,
    state: State,
    want: Want,
) -> In {
    let unit_end = space.table.unit_start(addr) + UNIT_BYTES;
    let end = want.end.min(unit_end).min(addr + want.window * PAGE);
    let want = Want { end, ..want };
    let came = match state.tag() {
        Tag::None | Tag::Staged | Tag::Swapped if want.by_move && end < addr + RUN_MIN * PAGE => In::NotByMove,
        Tag::None if want.by_move => first_touch_by_move(space, addr, word, state, end),
        Tag::None => first_touch(space, addr, word, state, end),
        Tag::Staged => soft_fault(space, addr, word, state, want),
        Tag::Swapped if want.by_move || want.window > WINDOW_MAX => {
            swap_in::<RUN_MAX>(space, held, ctx, addr, word, state, want)
        }
        Tag::Swapped => swap_in::<WINDOW_MAX>(space, held, ctx, addr, word, state, want),
        Tag::Present => In::Mapped(0),
        Tag::Busy if take_back(space, addr, word) => In::Mapped(0),
        Tag::Busy => In::Retry,
    };
    if let In::Mapped(n) = came {
        let detail = events::in_detail(state.tag() as u64, want.write, want.ahead, want.used, ctx.shard());
        events::record(Kind::In, addr, n, detail);
    }
    came
}

/// Takes the page at `addr` back from a sweep that has not got far with it, if there is one. The page is present then.
pub(crate) fn take_back(space: &Space, addr: usize, word: PageWord<'_>) -> bool {
    let is_back = word.try_take_back();
    if is_back {
        // A failure leaves a page protected whose state says it is open. A write will find that out, see `spurious`.
        let _ = space.uffd().write_protect(addr, PAGE, false);
        stats::add(&space.stats.taken_back_pages, 1);
        word.finish(State::PRESENT);
    }
    is_back
}

/// Ends the claims on `n` pages from `addr` on.
fn finish_run(space: &Space, addr: usize, n: usize, state: impl Fn(usize) -> State) {
    for i in 0..n {
        if let Some(word) = space.table.word(addr + i * PAGE) {
            word.finish(state(i));
        }
    }
}

fn first_touch(space: &Space, addr: usize, word: PageWord<'_>, state: State, end: usize) -> In {
    let n = claims::claim_run(space, addr, word, state, end, |_, s| s == State::NONE);
    if n == 0 {
        return In::Retry;
    }
    let copy = || came(n, space.uffd().copy(addr, space.kernel.zeros(), n * PAGE));
    let (mapped, error) = space.places.ways.measure(Tag::None, false, copy, |came| came.0);
    touched(space, addr, n, mapped, error)
}

fn first_touch_by_move(space: &Space, addr: usize, word: PageWord<'_>, state: State, end: usize) -> In {
    let Some(frames) = stock::take_frames(space, (end - addr) / PAGE) else { return In::NotByMove };
    let end = end.min(addr + frames.n * PAGE);
    let n = claims::claim_run(space, addr, word, state, end, |_, s| s == State::NONE);
    if n == 0 {
        stock::put_frames(space, frames, 0);
        return In::Retry;
    }
    let place = || stock::place_zeros(space, addr, frames, n);
    let Placed { mapped, error, .. } = space.places.ways.measure(Tag::None, true, place, |placed| placed.mapped);
    stock::put_frames(space, frames, mapped);
    match error {
        // The cause may be a page that exists already, and such a page is not charged yet.
        Some(e) if mapped == 0 && e != UffdError::Again => {
            finish_run(space, addr, n, |_| State::NONE);
            In::NotByMove
        }
        _ => touched(space, addr, n, mapped, error.filter(|e| *e != UffdError::Exists)),
    }
}

/// Ends the claims on `n` pages that nobody had touched. The first `mapped` of them are mapped now; `error` says why no more
/// are.
fn touched(space: &Space, addr: usize, n: usize, mapped: usize, error: Option<UffdError>) -> In {
    if mapped > 0 {
        account::count_content(space, addr, mapped);
        account::count_present(space, addr, mapped);
        stats::add(&space.stats.first_touch_pages, mapped as u64);
    }
    // A page that the kernel mapped before Ebb managed it is present, and counts from now on.
    let existed = mapped < n && error == Some(UffdError::Exists);
    if existed {
        account::count_content(space, addr + mapped * PAGE, 1);
        account::count_present(space, addr + mapped * PAGE, 1);
    }
    let done = mapped + existed as usize;
    finish_run(space, addr, n, |i| if i < done { State::PRESENT } else { State::NONE });
    outcome(done, error.filter(|_| !existed))
}

fn soft_fault(space: &Space, addr: usize, word: PageWord<'_>, state: State, want: Want) -> In {
    let Want { end, group, used, by_move, .. } = want;
    let frame = state.payload() as u32;
    let n = claims::claim_run(space, addr, word, state, end, |i, s| {
        s.tag() == Tag::Staged
            && s.payload() == frame as u64 + i as u64
            && !(frame + i as u32).is_multiple_of(UNIT_PAGES as u32)
    });
    if n == 0 {
        return In::Retry;
    }
    let from = space.places.staging.addr(frame);
    let bring = || match by_move {
        true => came(n, space.uffd().move_resident(addr, from, n * PAGE)),
        false => came(n, space.uffd().copy(addr, from, n * PAGE)),
    };
    let (mapped, error) = space.places.ways.measure(Tag::Staged, by_move, bring, |came| came.0);
    check_unmapped(space, error, b"a staged page was mapped already");
    if by_move {
        stats::add(&space.stats.move_refused, error.is_some() as u64);
        stats::add(&space.stats.moved_in_pages, mapped as u64);
    }
    if mapped > 0 {
        settle_staged(space, addr, frame, mapped, group, by_move);
    }
    let present = |i: usize| State::PRESENT.with_referenced(i < used);
    finish_run(space, addr, n, |i| if i < mapped { present(i) } else { State::staged(frame + i as u32) });
    for i in 0..mapped {
        space.places.staging.put_frame(frame + i as u32);
    }
    outcome_of(by_move, mapped, error)
}

/// Counts `n` pages from `addr` on that came back from their frames, from `frame` on. Before the claims on them end.
pub(crate) fn settle_staged(space: &Space, addr: usize, frame: u32, n: usize, group: Index, by_move: bool) {
    if by_move {
        sharing::break_frames(space, frame, (0..n).map(|i| space.places.staging.addr(frame + i as u32)));
        space.places.staging.frames_taken(frame, n as u32);
    }
    account::count_present(space, addr, n);
    if !group.is_root() {
        space.groups.force(group, Cost::STAGED.times(n as i64).taken());
    }
    stats::add(&space.stats.staged_back_pages, n as u64);
    space.eviction.add_needed_again(n as u64);
    if let Some(unit) = space.table.unit(addr) {
        unit.returned.fetch_add(n as u32, Relaxed);
    }
}

/// The outcome where MOVE may have failed because it cannot move to these pages.
fn outcome_of(by_move: bool, mapped: usize, error: Option<UffdError>) -> In {
    match error {
        Some(e) if by_move && mapped == 0 && e != UffdError::Again => In::NotByMove,
        _ => outcome(mapped, error),
    }
}

/// Whether `n` pages brought in for reading from `addr` on stay clean.
///
/// Long runs do: a thread that walks through memory probably does not write to it, and has gone on long before it comes back.
/// So do pages whose copy `costs_nothing`: those of a device that are not [used often](is_used_often). So do pages of a process
/// that shares much since a fork, because the other side has the copy anyhow. Pages do not stay clean in a unit where clean pages
/// were written to lately.
pub(crate) fn stays_clean(space: &Space, addr: usize, n: usize, costs_nothing: bool, ahead: bool) -> bool {
    let keeps = n >= CLEAN_RUN_MIN || costs_nothing || space.family.shares_much();
    if !space.kernel.can_protect() || !keeps || drivers::has_driver(space) || !space.swap.may_keep(&space.budget) {
        return false;
    }
    let Some(unit) = space.table.unit(addr) else { return false };
    let mut written = unit.written.load(Relaxed);
    if written == 0
        && addr == space.table.unit_start(addr)
        && let Some(before) = space.table.unit(addr.wrapping_sub(PAGE))
    {
        // A walk that writes to what it reads goes on doing so in the next unit.
        written = before.written.load(Relaxed);
    }
    // Each fault counts down by one. The rest of its window does not count.
    unit.written.store(written.saturating_sub(!ahead as u32), Relaxed);
    written == 0
}

/// Where swapped pages are loaded to: a wide buffer, or one page.
pub(super) struct Buffers<'a> {
    pub wide: Option<&'a mut [u8]>,
    pub bounce: &'a mut [u8; PAGE],
    /// For the compressed bytes that a file holds.
    pub spare: &'a mut [u8; PAGE],
    /// The file and the slot that `spare` has, as it is on the device.
    pub early: Option<(usize, u32)>,
    /// Room for slots of a file that have the content of several pages; none if there is none.
    pub room: Option<&'a mut [u8]>,
}

impl Buffers<'_> {
    /// Room for page `i`, and the spare page.
    fn page(&mut self, i: usize) -> (&mut [u8], &mut [u8; PAGE]) {
        match &mut self.wide {
            Some(wide) => (&mut wide[i * PAGE..(i + 1) * PAGE], self.spare),
            None => (&mut self.bounce[..], self.spare),
        }
    }

    /// The first `n` pages.
    fn pages(&self, n: usize) -> &[u8] {
        match &self.wide {
            Some(wide) => &wide[..n * PAGE],
            None => &self.bounce[..n * PAGE],
        }
    }
}

/// The outcome of loading pages.
pub(super) struct Loaded {
    /// Pages that were loaded, from the first on.
    pub n: usize,
    /// Where the first page came from.
    source: Source,
    /// All pages came from a file.
    from_file: bool,
    /// Why no more pages could be loaded, if the failure is permanent.
    failure: Option<LoadError>,
}

/// Brings in at most `N` swapped pages: claims them, locks their slots, loads, maps and settles. Not inlined, because the stack
/// frame for many pages is large.
#[inline(never)]
fn swap_in<const N: usize>(
    space: &Space,
    held: &Held,
    ctx: &ThreadCtx,
    addr: usize,
    word: PageWord<'_>,
    state: State,
    want: Want,
) -> In {
    let Want { end, used, by_move, .. } = want;
    // More than one page needs a wide buffer. Without one, a single page comes in.
    let is_wide = end > addr + PAGE;
    let mut run = if by_move { space.places.runs.try_lease((end - addr) / PAGE, &space.budget) } else { None };
    let place = space.swap.place_in_file(slot_of(state));
    let is_packed = place.is_some_and(|(_, place)| place.is_packed());
    let mut work =
        if is_wide && (!by_move || place.is_some()) { space.places.work.try_lease(&space.budget, ctx) } else { None };
    if by_move && is_packed && work.is_none() {
        // Without room for what lies together, each page would cost a read.
        return In::NotByMove;
    }
    let frames = if run.is_some() { stock::take_frames(space, (end - addr) / PAGE) } else { None };
    if by_move && frames.is_none() {
        return In::NotByMove;
    }
    let (wide, room) = match (&mut run, &mut work) {
        (Some(run), work) => (Some(&mut run.pages[..]), work.as_mut().map(|work| work.pages())),
        (None, Some(work)) => {
            // As many slots as pages have the content of a window that is packed.
            let most = N.min(if is_packed { work.batch() / 2 } else { work.batch() });
            let (wide, room) = work.pages().split_at_mut(most.min((end - addr) / PAGE) * PAGE);
            (Some(wide), Some(room))
        }
        (None, None) => (None, None),
    };
    let fits = wide.as_ref().map_or(1, |wide| (wide.len() / PAGE).min(N));
    let most = frames.map_or(fits, |frames| frames.n.min(N));
    let end = end.min(addr + most * PAGE);
    let mut entries = [state; N];
    let n = claims::claim_run(space, addr, word, state, end, |i, seen| {
        entries[i] = seen;
        seen.tag() == Tag::Swapped
    });
    if n == 0 {
        if let Some(frames) = frames {
            stock::put_frames(space, frames, 0);
        }
        return In::Retry;
    }
    let entries = &entries[..n];
    let early = ctx.early.take();
    // SAFETY: the context's bounce pages belong to the calling thread.
    let [bounce, spare] = unsafe { &mut *ctx.bounce.get() };
    let mut buffers = Buffers { wide, bounce: &mut bounce.0, spare: &mut spare.0, early, room };
    let mut were = [NOT_LOCKED; N];
    let (locked, failure) = lock_slots(space, addr, entries, &mut were, true);
    // A page that was read before comes alone.
    let is_read = early.is_some() && early == place.map(|(file, place)| (file, place.slot));
    let mut around = lease_around(space, ctx, &entries[..locked], want.ahead || is_read);
    let window = around.as_mut().and_then(|(work, range)| {
        space.swap.read_window(held, &space.budget, space.stats, slot_of(entries[0]), range.clone(), work.pages())
    });
    let wanted = space.swap.without_seek(entries[..locked].iter().map(|entry| slot_of(*entry)), window.as_ref());
    let loaded = load(space, held, &entries[..wanted], failure, window.as_ref(), &mut buffers);
    for i in loaded.n..locked {
        space.swap.unclaim(held, slot_of(entries[i]), were[i]);
    }
    let belongs_in_pool = is_packed && is_used_often(space, were[0]);
    let Placed { mapped, clean, error } =
        map(space, addr, &want, &loaded, belongs_in_pool, frames, buffers.pages(loaded.n));
    if let Some(frames) = frames {
        stock::put_frames(space, frames, mapped);
    }
    check_unmapped(space, error, b"a swapped page was mapped already");
    let is_clean = |i: usize| clean >> i & 1 != 0;
    settle(space, held, addr, &want, &loaded, entries, &were, mapped, is_clean);
    finish_run(space, addr, n, |i| match entries[i] {
        entry if i >= mapped => entry,
        entry if is_clean(i) => State::clean(entry.payload()),
        // A page that a system call uses is probably used again. For the pages of a fault that is unknown.
        _ => State::PRESENT.with_referenced(i < used),
    });
    match loaded.failure {
        // Whoever needs the page reports the failure, outside the gate.
        Some(e) if loaded.n == 0 => In::Unreadable(Some(e)),
        _ => outcome_of(by_move, mapped, error),
    }
}

/// Locks the slots of claimed pages, from the first on, and notes their earlier states in `were`. Returns how many it locked,
/// and the error if it could not lock the first. `waits` for the first if another thread has it.
pub(super) fn lock_slots(
    space: &Space,
    addr: usize,
    entries: &[State],
    were: &mut [Locked],
    waits: bool,
) -> (usize, Option<LoadError>) {
    for (i, entry) in entries.iter().enumerate() {
        let (slot, folio) = (slot_of(*entry), folio_at(addr + i * PAGE));
        // Wait for the first slot only. A thread that has slots locked waits for no other slot: two pages may share a slot, and
        // two runs of pages may have the same slots in different orders. So the run ends before a slot that is taken.
        let was = match i {
            0 if waits => match space.swap.claim(slot, folio) {
                Ok(was) => Some(was),
                Err(e) => return (0, Some(e)),
            },
            _ => space.swap.try_claim(slot, folio),
        };
        let Some(was) = was else { return (i, None) };
        were[i] = was;
    }
    (entries.len(), None)
}

/// Loads the content of these pages from their locked slots, from the first page on.
pub(super) fn load(
    space: &Space,
    held: &Held,
    entries: &[State],
    failure: Option<LoadError>,
    window: Option<&Window<'_>>,
    buffers: &mut Buffers<'_>,
) -> Loaded {
    let mut loaded = Loaded { n: 0, source: Source::Same, from_file: true, failure };
    // Pages below this one come one by one, because a read of all of them failed: those before the one that is at fault still come.
    let mut singly = 0;
    let run_from = |i: usize| space.swap.run_in_file(entries[i..].iter().map(|entry| slot_of(*entry)));
    // Whatever comes first uses the spare page.
    let early = buffers.early.take().filter(|_| entries.len() == 1);
    let mut nr_single = 0;
    let mut together = PageSet::default();
    if let Some(window) = window {
        for (i, entry) in entries.iter().enumerate() {
            let Ok(out) = buffers.page(i).0.try_into() else { break };
            if space.swap.load_from(held, &space.budget, window, slot_of(*entry), out) {
                together.insert(i);
            }
        }
    } else if let (Some(room), Some(wide)) = (&mut buffers.room, &mut buffers.wide)
        && entries.len() > 1
        && run_from(0).is_none_or(|run| run.n < entries.len())
    {
        (together, _) = load_together(space, held, entries, wide, room, buffers.spare, entries.len().min(READS_MAX));
    }
    while loaded.n < entries.len() {
        if together.has(loaded.n) {
            loaded.source = if loaded.n == 0 { Source::File } else { loaded.source };
            loaded.n += 1;
            continue;
        }
        let mut run = if loaded.n < singly { None } else { run_from(loaded.n) };
        if let Some(run) = &mut run {
            // Up to the next page that is there already.
            run.n = (1..run.n).find(|i| together.has(loaded.n + i)).unwrap_or(run.n);
        }
        if let (Some(run), Some(wide)) = (run.filter(|run| run.n > 1), &mut buffers.wide) {
            let part = &mut wide[loaded.n * PAGE..(loaded.n + run.n) * PAGE];
            let (came, e) = space.swap.load_run(held, &space.budget, run, part, buffers.spare);
            space.stats.runs.note_in(came);
            loaded.source = if loaded.n == 0 && came > 0 { Source::File } else { loaded.source };
            loaded.n += came;
            loaded.failure = e;
            if loaded.failure.is_some() {
                break;
            }
            if came > 0 {
                continue;
            }
            singly = loaded.n + run.n;
        }
        // One by one, which also says which page cannot be read, and why. The rest comes later.
        let slot = slot_of(entries[loaded.n]);
        let is_read = space.swap.place_in_file(slot).is_some();
        if is_read && loaded.n > 0 && nr_single == READS_MAX {
            break;
        }
        nr_single += usize::from(is_read);
        let (out, scratch) = buffers.page(loaded.n);
        let Ok(out) = <&mut [u8; PAGE]>::try_from(out) else { break };
        let came = early.and_then(|early| space.swap.load_early(held, &space.budget, slot, early, out, scratch));
        match came.map_or_else(|| space.swap.load(held, &space.budget, slot, out, scratch), Ok) {
            Ok(source) => {
                loaded.source = if loaded.n == 0 { source } else { loaded.source };
                loaded.from_file &= source == Source::File;
            }
            Err(e) => {
                loaded.failure = Some(e);
                break;
            }
        }
        loaded.n += 1;
    }
    loaded
}

/// A buffer for the slots around that of the first of `entries`, and which to read, unless it comes alone: if somebody waits for its
/// content and that is on a disk that turns.
fn lease_around<'a>(
    space: &'a Space,
    ctx: &ThreadCtx,
    entries: &[State],
    is_alone: bool,
) -> Option<(Lease<'a, Work>, Range<u32>)> {
    if is_alone || events::is_filtering() || space.budget.is_far_above_high() {
        return None;
    }
    let range = space.swap.neighbourhood(entries.iter().map(|entry| slot_of(*entry)))?;
    Some((space.places.work.try_lease(&space.budget, ctx)?, range))
}

/// The pages of `entries` from `at` on that have slots, or have none, like the first of them.
pub(super) fn run_of_a_kind(entries: &[State], at: usize) -> Range<usize> {
    let tag = entries[at].tag();
    at..at + entries[at..].iter().take_while(|entry| entry.tag() == tag).count()
}

/// Ends the locks on the slots of a unit, of which the first `mapped` pages are in one folio now, which `is_clean` or not.
#[expect(clippy::too_many_arguments, reason = "as for `settle`")]
pub(crate) fn settle_all(
    space: &Space,
    held: &Held,
    start: usize,
    want: &Want,
    source: Source,
    entries: &[State],
    were: &[Locked],
    mapped: usize,
    is_clean: bool,
) {
    let mut at = 0;
    while at < entries.len() {
        let run = run_of_a_kind(entries, at);
        let (addr, n) = (start + run.start * PAGE, run.len());
        let mapped = mapped.clamp(run.start, run.end) - run.start;
        if entries[at].tag() == Tag::Swapped {
            let loaded = Loaded { n, source, from_file: false, failure: None };
            // One page was waited for.
            let want = Want { ahead: want.ahead || at > 0, ..*want };
            settle(space, held, addr, &want, &loaded, &entries[run.clone()], &were[run.clone()], mapped, |_| is_clean);
        } else if mapped > 0 {
            account::count_content(space, addr, mapped);
            account::count_present(space, addr, mapped);
            stats::add(&space.stats.first_touch_pages, mapped as u64);
        }
        at = run.end;
    }
}

/// Whether a page is used so often that it leaves and comes back all the time. If it stayed clean, it would leave by a drop and come
/// from the device each time. So it is opened, and goes to the pool when it leaves again. While RAM is not short, little leaves, and
/// that says nothing of how often a page is used.
fn is_used_often(space: &Space, was: Locked) -> bool {
    let Locked::Stored(stored) = was else { return false };
    let distance = space.swap.distance(stored.shadow) as usize;
    distance < space.budget.charged() / OFTEN_PART && !space.budget.has_plenty()
}

/// Maps the pages that were loaded.
fn map(
    space: &Space,
    addr: usize,
    want: &Want,
    loaded: &Loaded,
    belongs_in_pool: bool,
    frames: Option<Frames>,
    pages: &[u8],
) -> Placed {
    let costs_nothing = loaded.from_file && !belongs_in_pool;
    let clean = !want.write && loaded.n > 0 && stays_clean(space, addr, loaded.n, costs_nothing, want.ahead);
    let bring = || match frames {
        _ if loaded.n == 0 => Placed { mapped: 0, clean: 0, error: None },
        Some(frames) => stock::place(space, addr, frames, pages, clean),
        None => {
            let (uffd, at, len) = (space.uffd(), pages.as_ptr() as usize, pages.len());
            let copied = if clean { uffd.copy_protected(addr, at, len) } else { uffd.copy(addr, at, len) };
            let (mapped, error) = came(loaded.n, copied);
            Placed { mapped, clean: if clean { u128::MAX } else { 0 }, error }
        }
    };
    space.places.ways.measure(Tag::Swapped, frames.is_some(), bring, |placed| placed.mapped)
}

/// Ends the locks on the slots of the pages that were loaded, and updates the counters.
///
/// Clean pages keep their slots, and the other mapped pages give theirs up. The slots of pages that were not mapped are only
/// unlocked.
#[expect(clippy::too_many_arguments, reason = "what one swap-in has found out")]
fn settle(
    space: &Space,
    held: &Held,
    addr: usize,
    want: &Want,
    loaded: &Loaded,
    entries: &[State],
    were: &[Locked],
    mapped: usize,
    is_clean: impl Fn(usize) -> bool,
) {
    let (mut near, mut soon) = (0, 0);
    // Pages that were evicted before this process was forked say what its parent needed, not what this process needs.
    let (mut near_own, age) = (0, space.swap.clock().wrapping_sub(space.family.forked_at()));
    let even = space.budget.expected().max(space.eviction.even_part());
    let mut frees = space.swap.frees(held, &space.budget, space.stats);
    for i in 0..loaded.n {
        let (slot, was) = (slot_of(entries[i]), were[i]);
        if i >= mapped {
            space.swap.unclaim(held, slot, was);
            continue;
        }
        if let Locked::Stored(stored) = was {
            let distance = space.swap.distance(stored.shadow);
            if i == 0 && !want.ahead {
                reach::note(space, distance as usize);
            }
            let is_near = distance as usize <= space.budget.expected();
            // Staging would still have the page.
            let is_soon = distance as usize <= space.places.staging.target();
            soon += is_soon as u32;
            near += (is_near && !is_soon) as u32;
            near_own += (distance as usize <= even && distance <= age) as u64;
        }
        if is_clean(i) {
            space.swap.keep(held, slot, was);
        } else {
            frees.add(slot, folio_at(addr + i * PAGE), was);
        }
    }
    drop(frees);
    if mapped == 0 {
        return;
    }
    let nr_clean = (0..mapped).filter(|i| is_clean(*i)).count();
    if nr_clean > 0 {
        account::count_clean(space, addr, nr_clean);
    }
    if nr_clean < mapped && !want.group.is_root() {
        space.groups.force(want.group, Cost::SWAP.times((mapped - nr_clean) as i64).taken());
    }
    account::count_present(space, addr, mapped);
    if let Some(unit) = space.table.unit(addr) {
        for (count, n) in [(&unit.refaulted, near), (&unit.returned, soon)].into_iter().filter(|(_, n)| *n > 0) {
            count.fetch_add(n, Relaxed);
        }
    }
    if near_own > 0 {
        space.eviction.add_needed_again(near_own);
    }
    let counter = if loaded.source == Source::File { &space.stats.faults_file } else { &space.stats.faults_pool };
    let counts = [
        (&space.stats.refaults_near, (near + soon) as u64),
        (&space.stats.readahead_pages, mapped as u64 - !want.ahead as u64),
        (counter, !want.ahead as u64),
        (&space.stats.faults_cold, (!want.ahead && loaded.source == Source::Cold) as u64),
    ];
    // All threads write to the counters, and to add nothing takes a line from the others, too.
    counts.into_iter().filter(|(_, n)| *n > 0).for_each(|(count, n)| stats::add(count, n));
}

fn check_unmapped(space: &Space, error: Option<UffdError>, text: &[u8]) {
    if error == Some(UffdError::Exists) {
        space.inconsistent(text);
    }
}

fn outcome(mapped: usize, error: Option<UffdError>) -> In {
    match error {
        _ if mapped > 0 => In::Mapped(mapped),
        None | Some(UffdError::Again) => In::Retry,
        Some(UffdError::NoMemory) => In::NoMemory,
        Some(UffdError::NotRegistered | UffdError::Mismatch) => In::NotRegistered,
        Some(_) => In::Unreadable(None),
    }
}

/// How many of `n` pages came in, and why no more did.
fn came(n: usize, result: Result<(), (usize, UffdError)>) -> (usize, Option<UffdError>) {
    match result {
        Ok(()) => (n, None),
        Err((bytes, e)) => (bytes / PAGE, Some(e)),
    }
}
