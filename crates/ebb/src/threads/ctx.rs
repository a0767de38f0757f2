//! What the engine knows of each thread that enters it.
//!
//! Contexts live in one reserved array and are handed out by index. A context that was given back is used again.
//! Background threads have a context like any other thread.

use crate::base::uapi::{self, Errno};
use crate::protocols::gate::GateFlag;
use crate::protocols::pin::Pins;
use crate::threads::walker::Walker;
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// Most threads at a time.
pub const THREADS_MAX: usize = 32_768;
/// Most pages that are brought in at once.
pub const WINDOW_MAX: usize = 16;

/// One fault in so many is measured in processor time, which takes two system calls.
pub(crate) const SAMPLE_EVERY: u32 = 16;

/// One thread's context. Only its own thread changes it. Eviction in other threads reads the gate flag and the pins.
#[repr(C, align(128))]
pub struct ThreadCtx {
    pub(crate) gate: GateFlag,
    pub(crate) pins: Pins,
    used: AtomicU32,
    /// The page of the last spurious fault, and how many came on it in a row. The engine takes such a page for present,
    /// and the kernel may miss it.
    pub(crate) spurious_addr: AtomicU64,
    pub(crate) spurious_count: AtomicU32,
    /// The program's alternate signal stack: start and end.
    pub(crate) alt: [AtomicU64; 2],
    /// Faults of the thread, to choose those that are measured.
    nr_faults: AtomicU32,
    /// Pages charged for work under way. Fork's child gives them back for threads that it does not have.
    pub(crate) in_flight: AtomicU32,
    /// Pages charged for what fork's child has for itself, while this thread is about to fork.
    pub(crate) fork_room: AtomicU32,
    pub(crate) walker: Walker,
    index: AtomicU32,
    /// The group of the thread's new mappings, as a place in the table. Others change it with the gate closed.
    pub(crate) group: AtomicU32,
    /// Two pages: where one page is decompressed to when no wide buffer is free, and where a file's compressed content
    /// goes. Not on the stack: a handler may run on a signal stack of a few kilobytes.
    pub(crate) bounce: UnsafeCell<[Bounce; 2]>,
    /// What the second of these pages has, if it was read early.
    pub(crate) early: Early,
}

/// A slot of a file as it is on the device: the file's number and the slot's, or none.
#[derive(Default)]
pub(crate) struct Early(AtomicU64);

impl Early {
    const SLOT_BITS: u32 = 32;

    fn word(file: usize, slot: u32) -> u64 {
        (file as u64 + 1) << Self::SLOT_BITS | u64::from(slot)
    }

    /// Whether it is this slot.
    pub(crate) fn is_of(&self, file: usize, slot: u32) -> bool {
        self.0.load(Ordering::Relaxed) == Self::word(file, slot)
    }

    pub(crate) fn set(&self, file: usize, slot: u32) {
        self.0.store(Self::word(file, slot), Ordering::Relaxed);
    }

    pub(crate) fn forget(&self) {
        self.0.store(0, Ordering::Relaxed);
    }

    /// The file and the slot, for whoever uses the page next, which then has something else.
    pub(crate) fn take(&self) -> Option<(usize, u32)> {
        let word = self.0.load(Ordering::Relaxed);
        if word == 0 {
            return None;
        }
        self.forget();
        Some(((word >> Self::SLOT_BITS) as usize - 1, word as u32))
    }
}

/// A page-aligned page.
#[repr(C, align(4096))]
pub struct Bounce(pub [u8; 4096]);

// SAFETY: `bounce` is used by the thread that owns the context only; the rest is atomics.
unsafe impl Sync for ThreadCtx {}

impl ThreadCtx {
    /// Counts a fault of the calling thread, whose context this is. True for one in [`SAMPLE_EVERY`].
    #[inline]
    pub(crate) fn is_sampled(&self) -> bool {
        let nr = self.nr_faults.load(Ordering::Relaxed);
        self.nr_faults.store(nr.wrapping_add(1), Ordering::Relaxed);
        nr.is_multiple_of(SAMPLE_EVERY)
    }

    /// True when `a` and `b` are both on the alternate signal stack, or both not.
    pub(crate) fn same_stack(&self, a: u64, b: u64) -> bool {
        let (start, end) = (self.alt[0].load(Ordering::Relaxed), self.alt[1].load(Ordering::Relaxed));
        (start..end).contains(&a) == (start..end).contains(&b)
    }

    /// Pages that the thread has charged for what comes next.
    pub(crate) fn charged_ahead(&self) -> usize {
        (self.in_flight.load(Ordering::Relaxed) + self.fork_room.load(Ordering::Relaxed)) as usize
    }

    /// Returns [`Self::charged_ahead`] and sets it to zero.
    pub(crate) fn take_charged_ahead(&self) -> usize {
        (self.in_flight.swap(0, Ordering::Relaxed) + self.fork_room.swap(0, Ordering::Relaxed)) as usize
    }

    /// True while a thread has this context.
    pub(crate) fn is_used(&self) -> bool {
        self.used.load(Ordering::Relaxed) != 0
    }

    /// The shard of allocation state that this thread uses.
    pub(crate) fn shard(&self) -> usize {
        self.index.load(Ordering::Relaxed) as usize
    }
}

/// All contexts of a space.
pub struct Contexts {
    at: *const ThreadCtx,
    /// How many contexts there is room for.
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
        // A thread needs at least as much address space, and the contexts must not take all of it.
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

    /// Hands out an unused context; none when all are in use.
    pub fn attach(&self) -> Option<&ThreadCtx> {
        for i in 0..self.nr {
            let ctx = self.get(i);
            if ctx.used.load(Ordering::Relaxed) == 0
                && ctx.used.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_ok()
            {
                ctx.index.store(i as u32, Ordering::Relaxed);
                // The mark is raised before the thread first enters, so that a thread that closes the gate looks at this flag.
                self.high_water.fetch_max(i + 1, Ordering::SeqCst);
                return Some(ctx);
            }
        }
        None
    }

    /// Takes a context back.
    pub fn detach(&self, ctx: &ThreadCtx) {
        // The flag is up only if a process that shared the memory was killed inside. Whoever closes the gate would wait for it.
        ctx.gate.reset();
        ctx.pins.reset();
        ctx.walker.reset();
        ctx.early.forget();
        ctx.group.store(0, Ordering::Relaxed);
        ctx.alt[0].store(0, Ordering::Relaxed);
        ctx.alt[1].store(0, Ordering::Relaxed);
        ctx.used.store(0, Ordering::Release);
    }

    /// Every context that may be in use.
    pub fn all(&self) -> impl Iterator<Item = &ThreadCtx> {
        // The mark is read at each step, not once: a thread that closes the gate must see threads that attached before that.
        (0..self.nr).take_while(|i| *i < self.high_water.load(Ordering::SeqCst)).map(|i| self.get(i))
    }

    /// After fork, in the child: keeps only `own`, the context of the thread that came along. Returns the pages that
    /// the other threads had charged for work they had not begun.
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
