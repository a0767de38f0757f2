//! Reclaims from one group and its descendants.
//!
//! The ring of units and the queue of staged parts belong to the whole space. The pages of a group are found through its
//! regions: a cursor walks over them, unit by unit, and a sweep leaves out the pages of other groups. All staged parts are
//! taken from the queue and put back once around, so that their order stays. Of each part that has pages of the group, only
//! these pages are stored. Both kinds of work are bounded steps inside the gate.
//!
//! When a staged page is stored, the group's charge goes at once. The memory of its frame comes back when its part has no page
//! left, at the latest when the space's own reclaim gets to the part.

use crate::base::patience::Patience;
use crate::base::text::Text;
use crate::base::uapi;
use crate::counters::stats;
use crate::groups::names::GroupId;
use crate::groups::table::{Event, Index};
use crate::memory::table::ADDR_END;
use crate::places::staging::Part;
use crate::places::work::Work;
use crate::protocols::gate::Held;
use crate::space::Space;
use crate::threads::ctx::ThreadCtx;
use crate::way_out::faulty::Hope;
use crate::way_out::shrink;
use crate::way_out::swapout::{self, Wanted};
use crate::way_out::sweep;
use crate::way_out::unmap::{Leaves, Only};
use core::sync::atomic::Ordering::Relaxed;

/// Times that a sweep goes around a group's regions before it gives up. By then it has seen all of each unit, even of one
/// where it began in the middle.
const LAPS: usize = 4;
/// Laps, the first ones, in which a sweep leaves hot units alone.
const PATIENT_LAPS: usize = 2;
/// Regions and units that one step inside the gate looks at on its way to the next unit with pages.
const LOOKS: usize = 1024;
/// Steps of background reclaim for one group before the next group has its turn.
const BACKGROUND_STEPS: usize = 16;
/// Attempts without progress before a thread that need not wait gives up.
const TRIES: u32 = 16;

/// A group to reclaim from, by place and name: the group may be gone meanwhile.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    index: Index,
    id: GroupId,
}

pub(crate) fn groups_target(index: Index, id: GroupId) -> Target {
    Target { index, id }
}

/// The group, if it still exists. Outside the gate the answer may be out of date at once.
fn group_at(space: &Space, target: Target) -> Option<&crate::groups::table::Node> {
    (!target.index.is_root() && space.groups.find(target.id) == Some(target.index))
        .then(|| space.groups.node(target.index))
}

/// Pages of ram by which a group would be above its limit with `n` more.
fn excess(space: &Space, target: Target, n: u64) -> u64 {
    group_at(space, target).map_or(0, |node| (node.ram.current() + n).saturating_sub(node.ram.max()))
}

/// Reclaims from a group in the calling thread until one more page fits, or the group is gone. Outside the gate.
///
/// Ends the program if nothing can be reclaimed for ten seconds.
pub(crate) fn reclaim_group(space: &Space, ctx: &ThreadCtx, target: Target) {
    stats::add(&space.stats.direct_reclaims, 1);
    let (mut idle, mut hope) = (Patience::default(), Hope::new(space));
    while excess(space, target, 1) > 0 {
        if reclaim_group_step(space, ctx, target) {
            idle = Patience::default();
        } else if idle.wait(group_at(space, target).map_or(0, |node| node.ram.current() as usize)) {
            hope.look(space, ctx);
        } else if space.groups.may_swap(target.index) && hope.is_left(space, ctx) {
            idle = Patience::default();
        } else {
            give_up_group(space, target);
        }
    }
}

/// Reclaims from a group in the calling thread until `n` more pages fit. False if nothing there can be reclaimed. Outside the
/// gate.
///
/// On false, the pages of a system call pass the limit, because what cannot be reclaimed may be what the call itself has
/// pinned.
pub(crate) fn try_reclaim_group(space: &Space, ctx: &ThreadCtx, target: Target, n: u64) -> bool {
    let mut idle = 0;
    while excess(space, target, n) > 0 {
        if reclaim_group_step(space, ctx, target) {
            idle = 0;
        } else if idle == TRIES {
            return false;
        } else {
            // Another thread may be at work on the pages that could be reclaimed.
            idle += 1;
            uapi::sched_yield();
        }
    }
    true
}

/// Reclaims from every group that is above its ram.high. For the background thread.
pub(crate) fn reclaim_groups(space: &Space, ctx: &ThreadCtx) {
    let mut last = None;
    // If a thread sets the flag again from here on, there is another round.
    space.groups.is_behind.store(false, Relaxed);
    while let Some(target) = next_above_high(space, ctx, last) {
        let is_above = || group_at(space, target).is_some_and(|node| node.above_high() > 0);
        let mut steps = 0;
        while steps < BACKGROUND_STEPS && is_above() && reclaim_group_step(space, ctx, target) {
            steps += 1;
        }
        // A group from which nothing can be reclaimed has its next turn when a thread adds pages to it.
        if steps > 0 && is_above() {
            space.groups.is_behind.store(true, Relaxed);
        }
        last = Some(target);
    }
}

/// The first group after `after` in the table that is above its ram.high. Outside the gate.
fn next_above_high(space: &Space, ctx: &ThreadCtx, after: Option<Target>) -> Option<Target> {
    if !space.groups.exist() {
        return None;
    }
    let inside = space.threads.enter(ctx);
    let is_later = |group: &Index| after.is_none_or(|after| group.raw() > after.index.raw());
    let is_above = |group: &Index| space.groups.node(*group).above_high() > 0;
    let group = space.groups.all().find(|group| is_later(group) && is_above(group));
    let target = group.map(|index| Target { index, id: space.groups.id(index) });
    drop(inside);
    target
}

