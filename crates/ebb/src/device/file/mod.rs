//! The spill file: nameless, mode 0600, encrypted and authenticated, with a key that only this process and its forks
//! have.
//!
//! Owns a file of 4 KiB slots, their allocator, and for each slot a seal: what is needed to decrypt and authenticate
//! its content again (nonce, length, and the tag of AES-128-GCM, which is also the checksum). The nonce is a counter
//! that never repeats for a key. A slot has one object of up to 4096 bytes, padded with zeros, or several small ones;
//! see `packing`. Such a slot is in use for as long as any of them is.
//!
//! After a fork the child reads its parent's file and writes to a file of its own; see `family`.

mod family;
pub mod faults;
mod flight;
pub(crate) mod packing;
mod place;
mod runs;
mod transfer;

pub use packing::{OBJECTS, Packing};
pub use place::Place;
pub use runs::Taker;
pub use transfer::Early;
use transfer::Torn;

use crate::protocols::gate::Exclusive;
use family::Family;
use faults::{Faults, Meaning};

use crate::base::uapi::fd::{Identity, identity_of};
use crate::base::uapi::{self, Errno};
use crate::budget::Budget;
use crate::counters::stats;
use crate::device::lives::Lives;
use crate::device::slots::{charge_tables, new_slots};
use crate::device::{NAME_BYTES_MAX, SwapSpec};
use aes_gcm::aead::{AeadInOut, KeyInit};
use aes_gcm::{Aes128Gcm, Nonce, Tag};
use core::cell::UnsafeCell;
use core::ffi::CStr;
use core::ops::Range;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU8, AtomicU32, AtomicU64, Ordering};
use ebb_slots::{Folio, Options, Placement, Shadow, Slot, SwapDevice, TableEntry, metadata_bytes};

/// Bytes of a slot.
pub const SLOT_BYTES: usize = 4096;
/// Most slots that one call writes: 256 KiB. A disk takes that three times as fast as 64 KiB at a time.
pub const BATCH: usize = 64;

/// How long other files are asked first after this one took nothing.
const REST_NS: u64 = 100_000_000;
/// How long the file does not grow after the file system had no room for it.
const GROW_PAUSE_NS: u64 = 1_000_000_000;
/// Most clusters in which slots are freed for a file that cannot grow.
const RECLAIM_CLUSTERS: u32 = 256;

/// Empty clusters that keep their space in the file system and their metadata: 32 MiB of content.
const SPACE_KEPT: usize = 16;
/// Clusters that one step of releasing works on at most.
const CLUSTERS_STEP: usize = 8;

/// The folio under which a slot is locked that has no owner yet, or no longer has one.
const NO_FOLIO: Folio = match Folio::new(0) {
    Some(folio) => folio,
    None => panic!("0 has at most 40 bits"),
};
/// Why a slot could not be written or read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FileError {
    /// No slot is free.
    Full,
    /// The kernel refused.
    Io(Errno),
    /// The content does not match its tag: it was changed, or belongs elsewhere.
    Corrupt,
    /// Nothing is written to the file any more, because it failed too often (see [`faults`]).
    Closed,
}

impl core::fmt::Display for FileError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Full => write!(f, "no slot is free"),
            Self::Io(e) => write!(f, "the kernel refuses to read or write it ({e})"),
            Self::Corrupt => write!(f, "its content was changed, or belongs elsewhere"),
            Self::Closed => write!(f, "it failed too often, so nothing is written to it any more"),
        }
    }
}

impl core::error::Error for FileError {}

/// The shadow of a slot with several objects, which has no one owner.
const NO_OWNER: Shadow = Shadow(u32::MAX);

/// Frees a slot of the swap space (first argument) whose page is clean in memory, so that its object in the file (second
/// argument) is free too. Never waits. True when that is done.
pub type Reclaim<'a> = &'a dyn Fn(Slot, Place) -> bool;

/// Mappings of a file's metadata: slots, seals, counts of objects, and two of the family.
const MAPS: usize = 5;

/// A batch that is encrypted for slots of its own.
pub struct Sealed {
    slots: [Slot; BATCH],
    /// Whether the file system had given space to a slot before.
    had_space: [bool; BATCH],
    n: usize,
    /// Which flight writes it, if it flies.
    which: usize,
}

impl Sealed {
    /// The end of the run of neighbouring slots that begins with slot `first` of the batch.
    fn run_end(&self, first: usize) -> usize {
        let slots = &self.slots[..self.n];
        (first + 1..self.n).find(|i| slots[*i].0 != slots[*i - 1].0 + 1).unwrap_or(self.n)
    }
}

