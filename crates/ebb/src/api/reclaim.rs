//! Gives up memory on demand, however much room the budget has: what `ebb reclaim` asks a process for.
//!
//! The order is that of all reclaim: units that have not been used for long first, through staging, to where a page goes by
//! itself. Three things differ, because somebody wants the memory now:
//!
//! * A page goes only to where that frees memory. While the budget has plenty of room, reclaim would otherwise keep pages that
//!   do not compress in the pool.
//! * A page that does not reach its place is mapped again, and the next one is tried. Otherwise staging would soon be full of
//!   such pages.
//! * The caller may demand a place ([`ReclaimTo`]).
//!
//! The program may touch all of it again at once. It then takes the memory as it takes any other.

use crate::base::uapi;
use crate::memory::table::UNIT_PAGES;
use crate::pages::stock;
use crate::places::swapspace::Aim;
use crate::places::work::Work;
use crate::space::Space;
use crate::threads::ctx::ThreadCtx;
use crate::tree::now_ms;
use crate::way_out::{cooling, faulty, publish, reclaim, shrink, swapout, sweep};
use core::sync::atomic::AtomicU32;

/// Steps in a row without progress after which there is nothing more to give. Other threads may have in hand what there is.
const IDLE_STEPS_MAX: u32 = 20;
/// How long to wait after each of them.
const IDLE_NS: u64 = 1_000_000;
/// How long to wait for another thread that is about to have made some objects cold.
const BUSY_NS: u64 = 100_000;
/// A round over all pages in memory must free at least one part in so many of them, or it is the last.
const ROUND_PART: usize = 64;

/// Objects of the pool that one step makes cold.
const COOL_STEP: usize = 32;

/// Where the content goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReclaimTo {
    /// Where it goes by itself: to the pool, and to a device if the pool takes no more or the content does not compress.
    Usual,
    /// Only to the pool.
    Pool,
    /// Only to the pool, and there to its cold tier. What is in the pool already becomes cold first.
    Cold,
    /// Only to a device. What is in the pool goes first, the oldest before the rest.
    Device,
}

/// What a call of [`Space::reclaim`] is to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reclaim {
    /// How many pages to give up; a few more may go.
    pub pages: usize,
    /// Where they go.
    pub to: ReclaimTo,
    /// Also gives up pages that are shared since a fork. They are free only when all their holders have given them up.
    pub shared: bool,
}

/// There is no device that takes content.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NoDevice {
    /// There is none at all, or none has room.
    Absent,
    /// The write budgets of all that there are are spent.
    Held,
}

impl core::fmt::Display for NoDevice {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Absent => write!(f, "there is no device that takes content: add one with `Space::swapon`"),
            Self::Held => write!(f, "the write budget of each device is spent: wait, raise one, or add a device"),
        }
    }
}

impl core::error::Error for NoDevice {}

/// How far objects of the pool have become cold.
#[derive(Default)]
struct Cooling {
    /// Slots that were visited since an object was last tried.
    in_vain: u32,
    /// Objects that were not tried in the last round: their pages are in memory, too, or other threads had them in hand.
    left: u64,
    /// True if pages left memory since then.
    may_have_more: bool,
    /// True once all has been looked at again.
    is_second: bool,
}

impl Cooling {
    /// Before a demand ends: has all objects be looked at once more if pages left memory since. Such a page may leave its copy in
    /// the pool. That can be tried then, and is counted among those that could not.
    fn look_again(&mut self) -> bool {
        let is_worth_it = self.may_have_more && !self.is_second;
        if is_worth_it {
            *self = Self { is_second: true, ..Self::default() };
        }
        is_worth_it
    }
}

/// One round over the pages in memory. It ends when as many pages were unmapped as there were at its beginning, or when each
/// unit has had its sweeps: most pages may be such as are left alone.
struct Round {
    pages: usize,
    swept: usize,
    sweeps_left: usize,
    freed: usize,
}

impl Round {
    fn new(space: &Space) -> Self {
        let elsewhere = space.swap.pool_pages() + space.budget.meta_pages();
        Self {
            pages: space.budget.charged().saturating_sub(elsewhere),
            swept: 0,
            // Steps that only make the pool smaller end no round, even where nothing is left to sweep.
            sweeps_left: 1 + space.eviction.units.len() * (UNIT_PAGES / space.sweep_max().max(1) + 1),
            freed: 0,
        }
    }

