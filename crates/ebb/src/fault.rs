//! A fault, in the thread that took it; and bringing in ranges for system calls.

use crate::clean::OPEN_MAX;
use crate::clock;
use crate::ctx::{ThreadCtx, WINDOW_MAX};
use crate::groups::{Brought, Index};
use crate::lockstat::waiting;
use crate::page::{State, Tag};
use crate::readahead::Limits;
use crate::space::Space;
use crate::stats;
use crate::stock::{RUN_MAX, RUN_MIN};
use crate::swapin::{In, Want};
use crate::table::{PAGE, UNIT_PAGES};
use crate::text::Text;
use crate::uapi;
use core::sync::atomic::Ordering::Relaxed;

/// What a fault came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// The page is there; the instruction can go on.
    Resolved,
    /// Not a page of Ebb's: the fault is the program's own.
    NotManaged,
    /// The page's content cannot be had.
    Unreadable,
}

/// What pinning came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PinResult {
    /// Resident, and stays so until the call ends.
    Ok,
    /// More than one call may pin: use it in pieces.
    TooLarge,
    /// A page's content cannot be had.
    Unreadable,
}

/// Pages a walk may leave out and still be one.
const READAHEAD_GAP: u32 = 3;
/// Faults on one present page before it counts as lost.
const SPURIOUS_MAX: u32 = 64;
/// Pages that one call may pin whatever others have pinned.
pub const PIN_PAGES_MIN: usize = 16;
/// The part of what the process may expect of the budget that calls may pin together, but for that.
const PINNED_PART: usize = 4;

impl Space {
    /// Answers a fault of the calling thread at `addr`. Every signal must be blocked.
    pub fn fault(&self, ctx: &ThreadCtx, addr: usize, write: bool) -> Fault {
        let start = clock::cycles();
        let page = addr & !(PAGE - 1);
        let (fault, reclaim) = self.serve(ctx, page, write);
        let total = clock::cycles().saturating_sub(start);
        stats::add(&self.stats.fault_ns, clock::ns(total.saturating_sub(reclaim)));
        if reclaim > 0 {
            stats::add(&self.stats.direct_reclaim_ns, clock::ns(reclaim));
        }
        fault
    }

    /// How many pages a fault at `page` might bring in; 0 is one, by a fault that says nothing of the next. Read-ahead is judged per
    /// unit, because a program walks in
    /// several places by turns: a fault a little behind where the last one in the unit ended doubles the window, any
    /// other halves it, and that of a long walk at once to half a piece. The idea is the kernel's read-ahead by address
    /// (`swap_vma_readahead`). Two faults in a row on swapped pages are no walk yet: an object may lie on both.
    fn window(&self, ctx: &ThreadCtx, page: usize, is_swapped: bool) -> u32 {
        let Some(unit) = self.table.unit(page) else { return 0 };
        let most = self.window_max() as u32;
        let (at, next, window) = (page_of(page), unit.next.load(Relaxed), unit.window.load(Relaxed));
        if next > 0 && (next..next + READAHEAD_GAP).contains(&at) {
            let least = if is_swapped && window == 0 { 1 } else { 2 };
            return (window * 2).clamp(least, most);
        }
        if at == 0
            && let Some(before) = self.table.unit(page.wrapping_sub(PAGE))
            && before.next.load(Relaxed) as usize == UNIT_PAGES
        {
            // The walk goes on from the unit before.
            return before.window.load(Relaxed).clamp(1, most);
        }
        if self.is_walked_to(ctx, page) {
            return most;
        }
        // One is what the first step of a walk makes of none.
        let half = (window / 2).min(WINDOW_MAX as u32 / 2);
        if half > 1 { half } else { 0 }
    }

