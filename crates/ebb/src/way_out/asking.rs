//! Who gives up memory when the tree runs short: asking others for some, and giving what others ask for.
//!
//! Whom to ask the tree knows (`tree::ages`). What is asked for is given by the background thread.

use crate::base::uapi;
use crate::space::Space;
use crate::threads::ctx::ThreadCtx;
use crate::tree::ages::{self, OfShared};
use crate::tree::{now_ms, said};
use crate::way_out::publish;
use core::sync::atomic::Ordering;

/// Pages that another process is asked for at least.
const ASK_PAGES_MIN: u64 = 64;
/// Another process's pages are colder than one's own when they are so many times as old, and so much more: one that
/// waits for a processor, or for its own pages, is no idle process.
const COLDER_TIMES: u64 = 4;
const COLDER_MS: u64 = 250;

/// Asks the process whose memory has been cold for longest, when that is much longer than this one's, for some of it; or
/// one that does not need what it evicts, where this one does. False when this process should look at its own. Outside
/// the gate.
pub(crate) fn ask_colder(space: &Space, ctx: &ThreadCtx) -> bool {
    publish::publish_ages(space, ctx);
    let own_ms = space.tree().member().coldest_ms(now_ms()).unwrap_or(0);
    let is_short = || space.tree().page().is_short(space.tree().id().index, now_ms());
    ask_older(space, COLDER_TIMES * own_ms + COLDER_MS) || ask_spendthrift(space) || is_short() && ask_sharer(space)
}

/// Asks the process that has most in common with others for some of that, if neither its program does anything nor those of
/// the others. No age says that such memory is cold: it is used without a fault, and freed when all give it up.
fn ask_sharer(space: &Space) -> bool {
    let (page, own, now) = (space.tree().page(), space.tree().id().index, now_ms());
    let Some(index) = page.largest_sharer(own, space.budget.grown_pages(), now) else { return false };
    ask(space, index, said(&page.member(index).shared) / ages::ASK_PART, OfShared::IfIdle, now)
}

fn ask_spendthrift(space: &Space) -> bool {
    let (page, now) = (space.tree().page(), now_ms());
    let found = page.spendthrift(space.tree().id().index, space.budget.grown_pages(), space.family.shares_much(), now);
    // Where most is shared its own is what it cannot do without. Elsewhere, whom another process has asked already gives that
    // one some, and this one looks at its own.
    found.is_some_and(|spare| {
        let is_asked = ask(space, spare.index, spare.pages, OfShared::Keep, now);
        if is_asked && spare.owes {
            space.tree().member().owes_like(page.member(spare.index), now);
        }
        is_asked || spare.owes || space.family.shares_much()
    })
}

/// Asks a member for some of its pages; false when somebody has.
fn ask(space: &Space, index: u32, pages: u64, shared: OfShared, now: u64) -> bool {
    let member = space.tree().page().member(index);
    let is_free = member.ask_pages.load(Ordering::SeqCst) <= 0;
    if is_free {
        member.ask(pages.clamp(ASK_PAGES_MIN, 4 * space.sweep_max() as u64) as i64, shared, now);
        uapi::futex_wake_shared(&member.asked);
    }
    is_free
}

/// Asks the process whose memory has been cold for longest, and longer than that. False when there is none.
pub(crate) fn ask_older(space: &Space, than_ms: u64) -> bool {
    let (page, own, now) = (space.tree().page(), space.tree().id().index, now_ms());
    let coldest = page.coldest(Some(own), space.budget.grown_pages(), now);
    let Some((index, _)) = coldest.filter(|(_, age_ms)| *age_ms >= than_ms) else { return false };
    let _ = ask(space, index, said(&page.member(index).charged) / ages::ASK_PART, OfShared::Keep, now);
    true
}

/// Asks the largest process, whatever it said that it has: nobody has anything to give, as far as is known, and who waits for
/// nothing looks at nothing. Then those that do nothing for what they share; and after a long time the largest for that,
/// whatever it does.
pub(crate) fn ask_largest(space: &Space, is_long: bool) {
    let (page, own, now) = (space.tree().page(), Some(space.tree().id().index), now_ms());
    let ask = |index: u32, shared: OfShared| {
        ask(space, index, said(&page.member(index).charged) / ages::ASK_PART, shared, now);
    };
    if let Some(index) = page.largest(own, ages::WORTH_PAGES, now) {
        ask(index, OfShared::Keep);
    }
    ask_sharer(space);
    if is_long && let Some(index) = page.largest_to_give(own, ages::WORTH_PAGES, now) {
        ask(index, OfShared::Give);
    }
}

/// Another process waits for pages of this one.
pub(crate) fn is_asked_for_pages(space: &Space) -> bool {
    space.tree().member().ask_pages.load(Ordering::Relaxed) > 0
}
