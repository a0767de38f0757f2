//! What a user of the engine does with groups: creates, limits, looks at, fills and removes them.

use super::table::{GROUP_DEPTH_MAX, GROUPS_MAX, Index, Node};
use super::tally::{Cost, Tally};
use crate::ctx::ThreadCtx;
use crate::space::Space;
use crate::table::PAGE;
use core::fmt;
use core::sync::atomic::Ordering::Relaxed;

/// The name of a group. A name outlives its group, and then means none: it is not given again.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct GroupId {
    index: u16,
    generation: u32,
}

impl GroupId {
    /// The root: the space itself. It cannot be limited here, as its limit is the budget, or removed.
    pub const ROOT: Self = Self { index: 0, generation: 1 };

    pub(super) fn new(index: u16, generation: u32) -> Self {
        Self { index, generation }
    }

    pub(super) fn parts(self) -> (u16, u32) {
        (self.index, self.generation)
    }
}

/// What a group may have, in pages; none is no limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct GroupLimits {
    /// Most pages of ram: a thread that needs more reclaims from the group first. If for ten seconds nothing there can be
    /// reclaimed, the program ends. What a system call needs at a time may pass it, and what is locked in memory.
    pub ram_max_pages: Option<u64>,
    /// Pages of ram above which the group is reclaimed in the background and threads that fill it are slowed.
    pub ram_high_pages: Option<u64>,
    /// Most pages of swap: further ones stay in ram.
    pub swap_max_pages: Option<u64>,
}

/// Pages charged to a group and its descendants.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct GroupUse {
    /// Now.
    pub current_pages: u64,
    /// At most at a time, since the group was created. 0 for the root's swap: it is not kept.
    pub peak_pages: u64,
}

/// How often what happened to a group. Each is counted where the limit is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct GroupEvents {
    /// A thread was slowed because the group was above ram.high.
    pub high: u64,
    /// A charge met ram.max.
    pub max: u64,
    /// Nothing could be reclaimed for ten seconds, and the program ended.
    pub stuck: u64,
    /// A charge met swap.max.
    pub swap_max: u64,
}

/// What there is to know of a group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GroupInfo {
    /// Its name.
    pub id: GroupId,
    /// The parent's name; none for the root.
    pub parent: Option<GroupId>,
    /// How many children it has.
    pub nr_children: usize,
    /// What it may have.
    pub limits: GroupLimits,
    /// Pages present or staged. The root's is the space's whole charge, with pool and metadata.
    pub ram: GroupUse,
    /// Pages that have a swap slot. The root's is the number of slots: one that several pages share counts once.
    pub swap: GroupUse,
    /// Pages staged, a part of ram.
    pub staged_pages: u64,
    /// What happened.
    pub events: GroupEvents,
}

/// Why something was not done with a group. Nothing changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GroupError {
    /// There is no group of this name: it was removed.
    NotFound,
    /// There are as many groups as there can be: [`GROUPS_MAX`].
    TooMany,
    /// The group would be deeper than [`GROUP_DEPTH_MAX`].
    TooDeep,
    /// The root is what the space is: it has no limits of its own here and cannot be removed.
    Root,
    /// A group that has children cannot be removed.
    HasChildren,
    /// A limit of no pages of ram: not even one fault could be answered.
    NoRam,
    /// The range is empty or not whole pages.
    Range,
    /// Nothing in the range is managed.
    NotManaged,
    /// No room for the regions into which the range would be cut.
    TooManyRegions,
}

impl fmt::Display for GroupError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotFound => f.write_str("there is no such group; it was removed"),
            Self::TooMany => write!(f, "there are {GROUPS_MAX} groups, no more can be; remove one"),
            Self::TooDeep => write!(f, "a group can be {GROUP_DEPTH_MAX} levels below the root; choose another parent"),
            Self::Root => f.write_str("the root group is the space itself; its limit is the budget, and it stays"),
            Self::HasChildren => f.write_str("the group has children; remove them first"),
            Self::NoRam => f.write_str("a group needs a page of ram at least; give more"),
            Self::Range => f.write_str("the range is empty or not whole pages of 4096 bytes; align it"),
            Self::NotManaged => f.write_str("nothing in the range is managed memory; map it through the space"),
            Self::TooManyRegions => f.write_str("no room for more regions; unmap some, or move whole mappings"),
        }
    }
}

