//! Charges pages before they come in, and slows threads that fill a group beyond its ram.high.

use crate::base::{clock, killable};
use crate::groups::cost::Cost;
use crate::groups::table::{Event, Index};
use crate::pages::stock;
use crate::protocols::gate::Held;
use crate::protocols::page::{PageWord, State, Tag};
use crate::space::Space;
use crate::threads::ctx::{ThreadCtx, WINDOW_MAX};
use crate::way_in::swapin::{self, In, Want};
use crate::way_out::group_reclaim::{self, Target};
use core::marker::PhantomData;
use core::sync::atomic::Ordering::Relaxed;

/// The longest delay of one fault whose group is above ram.high.
const DELAY_MAX_NS: u64 = 100_000_000;
/// Delays below this are not worth a system call.
const DELAY_MIN_NS: u64 = 100_000;
/// This many faults are delayed by one second in all, if each brings one page into a group that is at twice its ram.high.
const DELAY_FAULTS: u64 = 32;

/// Charges `n` pages for the work that comes next, see [`ThreadCtx::in_flight`]. False if there is no room.
pub(crate) fn charge_ahead(space: &Space, ctx: &ThreadCtx, n: usize) -> bool {
    // The frames of the stock go before anything else.
    let mut charged = !space.budget.is_stock_too_large() && space.budget.try_charge(n);
    while !charged && stock::give_up_stock(space, ctx) {
        charged = !space.budget.is_stock_too_large() && space.budget.try_charge(n);
    }
    if charged {
        ctx.in_flight.store(n as u32, Relaxed);
    }
    charged
}

/// Pages that were charged for the work that comes next.
///
/// Drop gives back what was not spent, still inside the gate. So a fork by another thread can tell what each charged page is
/// for.
pub(crate) struct Charge<'a> {
    space: &'a Space,
    left: usize,
    _held: PhantomData<&'a Held>,
}

impl<'a> Charge<'a> {
    /// Takes over the last charge that [`charge_ahead`] made for the calling thread.
    pub(crate) fn take(space: &'a Space, ctx: &ThreadCtx, _held: &'a Held) -> Self {
        // Only the thread itself changes its count.
        let left = ctx.in_flight.load(Relaxed) as usize;
        ctx.in_flight.store(0, Relaxed);
        Self { space, left, _held: PhantomData }
    }

    /// Pages that are not spent yet.
    pub(crate) fn left(&self) -> usize {
        self.left
    }

    /// Marks `n` pages as used for what they were charged for, or all that are left if these are fewer.
    pub(crate) fn spend(&mut self, n: usize) {
        self.left -= n.min(self.left);
    }

    /// Ends the charge. If nothing is left, skips the check whether the tree is short and needs granted pages back.
    pub(crate) fn end(self) {
        if self.left == 0 {
            core::mem::forget(self);
        }
    }
}

impl Drop for Charge<'_> {
    fn drop(&mut self) {
        // Even if nothing is left: if the tree is short, this gives it back what is granted and not charged.
        self.space.budget.uncharge(self.left);
    }
}

/// The outcome of bringing in a page that a group pays for.
pub enum Brought {
    /// See [`In`].
    In(In),
    /// Nothing was done: not even the one page fits below the limit of this group, the page's own or an ancestor of it.
    Over(Target),
}

/// Brings a page in and charges its region's group: [`swapin::bring`] with `want.group` charged.
#[inline]
pub(crate) fn bring_charged(
    space: &Space,
    held: &Held,
    ctx: &ThreadCtx,
    addr: usize,
    word: PageWord<'_>,
    state: State,
    want: Want,
) -> Brought {
    if want.group.is_root() || !matches!(state.tag(), Tag::None | Tag::Swapped) {
        return Brought::In(swapin::bring(space, held, ctx, addr, word, state, want));
    }
    bring_into_group(space, held, ctx, addr, word, state, want)
}

#[cold]
fn bring_into_group(
    space: &Space,
    held: &Held,
    ctx: &ThreadCtx,
    addr: usize,
    word: PageWord<'_>,
    state: State,
    mut want: Want,
) -> Brought {
    let groups = &space.groups;
    // Read-ahead needs room. Without it the page itself comes in alone.
    let mut whole = groups.try_charge_ram(want.group, want.window);
    if whole.is_err() && want.window > WINDOW_MAX && !want.ahead {
        want.window = WINDOW_MAX;
        whole = groups.try_charge_ram(want.group, want.window);
    }
    if let (Err(full), true) = (whole, want.ahead) {
        return Brought::Over(group_reclaim::groups_target(full, groups.id(full)));
    }
    if whole.is_err() {
        want.window = 1;
        match groups.try_charge_ram(want.group, 1) {
            Ok(()) => {}
            Err(_) if want.force => groups.force(want.group, Cost::RAM),
            Err(full) => {
                groups.node(full).note(Event::Max);
                return Brought::Over(group_reclaim::groups_target(full, groups.id(full)));
            }
        }
    }
    let result = swapin::bring(space, held, ctx, addr, word, state, want);
    let used = if let In::Mapped(n) = result { n } else { 0 };
    groups.force(want.group, Cost::RAM.times(want.window as i64 - used as i64).taken());
    Brought::In(result)
}

/// Slows the calling thread, which has brought `n` pages into a group, if the group is above its ram.high. Returns the cycles
/// that this took. Outside the gate.
///
/// The group is reclaimed in the background, and the thread is delayed the longer the further the group is above ram.high.
#[inline]
pub(crate) fn slow_down(space: &Space, ctx: &ThreadCtx, group: Index, n: usize) -> u64 {
    if group.is_root() {
        return 0;
    }
    let start = clock::cycles();
    slow_down_in(space, ctx, group, n);
    clock::cycles().saturating_sub(start)
}

#[cold]
fn slow_down_in(space: &Space, ctx: &ThreadCtx, group: Index, n: usize) {
    let groups = &space.groups;
    // The group may be gone by now, and another one may have its place. Then this checks the other one, which does no harm.
    let Some(above) = groups.above_high(group) else { return };
    let node = groups.node(above);
    node.note(Event::High);
    if space.background.works() {
        groups.is_behind.store(true, Relaxed);
        space.background.kick_if(space, true);
    } else {
        group_reclaim::reclaim_group_step(space, ctx, group_reclaim::groups_target(above, groups.id(above)));
    }
    let (over, current) = (node.above_high(), node.ram.current());
    let high = current.saturating_sub(over).max(1);
    // The kernel's curve (`calculate_high_delay`): the square of the fraction by which the group is above ram.high.
    let delay_ns = 1_000_000_000u64.saturating_mul(over).saturating_mul(over) / high / high;
    let delay_ns = (delay_ns.saturating_mul(n as u64) / DELAY_FAULTS).min(DELAY_MAX_NS);
    if delay_ns >= DELAY_MIN_NS {
        killable::sleep(delay_ns);
    }
}
