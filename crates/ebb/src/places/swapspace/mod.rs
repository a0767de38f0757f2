//! The swap space: slots, their location words, and the places where content can be.
//!
//! A slot is a number in one virtual space. Its location word says where the content is: a pattern, the pool, or a
//! file. So content moves between places (writeback, compaction) without anybody looking for the page that refers to
//! it. A thread reads or moves the content of a slot only while it has the slot locked in the swap cache.

mod cache;
mod cleaning;
mod content;
mod cooling;
mod evacuate;
mod frees;
mod location;
#[cfg(all(test, not(loom)))]
mod model;
mod neighbours;
mod packed;
mod span;
mod writeback;

pub use content::{Aim, LoadError, Source, StoreResult};
pub use cooling::Cooled;
pub use evacuate::{Evacuation, Stuck};
pub use frees::Frees;
pub use neighbours::Window;
pub use span::{PageSet, Reads};
pub use writeback::WriteBack;

use self::cooling::Settled;
use self::location::file_of;
use crate::base::uapi::{self, Errno};
use crate::budget::Budget;
use crate::counters::stats::{self, Shared};
use crate::device::file::{BATCH, Place, SpillFile};
use crate::device::list::Devices;
use crate::device::slots::{charge_tables, new_slots};
use crate::places::codecs::Codecs;
use crate::places::fetches::Fetches;
use crate::places::inconsistency::Inconsistency;
use crate::places::poolmem::PoolMemory;
use crate::protocols::gate::Exclusive;
use crate::protocols::gate::Held;
use crate::protocols::page::State;
use crate::tree::holding::Fork;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use ebb_pool::{BLOCK_BYTES, BLOCK_PAGES, Pool};
use ebb_slots::{
    CLUSTER_SLOTS, Entry, Folio, Locked, Options, Order, Placement, Shadow, Shard, Slot, Stored, SwapDevice,
    TableEntry, metadata_bytes,
};
use ebb_sync::CacheLine;

/// Slots of the virtual space: 256 GiB of content.
pub const NR_SLOTS: u32 = 1 << 26;
/// Allocation shards. Threads are spread over them.
const SHARDS: usize = 16;
/// Bytes of metadata a slot: its table word and its location word.
const SLOT_META_BYTES: usize = 2 * size_of::<u64>();
/// Empty clusters that keep their tables.
const TABLES_KEPT: usize = 16;
/// Clusters that one step of releasing works on.
const CLUSTERS_STEP: usize = 64;
/// The folio of a slot that is locked to move its content between places, not to bring it in.
const MOVING: Folio = folio_number((1 << Folio::BITS) - 1);

/// A placeholder where no slot is locked yet.
pub const NOT_LOCKED: Locked = Locked::Stored(Stored { count: 0, shadow: Shadow(0), zero: false });

/// The folio with this number.
const fn folio_number(number: u64) -> Folio {
    match Folio::new(number) {
        Some(folio) => folio,
        None => panic!("a folio number has at most 40 bits"),
    }
}

/// The folio of the page at `addr`; its number is the page's number.
pub fn folio_at(addr: usize) -> Folio {
    folio_number((addr / 4096) as u64)
}

/// Misplaced objects are worth a search once they are 1/`MISPLACED_PART` of the objects in the pool.
const MISPLACED_PART: u64 = 32;
/// Of the pool's objects at most one in so many may save next to no RAM while RAM is short.
const LARGE_PART: u64 = 5;
/// Objects that save next to no RAM are cold after so many turns: evictions of as many pages as the process may have. Where pages
/// are used at random and half of them fit, one in fifty is out for longer.
const COLD_TURNS: u32 = 4;
/// Searches for cold objects in a turn.
const COLD_LOOKS: u32 = 16;
/// The pool is far over its maximum when the excess is more than 1/`OVER_PART` of the maximum.
const OVER_PART: usize = 16;