    /// How many pages around `page` a first touch might bring in, a power of two, when it is no step of a walk: an eighth of the
    /// number of such touches in the unit, while there is plenty of room. What is used at random all over will be used as a whole,
    /// and a fault costs as much as seven pages of zeros. What is used here and there costs more memory for it: of a unit one and a half
    /// times as much with 32 pages in use, and three times with 64. A page of zeros that nobody used is evicted to nothing but
    /// a slot.
    fn window_around(&self, page: usize) -> usize {
        /// Touches that are worth a page more.
        const TOUCHES: u32 = 8;
        let Some(unit) = self.table.unit(page) else { return 1 };
        // Threads may lose one of the other's. What was discarded since counts no more.
        let touches = unit.touches.load(Relaxed).min(unit.content.load(Relaxed)) + 1;
        unit.touches.store(touches, Relaxed);
        let window = (touches / TOUCHES).clamp(1, WINDOW_MAX as u32);
        if window > 1 && self.group.has_plenty() { 1 << window.ilog2() } else { 1 }
    }

    /// The block of `window` pages that `page` is in, from the first of the pages right before it, at or after `start`, that
    /// nobody has touched either; with the pages from there to the block's end.
    fn around(&self, page: usize, window: usize, start: usize) -> (usize, usize) {
        let block = page & !(window * PAGE - 1);
        let is_untouched = |at: usize| self.table.word(at).is_some_and(|word| word.load() == State::NONE);
        let mut at = page;
        while at > block.max(start) && is_untouched(at - PAGE) {
            at -= PAGE;
        }
        (at, window - (at - block) / PAGE)
    }

    fn note_window(&self, page: usize, n: usize, window: u32) {
        if let Some(unit) = self.table.unit(page) {
            unit.next.store(page_of(page) + n as u32, Relaxed);
            unit.window.store(window, Relaxed);
            unit.touched.store(clock::stamp(), Relaxed);
        }
    }

