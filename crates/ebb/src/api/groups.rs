//! What a user of the engine does with groups: creates, limits, inspects, fills and removes them.

use crate::base::PAGE;
use crate::groups::cost::Cost;
use crate::groups::names::{GroupError, GroupId, GroupInfo, GroupLimits, GroupUse};
use crate::groups::table::{GROUP_DEPTH_MAX, Index, Node};
use crate::pages::tally::Tally;
use crate::protocols::gate::Exclusive;
use crate::space::Space;
use crate::threads::ctx::ThreadCtx;
use crate::way_out::group_reclaim;
use core::sync::atomic::Ordering::Relaxed;

impl Space {
    /// Creates a group below `parent`. Fails when `parent` is gone, when there are too many groups or levels, or when
    /// the limits leave no RAM. The caller must not be inside.
    pub fn create_group(&self, _ctx: &ThreadCtx, parent: GroupId, limits: &GroupLimits) -> Result<GroupId, GroupError> {
        check(limits)?;
        self.exclusive(|exclusive| {
            let groups = &self.groups;
            let parent = groups.find(parent).ok_or(GroupError::NotFound)?;
            if groups.line(parent).count() >= GROUP_DEPTH_MAX {
                return Err(GroupError::TooDeep);
            }
            let bytes = groups.bytes();
            let group = groups.add(exclusive, parent, limits).ok_or(GroupError::TooMany)?;
            self.budget.charge_meta(groups.bytes() - bytes);
            Ok(groups.id(group))
        })
    }

    /// Sets the limits of a group other than the root. If the group is above its new ram.max, the calling thread
    /// reclaims from it as far as possible. Swap above a new swap.max shrinks as pages come back. The caller must not
    /// be inside.
    pub fn set_group_limits(&self, ctx: &ThreadCtx, id: GroupId, limits: &GroupLimits) -> Result<(), GroupError> {
        check(limits)?;
        let group = with_group(self, ctx, id, |group| {
            if group.is_root() {
                return Err(GroupError::Root);
            }
            self.groups.node(group).set_limits(limits);
            Ok(group)
        })??;
        let _ = group_reclaim::try_reclaim_group(self, ctx, group_reclaim::groups_target(group, id), 0);
        Ok(())
    }

    /// Removes a group other than the root that has no children. Its regions, its charges and its threads go to its
    /// parent. The caller must not be inside.
    pub fn remove_group(&self, _ctx: &ThreadCtx, id: GroupId) -> Result<(), GroupError> {
        self.exclusive(|exclusive| {
            let groups = &self.groups;
            let group = groups.find(id).ok_or(GroupError::NotFound)?;
            if group.is_root() {
                return Err(GroupError::Root);
            }
            if groups.children(group).next().is_some() {
                return Err(GroupError::HasChildren);
            }
            let parent = groups.parent(group);
            self.regions.regroup(exclusive, group, parent);
            for ctx in self.threads.contexts.all() {
                if ctx.group.load(Relaxed) == group.raw() {
                    ctx.group.store(parent.raw(), Relaxed);
                }
            }
            groups.remove(exclusive, group);
            Ok(())
        })
    }

    /// Moves the managed memory in `[start, start + len)` to a group, with all charges. The range must be whole pages.
    /// The move may exceed the group's limits. The calling thread then reclaims RAM as far as possible, also from
    /// ancestors; swap stays. The caller must not be inside.
    pub fn move_to_group(&self, ctx: &ThreadCtx, start: usize, len: usize, id: GroupId) -> Result<(), GroupError> {
        let end = start.checked_add(len).ok_or(GroupError::Range)?;
        if len == 0 || !start.is_multiple_of(PAGE) || !len.is_multiple_of(PAGE) {
            return Err(GroupError::Range);
        }
        let mut line = [None; GROUP_DEPTH_MAX];
        self.exclusive(|exclusive| {
            let group = self.groups.find(id).ok_or(GroupError::NotFound)?;
            self.regions.first_in(exclusive, start, end).ok_or(GroupError::NotManaged)?;
            // Only the first and the last region can be split.
            if !self.regions.has_room(exclusive, 4) {
                return Err(GroupError::TooManyRegions);
            }
            // All charges are taken off before any is added, so that no ancestor of both groups has them twice.
            let mut sum = Cost::default();
            let mut tally = Tally::new(self, exclusive);
            self.table.for_each_content(start, end, |addr, word| {
                let cost = Cost::of(word.load());
                tally.add(addr, cost.taken());
                sum = sum.plus(cost);
            });
            drop(tally);
            self.groups.force(group, sum);
            self.regions.change_group(exclusive, start, end, group);
            for (target, group) in line.iter_mut().zip(self.groups.line(group)) {
                *target = Some(group_reclaim::groups_target(group, self.groups.id(group)));
            }
            Ok(())
        })?;
        for target in line.into_iter().flatten() {
            let _ = group_reclaim::try_reclaim_group(self, ctx, target, 0);
        }
        Ok(())
    }

