//! Serves a fault, in the thread that took it.

use crate::base::events::{self, Ahead, Kind};
use crate::base::{PAGE, clock, uapi};
use crate::counters::stats;
use crate::memory::region::Region;
use crate::memory::table::{UNIT_BYTES, UNIT_PAGES};
use crate::pages::clean::{self, OPEN_MAX};
use crate::pages::{books, stock};
use crate::places::frames::{RUN_MAX, RUN_MIN};
use crate::protocols::page::{State, Tag};
use crate::protocols::primitive::waiting;
use crate::space::Space;
use crate::threads::ctx::{SAMPLE_EVERY, ThreadCtx, WINDOW_MAX};
use crate::way_in::charged::{self, Brought, Charge};
use crate::way_in::readahead::{self, Limits};
use crate::way_in::swapin::{In, Want};
use crate::way_in::unreadable::{self, Asker};
use crate::way_in::whole::{self, Folio};
use crate::way_in::{early, extent, prefetch, reach, spurious, window};
use crate::way_out::{faulty, filter, group_reclaim, reclaim};

/// The outcome of a fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// The instruction can go on. The page is there, or is no longer Ebb's, and the kernel is to be asked again.
    Resolved,
    /// Ebb does not manage the page: the fault is the program's own.
    NotManaged,
    /// The page's content cannot be read.
    Unreadable,
}

impl Space {
    /// Serves a fault of the calling thread at `addr`. All signals must be blocked.
    pub fn fault(&self, ctx: &ThreadCtx, addr: usize, write: bool) -> Fault {
        let start = clock::cycles();
        let started_ns = ctx.is_sampled().then(uapi::thread_time_ns);
        let (fault, reclaim) = serve(self, ctx, addr, write);
        if let Some(started_ns) = started_ns {
            let ns = uapi::thread_time_ns().saturating_sub(started_ns);
            stats::add(&self.stats.fault_cpu_ns, ns * u64::from(SAMPLE_EVERY));
        }
        let end = clock::cycles();
        self.stats.stalls.note(start, end);
        let total = end.saturating_sub(start);
        stats::add(&self.stats.fault_ns, clock::ns(total.saturating_sub(reclaim)));
        if reclaim > 0 {
            stats::add(&self.stats.direct_reclaim_ns, clock::ns(reclaim));
        }
        fault
    }
}

/// The plan for one attempt to serve a fault.
#[derive(Clone, Copy)]
struct Plan {
    /// Pages to bring in for a walk; 0 means just this page: no sequential pattern seen.
    next_window: u32,
    /// Pages to bring in around the page, if the fault is no step of a walk.
    around: usize,
    /// The most pages that the attempt may bring in: the larger of the two, and of a walk's what one read may bring.
    most: usize,
    /// Whether the pages could come by MOVE, if there are frames for them.
    may_move: bool,
    /// Whether they come by MOVE: there are frames, and MOVE is to be used.
    by_move: bool,
    /// Pages that are charged for the attempt.
    want: usize,
    /// The device that had the content of the page when the fault began.
    device: Option<usize>,
}

impl Plan {
    fn new(
        space: &Space,
        page: usize,
        write: bool,
        (next_window, device): (u32, Option<usize>),
        around: usize,
        (tries_move, piece): (bool, usize),
    ) -> Self {
        // A block around the page is aligned as it is.
        let window = extent::to_run_end(space, page, next_window as usize).max(around);
        let state = space.table.word(page).map(|word| word.load());
        let may_move = tries_move && state.is_some_and(|state| stock::may_move_in(space, page, state, window));
        let by_move = may_move && state.is_some_and(|state| stock::has_frames_for(space, state));
        // A write to a page that is only clean needs no memory. A write to a shared page needs a copy.
        let want = match state.filter(|state| write && state.is_protected()) {
            Some(state) => state.is_shared() as usize * OPEN_MAX,
            None if by_move => 0,
            None => window.min(piece),
        };
        Self { next_window, around, most: window, may_move, by_move, want, device }
    }
}

