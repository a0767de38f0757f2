//! A slot's content on its way into a place and out of it. The caller has the slot locked.

use super::SwapSpace;
use super::location::{self, ahead_of, file_of, handle_of, location_in_file};
use super::neighbours::Window;
use super::span::Span;
use crate::budget::Budget;
use crate::counters::stats::{self, Shared};
use crate::device::file::{BATCH, FileError, Packing, Place, SLOT_BYTES, SpillFile};
use crate::device::flights::Flights;
use crate::device::list::{Flight, Writer};
use crate::protocols::gate::Held;
use core::sync::atomic::Ordering;
use ebb_pool::{Backing, Handle, PoolFull, codec};
use ebb_slots::Slot;

/// A page that compresses to more than this saves next to no RAM in the pool. It goes to a file if there are many of these, or the
/// pool has no room to spare, and otherwise once it has been out for long.
pub(super) const POOL_OBJECT_MAX: usize = 3072;

/// A placeholder where there is no object yet.
pub(super) const NO_OBJECT: Handle = match Handle::from_bits(1) {
    Some(handle) => handle,
    None => panic!("1 is the handle of the first object"),
};

/// Where a page came from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Source {
    /// A pattern in the location word.
    Same,
    /// The pool.
    Pool,
    /// The pool, where it was cold.
    Cold,
    /// A file.
    File,
}

/// Why a page could not be brought in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LoadError {
    /// The slot holds nothing: a bug.
    Lost,
    /// The content does not decompress.
    Corrupt,
    /// A file does not give it back.
    File {
        /// The file's number in the list of devices.
        file: usize,
        /// The slot of the file.
        at: u32,
        /// Why not.
        error: FileError,
    },
}

/// Where a page is to be stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Aim {
    /// Where it goes by itself.
    Usual = 0,
    /// Likewise, but only where that frees memory, however much room the budget has.
    Free = 1,
    /// Only where no file is needed, and where that frees memory.
    Pool = 2,
    /// In a file, unless a pattern says it all.
    File = 3,
}

impl Aim {
    /// The aim with this number; the usual one if there is none.
    pub fn of_bits(bits: u8) -> Self {
        match bits {
            1 => Self::Free,
            2 => Self::Pool,
            3 => Self::File,
            _ => Self::Usual,
        }
    }

    /// True if a page that does not reach its place must not wait for it in memory of Ebb's own: the next page may reach it.
    pub fn gives_back(self) -> bool {
        self != Self::Usual
    }
}

/// Neighbouring slots of a file that each have the content of one slot of the swap space, in the same order.
#[derive(Clone, Copy, Debug)]
pub struct FileRun {
    file: usize,
    at: u32,
    /// Number of slots.
    pub n: usize,
}

/// Why what was read of a slot gives no page.
enum Unopened {
    /// The slot does not open.
    Slot(FileError),
    /// Its object does not decompress.
    Object(LoadError),
}

/// What became of a page that was to be stored.
pub enum StoreResult {
    /// It is stored as a pattern.
    Same,
    /// It is stored in the pool, as an object of this many bytes.
    Pool(usize),
    /// It must go to a file: compressed, in the first `.0` bytes of the output buffer, or raw if `None`.
    File(Option<usize>),
}