    /// The fault at `page`; with it the cycles spent in direct reclaim.
    fn serve(&self, ctx: &ThreadCtx, page: usize, write: bool) -> (Fault, u64) {
        let tag = self.table.word(page).map_or(Tag::None, |word| word.load().tag());
        let next_window = self.window(ctx, page, tag == Tag::Swapped);
        let mut around = if tag == Tag::None && next_window == 0 { self.window_around(page) } else { 1 };
        let (mut reclaim, mut tries_move) = (0, true);
        loop {
            let window = next_window.max(around as u32);
            let state = self.table.word(page).map(|word| word.load());
            let may_move = tries_move && state.is_some_and(|state| self.may_move_in(page, state, window as usize));
            let by_move = may_move && state.is_some_and(|state| self.has_frames_for(state));
            // A page that is only clean needs no memory to be written; one that is shared needs a copy.
            let want = match state.filter(|state| write && state.is_protected()) {
                Some(state) => state.is_shared() as usize * OPEN_MAX,
                None if by_move => 0,
                None => (window as usize).min(WINDOW_MAX),
            };
            if !self.charge_ahead(ctx, want) {
                around = 1;
                let t = clock::cycles();
                self.direct_reclaim(ctx, want, may_move);
                reclaim += clock::cycles().saturating_sub(t);
                continue;
            }
            self.gate.enter(&ctx.gate);
            ctx.in_flight.store(0, Relaxed);
            let Some(region) = self.regions.find(page) else {
                self.group.uncharge(want);
                self.gate.leave(&ctx.gate);
                return (Fault::NotManaged, reclaim);
            };
            let Some(word) = self.table.word(page) else {
                self.group.uncharge(want);
                self.gate.leave(&ctx.gate);
                return (Fault::NotManaged, reclaim);
            };
            let state = word.load();
            if write && state.is_protected() {
                let used = self.open_for_write(page, word, state, region.end, want);
                self.group.uncharge(want - used);
                self.gate.leave(&ctx.gate);
                self.background.kick_if(self, self.has_background_work());
                self.note_books_used(ctx);
                return (Fault::Resolved, reclaim);
            }
            if want == 0 && !by_move {
                // It is clean no more.
                self.gate.leave(&ctx.gate);
                continue;
            }
            let (region_end, group, is_plain) = (region.end, region.group, region.attr.is_plain());
            let mut asked = Want { window: want, used: 0, end: region.end, write, ahead: false, group, by_move };
            let (mut from, mut from_word) = (page, word);
            if around > next_window as usize && !by_move {
                asked.window = next_window.max(1) as usize;
                // There may be plenty of room, but not in a group.
                if state == State::NONE && group.is_root() {
                    (from, asked.window) = self.around(page, around, region.start);
                    from_word = self.table.word(from).unwrap_or(word);
                }
            }
            let result = match by_move {
                true if !is_plain => Brought::In(In::NotByMove),
                true => {
                    let asked = Want { window: (window as usize).min(RUN_MAX), ..asked };
                    self.bring_charged(ctx, page, word, state, asked, false)
                }
                false => self.bring_charged(ctx, from, from_word, state, asked, false),
            };
            let mapped = if let Brought::In(In::Mapped(n)) = result { n } else { 0 };
            let used = if by_move { 0 } else { mapped };
            if used < want {
                self.group.uncharge(want - used);
            }
            self.gate.leave(&ctx.gate);
            let result = match result {
                Brought::In(result) => result,
                Brought::Over(target) => {
                    let t = clock::cycles();
                    self.reclaim_group(ctx, target);
                    reclaim += clock::cycles().saturating_sub(t);
                    continue;
                }
            };
            match result {
                In::Mapped(0) => return (self.spurious(ctx, page, write), reclaim),
                In::Mapped(n) => {
                    self.group.count_fault();
                    if may_move && is_plain {
                        self.note_demand(n, state);
                    }
                    match state.tag() {
                        Tag::None => stats::add(&self.stats.faults_first_touch, 1),
                        Tag::Staged => stats::add(&self.stats.faults_soft, 1),
                        _ => {}
                    }
                    let piece = if by_move { RUN_MIN } else { want };
                    let end = if n < piece || state.tag() == Tag::None {
                        from + n * PAGE
                    } else {
                        self.bring_rest(ctx, (page, n), window as usize, Limits { end: region_end, group, write })
                    };
                    self.note_window(from, (end - from) / PAGE, next_window);
                    self.background.kick_if(self, self.has_background_work());
                    self.note_books_used(ctx);
                    reclaim += self.slow_down(ctx, group, n);
                    return (Fault::Resolved, reclaim);
                }
                In::Retry => {
                    let is_walk = next_window as usize == self.window_max();
                    if !is_walk || !self.go_ahead(ctx, page, region_end, write) {
                        waiting("page", || word.wait_while_busy());
                    }
                }
                In::NotByMove => tries_move = false,
                In::Unreadable => return (Fault::Unreadable, reclaim),
                In::NotRegistered => return (Fault::NotManaged, reclaim),
                In::NoMemory => {
                    // The kernel's limit is tighter than the budget: give memory back and try again.
                    around = 1;
                    let t = clock::cycles();
                    self.relieve_kernel(ctx);
                    reclaim += clock::cycles().saturating_sub(t);
                }
            }
        }
    }

    /// The page is present: somebody else was faster, or it was write-protected when a sweep gave it back.
    fn spurious(&self, ctx: &ThreadCtx, page: usize, write: bool) -> Fault {
        stats::add(&self.stats.faults_spurious, 1);
        let same = ctx.spurious_addr.swap(page as u64, Relaxed) == page as u64;
        let count = if same { ctx.spurious_count.fetch_add(1, Relaxed) + 1 } else { 0 };
        if !same {
            ctx.spurious_count.store(0, Relaxed);
        }
        if count < SPURIOUS_MAX {
            return Fault::Resolved;
        }
        ctx.spurious_count.store(0, Relaxed);
        self.gate.enter(&ctx.gate);
        let fault = self.look_closer(page, write);
        self.gate.leave(&ctx.gate);
        fault
    }

    /// Many faults on a present page: a busy lock in it, a leftover protection, or a page that the kernel lost.
    fn look_closer(&self, page: usize, write: bool) -> Fault {
        let Some(word) = self.table.word(page) else { return Fault::NotManaged };
        let state = word.load();
        // Held busy, so that no sweep relies on the protection while it is lifted.
        if state.tag() != Tag::Present || !word.try_claim(state) {
            return Fault::Resolved;
        }
        if write && !state.is_protected() {
            let _ = self.uffd().write_protect(page, PAGE, false);
        }
        // Fails where there is a page, even one in the kernel's own swap.
        let is_missing = self.uffd().copy(page, self.zeros, PAGE).is_ok();
        if is_missing {
            // Rather no page than zeros in place of what was there.
            let _ = uapi::madvise(page, PAGE, linux_raw_sys::general::MADV_DONTNEED);
        }
        word.finish(state);
        if !is_missing {
            return Fault::Resolved;
        }
        self.describe(page, state);
        self.inconsistent(b"a page that should be mapped is missing: this is a bug in Ebb; please report it");
        Fault::Unreadable
    }

