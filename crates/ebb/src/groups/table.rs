//! The table of groups: which group is whose parent, and what is charged to each.
//!
//! It is a fixed array, so nothing is allocated later. Entry 0 is the root, to which nothing is charged. Groups enter
//! and leave the table with the gate closed only. The table is read inside the gate.

use crate::base::uapi::{self, Errno};
use crate::groups::names::{GroupEvents, GroupId, GroupLimits};
use crate::protocols::counter::{Counter, NO_LIMIT, try_charge_line};
use crate::protocols::gate::Exclusive;
use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize};

/// Most groups of a space, the root included.
pub const GROUPS_MAX: usize = 1024;
/// Most levels of groups below the root.
pub const GROUP_DEPTH_MAX: usize = 16;

/// A group's place in the table.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Index(u16);

impl Index {
    /// The space itself.
    pub const ROOT: Self = Self(0);

    /// From a number that [`Self::raw`] gave.
    pub fn from_raw(raw: u32) -> Self {
        debug_assert!((raw as usize) < GROUPS_MAX);
        Self(raw as u16)
    }

    /// As a number.
    pub fn raw(self) -> u32 {
        u32::from(self.0)
    }

    /// True for the space itself, to which nothing is charged in this table.
    #[inline]
    pub fn is_root(self) -> bool {
        self.0 == 0
    }
}

/// One group. Zeroed memory is an entry that was never used.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Node {
    /// Even: free; odd: used. It goes up each time that changes, so a name of a group that is gone matches no other.
    generation: AtomicU32,
    /// [`Index`] of the parent.
    parent: AtomicU32,
    /// Pages present or staged.
    pub ram: Counter,
    /// Pages whose state names a slot.
    pub swap: Counter,
    /// Pages staged: a part of `ram`.
    pub staged: Counter,
    /// Pages of ram above which the group is reclaimed in the background.
    pub high: AtomicU64,
    /// The address where reclaim of the group goes on.
    pub cursor: AtomicUsize,
    /// How often each [`Event`] happened.
    events: [AtomicU64; 4],
}

/// An event that is counted.
#[derive(Clone, Copy, Debug)]
pub enum Event {
    /// A thread was slowed because ram was above high.
    High,
    /// A charge of ram met ram.max.
    Max,
    /// Nothing could be reclaimed, and the program ended.
    Stuck,
    /// A charge of swap met swap.max.
    SwapMax,
}

impl Node {
    /// True for a group that exists.
    pub fn is_used(&self) -> bool {
        self.generation.load(Relaxed) % 2 == 1
    }

    /// Counts an event.
    pub fn note(&self, event: Event) {
        self.events[event as usize].fetch_add(1, Relaxed);
    }

    /// How often each event has happened so far.
    pub fn events(&self) -> GroupEvents {
        let [high, max, stuck, swap_max] = self.events.each_ref().map(|count| count.load(Relaxed));
        GroupEvents { high, max, stuck, swap_max }
    }

    /// Pages of ram above `high`; 0 when there are none.
    pub fn above_high(&self) -> u64 {
        self.ram.current().saturating_sub(self.high.load(Relaxed))
    }

    /// Sets the limits.
    pub fn set_limits(&self, limits: &GroupLimits) {
        self.ram.set_max(limits.ram_max_pages.unwrap_or(NO_LIMIT));
        self.high.store(limits.ram_high_pages.unwrap_or(NO_LIMIT), Relaxed);
        self.swap.set_max(limits.swap_max_pages.unwrap_or(NO_LIMIT));
    }

    /// The limits.
    pub fn limits(&self) -> GroupLimits {
        let some = |max: u64| (max != NO_LIMIT).then_some(max);
        GroupLimits {
            ram_max_pages: some(self.ram.max()),
            ram_high_pages: some(self.high.load(Relaxed)),
            swap_max_pages: some(self.swap.max()),
        }
    }
}

/// All groups of a space.
pub struct Groups {
    nodes: *const Node,
    /// Groups beside the root.
    nr: AtomicU32,
    /// Entries at or above this were never used.
    high_water: AtomicU32,
    /// True when background reclaim has more to do: some group is above its ram.high.
    pub is_behind: AtomicBool,
}

