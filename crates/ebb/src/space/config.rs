//! The configuration of a space, and why a space could not be made.

use crate::base::uapi::Errno;
use crate::counters::stats::Shared;
use crate::device::SwapSpec;
use crate::space::RAM_BYTES_MIN;

/// The configuration of a space.
#[derive(Clone, Copy)]
pub struct Config<'a> {
    /// Budget in bytes, for the resident, staged, pool and metadata pages of all processes of the tree together. If the
    /// tree has a budget already, that one counts.
    pub ram_bytes: u64,
    /// Devices for content that finds no room in RAM: at most [`crate::DEVICES_MAX`]. Without a device, everything
    /// stays in RAM, compressed.
    pub swap: &'a [SwapSpec<'a>],
    /// The counters, and the processes that share the budget. Without them, the space makes its own.
    pub stats: Option<&'static Shared>,
    /// The file that `stats` is mapped from, where other processes map it too. The space must be told when the file's
    /// descriptor changes ([`crate::Space::set_tree_fd`]). No descriptor of the file may be closed without telling it.
    pub stats_fd: Option<i32>,
    /// Fallbacks to force.
    pub force: Force,
}

/// Fallbacks to force although the kernel could do better, for tests and for trouble.
#[derive(Clone, Copy, Default, Debug)]
pub struct Force {
    /// Never MOVE.
    pub no_move: bool,
    /// Use MOVE for each run that the stock has frames for, whatever that costs.
    pub always_move: bool,
    /// Folios of 2 MiB for all memory, whatever the policy is, and in budgets that are too small for them.
    pub always_huge: bool,
    /// No folios of 2 MiB.
    pub no_huge: bool,
    /// Protect what MOVE has mapped a while later, so that other threads write to it in between.
    pub late_protect: bool,
    /// Treat every page as shared after fork.
    pub shared: bool,
    /// Have `/dev/userfaultfd` make the userfaultfd.
    pub device: bool,
    /// Never drop several ranges with one call.
    pub no_process_madvise: bool,
    /// No background thread.
    pub no_background: bool,
    /// Spill files go through the page cache.
    pub no_direct: bool,
    /// No transfers in flight: a thread waits for each write.
    pub no_flights: bool,
    /// Take some of the transfers in flight for failed, so that they are made again.
    pub failing_flights: bool,
    /// Some transfers are left to the kernel as soon as a thread would have to wait for them.
    pub late_flights: bool,
    /// Objects of the pool become cold as soon as possible, whatever that costs.
    pub always_cold: bool,
    /// Abort on an inconsistency instead of treating it as an unreadable page.
    pub strict: bool,
}

impl Force {
    /// What a list in the form of `EBB_FORCE` stands for, as far as the engine has its entries. The others are the agent's.
    pub fn of_list(list: &[u8]) -> Self {
        let mut force = Self::default();
        list.split(|&c| c == b',').for_each(|entry| _ = force.add(entry));
        force
    }

    /// Adds what an entry of `EBB_FORCE` stands for. False if the engine has no such entry.
    pub fn add(&mut self, entry: &[u8]) -> bool {
        let field = match entry {
            b"no-move" => &mut self.no_move,
            b"always-move" => &mut self.always_move,
            b"always-huge" => &mut self.always_huge,
            b"no-huge" => &mut self.no_huge,
            b"late-protect" => &mut self.late_protect,
            b"shared" => &mut self.shared,
            b"device" => &mut self.device,
            b"no-process-madvise" => &mut self.no_process_madvise,
            b"no-background" => &mut self.no_background,
            b"no-direct" => &mut self.no_direct,
            b"no-flights" => &mut self.no_flights,
            b"failing-flights" => &mut self.failing_flights,
            b"late-flights" => &mut self.late_flights,
            b"always-cold" => &mut self.always_cold,
            b"strict" => &mut self.strict,
            _ => return false,
        };
        *field = true;
        true
    }
}

/// Why a space could not be made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum InitError {
    /// The budget is below [`RAM_BYTES_MIN`].
    BudgetTooSmall,
    /// userfaultfd is not available.
    Userfaultfd(Errno),
    /// No address space for metadata (RLIMIT_AS?).
    AddressSpace(Errno),
    /// The file of a device could not be created. The first field is the device's place in [`Config::swap`].
    Spill(usize, Errno),
    /// More threads than contexts.
    Threads,
    /// More processes than a tree can have.
    Processes,
    /// In fork's child: the descriptor is gone by which others see that it lives.
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
                write!(f, "no spill file can be created for device {device} ({e}): name a writable directory")
            }
            Self::Threads => write!(f, "more threads than the engine has contexts for: start fewer"),
            Self::Processes => write!(f, "more processes than a tree can have: start fewer at a time"),
            Self::Life => {
                write!(f, "the descriptor that tells other processes that this one is alive was closed: keep it open")
            }
        }
    }
}

impl core::error::Error for InitError {}

impl From<Errno> for InitError {
    fn from(e: Errno) -> Self {
        Self::AddressSpace(e)
    }
}
