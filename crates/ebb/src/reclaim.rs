//! Reclaim: who does it and when. Background work between two watermarks; direct work by a thread that would pass the
//! limit.

use crate::ctx::ThreadCtx;
use crate::idle::Idle;
use crate::life::Life;
use crate::page::Tag;
use crate::patience::Patience;
use crate::rest::{IDLE, Rest};
use crate::space::Space;
use crate::stats::{self, Shared};
use crate::swapspace::WriteBack;
use crate::text::Text;
use crate::tree::now_ms;
use crate::uapi::{self, thread};
use crate::work::Work;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};

/// Objects compaction moves in one step.
const COMPACT_STEP: usize = 32;
/// Full clusters of a device that a background round looks through for slots whose pages are clean in memory.
const RECLAIM_CLUSTERS: u32 = 16;

/// How long the background thread waits above the watermark when it has freed something, and at most.
const PAUSE_NS: u64 = 1_000_000;
const PAUSE_NS_MAX: u64 = 1_000_000_000;

/// How long it waits for the death of children that hold what the process gave up, first and at most.
const HEIRS_NS: u64 = 1_000_000_000;
const HEIRS_NS_MAX: u64 = 64_000_000_000;

/// How long who runs short waits for another process, before it reclaims itself.
const ASKED_WAIT_NS: u64 = 2_000_000;
/// How long who finds stock counted that is not there waits for those who are at it.
const STOCK_WAIT_NS: u64 = 50_000;
/// The part of the budget by which copies in RAM of what others keep may pass it.
const COPIES_PART: i64 = 4;
/// Steps of that wait.
const ASKED_STEP_NS: u64 = 100_000;
/// How long the process goes on without the thread after the kernel has refused one.
const REFUSED_MS: u64 = 1000;
/// How often who waits for the thread's end gives its processor up, before it sleeps.
const END_YIELDS: u32 = 8;
/// How long it sleeps: first, and at most.
const END_STEP_NS: u64 = 50_000;
const END_STEP_NS_MAX: u64 = 1_000_000;
/// How often the thread looks whether somebody asks, where it cannot wait for that too (Linux before 5.16).
const ASKED_NS: u64 = 1_000_000_000;

/// The background thread of a space.
pub struct Background {
    enabled: bool,
    /// It reclaims; with one processor it only answers.
    works: bool,
    /// Processors that this process may use.
    cpus: usize,
    /// The last value of [`Shared::asked`] that it knows.
    asked: AtomicU32,
    rest: Rest,
    life: Life,
    /// Asked in the thread that is about to make it: a function, or null.
    may_start: AtomicPtr<()>,
    /// Until then none is made.
    not_before_ms: AtomicU64,
    stack: usize,
    forked: AtomicBool,
    /// Work came while it was at work, perhaps too late for it to see.
    again: AtomicBool,
    /// For how long this process was left alone when it last had too little to give.
    pub(crate) declined_ms: AtomicU64,
    /// The same of what it shares.
    pub(crate) kept_ms: AtomicU64,
    /// Whether the program runs.
    pub(crate) idle: Idle,
    /// The process that the background thread belongs to.
    owner: AtomicU32,
}

impl Background {
    /// Not started yet; never, when not `enabled`. Its stack is reserved now, because later the kernel might put it
    /// where the program has just unmapped something.
    pub fn new(enabled: bool, stats: &Shared) -> Result<Self, uapi::Errno> {
        let cpus = uapi::nr_cpus();
        let stack = if enabled { uapi::reserve(thread::STACK_BYTES)? as usize } else { 0 };
        Ok(Self {
            enabled,
            works: enabled && cpus > 1,
            cpus,
            asked: AtomicU32::new(stats.asked.load(Ordering::Relaxed)),
            rest: Rest::default(),
            life: Life::new(),
            may_start: AtomicPtr::new(core::ptr::null_mut()),
            not_before_ms: AtomicU64::new(0),
            stack,
            forked: AtomicBool::new(false),
            again: AtomicBool::new(false),
            declined_ms: AtomicU64::new(0),
            kept_ms: AtomicU64::new(0),
            idle: Idle::default(),
            owner: AtomicU32::new(uapi::getpid() as u32),
        })
    }

