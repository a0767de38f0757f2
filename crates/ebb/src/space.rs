//! The space: everything Ebb has in one process, put together.

use crate::books::Books;
use crate::clock;
use crate::ctx::{Contexts, ThreadCtx};
use crate::device::SwapSpec;
use crate::device::file::{SpillFile, keep_away};
use crate::device::list::Devices;
use crate::gate::Gate;
use crate::group::{self, Group};
use crate::groups::Groups;
use crate::lockstat;
use crate::longterm::Drivers;
use crate::pageout::PageOut;
use crate::readahead::ReadAhead;
use crate::reclaim::Background;
use crate::region::Regions;
use crate::request::Requests;
use crate::ring::Ring;
use crate::staging::Staging;
use crate::stats::{self, Shared};
use crate::stock::Stock;
use crate::swapspace::SwapSpace;
use crate::table::{PAGE, PageTable};
use crate::tree::{MemberId, Tree};
use crate::uapi::{self, Errno, uffd::Uffd};
use crate::ways::Ways;
use crate::work::{Buffers, Runs, Work};
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed};

/// Smallest budget a space accepts.
pub const RAM_BYTES_MIN: u64 = 4 << 20;

/// How often the process looks after a lock that may go with a thread.
const HOLD_NS: u64 = 1_000_000_000;

/// Least address space for the pool: the budget may grow.
const ARENA_BYTES_MIN: usize = 1 << 30;

/// How a space is to be.
#[derive(Clone, Copy)]
pub struct Config<'a> {
    /// Budget in bytes: resident, staged, pool and metadata of all processes of the tree together. What the tree says
    /// counts, where it says something.
    pub ram_bytes: u64,
    /// Devices for what finds no room in RAM: at most [`crate::DEVICES_MAX`]. Without one all stays in RAM, compressed.
    pub swap: &'a [SwapSpec<'a>],
    /// Where counters go, and who shares the budget; the space makes its own when there is none.
    pub stats: Option<&'static Shared>,
    /// The file that these are mapped from, where other processes map it too. The space must be told when the file gets
    /// another number ([`Space::set_tree_fd`]), and no descriptor of it closed without that.
    pub stats_fd: Option<i32>,
    /// Fallbacks to force.
    pub force: Force,
}

/// Fallbacks that are forced although the kernel could do better; for tests and for trouble.
#[derive(Clone, Copy, Default, Debug)]
pub struct Force {
    /// Never MOVE.
    pub no_move: bool,
    /// Runs that frames of the stock can be moved to are, whatever that costs.
    pub always_move: bool,
    /// Treat every page as shared after fork.
    pub shared: bool,
    /// Never drop several ranges with one call.
    pub no_process_madvise: bool,
    /// No background thread.
    pub no_background: bool,
    /// Spill files go through the page cache.
    pub no_direct: bool,
    /// Abort on an inconsistency instead of treating it as an unreadable page.
    pub strict: bool,
}

/// Why a space could not be made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum InitError {
    /// The budget is below [`RAM_BYTES_MIN`].
    BudgetTooSmall,
    /// userfaultfd is not to be had.
    Userfaultfd(Errno),
    /// No address space for metadata (RLIMIT_AS?).
    AddressSpace(Errno),
    /// The file of this device, by its place in the list, could not be created.
    Spill(usize, Errno),
    /// More threads than contexts.
    Threads,
    /// More processes than a tree can have.
    Processes,
    /// In fork's child: the descriptor is gone that says that it lives.
    Life,
}

impl core::fmt::Display for InitError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::BudgetTooSmall => write!(f, "the budget is below {} bytes: give more", RAM_BYTES_MIN),
            Self::Userfaultfd(e) => {
                write!(f, "userfaultfd is refused ({e}): allow the system call (seccomp), and use Linux 5.11 or newer")
            }
            Self::AddressSpace(e) => write!(f, "no address space for tables ({e}): raise the limit (ulimit -v)"),
            Self::Spill(device, e) => {
                write!(f, "no spill file can be made for device {device} ({e}): name a directory that can be written")
            }
            Self::Threads => write!(f, "more threads than the engine has contexts for: start fewer"),
            Self::Processes => write!(f, "more processes than a tree can have: start fewer at a time"),
            Self::Life => write!(f, "the descriptor is gone by which others see that this process lives: keep it open"),
        }
    }
}

impl core::error::Error for InitError {}

impl From<Errno> for InitError {
    fn from(e: Errno) -> Self {
        Self::AddressSpace(e)
    }
}