    /// Makes the calling thread's new mappings belong to a group.
    pub fn set_thread_group(&self, ctx: &ThreadCtx, id: GroupId) -> Result<(), GroupError> {
        // Inside the gate, so that the group is not removed meanwhile.
        with_group(self, ctx, id, |group| ctx.group.store(group.raw(), Relaxed))
    }

    /// The group to which the calling thread's new mappings belong.
    pub fn thread_group(&self, ctx: &ThreadCtx) -> GroupId {
        let inside = self.threads.enter(ctx);
        let id = self.groups.id(Index::from_raw(ctx.group.load(Relaxed)));
        drop(inside);
        id
    }

    /// The group of the managed page at `addr`; none when the page is not managed.
    pub fn group_of(&self, ctx: &ThreadCtx, addr: usize) -> Option<GroupId> {
        let inside = self.threads.enter(ctx);
        let id = self.regions.find_any(&inside, addr).map(|region| self.groups.id(region.group));
        drop(inside);
        id
    }

    /// Describes a group. Each number is right by itself. Sums of them are right only while nobody changes them.
    pub fn group_info(&self, ctx: &ThreadCtx, id: GroupId) -> Result<GroupInfo, GroupError> {
        with_group(self, ctx, id, |group| describe_group(self, group))
    }

    /// Calls `f` with every group, the root first, then in no order. `f` must not call the space.
    pub fn groups(&self, ctx: &ThreadCtx, mut f: impl FnMut(&GroupInfo)) {
        let inside = self.threads.enter(ctx);
        core::iter::once(Index::ROOT).chain(self.groups.all()).for_each(|group| f(&describe_group(self, group)));
        drop(inside);
    }
}

/// Runs `f` inside the gate with the group named `id`.
fn with_group<R>(space: &Space, ctx: &ThreadCtx, id: GroupId, f: impl FnOnce(Index) -> R) -> Result<R, GroupError> {
    let inside = space.threads.enter(ctx);
    let result = space.groups.find(id).map(f).ok_or(GroupError::NotFound);
    drop(inside);
    result
}

fn describe_group(space: &Space, group: Index) -> GroupInfo {
    let groups = &space.groups;
    let node = groups.node(group);
    let of = |counter: &crate::protocols::counter::Counter| GroupUse {
        current_pages: counter.current(),
        peak_pages: counter.peak(),
    };
    let (ram, swap, staged_pages) = if group.is_root() {
        let ram = GroupUse {
            current_pages: space.budget.charged() as u64,
            peak_pages: space.stats.peak_held_bytes.load(Relaxed) / PAGE as u64,
        };
        let swap = GroupUse { current_pages: space.swap.nr_used(), peak_pages: 0 };
        (ram, swap, space.places.staging.staged() as u64)
    } else {
        (of(&node.ram), of(&node.swap), node.staged.current())
    };
    let mut limits = node.limits();
    if group.is_root() {
        limits = GroupLimits { ram_max_pages: Some(space.budget.limit() as u64), ..GroupLimits::default() };
    }
    GroupInfo {
        id: groups.id(group),
        parent: (!group.is_root()).then(|| groups.id(groups.parent(group))),
        nr_children: groups.children(group).count(),
        limits,
        ram,
        swap,
        staged_pages,
        events: node.events(),
    }
}

/// Recounts every group's pages, and checks the table.
pub(crate) fn validate_groups(space: &Space, held: &Exclusive<'_>) -> Result<(), &'static str> {
    let groups = &space.groups;
    for region in space.regions.all(held) {
        if groups.find(groups.id(region.group)).is_none() || !groups.node(region.group).is_used() {
            return Err("a region belongs to a group that is gone");
        }
    }
    for group in groups.all() {
        if !groups.node(groups.parent(group)).is_used() {
            return Err("a group's parent is gone");
        }
        let mut sum = Cost::default();
        for region in space.regions.all(held).filter(|r| groups.is_within(r.group, group)) {
            space.table.for_each_content(region.start, region.end, |_, word| sum = sum.plus(Cost::of(word.load())));
        }
        let Node { ram, swap, staged, .. } = groups.node(group);
        if [ram, swap, staged].map(|counter| counter.current() as i64) != [sum.ram, sum.swap, sum.staged] {
            return Err("a group's charge differs from its pages");
        }
    }
    if groups.all().count() != groups.nr() {
        return Err("groups differ from their count");
    }
    Ok(())
}

/// Refuses limits that leave no RAM: a group that could not hold one page would never let a fault be answered.
fn check(limits: &GroupLimits) -> Result<(), GroupError> {
    if limits.ram_max_pages == Some(0) { Err(GroupError::NoRam) } else { Ok(()) }
}