/// The slots of a process, and everything behind them.
pub struct SwapSpace {
    slots: SwapDevice,
    nr_slots: u32,
    locations: *const AtomicU64,
    pool: Pool,
    memory: PoolMemory,
    pub devices: Devices,
    /// Evictions so far; shadows are readings of it.
    clock: CacheLine<AtomicU32>,
    /// Where writeback looks next.
    writeback_at: AtomicU32,
    /// Where a search for pages that are clean, and packed in a file, looks next.
    packed_at: AtomicU32,
    high_water: CacheLine<AtomicU32>,
    /// Clusters whose tables are charged.
    tables: AtomicU32,
    content_pages: CacheLine<AtomicU64>,
    /// Pool objects that a file would rather have; see [`content::POOL_OBJECT_MAX`].
    large_objects: AtomicU64,
    /// The clock at the last search for such objects that have been out for long.
    looked_for_cold: AtomicU32,
    /// Set when a slot of a file is freed and the file has something to give back.
    has_unused: AtomicBool,
    /// Which objects of the pool are cold.
    settled: Settled,
    /// What the codec of the cold tier works in.
    pub codecs: Codecs,
    /// Reads of files in flight, for walks.
    pub fetches: Fetches,
}

// SAFETY: locations are atomics.
unsafe impl Sync for SwapSpace {}
// SAFETY: as above.
unsafe impl Send for SwapSpace {}

impl SwapSpace {
    /// A swap space with a pool in `arena_bytes` of address space. `pool_pages_max` says how many pages the pool may
    /// hold, with a file and without one.
    pub fn new(pool_pages_max: [usize; 2], arena_bytes: usize, stats: &'static Shared) -> Result<Self, Errno> {
        // The answer is cached here, so that no signal handler has to ask the processor.
        let _ = ebb_pool::codec::has_words();
        // A process has no more to swap than its address space holds.
        let pages = uapi::address_space_limit() / 4096;
        let nr_slots = NR_SLOTS.min(pages.min(u64::from(u32::MAX)) as u32 / CLUSTER_SLOTS * CLUSTER_SLOTS);
        let (slots, _) = new_slots(&Options::fixed(nr_slots, SHARDS, Placement::Sharded))?;
        let block_bytes = BLOCK_BYTES;
        let arena_bytes = arena_bytes.next_multiple_of(block_bytes);
        let arena = uapi::reserve_aligned(arena_bytes, block_bytes.max(4096))?;
        let meta = Pool::metadata_bytes(arena_bytes);
        // SAFETY: both ranges are fresh zeroed memory, page-aligned, and used by nobody else.
        let pool = unsafe { Pool::init(arena, arena_bytes, uapi::reserve(meta)?, meta) };
        let nr_blocks = arena_bytes / block_bytes;
        Ok(Self {
            slots,
            nr_slots,
            locations: uapi::reserve(nr_slots as usize * 8)?.cast(),
            pool,
            memory: PoolMemory::new(arena as usize, nr_blocks, pool_pages_max)?,
            devices: Devices::new(stats)?,
            clock: CacheLine(AtomicU32::new(0)),
            writeback_at: AtomicU32::new(0),
            packed_at: AtomicU32::new(0),
            high_water: CacheLine(AtomicU32::new(0)),
            tables: AtomicU32::new(0),
            content_pages: CacheLine(AtomicU64::new(0)),
            large_objects: AtomicU64::new(0),
            looked_for_cold: AtomicU32::new(0),
            has_unused: AtomicBool::new(false),
            settled: Settled::default(),
            codecs: Codecs::new()?,
            fetches: Fetches::new()?,
        })
    }

    /// Sets whether there is a device that takes what the pool does not.
    pub fn set_has_file(&self, has_file: bool) {
        self.memory.set_has_file(has_file);
    }

    /// True when a device takes content that the pool does not, such as pages that do not compress.
    pub fn has_file(&self) -> bool {
        !self.memory.is_alone()
    }

    /// Changes how many pages the pool may hold: with a device behind it, and without one.
    pub fn set_pool_max(&self, pages: [usize; 2]) {
        self.memory.set_pages_max(pages);
    }

    fn location(&self, slot: Slot) -> &AtomicU64 {
        assert!(slot.0 < self.nr_slots);
        // SAFETY: checked index.
        unsafe { &*self.locations.add(slot.0 as usize) }
    }