    /// Counts what a step has done. True if the round has ended, and freed so little that another one is not worth it.
    fn is_last(&mut self, space: &Space, swept: usize, freed: usize) -> bool {
        self.swept += swept;
        self.freed += freed;
        self.sweeps_left = self.sweeps_left.saturating_sub((swept > 0) as usize);
        if self.swept <= self.pages && self.sweeps_left > 0 {
            return false;
        }
        let is_fruitless = self.freed <= self.pages / ROUND_PART;
        *self = Self::new(space);
        is_fruitless
    }
}

/// What is charged at one moment.
struct Charges {
    all: usize,
    /// Tables, buffers and the pool: what a step itself may need.
    own: usize,
}

impl Charges {
    fn now(space: &Space) -> Self {
        Self { all: space.budget.charged(), own: space.budget.meta_pages() + space.swap.pool_pages() }
    }
}

/// Pages that steps have freed, and that they needed for it. Pages that the program takes meanwhile are in neither.
#[derive(Default)]
struct Account {
    freed: usize,
    needed: usize,
}

impl Account {
    /// Adds what a step has changed. Returns how many pages it freed.
    fn add(&mut self, before: &Charges, after: &Charges) -> usize {
        let freed = before.all.saturating_sub(after.all);
        self.freed += freed;
        self.needed += after.all.saturating_sub(before.all).min(after.own.saturating_sub(before.own));
        freed
    }

    /// Pages by which the steps have brought the charge down.
    fn net(&self) -> usize {
        self.freed.saturating_sub(self.needed)
    }
}

impl Space {
    /// Gives up memory until `demand.pages` pages are free, no more can be had, or `keep_going` returns false. Returns how many
    /// pages were freed; pages that the program took meanwhile do not count against them.
    ///
    /// Calls `keep_going` before each step, with the pages freed so far. The caller must not be inside. The budget stays.
    pub fn reclaim(
        &self,
        ctx: &ThreadCtx,
        demand: Reclaim,
        keep_going: &mut dyn FnMut(usize) -> bool,
    ) -> Result<usize, NoDevice> {
        if demand.to == ReclaimTo::Device && faulty::are_all_held(self, ctx) {
            return Err(NoDevice::Held);
        }
        if demand.to == ReclaimTo::Device && !self.swap.has_file() {
            let is_held = faulty::is_held(self, ctx);
            return Err(if is_held { NoDevice::Held } else { NoDevice::Absent });
        }
        // What is free already goes first, and what comes free is not kept.
        let _closed = stock::close_stock(self);
        let (mut account, mut round, mut idle) = (Account::default(), Round::new(self), 0);
        let mut cooling = Cooling::default();
        while account.net() < demand.pages && keep_going(account.net()) {
            // Units touched within half the age of the coldest pages are passed over, as long as there are others.
            publish::publish_ages(self, ctx);
            let coldest_ms = if self.budget.hold_if_lost() { self.tree().member().coldest_ms(now_ms()) } else { None };
            self.eviction.set_young_ms(coldest_ms.unwrap_or(0) / 2);
            self.tree().look();
            let before = Charges::now(self);
            let step = step(self, ctx, demand, &mut cooling);
            self.budget.give_back_unused();
            let freed = account.add(&before, &Charges::now(self));
            let swept = match step {
                Step::Swept(pages) => pages,
                Step::Worked => 0,
                // Is in no round: it is about what is not in memory.
                Step::Cooled => {
                    idle = 0;
                    continue;
                }
                // Who has what cooling works in waits for nobody.
                Step::Busy => {
                    uapi::futex_wait(&AtomicU32::new(0), 0, Some(BUSY_NS));
                    continue;
                }
                Step::Nothing if freed > 0 => 0,
                Step::Nothing if idle + 1 < IDLE_STEPS_MAX => {
                    idle += 1;
                    uapi::futex_wait(&AtomicU32::new(0), 0, Some(IDLE_NS));
                    continue;
                }
                Step::Nothing | Step::End if cooling.look_again() => continue,
                Step::Nothing | Step::End => break,
            };
            idle = 0;
            cooling.may_have_more |= swept > 0 && demand.to == ReclaimTo::Cold;
            if round.is_last(self, swept, freed) && !cooling.look_again() {
                break;
            }
        }
        self.eviction.set_young_ms(0);
        let before = Charges::now(self);
        if demand.to == ReclaimTo::Cold {
            cooling::release(self, ctx, false);
        }
        release_spare(self, ctx);
        account.add(&before, &Charges::now(self));
        self.budget.give_back_unused();
        publish::publish_sizes_outside(self, ctx);
        publish::publish_ages(self, ctx);
        publish::publish_tiers_outside(self, ctx);
        // There may be new objects in the pool, for the background thread to look after.
        self.background.wake_if_started();
        Ok(account.net())
    }
}