/// What it takes to decrypt and authenticate a slot's content.
#[derive(Clone, Copy, Default)]
#[repr(C)]
struct Seal {
    /// The nonce in the low 52 bits, the length less one in the top 12.
    nonce_len: u64,
    tag: [u8; 16],
}

impl Seal {
    const NONCE_BITS: u32 = 52;

    fn new(nonce: u64, len: usize, tag: [u8; 16]) -> Self {
        debug_assert!((1..=SLOT_BYTES).contains(&len) && nonce >> Self::NONCE_BITS == 0);
        Self { nonce_len: nonce | (len as u64 - 1) << Self::NONCE_BITS, tag }
    }

    fn nonce(self) -> u64 {
        self.nonce_len & ((1 << Self::NONCE_BITS) - 1)
    }

    fn len(self) -> usize {
        (self.nonce_len >> Self::NONCE_BITS) as usize + 1
    }
}

/// One spill file.
pub struct SpillFile {
    /// The file's directory, NUL-terminated.
    dir: [u8; NAME_BYTES_MAX],
    fd: AtomicI32,
    slots: SwapDevice,
    /// The mappings of the metadata: address and length in bytes.
    maps: [(usize, usize); MAPS],
    seals: *mut Seal,
    /// For each slot with several objects, how many of them this process needs; 0 for other slots.
    counts: *const AtomicU8,
    family: Family,
    /// Slots at or above this were never used.
    high_water: AtomicU32,
    cipher: UnsafeCell<Aes128Gcm>,
    nonce: AtomicU64,
    nr_slots: u32,
    /// Clusters whose tables are charged.
    tables: AtomicU32,
    /// Set once the file system has failed to punch a hole.
    is_solid: AtomicBool,
    /// The file does not grow before this moment; 0 for no such moment.
    grow_after_ns: AtomicU64,
    /// The file may not be as long as this slot would make it; `u32::MAX` if there is no such limit, as far as is known.
    too_long_from: AtomicU32,
    /// Until this moment other files are asked first, because this one took nothing; 0 for no such moment.
    rest_until_ns: AtomicU64,
    owner: bool,
    /// Set once the first write showed whether the file system keeps writes out of the page cache.
    is_proved: AtomicBool,
    /// Slots that this process has content in, and the objects in them.
    used: AtomicU32,
    objects: AtomicU32,
    /// A run found no room.
    lacks_runs: AtomicBool,
    faults: Faults,
    /// No other file of this process has had this number.
    serial: u32,
}

/// Files that this process and those that it comes from have made.
static SERIAL: AtomicU32 = AtomicU32::new(0);

// SAFETY: a seal is written by the thread that allocated the slot, and read by the thread that has the content locked.
// The cipher never changes after creation. The family's pages change under the exclusive gate. The rest is atomics.
unsafe impl Sync for SpillFile {}
// SAFETY: as above.
unsafe impl Send for SpillFile {}

/// The number of slots in a file of at most `bytes`.
fn nr_slots(bytes: u64) -> u32 {
    (bytes / SLOT_BYTES as u64).min(u32::MAX as u64 / 2) as u32
}

impl SpillFile {
    /// Creates a file. Its content goes past the page cache if `is_direct` and if the file system can do that. Only the
    /// calling thread may use the table of descriptors meanwhile.
    pub fn create(spec: &SwapSpec<'_>, shards: usize, lives: &'static Lives, is_direct: bool) -> Result<Self, Errno> {
        let fd = uapi::fd::beyond_limit(|| match uapi::open_tmpfile(spec.dir) {
            Err(errno) if errno != Errno::MFILE => {
                // A file system without nameless files: use a random name that exists for a moment.
                open_named(spec.dir).map(|(fd, _)| fd)
            }
            opened => opened,
        })?;
        Self::new(spec, shards, keep_away(fd)?, lives, is_direct)
    }

    /// Creates a file beside a running program. `publish` is told its descriptor; see [`uapi::fd::place`].
    pub fn create_beside(
        spec: &SwapSpec<'_>,
        shards: usize,
        lives: &'static Lives,
        is_direct: bool,
        publish: impl Fn(i32),
    ) -> Result<(Self, Identity), Errno> {
        let (fd, identity) = open_named(spec.dir)?;
        let fd = uapi::fd::place(fd, uapi::fd::lowest(), publish, |fd| identity_of(fd) == Ok(identity))?;
        Self::new(spec, shards, fd, lives, is_direct).map(|file| (file, identity))
    }

