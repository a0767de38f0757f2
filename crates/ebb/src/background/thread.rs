//! The background thread: its rounds of work between two watermarks, and its sleep.

use crate::background::{ageing, errand, give};
use crate::base::uapi::{self, thread};
use crate::counters::stats;
use crate::pages::{books, clean, stock};
use crate::protocols::rest::IDLE;
use crate::space::{Space, background, newborn};
use crate::threads::ctx::ThreadCtx;
use crate::way_in::{collapse, readahead};
use crate::way_out::shrink::{self, COMPACT_STEP};
use crate::way_out::{asking, cooling, faulty, group_reclaim, pageout, publish, reclaim, swapout};
use core::sync::atomic::Ordering;

/// Full clusters of a device that one background round searches for slots whose pages are clean in memory.
const RECLAIM_CLUSTERS: u32 = 16;
/// Steps of making objects cold in one round while nothing else makes room.
const ROOM_STEPS: usize = 64;

/// How long the background thread waits above the watermark: after it has freed something, and at most.
const PAUSE_NS: u64 = 1_000_000;
const PAUSE_NS_MAX: u64 = 1_000_000_000;

/// How long it waits before it looks again which children that hold given-up slots have died: at first, and at most.
const HEIRS_NS: u64 = 1_000_000_000;
const HEIRS_NS_MAX: u64 = 64_000_000_000;
/// How often the thread looks whether somebody asks, where it cannot wait for that too (Linux before 5.16).
const ASKED_NS: u64 = 1_000_000_000;

/// Slots that this process gave up and its children may still hold: when to look again which children have died.
#[derive(Default)]
struct Heirs {
    given_up: u32,
    pause_ns: u64,
    next_ns: u64,
}

impl Heirs {
    /// Nanoseconds until the next look, after a look at `now_ns` found `given_up` slots left. None when there are none.
    /// If as many slots are left at the end of a pause, the next pause is twice as long, up to [`HEIRS_NS_MAX`].
    fn look_in_ns(&mut self, given_up: u32, now_ns: u64) -> Option<u64> {
        let is_as_before = core::mem::replace(&mut self.given_up, given_up) == given_up;
        if !is_as_before || now_ns >= self.next_ns {
            self.pause_ns = if is_as_before { (2 * self.pause_ns).min(HEIRS_NS_MAX) } else { HEIRS_NS };
            self.next_ns = now_ns + self.pause_ns;
        }
        (given_up > 0).then_some(self.next_ns - now_ns)
    }
}

pub(crate) extern "C" fn background_main(space: usize) -> ! {
    // SAFETY: the space that started this thread lives as long as the process.
    let space = unsafe { &*(space as *const Space) };
    thread::set_name(c"ebb-reclaim");
    let Some(ctx) = space.attach_thread() else {
        // Too many threads. The state stays "working", so that nobody starts another thread on this stack.
        thread::exit();
    };
    let background = &space.background;
    let mut pause_ns = PAUSE_NS;
    let mut heirs = Heirs::default();
    // When held, the thread ends: what the process may do is about to change.
    while !background.life.is_held() {
        let hold_ns = space.hold_membership_in_ns();
        let (held, charged) = (space.tree().look().held, space.budget.charged());
        if background.works {
            let start = uapi::thread_time_ns();
            background_round(space, ctx);
            stats::add(&space.stats.background_ns, uapi::thread_time_ns() - start);
        }
        if space.budget.charged() != charged {
            books::note_books_used(space, ctx);
        }
        books::look_at_books_in_time(space, ctx);
        let asked = space.stats.asked.load(Ordering::Acquire);
        if background.asked.swap(asked, Ordering::Relaxed) != asked {
            answer(space);
        }
        let member = space.tree().member();
        let wanted = member.asked.load(Ordering::SeqCst);
        give::give_up_pages(space, ctx);
        errand::run_errand(space, ctx);
        let idle_ns = ageing::age_in_time(space, ctx);
        let came_late = background.rest.begin_idle();
        // Sequentially consistent: whoever asks for another round after this look finds the thread idle, and wakes it.
        let is_wanted = background.again.swap(false, Ordering::SeqCst) || space.background.read_ahead.is_wanted();
        // The process may have another place in the tree by now, and is asked there.
        let is_moved = !core::ptr::eq(member, space.tree().member());
        if is_wanted || is_moved || background.life.is_held() {
            background.rest.end_idle();
            continue;
        }
        // Families are large. What each process of one has in hand while it rests counts as held, and others may need it.
        if space.family.is_sharing() && space.budget.charged() == charged {
            space.budget.give_back_unused();
        }
        let is_behind = space.budget.is_above_high() || space.groups.is_behind.load(Ordering::Relaxed);
        // Above the watermark, wait a moment for the program to give something back. The wait is longer each time that
        // nothing was freed and nobody faulted. In the end only a fault, or somebody who asks, wakes this thread.
        let has_freed = space.tree().look().held < held || space.budget.charged() < charged;
        let is_busy = !is_behind || came_late || has_freed;
        pause_ns = if is_busy { PAUSE_NS } else { pause_ns.saturating_mul(2) };
        let timeout = (background.works && is_behind && pause_ns <= PAUSE_NS_MAX).then_some(pause_ns);
        let heirs_ns = if background.works { heirs.look_in_ns(nr_given_up(space, ctx), uapi::now_ns()) } else { None };
        let cooling_ns = if background.works { cooling::look_in_ns(space) } else { None };
        let timeouts = [timeout, hold_ns, books::look_at_books_in_ns(space), heirs_ns, idle_ns, cooling_ns];
        let timeout = timeouts.into_iter().flatten().min();
        let shared = [(&space.stats.asked, asked), (&member.asked, wanted)];
        let word = background.rest.word();
        if !uapi::futex_wait_any(word, IDLE, shared, timeout) {
            uapi::futex_wait(word, IDLE, timeout.or(Some(ASKED_NS)));
        }
        background.rest.end_idle();
    }
    space.detach_thread(ctx);
    thread::exit();
}

