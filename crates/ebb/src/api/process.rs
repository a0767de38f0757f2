//! A space in its process: its creation, and what it is told about threads, descriptors and exec.

use crate::background::thread;
use crate::base::uapi::uffd::Uffd;
use crate::base::uapi::{self, Errno};
use crate::base::{PAGE, clock, events};
use crate::budget::{self, Budget};
use crate::counters::lockstat;
use crate::counters::stats::{self, Shared};
use crate::device::file::SpillFile;
use crate::device::list::Devices;
use crate::groups::table::Groups;
use crate::memory::region::Regions;
use crate::memory::table::PageTable;
use crate::pages::books;
use crate::places::Places;
use crate::places::staging::Staging;
use crate::places::swapspace::SwapSpace;
use crate::protocols::gate::Exclusive;
use crate::space::background::Background;
use crate::space::books::UNKNOWN;
use crate::space::config::{Config, InitError};
use crate::space::eviction::Eviction;
use crate::space::family::Family;
use crate::space::kernel::Kernel;
use crate::space::{RAM_BYTES_MIN, Space};
use crate::threads::Threads;
use crate::tree::Tree;
use core::sync::atomic::Ordering::Relaxed;

/// Least address space for the pool: the budget may grow.
const ARENA_BYTES_MIN: usize = 1 << 30;
/// Address space for the pool where events are recorded.
const EVENTS_ARENA_BYTES: usize = 64 << 30;

impl Space {
    /// Undoes [`Tree::leave_for_exec`] after an exec that failed.
    pub fn back_from_exec(&self) {
        self.exclusive(|exclusive| self.tree().back_from_exec(exclusive));
        // If the lock was lost meanwhile, nobody took it again until now.
        self.hold_membership();
    }

    /// Notes that the file of the counters has the descriptor `fd` now. `close` gives the old one up. Fails when the
    /// process is to take a place in the tree again and all places are taken.
    pub fn set_tree_fd(&self, fd: i32, close: impl FnOnce()) -> Result<(), InitError> {
        // In this order: nobody may take the old number for the file, and closing it drops the locks.
        self.tree().set_fd(fd, close);
        self.budget.hold().map(drop).map_err(|_| InitError::Processes)
    }

    /// Notes that a thread is about to get its own descriptor table. From here on, Ebb's descriptors keep their
    /// numbers.
    pub fn note_own_tables(&self) {
        self.tree().note_own_tables();
        // A descriptor change that has begun ends first.
        uapi::fd::exclude(|| ());
    }

    /// Makes sure that this process has its membership lock, by which others know that it lives. A descriptor table is
    /// gone, and the lock may be gone with it: see [`Tree::hold`].
    pub fn hold_membership(&self) {
        // If all places of the tree are taken, the process goes on as it is.
        let _ = self.budget.hold();
    }

    /// Notes that a file of the configuration could not be made. The space goes on without it.
    pub fn note_unmade_file(&self, errno: Errno) {
        self.swap.devices.note_unmade(errno);
    }

    /// Whether `/dev/userfaultfd` makes the userfaultfds of the process and its forks.
    pub fn has_device(&self) -> bool {
        self.uffd().is_by_device()
    }

