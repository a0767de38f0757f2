//! The spill file: nameless, mode 0600, encrypted and authenticated, with a key that only this process and its forks
//! have.
//!
//! Owns a file of 4 KiB slots, their allocator, and for each slot a seal: what is needed to decrypt and authenticate
//! its content again (nonce, length, and the tag of AES-128-GCM, which is also the checksum). The nonce is a counter
//! that never repeats for a key. A slot has one object of up to 4096 bytes, padded with zeros, or several small ones;
//! see `packing`. Such a slot is in use for as long as any of them is.
//!
//! After a fork the child reads its parent's file and writes to a file of its own; see `family`.

mod cipher;
mod family;
pub mod faults;
mod flight;
pub(crate) mod packing;
mod place;
mod runs;
mod seals;
mod transfer;
mod write;
mod written;

pub use packing::{OBJECTS, Packing};
pub use place::Place;
pub use runs::Taker;
pub use transfer::Early;
pub use write::Sealed;

use crate::protocols::gate::Exclusive;
use cipher::{Cipher, KEY_BYTES};
use family::Family;
use faults::Faults;
use seals::Seals;

use crate::base::uapi::fd::{Identity, identity_of};
use crate::base::uapi::{self, Errno};
use crate::budget::Budget;
use crate::counters::writes::BATCH_BYTES;
use crate::device::contexts::Contexts;
use crate::device::kind::{Discard, Kind};
use crate::device::lives::Lives;
use crate::device::slots::{charge_tables, new_slots};
use crate::device::{NAME_BYTES_MAX, SwapSpec};
use core::ffi::CStr;
use core::ops::Range;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU8, AtomicU32, AtomicU64, Ordering};
use ebb_slots::{Folio, Options, Shadow, Slot, SwapDevice, TableEntry, metadata_bytes};

/// Bytes of a slot.
pub const SLOT_BYTES: usize = 4096;
/// Most slots that one call writes: 256 KiB. A disk takes that three times as fast as 64 KiB at a time.
pub const BATCH: usize = 64;
const _: () = assert!(BATCH_BYTES == (BATCH * SLOT_BYTES) as u64);

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
    /// The device does not answer, so it was not asked. Or a read was given up, because others wait for the thread.
    Late,
    /// The device does not answer, and a write was left to the kernel.
    Left,
    /// Its write budget is spent, and comes back with time.
    Held,
}

impl core::fmt::Display for FileError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Full => write!(f, "no slot is free"),
            Self::Io(e) => write!(f, "the kernel refuses to read or write it ({e})"),
            Self::Corrupt => write!(f, "its content was changed, or belongs elsewhere"),
            Self::Late | Self::Left => write!(f, "the device does not answer"),
            Self::Closed => write!(f, "it failed too often, so nothing is written to it any more"),
            Self::Held => write!(f, "its write budget is spent"),
        }
    }
}

impl core::error::Error for FileError {}

impl FileError {
    /// Whether what was to be written is no longer in the caller's buffer, so that no other device can take it either.
    pub fn is_lost(self) -> bool {
        matches!(self, Self::Corrupt | Self::Left)
    }

    /// Whether no part of what was to be written would be taken either.
    pub fn is_for_any(self) -> bool {
        self.is_lost() || matches!(self, Self::Held | Self::Late)
    }
}

/// By what the content of a slot is known again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SealNumber(u64);

/// The shadow of a slot with several objects, which has no one owner.
const NO_OWNER: Shadow = Shadow(u32::MAX);

/// Frees a slot of the swap space (first argument) whose page is clean in memory, so that its object in the file (second
/// argument) is free too. Never waits. True when that is done.
pub type Reclaim<'a> = &'a dyn Fn(Slot, Place) -> bool;

/// Mappings of a file's metadata: slots, seals, counts of objects, and two of the family.
const MAPS: usize = 5;

/// One spill file.
pub struct SpillFile {
    /// The file's directory, NUL-terminated.
    dir: [u8; NAME_BYTES_MAX],
    fd: AtomicI32,
    slots: SwapDevice,
    /// The mappings of the metadata: address and length in bytes.
    maps: [(usize, usize); MAPS],
    seals: Seals,
    /// For each slot with several objects, how many of them this process needs; 0 for other slots.
    counts: *const AtomicU8,
    family: Family,
    /// Slots at or above this were never used.
    high_water: AtomicU32,
    kind: Kind,
    cipher: Cipher,
    nonce: AtomicU64,
    nr_slots: u32,
    /// Clusters whose tables are charged.
    tables: AtomicU32,
    /// Set if no holes are punched: nobody wants them, or the file system has failed to punch one.
    is_solid: AtomicBool,
    /// The file does not grow before this moment; 0 for no such moment.
    grow_after_ns: AtomicU64,
    /// Why not: an error number.
    grow_errno: AtomicU32,
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
    /// For transfers that threads need not wait for; none until the file is in the list of devices.
    contexts: Option<&'static Contexts>,
    /// The directory's place in [`Shared::writes`](crate::counters::stats::Shared::writes); 0 for none.
    place: u32,
    /// No other file of this process has had this number.
    serial: u32,
}