impl core::error::Error for GroupError {}

impl Space {
    /// Creates a group below `parent`. The caller must not be inside.
    pub fn create_group(&self, _ctx: &ThreadCtx, parent: GroupId, limits: &GroupLimits) -> Result<GroupId, GroupError> {
        check(limits)?;
        self.exclusive(|| {
            let groups = &self.groups;
            let parent = groups.find(parent).ok_or(GroupError::NotFound)?;
            if groups.line(parent).count() >= GROUP_DEPTH_MAX {
                return Err(GroupError::TooDeep);
            }
            let bytes = groups.bytes();
            let group = groups.add(parent, limits).ok_or(GroupError::TooMany)?;
            self.group.charge_meta(groups.bytes() - bytes);
            Ok(groups.id(group))
        })
    }

    /// Sets what a group may have. Above a new ram.max it is reclaimed in the calling thread as far as that goes; swap goes
    /// below a new swap.max as pages come back. The caller must not be inside.
    pub fn set_group_limits(&self, ctx: &ThreadCtx, id: GroupId, limits: &GroupLimits) -> Result<(), GroupError> {
        check(limits)?;
        let group = self.with_group(ctx, id, |group| {
            if group.is_root() {
                return Err(GroupError::Root);
            }
            self.groups.node(group).set_limits(limits);
            Ok(group)
        })??;
        let _ = self.try_reclaim_group(ctx, self.groups_target(group, id), 0);
        Ok(())
    }

    /// Removes a group without children. Its regions and what is charged to it go to its parent, and so do threads whose
    /// group it was. The caller must not be inside.
    pub fn remove_group(&self, _ctx: &ThreadCtx, id: GroupId) -> Result<(), GroupError> {
        self.exclusive(|| {
            let groups = &self.groups;
            let group = groups.find(id).ok_or(GroupError::NotFound)?;
            if group.is_root() {
                return Err(GroupError::Root);
            }
            if groups.children(group).next().is_some() {
                return Err(GroupError::HasChildren);
            }
            let parent = groups.parent(group);
            self.regions.regroup(group, parent);
            for ctx in self.contexts.all() {
                if ctx.group.load(Relaxed) == group.raw() {
                    ctx.group.store(parent.raw(), Relaxed);
                }
            }
            groups.remove(group);
            Ok(())
        })
    }

    /// Moves what is managed in `[start, start + len)` to a group, with all charges. That may pass the group's limits: ram
    /// is then reclaimed in the calling thread as far as that goes, also from ancestors, and swap stays. The caller must not
    /// be inside.
    pub fn move_to_group(&self, ctx: &ThreadCtx, start: usize, len: usize, id: GroupId) -> Result<(), GroupError> {
        let end = start.checked_add(len).ok_or(GroupError::Range)?;
        if len == 0 || !start.is_multiple_of(PAGE) || !len.is_multiple_of(PAGE) {
            return Err(GroupError::Range);
        }
        let mut line = [None; GROUP_DEPTH_MAX];
        self.exclusive(|| {
            let group = self.groups.find(id).ok_or(GroupError::NotFound)?;
            self.regions.first_in(start, end).ok_or(GroupError::NotManaged)?;
            // Only the first and the last region can be cut.
            if !self.regions.has_room(4) {
                return Err(GroupError::TooManyRegions);
            }
            // First all goes, then all comes, so that no ancestor of both has it twice.
            let mut sum = Cost::default();
            let mut tally = Tally::new(self);
            self.table.for_each_content(start, end, |addr, word| {
                let cost = Cost::of(word.load());
                tally.add(addr, cost.taken());
                sum = sum.plus(cost);
            });
            drop(tally);
            self.groups.force(group, sum);
            self.regions.change_group(start, end, group);
            for (target, group) in line.iter_mut().zip(self.groups.line(group)) {
                *target = Some(self.groups_target(group, self.groups.id(group)));
            }
            Ok(())
        })?;
        for target in line.into_iter().flatten() {
            let _ = self.try_reclaim_group(ctx, target, 0);
        }
        Ok(())
    }