    /// Makes a spill file of the open file `fd`, and closes `fd` on failure.
    fn new(spec: &SwapSpec<'_>, shards: usize, fd: i32, lives: &'static Lives, is_direct: bool) -> Result<Self, Errno> {
        let mut undo = Undo { fd, maps: [(0, 0); MAPS] };
        // A process cannot swap more than its address space holds, and the tables need some of that space.
        let bytes = spec.bytes.min(uapi::address_space_limit());
        let mut dir = [0; NAME_BYTES_MAX];
        let name = spec.dir.to_bytes_with_nul();
        dir.get_mut(..name.len()).ok_or(Errno(linux_raw_sys::errno::ENAMETOOLONG as i32))?.copy_from_slice(name);
        // Sets the whole length at once. Then a limit that the program sets later does not concern the file, nor does a
        // soft limit from before exec. A hard limit that is there already makes the file as small as it says.
        if uapi::unsignalled(|| uapi::truncate(fd, bytes)) == Err(Errno::FBIG) {
            let _ = uapi::with_largest_files(|| uapi::unsignalled(|| uapi::truncate(fd, bytes)));
        }
        let nr_slots = nr_slots(bytes);
        let mut key = [0u8; 16];
        uapi::getrandom(&mut key)?;
        let options = Options { discards: true, ..Options::fixed(nr_slots, shards, Placement::Sharded) };
        let (slots, slots_at) = new_slots(&options)?;
        undo.maps[0] = slots_at;
        let mut map = |i: usize, len: usize, reserve: fn(usize) -> Result<*mut u8, Errno>| {
            let at = reserve(len)?;
            undo.maps[i] = (at as usize, len);
            Ok::<_, Errno>(at)
        };
        let seals: *mut Seal = map(1, nr_slots as usize * size_of::<Seal>(), uapi::reserve)?.cast();
        let counts: *const AtomicU8 = map(2, nr_slots as usize, uapi::reserve)?.cast();
        let mut number = 3..MAPS;
        let family =
            Family::new(nr_slots, lives, |len, reserve| map(number.next().ok_or(Errno::NOMEM)?, len, reserve))?;
        let maps = undo.keep();
        let this = Self {
            dir,
            fd: AtomicI32::new(fd),
            slots,
            maps,
            seals,
            counts,
            family,
            high_water: AtomicU32::new(0),
            cipher: UnsafeCell::new(Aes128Gcm::new(&key.into())),
            nonce: AtomicU64::new(1),
            tables: AtomicU32::new(0),
            is_solid: AtomicBool::new(false),
            grow_after_ns: AtomicU64::new(0),
            too_long_from: AtomicU32::new(u32::MAX),
            rest_until_ns: AtomicU64::new(0),
            nr_slots,
            owner: true,
            is_proved: AtomicBool::new(false),
            used: AtomicU32::new(0),
            objects: AtomicU32::new(0),
            lacks_runs: AtomicBool::new(false),
            faults: Faults::default(),
            serial: SERIAL.fetch_add(1, Ordering::Relaxed),
        };
        this.begin_transfers(is_direct);
        Ok(this)
    }

    /// The descriptor.
    pub fn fd(&self) -> i32 {
        self.fd.load(Ordering::Relaxed)
    }