    /// Tells what is known of a page and its neighbours, for the report that a bug asks for. Inside the gate.
    #[cold]
    fn describe(&self, page: usize, state: State) {
        let mut line = Text::default();
        line.str(b"ebb: page ").hex(page).str(b" was ").hex(state.to_raw() as usize);
        if let Some(r) = self.regions.find(page) {
            line.str(b" in ").hex(r.start).str(b"-").hex(r.end).str(b" attributes ").number(r.attr.bits() as usize);
        }
        line.str(b" forked ").number(self.background.forked() as usize).str(b"; around it, state and mapped:");
        for i in 0..9 {
            let at = page.wrapping_sub(4 * PAGE) + i * PAGE;
            let raw = self.table.word(at).map_or(0, |word| word.load().to_raw());
            line.str(b" ").hex(raw as usize & 0xff).str(b":").number(uapi::is_mapped(at) as usize);
        }
        line.str(b"\n");
        uapi::stderr::say(line.bytes());
    }

    /// Most bytes that one system call may pin.
    pub fn pin_max(&self) -> usize {
        (self.group.limit() / 16).clamp(PIN_PAGES_MIN, 2048) * PAGE
    }

    /// The same of a call that can be made in pieces: no more than leaves three quarters of what the process may expect to what
    /// no call is at. Calls wait in the kernel for as long as they like, and threads for memory with a part of it pinned.
    pub fn pin_piece_max(&self) -> usize {
        let most = self.pin_max();
        let pinned = self.pinned_by_calls();
        (self.group.share() / PINNED_PART).saturating_sub(pinned).clamp(PIN_PAGES_MIN, most / PAGE) * PAGE
    }

    /// True when calls have pinned more than their part, so that none should pin more than [`PIN_PAGES_MIN`].
    pub fn calls_pin_too_much(&self) -> bool {
        self.pinned_by_calls() > (self.group.share() / PINNED_PART).max(PIN_PAGES_MIN)
    }

    /// Pages that calls in flight have pinned, or are about to.
    pub(crate) fn pinned_by_calls(&self) -> usize {
        let range_max = (self.pin_max() / PAGE) as u64;
        self.contexts.all().map(|ctx| ctx.pins.pages(range_max) as usize).sum()
    }

    /// Says where the thread's alternate signal stack is, so that calls on it are told from those it interrupted.
    pub fn set_alt_stack(&self, ctx: &ThreadCtx, start: u64, end: u64) {
        ctx.alt[0].store(start, Relaxed);
        ctx.alt[1].store(end, Relaxed);
    }

    /// Charges `n` pages for work that comes next; see [`ThreadCtx::in_flight`].
    pub(crate) fn charge_ahead(&self, ctx: &ThreadCtx, n: usize) -> bool {
        // Frames that are kept for runs go before anything else.
        let mut charged = !self.group.is_stock_too_large() && self.group.try_charge(n);
        while !charged && self.give_up_stock(ctx) {
            charged = !self.group.is_stock_too_large() && self.group.try_charge(n);
        }
        if charged {
            ctx.in_flight.store(n as u32, Relaxed);
        }
        charged
    }

    /// Begins the pins of a call made with stack pointer `sp`.
    pub fn pin_begin(&self, ctx: &ThreadCtx, sp: u64) {
        ctx.pins.begin(sp, |old| ctx.same_stack(old, sp));
    }

    /// Ends the pins of the call begun last.
    pub fn pin_end(&self, ctx: &ThreadCtx) {
        ctx.pins.end();
    }