/// Everything Ebb has in one process. Lives until the process ends.
pub struct Space {
    pub(crate) uffd: UnsafeCell<Uffd>,
    pub(crate) table: PageTable,
    /// How this process knows what it keeps books in.
    pub(crate) books: Books,
    pub(crate) regions: Regions,
    pub(crate) gate: Gate,
    pub(crate) contexts: Contexts,
    pub(crate) requests: &'static Requests,
    pub(crate) group: Group,
    /// Parts of the space with limits of their own.
    pub(crate) groups: Groups,
    pub(crate) staging: Staging,
    pub(crate) stock: Stock,
    pub(crate) ways: Ways,
    pub(crate) swap: SwapSpace,
    pub(crate) work: Buffers<Work>,
    pub(crate) runs: Runs,
    /// Units with present pages, in the order in which reclaim looks at them.
    pub(crate) units: Ring,
    pub(crate) background: Background,
    pub(crate) read_ahead: ReadAhead,
    pub(crate) page_out: PageOut,
    pub(crate) stats: &'static Shared,
    pub(crate) force: Force,
    /// MOVE works here.
    pub(crate) can_move: AtomicBool,
    /// Drivers that may have pinned memory for long: see [`crate::longterm`].
    pub(crate) drivers: Drivers,
    /// Write protection lasts whatever the program and the kernel do, so that pages can be clean.
    pub(crate) can_protect: bool,
    /// One call can drop several ranges.
    pub(crate) can_drop_vectored: AtomicBool,
    /// Clean pages.
    pub(crate) nr_clean: AtomicUsize,
    pub(crate) zeros: usize,
    /// Present pages that one sweep takes at most.
    pub(crate) sweep_pages: AtomicUsize,
    /// Which fork was the last, by number, while memory may be shared with a parent or a child; else 0.
    pub(crate) sharing: AtomicU32,
    /// Forks so far that shared memory.
    pub(crate) nr_sharing_forks: AtomicU32,
    /// It is so much that reclaim works round it.
    pub(crate) shares_much: AtomicBool,
    /// Something was locked (mlock) since nothing was.
    pub(crate) has_locked: AtomicBool,
    /// Most of the pool is shared.
    pub(crate) pool_is_shared: AtomicBool,
    /// Pages of the pool that are shared, once for each process that shares them.
    pub(crate) shared_pool_pages: AtomicUsize,
    /// Units touched so recently are passed over while other processes are given memory; 0 for none.
    pub(crate) young_ms: AtomicU64,
    /// Pages evicted, and pages that came back soon after, since the tree was last told.
    pub(crate) nr_evicted: AtomicU64,
    pub(crate) nr_needed_again: AtomicU64,
    /// Pages that each process of the tree with memory to speak of would have if all had the same.
    pub(crate) even_share: AtomicUsize,
    /// The clock of evictions when this process was forked.
    pub(crate) forked_at: AtomicU32,
    /// Somebody adds or takes away a device.
    pub(crate) is_changing_swap: AtomicBool,
    /// The device that a swapoff in progress takes away, with its priority.
    pub(crate) leaving: UnsafeCell<Option<(usize, i16)>>,
    /// What the background thread calls when somebody asks for the control socket.
    pub(crate) on_asked: AtomicPtr<()>,
    /// The place in the tree of the child of a fork that is under way.
    pub(crate) reserved_child: UnsafeCell<Option<MemberId>>,
}

// SAFETY: `uffd`, `leaving` and `reserved_child` change only before the space is shared or under the exclusive gate; every
// other field is shared safely by its own type.
unsafe impl Sync for Space {}