impl SwapSpace {
    /// Stores a page in the locked `slot`, as a pattern or in the pool.
    pub fn store(
        &self,
        budget: &Budget,
        stats: &Shared,
        slot: Slot,
        (page, aim): (&[u8; 4096], Aim),
        (lz4, trials): (&mut codec::Lz4State, &mut codec::Trials),
        out: &mut [u8],
    ) -> StoreResult {
        let same = codec::same_filled(page);
        let pattern = same.and_then(|word| match word {
            _ if word >> 32 == word & 0xffff_ffff => Some((word, location::SAME | (word & 0xffff_ffff) << 8)),
            _ if word >> 56 == 0 => Some((word, location::WORD | word << 8)),
            _ => None,
        });
        if let Some((word, location)) = pattern {
            self.location(slot).store(location, Ordering::Release);
            self.slots.set_zero(slot, word == 0);
            return StoreResult::Same;
        }
        let takes_all = aim == Aim::Usual && (!self.has_file() || budget.has_plenty() || self.takes_large(budget));
        let limit = if takes_all { out.len().min(4095) } else { POOL_OBJECT_MAX };
        let len = match same {
            // The location word has no room for this pattern.
            Some(word) => codec::same_compress(word, out),
            // Where all is taken, each page that does not shrink costs RAM.
            None if !takes_all && !trials.is_worth_it(page) => None,
            None => {
                let len = codec::compress(lz4, page, &mut out[..limit]);
                trials.note(len.is_some());
                len
            }
        };
        if aim == Aim::File {
            return StoreResult::File(len);
        }
        // Without a file even a page that does not compress must stay in RAM.
        let data: &[u8] = match len {
            Some(len) => &out[..len],
            None if !takes_all => return StoreResult::File(None),
            None => page,
        };
        match self.store_object(budget, stats, slot, data) {
            Ok(location) => {
                let content = self.content_pages.load(Ordering::Relaxed);
                stats::raise(&stats.peak_pool_content_bytes, content * 4096);
                self.location(slot).store(location, Ordering::Release);
                StoreResult::Pool(data.len())
            }
            Err(PoolFull::Budget | PoolFull::Arena | PoolFull::TooLarge) => StoreResult::File(len),
        }
    }

    /// Stores a page of zeros in the locked `slot`.
    pub fn store_zeros(&self, slot: Slot) {
        self.location(slot).store(location::SAME, Ordering::Release);
        self.slots.set_zero(slot, true);
    }

    /// Stores objects in a file for the locked `slots`. Object `i` is the first `lens[i]` bytes of the `i`-th 4 KiB of
    /// `data`, which is overwritten. All or nothing.
    pub fn store_file(
        &self,
        writer: Writer<'_>,
        budget: &Budget,
        slots: &[Slot],
        lens: &[u16],
        data: &mut [u8],
    ) -> Result<(), FileError> {
        let written = self.write_objects(writer, budget, slots, lens, data);
        written.inspect_err(|_| self.memory.set_refused())
    }

    /// Does what [`Self::store_file`] does; but that no device takes anything is not noted.
    pub(super) fn write_objects(
        &self,
        writer: Writer<'_>,
        budget: &Budget,
        slots: &[Slot],
        lens: &[u16],
        data: &mut [u8],
    ) -> Result<(), FileError> {
        let packing = Packing::pack(slots, lens, data);
        let written = self.write_packed(writer, budget, &packing, data);
        written.inspect_err(|_| packing.unpack(data))
    }

    /// Stores a batch of objects, whose content is in `data`, in a file for their owners, which are locked. All or nothing.
    pub(super) fn write_packed(
        &self,
        writer: Writer<'_>,
        budget: &Budget,
        packing: &Packing,
        data: &mut [u8],
    ) -> Result<(), FileError> {
        let placed = |index, slot, place| self.set_in_file(index, slot, place);
        let mut written = self.devices.write(writer, packing, data, placed);
        // Copies that are alone in their slots give them up; only if there are none, those that may share them.
        let reclaim = |any| self.reclaim_packed(writer.held, writer.reclaim, any) > 0;
        if written == Err(FileError::Full) && (reclaim(false) || reclaim(true)) {
            written = self.devices.write(writer, packing, data, placed);
        }
        self.charge_file(writer.held, budget, written?);
        Ok(())
    }

    /// Begins to store a batch in a file, as [`Self::write_packed`] does, while the thread goes on. None if that does not
    /// begin: then [`Self::write_packed`] takes the batch. Otherwise `data` must stay as it is until
    /// [`Self::finish_packed`].
    pub fn begin_packed(
        &self,
        writer: Writer<'_>,
        packing: &Packing,
        data: &mut [u8],
        flights: &mut Flights<'_>,
        which: usize,
    ) -> Result<Option<Flight>, FileError> {
        self.devices.begin(writer, packing, data, flights, which)
    }

