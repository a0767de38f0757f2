//! The background thread of a space: whether it exists, and how it is started, woken, held and ended. Its work is in
//! `background`.

use crate::base::idle::Idle;
use crate::base::uapi::{self, thread};
use crate::counters::stats::Shared;
use crate::protocols::life::Life;
use crate::protocols::rest::Rest;
use crate::space::Space;
use crate::space::cooling::Cooling;
use crate::space::page_out::PageOut;
use crate::space::read_ahead::ReadAhead;
use crate::tree::now_ms;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};

/// How long the process goes on without the thread after the kernel has refused one.
const REFUSED_MS: u64 = 1000;
/// How often a thread that waits for the background thread's end yields its processor before it sleeps.
const END_YIELDS: u32 = 8;
/// How long it then sleeps: at first, and at most.
const END_STEP_NS: u64 = 50_000;
const END_STEP_NS_MAX: u64 = 1_000_000;

/// The background thread of a space.
pub struct Background {
    pub(crate) enabled: bool,
    /// True when the thread reclaims. With one processor it only answers.
    pub(crate) works: bool,
    /// Processors that this process may use.
    pub(crate) cpus: usize,
    /// The last value of [`Shared::asked`] that the thread knows.
    pub(crate) asked: AtomicU32,
    pub(crate) rest: Rest,
    pub(crate) life: Life,
    /// Function to ask in the thread that is about to make the background thread, or null.
    pub(crate) may_start: AtomicPtr<()>,
    /// Time before which no thread is made, in milliseconds as [`now_ms`] gives them; 0 for none.
    pub(crate) not_before_ms: AtomicU64,
    pub(crate) stack: usize,
    pub(crate) forked: AtomicBool,
    /// Work came while the thread was at work, perhaps too late for it to see.
    pub(crate) again: AtomicBool,
    /// For how many milliseconds this process was left alone when it last had too little to give.
    pub(crate) declined_ms: AtomicU64,
    /// For how many milliseconds it was left alone when it last kept what it shares.
    pub(crate) kept_ms: AtomicU64,
    /// Whether the program is idle.
    pub(crate) idle: Idle,
    /// The process that the background thread belongs to.
    pub(crate) owner: AtomicU32,
    /// Function that the thread calls when somebody asks for the control socket, or null.
    pub(crate) on_asked: AtomicPtr<()>,
    /// The walk that the thread is to read ahead for.
    pub(crate) read_ahead: ReadAhead,
    /// What the thread does for threads that page out.
    pub(crate) page_out: PageOut,
    /// When the thread makes objects of the pool cold.
    pub(crate) cooling: Cooling,
    /// The thread's entry point. It gets the address of the space.
    pub(crate) main: extern "C" fn(usize) -> !,
}

