//! What reclaim does about devices that do not work: it waits for those that do not answer and for those whose write budget is spent, and
//! tells the user of these and of those that are closed.
//!
//! Whoever finds out that a device has failed too often, or that a budget is spent, is inside the gate, where nobody may wait for
//! standard error. So that is said later, by whoever reclaims next.

use crate::base::killable;
use crate::base::text::Text;
use crate::base::uapi;
use crate::base::uapi::Errno;
use crate::counters::writes::{BATCH_BYTES, Writes};
use crate::device::DEVICES_MAX;
use crate::device::file::faults::{FAILURES_MAX, WINDOW_NS};
use crate::space::Space;
use crate::threads::ctx::ThreadCtx;

/// How long a thread waits for a budget before it looks whether others have freed memory.
const HELD_WAIT_NS: u64 = 50_000_000;

/// Says which devices were closed since somebody last looked, if any, and which budgets are spent. Outside the gate.
#[inline]
pub(crate) fn say_news(space: &Space, ctx: &ThreadCtx) {
    if space.swap.devices.take_news() {
        say_closed(space, ctx);
    }
    if space.swap.devices.take_held() {
        say_held(space, ctx);
    }
}

/// Whether the write budget of a device is spent. Outside the gate.
#[cold]
pub(crate) fn is_held(space: &Space, ctx: &ThreadCtx) -> bool {
    space.swap.devices.held_ns(&space.threads.enter(ctx)).is_some()
}

/// Whether the write budgets of all devices are. Outside the gate.
#[cold]
pub(crate) fn are_all_held(space: &Space, ctx: &ThreadCtx) -> bool {
    space.swap.devices.are_all_held(&space.threads.enter(ctx))
}

/// Whether write budgets are spent and more of one would help reclaim that finds nothing to do. Outside the gate.
///
/// If nothing here waits for a device, and no other process holds much that may, then no budget would help.
#[cold]
fn would_help(space: &Space) -> bool {
    let (held, charged) = (space.tree().look().held, space.budget.charged() as i64);
    space.places.staging.staged() > 0 || space.swap.pool_pages() > 0 || held > 2 * charged
}

/// What reclaim has seen that finds nothing to free: whether a device may yet take something.
pub(crate) struct Hope {
    was_held: bool,
    answers: u32,
}

impl Hope {
    pub(crate) fn new(space: &Space) -> Self {
        Self { was_held: false, answers: late_answers(space) }
    }

    /// Looks at the devices. If the budgets of all of them are spent, waits until some of one has come back, but not for long:
    /// others may free memory meanwhile. Outside the gate.
    #[cold]
    pub(crate) fn look(&mut self, space: &Space, ctx: &ThreadCtx) {
        if !would_help(space) {
            return;
        }
        let inside = space.threads.enter(ctx);
        let held_ns = space.swap.devices.held_ns(&inside);
        let waits = held_ns.is_some() && space.swap.devices.are_all_held(&inside);
        drop(inside);
        self.was_held |= held_ns.is_some();
        if let Some(ns) = held_ns.filter(|_| waits) {
            killable::sleep(ns.min(HELD_WAIT_NS));
        }
    }

    /// Whether there is hope still: a device does not answer or has answered since, or a budget is spent or was since the last
    /// call. What came back of it may not have been used yet. Outside the gate.
    #[cold]
    pub(crate) fn is_left(&mut self, space: &Space, ctx: &ThreadCtx) -> bool {
        self.look(space, ctx);
        let before = core::mem::replace(&mut self.answers, late_answers(space));
        let was_held = core::mem::take(&mut self.was_held);
        was_held || before != self.answers || is_device_stuck(space, ctx)
    }
}

/// Whether threads wait for a device that does not answer, or have given that up. What they have in hand is still to be stored, so there
/// is hope. Outside the gate.
#[cold]
pub(crate) fn is_device_stuck(space: &Space, ctx: &ThreadCtx) -> bool {
    let inside = space.threads.enter(ctx);
    let is_stuck = space.swap.devices.all(&inside).any(|(_, file)| file.is_late() || file.is_stuck());
    drop(inside);
    is_stuck
}

