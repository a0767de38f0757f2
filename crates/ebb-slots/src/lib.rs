//! Swap slots: who may use which 4 KiB place of a swap device, and what each place holds.
//!
//! This crate owns the *cluster allocator* and the *swap table* of one device. It knows nothing of memory being mapped,
//! of files or of compression; it makes no system call and allocates nothing. All its state lives in memory that the
//! caller supplies, and zeroed bytes are a valid start, so a device of any size can be backed by sparse memory: what is
//! not used is never touched.
//!
//! # Words
//!
//! | word | meaning |
//! |---|---|
//! | slot | a place number in a device, 4 KiB of content each |
//! | cluster | [`CLUSTER_SLOTS`] consecutive slots with one lock, a count, an order and a place on one list |
//! | order | log2 of how many slots are handed out together; a cluster serves one order at a time |
//! | current cluster | the cluster that a shard allocates one order from; on no list meanwhile |
//! | shard | whatever allocates without getting into others' way: a thread, or a processor |
//! | swap table | one 64-bit word a slot: free, stored, cached or bad |
//! | swap cache | the slots whose word says *cached*: their content is in memory too, or is on its way |
//! | locked | cached, and one thread's alone, which moves the content |
//! | resident | cached and not locked: the folio is in memory and clean, the slot holds the same |
//! | cache-only | resident, and no page state refers to the slot: it may be freed for somebody else |
//! | count | how many page states refer to a slot; a slot is freed when it has none and is not cached |
//!
//! # Invariants
//!
//! 1. A word says *free* exactly if its cluster accounts the slot as free. It becomes free, and stops being free, only
//!    under the cluster lock. All other changes of a word are lock-free.
//! 2. A used cluster is on exactly one list, or is the current cluster of exactly one shard and order, or is *away* or
//!    *offline* (see `away`, `resize`).
//! 3. A cluster on `frag[order]` has no aligned free run of that order; each free in it takes it to `nonfull[order]`.
//! 4. The words of a cluster that is away are free, and stay so; a free word is 0. So the memory of a table can go, and
//!    come back as zeros, while others read it.
//! 5. A count field moves to and from its overflow mark under the overflow lock only.
//! 6. A locked word is unlocked, taken out of the cache, or given another folio, by the thread that locked it only.
//!
//! # Lock order
//!
//! shard lock, cluster lock, swap device lock: from left to right only. A cluster found on a list, so with the device
//! lock held, is taken by try-lock. The overflow lock and the one of [`Priorities`] are leaves: nothing is taken under
//! them and nothing needs to be held.
//!
//! # Memory
//!
//! 8 bytes a slot for the word and 32 bytes a cluster (0.06 bytes a slot), both committed page by page as clusters come
//! into use; 64 bytes a shard and 6 KiB a device besides. The words of empty clusters can be given back
//! ([`SwapDevice::release_tables`]).
//!
//! The design follows the cluster allocator and the swap table of Linux 6.18 (`mm/swapfile.c`, `mm/swap_table.h`).
#![no_std]
#![warn(missing_docs)]

#[cfg(test)]
extern crate std;

mod alloc;
mod away;
mod cache;
mod cluster;
mod compact;
mod device;
mod drain;
mod id;
mod layout;
mod lists;
mod overflow;
mod priority;
mod reclaim;
mod resize;
mod table;
mod validate;
mod word;

ebb_sync::lock_classes! {
    /// The current clusters of a shard.
    ShardLock = "swap shard";
    /// One cluster.
    ClusterLock = "swap cluster";
    /// The lists of clusters: the kernel's `si->lock`.
    DeviceLock = "swap device";
    /// The table of large counts.
    OverflowLock = "swap count overflow";
}

pub use cache::{CacheAddError, EvictError, LockError, Locked, Resident};
pub use cluster::{CLUSTER_SLOTS, MAX_ORDER};
pub use compact::Relocate;
pub use device::{InitError, Options, Placement, SwapDevice};
pub use id::{ClusterId, Entry, Folio, Order, Shadow, Shard, Slot};
pub use layout::{METADATA_ALIGN, metadata_bytes};
pub use priority::{DEVICES_MAX, Priorities};
pub use resize::ResizeError;
pub use table::{DupError, Stored, TableEntry};
pub use validate::{Inconsistency, Summary};