    /// True when it reclaims.
    pub fn works(&self) -> bool {
        self.works
    }

    /// Processors for the program and the background thread, which may have none but the program's.
    pub fn cpus(&self) -> usize {
        if self.works { self.cpus } else { 0 }
    }

    /// True when this process forked or is a fork's child: its pages may be shared.
    pub fn forked(&self) -> bool {
        self.forked.load(Ordering::Relaxed)
    }

    /// True once its thread runs.
    pub fn has_thread(&self) -> bool {
        self.rest.is_started()
    }

    /// Whether its thread has this number.
    pub fn is_thread(&self, tid: u64) -> bool {
        self.life.is(tid)
    }

    /// Wakes the thread, if there is one, for something that it looks at before it sleeps.
    pub fn wake_if_started(&self) {
        if self.rest.is_started() && self.rest.want() {
            let _ = self.wake();
        }
    }

    /// Remembers that there was a fork.
    pub fn set_forked(&self) {
        self.forked.store(true, Ordering::Relaxed);
    }

    /// In fork's child, which has no background thread.
    pub fn reset(&self, stats: &Shared) {
        // What was asked before the child was there does not concern it.
        self.asked.store(stats.asked.load(Ordering::Relaxed), Ordering::Relaxed);
        self.rest.set_ended();
        self.life.reset();
        self.idle.reset();
        // Its parent's pause is none of its own: who never faults is asked all the same.
        self.not_before_ms.store(0, Ordering::Relaxed);
        self.kept_ms.store(0, Ordering::Relaxed);
        self.owner.store(uapi::getpid() as u32, Ordering::Relaxed);
    }

    /// Has `f` asked whether a thread of the program's may make the background thread, in that thread: what it may do, the
    /// background thread may.
    pub fn ask_before_start(&self, f: fn() -> bool) {
        self.may_start.store(f as *mut (), Ordering::Relaxed);
    }

    fn may_start(&self) -> bool {
        let f = self.may_start.load(Ordering::Relaxed);
        // SAFETY: stored by `ask_before_start`, from a function of this type.
        f.is_null() || unsafe { core::mem::transmute::<*mut (), fn() -> bool>(f) }()
    }

    /// Ends the thread, and keeps another from beginning until [`Self::release`]; true when there was one. Its end does not wait
    /// for what the caller has, which is outside the gate. While there is none, who runs short reclaims.
    pub fn hold(&self) -> bool {
        let wait = |turns: u32| match turns.checked_sub(END_YIELDS) {
            None => uapi::sched_yield(),
            Some(n) => {
                let step_ns = (END_STEP_NS << n.min(8)).min(END_STEP_NS_MAX);
                uapi::futex_wait(&AtomicU32::new(0), 0, Some(step_ns));
            }
        };
        let ended = || self.rest.set_ended();
        let wake = || {
            let _ = self.wake();
        };
        self.life.hold(wake, uapi::is_thread_gone, wait, ended)
    }

    /// Ends what [`Self::hold`] began. Another one begins when it is needed, but not within `pause_ms`.
    pub fn release(&self, pause_ms: u64) {
        // What the kernel has refused so far it may allow after the change.
        let not_before_ms = if pause_ms > 0 { now_ms() + pause_ms } else { 0 };
        self.not_before_ms.store(not_before_ms, Ordering::Relaxed);
        self.life.release();
    }

    /// The pause that [`Self::release`] set is over. One after a refusal of the kernel's, which is longer, is not.
    pub fn end_pause(&self, pause_ms: u64) {
        let not_before_ms = self.not_before_ms.load(Ordering::Relaxed);
        if not_before_ms.saturating_sub(now_ms()) <= pause_ms {
            self.not_before_ms.store(0, Ordering::Relaxed);
        }
    }

    /// Makes the thread again that [`Self::hold`] ended, if this thread of the program's may, and it is not too early. True
    /// when there is one.
    pub fn begin_again(&self, space: &Space) -> bool {
        if self.enabled && !self.rest.is_started() {
            self.kick(space);
        }
        self.rest.is_started()
    }

    /// Wakes the thread if it sleeps.
    fn wake(&self) -> bool {
        let slept = self.rest.wake();
        if slept {
            uapi::futex_wake(self.rest.word(), 1);
        }
        slept
    }