/// How many transfers that were given up have ended; the count wraps.
fn late_answers(space: &Space) -> u32 {
    space.swap.devices.contexts().nr_reaped()
}

#[cold]
fn say_held(space: &Space, ctx: &ThreadCtx) {
    let inside = space.threads.enter(ctx);
    let mut lines = [const { None }; DEVICES_MAX];
    let own = space.swap.devices.own(&inside);
    let spent = own.filter_map(|(_, file)| {
        let allowance = file.allowance(space.stats)?;
        let (ns, writes) = (allowance.held_ns(), allowance.budget()?);
        (ns > 0 && allowance.may_say()).then(|| describe_held(file.dir().to_bytes(), writes, ns))
    });
    lines.iter_mut().zip(spent).for_each(|(to, line)| *to = Some(line));
    drop(inside);
    lines.iter().flatten().for_each(|line| uapi::stderr::say(line.bytes()));
}

fn describe_held(dir: &[u8], writes: Writes, ns: u64) -> Text {
    let mut line = Text::default();
    let budget = |line: &mut Text| {
        size(line, writes.bytes());
        line.str(b"/").str(writes.period().name().as_bytes());
    };
    line.str(b"ebb: ").str(dir).str(b": the write budget of ");
    budget(&mut line);
    line.str(b" is spent; it takes ");
    size(&mut line, BATCH_BYTES);
    line.str(b" more in ");
    duration(&mut line, ns);
    line.str(b", and from then on as much as comes back; what finds no other place waits for that; add a device with `ebb swapon`, or ");
    line.str(b"raise the budget with `ebb swapon PID file:DIR,writes=SIZE/PERIOD`\n");
    line
}

/// Appends an amount in the largest unit in which it is a whole number.
fn size(line: &mut Text, bytes: u64) {
    let unit = (bytes.trailing_zeros() / 10).min(4);
    line.number((bytes >> (10 * unit)) as usize)
        .str(&b"KMGT"[..][unit.saturating_sub(1) as usize..][..(unit > 0) as usize]);
}

/// Appends a length of time, rounded up.
fn duration(line: &mut Text, ns: u64) {
    let seconds = ns.div_ceil(1_000_000_000);
    let (unit, name) = match seconds {
        ..=120 => (1, &b" s"[..]),
        121..=7200 => (60, &b" min"[..]),
        _ => (3600, &b" h"[..]),
    };
    line.number(seconds.div_ceil(unit) as usize).str(name);
}

#[cold]
fn say_closed(space: &Space, ctx: &ThreadCtx) {
    let devices = &space.swap.devices;
    loop {
        let mut line = Text::default();
        let inside = space.threads.enter(ctx);
        let has_open = devices.has_open(&inside);
        if !has_open {
            // From now on the pool takes what it can.
            space.swap.set_has_file(false);
        }
        let is_more = devices.all(&inside).any(|(_, file)| match file.take_closed() {
            Some(errno) => {
                describe(&mut line, file.dir().to_bytes(), errno, has_open);
                true
            }
            None => false,
        });
        drop(inside);
        if !is_more {
            return;
        }
        uapi::stderr::say(line.bytes());
    }
}

fn describe(line: &mut Text, dir: &[u8], errno: Errno, has_open: bool) {
    line.str(b"ebb: ").str(dir).str(b": ");
    if errno == Errno::ROFS {
        line.str(b"its file system is read-only now (EROFS)");
    } else {
        line.number(FAILURES_MAX as usize).str(b" writes to the spill file failed within ");
        line.number((WINDOW_NS / 60_000_000_000) as usize).str(b" minutes, the last with ").errno(errno);
    }
    line.str(b"; nothing more is written there, but what is there can still be read; check the disk, and ");
    line.str(if has_open {
        b"remove the device with `ebb swapoff`\n"
    } else {
        b"add another device with `ebb swapon`\n"
    });
}
