//! Brings in what a system call is about to use, and keeps it in memory until the call ends.

use crate::base::{PAGE, clock};
use crate::counters::stats;
use crate::groups::table::Index;
use crate::memory::table::{UNIT_BYTES, UNIT_PAGES};
use crate::pages::in_use::{self, PIN_PAGES_MIN};
use crate::pages::{books, clean, sharing, stock};
use crate::places::frames::RUN_MAX;
use crate::protocols::gate::Exclusive;
use crate::protocols::gate::Held;
use crate::protocols::page::{State, Tag};
use crate::protocols::primitive::waiting;
use crate::space::Space;
use crate::threads::ctx::{ThreadCtx, WINDOW_MAX};
use crate::way_in::charged::{self, Brought, Charge};
use crate::way_in::early;
use crate::way_in::swapin::{In, Want};
use crate::way_in::unreadable::{self, Asker};
use crate::way_in::whole;
use crate::way_out::{group_reclaim, reclaim};
use core::sync::atomic::Ordering::Relaxed;

/// The outcome of pinning.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PinResult {
    /// The range is resident and stays so until the call ends.
    Ok,
    /// The range is more than one call may pin. Use it in pieces.
    TooLarge,
    /// A page's content cannot be read.
    Unreadable,
}
/// All calls together may pin a fourth of what the process may expect of the budget. [`PIN_PAGES_MIN`] is allowed to each call
/// regardless.
const PINNED_PART: usize = 4;

impl Space {
    /// Most bytes that a call which can be made in pieces may pin at a time.
    ///
    /// This leaves three quarters of what the process may expect of the budget unpinned. A call may wait in the kernel for any
    /// length of time, and a thread may wait for memory while it has some pinned.
    pub fn pin_piece_max(&self) -> usize {
        let most = self.pin_max();
        let pinned = in_use::pinned_by_calls(self);
        (self.budget.expected() / PINNED_PART).saturating_sub(pinned).clamp(PIN_PAGES_MIN, most / PAGE) * PAGE
    }

    /// True if calls have pinned more than their part. Then no call should pin more than [`PIN_PAGES_MIN`].
    pub fn calls_pin_too_much(&self) -> bool {
        in_use::pinned_by_calls(self) > (self.budget.expected() / PINNED_PART).max(PIN_PAGES_MIN)
    }

    /// Says where the thread's alternate signal stack is. This distinguishes calls made on it from the calls that a handler
    /// on it interrupted.
    pub fn set_alt_stack(&self, ctx: &ThreadCtx, start: u64, end: u64) {
        ctx.alt[0].store(start, Relaxed);
        ctx.alt[1].store(end, Relaxed);
    }

    /// Begins the pins of a call made with stack pointer `sp`.
    pub fn pin_begin(&self, ctx: &ThreadCtx, sp: u64) {
        ctx.pins.begin(sp, |old| ctx.same_stack(old, sp));
    }

    /// Ends the pins of the call that was begun last.
    pub fn pin_end(&self, ctx: &ThreadCtx) {
        ctx.pins.end();
    }

    /// Pins `[addr, addr + len)` for the call that was begun last, and brings it in. Leaves parts alone that are not managed.
    pub fn pin_add(&self, ctx: &ThreadCtx, addr: usize, len: usize) -> PinResult {
        if len == 0 || addr.checked_add(len).is_none_or(|end| end > crate::memory::table::ADDR_END) {
            return PinResult::Ok;
        }
        if len > self.pin_max() && managed_bytes(self, ctx, addr, len) > self.pin_max() {
            return PinResult::TooLarge;
        }
        if !ctx.pins.add(addr as u64, (addr + len) as u64, self.pin_max() as u64) {
            return PinResult::TooLarge;
        }
        if is_resident(self, addr, len) || self.bring_in(ctx, addr, len) {
            PinResult::Ok
        } else {
            PinResult::Unreadable
        }
    }

    /// Begins a call with one buffer, and pins it. Takes no lock.
    ///
    /// True in the common case: all of the buffer is resident or was never managed. False if nothing is pinned: take the slow
    /// way.
    #[inline]
    pub fn pin_fast(&self, ctx: &ThreadCtx, sp: u64, addr: usize, len: usize) -> bool {
        let Some(end) = addr.checked_add(len) else { return false };
        if len > self.pin_max() || end > crate::memory::table::ADDR_END {
            return false;
        }
        ctx.pins.begin(sp, |old| ctx.same_stack(old, sp));
        if ctx.pins.add(addr as u64, end as u64, u64::MAX) && is_resident(self, addr, len) {
            return true;
        }
        ctx.pins.end();
        false
    }

    /// True when Ebb may hold pages of the unit around `addr`.
    pub fn is_managed(&self, addr: usize) -> bool {
        self.table.may_be_managed(addr)
    }