// SAFETY: the table is an array of atomics that lives as long as the space.
unsafe impl Sync for Groups {}
// SAFETY: as above.
unsafe impl Send for Groups {}

impl Groups {
    /// A table with nothing but the root.
    pub fn new() -> Result<Self, Errno> {
        let nodes = uapi::reserve_aligned(GROUPS_MAX * size_of::<Node>(), 4096)?.cast();
        let this =
            Self { nodes, nr: AtomicU32::new(0), high_water: AtomicU32::new(1), is_behind: AtomicBool::new(false) };
        this.node(Index::ROOT).generation.store(1, Relaxed);
        Ok(this)
    }

    /// True when there is a group beside the root.
    #[inline]
    pub fn exist(&self) -> bool {
        self.nr.load(Relaxed) > 0
    }

    /// Groups beside the root.
    pub fn nr(&self) -> usize {
        self.nr.load(Relaxed) as usize
    }

    /// Bytes of the table that are in use.
    pub fn bytes(&self) -> usize {
        self.high_water.load(Relaxed) as usize * size_of::<Node>()
    }

    /// An entry of the table.
    pub fn node(&self, group: Index) -> &Node {
        assert!((group.0 as usize) < GROUPS_MAX);
        // SAFETY: checked index; zeroed memory is a valid entry.
        unsafe { &*self.nodes.add(group.0 as usize) }
    }

    /// The group that a name means; none when it is gone.
    pub fn find(&self, id: GroupId) -> Option<Index> {
        let (index, generation) = id.parts();
        let group = Index(index);
        ((index as usize) < GROUPS_MAX && self.node(group).generation.load(Relaxed) == generation).then_some(group)
    }

    /// The name of a group.
    pub fn id(&self, group: Index) -> GroupId {
        GroupId::new(group.0, self.node(group).generation.load(Relaxed))
    }

    /// The parent of a group; the root's is the root.
    pub fn parent(&self, group: Index) -> Index {
        Index(self.node(group).parent.load(Relaxed) as u16)
    }

