//! Takes a large folio out of its unit: all of it, by one MOVE.

use crate::base::clock;
use crate::memory::table::{UNIT_BYTES, UNIT_PAGES, Unit};
use crate::pages::{clean_folio, folio};
use crate::protocols::gate::Held;
use crate::protocols::page::{State, Tag};
use crate::space::Space;
use crate::way_out::unmap::{Leaves, REFERENCED_MS, Scope};
use core::sync::atomic::Ordering::Relaxed;

/// The outcome of claiming a folio.
pub(crate) enum Claim {
    /// All pages of the unit are claimed.
    All,
    /// Some of it is in use.
    InUse,
    /// It is no business of this sweep.
    NotWanted,
    /// The unit is no folio, or no longer: its pages go one by one.
    Parted,
}

/// Claims all pages of the unit at `start`, if it may be a folio, and saves their states. A folio that cannot go as a whole is split.
pub(crate) fn claim(
    space: &Space,
    held: &Held,
    start: usize,
    unit: &Unit,
    scope: Scope,
    saved: &mut [u64; UNIT_PAGES],
) -> Claim {
    if !folio::is_mapped(unit) {
        return Claim::Parted;
    }
    let claim = try_claim(space, held, start, unit, scope, saved);
    if let Claim::Parted = claim {
        folio::split(space, held, start);
    }
    claim
}

fn try_claim(
    space: &Space,
    held: &Held,
    start: usize,
    unit: &Unit,
    scope: Scope,
    saved: &mut [u64; UNIT_PAGES],
) -> Claim {
    let Scope { leaves, only, range, .. } = scope;
    // Nothing is known of a range under a call that changes it: it may be whole afterwards.
    let Some(region) = space.regions.find_any(held, start) else { return Claim::Parted };
    if region.attr.is_changing() {
        return Claim::InUse;
    }
    let is_wanted = only.is_none_or(|only| space.groups.is_within(region.group, only.group));
    let is_in_range = range.is_none_or(|(first, end)| first <= start && start + UNIT_BYTES <= end);
    if !is_in_range || !folio::may_be_whole(space, &region, start) || (unit.present.load(Relaxed) as usize) < UNIT_PAGES
    {
        return Claim::Parted;
    }
    // What is clean is charged as swap already.
    let may_stage = region.group.is_root() || space.groups.may_swap(region.group);
    if !is_wanted || !may_stage && unit.clean.load(Relaxed) == 0 {
        return Claim::NotWanted;
    }
    if leaves.used && take_marks(space, start, unit) {
        return Claim::InUse;
    }
    // Pages that are clean leave in another way than the others.
    if (1..UNIT_PAGES).contains(&(unit.clean.load(Relaxed) as usize)) {
        if !may_stage {
            return Claim::Parted;
        }
        clean_folio::open(space, held, start);
    }
    let is_clean = unit.clean.load(Relaxed) > 0;
    if !is_clean && !may_stage {
        return Claim::NotWanted;
    }
    let may_go = |state: State| {
        !state.is_pinned() && if is_clean { state.is_clean() && !state.is_shared() } else { state.is_open() }
    };
    if folio::claim_unit(space, start, saved, |_, state| may_go(state)) {
        return Claim::All;
    }
    let stays = |state: State| state.tag() == Tag::Present && !may_go(state);
    let is_parted = folio::states(space, start).any(|state| stays(state) || state.tag() == Tag::None);
    if (unit.clean.load(Relaxed) > 0) != is_clean {
        // Another thread opens it, or has just done so.
        return Claim::InUse;
    }
    if is_parted { Claim::Parted } else { Claim::InUse }
}

/// A system call uses a page of the folio at `start`. A call may last for as long as it likes, so the second sweep that meets one
/// splits the folio, and so does one that has no patience: the next takes the other pages.
pub(crate) fn keep_used(space: &Space, held: &Held, start: usize, leaves: Leaves) {
    if space.table.unit(start).is_some_and(|unit| folio::note_used(unit) || !leaves.used) {
        folio::split(space, held, start);
    }
}

/// Takes the marks of pages that were used since the last sweep. True if there were any.
fn take_marks(space: &Space, start: usize, unit: &Unit) -> bool {
    let unmarks = clock::is_forbidden() || clock::ms_since(unit.unmarked.load(Relaxed)) >= REFERENCED_MS;
    let mut is_used = false;
    for word in folio::words(space, start) {
        let state = word.load();
        if state.tag() == Tag::Present && state.is_referenced() {
            is_used = true;
            if !unmarks {
                return true;
            }
            word.set_referenced(state, false);
        }
    }
    if unmarks {
        unit.unmarked.store(clock::stamp(), Relaxed);
    }
    is_used
}