impl Space {
    /// Makes the space of this process.
    pub fn create(config: &Config<'_>) -> Result<&'static Self, InitError> {
        let stats = match config.stats {
            Some(stats) => stats,
            // SAFETY: fresh zeroed memory is a valid page of counters and stays mapped.
            None => unsafe { &*uapi::reserve(Shared::MAP_BYTES)?.cast::<Shared>() },
        };
        if stats.tree.limit() == 0 {
            stats.tree.set_limit(config.ram_bytes / 4096);
            stats.ram_limit_bytes.store(config.ram_bytes, Relaxed);
        }
        let limit = stats.tree.limit() as usize;
        if (limit as u64) < RAM_BYTES_MIN / 4096 {
            return Err(InitError::BudgetTooSmall);
        }
        clock::calibrate(&stats.ns_per_cycle);
        let table = PageTable::new()?;
        let uffd = uapi::fd::beyond_limit(Uffd::open).map_err(InitError::Userfaultfd)?;
        let uffd = uffd.raise().unwrap_or(uffd);
        lockstat::start(stats);
        let swap = SwapSpace::new(group::pool_max(limit), limit.saturating_mul(2 * PAGE).max(ARENA_BYTES_MIN))?;
        for (i, spec) in config.swap.iter().enumerate() {
            let file = SpillFile::create(spec, 1, swap.devices.lives(), !config.force.no_direct)
                .map_err(|e| InitError::Spill(i, e))?;
            let priority = spec.priority.unwrap_or_else(|| swap.devices.priority_below());
            let Ok(number) = swap.devices.add(file) else { return Err(InitError::Spill(i, Errno::NOSPC)) };
            swap.devices.write_to(number, priority);
        }
        swap.set_has_file(!config.swap.is_empty());
        let staging = Staging::new(group::staging_target(limit, limit))?;
        let can_move = uffd.has_move() && !config.force.no_move && !config.force.shared;
        staging.register(&uffd).map_err(|e| match e {
            uapi::uffd::UffdError::Other(e) => InitError::Userfaultfd(e),
            _ => InitError::Userfaultfd(Errno::INVAL),
        })?;
        let tree = Tree::join(&stats.tree, config.stats_fd).map_err(|_| InitError::Processes)?;
        let at = uapi::reserve_aligned(core::mem::size_of::<Self>(), 4096)?.cast::<Self>();
        let this = Self {
            uffd: UnsafeCell::new(uffd),
            table,
            books: Books::new(),
            regions: Regions::new()?,
            gate: Gate::default(),
            contexts: Contexts::new()?,
            requests: Requests::new()?,
            group: Group::new(tree, stats),
            groups: Groups::new()?,
            stock: Stock::new(staging.nr_groups())?,
            ways: Ways::default(),
            staging,
            swap,
            work: Buffers::new()?,
            runs: Runs::new()?,
            units: Ring::new(1 << 20)?,
            read_ahead: ReadAhead::default(),
            page_out: PageOut::default(),
            background: Background::new(!config.force.no_background, stats)?,
            stats,
            force: config.force,
            can_move: AtomicBool::new(can_move),
            drivers: Drivers::default(),
            can_protect: uapi::leave_ksm() && uffd.protects_for_sure(),
            can_drop_vectored: AtomicBool::new(!config.force.no_process_madvise),
            nr_clean: AtomicUsize::new(0),
            zeros: uapi::reserve(crate::ctx::WINDOW_MAX * 4096)? as usize,
            sweep_pages: AtomicUsize::new(group::sweep_max(limit)),
            sharing: AtomicU32::new(0),
            nr_sharing_forks: AtomicU32::new(0),
            shares_much: AtomicBool::new(false),
            has_locked: AtomicBool::new(false),
            pool_is_shared: AtomicBool::new(false),
            shared_pool_pages: AtomicUsize::new(0),
            young_ms: AtomicU64::new(0),
            nr_evicted: AtomicU64::new(0),
            nr_needed_again: AtomicU64::new(0),
            even_share: AtomicUsize::new(0),
            forked_at: AtomicU32::new(0),
            is_changing_swap: AtomicBool::new(false),
            leaving: UnsafeCell::new(None),
            on_asked: AtomicPtr::new(core::ptr::null_mut()),
            reserved_child: UnsafeCell::new(None),
        };
        uapi::later::set_aside(Self::later_bytes(config.swap));
        // Fixed metadata: rings, tables' first pages, this structure.
        this.group.charge_meta(256 << 10);
        stats::add(&stats.processes, 1);
        // SAFETY: fresh memory of the right size and alignment.
        let this = unsafe {
            at.write(this);
            &*at
        };
        Ok(this)
    }

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
        // SAFETY: see above.
        unsafe { *self.uffd.get() }
    }

    /// A context for the calling thread; none when there are too many threads.
    pub fn attach_thread(&self) -> Option<&ThreadCtx> {
        self.contexts.attach()
    }

    /// A process that shared the memory and worked with `ctx` is gone, or has left for another program; `process` is its number,
    /// where that says the same here and there. If it was killed while it was inside, or had closed the gate, what it had locked
    /// stays locked, and a page that it was moving is nowhere: this process cannot go on either, and ends before it waits for ever.
    pub fn outlive(&self, ctx: &ThreadCtx, process: Option<u32>) {
        if ctx.gate.is_inside() || process.is_some() && self.gate.closed_by() == process {
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
        self.group.uncharge(ahead);
        self.contexts.detach(ctx);
    }

    /// The counters.
    pub fn stats(&self) -> &'static Shared {
        self.stats
    }