    /// Ends what [`Self::begin_packed`] began. If the device did not take it, it is offered to all. All or nothing.
    pub fn finish_packed(
        &self,
        writer: Writer<'_>,
        budget: &Budget,
        packing: &Packing,
        data: &mut [u8],
        flights: &mut Flights<'_>,
        flight: Flight,
    ) -> Result<(), FileError> {
        let placed = |index, slot, place| self.set_in_file(index, slot, place);
        match self.devices.finish(writer, packing, data, flights, flight, placed) {
            Ok(index) => {
                self.charge_file(writer.held, budget, index);
                Ok(())
            }
            Err(error) if error.is_lost() => Err(error),
            Err(_) => self.write_packed(writer, budget, packing, data),
        }
        .inspect_err(|_| self.memory.set_refused())
    }

    /// Notes that the content of the locked `slot` is in a file.
    pub(super) fn set_in_file(&self, index: usize, slot: Slot, place: Place) {
        self.location(slot).store(location_in_file(index, place), Ordering::Release);
    }

    /// Charges what a file needs for the slots that were written.
    pub(super) fn charge_file(&self, held: &Held, budget: &Budget, index: usize) {
        if let Some(file) = self.devices.file(held, index) {
            file.charge_tables(budget);
        }
    }

    /// Reads the content of the locked `slot` into `out`. `scratch` is used to decompress what a file holds.
    pub fn load(
        &self,
        held: &Held,
        budget: &Budget,
        slot: Slot,
        out: &mut [u8; 4096],
        scratch: &mut [u8; 4096],
    ) -> Result<Source, LoadError> {
        let loc = self.location(slot).load(Ordering::Acquire);
        match loc & location::KIND {
            location::SAME => {
                let half = loc >> 8 & 0xffff_ffff;
                codec::fill(out, half | half << 32);
                Ok(Source::Same)
            }
            location::WORD => {
                codec::fill(out, loc >> 8);
                Ok(Source::Same)
            }
            location::POOL => {
                let handle = handle_of(loc).ok_or(LoadError::Lost)?;
                // SAFETY: the slot is locked, which keeps the object from being freed or moved.
                let data = unsafe { self.pool.load(handle) };
                self.decode(budget, data, out)?;
                self.note_if_ahead(slot, loc, true);
                Ok(if loc & location::COLD != 0 { Source::Cold } else { Source::Pool })
            }
            location::FILE => {
                let (number, place) = file_of(loc).ok_or(LoadError::Lost)?;
                let file = self.devices.file(held, number).ok_or(LoadError::Lost)?;
                let read = self.devices.timed_read(number, place.slot, 1, || file.read(place, out));
                let len = read.map_err(|error| self.unread(file, (number, place.slot), error))?;
                self.expand(budget, len, out, scratch)?;
                Ok(Source::File)
            }
            _ => Err(LoadError::Lost),
        }
    }

    /// Makes a page of the object of the locked `slot`, if the slot of a file that has it is `early`, the number of the
    /// file and the slot's, and `raw` is what was read there. None if anything is different, or not intact.
    pub fn load_early(
        &self,
        held: &Held,
        budget: &Budget,
        slot: Slot,
        early: (usize, u32),
        out: &mut [u8; 4096],
        raw: &mut [u8; 4096],
    ) -> Option<Source> {
        let (number, place) = self.place_in_file(slot).filter(|(number, place)| (*number, place.slot) == early)?;
        let file = self.devices.file(held, number)?;
        let object = file.open(place.slot, raw).and_then(|len| file.object(place, len, raw)).ok()?;
        self.decode(budget, &raw[object], out).ok()?;
        Some(Source::File)
    }

