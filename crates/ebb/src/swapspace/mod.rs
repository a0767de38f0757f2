//! The swap space: slots, their location words, and the places that content can be.
//!
//! A slot is a number in one virtual space; its location word says where the content is: a pattern, the pool, or a
//! file. So content moves between places (written back, compacted) without anybody looking for the page that refers
//! to it. Whoever reads or moves content holds the slot's cache claim (word *cached* in the swap table).

mod evacuate;

pub use evacuate::{Evacuation, Stuck};

use crate::device::file::{BATCH, FileError, Reclaim, SLOT_BYTES};
use crate::device::list::Devices;
use crate::group::Group;
use crate::poolmem::PoolMemory;
use crate::stats::{self, Shared};
use crate::tree::shared_map::SharedMap;
use crate::uapi::{self, Errno};
use core::cell::Cell;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use ebb_pool::{BLOCK_BYTES, BLOCK_PAGES, Handle, Owners, Pool, PoolFull, codec};
use ebb_slots::{
    CLUSTER_SLOTS, EvictError, Folio, LockError, Locked, Options, Order, Placement, Shadow, Shard, Slot, Stored,
    SwapDevice, TableEntry, metadata_bytes,
};

/// Slots of the virtual space: 256 GiB of content.
pub const NR_SLOTS: u32 = 1 << 26;
/// Shards of per-thread allocation state.
const SHARDS: usize = 16;
/// Bytes of metadata of a slot: its word and its location.
const SLOT_META_BYTES: usize = 2 * size_of::<u64>();
/// Empty clusters that keep their tables.
const TABLES_KEPT: usize = 16;
/// Clusters that one step of releasing works on.
const CLUSTERS_STEP: usize = 64;
/// A page that compresses to more than this goes to a file, where it costs no RAM.
const POOL_OBJECT_MAX: usize = 3072;
/// The folio of a slot whose content is being moved, not brought in.
const MOVING: Folio = folio_number((1 << Folio::BITS) - 1);

/// Most references to a slot. Further ones would need the overflow table, which may be full when a clean page, which has no
/// reference, is evicted and must have one.
const SHARED_MAX: u32 = 28;
/// What stands where nothing is locked yet.
pub const NOT_LOCKED: Locked = Locked::Stored(Stored { count: 0, shadow: Shadow(0), zero: false });

const LOC_SAME: u64 = 1;
const LOC_POOL: u64 = 2;
const LOC_FILE: u64 = 3;
/// A repeated word of at most 56 bits: small numbers and pointers.
const LOC_WORD: u64 = 4;

/// A folio by number.
const fn folio_number(number: u64) -> Folio {
    match Folio::new(number) {
        Some(folio) => folio,
        None => panic!("a folio number has at most 40 bits"),
    }
}

/// The folio of the page at `addr`: the page's number.
pub fn folio_at(addr: usize) -> Folio {
    folio_number((addr / 4096) as u64)
}

/// A slot device over memory of its own, of which it comes with address and length.
pub fn new_slots(options: &Options) -> Result<(SwapDevice, (usize, usize)), Errno> {
    let len = metadata_bytes(options.nr_slots_max, options.shards);
    let memory = NonNull::new(uapi::reserve(len)?).ok_or(Errno::NOMEM)?;
    let at = memory.addr().get();
    // SAFETY: fresh zeroed memory of the size asked for, page-aligned; who unmaps it has the device no more.
    let slots = unsafe { SwapDevice::init(memory, len, options) }.map_err(|_| Errno::INVAL)?;
    Ok((slots, (at, len)))
}

/// Charges what tables of `bytes_per_slot` cost, of which there are `now` and of which `charged` were.
pub fn charge_tables(group: &Group, charged: &AtomicU32, now: u32, bytes_per_slot: usize) {
    let before = charged.swap(now, Ordering::Relaxed);
    let bytes = |tables: u32| tables as usize * CLUSTER_SLOTS as usize * bytes_per_slot;
    if now > before {
        group.charge_meta(bytes(now - before));
    } else if now < before {
        group.uncharge_meta(bytes(before - now));
    }
}

/// Where a page came from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Source {
    /// A pattern.
    Same,
    /// The pool.
    Pool,
    /// A file.
    File,
}