/// Answers somebody who asks for the control socket.
fn answer(space: &'static Space) {
    let f = space.background.on_asked.load(Ordering::Relaxed);
    if !f.is_null() {
        // SAFETY: stored by `answer_asks`, from a function of this type.
        let f = unsafe { core::mem::transmute::<*mut (), fn(&'static Space)>(f) };
        f(space);
    }
}

/// Slots that this process gave up and its children may still hold. Outside the gate.
fn nr_given_up(space: &Space, ctx: &ThreadCtx) -> u32 {
    let inside = space.threads.enter(ctx);
    let given_up = space.swap.devices.own(&inside).map(|(_, file)| file.nr_given_up()).sum();
    drop(inside);
    given_up
}

/// Helps to store the folio that another thread stores now.
fn help_to_store(space: &Space, ctx: &ThreadCtx) {
    // A buffer is charged from its first use on.
    if space.places.staging.has_offer()
        && let Some(mut work) = space.places.work.try_lease(&space.budget, ctx)
    {
        // Threads that page out wait for what this thread has in hand.
        space.background.page_out.parts.fetch_add(1, Ordering::Release);
        swapout::help(space, ctx, &mut work);
        space.background.page_out.parts.fetch_add(1, Ordering::Release);
    }
}

/// Works until the charge is below the low watermark, no more progress is made, or somebody asks for something.
fn background_round(space: &Space, ctx: &ThreadCtx) {
    let (mut idle_rounds, mut worked) = (0, false);
    space.tree().look();
    help_to_store(space, ctx);
    readahead::read_ahead(space, ctx);
    faulty::say_news(space, ctx);
    pageout::help_page_out(space, ctx);
    if let Some(unit) = space.places.folios.take_suggested() {
        collapse::collapse_hot(space, ctx, unit);
    }
    while space.budget.is_stock_too_large() && stock::shrink_stock(space, ctx) {}
    if !space.budget.is_below_low() {
        space.tree().reap_sometimes();
        newborn::reap_sometimes(space, ctx);
        space.tree().look();
    }
    // Being woken for a walk is no reason to make more room than background reclaim keeps.
    let is_short = space.budget.is_above_high();
    // Somebody who asks waits for an answer, and where all processes are short this loop may run for long.
    let is_asked = || background::is_asked(space) || errand::is_wanted(space);
    while is_short && !space.budget.is_below_low() && idle_rounds < 4 && !is_asked() {
        if asking::ask_colder(space, ctx) {
            break;
        }
        if reclaim::reclaim_step(space, ctx) {
            (idle_rounds, worked) = (0, true)
        } else {
            idle_rounds += 1
        }
        // Each step may write, and so need a run.
        shrink::clean_file(space, ctx);
        space.tree().look();
    }
    // What is in the pool becomes cold before its time, if nothing else makes room.
    if idle_rounds >= 4 {
        let mut rooms = 0..ROOM_STEPS;
        while rooms.next().is_some()
            && !space.budget.is_below_low()
            && !is_asked()
            && cooling::cool_for_room(space, ctx)
        {}
    }
    if worked && space.budget.is_below_low() {
        space.budget.narrow_gap();
    }
    group_reclaim::reclaim_groups(space, ctx);
    let inside = space.threads.enter(ctx);
    publish::publish_sizes(space, &inside);
    if !space.family.pool_is_shared() && space.swap.is_fragmented() {
        space.swap.compact(&inside, &space.budget, space.stats, COMPACT_STEP);
    }
    // Room on a device that is half full is worth more than copies of what is in memory.
    let reclaim = |slot, at| clean::reclaim_cache_only(space, &inside, slot, at);
    for (_, file) in space.swap.devices.own(&inside) {
        file.reclaim_full(RECLAIM_CLUSTERS, &reclaim);
    }
    if space.swap.devices.own(&inside).any(|(_, file)| file.is_short()) {
        space.swap.reclaim_packed(&inside, &reclaim, false);
    }
    drop(inside);
    let is_wanted = || reclaim::has_urgent_work(space) || space.background.read_ahead.is_wanted();
    while !is_wanted() && shrink::clean_file(space, ctx) {}
    if !is_wanted() {
        cooling::cool_in_spare_time(space, ctx);
    }
    publish::publish_tiers_outside(space, ctx);
    shrink::release_all_unused(space, ctx);
    space.background.read_ahead.rest();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_waits_for_its_childrens_death_looks_more_and_more_rarely() {
        let mut heirs = Heirs::default();
        let mut seconds = |at: u64, given_up| heirs.look_in_ns(given_up, at * HEIRS_NS).map(|ns| ns / HEIRS_NS);
        assert_eq!(seconds(100, 0), None);
        assert_eq!([101, 102, 104, 108].map(|at| seconds(at, 500)), [1, 2, 4, 8].map(Some));
        // A look in between does not count.
        assert_eq!([110, 115, 116, 132].map(|at| seconds(at, 500)), [6, 1, 16, 32].map(Some));
        assert_eq!([164, 228, 300].map(|at| seconds(at, 500)), [64; 3].map(Some));
        assert_eq!(
            [(301, 400), (302, 400), (303, 0), (304, 7)].map(|(at, n)| seconds(at, n)),
            [Some(1), Some(2), None, Some(1)]
        );
    }
}