    /// True when Ebb may hold pages of any unit of the range.
    pub fn is_any_managed(&self, addr: usize, len: usize) -> bool {
        self.table.is_any_managed(addr, addr.saturating_add(len).min(crate::memory::table::ADDR_END))
    }

    /// True when Ebb holds content of the page at `addr`. False for a page that was never touched, which reads as zero. The
    /// answer may change at any time.
    pub fn has_content(&self, addr: usize) -> bool {
        self.table.word(addr).is_some_and(|word| word.load().tag() != Tag::None)
    }
}

/// True if every page of the range is present and writable, or in a unit where nothing was ever managed. Marks present pages as
/// referenced.
pub(crate) fn is_resident(space: &Space, addr: usize, len: usize) -> bool {
    let mut at = addr & !(PAGE - 1);
    while at < addr + len {
        let Some(word) = space.table.word(at) else {
            at = space.table.leaf_end(at);
            continue;
        };
        let state = word.load();
        if state.is_open() {
            word.set_referenced(state, true);
        } else if space.table.may_be_managed(at) {
            return false;
        }
        at += PAGE;
    }
    true
}

/// Bytes of the range that are managed.
fn managed_bytes(space: &Space, ctx: &ThreadCtx, addr: usize, len: usize) -> usize {
    let inside = space.threads.enter(ctx);
    let mut bytes = 0;
    let mut at = addr;
    while let Some(r) = space.regions.first_in(&inside, at, addr + len) {
        bytes += r.end.min(addr + len) - r.start.max(at);
        at = r.end;
    }
    drop(inside);
    bytes
}

/// How far bringing in a range has come.
struct Place {
    at: usize,
    /// The end of the region around `at`, its group, and whether frames can be moved into it.
    region_end: usize,
    group: Index,
    is_plain: bool,
}

/// Where passing over pages has ended.
enum Passed {
    /// At a page that must come in, or at the end.
    All,
    /// The charge is used up.
    Charge,
    /// At a mapping that a call is about to replace.
    Hidden,
}

/// Passes over pages that are not managed or are present already.
///
/// Opens present pages that are protected: the kernel may be about to write to them, and would run into the protection.
fn pass_present(space: &Space, held: &Held, place: &mut Place, end: usize, charge: &mut Charge<'_>) -> Passed {
    while place.at < end {
        if place.at >= place.region_end {
            let Some(r) = space.regions.first_in_any(held, place.at, end) else {
                place.at = end;
                break;
            };
            if r.attr.is_hidden() {
                return Passed::Hidden;
            }
            *place =
                Place { at: place.at.max(r.start), region_end: r.end, group: r.group, is_plain: r.attr.is_plain() };
        }
        let Some(word) = space.table.word(place.at) else { break };
        let state = word.load();
        if state.is_protected() {
            let stop = place.region_end.min(end);
            let opened = clean::open_run(space, held, place.at, word, state, stop, charge.left());
            place.at += opened.pages * PAGE;
            charge.spend(sharing::use_charge(space, opened.broken, charge.left()));
            if charge.left() == 0 {
                return Passed::Charge;
            }
        } else if state.is_open() {
            place.at += PAGE;
        } else {
            break;
        }
    }
    Passed::All
}

impl Space {
    /// Brings in every managed page of the range. False if a page's content cannot be read.
    pub fn bring_in(&self, ctx: &ThreadCtx, addr: usize, len: usize) -> bool {
        let start = clock::cycles();
        let are_readable = self.bring_in_all(ctx, addr, len);
        self.stats.stalls.note(start, clock::cycles());
        are_readable
    }