    /// Does what [`Self::load`] does, with what was read of the slot's file before, while `slot` was locked. False if the window does not
    /// have it.
    pub fn load_from(
        &self,
        held: &Held,
        budget: &Budget,
        window: &Window<'_>,
        slot: Slot,
        out: &mut [u8; 4096],
    ) -> bool {
        let Some((number, place)) = self.place_in_file(slot) else { return false };
        let (Some(file), Some((content, len))) = (self.devices.file(held, number), window.opened((number, place)))
        else {
            return false;
        };
        file.object(place, len, content).is_ok_and(|object| self.decode(budget, &content[object], out).is_ok())
    }

    /// The longest run of locked slots, from the first of `slots` on, whose content is in neighbouring slots of one
    /// file. None if it has fewer than two slots.
    pub fn run_in_file(&self, mut slots: impl Iterator<Item = Slot>) -> Option<FileRun> {
        let place = |slot| file_of(self.location(slot).load(Ordering::Acquire));
        let (file, at) = place(slots.next()?).filter(|(_, place)| !place.is_packed())?;
        let follows = |(i, slot): &(usize, Slot)| place(*slot) == Some((file, Place::alone(at.slot + 1 + *i as u32)));
        let n = 1 + slots.enumerate().take_while(follows).count();
        (n > 1).then_some(FileRun { file, at: at.slot, n })
    }

    /// Reads the content of `run`, which is as many pages as `out` has; returns how many pages precede the first that
    /// failed, and its error. If nothing could be read there is no error either: [`Self::load`] tells why.
    pub fn load_run(
        &self,
        held: &Held,
        budget: &Budget,
        run: FileRun,
        out: &mut [u8],
        scratch: &mut [u8; 4096],
    ) -> (usize, Option<LoadError>) {
        let Some(file) = self.devices.file(held, run.file) else { return (0, None) };
        // What does not open was fetched too early, and is read again.
        match self.bring(run.file, file, run.at, out) {
            Some(true) if self.open_run(budget, file, run, out, scratch).is_ok() => return (run.n, None),
            Some(false) => return (0, None),
            _ => {}
        }
        if self.devices.timed_read(run.file, run.at, run.n, || file.read_run(run.at, out)).is_err() {
            return (0, None);
        }
        match self.open_run(budget, file, run, out, scratch) {
            Ok(()) => (run.n, None),
            Err((i, Unopened::Slot(error))) => (i, Some(self.unread(file, (run.file, run.at + i as u32), error))),
            Err((i, Unopened::Object(error))) => (i, Some(error)),
        }
    }

    /// Reads the slots of a file from slot `first` on into `out`, if some of them were fetched; the others are read now. Whether that
    /// succeeded; none if nothing was fetched.
    fn bring(&self, number: usize, file: &SpillFile, first: u32, out: &mut [u8]) -> Option<bool> {
        let end = first + (out.len() / SLOT_BYTES) as u32;
        let mut at = self.fetches.first_of(file, first..end).map(|_| first)?;
        let mut has_some = false;
        while at < end {
            let rest = (at - first) as usize * SLOT_BYTES;
            let came = self.devices.timed_fetch(number, || self.fetches.bring(file, at, &mut out[rest..]));
            if came > 0 {
                (at, has_some) = (at + came as u32, true);
                continue;
            }
            let next = self.fetches.first_of(file, at + 1..end).unwrap_or(end);
            if !has_some && next == end {
                return None;
            }
            let part = &mut out[rest..][..(next - at) as usize * SLOT_BYTES];
            let read = || file.read_run(at, part);
            if self.devices.timed_read(number, at, (next - at) as usize, read).is_err() {
                return Some(false);
            }
            at = next;
        }
        Some(true)
    }

    /// Makes pages of the slots of `run`, as they were read, in place. After an error, says how many pages precede the one that failed.
    fn open_run(
        &self,
        budget: &Budget,
        file: &SpillFile,
        run: FileRun,
        slots: &mut [u8],
        scratch: &mut [u8; 4096],
    ) -> Result<(), (usize, Unopened)> {
        for (i, page) in slots.as_chunks_mut().0.iter_mut().enumerate() {
            let len = file.open(run.at + i as u32, page).map_err(|error| (i, Unopened::Slot(error)))?;
            self.expand(budget, len, page, scratch).map_err(|error| (i, Unopened::Object(error)))?;
        }
        Ok(())
    }

