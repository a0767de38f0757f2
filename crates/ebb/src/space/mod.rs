//! The space: everything Ebb has in one process, put together.

pub(crate) mod background;
pub(crate) mod books;
pub(crate) mod config;
pub(crate) mod drivers;
pub(crate) mod eviction;
pub(crate) mod family;
pub(crate) mod kernel;
pub(crate) mod page_out;
pub(crate) mod read_ahead;

use self::eviction::Eviction;
use self::family::Family;
use self::kernel::Kernel;
use crate::base::uapi;
use crate::base::uapi::uffd::Uffd;
use crate::budget::Budget;
use crate::counters::stats::Shared;
use crate::device::SwapSpec;
use crate::device::file::SpillFile;
use crate::groups::table::Groups;
use crate::memory::region::Regions;
use crate::memory::table::PageTable;
use crate::places::Places;
use crate::places::swapspace::SwapSpace;
use crate::space::background::Background;
use crate::threads::Threads;
use crate::threads::ctx::ThreadCtx;
use crate::tree::Tree;
use core::sync::atomic::Ordering::{Relaxed, SeqCst};

impl Space {
    /// This process holds so much that others of the tree may ask for it.
    pub fn has_grown(&self) -> bool {
        self.budget.has_grown()
    }

    /// The background thread.
    pub fn background(&self) -> &Background {
        &self.background
    }
}

/// Smallest budget a space accepts.
pub const RAM_BYTES_MIN: u64 = 4 << 20;

/// How often the process looks after a lock that may go with a thread.
const HOLD_NS: u64 = 1_000_000_000;

/// Everything Ebb has in one process. Lives until the process ends.
pub struct Space {
    pub(crate) kernel: Kernel,
    /// A word for each page, and what is known of each unit.
    pub(crate) table: PageTable,
    pub(crate) regions: Regions,
    pub(crate) threads: Threads,
    /// What the process may hold, of what its tree may.
    pub(crate) budget: Budget,
    /// Parts of the space with limits of their own.
    pub(crate) groups: Groups,
    pub(crate) places: Places,
    pub(crate) swap: SwapSpace,
    pub(crate) eviction: Eviction,
    pub(crate) family: Family,
    pub(crate) background: Background,
    pub(crate) stats: &'static Shared,
}

impl Space {
    /// Address space for later: tables of 128 GiB of memory, two thousand threads, masks of what forks share, and a spill file
    /// for each generation of children.
    pub(crate) fn later_bytes(swap: &[SwapSpec<'_>]) -> usize {
        const SHARES_BYTES: usize = 1 << 30;
        let files = swap.iter().map(|spec| SpillFile::metadata_bytes(spec.bytes)).sum::<usize>();
        (256 << 20) + (512 << 20) + SHARES_BYTES + 8 * files
    }

    /// The userfaultfd. It changes only under the exclusive gate, in fork's child.
    #[inline]
    pub(crate) fn uffd(&self) -> Uffd {
        self.kernel.uffd()
    }

    /// The counters.
    pub fn stats(&self) -> &'static Shared {
        self.stats
    }

    /// Budget in pages.
    pub fn limit_pages(&self) -> usize {
        self.budget.limit()
    }

    /// Pages charged now.
    pub fn charged_pages(&self) -> usize {
        self.budget.charged()
    }

    /// Present pages that one sweep takes at most.
    pub(crate) fn sweep_max(&self) -> usize {
        self.eviction.sweep_max()
    }

    /// This process's part in its tree.
    pub fn tree(&self) -> &Tree {
        self.budget.tree()
    }

    /// The same by the background thread, whose table lasts as long as itself: when to look again, because another thread's has the
    /// lock.
    pub(crate) fn hold_membership_in_ns(&self) -> Option<u64> {
        if !self.tree().has_own_tables() {
            return None;
        }
        let is_here = self.budget.hold().unwrap_or(false);
        (!is_here).then_some(HOLD_NS)
    }

    /// Says that the program cannot go on, and ends it as the kernel's out-of-memory killer would.
    pub(crate) fn fatal(&self, text: &[u8]) -> ! {
        self.stats.set_error(text);
        if self.tree().is_first() {
            self.stats.has_ended_first.store(1, Relaxed);
        }
        uapi::stderr::say(b"ebb: ");
        uapi::stderr::say(text);
        uapi::stderr::say(b"\n");
        uapi::kill_self();
    }

    /// An inconsistency that must not happen: says so; ends the program when told to be strict.
    pub(crate) fn inconsistent(&self, text: &[u8]) {
        self.stats.set_error(text);
        if self.kernel.force().strict {
            self.fatal(text);
        }
    }

    /// From now on the kernel may keep references to pages beyond the calls that these are given for: no frame is written for
    /// another page any more. Before the first such call. What is in stock already no such page has been in.
    pub fn reuse_no_frames(&self) {
        // A page that such a call is given is in no sweep before the call is over: see `pin`. A sweep looks here after its claims.
        self.places.stock.is_over.store(true, SeqCst);
    }
}

impl Space {
    /// A context for the calling thread; none when there are too many threads.
    pub fn attach_thread(&self) -> Option<&ThreadCtx> {
        self.threads.contexts.attach()
    }

    /// A process that shared the memory and worked with `ctx` is gone, or has left for another program; `process` is its number,
    /// where that says the same here and there. If it was killed while it was inside, or had closed the gate, what it had locked
    /// stays locked, and a page that it was moving is nowhere: this process cannot go on either, and ends before it waits for ever.
    pub fn outlive(&self, ctx: &ThreadCtx, process: Option<u32>) {
        if ctx.gate.is_inside() || process.is_some() && self.threads.closed_by() == process {
            self.fatal(
                b"a process that shared this one's memory was killed while Ebb worked on that memory in its place; \
                the process ends, because nobody can finish that",
            );
        }
    }

    /// Takes the calling thread's context back.
    pub fn detach_thread(&self, ctx: &ThreadCtx) {
        // A process that shared the memory may have been killed at work.
        let ahead = ctx.take_charged_ahead();
        self.budget.uncharge(ahead);
        self.threads.contexts.detach(ctx);
    }
}