    fn bring_in_all(&self, ctx: &ThreadCtx, addr: usize, len: usize) -> bool {
        let end = (addr + len).next_multiple_of(PAGE);
        let mut place = Place { at: addr & !(PAGE - 1), region_end: 0, group: Index::ROOT, is_plain: false };
        let (mut force, mut no_move, mut failed_tries) = (false, usize::MAX, 0);
        let mut early = early::Reads::default();
        while place.at < end {
            let is_alone = early.is_late();
            let pages = if is_alone { 1 } else { (end - place.at) / PAGE };
            let seen = self.table.word(place.at).map(|word| word.load()).filter(|_| place.at != no_move && !is_alone);
            if let Some(came) = seen.and_then(|state| whole::bring(self, ctx, place.at, state.tag(), true)) {
                let _ = charged::slow_down(self, ctx, came.group, UNIT_PAGES);
                stats::add(&self.stats.syscall_in_pages, UNIT_PAGES as u64);
                place.at = end.min(self.table.unit_start(place.at) + UNIT_BYTES);
                continue;
            }
            let may_move = seen.is_some_and(|state| stock::may_move_in(self, place.at, state, pages));
            let by_move = may_move && seen.is_some_and(|state| stock::has_frames_for(self, state));
            let want = if by_move { 0 } else { pages.min(WINDOW_MAX) };
            if !charged::charge_ahead(self, ctx, want) {
                reclaim::direct_reclaim(self, ctx, want, false);
                continue;
            }
            let ended = self.regions.ended_hidings();
            if pages == 1 {
                early.read(self, ctx, place.at);
            }
            let inside = self.threads.enter(ctx);
            let mut charge = Charge::take(self, ctx, &inside);
            // The regions may have changed since the last round.
            place.region_end = 0;
            match pass_present(self, &inside, &mut place, end, &mut charge) {
                Passed::All => {}
                Passed::Charge => continue,
                Passed::Hidden => {
                    drop(charge);
                    drop(inside);
                    self.regions.wait_for_hiding(ended);
                    continue;
                }
            }
            if place.at >= end {
                break;
            }
            let Some(word) = self.table.word(place.at) else { break };
            let state = word.load();
            let Place { at, group, is_plain, .. } = place;
            let window = if by_move { pages.min(RUN_MAX) } else { charge.left() };
            let end = place.region_end.min(end);
            let asked = Want { window, used: window, end, write: true, ahead: false, group, force, by_move };
            let brought = match by_move && !is_plain {
                true => Brought::In(In::NotByMove),
                false => charged::bring_charged(self, &inside, ctx, at, word, state, asked),
            };
            if let Brought::In(In::Mapped(n)) = brought {
                charge.spend(n);
            }
            drop(charge);
            drop(inside);
            match brought {
                Brought::Over(target) => force = !group_reclaim::try_reclaim_group(self, ctx, target, 1),
                Brought::In(In::Mapped(n)) => {
                    if may_move && is_plain {
                        stock::note_demand(self, n, state);
                    }
                    let _ = charged::slow_down(self, ctx, group, n);
                    stats::add(&self.stats.syscall_in_pages, n as u64);
                    place.at += n * PAGE;
                }
                Brought::In(In::Retry) => waiting("page", || word.wait_while_busy()),
                Brought::In(In::Unreadable(why)) if early.try_again(self, why) => {}
                Brought::In(In::Unreadable(why)) if unreadable::may_pass(why, &mut failed_tries) => {}
                Brought::In(In::Unreadable(why)) => {
                    unreadable::report(self, ctx, at, early.reason(why), Asker::Call);
                    return false;
                }
                Brought::In(In::NotByMove) => no_move = at,
                Brought::In(In::NotRegistered) => place.at += PAGE,
                Brought::In(In::NoMemory) => reclaim::relieve_kernel(self, ctx),
            }
        }
        self.background.kick_if(self, reclaim::has_background_work(self));
        books::note_books_used(self, ctx);
        true
    }

    /// Brings in what is managed up to `most` bytes before and after `addr`, as far as it is one region with that.
    pub fn bring_in_around(&self, ctx: &ThreadCtx, addr: usize, most: usize) {
        let inside = self.threads.enter(ctx);
        let region = self.regions.find(&inside, addr);
        let range = region.map(|r| r.start.max(addr.saturating_sub(most))..r.end.min(addr.saturating_add(most)));
        drop(inside);
        if let Some(range) = range {
            let _ = self.bring_in(ctx, range.start, range.len());
        }
    }

    /// Brings the range in for good: it is never evicted until it is unmapped.
    pub fn exclude(&self, ctx: &ThreadCtx, addr: usize, len: usize) {
        let _ = keep_in(self, ctx, addr, len, State::with_pinned, |_| ());
        ctx.pins.end();
    }
}

/// Brings the range in, marks its present pages by `kept`, and calls `then` before the gate opens again.
///
/// None if content cannot be read. The range stays pinned until the caller ends the pin.
pub(crate) fn keep_in<R>(
    space: &Space,
    ctx: &ThreadCtx,
    addr: usize,
    len: usize,
    kept: impl Fn(State) -> State,
    then: impl FnOnce(&Exclusive<'_>) -> R,
) -> Option<R> {
    let start = addr & !(PAGE - 1);
    let end = (addr + len).next_multiple_of(PAGE);
    ctx.pins.begin(0, |_| false);
    let is_in = ctx.pins.add(start as u64, end as u64, u64::MAX) && space.bring_in(ctx, start, end - start);
    let mark = |exclusive: &Exclusive<'_>| {
        space.table.for_each_content(start, end, |_, word| {
            let state = word.load();
            if state.tag() == Tag::Present {
                word.set_exclusive(exclusive, kept(State::PRESENT.pinned_as(state)));
            }
        });
        then(exclusive)
    };
    is_in.then(|| space.exclusive(mark))
}