    /// Allocates up to `out.len()` slots, for one page each, and returns how many. They come locked in the swap cache,
    /// with count 0.
    pub fn alloc(&self, shard: usize, budget: &Budget, stats: &Shared, out: &mut [Slot]) -> usize {
        let n = self.slots.alloc(Shard(shard % SHARDS), Order::ZERO, folio_number(0), out);
        let top = out[..n].iter().map(|s| s.0 + 1).max().unwrap_or(0);
        if self.high_water.load(Ordering::Relaxed) < top {
            self.high_water.fetch_max(top, Ordering::Relaxed);
        }
        let nr_tables = self.slots.nr_tables();
        charge_tables(budget, &self.tables, nr_tables, SLOT_META_BYTES);
        let tables = u64::from(nr_tables) * u64::from(CLUSTER_SLOTS) * size_of::<u64>() as u64;
        stats::raise(&stats.peak_swap_table_bytes, tables);
        n
    }

    /// Bytes of swap-table metadata for 1000 slots whose clusters are not in use.
    pub const REST_BYTES_PER_1000_SLOTS: u64 = {
        let words = NR_SLOTS as u64 * size_of::<u64>() as u64;
        (metadata_bytes(NR_SLOTS, SHARDS) as u64 - words) * 1000 / NR_SLOTS as u64
    };

    /// Gives back the metadata of slots that nobody uses any more, and has the file system forget what files held for
    /// free slots; returns how many clusters that were. A few are kept, because freed slots are soon used again.
    pub fn release_unused(&self, held: &Held, budget: &Budget) -> usize {
        let released = self.slots.release_tables(TABLES_KEPT, CLUSTERS_STEP, |run| {
            let (words, bytes) = self.slots.words_of(run.clone());
            let _ = budget.drop_books(words as usize, bytes);
            let (first, end) = (run.start.first_slot().0 as usize, run.end.0 as usize * CLUSTER_SLOTS as usize);
            // A stale location word is as good as a zero one: nobody reads it before it is written.
            let at = self.locations as usize + first * size_of::<u64>();
            let _ = budget.drop_books(at, (end - first) * size_of::<u64>());
        });
        charge_tables(budget, &self.tables, self.slots.nr_tables(), SLOT_META_BYTES);
        released + self.devices.own(held).map(|(_, file)| file.release_unused(budget)).sum::<usize>()
    }

    /// True when a file has had something to give back since the last call. It may be called outside the gate, where no
    /// file may be looked at.
    pub fn take_has_unused(&self) -> bool {
        self.has_unused.load(Ordering::Relaxed) && self.has_unused.swap(false, Ordering::Relaxed)
    }

    /// Notes that a slot of `file` was freed.
    pub(super) fn note_freed(&self, file: &SpillFile) {
        if file.has_unused() {
            self.has_unused.store(true, Ordering::Relaxed);
        }
    }

    /// Gives back a locked slot that was not used.
    pub fn unalloc(&self, slot: Slot) {
        self.slots.free_run(slot, Order::ZERO);
    }

    /// Evictions so far; the count wraps.
    pub fn clock(&self) -> u32 {
        self.clock.load(Ordering::Relaxed)
    }

    /// Evictions since `shadow` was left.
    pub fn distance(&self, shadow: Shadow) -> u32 {
        self.clock.load(Ordering::Relaxed).wrapping_sub(shadow.0)
    }

    /// Whether the content of `slot` is at this place of a file that this process writes to. A hint, unless the caller
    /// has `slot` locked.
    pub fn is_in_file(&self, slot: Slot, at: Place) -> bool {
        let loc = self.location(slot).load(Ordering::Acquire);
        file_of(loc).is_some_and(|(file, place)| place == at && self.devices.priority(file).is_some())
    }

    /// Slots in use. Visits every cluster.
    pub fn nr_used(&self) -> u64 {
        self.slots.nr_used().into()
    }

    /// What the swap table says about `slot`.
    pub fn entry(&self, slot: Slot) -> TableEntry {
        self.slots.get(slot)
    }

    /// References of pages to slots, slots with a resident page, and locked slots without one; none when a recount
    /// fails. No other thread may be at work.
    pub fn references(&self) -> Option<(u64, u64, u64)> {
        let counts = |summary: ebb_slots::Summary| {
            let resident = u64::from(summary.slots_resident);
            (summary.references, resident, u64::from(summary.slots_cached) - resident)
        };
        self.slots.validate().ok().map(counts)
    }

    /// True when the pool may hold content that is also in memory: the pool is less than three quarters full, or a file
    /// takes what does not fit.
    pub fn may_keep(&self, budget: &Budget) -> bool {
        self.has_file() || self.pool_pages() < self.memory.pages_max(budget) / 4 * 3
    }

