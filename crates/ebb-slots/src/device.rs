//! A swap device: the handle to its metadata, and the counters.
//!
//! The handle holds only references and constants; all state is in the metadata. So after a fork, the child's handle
//! works on the child's copy of the metadata.

use crate::cluster::{ClusterRecord, Clusters, NR_ORDERS, records_for};
use crate::id::{ClusterId, Slot};
use crate::layout::{Layout, METADATA_ALIGN, nr_clusters};
use crate::lists::{Lists, decode};
use crate::overflow::Overflow;
use crate::{DeviceLock, OverflowLock, ShardLock};
use core::fmt;
use core::ptr::NonNull;
use ebb_sync::{AtomicU32, AtomicU64, CacheLine, Lock, Ordering, materialise};

/// How a device's medium wants to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// Each shard has a current cluster of its own for each order, and clusters in use are filled before new ones are
    /// begun: for RAM and solid state.
    Sharded,
    /// One current cluster for each order, and empty clusters before those with gaps, so that what is written together
    /// lies together: for rotational media, or to write large pieces.
    Sequential,
}

/// Parameters of a device.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Slots at the start.
    pub nr_slots: u32,
    /// Slots that it may grow to. The metadata is laid out for this many.
    pub nr_slots_max: u32,
    /// Threads, or processors, that allocate without getting into each other's way.
    pub shards: usize,
    /// Which clusters allocations go to first, as the medium prefers.
    pub placement: Placement,
    /// The medium wants to be told which slots hold nothing any more; see [`SwapDevice::discard`].
    pub discards: bool,
}

impl Options {
    /// A device of fixed size, whose medium wants no discards.
    pub const fn fixed(nr_slots: u32, shards: usize, placement: Placement) -> Self {
        Self { nr_slots, nr_slots_max: nr_slots, shards, placement, discards: false }
    }
}

/// Why a device could not be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InitError {
    /// [`Options::nr_slots`] is 0.
    NoSlots,
    /// [`Options::shards`] is 0.
    NoShards,
    /// More slots than it may ever have.
    TooManySlots,
    /// The memory must start at a multiple of [`METADATA_ALIGN`].
    Misaligned,
    /// The memory is smaller than the [`Options`] need.
    MemoryTooSmall {
        /// Bytes of memory that the caller gave.
        bytes: usize,
        /// Bytes that [`metadata_bytes`](crate::metadata_bytes) asks for.
        bytes_needed: usize,
    },
}

impl fmt::Display for InitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoSlots => f.write_str("a swap device of 0 slots; give it at least 1"),
            Self::NoShards => f.write_str("a swap device of 0 shards; give it at least 1"),
            Self::TooManySlots => f.write_str("a swap device of more slots than its maximum size; raise the maximum"),
            Self::Misaligned => write!(f, "swap metadata memory is not aligned; align it to {METADATA_ALIGN} bytes"),
            Self::MemoryTooSmall { bytes, bytes_needed } => {
                write!(f, "{bytes} bytes of swap metadata memory are not enough; give {bytes_needed} bytes")
            }
        }
    }
}

impl core::error::Error for InitError {}

/// A shard's current clusters. It has cache lines of its own.
#[repr(align(64))]
pub(crate) struct ShardRecord {
    /// Held while a current cluster is exchanged for another.
    pub(crate) switching: Lock<(), ShardLock>,
    /// The current cluster of each order, encoded as on lists. Changes under the lock. Without the lock it is a hint,
    /// and so relaxed: a thread that follows it locks the cluster and checks whether that is still a current one.
    pub(crate) current: [AtomicU32; NR_ORDERS],
}

impl ShardRecord {
    fn new() -> Self {
        Self { switching: Lock::new(()), current: core::array::from_fn(|_| AtomicU32::new(0)) }
    }

    /// The current clusters, read while nobody exchanges one.
    pub(crate) fn settled(&self) -> impl Iterator<Item = ClusterId> {
        let _guard = self.switching.lock();
        let clusters: [u32; NR_ORDERS] = core::array::from_fn(|order| self.current[order].load(Ordering::Relaxed));
        clusters.into_iter().filter_map(decode)
    }
}

pub(crate) struct Header {
    /// The lock in here is the swap device lock.
    pub(crate) lists: CacheLine<Lock<Lists, DeviceLock>>,
    /// Slots marked bad. Relaxed: a hint to other threads, and exact while nobody marks a slot.
    pub(crate) bad: AtomicU32,
    /// Number of slots since the device last grew or shrank, plus 1; 0 before. Changes under the device lock.
    pub(crate) resized: AtomicU32,
    pub(crate) overflow: CacheLine<Lock<Overflow, OverflowLock>>,
}

impl Header {
    fn new() -> Self {
        Self {
            lists: CacheLine(Lock::new(Lists::new())),
            bad: AtomicU32::new(0),
            resized: AtomicU32::new(0),
            overflow: CacheLine(Lock::new(Overflow::new())),
        }
    }
}

/// One swap device. All methods may be called by any number of threads at once.
pub struct SwapDevice {
    pub(crate) header: &'static Header,
    pub(crate) shards: &'static [ShardRecord],
    pub(crate) clusters: Clusters,
    pub(crate) words: &'static [AtomicU64],
    pub(crate) placement: Placement,
    pub(crate) discards: bool,
    /// Slots at the start.
    nr_slots: u32,
}

