//! Stores pages in slots: as a pattern, in the pool, or in a file.
//!
//! What goes to a file is gathered in batches. Where transfers can be in flight, the device takes one batch while the
//! thread compresses the pages of the next; all of them have ended when [`store_pages`] returns.

use crate::base::PAGE;
use crate::counters::stats;
use crate::device::file::{BATCH, Packing};
use crate::device::flights::{FLIGHTS, Flights};
use crate::device::list::{Flight, Writer};
use crate::places::staging::PART_PAGES_MIN_TO_FILES;
use crate::places::swapspace::{Aim, StoreResult};
use crate::places::work::Work;
use crate::space::Space;
use core::ops::Range;
use ebb_slots::Slot;

/// Most pages that one call stores: enough that the device has something to do while pages are compressed, and few enough
/// that no thread waits long to close the gate.
pub(crate) const STORE_MAX: usize = 4 * BATCH;

/// Most pages that one call stores with this work buffer.
pub(crate) fn most(space: &Space, work: &Work) -> usize {
    let flies = space.swap.has_file() && work.has_flights() && space.swap.devices.contexts().can_fly();
    if flies { STORE_MAX } else { work.batch() }
}

/// The flights of the thread that has leased `work`: none if the buffer is small. Each has a batch of the buffer's pages.
pub(crate) fn flights(space: &Space, work: &Work) -> Flights<'static> {
    Flights::new(work.has_flights().then(|| space.swap.devices.contexts()))
}

/// Where [`store_pages`] finds a page whose turn has come.
pub(crate) enum Taken {
    /// At this address. It is mapped memory of a page that the caller has claimed, and nobody writes to it: a change while a page
    /// is compressed may spoil other words of the page.
    At(usize),
    /// Copied to where the caller was told.
    Copied,
    /// It is no longer the caller's, and is not stored.
    Gone,
}

/// Stores pages in the claimed `slots`, at most [`most`] of them. Calls `take` for each page in turn, with its number and
/// room for a copy, and `done` once for each page, with its number and whether it is stored. Returns how many pages were
/// offered to files.
pub(crate) fn store_pages(
    space: &Space,
    writer: Writer<'_>,
    slots: &[Slot],
    mut take: impl FnMut(usize, &mut [u8; PAGE]) -> Taken,
    work: &mut Work,
    mut done: impl FnMut(usize, bool),
) -> usize {
    debug_assert!(slots.len() <= STORE_MAX);
    let aim = work.aim();
    let may_use_file = aim == Aim::Usual || aim != Aim::Pool && space.swap.has_file();
    let mut batches = Batches::new(space, writer, work);
    let Work { stable, out, lz4, trials, pages, .. } = work;
    let buffer = &mut pages.0[..];
    // Counted together, because all threads write to the counters.
    let (mut same_pages, mut pool_pages, mut pool_bytes, mut file_pages) = (0, 0, 0, 0);
    for (i, slot) in slots.iter().enumerate() {
        let page = match take(i, stable) {
            // SAFETY: the caller's contract: the page is mapped and claimed, and nobody writes to it.
            Taken::At(addr) => unsafe { &*(addr as *const [u8; PAGE]) },
            Taken::Copied => stable,
            Taken::Gone => {
                done(i, false);
                continue;
            }
        };
        match space.swap.store(&space.budget, space.stats, *slot, (page, aim), (lz4, trials), out) {
            StoreResult::Same => {
                same_pages += 1;
                done(i, true);
            }
            StoreResult::Pool(len) => {
                pool_pages += 1;
                pool_bytes += len as u64;
                done(i, true);
            }
            StoreResult::File(_) if !may_use_file => done(i, false),
            StoreResult::File(len) => {
                let object = len.map_or(&page[..], |len| &out[..len]);
                batches.push(i, *slot, object, buffer, &mut done);
                file_pages += 1;
            }
        }
    }
    if same_pages > 0 {
        stats::add(&space.stats.out_same_pages, same_pages);
    }
    if pool_pages > 0 {
        stats::add(&space.stats.out_pool_pages, pool_pages);
        stats::add(&space.stats.pool_in_bytes, pool_pages * PAGE as u64);
        stats::add(&space.stats.pool_out_bytes, pool_bytes);
    }
    batches.end(buffer, &mut done);
    file_pages
}

/// Pages on their way to a file, in a part of the work buffer: their numbers and slots, and the length of what is stored.
struct Batch {
    pages: [u8; BATCH],
    slots: [Slot; BATCH],
    lens: [u16; BATCH],
    n: usize,
    /// The batch is in flight.
    flight: Option<(Packing, Flight)>,
}

const _: () = assert!(STORE_MAX <= 1 << u8::BITS && STORE_MAX == PART_PAGES_MIN_TO_FILES as usize);

impl Default for Batch {
    fn default() -> Self {
        Self { pages: [0; BATCH], slots: [Slot(0); BATCH], lens: [0; BATCH], n: 0, flight: None }
    }
}

/// The batches of one call. Each has a part of the buffer for itself; with no flights there is one.
struct Batches<'a> {
    space: &'a Space,
    writer: Writer<'a>,
    flights: Flights<'static>,
    batches: [Batch; FLIGHTS],
    /// The one that is being filled.
    at: usize,
    /// Most pages of a batch.
    most: usize,
    /// The number of the work buffer.
    number: usize,
}