    /// Wakes the background thread if `wanted` and it is idle; starts it the first time, and when the process has grown.
    #[inline]
    pub fn kick_if(&self, space: &Space, wanted: bool) {
        if wanted || !self.rest.is_started() {
            self.kick_or_start(space, wanted);
        }
    }

    fn kick_or_start(&self, space: &Space, wanted: bool) {
        let is_free = self.works && wanted && self.rest.want();
        let has_grown = !self.rest.is_started() && space.has_grown();
        if is_free || (self.enabled && has_grown) {
            self.kick(space);
        }
    }

    #[cold]
    fn kick(&self, space: &Space) {
        if self.wake() || !self.can_start() {
            return;
        }
        if self.rest.try_start() && !self.start(space) {
            self.rest.set_ended();
        }
    }

    /// Whether it is of use to try.
    fn can_start(&self) -> bool {
        let not_before_ms = self.not_before_ms.load(Ordering::Relaxed);
        !self.life.is_held() && (not_before_ms == 0 || now_ms() >= not_before_ms) && self.may_start()
    }

    /// Makes the thread; false when that cannot be.
    fn start(&self, space: &Space) -> bool {
        // A process that only shares the memory, as between vfork and exec, would take the thread along when it ends.
        if uapi::getpid() as u32 != self.owner.load(Ordering::Relaxed) || !self.life.try_begin() {
            return false;
        }
        // Asked once more: from here on nobody changes the answer.
        if !self.may_start() {
            self.life.failed();
            return false;
        }
        // The new thread inherits the mask, and there must be no signal it could take.
        let mask = thread::block_signals();
        // SAFETY: the stack is the background thread's alone: there is one at a time, and whoever ends it sees it gone. Every
        // signal is blocked. The entry never returns.
        let started = unsafe { thread::spawn(self.stack as *mut u8, background_main, space as *const Space as usize) };
        match started {
            Ok(tid) => self.life.begun(tid),
            Err(_) => {
                self.not_before_ms.store(now_ms() + REFUSED_MS, Ordering::Relaxed);
                self.life.failed();
            }
        }
        thread::restore_signals(mask);
        started.is_ok()
    }
}

/// Slots that this process gave up, and its children may still hold: when to look again which of those have died.
#[derive(Default)]
struct Heirs {
    given_up: u32,
    pause_ns: u64,
    next_ns: u64,
}

impl Heirs {
    /// In how many nanoseconds to look, after a look at `now_ns` that found so many left: after a pause that is longer each time
    /// that there are as many at its end. None where there are none.
    fn look_in_ns(&mut self, given_up: u32, now_ns: u64) -> Option<u64> {
        let is_as_before = core::mem::replace(&mut self.given_up, given_up) == given_up;
        if !is_as_before || now_ns >= self.next_ns {
            self.pause_ns = if is_as_before { (2 * self.pause_ns).min(HEIRS_NS_MAX) } else { HEIRS_NS };
            self.next_ns = now_ns + self.pause_ns;
        }
        (given_up > 0).then_some(self.next_ns - now_ns)
    }
}