/// Why a page could not be brought in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LoadError {
    /// The slot holds nothing: a bug.
    Lost,
    /// The content does not decompress or authenticate.
    Corrupt,
    /// The kernel refused to read the file.
    Io(Errno),
}

/// What became of a page offered for storing.
pub enum StoreResult {
    /// Done.
    Done,
    /// It must go to a file: `.0` bytes of the output buffer hold it compressed, or it is raw when `None`.
    File(Option<usize>),
}

/// Slots and everything behind them.
pub struct SwapSpace {
    slots: SwapDevice,
    locations: *const AtomicU64,
    pool: Pool,
    memory: PoolMemory,
    pub devices: Devices,
    /// Evictions so far, as shadows count them.
    clock: AtomicU32,
    /// Where writeback looks next.
    writeback_at: AtomicU32,
    high_water: AtomicU32,
    /// Clusters whose tables are charged.
    tables: AtomicU32,
    content_pages: AtomicU64,
}

// SAFETY: locations are atomics.
unsafe impl Sync for SwapSpace {}
// SAFETY: as above.
unsafe impl Send for SwapSpace {}

impl SwapSpace {
    /// A swap space whose pool may hold `pool_pages_max` pages (with a file, and without one) of `arena_bytes` of
    /// address space.
    pub fn new(pool_pages_max: [usize; 2], arena_bytes: usize) -> Result<Self, Errno> {
        let (slots, _) = new_slots(&Options::fixed(NR_SLOTS, SHARDS, Placement::Sharded))?;
        let block_bytes = BLOCK_BYTES;
        let arena_bytes = arena_bytes.next_multiple_of(block_bytes);
        let arena = uapi::reserve_aligned(arena_bytes, block_bytes.max(4096))?;
        let meta = Pool::metadata_bytes(arena_bytes);
        // SAFETY: fresh zeroed memory, as above.
        let pool = unsafe { Pool::init(arena, arena_bytes, uapi::reserve(meta)?, meta) };
        let nr_blocks = arena_bytes / block_bytes;
        Ok(Self {
            slots,
            locations: uapi::reserve(NR_SLOTS as usize * 8)?.cast(),
            pool,
            memory: PoolMemory::new(arena as usize, nr_blocks, pool_pages_max)?,
            devices: Devices::new()?,
            clock: AtomicU32::new(0),
            writeback_at: AtomicU32::new(0),
            high_water: AtomicU32::new(0),
            tables: AtomicU32::new(0),
            content_pages: AtomicU64::new(0),
        })
    }

    /// Says whether there is a device that takes what the pool does not.
    pub fn set_has_file(&self, has_file: bool) {
        self.memory.set_has_file(has_file);
    }

    /// True when incompressible content has a place to go.
    pub fn has_file(&self) -> bool {
        !self.memory.is_alone()
    }

    /// Changes how many pages the pool may hold: with a device behind it, and without one.
    pub fn set_pool_max(&self, pages: [usize; 2]) {
        self.memory.set_pages_max(pages);
    }

    fn location(&self, slot: Slot) -> &AtomicU64 {
        assert!(slot.0 < NR_SLOTS);
        // SAFETY: checked index.
        unsafe { &*self.locations.add(slot.0 as usize) }
    }

    /// Takes up to `out.len()` slots for one page each; they come claimed (cached, count 0).
    pub fn alloc(&self, shard: usize, group: &Group, stats: &Shared, out: &mut [Slot]) -> usize {
        let n = self.slots.alloc(Shard(shard % SHARDS), Order::ZERO, folio_number(0), out);
        let top = out[..n].iter().map(|s| s.0 + 1).max().unwrap_or(0);
        self.high_water.fetch_max(top, Ordering::Relaxed);
        self.charge_tables(group);
        let tables = u64::from(self.slots.nr_tables()) * u64::from(CLUSTER_SLOTS) * size_of::<u64>() as u64;
        stats::raise(&stats.peak_swap_table_bytes, tables);
        n
    }

    /// Bytes that the swap table costs a slot while its cluster is not used, in thousandths.
    pub const REST_BYTES_PER_1000_SLOTS: u64 = {
        let words = NR_SLOTS as u64 * size_of::<u64>() as u64;
        (metadata_bytes(NR_SLOTS, SHARDS) as u64 - words) * 1000 / NR_SLOTS as u64
    };