/// The outcome of an attempt.
enum Attempt {
    /// Ebb does not manage the page.
    NotManaged,
    /// A call is about to replace the page's mapping, or to take it away.
    Hidden,
    /// The page may be written now.
    Opened,
    /// The plan no longer applies.
    Again,
    Brought(Brought, Region, Where),
}

/// The first page that came in, and the state in which the faulting page was found.
#[derive(Clone, Copy)]
struct Where {
    from: usize,
    state: State,
}

/// Makes one attempt. Only work that must wait until the thread has left the gate remains for the caller.
fn attempt(space: &Space, ctx: &ThreadCtx, page: usize, write: bool, plan: &Plan) -> Attempt {
    let inside = space.threads.enter(ctx);
    let mut charge = Charge::take(space, ctx, &inside);
    // One look: between two, a call under way might end.
    let Some(region) = space.regions.find_any(&inside, page) else { return Attempt::NotManaged };
    if region.attr.is_hidden() {
        return Attempt::Hidden;
    }
    let Some(word) = space.table.word(page) else { return Attempt::NotManaged };
    let state = word.load();
    if write && state.is_protected() {
        charge.spend(clean::open_for_write(space, &inside, page, word, state, region.end, charge.left()));
        return Attempt::Opened;
    }
    if plan.want == 0 && !plan.by_move {
        // The plan was to write to a clean page, and the page is no longer clean.
        return Attempt::Again;
    }
    let (group, by_move) = (region.group, plan.by_move);
    let mut asked =
        Want { window: plan.want, used: 0, end: region.end, write, ahead: false, group, force: false, by_move };
    let (mut from, mut from_word) = (page, word);
    if by_move {
        asked.window = plan.most.min(RUN_MAX);
    } else if plan.around > plan.next_window as usize {
        asked.window = plan.next_window.max(1) as usize;
        // The space has plenty of room, but a group may have none.
        if state == State::NONE && group.is_root() {
            (from, asked.window) = window::block_around(space, page, plan.around, region.start);
            from_word = space.table.word(from).unwrap_or(word);
        }
    }
    debug_assert!(by_move || asked.window <= charge.left(), "more may come in than is charged");
    if !by_move && !group.is_root() {
        asked.window = asked.window.min(extent::window_of(space, space.groups.ram_max(group)));
    }
    let brought = match by_move && !region.attr.is_plain() {
        true => Brought::In(In::NotByMove),
        false => charged::bring_charged(space, &inside, ctx, from, from_word, state, asked),
    };
    if let Brought::In(In::Mapped(n)) = brought
        && !by_move
    {
        charge.spend(n);
    }
    charge.end();
    Attempt::Brought(brought, region, Where { from, state })
}

/// Brings in a page that nobody has touched yet and that somebody is about to write to, if there is room for it.
pub(crate) fn touch_ahead(space: &Space, ctx: &ThreadCtx, page: usize) {
    let is_untouched = || space.table.word(page).is_some_and(|word| word.load() == State::NONE);
    if !is_untouched() || !charged::charge_ahead(space, ctx, 1) {
        return;
    }
    // Whatever does not work out now, the first access does.
    let plan = Plan { next_window: 0, around: 1, most: 1, may_move: false, by_move: false, want: 1, device: None };
    if let Attempt::Brought(Brought::In(In::Mapped(_)), ..) = attempt(space, ctx, page, true, &plan) {
        rest_beside(space, ctx);
    }
}