extern "C" fn background_main(space: usize) -> ! {
    // SAFETY: the space that started this thread lives as long as the process.
    let space = unsafe { &*(space as *const Space) };
    thread::set_name(c"ebb-reclaim");
    let Some(ctx) = space.attach_thread() else {
        // Too many threads. It stays "working": nobody may start another on this stack.
        thread::exit();
    };
    let background = &space.background;
    let mut pause_ns = PAUSE_NS;
    let mut heirs = Heirs::default();
    // Held: what it may do is about to change.
    while !background.life.is_held() {
        let hold_ns = space.hold_membership_in_ns();
        let (held, charged) = (space.tree().look().held, space.group.charged());
        if background.works {
            let start = uapi::thread_time_ns();
            space.background_round(ctx);
            stats::add(&space.stats.background_ns, uapi::thread_time_ns() - start);
        }
        if space.group.charged() != charged {
            space.note_books_used(ctx);
        }
        space.look_at_books_in_time(ctx);
        let asked = space.stats.asked.load(Ordering::Acquire);
        if background.asked.swap(asked, Ordering::Relaxed) != asked {
            space.answer();
        }
        let member = space.tree().member();
        let wanted = member.asked.load(Ordering::SeqCst);
        space.give_up_pages(ctx);
        let came_late = background.rest.begin_idle();
        // Sequentially consistent: who asked for another round after this look finds the thread idle, and wakes it.
        let is_wanted = background.again.swap(false, Ordering::SeqCst) || space.read_ahead.is_wanted();
        // It may have another place by now, and is asked there.
        let is_moved = !core::ptr::eq(member, space.tree().member());
        if is_wanted || is_moved || background.life.is_held() {
            background.rest.end_idle();
            continue;
        }
        let is_behind = space.group.is_above_high() || space.groups.is_behind.load(Ordering::Relaxed);
        // Above the watermark: wait a moment for the program to give something back, longer each time that nothing was freed and
        // nobody faulted. At last nothing but a fault, or who asks, wakes this thread.
        let has_freed = space.tree().look().held < held || space.group.charged() < charged;
        let is_busy = !is_behind || came_late || has_freed;
        pause_ns = if is_busy { PAUSE_NS } else { pause_ns.saturating_mul(2) };
        let timeout = (background.works && is_behind && pause_ns <= PAUSE_NS_MAX).then_some(pause_ns);
        let heirs_ns = if background.works { heirs.look_in_ns(space.nr_given_up(ctx), uapi::now_ns()) } else { None };
        let timeout = [timeout, hold_ns, space.look_at_books_in_ns(), heirs_ns].into_iter().flatten().min();
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

impl Space {
    /// Somebody asks for the control socket.
    fn answer(&'static self) {
        let f = self.on_asked.load(Ordering::Relaxed);
        if !f.is_null() {
            // SAFETY: stored by `answer_asks`, from a function of this type.
            let f = unsafe { core::mem::transmute::<*mut (), fn(&'static Self)>(f) };
            f(self);
        }
    }

    /// Slots that this process gave up, and its children may still hold. Outside the gate.
    fn nr_given_up(&self, ctx: &ThreadCtx) -> u32 {
        self.gate.enter(&ctx.gate);
        let given_up = self.swap.devices.own().map(|(_, file)| file.nr_given_up()).sum();
        self.gate.leave(&ctx.gate);
        given_up
    }

    /// Somebody waits for the background thread: for an answer, or for its end.
    pub(crate) fn is_asked(&self) -> bool {
        self.stats.asked.load(Ordering::Relaxed) != self.background.asked.load(Ordering::Relaxed)
            || self.background.life.is_held()
    }

    /// The background thread.
    pub fn background(&self) -> &Background {
        &self.background
    }

    /// Work that is more urgent than to read ahead waits for the background thread.
    pub(crate) fn has_urgent_work(&self) -> bool {
        self.group.is_above_high()
            || self.is_asked()
            || self.is_asked_for_pages()
            || self.groups.is_behind.load(Ordering::Relaxed)
    }

    /// Works until the charge is below the low watermark, no more progress is made, or somebody asks something.
    fn background_round(&self, ctx: &ThreadCtx) {
        let (mut idle_rounds, mut worked) = (0, false);
        self.tree().look();
        self.read_ahead(ctx);
        self.help_page_out(ctx);
        while self.group.is_stock_too_large() && self.shrink_stock(ctx) {}
        if !self.group.is_below_low() {
            self.tree().reap_sometimes();
            self.tree().look();
        }
        // To be woken for a walk is no reason to make more room than background reclaim keeps.
        let is_short = self.group.is_above_high();
        // Who asks something waits for an answer, and where all are short this may go on for long.
        while is_short && !self.group.is_below_low() && idle_rounds < 4 && !self.is_asked() {
            if self.ask_colder(ctx) {
                break;
            }
            if self.reclaim_step(ctx) {
                (idle_rounds, worked) = (0, true)
            } else {
                idle_rounds += 1
            }
            self.tree().look();
        }
        if worked && self.group.is_below_low() {
            self.group.narrow_gap();
        }
        self.reclaim_groups(ctx);
        self.gate.enter(&ctx.gate);
        self.publish_sizes();
        if !self.pool_is_shared() && self.swap.is_fragmented() {
            self.swap.compact(&self.group, self.stats, COMPACT_STEP);
        }
        // Room on a device that is half full is worth more than copies of what is in memory.
        for (_, file) in self.swap.devices.own() {
            file.reclaim_full(RECLAIM_CLUSTERS, &|slot, at| self.reclaim_cache_only(slot, at));
        }
        self.gate.leave(&ctx.gate);
        self.release_all_unused(ctx);
        self.read_ahead.rest();
    }

    pub(crate) fn publish_sizes_outside(&self, ctx: &ThreadCtx) {
        self.gate.enter(&ctx.gate);
        self.publish_sizes();
        self.gate.leave(&ctx.gate);
    }

    /// Gives back what unused slots cost. Outside the gate; each step lets others in.
    pub(crate) fn release_all_unused(&self, ctx: &ThreadCtx) {
        let mut released = 1;
        while released > 0 {
            self.gate.enter(&ctx.gate);
            released = self.swap.release_unused(&self.group);
            self.gate.leave(&ctx.gate);
        }
    }

    /// True when a fault leaves something to do in the background. Asked outside the gate.
    pub(crate) fn has_background_work(&self) -> bool {
        self.group.is_above_high() || self.swap.take_has_unused()
    }

    /// Many slots were freed at once: has what they cost given back, beside the program where that is possible.
    pub(crate) fn release_unused_soon(&self) {
        if self.background.works {
            self.background.again.store(true, Ordering::SeqCst);
            self.background.kick_if(self, true);
        } else {
            // Ends: nothing is allocated meanwhile.
            while self.swap.release_unused(&self.group) > 0 {}
        }
    }

    /// One step of reclaim by any thread, outside the gate: sweeps a unit, or swaps a part out. False when neither
    /// made progress. What is shared with another process since a fork stays, see [`Self::reclaim_shared_step`].
    pub(crate) fn reclaim_step(&self, ctx: &ThreadCtx) -> bool {
        self.publish_sizes_outside(ctx);
        // What costs least comes first.
        if self.staging.has_vacated(self.group.stocked()) && self.release_vacated(ctx) > 0 {
            return true;
        }
        let mut work = self.work.lease();
        let shares_much = self.shares_much();
        let wrote = self.file_misplaced(ctx, &mut work);
        if self.shrink_full_pool(ctx, &mut work) {
            return true;
        }
        if !self.staging.is_full() && self.sweep_next(ctx, !shares_much, &mut work).is_some() {
            return true;
        }
        if self.swap_out_oldest(ctx, &mut work).is_some_and(|freed| freed > 0) {
            return true;
        }
        if self.pool_is_shared() {
            return wrote;
        }
        // Nothing that could be unmapped, nothing staged: what the pool holds can still go to the file.
        let before = self.group.charged();
        self.shrink_pool(ctx, &mut work) || self.group.charged() < before || wrote
    }

    /// The same where nothing is left but what is shared: that frees memory only when the other side gives it up, too.
    pub(crate) fn reclaim_shared_step(&self, ctx: &ThreadCtx) -> bool {
        if !self.shares_much() || self.copies_are_too_many() {
            return false;
        }
        let mut work = self.work.lease();
        // What is staged of the shared is a copy, and nothing is freed before it is stored.
        if !self.staging.is_full() && self.sweep_next(ctx, true, &mut work).is_some() {
            return true;
        }
        let before = self.group.charged();
        self.shrink_pool(ctx, &mut work) || self.group.charged() < before
    }

    /// What others keep is in RAM twice when this process has stored it there: so far beyond the budget and no further.
    fn copies_are_too_many(&self) -> bool {
        let sum = self.tree().look();
        !self.swap.has_file() && -sum.free() > sum.limit / COPIES_PART
    }

    /// Writes some of what a file would rather have than the pool; false when there is nothing such.
    fn file_misplaced(&self, ctx: &ThreadCtx, work: &mut Work) -> bool {
        if self.pool_is_shared() || !self.swap.has_misplaced(&self.group) {
            return false;
        }
        self.gate.enter(&ctx.gate);
        let written = self.write_back(WriteBack::Misplaced, ctx, work);
        self.gate.leave(&ctx.gate);
        written > 0
    }

    /// Makes the pool smaller if it is full. True when it was more than that and gave memory back: what it took while there
    /// was room goes before the program's own pages.
    pub(crate) fn shrink_full_pool(&self, ctx: &ThreadCtx, work: &mut Work) -> bool {
        if self.pool_is_shared() || !self.swap.pool_is_full(&self.group) {
            return false;
        }
        let before = self.group.charged();
        self.shrink_pool(ctx, work);
        if !self.swap.pool_is_over(&self.group) {
            return false;
        }
        self.gate.enter(&ctx.gate);
        self.swap.trim(&self.group);
        self.gate.leave(&ctx.gate);
        self.group.charged() < before
    }

    /// Inside the gate.
    fn write_back(&self, which: WriteBack, ctx: &ThreadCtx, work: &mut Work) -> usize {
        let reclaim = |slot, at| self.reclaim_cache_only(slot, at);
        self.swap.write_back(which, ctx.shard(), &self.group, self.stats, &mut work.pages, &reclaim)
    }

    /// Makes the pool smaller: writes objects back, compacts, frees slots of clean pages, gives empty blocks back. False
    /// when nothing moved.
    pub(crate) fn shrink_pool(&self, ctx: &ThreadCtx, work: &mut Work) -> bool {
        self.gate.enter(&ctx.gate);
        let mut moved = self.write_back(WriteBack::Oldest, ctx, work) > 0;
        // To compact what is shared copies it.
        moved |= !self.pool_is_shared() && self.swap.compact(&self.group, self.stats, COMPACT_STEP) > 0;
        if !moved {
            moved = self.open_some();
            self.swap.trim(&self.group);
            self.swap.release_unused(&self.group);
        }
        self.gate.leave(&ctx.gate);
        moved
    }

    /// Reclaims in the calling thread, outside the gate, until `n` more pages fit, or the stock has some for who can use these.
    pub(crate) fn direct_reclaim(&self, ctx: &ThreadCtx, n: usize, or_stock: bool) {
        self.reclaim_until(ctx, n, or_stock, u64::MAX);
    }

    /// The same, but for so long only; whether they fit.
    pub(crate) fn try_direct_reclaim(&self, ctx: &ThreadCtx, n: usize, for_ns: u64) -> bool {
        self.reclaim_until(ctx, n, false, uapi::now_ns() + for_ns)
    }

    fn reclaim_until(&self, ctx: &ThreadCtx, n: usize, or_stock: bool, until_ns: u64) -> bool {
        stats::add(&self.stats.direct_reclaims, 1);
        self.group.widen_gap();
        self.background.kick_if(self, true);
        let mut idle = Patience::default();
        let (mut waited_ns, mut waits) = (0, false);
        let _closed = (!or_stock).then(|| self.close_stock());
        while !(or_stock && self.has_stock() || self.group.make_room(n)) {
            if until_ns != u64::MAX && uapi::now_ns() >= until_ns {
                return false;
            }
            if self.shrink_stock(ctx) || self.tree().reap_sometimes() > 0 {
                continue;
            }
            if waited_ns < ASKED_WAIT_NS && self.ask_colder(ctx) {
                uapi::futex_wait(&AtomicU32::new(0), 0, Some(ASKED_STEP_NS));
                waited_ns += ASKED_STEP_NS;
                continue;
            }
            if self.reclaim_step(ctx) {
                (idle, waited_ns) = (Patience::default(), 0);
                continue;
            }
            // Nothing here but what is shared: whoever else has memory of its own gives some up first.
            if waited_ns < 2 * ASKED_WAIT_NS && self.ask_older(0) {
                uapi::futex_wait(&AtomicU32::new(0), 0, Some(ASKED_STEP_NS));
                waited_ns += ASKED_STEP_NS;
                continue;
            }
            waited_ns = 0;
            if self.reclaim_shared_step(ctx) {
                idle = Patience::default();
                continue;
            }
            // Who may go on without it keeps nobody else from it.
            let has_a_claim = until_ns == u64::MAX && idle.has_a_claim();
            if has_a_claim {
                self.tree().page().wait(self.tree().id(), now_ms());
            } else if waits {
                self.tree().page().wait_no_more(self.tree().id());
            }
            waits = has_a_claim;
            self.ask_largest(idle.is_long());
            if !idle.wait(self.tree().look().held as usize) {
                // Of several that wait for the same one ends, and leaves what it held to the others.
                if self.tree().page().may_give_up(self.tree().id(), now_ms()) {
                    self.give_up(ctx);
                }
                idle = Patience::default();
            }
        }
        if waits {
            self.tree().page().wait_no_more(self.tree().id());
        }
        // What the charge met may be stock that somebody is about to take out, or to put in, and who does not run now.
        if self.group.stocked() > 0 && !self.has_stocked_frames(ctx) {
            uapi::futex_wait(&AtomicU32::new(0), 0, Some(STOCK_WAIT_NS));
        }
        true
    }

    /// Whether the stock has frames that nobody has taken out. Outside the gate, as the ring's lock must not be held at a fork.
    fn has_stocked_frames(&self, ctx: &ThreadCtx) -> bool {
        self.gate.enter(&ctx.gate);
        let has_frames = self.stock.has_frames();
        self.gate.leave(&ctx.gate);
        has_frames
    }

    /// The kernel had no memory for a page although the budget allows one: frees a few units' worth.
    #[cold]
    pub(crate) fn relieve_kernel(&self, ctx: &ThreadCtx) {
        self.group.note_kernel_short();
        let _closed = self.close_stock();
        let mut idle = Patience::default();
        let target = self.group.charged().saturating_sub(4 * self.sweep_max());
        while self.group.charged() > target {
            if self.shrink_stock(ctx) || self.reclaim_step(ctx) {
                idle = Patience::default();
            } else if !idle.wait(self.group.charged()) {
                self.fatal(b"the kernel has no memory left: a cgroup limit is below --ram; give a smaller --ram");
            }
        }
    }

    /// Where the charge is, for the last message.
    fn print_charge(&self, ctx: &ThreadCtx) {
        self.gate.enter(&ctx.gate);
        let (mut present, mut pinned) = (0usize, 0usize);
        for region in self.regions.all() {
            self.table.for_each_content(region.start, region.end, |_, word| {
                let state = word.load();
                present += (state.tag() == Tag::Present) as usize;
                pinned += state.is_pinned() as usize;
            });
        }
        let mut line = Text::default();
        line.str(b"ebb: pages held ").number(self.group.charged()).str(b" of ").number(self.group.limit());
        line.str(b" (by all processes ").number(self.tree().look().held.max(0) as usize).str(b")");
        line.str(b": resident ").number(present).str(b" (pinned for good ").number(pinned);
        line.str(b", by calls ").number(self.pinned_by_calls());
        line.str(b", clean ").number(self.nr_clean.load(Ordering::Relaxed));
        line.str(b"), staged ").number(self.staging.staged()).str(b", pool ").number(self.swap.pool_pages());
        line.str(b", metadata ").number(self.group.meta_pages()).str(b", units to sweep ").number(self.units.len());
        line.str(b", devices ").number(self.swap.devices.own().count());
        line.str(b" of ").number(self.swap.devices.all().count());
        if let Some(errno) = self.swap.devices.unmade() {
            line.str(b", which cannot be made (errno ").number(errno as usize).str(b")");
        } else if !self.swap.has_file() {
            line.str(b", which take nothing (errno ").number(self.swap.devices.last_errno() as usize).str(b")");
        }
        line.str(b"\n");
        self.gate.leave(&ctx.gate);
        uapi::stderr::say(line.bytes());
    }

    fn give_up(&self, ctx: &ThreadCtx) -> ! {
        self.print_charge(ctx);
        if self.tree().page().sum().held > 2 * self.group.charged() as i64 {
            self.fatal(b"the budget is too small: other processes of the tree hold it and need it; give more --ram");
        }
        if 2 * self.group.meta_pages() > self.group.limit() {
            self.fatal(b"the budget is too small: Ebb's books of all the memory that the program uses take most of it; give more --ram");
        }
        if self.swap.has_file() {
            self.fatal(b"the budget is too small: everything that it holds is pinned; give more --ram");
        }
        if self.swap.devices.unmade().is_some() {
            self.fatal(
                b"out of swap: the pool takes no more, and this process could make no spill file, perhaps because it gave up \
                the right to write files (Landlock) or has another root; give more --ram",
            );
        }
        self.fatal(b"out of swap: neither the pool nor a spill file takes more; give more --ram, or a larger --swap");
    }
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