    /// Brings the charge for the tables of slots in line with how many there are.
    fn charge_tables(&self, group: &Group) {
        charge_tables(group, &self.tables, self.slots.nr_tables(), SLOT_META_BYTES);
    }

    /// Gives the metadata of slots back that nobody uses any more, and has the file system forget what the file held
    /// for some; how many clusters. A few are kept: what was freed is soon used again.
    pub fn release_unused(&self, group: &Group) -> usize {
        let released = self.slots.release_tables(TABLES_KEPT, CLUSTERS_STEP, |run| {
            let (words, bytes) = self.slots.words_of(run.clone());
            let _ = uapi::madvise(words as usize, bytes, linux_raw_sys::general::MADV_DONTNEED);
            let (first, end) = (run.start.first_slot().0 as usize, run.end.0 as usize * CLUSTER_SLOTS as usize);
            // A location that is stale is as good as one that is zero: nobody reads it before it is written.
            let at = self.locations as usize + first * size_of::<u64>();
            let _ = uapi::madvise(at, (end - first) * size_of::<u64>(), linux_raw_sys::general::MADV_DONTNEED);
        });
        self.charge_tables(group);
        released + self.devices.own().map(|(_, file)| file.release_unused(group)).sum::<usize>()
    }

    /// Gives back a claimed slot that was not used.
    pub fn unalloc(&self, slot: Slot) {
        self.slots.free_run(slot, Order::ZERO);
    }

    /// Stores a page in the claimed `slot`, as a pattern or in the pool.
    pub fn store(
        &self,
        group: &Group,
        stats: &Shared,
        slot: Slot,
        page: &[u8; 4096],
        lz4: &mut codec::Lz4State,
        out: &mut [u8],
    ) -> StoreResult {
        let pattern = codec::same_filled(page).and_then(|word| match word {
            _ if word >> 32 == word & 0xffff_ffff => Some((word, LOC_SAME | (word & 0xffff_ffff) << 8)),
            _ if word >> 56 == 0 => Some((word, LOC_WORD | word << 8)),
            _ => None,
        });
        if let Some((word, location)) = pattern {
            self.location(slot).store(location, Ordering::Release);
            self.slots.set_zero(slot, word == 0);
            stats::add(&stats.out_same_pages, 1);
            return StoreResult::Done;
        }
        let has_file = self.has_file();
        let limit = if has_file { POOL_OBJECT_MAX } else { out.len().min(4095) };
        let len = codec::lz4_compress(lz4, page, &mut out[..limit]);
        // Without a file even what does not compress must stay in RAM.
        let data: &[u8] = match len {
            Some(len) => &out[..len],
            None if has_file => return StoreResult::File(None),
            None => page,
        };
        let charging = self.memory.charging(group, stats);
        match self.pool.store(&charging, slot.0, data) {
            Ok(handle) => {
                let content = self.content_pages.fetch_add(1, Ordering::Relaxed) + 1;
                stats::raise(&stats.peak_pool_content_bytes, content * 4096);
                self.location(slot).store(location_of(handle), Ordering::Release);
                stats::add(&stats.out_pool_pages, 1);
                stats::add(&stats.pool_in_bytes, 4096);
                stats::add(&stats.pool_out_bytes, data.len() as u64);
                StoreResult::Done
            }
            Err(PoolFull::Budget | PoolFull::Arena | PoolFull::TooLarge) => StoreResult::File(len),
        }
    }

    /// Stores objects in a file for the claimed `slots`: object `i` is the first `lens[i]` bytes of the `i`-th
    /// 4 KiB of `data`, which is overwritten. All or nothing.
    pub fn store_file(
        &self,
        group: &Group,
        shard: usize,
        slots: &[Slot],
        lens: &[u16],
        data: &mut [u8],
        reclaim: Reclaim<'_>,
    ) -> Result<(), FileError> {
        let n = slots.len();
        let mut at = [0u32; BATCH];
        let shard = Shard(shard % SHARDS);
        let index = self.devices.write(shard, slots, &mut data[..n * SLOT_BYTES], lens, &mut at[..n], reclaim);
        let index = index.inspect_err(|_| self.memory.set_refused())?;
        self.settle_in_file(group, index, slots, &at[..n]);
        Ok(())
    }

