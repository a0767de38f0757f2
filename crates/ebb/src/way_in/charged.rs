//! Charging what comes in, and slowing who fills a group above its ram.high.

use crate::base::{clock, uapi};
use crate::groups::cost::Cost;
use crate::groups::table::{Event, Index};
use crate::pages::stock;
use crate::protocols::gate::Held;
use crate::protocols::page::{PageWord, State, Tag};
use crate::space::Space;
use crate::threads::ctx::ThreadCtx;
use crate::way_in::swapin::{self, In, Want};
use crate::way_out::group_reclaim::{self, Target};
use core::marker::PhantomData;
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::Relaxed;

/// Most time that one fault is held up because its group is above ram.high.
const DELAY_MAX_NS: u64 = 100_000_000;
/// Delays below this are not worth a system call.
const DELAY_MIN_NS: u64 = 100_000;
/// Faults that are held up for a second in all, if each brings one page into a group that is at twice its ram.high.
const DELAY_FAULTS: u64 = 32;

/// Charges `n` pages for work that comes next; see [`ThreadCtx::in_flight`].
pub(crate) fn charge_ahead(space: &Space, ctx: &ThreadCtx, n: usize) -> bool {
    // Frames that are kept for runs go before anything else.
    let mut charged = !space.budget.is_stock_too_large() && space.budget.try_charge(n);
    while !charged && stock::give_up_stock(space, ctx) {
        charged = !space.budget.is_stock_too_large() && space.budget.try_charge(n);
    }
    if charged {
        ctx.in_flight.store(n as u32, Relaxed);
    }
    charged
}

/// Pages that were charged for what comes next. What is not spent is given back when this goes, still inside: a fork by another
/// thread finds each charged page known for what it is.
pub(crate) struct Charge<'a> {
    space: &'a Space,
    left: usize,
    _held: PhantomData<&'a Held>,
}

impl<'a> Charge<'a> {
    /// What [`charge_ahead`] charged last for the calling thread.
    pub(crate) fn take(space: &'a Space, ctx: &ThreadCtx, _held: &'a Held) -> Self {
        // Only its own thread changes it.
        let left = ctx.in_flight.load(Relaxed) as usize;
        ctx.in_flight.store(0, Relaxed);
        Self { space, left, _held: PhantomData }
    }

    /// Pages that are not spent yet.
    pub(crate) fn left(&self) -> usize {
        self.left
    }

    /// So many are what they were charged for, as far as there are so many.
    pub(crate) fn spend(&mut self, n: usize) {
        self.left -= n.min(self.left);
    }

    /// Ends it without a look at what the tree may have back, where nothing is left.
    pub(crate) fn end(self) {
        if self.left == 0 {
            core::mem::forget(self);
        }
    }
}

impl Drop for Charge<'_> {
    fn drop(&mut self) {
        // Also of nothing: what the process has in hand goes back to the tree where that is short.
        self.space.budget.uncharge(self.left);
    }
}

/// What became of a page that a group pays for.
pub enum Brought {
    /// See [`In`].
    In(In),
    /// Not even the one page fits: this group's limit is met, or its subtree's. Nothing was done.
    Over(Target),
}

/// Brings a page in at the expense of its region's group: [`swapin::bring`] with `want.group` charged.
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
    // Read-ahead is for when there is room: the page itself comes in without it.
    let whole = groups.try_charge_ram(want.group, want.window);
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

/// The calling thread has brought `n` pages into a group: if that is above its ram.high, has it reclaimed in the
/// background, and holds the thread up the longer the further it is above; the cycles that this took. Outside the gate.
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
    // The group may be gone by now, and another have its place: then that one is looked at, which harms nobody.
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
    // The kernel's curve: with the square of the part that it is above (`calculate_high_delay`).
    let delay_ns = 1_000_000_000u64.saturating_mul(over).saturating_mul(over) / high / high;
    let delay_ns = (delay_ns.saturating_mul(n as u64) / DELAY_FAULTS).min(DELAY_MAX_NS);
    if delay_ns >= DELAY_MIN_NS {
        uapi::futex_wait(&AtomicU32::new(0), 0, Some(delay_ns));
    }
}