impl SwapDevice {
    /// Makes a device over zeroed memory. Touches none of it.
    ///
    /// # Errors
    /// [`InitError`] when a number is 0 or the memory does not fit what [`crate::metadata_bytes`] and
    /// [`METADATA_ALIGN`] say.
    ///
    /// # Safety
    /// `memory` points to `len` bytes, all zero, readable and writable, and used by nothing else for as long as the
    /// device is used.
    pub unsafe fn init(memory: NonNull<u8>, len: usize, options: &Options) -> Result<Self, InitError> {
        let Options { nr_slots, nr_slots_max, shards, placement, discards } = *options;
        if nr_slots == 0 {
            return Err(InitError::NoSlots);
        }
        if shards == 0 {
            return Err(InitError::NoShards);
        }
        if nr_slots > nr_slots_max {
            return Err(InitError::TooManySlots);
        }
        let layout = Layout::of(nr_slots_max, shards);
        if !memory.addr().get().is_multiple_of(METADATA_ALIGN) {
            return Err(InitError::Misaligned);
        }
        if len < layout.bytes || layout.bytes > isize::MAX as usize {
            return Err(InitError::MemoryTooSmall { bytes: len, bytes_needed: layout.bytes });
        }
        let nr_records = records_for(nr_clusters(nr_slots_max));
        // Zeroed bytes are what `new` of each type builds: every field is a number, an unlocked lock, or an enum whose
        // first value is 0.
        // SAFETY: the layout keeps the four parts apart, aligned and within `len`; the caller gives the memory to the
        // device alone, for as long as it is used.
        unsafe {
            let base = memory.as_ptr();
            let header = part(base, 1, Header::new);
            let shards = part(base.add(layout.shards), shards, ShardRecord::new);
            let clusters = part(base.add(layout.clusters), nr_records, ClusterRecord::new);
            let words = part(base.add(layout.words), nr_slots_max as usize, || AtomicU64::new(0));
            Ok(Self {
                header: &header[0],
                shards,
                clusters: Clusters::new(clusters),
                words,
                placement,
                discards,
                nr_slots,
            })
        }
    }

    /// Number of slots now, including bad ones. A shrink counts from [`Self::end_shrink`] on.
    pub fn nr_slots(&self) -> u32 {
        match self.header.resized.load(Ordering::Relaxed) {
            0 => self.nr_slots,
            resized => resized - 1,
        }
    }

    /// The most slots that the device can have.
    pub fn nr_slots_max(&self) -> u32 {
        self.words.len() as u32
    }

    /// Number of clusters now. The last one counts even if it is cut short.
    pub fn nr_clusters(&self) -> u32 {
        nr_clusters(self.nr_slots())
    }

    /// Number of slots allocated now. Exact if nobody allocates or frees meanwhile. Looks at every cluster that was
    /// ever used: a counter would have to be shared by all threads.
    pub fn nr_used(&self) -> u32 {
        let touched = self.header.lists.0.lock().untouched();
        (0..touched.0).map(|id| u32::from(self.clusters.lock(ClusterId(id)).info.count)).sum()
    }

    /// Number of slots marked bad.
    pub fn nr_bad(&self) -> u32 {
        self.header.bad.load(Ordering::Relaxed)
    }

    /// The placement of the [`Options`] that the device was made with.
    pub fn placement(&self) -> Placement {
        self.placement
    }

    /// The words of a cluster; fewer than a cluster's worth where the device ends.
    pub(crate) fn cluster_words(&self, id: ClusterId) -> &'static [AtomicU64] {
        let first = id.first_slot().0 as usize;
        &self.words[first..first + self.capacity(id) as usize]
    }

    pub(crate) fn capacity(&self, id: ClusterId) -> u32 {
        self.nr_slots().saturating_sub(id.first_slot().0).min(crate::CLUSTER_SLOTS)
    }

    /// A slot's word. Panics if the device has no such slot.
    #[inline]
    pub(crate) fn word(&self, slot: Slot) -> &'static AtomicU64 {
        &self.words[slot.0 as usize]
    }
}

/// One part of the metadata, as what it holds.
///
/// # Safety
/// `at` is aligned for `T` and points to `len` values' worth of zeroed memory, which is given to the part for as long
/// as it is used; `make` builds what zeroed bytes are.
unsafe fn part<T>(at: *mut u8, len: usize, make: fn() -> T) -> &'static [T] {
    let at = at.cast::<T>();
    debug_assert!(at.is_aligned());
    // SAFETY: the caller's promise.
    unsafe {
        materialise(at, len, make);
        core::slice::from_raw_parts(at, len)
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::metadata_bytes;

    fn init(offset: usize, len: usize, nr_slots: u32, shards: usize) -> Result<SwapDevice, InitError> {
        let memory = NonNull::new(core::ptr::without_provenance_mut(METADATA_ALIGN + offset)).unwrap();
        // SAFETY: each of these calls fails before it uses the memory.
        unsafe { SwapDevice::init(memory, len, &Options::fixed(nr_slots, shards, Placement::Sharded)) }
    }

    #[test]
    fn unusable_numbers_and_memory_are_refused() {
        let bytes_needed = metadata_bytes(100, 2);
        assert_eq!(init(0, bytes_needed, 0, 2).err(), Some(InitError::NoSlots));
        assert_eq!(init(0, bytes_needed, 100, 0).err(), Some(InitError::NoShards));
        assert_eq!(init(64, bytes_needed, 100, 2).err(), Some(InitError::Misaligned));
        let too_small = InitError::MemoryTooSmall { bytes: bytes_needed - 1, bytes_needed };
        assert_eq!(init(0, bytes_needed - 1, 100, 2).err(), Some(too_small));
        assert_eq!(
            std::format!("{too_small}"),
            std::format!(
                "{} bytes of swap metadata memory are not enough; give {bytes_needed} bytes",
                bytes_needed - 1
            )
        );
    }
}