    /// The objects of claimed slots are at these places of a file.
    fn settle_in_file(&self, group: &Group, index: usize, slots: &[Slot], at: &[u32]) {
        if let Some(file) = self.devices.file(index) {
            file.charge_tables(group);
        }
        for (slot, at) in slots.iter().zip(at) {
            self.location(*slot).store(location_in_file(index, *at), Ordering::Release);
        }
    }

    /// The claimed slot's content is stored and one page refers to it: lets it out of the cache.
    pub fn commit(&self, slot: Slot) {
        let now = self.clock.fetch_add(1, Ordering::Relaxed);
        // The count goes up before the claim ends, so that the slot is never free in between.
        let _ = self.slots.dup(slot);
        self.slots.cache_del(slot, Shadow(now));
    }

    /// The claimed slot's content is stored and the page `folio` is mapped clean, with the same content: lets the slot stay
    /// in the cache, without a reference.
    pub fn adopt(&self, slot: Slot, folio: Folio) {
        self.slots.cache_replace(slot, folio);
        self.mark_in_file(slot, true);
        self.slots.unlock(slot);
    }

    /// One page more refers to the slot that a page has. False when as many do as may. Under the exclusive gate.
    pub fn share(&self, slot: Slot) -> bool {
        let count = match self.slots.get(slot) {
            TableEntry::Stored(stored) => stored.count,
            TableEntry::Cached { count, .. } => count,
            _ => return false,
        };
        count < SHARED_MAX && self.slots.dup(slot).is_ok()
    }

    /// Evictions since `shadow` was left.
    pub fn distance(&self, shadow: Shadow) -> u32 {
        self.clock.load(Ordering::Relaxed).wrapping_sub(shadow.0)
    }

    /// Locks `slot` for the page `folio`: for a swap-in, or to give it up. Waits while its content is being moved.
    pub fn claim(&self, slot: Slot, folio: Folio) -> Result<Locked, LoadError> {
        loop {
            match self.slots.lock(slot, folio) {
                Ok(was) => return Ok(was),
                // Writeback or compaction: microseconds, and it never waits for a page.
                Err(LockError::Locked) => uapi::sched_yield(),
                Err(_) => return Err(LoadError::Lost),
            }
        }
    }

    /// The same without waiting.
    pub fn try_claim(&self, slot: Slot, folio: Folio) -> Option<Locked> {
        self.slots.lock(slot, folio).ok()
    }

    /// Ends a claim; everything is as it `was`, but perhaps in another place.
    pub fn unclaim(&self, slot: Slot, was: Locked) {
        match was {
            Locked::Stored(stored) => {
                self.slots.cache_del(slot, stored.shadow);
            }
            Locked::Resident(_) => {
                self.mark_in_file(slot, true);
                self.slots.unlock(slot);
            }
        }
    }

    /// The page that claimed `slot` is mapped clean: its reference becomes residence, unless another page is resident
    /// already; then it stays a reference. Ends the claim.
    pub fn keep(&self, slot: Slot, was: Locked) {
        match was {
            Locked::Stored(_) => {
                self.mark_in_file(slot, true);
                self.slots.settle(slot);
            }
            Locked::Resident(_) => self.slots.unlock(slot),
        }
    }

    /// The page `folio` needs the claimed `slot` no more: its reference goes, or its residence. With the last one the content
    /// goes too. Ends the claim.
    pub fn release(&self, group: &Group, stats: &Shared, slot: Slot, folio: Folio, was: Locked) {
        // Counts of claimed slots change by who has the claim, or under the exclusive gate.
        let is_last = match was {
            Locked::Resident(resident) if resident.folio == folio => resident.count == 0,
            Locked::Resident(_) => {
                self.slots.put(slot);
                return self.slots.unlock(slot);
            }
            Locked::Stored(stored) => {
                self.slots.put(slot);
                stored.count == 1
            }
        };
        if is_last {
            self.free_content(group, stats, slot);
            return self.slots.free_run(slot, Order::ZERO);
        }
        let shadow = match was {
            Locked::Stored(stored) => stored.shadow,
            Locked::Resident(_) => {
                self.mark_in_file(slot, false);
                Shadow(self.clock.load(Ordering::Relaxed))
            }
        };
        self.slots.cache_del(slot, shadow);
    }

