//! The last message of a process that can free no more memory.

use crate::base::text::Text;
use crate::base::uapi;
use crate::pages::in_use;
use crate::protocols::page::Tag;
use crate::space::Space;
use crate::threads::ctx::ThreadCtx;
use crate::tree::{now_ms, said};
use core::sync::atomic::Ordering::Relaxed;

/// Most other processes that the last message names.
const OTHERS_MAX: usize = 16;

/// Prints where the charge is, for the last message.
fn print_charge(space: &Space, ctx: &ThreadCtx) {
    let inside = space.threads.enter(ctx);
    let (mut present, mut pinned) = (0usize, 0usize);
    for region in space.regions.all(&inside) {
        space.table.for_each_content(region.start, region.end, |_, word| {
            let state = word.load();
            present += (state.tag() == Tag::Present) as usize;
            pinned += state.is_pinned() as usize;
        });
    }
    let mut line = Text::default();
    line.str(b"ebb: this process holds ").number(space.budget.charged());
    line.str(b" pages (whole tree ").number(space.tree().look().held.max(0) as usize);
    line.str(b", budget ").number(space.budget.limit()).str(b"): resident ").number(present);
    line.str(b" (pinned permanently ").number(pinned);
    line.str(b", pinned by calls ").number(in_use::pinned_by_calls(space));
    line.str(b", clean ").number(space.eviction.nr_clean());
    line.str(b"), staged ").number(space.places.staging.staged()).str(b", pool ").number(space.swap.pool_pages());
    line.str(b", metadata ")
        .number(space.budget.meta_pages())
        .str(b", units to sweep ")
        .number(space.eviction.units.len());
    line.str(b", devices ").number(space.swap.devices.own(&inside).count());
    line.str(b" of ").number(space.swap.devices.all(&inside).count());
    if let Some(errno) = space.swap.devices.unmade(&inside) {
        line.str(b", which could not be created (errno ").number(errno as usize).str(b")");
    } else if !space.swap.has_file() {
        line.str(b", which accept no more data (errno ").number(space.swap.devices.last_errno() as usize).str(b")");
    }
    line.str(b"\n");
    drop(inside);
    uapi::stderr::say(line.bytes());
}

/// Prints what each of the other processes holds, for the last message, those that are first in the table first.
fn print_others(space: &Space) {
    let (page, own) = (space.tree().page(), space.tree().id().index);
    let others = page.members().filter(|(index, member)| *index != own && page.held_by(member) > 0);
    for (_, member) in others.take(OTHERS_MAX) {
        let mut line = Text::default();
        line.str(b"ebb: process ").number(member.pid.load(Relaxed) as usize);
        line.str(b" holds ").number(page.held_by(member) as usize);
        let shown = [
            (&b" pages (charged "[..], said(&member.charged)),
            (b", shared since a fork ", said(&member.shared)),
            (b", staged ", said(&member.staged)),
            (b", pool ", said(&member.pool)),
            (b", on devices ", said(&member.on_device)),
            (b", wanted ", said(&member.wanted)),
        ];
        for (name, pages) in shown {
            line.str(name).number(pages as usize);
        }
        let ages_ms = now_ms().saturating_sub(member.published_ms.load(Relaxed));
        line.str(b"); as of ").number(ages_ms as usize).str(b" ms ago\n");
        uapi::stderr::say(line.bytes());
    }
}

pub(crate) fn give_up(space: &Space, ctx: &ThreadCtx) -> ! {
    print_charge(space, ctx);
    print_others(space);
    if space.tree().page().sum().held > 2 * space.budget.charged() as i64 {
        space.fatal(
            b"the budget is too small: other processes of the tree hold most of it and need it; give more --ram",
        );
    }
    if 2 * space.budget.meta_pages() > space.budget.limit() {
        space.fatal(
            b"the budget is too small: Ebb's tables for all the memory that the program uses take most of it; \
            give more --ram",
        );
    }
    if space.swap.has_file() {
        space.fatal(b"the budget is too small: all the memory in it is pinned in RAM; give more --ram");
    }
    if space.swap.devices.unmade(&space.threads.enter(ctx)).is_some() {
        space.fatal(
            b"out of swap: the pool is full, and this process could not create a spill file, perhaps because it gave up \
            the right to write files (Landlock) or changed its root directory; give more --ram",
        );
    }
    space.fatal(
        b"out of swap: neither the pool nor a spill file has room for more; give more --ram, or a larger --swap",
    );
}
