//! What groups are called, what limits they have, and what they use.

use crate::groups::table::{GROUP_DEPTH_MAX, GROUPS_MAX};
use core::fmt;

/// The name of a group. A name outlives its group and then names none: it is not given again.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct GroupId {
    index: u16,
    generation: u32,
}

impl GroupId {
    /// The root: the space itself. Its limit is the budget, so it cannot be limited here. It cannot be removed.
    pub const ROOT: Self = Self { index: 0, generation: 1 };

    pub(super) fn new(index: u16, generation: u32) -> Self {
        Self { index, generation }
    }

    pub(super) fn parts(self) -> (u16, u32) {
        (self.index, self.generation)
    }
}

/// The limits of a group, in pages; `None` is no limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct GroupLimits {
    /// Most pages of ram. A thread that needs more first reclaims from the group. If nothing there can be reclaimed for
    /// ten seconds, the program ends. The pages of a system call may exceed the limit, and so may memory that is
    /// locked.
    pub ram_max_pages: Option<u64>,
    /// Pages of ram above which the group is reclaimed in the background and threads that fill it are slowed.
    pub ram_high_pages: Option<u64>,
    /// Most pages of swap. Further pages stay in ram.
    pub swap_max_pages: Option<u64>,
}

/// Pages charged to a group and its descendants.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct GroupUse {
    /// Pages charged now.
    pub current_pages: u64,
    /// The most pages charged at any time since the group was created. 0 for the root's swap, for which it is not kept.
    pub peak_pages: u64,
}

/// How often each event happened to a group. An event is counted in the group whose limit it met.
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

/// What is known of a group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GroupInfo {
    /// Its name.
    pub id: GroupId,
    /// The parent's name; none for the root.
    pub parent: Option<GroupId>,
    /// How many children it has.
    pub nr_children: usize,
    /// Its limits.
    pub limits: GroupLimits,
    /// Pages present or staged. The root's is the space's whole charge, with pool and metadata.
    pub ram: GroupUse,
    /// Pages that have a swap slot. For the root it is the number of slots, so one that several pages share counts
    /// once.
    pub swap: GroupUse,
    /// Pages staged; a part of `ram`.
    pub staged_pages: u64,
    /// How often each event happened.
    pub events: GroupEvents,
}

/// Why an operation on a group failed. Nothing changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GroupError {
    /// No group has this name: it was removed.
    NotFound,
    /// There are already [`GROUPS_MAX`] groups, the root included.
    TooMany,
    /// The group would be deeper than [`GROUP_DEPTH_MAX`].
    TooDeep,
    /// The root is the space itself: it has no limits of its own here and cannot be removed.
    Root,
    /// A group that has children cannot be removed.
    HasChildren,
    /// The limit is no ram at all: not even one fault could be served.
    NoRam,
    /// The range is empty or is not whole pages.
    Range,
    /// Nothing in the range is managed.
    NotManaged,
    /// There is no room for the regions into which the range would be cut.
    TooManyRegions,
}

impl fmt::Display for GroupError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotFound => f.write_str("there is no such group; it was removed"),
            Self::TooMany => write!(f, "there are {GROUPS_MAX} groups, the maximum; remove one"),
            Self::TooDeep => {
                write!(f, "a group can be at most {GROUP_DEPTH_MAX} levels below the root; choose another parent")
            }
            Self::Root => {
                f.write_str("the root group is the space itself; its limit is the budget, and it cannot be removed")
            }
            Self::HasChildren => f.write_str("the group has children; remove them first"),
            Self::NoRam => f.write_str("a group needs at least one page of ram; give more"),
            Self::Range => f.write_str("the range is empty or not whole pages of 4096 bytes; align it"),
            Self::NotManaged => f.write_str("nothing in the range is managed memory; map it through the space"),
            Self::TooManyRegions => f.write_str("no room for more regions; unmap some, or move whole mappings"),
        }
    }
}

impl core::error::Error for GroupError {}