impl<'a> Batches<'a> {
    fn new(space: &'a Space, writer: Writer<'a>, work: &Work) -> Self {
        let flights = match space.swap.has_file() {
            true => flights(space, work),
            false => Flights::new(None),
        };
        Self { space, writer, flights, batches: Default::default(), at: 0, most: work.batch(), number: work.number() }
    }

    /// The part of the buffer that a batch has.
    fn part(&self, which: usize) -> Range<usize> {
        which * self.most * PAGE..(which + 1) * self.most * PAGE
    }

    /// Adds a page, and begins to write a batch that is full.
    fn push(&mut self, page: usize, slot: Slot, object: &[u8], buffer: &mut [u8], done: &mut impl FnMut(usize, bool)) {
        if self.at > 0 && self.batches[self.at].n == 0 {
            let Self { space, number, most, .. } = *self;
            space.places.work.charge_batches(number, FLIGHTS, most, &space.budget);
        }
        let at = self.part(self.at).start;
        let batch = &mut self.batches[self.at];
        let n = batch.n;
        buffer[at + n * PAGE..][..object.len()].copy_from_slice(object);
        (batch.pages[n], batch.slots[n], batch.lens[n]) = (page as u8, slot, object.len() as u16);
        batch.n += 1;
        if batch.n == self.most {
            self.begin(buffer, done);
            // What has its place in the other part has had as long as this part took to fill.
            self.at = (self.at + 1) % if self.flights.can_begin() { FLIGHTS } else { 1 };
            self.finish(self.at, buffer, done);
        }
    }

    /// Begins to write the batch that is being filled, or writes it.
    fn begin(&mut self, buffer: &mut [u8], done: &mut impl FnMut(usize, bool)) {
        let (which, part) = (self.at, self.part(self.at));
        let data = &mut buffer[part];
        let batch = &mut self.batches[which];
        if self.flights.can_begin() {
            let packing = Packing::pack(&batch.slots[..batch.n], &batch.lens[..batch.n], data);
            match self.space.swap.begin_packed(self.writer, &packing, data, &mut self.flights, which) {
                Ok(Some(flight)) => {
                    batch.flight = Some((packing, flight));
                    return;
                }
                Ok(None) => packing.unpack(data),
                Err(_) => return self.report(which, 0, done),
            }
        }
        self.write(which, data, done);
    }

    /// Waits until the device has taken a batch that is in flight, if it is.
    fn finish(&mut self, which: usize, buffer: &mut [u8], done: &mut impl FnMut(usize, bool)) {
        let Some((packing, flight)) = self.batches[which].flight.take() else { return };
        let data = &mut buffer[self.part(which)];
        let Self { space, writer, flights, .. } = self;
        match space.swap.finish_packed(*writer, &space.budget, &packing, data, flights, flight) {
            Ok(()) => self.report(which, self.batches[which].n, done),
            // The pages stay where they are. And to try them one by one is of no use.
            Err(error) if error.is_for_any() => self.report(which, 0, done),
            Err(_) => {
                packing.unpack(data);
                self.write_singly(which, data, done);
            }
        }
    }

    /// Ends everything.
    fn end(mut self, buffer: &mut [u8], done: &mut impl FnMut(usize, bool)) {
        let other = (self.at + 1) % FLIGHTS;
        if self.batches[self.at].n > 0 {
            // To wait for one write alone, a call that waits is better.
            match self.batches[other].flight {
                Some(_) => self.begin(buffer, done),
                None => {
                    let part = self.part(self.at);
                    self.write(self.at, &mut buffer[part], done);
                }
            }
        }
        [other, self.at].into_iter().for_each(|which| self.finish(which, buffer, done));
    }

    /// Writes a batch and waits for it.
    fn write(&mut self, which: usize, data: &mut [u8], done: &mut impl FnMut(usize, bool)) {
        let Batch { slots, lens, n, .. } = &self.batches[which];
        match self.space.swap.store_file(self.writer, &self.space.budget, &slots[..*n], &lens[..*n], data) {
            Ok(()) => self.report(which, *n, done),
            // As in `finish`.
            Err(error) if error.is_for_any() => self.report(which, 0, done),
            Err(_) => self.write_singly(which, data, done),
        }
    }

    /// Writes the pages of a batch one by one, because a file that is almost full has room for some.
    fn write_singly(&mut self, which: usize, data: &mut [u8], done: &mut impl FnMut(usize, bool)) {
        let Batch { slots, lens, n, .. } = &self.batches[which];
        let (writer, budget) = (self.writer, &self.space.budget);
        let write = |i: &usize| {
            let part = &mut data[i * PAGE..(i + 1) * PAGE];
            self.space.swap.store_file(writer, budget, &slots[*i..=*i], &lens[*i..=*i], part).is_ok()
        };
        let stored = (0..*n).take_while(write).count();
        self.report(which, stored, done);
    }

    /// Tells which pages of a batch are stored: so many, from the first on. The batch is empty then.
    fn report(&mut self, which: usize, stored: usize, done: &mut impl FnMut(usize, bool)) {
        stats::add(&self.space.stats.out_file_pages, stored as u64);
        let batch = &mut self.batches[which];
        let n = core::mem::take(&mut batch.n);
        batch.pages[..n].iter().enumerate().for_each(|(i, page)| done(usize::from(*page), i < stored));
    }
}