    /// The clean page `folio`, which the caller has `BUSY`, was evicted: `slot` alone has its content now.
    pub fn evict(&self, slot: Slot, folio: Folio) {
        let is_resident = |entry| matches!(entry, TableEntry::Cached { folio: of, .. } if of == folio);
        // One that shares the slot with a resident page has a reference already.
        if !is_resident(self.slots.get(slot)) {
            return;
        }
        let shadow = Shadow(self.clock.fetch_add(1, Ordering::Relaxed));
        loop {
            let result = if self.location(slot).load(Ordering::Acquire) & 7 == LOC_FILE {
                self.evict_in_file(slot, folio, shadow)
            } else {
                self.slots.evict(slot, shadow)
            };
            match result {
                Err(EvictError::Locked) => uapi::sched_yield(),
                // Snapshots keep counts far below the limit.
                other => return debug_assert!(other.is_ok(), "a clean page's slot: {other:?}"),
            }
        }
    }

    fn evict_in_file(&self, slot: Slot, folio: Folio, shadow: Shadow) -> Result<(), EvictError> {
        match self.slots.lock(slot, folio) {
            Ok(_) => {
                self.mark_in_file(slot, false);
                let counted = self.slots.dup(slot);
                self.slots.cache_del(slot, shadow);
                counted.map_err(|_| EvictError::CountOverflow)
            }
            Err(LockError::Locked) => Err(EvictError::Locked),
            Err(_) => Err(EvictError::NotCached),
        }
    }

    /// Tells the file that has the claimed slot's content whether memory has it too. A hint: what it means is decided by the
    /// slot itself (see [`Space::reclaim_cache_only`](crate::Space)).
    fn mark_in_file(&self, slot: Slot, is_resident: bool) {
        let loc = self.location(slot).load(Ordering::Acquire);
        if let Some((file, at)) = file_of(loc)
            && let Some(file) = self.devices.file(file)
        {
            file.mark(at, slot, is_resident);
        }
    }

    /// Whether a slot's content is at `at` of a file that this process writes to. A hint, unless the slot is claimed.
    pub fn is_in_file(&self, slot: Slot, at: u32) -> bool {
        let loc = self.location(slot).load(Ordering::Acquire);
        file_of(loc).is_some_and(|(file, slot)| slot == at && self.devices.priority(file).is_some())
    }

    /// Slots in use. Looks at every cluster.
    pub fn nr_used(&self) -> u64 {
        self.slots.nr_used().into()
    }

    /// What the swap table says of `slot`.
    pub fn entry(&self, slot: Slot) -> TableEntry {
        self.slots.get(slot)
    }

    /// References that pages have to slots, and slots with a resident page. Nobody else may be at work.
    pub fn references(&self) -> Option<(u64, u64)> {
        self.slots.validate().ok().map(|summary| (summary.references, u64::from(summary.slots_resident)))
    }

    /// True when the pool may hold content that is also in memory: it has room, or a file takes what it has not.
    pub fn may_keep(&self) -> bool {
        self.has_file() || self.pool_pages() < self.memory.pages_max() / 4 * 3
    }

    /// Reads the content of the claimed `slot`. `scratch` is used for what a file holds compressed.
    pub fn load(&self, slot: Slot, out: &mut [u8; 4096], scratch: &mut [u8; 4096]) -> Result<Source, LoadError> {
        let loc = self.location(slot).load(Ordering::Acquire);
        match loc & 7 {
            LOC_SAME => {
                let half = loc >> 8 & 0xffff_ffff;
                codec::fill(out, half | half << 32);
                Ok(Source::Same)
            }
            LOC_WORD => {
                codec::fill(out, loc >> 8);
                Ok(Source::Same)
            }
            LOC_POOL => {
                let handle = Handle::from_bits(loc >> 8).ok_or(LoadError::Lost)?;
                // SAFETY: the claim on the slot keeps the object from being freed or moved.
                let data = unsafe { self.pool.load(handle) };
                decode(data, out)?;
                Ok(Source::Pool)
            }
            LOC_FILE => {
                let (file, at) = file_of(loc).ok_or(LoadError::Lost)?;
                let file = self.devices.file(file).ok_or(LoadError::Lost)?;
                let len = match file.read(at, out) {
                    Ok(len) => len,
                    Err(FileError::Io(e)) => return Err(LoadError::Io(e)),
                    Err(_) => return Err(LoadError::Corrupt),
                };
                if len < 4096 {
                    scratch.copy_from_slice(out);
                    decode(&scratch[..len], out)?;
                }
                Ok(Source::File)
            }
            _ => Err(LoadError::Lost),
        }
    }