/// The outcome of a step.
enum Step {
    /// So many pages were unmapped.
    Swept(usize),
    Worked,
    /// Objects of the pool became cold.
    Cooled,
    /// Objects of the pool are to become cold, and other threads have all that cooling works in.
    Busy,
    /// Nothing made progress now.
    Nothing,
    /// Nothing can.
    End,
}

/// Makes one step of reclaim: sweeps a unit, or stores a part. Outside the gate.
fn step(space: &Space, ctx: &ThreadCtx, demand: Reclaim, cooling: &mut Cooling) -> Step {
    publish::publish_sizes_outside(space, ctx);
    if stock::shrink_stock(space, ctx) {
        return Step::Worked;
    }
    let has_vacated = space.places.staging.has_vacated(space.budget.stocked());
    if has_vacated && swapout::release_vacated(space, ctx) > 0 {
        return Step::Worked;
    }
    if demand.to == ReclaimTo::Cold
        && let Some(step) = cool(space, ctx, cooling)
    {
        return step;
    }
    let is_for_pool = matches!(demand.to, ReclaimTo::Pool | ReclaimTo::Cold);
    let may_use_file = !is_for_pool && space.swap.has_file();
    if !may_use_file && (demand.to == ReclaimTo::Device || space.swap.pool_is_full(&space.budget)) {
        return Step::End;
    }
    let Some(mut work) = space.places.work.try_lease(&space.budget, ctx) else {
        uapi::sched_yield();
        return Step::Nothing;
    };
    if may_use_file && shrink_pool(space, ctx, demand.to, &mut work) {
        return Step::Worked;
    }
    work.set_aim(match demand.to {
        ReclaimTo::Usual => Aim::Free,
        ReclaimTo::Pool | ReclaimTo::Cold => Aim::Pool,
        ReclaimTo::Device => Aim::File,
    });
    let may_copy = demand.shared && !reclaim::copies_are_too_many(space);
    let takes_shared = may_copy || !space.family.shares_much();
    if !space.places.staging.is_full()
        && let Some(pages) = sweep::sweep_next(space, ctx, takes_shared, &mut work)
    {
        return Step::Swept(pages);
    }
    let worked = swapout::swap_out_alone(space, ctx, &mut work)
        // Nothing can be unmapped, and nothing is staged. The content of the pool can still go to the file.
        || may_use_file && empty_pool(space, ctx, &mut work);
    if worked { Step::Worked } else { Step::Nothing }
}

/// Makes some objects of the pool cold. None if there are none to try: a pool that is shared since a fork is left alone.
fn cool(space: &Space, ctx: &ThreadCtx, cooling: &mut Cooling) -> Option<Step> {
    if space.swap.nr_untried() <= cooling.left || space.family.pool_is_shared() {
        return None;
    }
    // Without this, pages would follow that go to the hot tier.
    let Some(done) = cooling::cool_step(space, ctx, 0, COOL_STEP) else { return Some(Step::Busy) };
    cooling.in_vain = if done.tried > 0 { 0 } else { cooling.in_vain.saturating_add(done.looked) };
    if done.is_full || cooling.in_vain >= space.swap.nr_to_look_at() {
        *cooling = Cooling { left: space.swap.nr_untried(), is_second: cooling.is_second, ..Cooling::default() };
    }
    let inside = space.threads.enter(ctx);
    // Spare blocks are kept for pages to come, and fewer come here.
    space.swap.trim(&space.budget);
    drop(inside);
    Some(Step::Cooled)
}