    /// True when compaction could free much: the pool holds more than 4 MiB, and a third more memory than content.
    pub fn is_fragmented(&self) -> bool {
        let held = self.memory.pages() * 4096;
        held > (4 << 20) && held as u64 * 3 > self.pool.stored_bytes() * 4
    }

    /// Gives back the memory of spare pool blocks.
    pub fn trim(&self, budget: &Budget) {
        self.memory.trim(budget);
    }

    /// Pages of memory that the pool holds.
    pub fn pool_pages(&self) -> usize {
        self.memory.pages()
    }

    /// Shares the pool's memory with the child of the fork to come.
    pub fn share_pool(&self, fork: &mut Fork<'_>) {
        self.memory.share(fork);
    }

    /// Address of the pool's memory, and its size in pages.
    pub fn arena(&self) -> (usize, usize) {
        self.memory.arena()
    }

    /// Pages whose content is on a device that this process writes to.
    pub fn device_pages(&self, held: &Held) -> u64 {
        self.devices.own(held).map(|(_, file)| u64::from(file.nr_objects())).sum()
    }

    /// Slots that this process has content in, on devices that it writes to.
    pub fn device_slots(&self, held: &Held) -> u64 {
        self.devices.own(held).map(|(_, file)| u64::from(file.nr_used())).sum()
    }

    /// True when the pool holds as much as it may, to within 4 blocks.
    pub fn pool_is_full(&self, budget: &Budget) -> bool {
        self.pool_pages() + 4 * BLOCK_PAGES >= self.memory.pages_max(budget)
    }

    /// True when the pool holds much more than it may. It can, because it may hold more while RAM is not short.
    pub fn pool_is_over(&self, budget: &Budget) -> bool {
        let most = self.memory.pages_max(budget);
        self.pool_pages() > most + (most / OVER_PART).max(4 * BLOCK_PAGES)
    }

    /// How many evictions ago an object that saves next to no RAM must have gone out to be better off in a file. None if it is not
    /// worth a search now.
    ///
    /// Such an object takes as much RAM as its page would. But a disk takes ten times as long to bring it back as other pages take.
    /// So it stays until it has been out for so long that nobody will ask for it soon, or until the pool needs the room.
    pub fn misplaced_age(&self, budget: &Budget) -> Option<u32> {
        let large = self.large_objects.load(Ordering::Relaxed);
        let worth = (self.content_pages.load(Ordering::Relaxed) / MISPLACED_PART).max(BATCH as u64);
        if large < worth || !self.has_file() || budget.has_plenty() {
            return None;
        }
        if !self.takes_large(budget) {
            return Some(0);
        }
        let (now, turn) = (self.clock.load(Ordering::Relaxed), budget.expected().min(u32::MAX as usize / 16) as u32);
        if now.wrapping_sub(self.looked_for_cold.load(Ordering::Relaxed)) < turn / COLD_LOOKS {
            return None;
        }
        Some(COLD_TURNS * turn)
    }

    /// True while the pool takes objects that save next to no RAM: it has room to spare, and what else it holds saves enough.
    ///
    /// Without the second rule, a program whose pages do not compress would fill the pool before the first page is freed.
    pub(super) fn takes_large(&self, budget: &Budget) -> bool {
        let large = self.large_objects.load(Ordering::Relaxed);
        large * LARGE_PART <= self.content_pages.load(Ordering::Relaxed) && self.memory.has_room_to_spare(budget)
    }

    /// Recounts the slots, the pool and the files.
    pub fn validate(&self, exclusive: &Exclusive<'_>) -> Result<(), Inconsistency> {
        self.slots.validate().map_err(Inconsistency::Slots)?;
        self.pool.validate().map_err(Inconsistency::Pool)?;
        self.validate_objects(exclusive)?;
        self.validate_settled()?;
        self.devices.all(exclusive).try_for_each(|(i, file)| {
            file.validate().map_err(|e| Inconsistency::File(i, e))?;
            let differ = |(kept, counted)| Inconsistency::FileUsed { file: i, kept, counted };
            file.miscounted(exclusive).map_or(Ok(()), |counts| Err(differ(counts)))
        })
    }
}

/// The slot in a swapped page's state.
pub(crate) fn slot_of(state: State) -> Slot {
    Entry::from_bits(state.payload()).slot
}