/// Files that this process and those that it comes from have made.
static SERIAL: AtomicU32 = AtomicU32::new(0);

// SAFETY: the seals and counts are atomics in memory that is there for as long as the file. The family's pages change under
// the exclusive gate. The rest is atomics, or never changes.
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
    pub fn create(spec: &SwapSpec<'_>, lives: &'static Lives, is_direct: bool) -> Result<Self, Errno> {
        let fd = uapi::fd::beyond_limit(|| match uapi::open_tmpfile(spec.dir) {
            Err(errno) if errno != Errno::MFILE => {
                // A file system without nameless files: use a random name that exists for a moment.
                open_named(spec.dir).map(|(fd, _)| fd)
            }
            opened => opened,
        })?;
        Self::new(spec, keep_away(fd)?, lives, is_direct)
    }

    /// Creates a file beside a running program. `publish` is told its descriptor; see [`uapi::fd::place`].
    pub fn create_beside(
        spec: &SwapSpec<'_>,
        lives: &'static Lives,
        is_direct: bool,
        publish: impl Fn(i32),
    ) -> Result<(Self, Identity), Errno> {
        let (fd, identity) = open_named(spec.dir)?;
        let fd = uapi::fd::place(fd, uapi::fd::lowest(), publish, |fd| identity_of(fd) == Ok(identity))?;
        Self::new(spec, fd, lives, is_direct).map(|file| (file, identity))
    }

    /// Makes a spill file of the open file `fd`, and closes `fd` on failure.
    fn new(spec: &SwapSpec<'_>, fd: i32, lives: &'static Lives, is_direct: bool) -> Result<Self, Errno> {
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
        let mut key = [0u8; KEY_BYTES];
        uapi::getrandom(&mut key)?;
        let options = Options { discards: true, ..Options::fixed(nr_slots, spec.kind.shards(), spec.kind.placement()) };
        let (slots, slots_at) = new_slots(&options)?;
        undo.maps[0] = slots_at;
        let mut map = |i: usize, len: usize, reserve: fn(usize) -> Result<*mut u8, Errno>| {
            let at = reserve(len)?;
            undo.maps[i] = (at as usize, len);
            Ok::<_, Errno>(at)
        };
        let seals = map(1, nr_slots as usize * Seals::BYTES, uapi::reserve)?;
        // SAFETY: mapped with this length; [`Self::destroy`] unmaps it.
        let seals = unsafe { Seals::new(seals, nr_slots) };
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
            kind: spec.kind,
            cipher: Cipher::new(&key),
            nonce: AtomicU64::new(1),
            tables: AtomicU32::new(0),
            is_solid: AtomicBool::new(spec.discard != Discard::Pages),
            grow_after_ns: AtomicU64::new(0),
            grow_errno: AtomicU32::new(0),
            too_long_from: AtomicU32::new(u32::MAX),
            rest_until_ns: AtomicU64::new(0),
            nr_slots,
            owner: true,
            is_proved: AtomicBool::new(false),
            used: AtomicU32::new(0),
            objects: AtomicU32::new(0),
            lacks_runs: AtomicBool::new(false),
            faults: Faults::default(),
            contexts: None,
            place: 0,
            serial: SERIAL.fetch_add(1, Ordering::Relaxed),
        };
        this.begin_transfers(is_direct);
        Ok(this)
    }

    /// The descriptor.
    pub fn fd(&self) -> i32 {
        self.fd.load(Ordering::Relaxed)
    }

    /// Its number among all files that this process and those that it comes from have made.
    pub fn serial(&self) -> u32 {
        self.serial
    }

    /// Has transfers fly with these contexts from now on.
    pub fn set_contexts(&mut self, contexts: &'static Contexts) {
        self.contexts = Some(contexts);
    }

    /// Its directory.
    pub fn dir(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.dir).unwrap_or_default()
    }

    /// Largest size.
    pub fn bytes(&self) -> u64 {
        self.nr_slots as u64 * SLOT_BYTES as u64
    }

    /// What its medium is.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// What the file system is told of what nobody uses any more. A file system that can punch no hole is told nothing.
    pub fn discard(&self) -> Discard {
        if self.is_solid.load(Ordering::Relaxed) { Discard::None } else { Discard::Pages }
    }

    /// Closes the file and gives back everything that it cost. Nothing in this process's memory may refer to it any
    /// more.
    pub fn destroy(self, exclusive: &Exclusive<'_>, budget: &Budget) {
        uapi::close(self.destroy_but_fd(exclusive, budget));
    }

    /// Does what [`Self::destroy`] does, but leaves the descriptor open and returns it, for the caller to close later.
    pub fn destroy_but_fd(self, _exclusive: &Exclusive<'_>, budget: &Budget) -> i32 {
        let fd = self.fd();
        self.contexts.iter().for_each(|contexts| contexts.disown(self.serial));
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
        let tables = metadata_bytes(nr_slots, Kind::SHARDS_MAX).next_multiple_of(4096);
        let of_slots = nr_slots as usize * (Seals::BYTES + size_of::<AtomicU8>());
        tables + of_slots + Family::metadata_bytes(nr_slots) + MAPS * 4096
    }

    /// Bytes of metadata for one used slot.
    pub const META_PER_SLOT: usize = Seals::BYTES + size_of::<AtomicU8>() + 8;

    /// Brings the charge for the slots' metadata in line with how much of it there is.
    pub fn charge_tables(&self, budget: &Budget) {
        charge_tables(budget, &self.tables, self.slots.nr_tables(), Self::META_PER_SLOT);
    }

    /// True when [`Self::release_unused`] has enough to do to be worth waking somebody.
    pub fn has_unused(&self) -> bool {
        let has_space = || self.slots.nr_to_discard() as usize > SPACE_KEPT && !self.is_paused();
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
        let len = (run.end.0 - run.start.0) as usize * Seals::BYTES;
        let _ = budget.drop_books(self.seals.address(run.start.0), len);
    }

    /// True while the file must not grow.
    fn is_paused(&self) -> bool {
        self.growth_errno() != 0
    }

    /// Keeps the file from growing for a while, because of an error.
    fn pause(&self, now_ns: u64, errno: Errno) {
        self.grow_errno.store(errno.0.unsigned_abs(), Ordering::Relaxed);
        self.grow_after_ns.store(now_ns + GROW_PAUSE_NS, Ordering::Relaxed);
    }

    /// Why the file must not grow now: an error number; 0 if it may. Either the file system had no room a moment ago, or
    /// the limit on the sizes of files still stands that refused it once. A try beyond that would be in vain, and each
    /// would touch the tables of another cluster.
    pub fn growth_errno(&self) -> u32 {
        let pause_end = self.grow_after_ns.load(Ordering::Relaxed);
        if pause_end == 0 {
            0
        } else if uapi::now_ns() <= pause_end {
            self.grow_errno.load(Ordering::Relaxed)
        } else if self.is_too_long() {
            Errno::FBIG.0.unsigned_abs()
        } else {
            0
        }
    }

    /// Whether the limit on the sizes of files is no higher than when it refused this one.
    fn is_too_long(&self) -> bool {
        let end = self.too_long_from.load(Ordering::Relaxed);
        end != u32::MAX && uapi::longest_file() / SLOT_BYTES as u64 <= u64::from(end)
    }

    /// True while other files are asked first, because this one took nothing a moment ago, does not give back what it took, or does not
    /// answer.
    pub fn is_resting(&self) -> bool {
        if self.is_late() {
            return true;
        }
        let rest_end = self.rest_until_ns.load(Ordering::Relaxed);
        rest_end != 0 && uapi::now_ns() <= rest_end || self.faults.is_doubted() || self.is_stuck()
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
        self.transfer_in(first, out).ok_or(FileError::Late)?.map_err(FileError::Io)
    }

    /// Decrypts and authenticates in place what was read of `slot`; returns how many bytes of it have content. The caller has the
    /// content of an object in it locked, or is cleaning its cluster: either keeps the slot from being written.
    pub fn open(&self, slot: u32, out: &mut [u8; SLOT_BYTES]) -> Result<usize, FileError> {
        self.cipher.open(self.seals.get(slot), slot, out)
    }

    /// Does what [`Self::open`] does, but the caller has nothing in the slot locked. None if it was never written, or what was read
    /// is not what is there now. Otherwise how many bytes have content, and by what to know it again: see [`Self::is_sealed_as`].
    pub fn open_unlocked(&self, slot: u32, out: &mut [u8; SLOT_BYTES]) -> Option<(usize, SealNumber)> {
        let seal = self.seals.get(slot);
        let len = (seal.nonce() != 0).then(|| self.cipher.open(seal, slot, out).ok()).flatten()?;
        Some((len, SealNumber(seal.nonce())))
    }

    /// Whether the slot still has the content that [`Self::open_unlocked`] opened. The caller has the content of an object in it
    /// locked.
    pub fn is_sealed_as(&self, slot: u32, number: SealNumber) -> bool {
        self.seals.get(slot).nonce() == number.0
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