    /// Pins `[addr, addr + len)` for the call begun last and brings it in. Parts that are not managed are left alone.
    pub fn pin_add(&self, ctx: &ThreadCtx, addr: usize, len: usize) -> PinResult {
        if len == 0 || addr.checked_add(len).is_none_or(|end| end > crate::table::ADDR_END) {
            return PinResult::Ok;
        }
        if len > self.pin_max() && self.managed_bytes(ctx, addr, len) > self.pin_max() {
            return PinResult::TooLarge;
        }
        if !ctx.pins.add(addr as u64, (addr + len) as u64, self.pin_max() as u64) {
            return PinResult::TooLarge;
        }
        if self.is_resident(addr, len) || self.bring_in(ctx, addr, len) { PinResult::Ok } else { PinResult::Unreadable }
    }

    /// Begins a call with one buffer. True when all of it is resident or was never managed, which is the common case
    /// and takes no lock; then it is pinned. False: nothing is pinned, take the slow way.
    #[inline]
    pub fn pin_fast(&self, ctx: &ThreadCtx, sp: u64, addr: usize, len: usize) -> bool {
        let Some(end) = addr.checked_add(len) else { return false };
        if len > self.pin_max() || end > crate::table::ADDR_END {
            return false;
        }
        ctx.pins.begin(sp, |old| ctx.same_stack(old, sp));
        if ctx.pins.add(addr as u64, end as u64, u64::MAX) && self.is_resident(addr, len) {
            return true;
        }
        ctx.pins.end();
        false
    }

    /// True when Ebb may hold pages of the unit around `addr`.
    pub fn is_managed(&self, addr: usize) -> bool {
        self.table.may_be_managed(addr)
    }

    /// The same for any unit of the range.
    pub fn is_any_managed(&self, addr: usize, len: usize) -> bool {
        self.table.is_any_managed(addr, addr.saturating_add(len).min(crate::table::ADDR_END))
    }

    /// True when Ebb holds the page at `addr`. One that the program never touched reads as zero, and is none. May change any time.
    pub fn has_content(&self, addr: usize) -> bool {
        self.table.word(addr).is_some_and(|word| word.load().tag() != Tag::None)
    }

    /// Every page of the range is present and can be written, or in a unit where nothing was ever managed.
    pub(crate) fn is_resident(&self, addr: usize, len: usize) -> bool {
        let mut at = addr & !(PAGE - 1);
        while at < addr + len {
            let Some(word) = self.table.word(at) else {
                at = self.table.leaf_end(at);
                continue;
            };
            let state = word.load();
            if state.is_open() {
                word.set_referenced(state, true);
            } else if self.table.may_be_managed(at) {
                return false;
            }
            at += PAGE;
        }
        true
    }

    /// Bytes of the range that are managed.
    fn managed_bytes(&self, ctx: &ThreadCtx, addr: usize, len: usize) -> usize {
        self.gate.enter(&ctx.gate);
        let mut bytes = 0;
        let mut at = addr;
        while let Some(r) = self.regions.first_in(at, addr + len) {
            bytes += r.end.min(addr + len) - r.start.max(at);
            at = r.end;
        }
        self.gate.leave(&ctx.gate);
        bytes
    }

