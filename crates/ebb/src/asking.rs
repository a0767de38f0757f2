//! Who gives up memory when the tree runs short: asking others for some, and giving what others ask for.
//!
//! Whom to ask the tree knows (`tree::ages`). What is asked for is given by the background thread.

use crate::ctx::ThreadCtx;
use crate::idle::Done;
use crate::space::Space;
use crate::tree::ages::{self, OfShared};
use crate::tree::{now_ms, said};
use crate::uapi;
use core::sync::atomic::Ordering;

/// Pages that a process holds before it has a background thread, so much costs nothing but itself; less, where that is
/// more than this part of the budget.
const GROWN_PAGES: usize = 2048;
const GROWN_PART: usize = 16;
/// Pages that another process is asked for at least.
const ASK_PAGES_MIN: u64 = 64;
/// Another process's pages are colder than one's own when they are so many times as old, and so much more: one that
/// waits for a processor, or for its own pages, is no idle process.
const COLDER_TIMES: u64 = 4;
const COLDER_MS: u64 = 250;
/// Of more than so many others nobody gives what they share: each would store a copy.
const SHARERS_MAX: usize = 8;

impl Space {
    /// Gives up the pages that another process asked for, the coldest first. Outside the gate.
    pub(crate) fn give_up_pages(&self, ctx: &ThreadCtx) {
        let pages = self.tree().member().ask_pages.load(Ordering::SeqCst);
        if !self.group.hold_if_lost() || pages <= 0 {
            return;
        }
        let now = now_ms();
        let of_shared = self.tree().member().asked_of_shared(now);
        let gives_shared = self.may_give_shared(of_shared, now);
        if of_shared == OfShared::IfIdle && !gives_shared {
            // Who was idle does not know that it is the last one that has it.
            self.publish_sizes_outside(ctx);
            self.publish_ages(ctx);
            self.tree().member().take_ask();
            return self.keep_shared(now);
        }
        let pages = pages.min(self.group.charged() as i64);
        // What was used since the coldest pages were is passed over as long as there is something else.
        self.publish_ages(ctx);
        // Who has more than its even share gives what it uses, too: those that have less may need theirs as much.
        let owes = self.tree().member().owes() && self.group.charged() > self.even_share.load(Ordering::Relaxed);
        let young_ms = if owes { 0 } else { self.tree().member().coldest_ms(now).unwrap_or(0) / 2 };
        self.young_ms.store(young_ms, Ordering::Relaxed);
        let (mut given, mut idle_rounds) = (0, 0);
        let _closed = self.close_stock();
        // What the program takes meanwhile is its own affair: what counts is what was freed.
        while given < pages && idle_rounds < 4 && !self.is_asked() {
            self.tree().look();
            let before = self.group.charged();
            let worked = self.shrink_stock(ctx) || self.reclaim_step(ctx);
            if !worked && gives_shared {
                self.reclaim_shared_step(ctx);
            }
            self.group.give_back_unused();
            let freed = before.saturating_sub(self.group.charged());
            // What of the shared was staged, and is not stored, is more than before.
            idle_rounds = if worked || freed > 0 { 0 } else { idle_rounds + 1 };
            given += freed as i64;
        }
        self.young_ms.store(0, Ordering::Relaxed);
        self.group.give_back_unused();
        self.publish_sizes_outside(ctx);
        self.publish_ages(ctx);
        let pause_ms =
            self.tree().member().answer(given, now_ms(), self.background.declined_ms.load(Ordering::Relaxed));
        self.background.declined_ms.store(pause_ms, Ordering::Relaxed);
        if gives_shared && pause_ms == 0 {
            self.background.kept_ms.store(0, Ordering::Relaxed);
        } else if of_shared != OfShared::Keep && pause_ms > 0 {
            self.keep_shared(now_ms());
        }
    }

    /// Whether this process gives what it shares, when it is asked so. Every one of those that have it has to store it, and only
    /// when all but one have is it memory that the tree gets, from the last, whose own it is then. For the background thread.
    fn may_give_shared(&self, asked: OfShared, now: u64) -> bool {
        if asked == OfShared::Keep || !self.shares_much() {
            return false;
        }
        let member = self.tree().member();
        let done = Done::by_program(member.faults.load(Ordering::Relaxed));
        let is_idle = done.is_some_and(|done| self.background.idle.look(now, done));
        member.set_idle(is_idle, now);
        let others = self.tree().others(now);
        // Where all stays in RAM, more copies than two take more than they free.
        if !self.swap.has_file() && others.number > 1 {
            return false;
        }
        // Who asks may be the one that does something.
        asked == OfShared::Give || is_idle && others.busy <= 1 && others.number <= SHARERS_MAX
    }