    /// Notes that an object of the file numbered `number` could not be read.
    #[cold]
    fn unread(&self, file: &SpillFile, (number, at): (usize, u32), error: FileError) -> LoadError {
        file.note_failed_read(at, error);
        LoadError::File { file: number, at, error }
    }

    /// The file and the place in it that have the content of `slot`, if a file has it.
    pub fn place_in_file(&self, slot: Slot) -> Option<(usize, Place)> {
        file_of(self.location(slot).load(Ordering::Acquire))
    }

    /// Reads the slots of `span` with one read into `bounce`, which has room for them, and makes pages of the objects there:
    /// page `n` of `out` is what `slot` has, for each `(n, slot)` of `pages`, whose content is in the span. False if any of it
    /// cannot be read.
    pub fn load_span(
        &self,
        held: &Held,
        budget: &Budget,
        span: &Span,
        pages: impl Iterator<Item = (usize, Slot)> + Clone,
        bounce: &mut [u8],
        out: &mut [u8],
    ) -> bool {
        let Some(file) = self.devices.file(held, span.file) else { return false };
        let nr_slots = span.nr_slots();
        let bounce = &mut bounce[..nr_slots * SLOT_BYTES];
        // What does not open was fetched too early, and is read again.
        match self.bring(span.file, file, span.first, bounce) {
            Some(true) if self.open_span(budget, file, span, pages.clone(), bounce, out) => return true,
            Some(false) => return false,
            _ => {}
        }
        let read = self.devices.timed_read(span.file, span.first, nr_slots, || file.read_run(span.first, bounce));
        read.is_ok() && self.open_span(budget, file, span, pages, bounce, out)
    }

    /// Makes pages of the objects in the slots of `span`, as they were read: see [`Self::load_span`].
    fn open_span(
        &self,
        budget: &Budget,
        file: &SpillFile,
        span: &Span,
        pages: impl Iterator<Item = (usize, Slot)>,
        slots: &mut [u8],
        out: &mut [u8],
    ) -> bool {
        let (slots, out) = (slots.as_chunks_mut::<SLOT_BYTES>().0, out.as_chunks_mut::<4096>().0);
        // How much of each slot has content, once it is decrypted.
        let mut opened = [None; BATCH];
        for (n, slot) in pages {
            let Some((_, place)) = self.place_in_file(slot) else { return false };
            let i = (place.slot - span.first) as usize;
            let Some(len) = opened[i].or_else(|| file.open(place.slot, &mut slots[i]).ok()) else { return false };
            opened[i] = Some(len);
            let Ok(object) = file.object(place, len, &slots[i]) else { return false };
            if self.decode(budget, &slots[i][object], &mut out[n]).is_err() {
                return false;
            }
        }
        true
    }

    /// Frees the content of the locked slot, wherever it is.
    pub(super) fn free_content(&self, held: &Held, budget: &Budget, stats: &Shared, slot: Slot) {
        let loc = self.location(slot).swap(0, Ordering::AcqRel);
        match loc & location::KIND {
            location::POOL => {
                if let Some(handle) = handle_of(loc) {
                    self.forget_settled(loc, handle);
                    self.free_object(budget, stats, handle);
                }
                // It is of no use any more, and was of none.
                if let Some(file) = ahead_of(loc) {
                    self.devices.note_ahead(file, 0, 1);
                }
            }
            location::FILE => {
                if let Some((file, at)) = file_of(loc) {
                    self.free_in_file(held, file, &[at]);
                }
            }
            _ => {}
        }
    }