    fn free_content(&self, group: &Group, stats: &Shared, slot: Slot) {
        let loc = self.location(slot).swap(0, Ordering::AcqRel);
        match loc & 7 {
            LOC_POOL => {
                if let Some(handle) = Handle::from_bits(loc >> 8) {
                    self.content_pages.fetch_sub(1, Ordering::Relaxed);
                    self.pool.free(&self.memory.charging(group, stats), handle);
                }
            }
            LOC_FILE => {
                if let Some((number, at)) = file_of(loc)
                    && let Some(file) = self.devices.file(number)
                {
                    file.free(at);
                    // There is room again, if it is a file that this process writes to.
                    if self.memory.was_refused() && self.devices.priority(number).is_some() {
                        self.memory.set_room();
                    }
                }
            }
            _ => {}
        }
    }

    /// Writes up to [`BATCH`] pool objects back to the file, those evicted longest ago that a round over the slots
    /// finds; how many. `data` needs room for a batch.
    pub fn write_back(
        &self,
        shard: usize,
        group: &Group,
        stats: &Shared,
        data: &mut [u8],
        reclaim: Reclaim<'_>,
    ) -> usize {
        if !self.has_file() {
            return 0;
        }
        let top = self.high_water.load(Ordering::Relaxed);
        let now = self.clock.load(Ordering::Relaxed);
        // Older than half of what was evicted since the pool was filled once.
        let age_min = (self.content_pages.load(Ordering::Relaxed) / 2) as u32;
        let mut slots = [Slot(0); BATCH];
        let mut was = [NOT_LOCKED; BATCH];
        let mut lens = [0u16; BATCH];
        let mut handles = [None; BATCH];
        let mut n = 0;
        // Bounded: one look at up to 64 Ki slots a call, twice around at most.
        for round in 0..2 {
            for _ in 0..top.min(65_536) {
                let at = self.writeback_at.fetch_add(1, Ordering::Relaxed) % top.max(1);
                let slot = Slot(at);
                let old = match self.slots.get(slot) {
                    TableEntry::Stored(Stored { shadow, .. }) => now.wrapping_sub(shadow.0) >= age_min,
                    // What is in memory, clean, was of use lately.
                    TableEntry::Cached { locked: false, .. } => false,
                    _ => continue,
                };
                if (round == 0 && !old) || self.location(slot).load(Ordering::Relaxed) & 7 != LOC_POOL {
                    continue;
                }
                let Ok(locked) = self.slots.lock(slot, MOVING) else { continue };
                let loc = self.location(slot).load(Ordering::Acquire);
                let Some(handle) = Handle::from_bits(loc >> 8).filter(|_| loc & 7 == LOC_POOL) else {
                    self.unclaim(slot, locked);
                    continue;
                };
                // SAFETY: the claim keeps the object in its place.
                let object = unsafe { self.pool.load(handle) };
                data[n * SLOT_BYTES..n * SLOT_BYTES + object.len()].copy_from_slice(object);
                (slots[n], was[n], lens[n], handles[n]) = (slot, locked, object.len() as u16, Some(handle));
                n += 1;
                if n == BATCH {
                    break;
                }
            }
            if n > 0 {
                break;
            }
        }
        if n == 0 {
            return 0;
        }
        let written = self.store_file(group, shard, &slots[..n], &lens[..n], data, reclaim).is_ok();
        for i in 0..n {
            if let (true, Some(handle)) = (written, handles[i]) {
                self.content_pages.fetch_sub(1, Ordering::Relaxed);
                self.pool.free(&self.memory.charging(group, stats), handle);
            }
            self.unclaim(slots[i], was[i]);
        }
        if !written {
            return 0;
        }
        stats::add(&stats.writeback_pages, n as u64);
        n
    }

