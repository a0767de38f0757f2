//! Asks other processes for memory when the tree runs short.
//!
//! `tree::ages` says which process to ask. The background thread of that process gives the memory.

use crate::base::uapi;
use crate::space::Space;
use crate::threads::ctx::ThreadCtx;
use crate::tree::ages::{self, OfShared};
use crate::tree::{now_ms, said};
use crate::way_out::publish;
use core::sync::atomic::Ordering;

/// Fewest pages to ask another process for.
const ASK_PAGES_MIN: u64 = 64;
/// Another process's pages count as colder than this one's if they are this many times as old, plus this time. A process that
/// waits for a processor, or for its own pages, is not idle.
const COLDER_TIMES: u64 = 4;
const COLDER_MS: u64 = 250;

/// Asks another process for memory. False if this process should reclaim its own instead. Outside the gate.
///
/// It asks the process whose memory has been cold for longest, if that is much longer than for this process. Otherwise it
/// asks a process that can spare memory, if this one keeps refaulting ([`ask_spendthrift`]), and last the one that shares
/// most.
pub(crate) fn ask_colder(space: &Space, ctx: &ThreadCtx) -> bool {
    publish::publish_ages(space, ctx);
    let own_ms = space.tree().member().coldest_ms(now_ms()).unwrap_or(0);
    let is_short = || space.tree().page().is_short(space.tree().id().index, now_ms());
    ask_older(space, COLDER_TIMES * own_ms + COLDER_MS) || ask_spendthrift(space) || is_short() && ask_sharer(space)
}

/// Asks the process that has most in common with others for some of that memory, see [`OfShared::IfIdle`].
///
/// That process gives some only if its program is idle, and all but one of the programs that share with it are idle too.
/// No age says that shared memory is cold: it is used without a fault. And it is freed only when all its holders give it up.
fn ask_sharer(space: &Space) -> bool {
    let (page, own, now) = (space.tree().page(), space.tree().id().index, now_ms());
    let Some(index) = page.largest_sharer(own, space.budget.grown_pages(), now) else { return false };
    ask(space, index, said(&page.member(index).shared) / ages::ASK_PART, OfShared::IfIdle, now)
}

/// Asks a process that may spare pages, while this process keeps refaulting. False if this process should reclaim its own.
fn ask_spendthrift(space: &Space) -> bool {
    let (page, now) = (space.tree().page(), now_ms());
    let found = page.spendthrift(space.tree().id().index, space.budget.grown_pages(), space.family.shares_much(), now);
    // The spare process may have been asked already. Then it gives its pages to whoever asked, and this process reclaims its
    // own. There are two exceptions. A process that shares much cannot do without what it has for itself. And if the spare
    // process owes some, this one waits: if both evicted, the difference between them would stay.
    found.is_some_and(|spare| {
        let is_asked = ask(space, spare.index, spare.pages, OfShared::Keep, now);
        if is_asked && spare.owes {
            space.tree().member().owes_like(page.member(spare.index), now);
        }
        is_asked || spare.owes || space.family.shares_much()
    })
}

/// Asks a member for some of its pages. False if it has been asked already.
fn ask(space: &Space, index: u32, pages: u64, shared: OfShared, now: u64) -> bool {
    let member = space.tree().page().member(index);
    let is_free = member.ask_pages.load(Ordering::SeqCst) <= 0;
    if is_free {
        member.ask(pages.clamp(ASK_PAGES_MIN, 4 * space.sweep_max() as u64) as i64, shared, now);
        uapi::futex_wake_shared(&member.asked);
    }
    is_free
}

/// Asks the process whose memory has been cold for longest, if that is at least `than_ms`. False if there is none.
pub(crate) fn ask_older(space: &Space, than_ms: u64) -> bool {
    let (page, own, now) = (space.tree().page(), space.tree().id().index, now_ms());
    let coldest = page.coldest(Some(own), space.budget.grown_pages(), now);
    let Some((index, _)) = coldest.filter(|(_, age_ms)| *age_ms >= than_ms) else { return false };
    let _ = ask(space, index, said(&page.member(index).charged) / ages::ASK_PART, OfShared::Keep, now);
    true
}

/// Asks for memory when, as far as is known, no process has any to give, see `Page::last_resorts`. `is_long` after a long time.
pub(crate) fn ask_largest(space: &Space, is_long: bool) {
    let now = now_ms();
    let page = space.tree().page();
    for (index, pages, shared) in page.last_resorts(space.tree().id().index, space.budget.grown_pages(), is_long, now) {
        ask(space, index, pages / ages::ASK_PART, shared, now);
    }
}

/// True if another process waits for pages of this one.
pub(crate) fn is_asked_for_pages(space: &Space) -> bool {
    space.tree().member().ask_pages.load(Ordering::Relaxed) > 0
}