impl Background {
    /// A background thread that is not started yet, and never is when not `enabled`. Its stack is reserved now, because
    /// later the kernel might put it where the program has just unmapped something.
    pub fn new(enabled: bool, stats: &Shared, main: extern "C" fn(usize) -> !) -> Result<Self, uapi::Errno> {
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
            on_asked: AtomicPtr::new(core::ptr::null_mut()),
            read_ahead: ReadAhead::default(),
            page_out: PageOut::default(),
            cooling: Cooling::default(),
            main,
        })
    }

    /// True when the thread reclaims.
    pub fn works(&self) -> bool {
        self.works
    }

    /// Processors for the program and the background thread together; 0 when the thread does not reclaim.
    pub fn cpus(&self) -> usize {
        if self.works { self.cpus } else { 0 }
    }

    /// True when this process has forked or is a fork's child: its pages may be shared.
    pub fn forked(&self) -> bool {
        self.forked.load(Ordering::Relaxed)
    }

    /// True once the thread runs, or is about to be made.
    pub fn has_thread(&self) -> bool {
        self.rest.is_started()
    }

    /// True when the thread has the number `tid`.
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

    /// Begins anew in fork's child, which has no background thread.
    pub fn reset(&self, stats: &Shared) {
        // Whatever was asked before the child existed does not concern it.
        self.asked.store(stats.asked.load(Ordering::Relaxed), Ordering::Relaxed);
        self.rest.set_ended();
        self.life.reset();
        self.idle.reset();
        // The parent's pause is not the child's: a child that never faults is asked for pages all the same.
        self.not_before_ms.store(0, Ordering::Relaxed);
        self.kept_ms.store(0, Ordering::Relaxed);
        self.owner.store(uapi::getpid() as u32, Ordering::Relaxed);
    }

    /// Sets `f`, which says whether a thread of the program may make the background thread. It is asked in that thread:
    /// the background thread may do whatever that thread may do.
    pub fn ask_before_start(&self, f: fn() -> bool) {
        self.may_start.store(f as *mut (), Ordering::Relaxed);
    }

    fn may_start(&self) -> bool {
        let f = self.may_start.load(Ordering::Relaxed);
        // SAFETY: stored by `ask_before_start`, from a function of this type.
        f.is_null() || unsafe { core::mem::transmute::<*mut (), fn() -> bool>(f) }()
    }

    /// Ends the thread, and keeps another from beginning until [`Self::release`]. True when there was one. The thread's
    /// end must not depend on anything that the caller holds: the caller is outside the gate. While there is no thread,
    /// threads that run short reclaim.
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

    /// Undoes [`Self::hold`]. A new thread begins when it is needed, but not within `pause_ms` milliseconds.
    pub fn release(&self, pause_ms: u64) {
        // The kernel may allow after the change what it refused before.
        let not_before_ms = if pause_ms > 0 { now_ms() + pause_ms } else { 0 };
        self.not_before_ms.store(not_before_ms, Ordering::Relaxed);
        self.life.release();
    }

    /// Ends the pause that [`Self::release`] set to `pause_ms`. A pause after a refusal by the kernel is longer, and
    /// goes on.
    pub fn end_pause(&self, pause_ms: u64) {
        let not_before_ms = self.not_before_ms.load(Ordering::Relaxed);
        if not_before_ms.saturating_sub(now_ms()) <= pause_ms {
            self.not_before_ms.store(0, Ordering::Relaxed);
        }
    }

    /// Makes a new thread after [`Self::hold`] ended the last one, if the calling thread may make one and it is not too
    /// early. True when there is a thread.
    pub fn begin_again(&self, space: &Space) -> bool {
        if self.enabled && !self.rest.is_started() {
            self.kick(space);
        }
        self.rest.is_started()
    }

    /// Wakes the thread if it sleeps; true when it did.
    fn wake(&self) -> bool {
        let slept = self.rest.wake();
        if slept {
            uapi::futex_wake(self.rest.word(), 1);
        }
        slept
    }

    /// Wakes the background thread if `wanted` and it is idle. Starts it if there is none, and it is wanted or the
    /// process has grown.
    #[inline]
    pub fn kick_if(&self, space: &Space, wanted: bool) {
        if wanted || !self.rest.is_started() {
            self.kick_or_start(space, wanted);
        }
    }

    fn kick_or_start(&self, space: &Space, wanted: bool) {
        let is_free = self.works && wanted && self.rest.want();
        let has_grown = !self.rest.is_started() && space.budget.has_grown();
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

    /// True when starting the thread is worth a try.
    fn can_start(&self) -> bool {
        let not_before_ms = self.not_before_ms.load(Ordering::Relaxed);
        !self.life.is_held() && (not_before_ms == 0 || now_ms() >= not_before_ms) && self.may_start()
    }

    /// Makes the thread. False when that is not possible.
    fn start(&self, space: &Space) -> bool {
        // A process that only shares the memory, as between vfork and exec, would take the thread along when it ends.
        if uapi::getpid() as u32 != self.owner.load(Ordering::Relaxed) || !self.life.try_begin() {
            return false;
        }
        // Asked once more: from here on, nobody can change the answer.
        if !self.may_start() {
            self.life.failed();
            return false;
        }
        // The new thread inherits the signal mask, and must never take a signal.
        let mask = thread::block_signals();
        // SAFETY: the stack is the background thread's alone: there is one thread at a time, and whoever ends it sees
        // that it is gone. Every signal is blocked. The entry never returns.
        let started = unsafe { thread::spawn(self.stack as *mut u8, self.main, space as *const Space as usize) };
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

/// True when somebody waits for the background thread: for an answer, or for its end.
pub(crate) fn is_asked(space: &Space) -> bool {
    space.stats.asked.load(Ordering::Relaxed) != space.background.asked.load(Ordering::Relaxed)
        || space.background.life.is_held()
}