    /// It keeps what it shares: who asked asks again later.
    fn keep_shared(&self, now: u64) {
        let last_ms = self.background.kept_ms.load(Ordering::Relaxed);
        self.background.kept_ms.store(self.tree().member().keep_shared(now, last_ms), Ordering::Relaxed);
    }

    /// Asks the process whose memory has been cold for longest, when that is much longer than this one's, for some of it; or
    /// one that does not need what it evicts, where this one does. False when this process should look at its own. Outside
    /// the gate.
    pub(crate) fn ask_colder(&self, ctx: &ThreadCtx) -> bool {
        self.publish_ages(ctx);
        let own_ms = self.tree().member().coldest_ms(now_ms()).unwrap_or(0);
        let is_short = || self.tree().page().is_short(self.tree().id().index, now_ms());
        self.ask_older(COLDER_TIMES * own_ms + COLDER_MS) || self.ask_spendthrift() || is_short() && self.ask_sharer()
    }

    /// Asks the process that has most in common with others for some of that, if neither its program does anything nor those of
    /// the others. No age says that such memory is cold: it is used without a fault, and freed when all give it up.
    fn ask_sharer(&self) -> bool {
        let (page, own, now) = (self.tree().page(), self.tree().id().index, now_ms());
        let Some(index) = page.largest_sharer(own, self.grown_pages(), now) else { return false };
        self.ask(index, said(&page.member(index).shared) / ages::ASK_PART, OfShared::IfIdle, now)
    }

    fn ask_spendthrift(&self) -> bool {
        let (page, now) = (self.tree().page(), now_ms());
        let found = page.spendthrift(self.tree().id().index, self.grown_pages(), self.shares_much(), now);
        // Where most is shared its own is what it cannot do without. Elsewhere, whom another process has asked already gives that
        // one some, and this one looks at its own.
        found.is_some_and(|spare| {
            let is_asked = self.ask(spare.index, spare.pages, OfShared::Keep, now);
            if is_asked && spare.owes {
                self.tree().member().owes_like(page.member(spare.index), now);
            }
            is_asked || spare.owes || self.shares_much()
        })
    }

    /// Pages from which on a process is asked for some.
    pub(crate) fn grown_pages(&self) -> u64 {
        GROWN_PAGES.min(self.group.limit() / GROWN_PART) as u64
    }

    /// Asks a member for some of its pages; false when somebody has.
    fn ask(&self, index: u32, pages: u64, shared: OfShared, now: u64) -> bool {
        let member = self.tree().page().member(index);
        let is_free = member.ask_pages.load(Ordering::SeqCst) <= 0;
        if is_free {
            member.ask(pages.clamp(ASK_PAGES_MIN, 4 * self.sweep_max() as u64) as i64, shared, now);
            uapi::futex_wake_shared(&member.asked);
        }
        is_free
    }

    /// Asks the process whose memory has been cold for longest, and longer than that. False when there is none.
    pub(crate) fn ask_older(&self, than_ms: u64) -> bool {
        let (page, own, now) = (self.tree().page(), self.tree().id().index, now_ms());
        let coldest = page.coldest(Some(own), self.grown_pages(), now);
        let Some((index, _)) = coldest.filter(|(_, age_ms)| *age_ms >= than_ms) else { return false };
        let _ = self.ask(index, said(&page.member(index).charged) / ages::ASK_PART, OfShared::Keep, now);
        true
    }

    /// Asks the largest process, whatever it said that it has: nobody has anything to give, as far as is known, and who waits for
    /// nothing looks at nothing. Then those that do nothing for what they share; and after a long time the largest for that,
    /// whatever it does.
    pub(crate) fn ask_largest(&self, is_long: bool) {
        let (page, own, now) = (self.tree().page(), Some(self.tree().id().index), now_ms());
        let ask = |index: u32, shared: OfShared| {
            self.ask(index, said(&page.member(index).charged) / ages::ASK_PART, shared, now);
        };
        if let Some(index) = page.largest(own, ages::WORTH_PAGES, now) {
            ask(index, OfShared::Keep);
        }
        self.ask_sharer();
        if is_long && let Some(index) = page.largest_to_give(own, ages::WORTH_PAGES, now) {
            ask(index, OfShared::Give);
        }
    }

    /// This process holds so much that others of the tree may ask for it.
    pub fn has_grown(&self) -> bool {
        self.group.charged() as u64 > self.grown_pages()
    }

    /// Another process waits for pages of this one.
    pub(crate) fn is_asked_for_pages(&self) -> bool {
        self.tree().member().ask_pages.load(Ordering::Relaxed) > 0
    }
}
