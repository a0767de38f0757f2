//! Ebb's engine: swap for one process, in that process.
//!
//! A [`Space`] manages private anonymous memory. Cold pages are unmapped in batches, compressed, and kept in RAM or in
//! a file; a touch brings them back in the thread that touched. See `ARCHITECTURE.md` for the glossary, the invariants and
//! lock order.
//!
//! The crate uses neither libc nor an allocator, so all of it may run inside a signal handler. Callers block every
//! signal around each call.
//!
//! # Managing memory in one's own program
//!
//! [`Space::create`] makes the space, once a process. Then the program has four duties:
//!
//! 1. A handler of SIGBUS hands each fault to [`Space::fault`]. The handler runs on a signal stack of its own with every signal
//!    blocked. A stack is never managed memory.
//! 2. Each thread that touches managed memory, or calls the engine, is attached: [`Space::attach_thread`].
//! 3. Every signal is blocked around each call of the engine: [`uapi::thread::block_signals`].
//! 4. The kernel does not fault. A buffer that a system call reads or writes is pinned first and unpinned when the call has returned:
//!    [`Space::pin_begin`], [`Space::pin_add`], [`Space::pin_end`].
//!
//! Memory that [`Space::mmap`] maps is managed from then on. Calls with the names of system calls take the raw arguments of these
//! calls, and return what the kernel would: a value, or an error number below zero. `examples/embed.rs` is a complete program:
//!
//! ```no_run
//! use ebb::{Config, Force, Space, SwapSpec};
//!
//! let space = Space::create(&Config {
//!     ram_bytes: 64 << 20,
//!     swap: &[SwapSpec { dir: c"/var/tmp", bytes: 1 << 30, priority: None }],
//!     stats: None,
//!     stats_fd: None,
//!     force: Force::default(),
//! })?;
//! // The handler of SIGBUS that belongs here calls `space.fault`.
//! let ctx = space.attach_thread().ok_or("too many threads")?;
//! let (read_write, private_anonymous) = (3, 0x22);
//! let at = space.mmap(ctx, [0, 256 << 20, read_write, private_anonymous, u64::MAX, 0]);
//! assert!(at > 0, "mmap: error {}", -at);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![cfg_attr(not(test), no_std)]
#![warn(missing_docs)]

pub mod gate;
pub mod groups;
pub mod holders;
pub mod life;
pub mod page;
pub mod pin;
mod primitive;
pub mod request;
pub mod rest;

#[cfg(not(loom))]
mod account;
#[cfg(not(loom))]
mod asking;
#[cfg(not(loom))]
mod books;
#[cfg(not(loom))]
mod clean;
#[cfg(not(loom))]
pub mod clock;
#[cfg(not(loom))]
mod ctx;
#[cfg(not(loom))]
pub mod device;
#[cfg(not(loom))]
mod fault;
#[cfg(not(loom))]
mod fork;
#[cfg(not(loom))]
mod group;
#[cfg(not(loom))]
mod idle;
#[cfg(not(loom))]
mod in_place;
#[cfg(not(loom))]
mod lockstat;
#[cfg(not(loom))]
mod longterm;
#[cfg(not(loom))]
mod mlock;
#[cfg(not(loom))]
mod mm;
#[cfg(not(loom))]
pub mod outlived;
#[cfg(not(loom))]
mod pageout;
#[cfg(not(loom))]
mod patience;
#[cfg(not(loom))]
mod poolmem;
#[cfg(not(loom))]
mod prefetch;
#[cfg(not(loom))]
mod publish;
#[cfg(not(loom))]
mod readahead;
#[cfg(not(loom))]
mod reclaim;
#[cfg(not(loom))]
mod region;
#[cfg(not(loom))]
mod ring;
#[cfg(not(loom))]
mod runs;
#[cfg(not(loom))]
mod sharing;
#[cfg(not(loom))]
mod snapshot;
#[cfg(not(loom))]
mod space;
#[cfg(not(loom))]
mod staging;
#[cfg(not(loom))]
pub mod stats;
#[cfg(not(loom))]
mod stock;
#[cfg(not(loom))]
mod swapin;
#[cfg(not(loom))]
mod swapon;
#[cfg(not(loom))]
mod swapout;
#[cfg(not(loom))]
mod swapspace;
#[cfg(not(loom))]
mod sweep;
#[cfg(not(loom))]
mod table;
#[cfg(not(loom))]
mod takeover;
#[cfg(not(loom))]
mod text;
pub mod tree;
#[cfg(not(loom))]
pub mod uapi;
#[cfg(not(loom))]
mod validate;
#[cfg(not(loom))]
mod ways;
#[cfg(not(loom))]
mod willneed;
#[cfg(not(loom))]
mod work;

#[cfg(not(loom))]
pub use ctx::{THREADS_MAX, ThreadCtx};
#[cfg(not(loom))]
pub use device::{DEVICES_MAX, NAME_BYTES_MAX, SwapInfo, SwapSpec};
#[cfg(not(loom))]
pub use fault::{Fault, PIN_PAGES_MIN, PinResult};
#[cfg(not(loom))]
pub use groups::{GROUP_DEPTH_MAX, GROUPS_MAX, GroupError, GroupEvents, GroupId, GroupInfo, GroupLimits, GroupUse};
#[cfg(not(loom))]
pub use mlock::is_future_locked;
#[cfg(not(loom))]
pub use reclaim::Background;
#[cfg(not(loom))]
pub use snapshot::SnapshotError;
#[cfg(not(loom))]
pub use space::{Config, Force, InitError, RAM_BYTES_MIN, Space};
#[cfg(not(loom))]
pub use swapon::{SwapOffError, SwapOnError};
#[cfg(not(loom))]
pub use table::{ADDR_END, PAGE};
#[cfg(not(loom))]
pub use takeover::{Mapping, PageMap, Which};
#[cfg(not(loom))]
pub use validate::Inconsistency;