    /// Frees what is `at` these places of the file numbered `number`: the contents of locked slots.
    pub(super) fn free_in_file(&self, held: &Held, number: usize, at: &[Place]) {
        if !at.is_empty()
            && let Some(file) = self.devices.file(held, number)
        {
            // A slot that is still in use for another object is no room.
            if file.free_all(at) == 0 {
                return;
            }
            self.note_freed(file);
            // There is room again, if this process writes to the file.
            let is_open = || self.devices.priority(number).is_some() && file.closed().is_none();
            if self.memory.was_refused() && is_open() && !self.devices.is_held(file) {
                self.memory.set_room();
            }
        }
    }

    /// Puts an object into the pool for the locked `slot`. Returns its location word, which the caller stores.
    pub(super) fn store_object(
        &self,
        budget: &Budget,
        stats: &Shared,
        slot: Slot,
        object: &[u8],
    ) -> Result<u64, PoolFull> {
        self.store_object_in(&self.memory.charging(budget, stats), slot, object)
    }

    /// The same, with memory from `backing`.
    pub(super) fn store_object_in(&self, backing: &impl Backing, slot: Slot, object: &[u8]) -> Result<u64, PoolFull> {
        let handle = self.pool.store(backing, slot.0, object)?;
        self.content_pages.fetch_add(1, Ordering::Relaxed);
        if object.len() > POOL_OBJECT_MAX {
            self.large_objects.fetch_add(1, Ordering::Relaxed);
        }
        Ok(self.location_of_new(handle, object))
    }

    /// Frees an object of the pool, whose slot the caller has locked. It is no longer among the settled ones.
    pub(super) fn free_object(&self, budget: &Budget, stats: &Shared, handle: Handle) {
        // SAFETY: the slot is locked, which keeps the object from being freed or moved.
        if unsafe { self.pool.load(handle) }.len() > POOL_OBJECT_MAX {
            self.large_objects.fetch_sub(1, Ordering::Relaxed);
        }
        self.content_pages.fetch_sub(1, Ordering::Relaxed);
        self.pool.free(&self.memory.charging(budget, stats), handle);
    }

    /// Does the same for several objects.
    pub(super) fn free_objects(&self, budget: &Budget, stats: &Shared, handles: &[Handle]) {
        if handles.is_empty() {
            return;
        }
        let mut large = 0;
        let count = |len: usize| large += u64::from(len > POOL_OBJECT_MAX);
        self.pool.free_all(&self.memory.charging(budget, stats), handles, count);
        self.content_pages.fetch_sub(handles.len() as u64, Ordering::Relaxed);
        if large > 0 {
            self.large_objects.fetch_sub(large, Ordering::Relaxed);
        }
    }

    /// Decompresses an object of `len` bytes in place; an object of a whole page is not compressed.
    fn expand(
        &self,
        budget: &Budget,
        len: usize,
        page: &mut [u8; 4096],
        scratch: &mut [u8; 4096],
    ) -> Result<(), LoadError> {
        if len == 4096 {
            return Ok(());
        }
        scratch.copy_from_slice(page);
        self.decode(budget, &scratch[..len], page)
    }

    /// Decompresses an object; one of a whole page is not compressed and is copied.
    fn decode(&self, budget: &Budget, data: &[u8], out: &mut [u8; 4096]) -> Result<(), LoadError> {
        if is_cold(data) {
            return self.codecs.decompress(budget, data, out).map_err(|_| LoadError::Corrupt);
        }
        decode_hot(data, out)
    }
}

/// True if the codec of the cold tier made this object.
pub(super) fn is_cold(object: &[u8]) -> bool {
    object.len() < 4096 && object.first() == Some(&codec::COLD_TAG)
}

/// Decompresses an object that is not cold; one of a whole page is not compressed and is copied.
pub(super) fn decode_hot(data: &[u8], out: &mut [u8; 4096]) -> Result<(), LoadError> {
    if data.len() == 4096 {
        out.copy_from_slice(data);
        return Ok(());
    }
    codec::decompress(data, out).map_err(|_| LoadError::Corrupt)
}