    /// Budget in pages.
    pub fn limit_pages(&self) -> usize {
        self.group.limit()
    }

    /// Pages charged now.
    pub fn charged_pages(&self) -> usize {
        self.group.charged()
    }

    /// Present pages that one sweep takes at most.
    pub(crate) fn sweep_max(&self) -> usize {
        self.sweep_pages.load(Relaxed)
    }

    /// An exec failed, of which the tree was told: see [`Tree::leave_for_exec`].
    pub fn back_from_exec(&self) {
        self.exclusive(|| self.tree().back_from_exec());
        // Until now nobody took the lock again where it was lost.
        self.hold_membership();
    }

    /// This process's part in its tree.
    pub fn tree(&self) -> &Tree {
        self.group.tree()
    }

    /// The file of the counters has the number `fd` now, and `close` gives the old one up.
    pub fn set_tree_fd(&self, fd: i32, close: impl FnOnce()) -> Result<(), InitError> {
        // In this order: nobody may take the old number for the file, and the close takes the locks along.
        self.tree().set_fd(fd, close);
        self.group.hold().map(drop).map_err(|_| InitError::Processes)
    }

    /// A thread is about to have a table of descriptors of its own: from here on Ebb's numbers stay what they are.
    pub fn note_own_tables(&self) {
        self.tree().note_own_tables();
        // Who has begun to change one ends first.
        uapi::fd::exclude(|| ());
    }

    /// A table of descriptors is gone, and perhaps what others know this process by: see [`Tree::hold`].
    pub fn hold_membership(&self) {
        // With more processes than there can be members it goes on as it is.
        let _ = self.group.hold();
    }

    /// The same by the background thread, whose table lasts as long as itself: when to look again, because another thread's has the
    /// lock.
    pub(crate) fn hold_membership_in_ns(&self) -> Option<u64> {
        if !self.tree().has_own_tables() {
            return None;
        }
        let is_here = self.group.hold().unwrap_or(false);
        (!is_here).then_some(HOLD_NS)
    }

    /// A file of its configuration could not be made, and it goes on without.
    pub fn note_unmade_file(&self, errno: Errno) {
        self.swap.devices.note_unmade(errno);
    }

    /// Descriptors that the program must not close, -1 where there is none: [`Self::FDS_MAX`].
    pub fn fds(&self) -> impl Iterator<Item = i32> + '_ {
        core::iter::once(self.uffd().fd()).chain(self.swap.devices.fds()).chain(core::iter::once(self.books.fd()))
    }

    /// Most descriptors of a space.
    pub const FDS_MAX: usize = 2 + Devices::FDS_MAX;

    /// Has the background thread call `f` when somebody raises [`Shared::asked`].
    pub fn answer_asks(&self, f: fn(&'static Self)) {
        self.on_asked.store(f as *mut (), Relaxed);
    }

    /// Moves the engine's descriptor `fd` to another number, because the program wants this one. False when it is not
    /// the engine's, or no number is free.
    pub fn move_fd(&self, fd: i32) -> bool {
        let move_it = || {
            // In the tables of other threads it would keep its number.
            if self.tree().has_own_tables() {
                return false;
            }
            if fd == self.uffd().fd() {
                let moved = keep_away(fd).and_then(|new| self.uffd().renumbered(new));
                let Ok(uffd) = moved else { return false };
                // SAFETY: under the exclusive gate nobody else reads it.
                unsafe { *self.uffd.get() = uffd };
                return true;
            }
            if fd == self.books.fd() {
                self.books.keep_away();
                // Where no number is left nobody looks any more, and all of them count.
                if !self.knows_books() {
                    self.look_at_books();
                }
                return true;
            }
            self.swap.devices.move_fd(fd)
        };
        uapi::fd::exclude(|| self.exclusive(move_it))
    }

    /// Runs `f` with the gate closed: nobody else is inside the engine, and no page is busy.
    pub(crate) fn exclusive<R>(&self, f: impl FnOnce() -> R) -> R {
        self.gate.close(uapi::getpid() as u32, self.contexts.all().map(|c| &c.gate));
        let result = f();
        self.note_books_used_exclusive();
        self.gate.open();
        result
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
        if self.force.strict {
            self.fatal(text);
        }
    }
}