    /// Moves up to `objects_max` pool objects out of sparse blocks; how many.
    pub fn compact(&self, group: &Group, stats: &Shared, objects_max: usize) -> usize {
        let owners = SlotOwners { space: self, was: Cell::new(NOT_LOCKED) };
        let charging = self.memory.charging(group, stats);
        let moved = self.pool.compact(&charging, &owners, objects_max);
        stats::add(&stats.compacted_objects, moved as u64);
        moved
    }

    /// True when compaction could free much: the pool holds a third more memory than content.
    pub fn is_fragmented(&self) -> bool {
        let held = self.memory.pages() * 4096;
        held > (4 << 20) && held as u64 * 3 > self.pool.stored_bytes() * 4
    }

    /// Gives the memory of spare pool blocks back.
    pub fn trim(&self, group: &Group) {
        self.memory.trim(group);
    }

    /// Pages of memory the pool holds.
    pub fn pool_pages(&self) -> usize {
        self.memory.pages()
    }

    /// The child of the fork to come shares the pool's memory, as `map` says then; how many pages.
    pub fn share_pool(&self, map: &SharedMap) -> usize {
        self.memory.share(map)
    }

    /// End of what the pool has ever used of its memory.
    pub fn arena_used_end(&self) -> usize {
        self.memory.used_end()
    }

    /// Address and pages of the pool's memory.
    pub fn arena(&self) -> (usize, usize) {
        self.memory.arena()
    }

    /// Pages whose content is on a device that this process writes to.
    pub fn device_pages(&self) -> u64 {
        self.devices.own().map(|(_, file)| u64::from(file.nr_used())).sum()
    }

    /// True when the pool holds as much as it may.
    pub fn pool_is_full(&self) -> bool {
        self.pool_pages() + 4 * BLOCK_PAGES >= self.memory.pages_max()
    }

    /// Recounts slots and pool. Nobody else may be at work.
    pub fn validate(&self) -> bool {
        let files = self.devices.all().all(|(_, file)| file.validate());
        self.slots.validate().is_ok() && self.pool.validate().is_ok() && files
    }
}

/// Pool objects belong to slots: compaction claims a slot like a swap-in would.
struct SlotOwners<'a> {
    space: &'a SwapSpace,
    was: Cell<Locked>,
}

impl Owners for SlotOwners<'_> {
    fn try_claim(&self, owner: u32, handle: Handle) -> bool {
        let Ok(was) = self.space.slots.lock(Slot(owner), MOVING) else { return false };
        let here = self.space.location(Slot(owner)).load(Ordering::Acquire) == location_of(handle);
        if !here {
            self.space.unclaim(Slot(owner), was);
        }
        self.was.set(was);
        here
    }

    fn moved(&self, owner: u32, _old: Handle, new: Handle) {
        self.space.location(Slot(owner)).store(location_of(new), Ordering::Release);
    }

    fn unclaim(&self, owner: u32) {
        self.space.unclaim(Slot(owner), self.was.get());
    }
}

/// The location word of slot `at` of a file.
fn location_in_file(index: usize, at: u32) -> u64 {
    LOC_FILE | (at as u64) << 8 | (index as u64) << 40
}

/// File and slot of a location word that names a file.
fn file_of(loc: u64) -> Option<(usize, u32)> {
    (loc & 7 == LOC_FILE).then_some(((loc >> 40 & 0xff) as usize, (loc >> 8) as u32))
}

/// The location word of a pool object.
fn location_of(handle: Handle) -> u64 {
    LOC_POOL | handle.to_bits() << 8
}

/// Expands an object: compressed, or a whole page as it is.
fn decode(data: &[u8], out: &mut [u8; 4096]) -> Result<(), LoadError> {
    if data.len() == 4096 {
        out.copy_from_slice(data);
        return Ok(());
    }
    codec::lz4_decompress(data, out).map_err(|_| LoadError::Corrupt)
}
