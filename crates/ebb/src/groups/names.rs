//! What groups are called, what they may have, and what they have.

use crate::groups::table::{GROUP_DEPTH_MAX, GROUPS_MAX};
use core::fmt;

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
