//! Charging what comes in, and slowing who fills a group above its ram.high.

use super::reclaim::Target;
use super::table::{Event, Index};
use super::tally::Cost;
use crate::clock;
use crate::ctx::ThreadCtx;
use crate::page::{PageWord, State, Tag};
use crate::space::Space;
use crate::swapin::{In, Want};
use crate::uapi;
use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Most time that one fault is held up because its group is above ram.high.
const DELAY_MAX_NS: u64 = 100_000_000;
/// Delays below this are not worth a system call.
const DELAY_MIN_NS: u64 = 100_000;
/// Faults that are held up for a second in all, if each brings one page into a group that is at twice its ram.high.
const DELAY_FAULTS: u64 = 32;

/// What became of a page that a group pays for.
pub enum Brought {
    /// See [`In`].
    In(In),
    /// Not even the one page fits: this group's limit is met, or its subtree's. Nothing was done.
    Over(Target),
}

impl Space {
    /// Brings a page in at the expense of its region's group: [`Space::bring`] with `want.group` charged. `force`: also beyond
    /// the group's limits. Inside the gate.
    #[inline]
    pub(crate) fn bring_charged(
        &self,
        ctx: &ThreadCtx,
        addr: usize,
        word: PageWord<'_>,
        state: State,
        want: Want,
        force: bool,
    ) -> Brought {
        if want.group.is_root() || !matches!(state.tag(), Tag::None | Tag::Swapped) {
            return Brought::In(self.bring(ctx, addr, word, state, want));
        }
        self.bring_into_group(ctx, addr, word, state, want, force)
    }

    #[cold]
    fn bring_into_group(
        &self,
        ctx: &ThreadCtx,
        addr: usize,
        word: PageWord<'_>,
        state: State,
        mut want: Want,
        force: bool,
    ) -> Brought {
        let groups = &self.groups;
        // Read-ahead is for when there is room: the page itself comes in without it.
        let whole = groups.try_charge_ram(want.group, want.window);
        if let (Err(full), true) = (whole, want.ahead) {
            return Brought::Over(self.groups_target(full, groups.id(full)));
        }
        if whole.is_err() {
            want.window = 1;
            match groups.try_charge_ram(want.group, 1) {
                Ok(()) => {}
                Err(_) if force => groups.force(want.group, Cost::RAM),
                Err(full) => {
                    groups.node(full).note(Event::Max);
                    return Brought::Over(self.groups_target(full, groups.id(full)));
                }
            }
        }
        let result = self.bring(ctx, addr, word, state, want);
        let used = if let In::Mapped(n) = result { n } else { 0 };
        groups.force(want.group, Cost::RAM.times(want.window as i64 - used as i64).taken());
        Brought::In(result)
    }

    /// The group of the page at `addr`. Inside the gate, or with it closed.
    pub(crate) fn owner(&self, addr: usize) -> Index {
        if !self.groups.exist() {
            return Index::ROOT;
        }
        self.regions.find(addr).map_or(Index::ROOT, |region| region.group)
    }

    /// Charges a page of swap to the page's owner before its content goes there. False, and the refusal is counted, when
    /// its group may have no more.
    pub(crate) fn charge_swap_at(&self, addr: usize) -> bool {
        let owner = self.owner(addr);
        owner.is_root() || self.groups.try_charge_swap(owner, 1)
    }

    /// Takes back what [`Self::charge_swap_at`] charged.
    pub(crate) fn uncharge_swap_at(&self, addr: usize) {
        self.groups.force(self.owner(addr), Cost::SWAP.taken());
    }

    /// The calling thread has brought `n` pages into a group: if that is above its ram.high, has it reclaimed in the
    /// background, and holds the thread up the longer the further it is above; the cycles that this took. Outside the gate.
    #[inline]
    pub(crate) fn slow_down(&self, ctx: &ThreadCtx, group: Index, n: usize) -> u64 {
        if group.is_root() {
            return 0;
        }
        let start = clock::cycles();
        self.slow_down_in(ctx, group, n);
        clock::cycles().saturating_sub(start)
    }

    #[cold]
    fn slow_down_in(&self, ctx: &ThreadCtx, group: Index, n: usize) {
        let groups = &self.groups;
        // The group may be gone by now, and another have its place: then that one is looked at, which harms nobody.
        let Some(above) = groups.above_high(group) else { return };
        let node = groups.node(above);
        node.note(Event::High);
        if self.background.works() {
            groups.is_behind.store(true, Relaxed);
            self.background.kick_if(self, true);
        } else {
            self.reclaim_group_step(ctx, self.groups_target(above, groups.id(above)));
        }
        let (over, current) = (node.above_high(), node.ram.current());
        let high = current.saturating_sub(over).max(1);
        // The kernel's curve: with the square of the part that it is above (`calculate_high_delay`).
        let delay_ns = 1_000_000_000u64.saturating_mul(over).saturating_mul(over) / high / high;
        let delay_ns = (delay_ns.saturating_mul(n as u64) / DELAY_FAULTS).min(DELAY_MAX_NS);
        if delay_ns >= DELAY_MIN_NS {
            uapi::futex_wait(&AtomicU32::new(0), 0, Some(delay_ns));
        }
    }
}