    /// Its directory.
    pub fn dir(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.dir).unwrap_or_default()
    }

    /// Largest size.
    pub fn bytes(&self) -> u64 {
        self.nr_slots as u64 * SLOT_BYTES as u64
    }

    /// Closes the file and gives back everything that it cost. Nothing in this process's memory may refer to it any
    /// more.
    pub fn destroy(self, exclusive: &Exclusive<'_>, budget: &Budget) {
        uapi::close(self.destroy_but_fd(exclusive, budget));
    }

    /// Does what [`Self::destroy`] does, but leaves the descriptor open and returns it, for the caller to close later.
    pub fn destroy_but_fd(self, _exclusive: &Exclusive<'_>, budget: &Budget) -> i32 {
        let fd = self.fd();
        self.leave_family(budget);
        charge_tables(budget, &self.tables, 0, Self::META_PER_SLOT);
        // From here on, metadata that other processes share counts for them.
        for (at, len) in self.maps {
            budget.tree().break_range(at, at + len.next_multiple_of(4096));
        }
        // Nobody refers to this memory any more, as `self` is gone.
        unmap(self.maps);
        fd
    }

    /// Moves the descriptor to another number, because the program wants this one.
    pub fn move_fd(&self, _exclusive: &Exclusive<'_>) -> Option<i32> {
        let fd = uapi::fd::raise(self.fd()).ok()?;
        self.fd.store(fd, Ordering::Relaxed);
        Some(fd)
    }

    /// True while this process may write to the file.
    pub fn is_owner(&self) -> bool {
        self.owner
    }

    /// Bytes of address space for the metadata of a file of at most `bytes`.
    pub fn metadata_bytes(bytes: u64) -> usize {
        let nr_slots = nr_slots(bytes);
        let tables = metadata_bytes(nr_slots, 1).next_multiple_of(4096);
        let of_slots = nr_slots as usize * (size_of::<Seal>() + size_of::<AtomicU8>());
        tables + of_slots + Family::metadata_bytes(nr_slots) + MAPS * 4096
    }

    /// Bytes of metadata for one used slot.
    pub const META_PER_SLOT: usize = size_of::<Seal>() + size_of::<AtomicU8>() + 8;

    /// Brings the charge for the slots' metadata in line with how much of it there is.
    pub fn charge_tables(&self, budget: &Budget) {
        charge_tables(budget, &self.tables, self.slots.nr_tables(), Self::META_PER_SLOT);
    }

    /// True when [`Self::release_unused`] has enough to do to be worth waking somebody.
    pub fn has_unused(&self) -> bool {
        let has_space = || !self.is_paused() && self.slots.nr_to_discard() as usize > SPACE_KEPT;
        self.owner && !self.is_solid.load(Ordering::Relaxed) && (has_space() || self.has_given_up_many())
    }

    /// Gives back space in the file system, and metadata, that nothing uses any more; returns how many clusters that
    /// were.
    pub fn release_unused(&self, budget: &Budget) -> usize {
        self.collect_sometimes();
        if self.is_solid.load(Ordering::Relaxed) {
            return 0;
        }
        // While the file system has no room, the file's space is worth more here than to others. Otherwise a few empty
        // clusters keep theirs: they are soon written again, which costs less than finding space anew.
        let to_punch = match self.is_paused() {
            false => (self.slots.nr_to_discard() as usize).saturating_sub(SPACE_KEPT).min(CLUSTERS_STEP),
            true => 0,
        };
        let mut released = self.slots.discard(to_punch, |run| self.punch(budget, run));
        released += self.slots.release_tables(SPACE_KEPT, CLUSTERS_STEP, |run| {
            let (words, bytes) = self.slots.words_of(run);
            let _ = budget.drop_books(words as usize, bytes);
        });
        self.charge_tables(budget);
        released
    }

    /// Has the file system forget what whole clusters hold that nobody uses.
    fn punch(&self, budget: &Budget, run: core::ops::Range<Slot>) {
        let (at, len) = (run.start.0 as u64 * SLOT_BYTES as u64, (run.end.0 - run.start.0) as u64 * SLOT_BYTES as u64);
        if uapi::punch_hole(self.fd(), at, len).is_err() {
            return self.is_solid.store(true, Ordering::Relaxed);
        }
        // The cleared seals say that these slots have no space any more. The seals of a cluster are three whole pages.
        let seal_bytes = core::mem::size_of::<Seal>();
        let seals = self.seals as usize + run.start.0 as usize * seal_bytes;
        let len = (run.end.0 - run.start.0) as usize * seal_bytes;
        let _ = budget.drop_books(seals, len);
    }

    /// True while the file must not grow, because the file system had no room a moment ago.
    fn is_paused(&self) -> bool {
        let pause_end = self.grow_after_ns.load(Ordering::Relaxed);
        pause_end != 0 && uapi::now_ns() <= pause_end
    }

    /// True while other files are asked first, because this one took nothing a moment ago, does not give back what it took, or does not
    /// answer.
    pub fn is_resting(&self) -> bool {
        let rest_end = self.rest_until_ns.load(Ordering::Relaxed);
        rest_end != 0 && uapi::now_ns() <= rest_end || self.faults.is_doubted() || self.is_stuck()
    }

    fn cipher(&self) -> &Aes128Gcm {
        // SAFETY: never changed after creation.
        unsafe { &*self.cipher.get() }
    }

    /// Writes the objects of a batch, whose content is in `data`, which is encrypted in place. `placed` is told each
    /// object's owner, a slot of the swap space, and its place. All or nothing; and then, unless the error is
    /// [`FileError::Corrupt`], `data` has the objects as before.
    pub fn write(
        &self,
        taker: Taker<'_>,
        packing: &Packing,
        data: &mut [u8],
        placed: impl FnMut(Slot, Place),
    ) -> Result<(), FileError> {
        let n = packing.nr_slots();
        assert!(self.owner && n <= BATCH);
        if self.closed().is_some() {
            return Err(FileError::Closed);
        }
        let data = &mut data[..n * SLOT_BYTES];
        packing.finish(data);
        let mut result = self.write_once(taker, packing, data);
        if let Err(FileError::Io(errno)) = result
            && self.note_failed_write(errno)
        {
            result = self.write_once(taker, packing, data);
            if let Err(FileError::Io(errno)) = result {
                self.note_failed_write(errno);
            }
        }
        let sealed = result
            .inspect_err(|_| self.rest_until_ns.store(uapi::now_ns() + REST_NS, Ordering::Relaxed))?;
        self.commit(taker, packing, data.len(), &sealed, placed);
        Ok(())
    }

    /// Hands out what was written: `placed` is told each object's owner and its place.
    fn commit(
        &self,
        taker: Taker<'_>,
        packing: &Packing,
        bytes: usize,
        sealed: &Sealed,
        mut placed: impl FnMut(Slot, Place),
    ) {
        let slots = &sealed.slots[..sealed.n];
        self.used.fetch_add(sealed.n as u32, Ordering::Relaxed);
        self.objects.fetch_add(packing.nr_objects() as u32, Ordering::Relaxed);
        stats::add(&taker.stats.file_object_bytes, packing.bytes());
        stats::add(&taker.stats.file_bytes, bytes as u64);
        // The slots leave their cache below; the objects' owners are locked by the caller, so nobody looks for them yet.
        let mut owners = [NO_OWNER; BATCH];
        for (owner, place) in packing.places(slots) {
            if !place.is_packed()
                && let Some(i) = slots.iter().position(|slot| slot.0 == place.slot)
            {
                owners[i] = Shadow(owner.0);
            }
            placed(owner, place);
        }
        for (i, (slot, owner)) in slots.iter().zip(owners).enumerate() {
            if owner == NO_OWNER {
                self.count(slot.0).store(packing.objects_in(i), Ordering::Relaxed);
            }
            // One reference, that of this process. The objects of a slot with several share it.
            let _ = self.slots.dup(*slot);
            self.slots.cache_del(*slot, owner);
        }
    }

    /// How many of the objects in a slot with several this process needs.
    fn count(&self, slot: u32) -> &AtomicU8 {
        assert!(slot < self.nr_slots);
        // SAFETY: checked index; mapped for as long as the file.
        unsafe { &*self.counts.add(slot as usize) }
    }

    /// Objects that this process has in the file.
    pub fn nr_objects(&self) -> u32 {
        self.objects.load(Ordering::Relaxed)
    }

    /// Gives up objects, because this process needs them no more. Returns how many slots that gives up: one with several objects goes
    /// with the last of them.
    pub fn free_all(&self, places: &[Place]) -> usize {
        self.objects.fetch_sub(places.len() as u32, Ordering::Relaxed);
        let (mut slots, mut n, mut given_up) = ([0; BATCH], 0, 0);
        for place in places {
            // Whoever takes the last object out of a slot gives the slot up. What others have read of it, they have read before.
            if place.is_packed() && self.count(place.slot).fetch_sub(1, Ordering::AcqRel) > 1 {
                continue;
            }
            slots[n] = place.slot;
            n += 1;
            given_up += 1;
            if n == BATCH {
                self.free_slots(&slots);
                n = 0;
            }
        }
        if n > 0 {
            self.free_slots(&slots[..n]);
        }
        given_up
    }

    /// Whether an object is the only one in its slot that this process needs, as far as is known.
    pub fn is_last(&self, place: Place) -> bool {
        !place.is_packed() || self.count(place.slot).load(Ordering::Relaxed) <= 1
    }

    /// Allocates `slots`, all of them or none. While the file must not grow, only slots that need no more space.
    fn take_slots(&self, taker: Taker<'_>, slots: &mut [Slot]) -> bool {
        let n = slots.len();
        if !self.is_paused() {
            let mut got = self.alloc(taker, slots);
            if got < n && self.collect() > 0 {
                got += self.alloc(taker, &mut slots[got..]);
            }
            if got < n {
                self.unalloc(&slots[..got]);
            }
            return got == n;
        }
        let mut got = self.alloc_with_space(slots);
        if got < n && self.collect() > 0 {
            got += self.alloc_with_space(&mut slots[got..]);
        }
        if got < n {
            let mut left = n - got;
            self.slots.reclaim_full(RECLAIM_CLUSTERS, |slot, folio| {
                let is_freed = left > 0 && self.reclaim(slot, folio, taker.reclaim);
                left -= usize::from(is_freed);
                is_freed
            });
            got += self.alloc_with_space(&mut slots[got..]);
        }
        if got < n {
            self.unalloc(&slots[..got]);
        }
        got == n
    }

    /// Allocates slots that the file system has given space; then, if it is not full but the file is too long, those before its end.
    fn alloc_with_space(&self, slots: &mut [Slot]) -> usize {
        let n = self.slots.alloc_wanted(NO_FOLIO, slots, |slot| self.has_space(slot));
        let end = self.too_long_from.load(Ordering::Relaxed);
        if n == slots.len() || end == u32::MAX {
            return n;
        }
        n + self.slots.alloc_wanted(NO_FOLIO, &mut slots[n..], |slot| slot.0 < end)
    }

    /// Tries to write the slots of a batch once. If that fails with another error than [`FileError::Corrupt`], `data` holds
    /// their content as before.
    fn write_once(&self, taker: Taker<'_>, packing: &Packing, data: &mut [u8]) -> Result<Sealed, FileError> {
        let mut sealed = self.seal(taker, packing, data)?;
        self.put(taker, data, &mut sealed)?;
        Ok(sealed)
    }

    /// Takes slots for a batch, and encrypts it in place for them.
    fn seal(&self, taker: Taker<'_>, packing: &Packing, data: &mut [u8]) -> Result<Sealed, FileError> {
        let mut sealed =
            Sealed { slots: [Slot(0); BATCH], had_space: [false; BATCH], n: packing.nr_slots(), which: 0 };
        if !self.take_slots(taker, &mut sealed.slots[..sealed.n]) {
            return Err(FileError::Full);
        }
        for (i, Slot(slot)) in sealed.slots[..sealed.n].iter().copied().enumerate() {
            sealed.had_space[i] = self.has_space(Slot(slot));
            let len = packing.bytes_in(i);
            let part = &mut data[i * SLOT_BYTES..][..len];
            let nonce = self.nonce.fetch_add(1, Ordering::Relaxed);
            let tag = self
                .cipher()
                .encrypt_inout_detached(&nonce_of(nonce), &slot.to_le_bytes(), part.into())
                .map_err(|_| FileError::Corrupt)?;
            let seal = Seal::new(nonce, len, tag.into());
            // SAFETY: the slot was just allocated for this thread, and the allocation checked the index.
            unsafe { self.seals.add(slot as usize).write(seal) };
            self.hold(slot);
            self.high_water.fetch_max(slot + 1, Ordering::Relaxed);
        }
        Ok(sealed)
    }

    /// Writes a sealed batch, and waits for it. If that fails, `data` is as before it was sealed, unless it is
    /// [`FileError::Corrupt`], and the slots are given back.
    fn put(&self, taker: Taker<'_>, data: &mut [u8], sealed: &mut Sealed) -> Result<(), FileError> {
        let (mut first, n) = (0, sealed.n);
        while first < n {
            let end = sealed.run_end(first);
            let Sealed { slots, had_space, .. } = sealed;
            if let Err(Torn { done, errno }) =
                self.transfer_out(slots[first].0, &data[first * SLOT_BYTES..end * SLOT_BYTES])
            {
                match errno {
                    Errno::FBIG => _ = self.too_long_from.fetch_min(slots[first].0, Ordering::Relaxed),
                    _ => self.too_long_from.store(u32::MAX, Ordering::Relaxed),
                }
                // Which of the slots are bad the kernel does not say. To try each of them may take minutes.
                let is_faulty = Meaning::of(errno) == Meaning::Faulty;
                let bad = if is_faulty { first + done / SLOT_BYTES..end } else { 0..0 };
                had_space[..first].fill(true);
                let restored = self.unseal_but(data, sealed, bad.clone());
                if is_faulty {
                    stats::add(&taker.stats.device_write_errors, 1);
                    stats::add(&taker.stats.retired_slots, bad.len() as u64);
                }
                return Err(restored.err().unwrap_or(FileError::Io(errno)));
            }
            first = end;
        }
        Ok(())
    }

    /// Undoes [`Self::seal`] for a batch of which nothing was written.
    fn unseal(&self, data: &mut [u8], sealed: &Sealed) -> Result<(), FileError> {
        self.unseal_but(data, sealed, 0..0)
    }

    /// As [`Self::unseal`], and retires slots.
    fn unseal_but(&self, data: &mut [u8], sealed: &Sealed, bad: Range<usize>) -> Result<(), FileError> {
        let slots = &sealed.slots[..sealed.n];
        slots.iter().for_each(|slot| self.unhold(slot.0));
        // Before the slots are given back, because their seals are needed.
        let restored = self.restore(data, slots);
        for (slot, _) in slots.iter().zip(sealed.had_space).filter(|(_, had_space)| !had_space) {
            self.forget_seal(*slot);
        }
        self.unalloc(&slots[..bad.start]);
        slots[bad.clone()].iter().for_each(|slot| self.slots.retire(*slot));
        self.unalloc(&slots[bad.end..]);
        restored
    }

    /// Decrypts again what was encrypted for `slots`, which are the caller's alone.
    fn restore(&self, data: &mut [u8], slots: &[Slot]) -> Result<(), FileError> {
        for (slot, part) in slots.iter().zip(data.chunks_exact_mut(SLOT_BYTES)) {
            // SAFETY: the allocation checked the index, and its slots are this thread's until it gives them back.
            let seal = unsafe { self.seals.add(slot.0 as usize).read() };
            let (nonce, tag) = (nonce_of(seal.nonce()), Tag::from(seal.tag));
            self.cipher()
                .decrypt_inout_detached(&nonce, &slot.0.to_le_bytes(), (&mut part[..seal.len()]).into(), &tag)
                .map_err(|_| FileError::Corrupt)?;
        }
        Ok(())
    }

    /// Whether the file system has given space to a slot: it has been written, and not punched since. The slot is the caller's
    /// alone, or free in a cluster that the caller has locked.
    fn has_space(&self, slot: Slot) -> bool {
        // SAFETY: the allocator knows the slot, and meanwhile nobody writes its seal: whoever does has allocated it, or has taken its
        // cluster away to punch it.
        unsafe { self.seals.add(slot.0 as usize).read() }.nonce() != 0
    }

    /// Forgets that a slot that is the caller's alone has space, because it could not be written.
    fn forget_seal(&self, slot: Slot) {
        // SAFETY: as above.
        unsafe { self.seals.add(slot.0 as usize).write(Seal::default()) };
    }

    /// Reads an object to the start of `out`, which is page-aligned, decrypted and authenticated; returns its length.
    pub fn read(&self, place: Place, out: &mut [u8; SLOT_BYTES]) -> Result<usize, FileError> {
        self.read_run(place.slot, out)?;
        let range = self.object(place, self.open(place.slot, out)?, out)?;
        let len = range.len();
        out.copy_within(range, 0);
        Ok(len)
    }

    /// Where in the content of its slot, of which [`Self::open`] said that `len` bytes are used, an object is.
    pub fn object(&self, place: Place, len: usize, content: &[u8; SLOT_BYTES]) -> Result<Range<usize>, FileError> {
        match place.number() {
            None => Ok(0..len),
            Some(number) => packing::object(content, number).map(|(_, range)| range).ok_or(FileError::Corrupt),
        }
    }

    /// Reads neighbouring slots, from slot `first` on, into `out`, which is page-aligned. [`Self::open`] then makes
    /// objects of them.
    pub fn read_run(&self, first: u32, out: &mut [u8]) -> Result<(), FileError> {
        assert!(first as usize + out.len() / SLOT_BYTES <= self.nr_slots as usize);
        self.transfer_in(first, out).map_err(FileError::Io)
    }

    /// Decrypts and authenticates in place what was read of `slot`; returns how many bytes of it have content. The caller has the
    /// content of an object in it locked, or is cleaning its cluster: either keeps the slot from being written.
    pub fn open(&self, slot: u32, out: &mut [u8; SLOT_BYTES]) -> Result<usize, FileError> {
        assert!(slot < self.nr_slots);
        // SAFETY: checked index. Nobody writes the slot meanwhile, see above.
        let seal = unsafe { self.seals.add(slot as usize).read() };
        let len = seal.len();
        self.cipher()
            .decrypt_inout_detached(
                &nonce_of(seal.nonce()),
                &slot.to_le_bytes(),
                (&mut out[..len]).into(),
                &Tag::from(seal.tag),
            )
            .map_err(|_| FileError::Corrupt)?;
        Ok(len)
    }

    /// Has a slot freed whose content is in memory too; whether it is free now.
    fn reclaim(&self, slot: Slot, folio: Folio, reclaim: Reclaim<'_>) -> bool {
        // A slot that others of the family still need would not be free afterwards.
        if self.is_held_by_others(slot.0) {
            return false;
        }
        if !reclaim(Slot(folio.get() as u32), Place::alone(slot.0)) {
            return false;
        }
        self.collect_slot(slot.0);
        matches!(self.slots.get(slot), TableEntry::Free)
    }

    /// True when copies of what is in memory are not worth their room: more than half of the file is used. Of a closed file they are: nothing
    /// else will be written there.
    pub fn is_short(&self) -> bool {
        self.owner && self.closed().is_none() && self.slots.is_half_full()
    }

    /// Frees slots of full clusters whose content is in memory too, if room is short; returns how many.
    pub fn reclaim_full(&self, clusters_max: u32, reclaim: Reclaim<'_>) -> u32 {
        if !self.is_short() {
            return 0;
        }
        self.slots.reclaim_full(clusters_max, |slot, folio| self.reclaim(slot, folio, reclaim))
    }

    /// Notes whether memory also has the object at `place`, which is the content of slot `owner` of the swap space. The
    /// caller has `owner` locked. A file that this process only reads frees nothing, so it is told nothing. Of a slot with
    /// several objects nothing is noted: its entry has room for one owner.
    pub fn mark(&self, place: Place, owner: Slot, is_resident: bool) {
        let slot = Slot(place.slot);
        if !self.owner || place.is_packed() {
            return;
        }
        // A slot that is marked so already is no failure.
        if !is_resident {
            let _ = self.slots.evict(slot, Shadow(owner.0));
        } else if let Some(folio) = Folio::new(u64::from(owner.0))
            && self.slots.cache_add(slot, folio).is_ok()
        {
            self.slots.settle(slot);
        }
    }

    /// Gives slots back to the allocator, whether or not they are marked resident.
    fn put_all(&self, slots: impl Iterator<Item = Slot>) {
        let (mut mine, mut n) = ([Slot(0); BATCH], 0);
        for slot in slots {
            // A resident slot has no count, and another one the caller's: locking it is enough to free it. Only one
            // thread at a time works on a slot.
            if let Err(e) = self.slots.lock(slot, NO_FOLIO) {
                debug_assert!(false, "{slot:?} of a file is given back, but: {e}");
                continue;
            }
            mine[n] = slot;
            n += 1;
            if n == BATCH {
                self.slots.free_all(&mine);
                n = 0;
            }
        }
        self.slots.free_all(&mine[..n]);
    }

    fn unalloc(&self, slots: &[Slot]) {
        self.slots.free_all(slots);
    }

    /// Recounts the allocator.
    pub fn validate(&self) -> Result<(), ebb_slots::Inconsistency> {
        self.slots.validate().map(|_| ())
    }
}