/// Does the work outside the gate that follows when `n` pages came in for a fault at `addr`. Returns the cycles for which a group
/// delayed the thread.
fn came_in(
    space: &Space,
    ctx: &ThreadCtx,
    (addr, n): (usize, usize),
    write: bool,
    plan: &Plan,
    region: Region,
    Where { from, state }: Where,
) -> u64 {
    let page = addr & !(PAGE - 1);
    space.budget.count_fault();
    events::record(Kind::Fault, page, 1, state.tag() as u64 | (write as u64) << 8);
    if plan.may_move && region.attr.is_plain() {
        stock::note_demand(space, n, state);
    }
    match state.tag() {
        Tag::None => stats::add(&space.stats.faults_first_touch, 1),
        Tag::Staged => {
            stats::add(&space.stats.faults_soft, 1);
            reach::note_staged(space);
        }
        _ => {}
    }
    let piece = if plan.by_move { RUN_MIN } else { plan.want.min(WINDOW_MAX) };
    let end = if n < piece || state.tag() == Tag::None {
        from + n * PAGE
    } else {
        let limits = Limits { end: region.end, group: region.group, write };
        readahead::bring_rest(space, ctx, (page, n), plan.next_window as usize, limits)
    };
    window::note_window(space, from, (end - from) / PAGE, plan.next_window, plan.device);
    if plan.next_window <= 1
        && matches!(state.tag(), Tag::Staged | Tag::Swapped)
        && !events::is_filtering()
        // What comes in there does not go out again.
        && !region.attr.is_kept()
        && let Some(rows) = ctx.walker.strides.note(addr)
    {
        events::record(Kind::Ahead, 0, 0, Ahead::Window.of(ctx.shard()));
        prefetch::bring_rows(space, ctx, rows, region.start..region.end, write);
    }
    rest_beside(space, ctx);
    if events::is_over_filter() {
        filter::unmap_to_filter(space, ctx);
    }
    charged::slow_down(space, ctx, region.group, n)
}

/// Does the work outside the gate that follows when a folio came in for a fault on `page`. Returns the cycles for which a group
/// delayed the thread.
fn folio_came_in(space: &Space, ctx: &ThreadCtx, page: usize, write: bool, came: Folio) -> u64 {
    space.budget.count_fault();
    events::record(Kind::Fault, page, 1, came.tag as u64 | (write as u64) << 8);
    match came.tag {
        Tag::None => stats::add(&space.stats.faults_first_touch, 1),
        Tag::Staged => {
            stats::add(&space.stats.faults_soft, 1);
            reach::note_staged(space);
        }
        // It was counted by where its first page was.
        _ => {}
    }
    let window = if came.is_walk { extent::window_max(space) as u32 } else { 0 };
    let start = space.table.unit_start(page);
    window::note_window(space, start, UNIT_PAGES, window, None);
    if came.tag == Tag::Swapped && came.is_walk {
        let limits = Limits { end: came.end, group: came.group, write };
        readahead::ask_ahead(space, ctx, page, start + UNIT_BYTES, limits);
    }
    rest_beside(space, ctx);
    charged::slow_down(space, ctx, came.group, UNIT_PAGES)
}

/// Starts the work that a fault leaves for later, in the background where that is possible.
fn rest_beside(space: &Space, ctx: &ThreadCtx) {
    space.background.kick_if(space, reclaim::has_background_work(space));
    books::note_books_used(space, ctx);
    faulty::say_news(space, ctx);
}

/// Another thread works on the page: in a long walk, brings in what comes next meanwhile. Otherwise, or if nothing came in,
/// waits.
fn wait_for(space: &Space, ctx: &ThreadCtx, page: usize, write: bool, plan: &Plan, end: usize) {
    let is_walk = plan.next_window as usize == extent::window_max(space);
    if (!is_walk || !readahead::go_ahead(space, ctx, page, end, write))
        && let Some(word) = space.table.word(page)
    {
        waiting("page", || word.wait_while_busy());
    }
}