    /// A group and its ancestors, without the root.
    pub fn line(&self, group: Index) -> impl Iterator<Item = Index> + Clone + '_ {
        let below_root = |group: Index| (!group.is_root()).then_some(group);
        core::iter::successors(below_root(group), move |group| below_root(self.parent(*group))).take(GROUP_DEPTH_MAX)
    }

    /// The nearest of a group and its ancestors that is above its ram.high.
    pub fn above_high(&self, group: Index) -> Option<Index> {
        self.line(group).find(|group| self.node(*group).above_high() > 0)
    }

    /// The smallest ram.max of a group and its ancestors, in pages; `usize::MAX` if none has one.
    pub fn ram_max(&self, group: Index) -> usize {
        self.line(group).map(|group| self.node(group).ram.max() as usize).min().unwrap_or(usize::MAX)
    }

    /// True when `group` is `of` or one of its descendants.
    pub fn is_within(&self, group: Index, of: Index) -> bool {
        of.is_root() || self.line(group).any(|at| at == of)
    }

    /// Every group beside the root.
    pub fn all(&self) -> impl Iterator<Item = Index> + '_ {
        let top = self.high_water.load(Relaxed) as u16;
        (1..top).map(Index).filter(|group| self.node(*group).is_used())
    }

    /// Every child of a group.
    pub fn children(&self, of: Index) -> impl Iterator<Item = Index> + '_ {
        self.all().filter(move |group| self.parent(*group) == of)
    }

    /// Adds a group; none when the table is full.
    pub fn add(&self, _exclusive: &Exclusive<'_>, parent: Index, limits: &GroupLimits) -> Option<Index> {
        let group = (1..GROUPS_MAX as u16).map(Index).find(|group| !self.node(*group).is_used())?;
        let node = self.node(group);
        node.parent.store(parent.raw(), Relaxed);
        for counter in [&node.ram, &node.swap, &node.staged] {
            counter.reset(NO_LIMIT);
        }
        node.set_limits(limits);
        node.cursor.store(0, Relaxed);
        node.events.iter().for_each(|count| count.store(0, Relaxed));
        node.generation.fetch_add(1, Relaxed);
        self.nr.fetch_add(1, Relaxed);
        self.high_water.fetch_max(group.raw() + 1, Relaxed);
        Some(group)
    }

    /// Takes out a group that has no child. Its charges are charged to its ancestors already.
    pub fn remove(&self, _exclusive: &Exclusive<'_>, group: Index) {
        debug_assert!(!group.is_root() && self.node(group).is_used());
        self.node(group).generation.fetch_add(1, Relaxed);
        self.nr.fetch_sub(1, Relaxed);
    }

    /// Charges `n` pages of ram to a group and its ancestors. If a limit is met, charges nothing and returns the group
    /// whose limit it is.
    pub fn try_charge_ram(&self, group: Index, n: usize) -> Result<(), Index> {
        self.try_charge(group, n, |node| &node.ram)
    }

    /// Charges `n` pages of swap to a group and its ancestors. If a limit is met, charges nothing, counts the event
    /// there, and returns false.
    pub fn try_charge_swap(&self, group: Index, n: usize) -> bool {
        let charged = self.try_charge(group, n, |node| &node.swap);
        charged.inspect_err(|full| self.node(*full).note(Event::SwapMax)).is_ok()
    }

    fn try_charge(&self, group: Index, n: usize, counter: impl Fn(&Node) -> &Counter + Clone) -> Result<(), Index> {
        let line = self.line(group).map(|group| counter(self.node(group)));
        try_charge_line(line, n as u64).map_err(|i| self.line(group).nth(i).unwrap_or(group))
    }

    /// True unless the group or an ancestor is at its swap.max, so that no page of the group may be swapped out.
    pub fn may_swap(&self, group: Index) -> bool {
        !self.line(group).any(|group| self.node(group).swap.is_full())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocols::gate::tests::alone;

    fn limits(ram: Option<u64>, swap: Option<u64>) -> GroupLimits {
        GroupLimits { ram_max_pages: ram, swap_max_pages: swap, ..GroupLimits::default() }
    }

    #[test]
    fn charges_go_up_to_below_the_root_and_name_the_limit_they_meet() {
        let groups = Groups::new().expect("memory");
        let a = groups.add(&alone(), Index::ROOT, &limits(Some(10), None)).expect("room");
        let b = groups.add(&alone(), a, &limits(Some(100), Some(1))).expect("room");
        assert_eq!(groups.try_charge_ram(b, 10), Ok(()));
        assert_eq!(groups.try_charge_ram(b, 1), Err(a));
        assert_eq!([Index::ROOT, a, b].map(|group| groups.node(group).ram.current()), [0, 10, 10]);
        assert!(groups.may_swap(b) && groups.try_charge_swap(b, 1) && !groups.may_swap(b) && groups.may_swap(a));
        assert!(!groups.try_charge_swap(b, 1));
        assert_eq!((groups.node(b).events().swap_max, groups.node(a).events().swap_max), (1, 0));
    }

    #[test]
    fn the_name_of_a_group_that_is_gone_means_no_other_in_its_place() {
        let groups = Groups::new().expect("memory");
        let a = groups.add(&alone(), Index::ROOT, &GroupLimits::default()).expect("room");
        let name = groups.id(a);
        assert_eq!(groups.find(name), Some(a));
        groups.remove(&alone(), a);
        assert!(groups.find(name).is_none() && !groups.exist());
        let b = groups.add(&alone(), Index::ROOT, &GroupLimits::default()).expect("room");
        assert!(b == a && groups.find(name).is_none());
    }

    #[test]
    fn a_full_table_takes_no_group_more() {
        let groups = Groups::new().expect("memory");
        for _ in 1..GROUPS_MAX {
            assert!(groups.add(&alone(), Index::ROOT, &GroupLimits::default()).is_some());
        }
        assert!(groups.add(&alone(), Index::ROOT, &GroupLimits::default()).is_none());
        assert_eq!((groups.nr(), groups.all().count()), (GROUPS_MAX - 1, GROUPS_MAX - 1));
    }
}