/// What a file that is being made has so far. It is given back if the file is not made.
struct Undo {
    fd: i32,
    maps: [(usize, usize); MAPS],
}

impl Undo {
    /// The file is made: undoes nothing, and returns what is mapped for the file.
    fn keep(&mut self) -> [(usize, usize); MAPS] {
        self.fd = -1;
        core::mem::take(&mut self.maps)
    }
}

impl Drop for Undo {
    fn drop(&mut self) {
        if self.fd >= 0 {
            uapi::close(self.fd);
        }
        unmap(self.maps);
    }
}

/// Unmaps a file's mappings; those of 0 bytes do not exist.
fn unmap(maps: [(usize, usize); MAPS]) {
    // The last one first, because address space is taken in order.
    for (at, len) in maps.into_iter().rev().filter(|(_, len)| *len > 0) {
        // SAFETY: mapped for a file that was not made, or is gone.
        let _ = unsafe { uapi::later::unmap(at, len.next_multiple_of(4096)) };
    }
}

/// Moves a descriptor of Ebb's to a high number, where programs do not look; closes it on failure.
pub fn keep_away(fd: i32) -> Result<i32, Errno> {
    let moved = uapi::fd::raise(fd);
    if moved.is_err() {
        uapi::close(fd);
    }
    moved
}

fn nonce_of(counter: u64) -> Nonce<aes_gcm::aead::consts::U12> {
    let mut bytes = [0u8; 12];
    bytes[..8].copy_from_slice(&counter.to_le_bytes());
    bytes.into()
}

fn open_named(dir: &CStr) -> Result<(i32, Identity), Errno> {
    let mut random = [0u8; 8];
    uapi::getrandom(&mut random)?;
    let mut path = [0u8; 4096];
    let dir = dir.to_bytes();
    let name = b"/.ebb-";
    if dir.len() + name.len() + 17 > path.len() {
        return Err(Errno(linux_raw_sys::errno::ENAMETOOLONG as i32));
    }
    path[..dir.len()].copy_from_slice(dir);
    path[dir.len()..dir.len() + name.len()].copy_from_slice(name);
    let mut at = dir.len() + name.len();
    for byte in random {
        for nibble in [byte >> 4, byte & 15] {
            path[at] = b"0123456789abcdef"[nibble as usize];
            at += 1;
        }
    }
    let path = CStr::from_bytes_until_nul(&path).map_err(|_| Errno::INVAL)?;
    uapi::open_unlinked(path)
}