/// Makes one step of reclaim from a group: unmaps some of its pages, or stores some that are staged. False if neither made
/// progress. Outside the gate.
pub(crate) fn reclaim_group_step(space: &Space, ctx: &ThreadCtx, target: Target) -> bool {
    let mut work = space.places.work.lease(&space.budget, ctx);
    shrink::shrink_full_pool(space, ctx, &mut work);
    let Some(node) = group_at(space, target) else { return false };
    let size = node.ram.max().min(node.ram.current());
    let only = Only { group: target.index, most: ((size / 8) as usize).clamp(16, space.sweep_max()) };
    // Staging is the pages' second chance. It holds a sixteenth of the group, or eight pages if that is more.
    if node.staged.current() < (size / 16).max(8) && sweep_group(space, ctx, target, only, &mut work) > 0 {
        return true;
    }
    if swap_out_group(space, ctx, only, &mut work) > 0 {
        return true;
    }
    // All frames may be in use by pages of other groups.
    let inside = space.threads.enter(ctx);
    let has_room = space.places.staging.has_room();
    drop(inside);
    !has_room && swapout::swap_out_oldest(space, ctx, &mut work)
}

/// Sweeps the next unit in which the group has present pages. Returns how many went.
///
/// Goes around the group's regions [`LAPS`] times at most, and leaves hot units alone at first.
fn sweep_group(space: &Space, ctx: &ThreadCtx, target: Target, only: Only, work: &mut Work) -> usize {
    let mut laps = 0;
    while laps < LAPS {
        // The locks of the queues are taken inside the gate too: a fork at another time could leave the child with a lock that
        // nobody gives back.
        let inside = space.threads.enter(ctx);
        let mut swept = 0;
        let Some(node) = group_at(space, target).filter(|_| space.places.staging.has_room()) else {
            drop(inside);
            return 0;
        };
        let mut at = node.cursor.load(Relaxed);
        for _ in 0..LOOKS {
            let (unit, next) = next_unit_of(space, &inside, only.group, at);
            at = next;
            if at >= ADDR_END {
                (at, laps) = (0, laps + 1);
            }
            if let Some(unit) = unit {
                let leaves = Leaves { hot: laps < PATIENT_LAPS, used: laps == 0 };
                swept = sweep::sweep_unit_of(space, &inside, ctx, unit, only, leaves, work);
            }
            // One unit at a time, so that no thread waits long to close the gate.
            if unit.is_some() || laps == LAPS {
                break;
            }
        }
        node.cursor.store(at, Relaxed);
        drop(inside);
        if swept > 0 {
            return swept;
        }
    }
    0
}

/// One step of a walk over a group's units: the unit at `at`, if the group may have pages in it, and where to look next.
fn next_unit_of(space: &Space, held: &Held, group: Index, at: usize) -> (Option<usize>, usize) {
    let Some(region) = space.regions.first_in(held, at, ADDR_END) else { return (None, ADDR_END) };
    if !space.groups.is_within(region.group, group) {
        return (None, region.end);
    }
    let unit = space.table.unit_start(region.start.max(at));
    let (found, next) = space.table.used_unit(unit);
    (found.is_some_and(|unit| unit.present.load(Relaxed) > 0).then_some(unit), next)
}

/// Stores staged pages of a group, oldest first. Returns how many.
fn swap_out_group(space: &Space, ctx: &ThreadCtx, only: Only, work: &mut Work) -> usize {
    let mut stored = 0;
    let inside = space.threads.enter(ctx);
    let nr_parts = space.places.staging.nr_queued();
    drop(inside);
    // Every part is taken and put back, so that the queue is in the order of age afterwards.
    for _ in 0..nr_parts {
        let inside = space.threads.enter(ctx);
        let part = space.places.staging.pop_oldest();
        let is_next = part.filter(|part| stored < only.most && has_pages_of(space, &inside, only.group, *part));
        if let (Some(part), None) = (part, is_next) {
            space.places.staging.requeue(part);
        }
        drop(inside);
        match is_next {
            Some(part) => stored += swapout::swap_out_part(space, ctx, part, work, Wanted::Group(only.group)).0,
            None if part.is_none() => break,
            None => {}
        }
    }
    stored
}

/// True if a part has pages of a group or of one of its descendants.
fn has_pages_of(space: &Space, held: &Held, group: Index, part: Part) -> bool {
    let mut other = 0..0;
    space.places.staging.frames_of(part).any(|frame| {
        let addr = space.places.staging.owner(frame).load(Relaxed) as usize;
        if addr == 0 || other.contains(&addr) {
            return false;
        }
        let Some(region) = space.regions.find(held, addr) else { return false };
        other = region.start..region.end;
        space.groups.is_within(region.group, group)
    })
}

/// Prints where the charge of a group is, and ends the program. Does nothing if the group is gone.
#[cold]
fn give_up_group(space: &Space, target: Target) {
    let Some(node) = group_at(space, target) else { return };
    node.note(Event::Stuck);
    let mut line = Text::default();
    line.str(b"ebb: group ").number(target.index.raw() as usize);
    line.str(b": pages of ram ").number(node.ram.current() as usize);
    line.str(b" of ").number(node.ram.max() as usize);
    line.str(b", staged ").number(node.staged.current() as usize);
    line.str(b", pages of swap ").number(node.swap.current() as usize);
    let is_full = !space.groups.may_swap(target.index);
    line.str(if is_full { b", which is its maximum\n" } else { b"\n" });
    uapi::stderr::say(line.bytes());
    if is_full {
        space.fatal(b"a group needs more than its ram.max and swap.max: raise one of them");
    }
    space.fatal(
        b"a group needs more than its ram.max: all its memory is pinned, or there is no room to swap it out; raise it",
    );
}