    /// Has the calling thread's new mappings belong to a group.
    pub fn set_thread_group(&self, ctx: &ThreadCtx, id: GroupId) -> Result<(), GroupError> {
        // Inside the gate, so that the group is not removed meanwhile.
        self.with_group(ctx, id, |group| ctx.group.store(group.raw(), Relaxed))
    }

    /// The group to which the calling thread's new mappings belong.
    pub fn thread_group(&self, ctx: &ThreadCtx) -> GroupId {
        self.gate.enter(&ctx.gate);
        let id = self.groups.id(Index::from_raw(ctx.group.load(Relaxed)));
        self.gate.leave(&ctx.gate);
        id
    }

    /// The group of the managed page at `addr`; none when that is not managed.
    pub fn group_of(&self, ctx: &ThreadCtx, addr: usize) -> Option<GroupId> {
        self.gate.enter(&ctx.gate);
        let id = self.regions.find(addr).map(|region| self.groups.id(region.group));
        self.gate.leave(&ctx.gate);
        id
    }

    /// What there is to know of a group. Each number is right by itself; their sums are, while nobody changes them.
    pub fn group_info(&self, ctx: &ThreadCtx, id: GroupId) -> Result<GroupInfo, GroupError> {
        self.with_group(ctx, id, |group| self.describe_group(group))
    }

    /// Calls `f` with every group, the root first, then in no order. It must not call the space.
    pub fn groups(&self, ctx: &ThreadCtx, mut f: impl FnMut(&GroupInfo)) {
        self.gate.enter(&ctx.gate);
        core::iter::once(Index::ROOT).chain(self.groups.all()).for_each(|group| f(&self.describe_group(group)));
        self.gate.leave(&ctx.gate);
    }

    /// Runs `f` inside the gate with the group that a name means.
    fn with_group<R>(&self, ctx: &ThreadCtx, id: GroupId, f: impl FnOnce(Index) -> R) -> Result<R, GroupError> {
        self.gate.enter(&ctx.gate);
        let result = self.groups.find(id).map(f).ok_or(GroupError::NotFound);
        self.gate.leave(&ctx.gate);
        result
    }

    fn describe_group(&self, group: Index) -> GroupInfo {
        let groups = &self.groups;
        let node = groups.node(group);
        let of = |counter: &super::counter::Counter| GroupUse {
            current_pages: counter.current(),
            peak_pages: counter.peak(),
        };
        let (ram, swap, staged_pages) = if group.is_root() {
            let ram = GroupUse {
                current_pages: self.group.charged() as u64,
                peak_pages: self.stats.peak_held_bytes.load(Relaxed) / PAGE as u64,
            };
            let swap = GroupUse { current_pages: self.swap.nr_used(), peak_pages: 0 };
            (ram, swap, self.staging.staged() as u64)
        } else {
            (of(&node.ram), of(&node.swap), node.staged.current())
        };
        let mut limits = node.limits();
        if group.is_root() {
            limits = GroupLimits { ram_max_pages: Some(self.group.limit() as u64), ..GroupLimits::default() };
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

    /// Recounts every group's pages, and checks the table. Under the exclusive gate.
    pub(crate) fn validate_groups(&self) -> Result<(), &'static str> {
        let groups = &self.groups;
        for region in self.regions.all() {
            if groups.find(groups.id(region.group)).is_none() || !groups.node(region.group).is_used() {
                return Err("a region belongs to a group that is gone");
            }
        }
        for group in groups.all() {
            if !groups.node(groups.parent(group)).is_used() {
                return Err("a group's parent is gone");
            }
            let mut sum = Cost::default();
            for region in self.regions.all().iter().filter(|r| groups.is_within(r.group, group)) {
                self.table.for_each_content(region.start, region.end, |_, word| sum = sum.plus(Cost::of(word.load())));
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
}

/// A group that could not hold one page would never let a fault be answered.
fn check(limits: &GroupLimits) -> Result<(), GroupError> {
    if limits.ram_max_pages == Some(0) { Err(GroupError::NoRam) } else { Ok(()) }
}