/// Makes the pool smaller: if it is full, or if all is to go to a device. True if that made progress.
fn shrink_pool(space: &Space, ctx: &ThreadCtx, to: ReclaimTo, work: &mut Work) -> bool {
    if to == ReclaimTo::Usual {
        shrink::file_misplaced(space, ctx, work);
        return shrink::shrink_full_pool(space, ctx, work);
    }
    empty_pool(space, ctx, work)
}

/// Writes the oldest objects of the pool to a file. False if nothing moved.
fn empty_pool(space: &Space, ctx: &ThreadCtx, work: &mut Work) -> bool {
    // What other processes share comes free nowhere.
    !space.family.pool_is_shared() && space.swap.pool_pages() > 0 && shrink::empty_pool(space, ctx, work)
}

/// Gives back blocks of the pool that hold nothing any more, and what unused slots cost. Outside the gate.
fn release_spare(space: &Space, ctx: &ThreadCtx) {
    let inside = space.threads.enter(ctx);
    space.swap.trim(&space.budget);
    space.swap.release_unused(&inside, &space.budget);
    drop(inside);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::places::swapspace::StoreResult;
    use crate::space::config::{Config, Force};
    use core::sync::atomic::Ordering::Relaxed;
    use core::time::Duration;
    use ebb_pool::codec;
    use ebb_slots::Slot;

    /// A page that gets clearly smaller by the codec of the cold tier.
    fn text(version: usize) -> [u8; 4096] {
        let mut state = version as u32 + 1;
        core::array::from_fn(|_| {
            state ^= state << 13;
            state ^= state >> 17;
            state ^= state << 5;
            b'a' + (state % 16) as u8
        })
    }

    /// Puts pages into the pool that belong to no memory.
    fn fill_pool(space: &Space, pages: usize) {
        let (mut lz4, mut trials, mut slot) = (codec::Lz4State::new(), codec::Trials::default(), [Slot(0)]);
        for version in 0..pages {
            let (page, mut out) = (text(version), [0; 4096]);
            assert_eq!(space.swap.alloc(0, &space.budget, space.stats, &mut slot), 1);
            let work = (&mut lz4, &mut trials);
            let stored = space.swap.store(&space.budget, space.stats, slot[0], (&page, Aim::Usual), work, &mut out);
            assert!(matches!(stored, StoreResult::Pool(_)));
            space.swap.commit(slot[0]);
        }
    }

    #[test]
    fn what_is_to_become_cold_waits_for_threads_that_have_all_encoders() {
        let force = Force { no_background: true, ..Force::default() };
        let config = Config { ram_bytes: 32 << 20, swap: &[], stats: None, stats_fd: None, force };
        let space = Space::create(&config).expect("userfaultfd");
        fill_pool(space, 500);
        let cold = || space.stats.cooled_pages.load(Relaxed);
        let ctx = space.attach_thread().expect("a context");
        let encoders = [space.swap.codecs.try_encoder(), space.swap.codecs.try_encoder()];
        assert!(encoders.iter().all(Option::is_some) && space.swap.codecs.try_encoder().is_none());
        std::thread::scope(|scope| {
            let reclaim = scope.spawn(|| {
                let ctx = space.attach_thread().expect("a context");
                let demand = Reclaim { pages: usize::MAX, to: ReclaimTo::Cold, shared: false };
                space.reclaim(ctx, demand, &mut |_| true).expect("no device is needed");
                space.detach_thread(ctx);
            });
            // Longer than a demand has patience where there is nothing to do.
            std::thread::sleep(Duration::from_millis(200));
            assert_eq!(cold(), 0);
            drop(encoders);
            reclaim.join().expect("it ends well");
        });
        assert!(cold() > 450, "{} objects became cold", cold());
        space.detach_thread(ctx);
    }

    #[test]
    fn what_a_step_needs_itself_counts_against_it_and_what_the_program_takes_does_not() {
        let mut account = Account::default();
        let charges = |all, own| Charges { all, own };
        assert_eq!(account.add(&charges(1000, 50), &charges(1012, 62)), 0);
        assert_eq!(account.net(), 0);
        assert_eq!(account.add(&charges(1012, 62), &charges(912, 80)), 100);
        assert_eq!(account.net(), 88);
        // The program takes 300 pages, and Ebb 2 for its tables.
        assert_eq!(account.add(&charges(912, 80), &charges(1214, 82)), 0);
        assert_eq!(account.net(), 86);
    }
}
