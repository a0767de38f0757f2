//! What the engine knows of each thread that enters it.
//!
//! Contexts live in one reserved array and are handed out by index; a context that was given back is used again.
//! Background threads have one like any other.

use crate::base::uapi::{self, Errno};
use crate::protocols::gate::GateFlag;
use crate::protocols::pin::Pins;
use crate::threads::walker::Walker;
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// Most threads at a time.
pub const THREADS_MAX: usize = 32_768;
/// Pages that are brought in at once at most.
pub const WINDOW_MAX: usize = 16;

/// One thread's context. Only its own thread changes it, but for what eviction reads: the gate flag and the pins.
#[repr(C, align(128))]
pub struct ThreadCtx {
    pub(crate) gate: GateFlag,
    pub(crate) pins: Pins,
    used: AtomicU32,
    /// Consecutive spurious faults on one page: a page that is present for the engine and missing for the kernel.
    pub(crate) spurious_addr: AtomicU64,
    pub(crate) spurious_count: AtomicU32,
    /// The program's alternate signal stack: start and end.
    pub(crate) alt: [AtomicU64; 2],
    /// Pages charged for work that is under way: what a fork's child must give back for threads it does not have.
    pub(crate) in_flight: AtomicU32,
    /// Pages charged for what the child of a fork that this thread is about to make has for itself.
    pub(crate) fork_room: AtomicU32,
    pub(crate) walker: Walker,
    index: AtomicU32,
    /// The group of its new mappings, as a place in the table. Others change it with the gate closed.
    pub(crate) group: AtomicU32,
    /// Decompression target of one page when no wide buffer is free, and a page for what a file holds compressed. Not
    /// on the stack: a handler may run on a signal stack of a few kilobytes.
    pub(crate) bounce: UnsafeCell<[Bounce; 2]>,
}

/// A page-aligned page.
#[repr(C, align(4096))]
pub struct Bounce(pub [u8; 4096]);

// SAFETY: `bounce` is used by the thread that owns the context only; the rest is atomics.
unsafe impl Sync for ThreadCtx {}

impl ThreadCtx {
    /// True when `a` and `b` are on the alternate signal stack both, or neither is.
    pub(crate) fn same_stack(&self, a: u64, b: u64) -> bool {
        let (start, end) = (self.alt[0].load(Ordering::Relaxed), self.alt[1].load(Ordering::Relaxed));
        (start..end).contains(&a) == (start..end).contains(&b)
    }

    /// Pages that it has charged for what comes next.
    pub(crate) fn charged_ahead(&self) -> usize {
        (self.in_flight.load(Ordering::Relaxed) + self.fork_room.load(Ordering::Relaxed)) as usize
    }

    /// The same, which it has charged no more.
    pub(crate) fn take_charged_ahead(&self) -> usize {
        (self.in_flight.swap(0, Ordering::Relaxed) + self.fork_room.swap(0, Ordering::Relaxed)) as usize
    }

    /// True while a thread has it.
    pub(crate) fn is_used(&self) -> bool {
        self.used.load(Ordering::Relaxed) != 0
    }

    /// The shard of per-thread allocation state this thread uses.
    pub(crate) fn shard(&self) -> usize {
        self.index.load(Ordering::Relaxed) as usize
    }
}

/// All contexts of a space.
pub struct Contexts {
    at: *const ThreadCtx,
    /// How many there is room for.
    nr: usize,
    /// Contexts at or above this were never used.
    high_water: AtomicUsize,
}

// SAFETY: the array lives as long as the space; contexts are `Sync`.
unsafe impl Sync for Contexts {}
// SAFETY: as above.
unsafe impl Send for Contexts {}

impl Contexts {
    /// Reserves the array.
    pub fn new() -> Result<Self, Errno> {
        // A thread needs as much address space at least, and this must not be all of it.
        const THREAD_BYTES_MIN: u64 = 256 << 10;
        let nr = (uapi::address_space_limit() / THREAD_BYTES_MIN).clamp(64, THREADS_MAX as u64) as usize;
        let at = uapi::reserve_aligned(nr * core::mem::size_of::<ThreadCtx>(), 4096)?.cast();
        Ok(Self { at, nr, high_water: AtomicUsize::new(0) })
    }

    fn get(&self, i: usize) -> &ThreadCtx {
        assert!(i < self.nr);
        // SAFETY: checked index; zeroed memory is a valid context.
        unsafe { &*self.at.add(i) }
    }

    /// Hands out an unused context.
    pub fn attach(&self) -> Option<&ThreadCtx> {
        for i in 0..self.nr {
            let ctx = self.get(i);
            if ctx.used.load(Ordering::Relaxed) == 0
                && ctx.used.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_ok()
            {
                ctx.index.store(i as u32, Ordering::Relaxed);
                // The mark is raised before the thread first enters, so that a closer looks at its flag.
                self.high_water.fetch_max(i + 1, Ordering::SeqCst);
                return Some(ctx);
            }
        }
        None
    }

    /// Takes a context back.
    pub fn detach(&self, ctx: &ThreadCtx) {
        // Up only if a process that shared the memory was killed inside: who closes the gate would wait for it.
        ctx.gate.reset();
        ctx.pins.reset();
        ctx.walker.reset();
        ctx.group.store(0, Ordering::Relaxed);
        ctx.alt[0].store(0, Ordering::Relaxed);
        ctx.alt[1].store(0, Ordering::Relaxed);
        ctx.used.store(0, Ordering::Release);
    }

    /// Every context that may be in use.
    pub fn all(&self) -> impl Iterator<Item = &ThreadCtx> {
        // The mark is read at each step, not once: a closer of the gate must see threads that attached before it shut.
        (0..self.nr).take_while(|i| *i < self.high_water.load(Ordering::SeqCst)).map(|i| self.get(i))
    }

    /// After fork, in the child: only `own` came along. Returns the pages that the others had charged for work they
    /// had not begun.
    pub fn keep_only(&self, own: &ThreadCtx) -> usize {
        let mut in_flight = 0;
        for ctx in self.all() {
            if !core::ptr::eq(ctx, own) {
                in_flight += ctx.take_charged_ahead();
                ctx.gate.reset();
                ctx.pins.reset();
                ctx.walker.reset();
                ctx.group.store(0, Ordering::Relaxed);
                ctx.used.store(0, Ordering::Relaxed);
            }
        }
        in_flight
    }
}
