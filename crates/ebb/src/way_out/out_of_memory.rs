//! The last message of a process that can free no more memory: a line for its user, and where details are wanted an account
//! of all that is held.

use crate::base::text::Text;
use crate::base::uapi::{self, Errno};
use crate::pages::in_use;
use crate::protocols::page::Tag;
use crate::space::Space;
use crate::threads::ctx::ThreadCtx;
use crate::tree::{now_ms, said};
use core::sync::atomic::Ordering::Relaxed;
use linux_raw_sys::errno as e;

const PAGE_SHIFT: u32 = 12;
const KIB_PER_PAGE: usize = 4;
const MIB_PAGES: usize = 1024 / KIB_PER_PAGE;

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

/// Appends a size as a person reads it: `24.0 MiB`.
fn mib(line: &mut Text, pages: usize) {
    line.number(pages / MIB_PAGES).str(b".").number(pages % MIB_PAGES * 10 / MIB_PAGES).str(b" MiB");
}

/// Appends what to do: a larger budget than now, as it is written after `--ram`.
fn give_more(line: &mut Text, limit: usize) {
    line.str(b"; give more than --ram ");
    if limit.is_multiple_of(MIB_PAGES) {
        line.number(limit / MIB_PAGES).str(b"M");
    } else {
        line.number(limit * KIB_PER_PAGE).str(b"K");
    }
}

/// Why files take no more, after the error number of the last try; 0 if no slot was free.
fn why_full(line: &mut Text, errno: u32) {
    match errno {
        0 => line.str(b" (they are full)"),
        e::ENOSPC => line.str(b" (the disk is full)"),
        e::EDQUOT => line.str(b" (the disk quota is used up)"),
        e::EFBIG => line.str(b" (the limit on file sizes)"),
        other => line.str(b" (").errno(Errno(other as i32)).str(b")"),
    };
}

/// Appends why nothing more can be swapped, and what to do.
fn out_of_swap(line: &mut Text, space: &Space, ctx: &ThreadCtx) {
    let inside = space.threads.enter(ctx);
    let devices = &space.swap.devices;
    let limit = space.budget.limit();
    line.str(b"out of swap: the RAM budget of ");
    mib(line, limit);
    line.str(b" is full (");
    mib(line, space.swap.pool_pages());
    line.str(b" of it compressed memory), and ");
    if let Some(errno) = devices.unmade(&inside) {
        line.str(b"the process could not create a swap file (").errno(Errno(errno as i32));
        line.str(b"), perhaps because it gave up the right to write files (Landlock) or changed its root");
        return give_more(line, limit);
    }
    let mut own = devices.own(&inside);
    match (own.next(), own.count()) {
        (None, _) => {
            line.str(b"there is no swap file");
        }
        (Some((_, file)), 0) => {
            line.str(b"the swap file in ").str(file.dir().to_bytes()).str(b" takes no more");
            match devices.last_errno() {
                0 => {
                    line.str(b" (its ");
                    mib(line, file.bytes() as usize >> PAGE_SHIFT);
                    line.str(b" are full)");
                }
                errno => why_full(line, errno),
            }
        }
        (Some(_), others) => {
            line.str(b"none of ").number(others + 1).str(b" swap files takes more");
            why_full(line, devices.last_errno());
        }
    }
    give_more(line, limit);
    line.str(b", or a --swap with room");
}

/// Appends what ran out, and what to do.
fn reason(line: &mut Text, space: &Space, ctx: &ThreadCtx) {
    let (charged, limit) = (space.budget.charged(), space.budget.limit());
    let held = space.tree().page().sum().held.max(0) as usize;
    if held > 2 * charged {
        line.str(b"the budget is too small: other processes of the tree hold ");
        mib(line, held - charged);
        line.str(b" of its ");
        mib(line, limit);
        line.str(b", and need it");
    } else if 2 * space.budget.meta_pages() > limit {
        line.str(b"the budget is too small: Ebb's tables for all the memory that the program uses take ");
        mib(line, space.budget.meta_pages());
        line.str(b" of its ");
        mib(line, limit);
    } else if space.swap.has_file() {
        line.str(b"the budget is too small: the memory in its ");
        mib(line, limit);
        line.str(b" is all pinned in RAM, by the program or by devices");
    } else {
        return out_of_swap(line, space, ctx);
    }
    give_more(line, limit);
}

pub(crate) fn give_up(space: &Space, ctx: &ThreadCtx) -> ! {
    let mut line = Text::default();
    reason(&mut line, space, ctx);
    space.fatal_with(line.bytes(), || {
        if uapi::stderr::has_details() {
            print_charge(space, ctx);
            print_others(space);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(tell: impl FnOnce(&mut Text)) -> String {
        let mut line = Text::default();
        tell(&mut line);
        String::from_utf8_lossy(line.bytes()).into_owned()
    }

    #[test]
    fn sizes_are_those_of_people_and_budgets_those_of_the_command_line() {
        assert_eq!(told(|line| mib(line, 6144)), "24.0 MiB");
        assert_eq!(told(|line| mib(line, 255)), "0.9 MiB");
        assert_eq!(told(|line| give_more(line, 6144)), "; give more than --ram 24M");
        assert_eq!(told(|line| give_more(line, 1152)), "; give more than --ram 4608K");
    }

    #[test]
    fn why_a_file_takes_no_more_is_in_words() {
        let why = |errno| told(|line| why_full(line, errno));
        assert_eq!(why(0), " (they are full)");
        assert_eq!(why(e::ENOSPC), " (the disk is full)");
        assert_eq!(why(e::EDQUOT), " (the disk quota is used up)");
        assert_eq!(why(e::EIO), " (EIO)");
    }
}
