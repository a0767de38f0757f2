//! Ebb's engine: swap for one process, in that process.
//!
//! A [`Space`] manages private anonymous memory. Cold pages are unmapped in batches, compressed, and kept in RAM or in
//! a file. The thread that touches one brings it back. `ARCHITECTURE.md` has the glossary, the invariants and the lock
//! order.
//!
//! The crate uses neither libc nor an allocator, so all of it may run inside a signal handler. Callers block every
//! signal around each call.
//!
//! # Managing memory in your own program
//!
//! [`Space::create`] makes the space, once per process. From then on the program has four duties:
//!
//! 1. Its SIGBUS handler passes each fault to [`Space::fault`]. The handler runs on its own signal stack with every
//!    signal blocked. A stack is never managed memory.
//! 2. Each thread attaches itself before it touches managed memory or calls the engine: [`Space::attach_thread`].
//! 3. Every signal is blocked around each call of the engine: [`uapi::thread::block_signals`].
//! 4. The kernel does not fault pages in. The program pins a buffer before a system call reads or writes it, and unpins
//!    it after the call has returned: [`Space::pin_begin`], [`Space::pin_add`], [`Space::pin_end`].
//!
//! Memory mapped with [`Space::mmap`] is managed from then on. Methods named after system calls take the raw arguments
//! of those calls and return what the kernel would: a value, or a negative error number. `examples/embed.rs` is a
//! complete program:
//!
//! ```no_run
//! use ebb::{Config, Force, Space, SwapSpec};
//!
//! let space = Space::create(&Config {
//!     ram_bytes: 64 << 20,
//!     swap: &[SwapSpec { dir: c"/var/tmp", bytes: 1 << 30, priority: None, ..SwapSpec::DEFAULT }],
//!     stats: None,
//!     stats_fd: None,
//!     force: Force::default(),
//! })?;
//! // Install the SIGBUS handler here. It calls `space.fault`.
//! let ctx = space.attach_thread().ok_or("too many threads")?;
//! let (read_write, private_anonymous) = (3, 0x22);
//! let at = space.mmap(ctx, [0, 256 << 20, read_write, private_anonymous, u64::MAX, 0]);
//! assert!(at > 0, "mmap: error {}", -at);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![cfg_attr(not(test), no_std)]
#![warn(missing_docs)]

pub mod protocols;
pub mod tree;

#[cfg(not(loom))]
mod api;
#[cfg(not(loom))]
mod background;
#[cfg(not(loom))]
pub mod base;
#[cfg(not(loom))]
mod budget;
#[cfg(not(loom))]
mod calls;
#[cfg(not(loom))]
mod counters;
#[cfg(not(loom))]
pub mod device;
#[cfg(not(loom))]
mod fork;
#[cfg(not(loom))]
mod groups;
#[cfg(not(loom))]
mod memory;
#[cfg(not(loom))]
mod pages;
#[cfg(not(loom))]
mod places;
#[cfg(not(loom))]
mod space;
#[cfg(not(loom))]
mod threads;
#[cfg(not(loom))]
mod way_in;
#[cfg(not(loom))]
mod way_out;

pub use protocols::{
    bounds, bucket, deposit, errand, gate, holders, life, page, pin, request, rest, seal, stalls, together, versions,
};

#[cfg(all(feature = "events", not(loom)))]
pub use self::base::events;
#[cfg(not(loom))]
pub use self::{
    api::figures::Figures,
    api::reclaim::{NoDevice, Reclaim, ReclaimTo},
    api::snapshot::SnapshotError,
    api::swapon::{SwapOffError, SwapOnError},
    api::takeover::{Mapping, PageMap, Which},
    base::{PAGE, clock, killable, outlived, uapi},
    budget::{pool_max, staging_target},
    counters::stats,
    device::kind::{Discard, Kind},
    device::{DEVICES_MAX, NAME_BYTES_MAX, SwapInfo, SwapSpec, SwapState},
    groups::names::{GroupError, GroupEvents, GroupId, GroupInfo, GroupLimits, GroupUse},
    groups::table::{GROUP_DEPTH_MAX, GROUPS_MAX},
    memory::table::ADDR_END,
    pages::in_use::PIN_PAGES_MIN,
    pages::kept::is_future_locked,
    places::inconsistency::Inconsistency,
    space::background::Background,
    space::config::{Config, Force, InitError},
    space::{IDLE_MS_MAX, IDLE_MS_MIN, RAM_BYTES_MIN, Space},
    threads::ctx::{THREADS_MAX, ThreadCtx},
    way_in::fault::Fault,
    way_in::pins::PinResult,
};

/// Bytes that 1000 slots of the swap table cost while their clusters are not in use.
#[cfg(not(loom))]
pub const SWAP_TABLE_REST_BYTES_PER_1000: u64 = places::swapspace::SwapSpace::REST_BYTES_PER_1000_SLOTS;