    /// Brings in every managed page of the range. False when a page's content cannot be had.
    pub fn bring_in(&self, ctx: &ThreadCtx, addr: usize, len: usize) -> bool {
        let end = (addr + len).next_multiple_of(PAGE);
        let mut at = addr & !(PAGE - 1);
        let (mut force, mut no_move) = (false, usize::MAX);
        while at < end {
            let pages = (end - at) / PAGE;
            let seen = self.table.word(at).map(|word| word.load()).filter(|_| at != no_move);
            let may_move = seen.is_some_and(|state| self.may_move_in(at, state, pages));
            let by_move = may_move && seen.is_some_and(|state| self.has_frames_for(state));
            let want = if by_move { 0 } else { pages.min(WINDOW_MAX) };
            if !self.charge_ahead(ctx, want) {
                self.direct_reclaim(ctx, want, false);
                continue;
            }
            let mut charge = want;
            self.gate.enter(&ctx.gate);
            ctx.in_flight.store(0, Relaxed);
            // Jump over what is not managed or present already.
            let mut region_end = 0;
            let (mut group, mut is_plain, mut again) = (Index::ROOT, false, false);
            while at < end {
                if at >= region_end {
                    match self.regions.first_in(at, end) {
                        Some(r) => {
                            at = at.max(r.start);
                            (region_end, group, is_plain) = (r.end, r.group, r.attr.is_plain());
                        }
                        None => {
                            at = end;
                            break;
                        }
                    }
                }
                let Some(word) = self.table.word(at) else { break };
                let state = word.load();
                if state.is_protected() {
                    // The kernel may be about to write to it, and would meet the protection.
                    let opened = self.open_run(at, word, state, region_end.min(end), charge);
                    at += opened.pages * PAGE;
                    charge -= self.use_charge(opened.broken, charge);
                    if charge == 0 {
                        again = true;
                        break;
                    }
                } else if state.is_open() {
                    at += PAGE;
                } else {
                    break;
                }
            }
            if again {
                self.gate.leave(&ctx.gate);
                continue;
            }
            let word = if at < end { self.table.word(at) } else { None };
            let Some(word) = word else {
                self.group.uncharge(charge);
                self.gate.leave(&ctx.gate);
                break;
            };
            let state = word.load();
            let window = if by_move { pages.min(RUN_MAX) } else { charge };
            let asked =
                Want { window, used: window, end: region_end.min(end), write: true, ahead: false, group, by_move };
            let result = match by_move && !is_plain {
                true => Brought::In(In::NotByMove),
                false => self.bring_charged(ctx, at, word, state, asked, force),
            };
            let used = if let Brought::In(In::Mapped(n)) = result { n } else { 0 };
            self.group.uncharge(charge - used.min(charge));
            self.gate.leave(&ctx.gate);
            let result = match result {
                Brought::In(result) => result,
                Brought::Over(target) => {
                    force = !self.try_reclaim_group(ctx, target, 1);
                    continue;
                }
            };
            match result {
                In::Mapped(n) => {
                    if may_move && is_plain {
                        self.note_demand(n, state);
                    }
                    let _ = self.slow_down(ctx, group, n);
                    stats::add(&self.stats.syscall_in_pages, n as u64);
                    at += n * PAGE;
                }
                In::Retry => waiting("page", || word.wait_while_busy()),
                In::Unreadable => return false,
                In::NotByMove => no_move = at,
                In::NotRegistered => at += PAGE,
                In::NoMemory => self.relieve_kernel(ctx),
            }
        }
        self.background.kick_if(self, self.has_background_work());
        self.note_books_used(ctx);
        true
    }

    /// Brings the range in for good: it is never evicted again, until it is unmapped.
    pub fn exclude(&self, ctx: &ThreadCtx, addr: usize, len: usize) {
        let _ = self.keep_in(ctx, addr, len, State::with_pinned, || ());
        ctx.pins.end();
    }

    /// Brings the range in, marks what is there by `kept`, and calls `then` before anybody else looks. None where content cannot
    /// be had. The range stays pinned until the caller ends that.
    pub(crate) fn keep_in<R>(
        &self,
        ctx: &ThreadCtx,
        addr: usize,
        len: usize,
        kept: impl Fn(State) -> State,
        then: impl FnOnce() -> R,
    ) -> Option<R> {
        let start = addr & !(PAGE - 1);
        let end = (addr + len).next_multiple_of(PAGE);
        ctx.pins.begin(0, |_| false);
        let is_in = ctx.pins.add(start as u64, end as u64, u64::MAX) && self.bring_in(ctx, start, end - start);
        let mark = || {
            self.table.for_each_content(start, end, |_, word| {
                let state = word.load();
                if state.tag() == Tag::Present {
                    word.set_exclusive(kept(State::PRESENT.pinned_as(state)));
                }
            });
            then()
        };
        is_in.then(|| self.exclusive(mark))
    }
}

/// Number of the page in its unit.
fn page_of(addr: usize) -> u32 {
    (addr / PAGE % UNIT_PAGES) as u32
}