/// Serves the fault at `addr`. Also returns the cycles spent in direct reclaim.
fn serve(space: &Space, ctx: &ThreadCtx, addr: usize, write: bool) -> (Fault, u64) {
    let page = addr & !(PAGE - 1);
    let tag = space.table.word(page).map_or(Tag::None, |word| word.load().tag());
    if let Some(came) = whole::bring(space, ctx, page, tag, write) {
        let delayed = folio_came_in(space, ctx, page, write, came);
        return (Fault::Resolved, delayed);
    }
    let device = extent::device_of(space, page);
    let mut next_window = window::window(space, ctx, page, tag == Tag::Swapped, device);
    let mut around = if tag == Tag::None && next_window == 0 { window::window_around(space, page) } else { 1 };
    let (mut reclaimed, mut tries_move, mut was_hidden, mut failed_tries) = (0, true, false, 0);
    // What a device has comes by one read as far as that goes.
    let mut piece = if next_window > 1 { extent::piece_at(space, page) } else { WINDOW_MAX };
    let mut early = early::Reads::default();
    let timed = |f: &mut dyn FnMut()| {
        let start = clock::cycles();
        f();
        clock::cycles().saturating_sub(start)
    };
    loop {
        let plan = Plan::new(space, page, write, (next_window, device), around, (tries_move, piece));
        let ended = space.regions.ended_hidings();
        if !charged::charge_ahead(space, ctx, plan.want) {
            if plan.want > WINDOW_MAX {
                // Nothing is reclaimed for more.
                piece = WINDOW_MAX;
                continue;
            }
            around = 1;
            reclaimed += timed(&mut || reclaim::direct_reclaim(space, ctx, plan.want, plan.may_move));
            continue;
        }
        if plan.most <= 1 && !plan.by_move {
            early.read(space, ctx, page);
        }
        let (brought, region, at) = match attempt(space, ctx, page, write, &plan) {
            Attempt::Brought(brought, region, at) => (brought, region, at),
            Attempt::Again => continue,
            Attempt::Hidden => {
                space.regions.wait_for_hiding(ended);
                was_hidden = true;
                continue;
            }
            // The instruction is made again, and the kernel knows what is there now. The page may have been taken out of
            // Ebb's hands since the fault.
            Attempt::NotManaged if was_hidden || spurious::may_have_changed(space, ctx, page) => {
                return (Fault::Resolved, reclaimed);
            }
            Attempt::NotManaged => return (Fault::NotManaged, reclaimed),
            Attempt::Opened => {
                rest_beside(space, ctx);
                return (Fault::Resolved, reclaimed);
            }
        };
        match brought {
            Brought::Over(target) => reclaimed += timed(&mut || group_reclaim::reclaim_group(space, ctx, target)),
            Brought::In(In::Mapped(0)) => {
                let fault = spurious::spurious(space, ctx, page, write);
                if fault == Fault::Unreadable {
                    unreadable::report(space, ctx, page, None, Asker::Thread);
                }
                return (fault, reclaimed);
            }
            Brought::In(In::Mapped(n)) => {
                reclaimed += came_in(space, ctx, (addr, n), write, &plan, region, at);
                return (Fault::Resolved, reclaimed);
            }
            Brought::In(In::Retry) => wait_for(space, ctx, page, write, &plan, region.end),
            Brought::In(In::NotByMove) => tries_move = false,
            Brought::In(In::Unreadable(why)) if early.try_again(space, why) => {
                (next_window, around, tries_move) = (0, 1, false);
            }
            Brought::In(In::Unreadable(why)) if unreadable::may_pass(why, &mut failed_tries) => {}
            Brought::In(In::Unreadable(why)) => {
                unreadable::report(space, ctx, page, early.reason(why), Asker::Thread);
                return (Fault::Unreadable, reclaimed);
            }
            Brought::In(In::NotRegistered) => return (Fault::NotManaged, reclaimed),
            Brought::In(In::NoMemory) => {
                // The kernel's limit is tighter than the budget: give memory back and try again.
                (around, piece) = (1, WINDOW_MAX);
                reclaimed += timed(&mut || reclaim::relieve_kernel(space, ctx));
            }
        }
    }
}
