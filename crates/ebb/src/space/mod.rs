//! The space: everything Ebb has in one process, put together.

pub(crate) mod ageing;
pub(crate) mod background;
pub(crate) mod books;
pub(crate) mod cold;
pub(crate) mod config;
pub(crate) mod cooling;
pub(crate) mod drivers;
pub(crate) mod eviction;
pub(crate) mod family;
pub(crate) mod kernel;
pub(crate) mod newborn;
pub(crate) mod page_out;
pub(crate) mod read_ahead;

use self::eviction::Eviction;
use self::family::Family;
use self::kernel::Kernel;
use crate::base::uapi;
use crate::base::uapi::uffd::Uffd;
use crate::budget::Budget;
use crate::counters::stats::Shared;
use crate::counters::stats::Thp;
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
use core::time::Duration;

impl Space {
    /// True when this process holds so much that others of the tree may ask for some.
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

/// Shortest idle period, in milliseconds: a second.
pub const IDLE_MS_MIN: u64 = 1000;
/// Longest idle period, in milliseconds: a day.
pub const IDLE_MS_MAX: u64 = 24 * 60 * 60 * 1000;

/// How often the process looks whether it has its membership lock, where the lock may go away with a thread.
const HOLD_NS: u64 = 1_000_000_000;

/// Everything Ebb has in one process. Lives until the process ends.
pub struct Space {
    pub(crate) kernel: Kernel,
    /// A word for each page, and what is known of each unit.
    pub(crate) table: PageTable,
    pub(crate) regions: Regions,
    pub(crate) threads: Threads,
    /// What this process may hold of the tree's budget.
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
    /// Bytes of address space to set aside for later: tables for 128 GiB of memory, two thousand threads, masks for
    /// what forks share, and the spill files of eight generations of children.
    pub(crate) fn later_bytes(swap: &[SwapSpec<'_>]) -> usize {
        const SHARES_BYTES: usize = 1 << 30;
        let files = swap.iter().map(|spec| SpillFile::metadata_bytes(spec.bytes)).sum::<usize>();
        (256 << 20) + (512 << 20) + SHARES_BYTES + 8 * files
    }

    /// The userfaultfd. It changes only with the gate closed: in fork's child, and when its descriptor is moved.
    #[inline]
    pub(crate) fn uffd(&self) -> Uffd {
        self.kernel.uffd()
    }

    /// The counters.
    pub fn stats(&self) -> &'static Shared {
        self.stats
    }

    /// The tree's budget in pages.
    pub fn limit_pages(&self) -> usize {
        self.budget.limit()
    }

    /// Pages that this process has charged now.
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

    /// Makes sure that this process has its membership lock, where threads have descriptor tables of their own. For the
    /// background thread, whose table lasts as long as the thread. Returns in how many nanoseconds to look again, if
    /// another thread's table has the lock.
    pub(crate) fn hold_membership_in_ns(&self) -> Option<u64> {
        if !self.tree().has_own_tables() {
            return None;
        }
        let is_here = self.budget.hold().unwrap_or(false);
        (!is_here).then_some(HOLD_NS)
    }

    /// Reports that the program cannot go on, and kills it as the kernel's out-of-memory killer would.
    pub(crate) fn fatal(&self, text: &[u8]) -> ! {
        self.fatal_with(text, || ())
    }

    /// Likewise. Between the report and the kill, `tell` says more.
    pub(crate) fn fatal_with(&self, text: &[u8], tell: impl FnOnce()) -> ! {
        self.stats.set_error(text);
        if self.tree().is_first() {
            self.stats.has_ended_first.store(1, Relaxed);
        }
        uapi::stderr::say(b"ebb: ");
        uapi::stderr::say(text);
        uapi::stderr::say(b"\n");
        tell();
        uapi::kill_self();
    }

    /// Reports an inconsistency that must not happen. Ends the program if `Force::strict` is set.
    pub(crate) fn inconsistent(&self, text: &[u8]) {
        self.stats.set_error(text);
        if self.kernel.force().strict {
            self.fatal(text);
        }
    }

    /// Sets which memory of the tree gets folios of 2 MiB from now on. What has one keeps it.
    pub fn set_thp(&self, policy: Thp) {
        self.stats.thp.store(policy as u32, Relaxed);
    }

    /// Which memory of this process gets folios of 2 MiB.
    pub fn thp(&self) -> Thp {
        let force = self.kernel.force();
        match Thp::of(self.stats.thp.load(Relaxed)) {
            _ if force.no_huge => Thp::Never,
            _ if force.always_huge => self.places.folios.limit(),
            policy => policy.min(self.places.folios.limit()),
        }
    }

    /// Sets which memory of this process gets folios of 2 MiB at most, whatever the tree's policy is.
    pub fn set_thp_limit(&self, limit: Thp) {
        self.places.folios.set_limit(limit);
    }

    /// Sets after how long without use memory leaves RAM although there is room, in all processes of the tree; none for never.
    /// The period is taken as [`IDLE_MS_MIN`] or [`IDLE_MS_MAX`] if it is beyond these.
    ///
    /// The background thread does it, so nothing leaves in a process that has none ([`crate::Force::no_background`]) or has not
    /// grown.
    pub fn set_idle(&self, period: Option<Duration>) {
        let ms = |period: Duration| u64::try_from(period.as_millis()).unwrap_or(u64::MAX);
        let ms = period.map_or(0, |period| ms(period).clamp(IDLE_MS_MIN, IDLE_MS_MAX));
        self.stats.idle_ms.store(ms, Relaxed);
        self.tree().page().wake_all(uapi::futex_wake_shared);
    }

    /// Stops the reuse of frames: from now on, no frame is written for another page. After some system calls have
    /// returned, the kernel may keep references to the pages that they used: call this before the first of them. Frames
    /// that are in stock already are safe: no such page has been in them.
    pub fn reuse_no_frames(&self) {
        // A page that such a call uses is in no sweep until the call is over: see `pin`. A sweep reads this flag after
        // its claims.
        self.places.stock.is_over.store(true, SeqCst);
    }
}

impl Space {
    /// Gives the calling thread a context; none when there are too many threads.
    pub fn attach_thread(&self) -> Option<&ThreadCtx> {
        self.threads.contexts.attach()
    }

    /// Ends this process if it cannot go on without a process that shared its memory and worked with `ctx`. That
    /// process is gone, or has left for another program; `process` is its number, where both see the same number. If it
    /// was killed while it was inside, or had closed the gate, its locks stay locked, and a page that it was moving is
    /// nowhere. This process then ends instead of waiting for ever.
    pub fn outlive(&self, ctx: &ThreadCtx, process: Option<u32>) {
        if ctx.gate.is_inside() || process.is_some() && self.threads.closed_by() == process {
            self.fatal(
                b"a process that shared this one's memory was killed while Ebb worked on that memory for it; \
                that work cannot be finished, so this process ends too",
            );
        }
    }

    /// Takes the calling thread's context back.
    pub fn detach_thread(&self, ctx: &ThreadCtx) {
        // The context may be that of a process that shared the memory and was killed at work.
        let ahead = ctx.take_charged_ahead();
        self.budget.uncharge(ahead);
        self.threads.contexts.detach(ctx);
    }
}