    /// Descriptors that the program must not close, at most [`Self::FDS_MAX`]; -1 in place of one that does not exist.
    pub fn fds(&self) -> impl Iterator<Item = i32> + '_ {
        let [uffd, device] = self.uffd().fds();
        core::iter::once(uffd).chain(self.swap.devices.fds()).chain([self.family.books.fd(), device])
    }

    /// Most descriptors of a space.
    pub const FDS_MAX: usize = 3 + Devices::FDS_MAX;

    /// Makes the background thread call `f` when somebody raises [`Shared::asked`].
    pub fn answer_asks(&self, f: fn(&'static Self)) {
        self.background.on_asked.store(f as *mut (), Relaxed);
    }

    /// Moves the engine's descriptor `fd` to another number, because the program wants this one. False when it is not
    /// the engine's, when no number is free, or when threads have descriptor tables of their own.
    pub fn move_fd(&self, fd: i32) -> bool {
        let move_it = |exclusive: &Exclusive<'_>| {
            // In other threads' tables it would keep its number.
            if self.tree().has_own_tables() {
                return false;
            }
            if self.uffd().fds().contains(&fd) {
                let Ok(uffd) = self.uffd().move_away(fd) else { return false };
                self.kernel.set_uffd(exclusive, uffd);
                return true;
            }
            if fd == self.family.books.fd() {
                self.family.books.keep_away();
                // If no number is left, nobody can look any more, and all books count in full.
                if !books::knows_books(self) {
                    books::look_at_books(self);
                }
                return true;
            }
            self.swap.devices.move_fd(exclusive, fd)
        };
        uapi::fd::exclude(|| self.exclusive(move_it))
    }

    /// Closes the map of the books, because what the process may see is about to change. The open map would go on
    /// showing what it could see before. All books count in full until the next fork opens the map again. Outside the
    /// gate.
    pub fn close_books(&self) {
        if books::knows_books(self) && self.tree().is_owner() {
            self.exclusive(|_| {
                let map = self.family.books.map.swap(UNKNOWN, Relaxed);
                if map >= 0 {
                    uapi::close(map);
                    books::look_at_books(self);
                }
            });
        }
    }

    /// Makes the space of this process, once per process.
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
        let open = if config.force.device { Uffd::open_by_device } else { Uffd::open };
        let uffd = uapi::fd::beyond_limit(open).map_err(InitError::Userfaultfd)?.raise();
        lockstat::start(stats);
        let arena = events::same_in_all_runs(limit.saturating_mul(2 * PAGE).max(ARENA_BYTES_MIN), EVENTS_ARENA_BYTES);
        let mut swap = SwapSpace::new(budget::pool_max(limit), arena, stats)?;
        if let Err(error) = Self::open_files(config, stats, &mut swap) {
            // The caller may try again without a file that could not be made.
            swap.devices.fds().filter(|fd| *fd >= 0).for_each(uapi::close);
            uffd.close();
            return Err(error);
        }
        let staging = Staging::new(budget::staging_target(limit, limit))?;
        staging.register(&uffd).map_err(|e| match e {
            uapi::uffd::UffdError::Other(e) => InitError::Userfaultfd(e),
            _ => InitError::Userfaultfd(Errno::INVAL),
        })?;
        let tree = Tree::join(&stats.tree, config.stats_fd).map_err(|_| InitError::Processes)?;
        let at = uapi::reserve_aligned(core::mem::size_of::<Self>(), 4096)?.cast::<Self>();
        let this = Self {
            kernel: Kernel::new(uffd, config.force)?,
            table,
            regions: Regions::new()?,
            threads: Threads::new()?,
            budget: Budget::new(tree, stats),
            groups: Groups::new()?,
            places: Places::new(staging)?,
            swap,
            eviction: Eviction::new(budget::sweep_max(limit))?,
            family: Family::new(),
            background: Background::new(!config.force.no_background, stats, thread::background_main)?,
            stats,
        };
        let contexts = this.swap.devices.contexts();
        contexts.force(config.force.failing_flights, config.force.late_flights);
        if config.force.no_flights {
            contexts.ground();
        }
        uapi::later::set_aside(Self::later_bytes(config.swap));
        // Fixed metadata: rings, the first pages of tables, this structure.
        this.budget.charge_meta(256 << 10);
        stats::add(&stats.processes, 1);
        // SAFETY: fresh memory of the right size and alignment.
        let this = unsafe {
            at.write(this);
            &*at
        };
        Ok(this)
    }

    /// Makes the files of the configuration.
    fn open_files(config: &Config<'_>, stats: &'static Shared, swap: &mut SwapSpace) -> Result<(), InitError> {
        for (i, spec) in config.swap.iter().enumerate() {
            let file = SpillFile::create(spec, swap.devices.lives(), !config.force.no_direct)
                .map_err(|e| InitError::Spill(i, e))?;
            let priority = spec.priority.unwrap_or_else(|| swap.devices.priority_below());
            let Ok(number) = swap.devices.add_unshared(file) else { return Err(InitError::Spill(i, Errno::NOSPC)) };
            // What the tree knows already counts: somebody may have changed it since.
            if let Some(writes) = spec.writes {
                let allowance = stats.writes.find(spec.dir.to_bytes());
                allowance.ok_or(InitError::Spill(i, Errno::NOSPC))?.begin(writes);
            }
            swap.devices.write_to(number, priority);
        }
        swap.set_has_file(!config.swap.is_empty());
        Ok(())
    }
}
