//! Fetches: what a walk needs next of a file is read while the walk works on what it has.
//!
//! A fetch is a read in flight (`device/contexts.rs`), into a buffer that no page refers to. It brings slots as they are on the
//! device, and nothing is locked for it: they may be freed and written anew meanwhile. So what it has brought counts only once a
//! thread that has the content locked opens it with the seals of the slots. No nonce is used twice with a key, so what is of
//! before, or torn, or of another file, does not open. It is then read again, in the usual way.
//!
//! A fetch begins in one thread, and whichever thread needs it ends it ([`Deposit`]). Nobody waits for a thread that has one, and
//! nobody waits for a fetch that nobody needs: once it has ended, it gives up its place after a while, and its memory before a
//! fork. So whoever closes the gate may find reads in flight, but none that anybody waits for.
//!
//! The kernel has this for files (`page_cache_async_ra`): a page on the way begins the next read. It has nothing of the kind for
//! swap.

use crate::base::clock;
use crate::base::uapi::{self, Errno};
use crate::budget::Budget;
use crate::counters::stats::{self, Shared};
use crate::device::contexts::Lease;
use crate::device::file::{BATCH, SLOT_BYTES, SpillFile};
use crate::protocols::deposit::{Deposit, Hold};
use crate::threads::walker::REACH;
use core::cell::UnsafeCell;
use core::ops::Range;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering};
use linux_raw_sys::general::MADV_NOHUGEPAGE;

/// Most fetches at a time.
pub const FETCHES: usize = 8;
/// Pieces of a file that one fetch brings: what does not compress lies apart from what does.
pub const PIECES: usize = 4;
/// All buffers take at most one part in so many of what the process may expect of the budget.
const PART: usize = 96;
const BUFFER_BYTES: usize = BATCH * SLOT_BYTES;
/// Fetches that came late, or in time, before that says what a walk waits for.
const LATE_MAX: i32 = 4;
/// For how long that says so: about half a second, as [`clock::stamp`] counts.
const NOTED_STAMPS: u32 = 1024;

/// A fetch for another walk that began longer ago, some 20 ms as [`clock::stamp`] counts, gives up its place: nobody seems to need it.
const AGE: u32 = 40;

/// How a fetch begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Begun {
    /// It is on its way.
    Yes,
    /// Another one brings most of it.
    Already,
    /// No buffer is free, or the file's transfers do not fly.
    No,
}

/// What a walk waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pace {
    /// Nothing that was fetched was needed lately.
    Unknown,
    /// The device is slower: what was fetched is still on its way when it is needed.
    Device,
    /// The walk is slower: what was fetched is there.
    Walk,
}

/// When, and for what, a fetch begins.
#[derive(Clone, Copy)]
pub struct Need {
    /// Where the pages end that need it.
    pub end: usize,
    /// Where the walk is. It has passed what ends before, within [`REACH`].
    pub front: usize,
    /// The moment, as [`clock::stamp`] has it.
    pub now: u32,
}

impl Need {
    /// Whether nobody needs the fetch with this label any more.
    fn is_past(&self, label: &Label) -> bool {
        let end = label[1] as usize;
        let (is_behind, is_ahead) = (self.front.wrapping_sub(end) <= REACH, end.wrapping_sub(self.front) <= REACH);
        let is_old = self.now.wrapping_sub((label[0] >> 32) as u32) > AGE;
        // A slow walk needs what is ahead of it, however long ago that began.
        is_behind || is_old && !is_ahead
    }
}

/// Words of a label before the pieces: the file, as its number of all times, and when the fetch began; and where the pages end that
/// need it.
const HEAD: usize = 2;
const WORDS: usize = HEAD + PIECES;
type Label = [u64; WORDS];

/// Neighbouring slots, and where in the buffer they are. All zeros is no piece.
#[derive(Clone, Copy)]
struct Piece {
    first: u32,
    nr_slots: u32,
    /// Slots of the buffer before it.
    at: u32,
}

impl Piece {
    fn to_bits(self) -> u64 {
        u64::from(self.first) | u64::from(self.nr_slots) << 32 | u64::from(self.at) << 48
    }

    fn of_bits(bits: u64) -> Self {
        Self { first: bits as u32, nr_slots: (bits >> 32) as u32 & 0xffff, at: (bits >> 48) as u32 }
    }

    /// How many of these slots it has.
    fn nr_common(self, slots: &Range<u32>) -> u32 {
        slots.end.min(self.first + self.nr_slots).saturating_sub(slots.start.max(self.first))
    }
}

const _: () = assert!(BATCH < 1 << 16);

fn label_of(serial: u32, began: u32) -> u64 {
    u64::from(serial) | u64::from(began) << 32
}

fn is_of(label: &Label, serial: u32) -> bool {
    label[0] as u32 == serial
}

/// The pieces of a fetch of `serial`; none if it is of another file.
fn pieces(label: &Label, serial: u32) -> impl Iterator<Item = (usize, Piece)> {
    let pieces = if is_of(label, serial) { &label[HEAD..] } else { &[] };
    pieces.iter().map(|bits| Piece::of_bits(*bits)).enumerate()
}

#[derive(Default)]
struct Entry {
    place: Deposit<WORDS>,
    is_charged: AtomicBool,
    /// The read, if nobody has waited for it yet. Belongs to the thread that has the place.
    lease: UnsafeCell<Option<Lease<'static>>>,
}

/// The fetches of a process.
pub struct Fetches {
    entries: [Entry; FETCHES],
    /// A buffer for each.
    buffers: *mut u8,
    /// How many of the last fetches were late, less those that were not; and when the last one was needed.
    late: AtomicI32,
    noted: AtomicU32,
}

// SAFETY: an entry's lease and buffer belong to the thread that has its place; the rest is atomics.
unsafe impl Sync for Fetches {}
// SAFETY: as above.
unsafe impl Send for Fetches {}

/// A fetch that a thread has.
struct Taken<'a> {
    hold: Hold<'a, WORDS>,
    entry: &'a Entry,
    buffer: *mut u8,
}

impl Taken<'_> {
    fn lease(&mut self) -> &mut Option<Lease<'static>> {
        // SAFETY: the place is this thread's.
        unsafe { &mut *self.entry.lease.get() }
    }

    /// The buffer. Who reads or writes it makes sure first that nothing is on its way to it.
    fn buffer(&mut self) -> &mut [u8] {
        // SAFETY: it is as long, and this thread's as the place is.
        unsafe { core::slice::from_raw_parts_mut(self.buffer, BUFFER_BYTES) }
    }

    /// Whether nothing is on its way to the buffer, as far as is known without waiting.
    fn has_ended(&mut self) -> bool {
        let has_ended = self.lease().as_mut().is_none_or(|lease| lease.end(|_| false));
        if has_ended {
            *self.lease() = None;
        }
        has_ended
    }
}

impl Fetches {
    /// Reserves the buffers.
    pub fn new() -> Result<Self, Errno> {
        let buffers = uapi::reserve_aligned(FETCHES * BUFFER_BYTES, 4096)?;
        // The charge follows the use of a buffer, so no huge page may bring memory along that nobody used.
        let _ = uapi::madvise(buffers as usize, FETCHES * BUFFER_BYTES, MADV_NOHUGEPAGE);
        Ok(Self {
            entries: core::array::from_fn(|_| Entry::default()),
            buffers,
            late: AtomicI32::new(0),
            noted: AtomicU32::new(0),
        })
    }

    /// How many a process may have that may expect `share` pages of the budget.
    pub fn allowed(share: usize) -> usize {
        (share / PART / BATCH).min(FETCHES)
    }

    fn taken<'a>(&'a self, i: usize, hold: Hold<'a, WORDS>) -> Taken<'a> {
        // SAFETY: there are `FETCHES` buffers.
        Taken { hold, entry: &self.entries[i], buffer: unsafe { self.buffers.add(i * BUFFER_BYTES) } }
    }

    /// Takes a place that has nothing.
    fn take_empty(&self, i: usize) -> Option<Taken<'_>> {
        self.entries[i].place.take_empty().map(|hold| self.taken(i, hold))
    }

    /// Takes the place of what nobody needs any more, if nothing is on its way to it.
    fn take_past(&self, i: usize, need: Need, stats: &Shared) -> Option<Taken<'_>> {
        let mut taken = self.taken(i, self.entries[i].place.take(|label| need.is_past(label))?);
        let was_needed = taken.lease().is_none();
        if !taken.has_ended() {
            let label = taken.hold.label();
            taken.hold.leave(label);
            return None;
        }
        if !was_needed {
            stats::add(&stats.unused_fetches, 1);
        }
        Some(taken)
    }

    /// Begins to fetch these pieces of `file`, which have at most [`BATCH`] slots in all, unless another fetch brings most of them.
    pub fn begin(
        &self,
        file: &SpillFile,
        spans: &[Range<u32>],
        need: Need,
        (budget, stats): (&Budget, &Shared),
    ) -> Begun {
        // Windows of a walk have slots at their ends that both need.
        let has_most = |label: Label| {
            let (has, all) = spans.iter().fold((0, 0), |(has, all), span| {
                let common = |(_, piece): (usize, Piece)| piece.nr_common(span);
                (has + pieces(&label, file.serial()).map(common).sum::<u32>(), all + span.len() as u32)
            });
            2 * has > all
        };
        if self.entries.iter().any(|entry| entry.place.peek().is_some_and(has_most)) {
            return Begun::Already;
        }
        let mut allowed = 0..Self::allowed(budget.expected());
        let taken = allowed.clone().find_map(|i| self.take_empty(i));
        let Some(mut taken) = taken.or_else(|| allowed.find_map(|i| self.take_past(i, need, stats))) else {
            return Begun::No;
        };
        // SAFETY: nobody touches the buffer until the read has ended: `end_read` and `has_ended` come before each use.
        let Some(lease) = (unsafe { file.begin_read(spans, taken.buffer()) }) else {
            taken.hold.clear();
            return Begun::No;
        };
        *taken.lease() = Some(lease);
        if !taken.entry.is_charged.swap(true, Ordering::Relaxed) {
            budget.charge_meta(BUFFER_BYTES);
        }
        let (mut label, mut at): (Label, u32) = ([0; WORDS], 0);
        (label[0], label[1]) = (label_of(file.serial(), need.now), need.end as u64);
        for (word, span) in label[HEAD..].iter_mut().zip(spans) {
            *word = Piece { first: span.start, nr_slots: span.len() as u32, at }.to_bits();
            at += span.len() as u32;
        }
        taken.hold.leave(label);
        Begun::Yes
    }

    /// Copies what was fetched of the slots of `file` to `out`, from slot `first` on, and waits for it if it must. Returns how many
    /// slots came, which may be fewer than `out` has room for: none if nobody fetched the first, or it did not come.
    pub fn bring(&self, file: &SpillFile, first: u32, out: &mut [u8]) -> usize {
        let found =
            |label: &Label| pieces(label, file.serial()).find(|(_, piece)| piece.nr_common(&(first..first + 1)) > 0);
        let has = |label: &Label| found(label).is_some();
        let mut holds = self.entries.iter().enumerate().filter_map(|(i, entry)| Some((i, entry.place.take(has)?)));
        let Some((i, hold)) = holds.next() else { return 0 };
        let mut taken = self.taken(i, hold);
        let mut label = taken.hold.label();
        if let Some(mut lease) = taken.lease().take() {
            self.note(!lease.end(|_| false), clock::stamp());
            if !file.end_read(lease, taken.buffer()) {
                taken.hold.clear();
                return 0;
            }
        }
        let Some((i, piece)) = found(&label) else {
            taken.hold.leave(label);
            return 0;
        };
        let (skip, most) = (first - piece.first, out.len() / SLOT_BYTES);
        let n = most.min((piece.nr_slots - skip) as usize);
        let from = (piece.at + skip) as usize * SLOT_BYTES;
        out[..n * SLOT_BYTES].copy_from_slice(&taken.buffer()[from..from + n * SLOT_BYTES]);
        // Two windows may need the same slot, and both parts of one that comes in parts.
        if skip as usize + n == piece.nr_slots as usize {
            label[HEAD + i] = 0;
        }
        if label[HEAD..].iter().any(|bits| *bits != 0) {
            taken.hold.leave(label)
        } else {
            taken.hold.clear()
        }
        n
    }

    /// The first of these slots of `file` that was fetched, as far as can be seen from outside.
    pub fn first_of(&self, file: &SpillFile, slots: Range<u32>) -> Option<u32> {
        let firsts = |label: Label| {
            let common = |(_, piece): &(usize, Piece)| piece.nr_common(&slots) > 0;
            pieces(&label, file.serial()).filter(common).map(|(_, piece)| piece.first.max(slots.start)).min()
        };
        self.entries.iter().filter_map(|entry| firsts(entry.place.peek()?)).min()
    }

    /// Notes whether a fetch was late.
    fn note(&self, is_late: bool, now: u32) {
        let late = self.late.load(Ordering::Relaxed) + if is_late { 1 } else { -1 };
        self.late.store(late.clamp(-LATE_MAX, LATE_MAX), Ordering::Relaxed);
        self.noted.store(now, Ordering::Relaxed);
    }

    /// What walks that fetch wait for, as far as is known.
    pub fn pace(&self, now: u32) -> Pace {
        let is_old = now.wrapping_sub(self.noted.load(Ordering::Relaxed)) > NOTED_STAMPS;
        match self.late.load(Ordering::Relaxed) {
            _ if is_old => Pace::Unknown,
            0 => Pace::Unknown,
            1.. => Pace::Device,
            _ => Pace::Walk,
        }
    }

    /// After fork, in the child: forgets all of them, which are the parent's. Nobody else is there.
    pub fn reset(&self) {
        for entry in &self.entries {
            // SAFETY: the calling thread is the only one.
            core::mem::forget(unsafe { (*entry.lease.get()).take() });
            entry.place.reset();
        }
        self.late.store(0, Ordering::Relaxed);
    }

    /// Whether buffers have memory that a process that may expect `share` pages may not use.
    pub fn are_too_many(&self, share: usize) -> bool {
        self.entries[Self::allowed(share)..].iter().any(|entry| entry.is_charged.load(Ordering::Relaxed))
    }

    /// Frees the buffers that a process that may expect `share` pages may not use, except those in use; returns how many pages
    /// that freed. Inside the gate, or with the gate closed.
    pub fn trim(&self, share: usize, budget: &Budget) -> usize {
        let mut freed = 0;
        for i in Self::allowed(share)..FETCHES {
            if !self.entries[i].is_charged.load(Ordering::Relaxed) {
                continue;
            }
            let place = &self.entries[i].place;
            let Some(hold) = place.take_empty().or_else(|| place.take(|_| true)) else { continue };
            let mut taken = self.taken(i, hold);
            if !taken.has_ended() {
                let label = taken.hold.label();
                taken.hold.leave(label);
                continue;
            }
            if budget.drop_books(taken.buffer.addr(), BUFFER_BYTES) {
                taken.entry.is_charged.store(false, Ordering::Relaxed);
                budget.uncharge_meta(BUFFER_BYTES);
                freed += BATCH;
            }
            taken.hold.clear();
        }
        freed
    }
}

#[cfg(test)]
#[expect(clippy::single_range_in_vec_init, reason = "a fetch of one piece is a list of one range")]
mod tests {
    use super::*;
    use crate::budget::tests::budget;
    use crate::device::SwapSpec;
    use crate::device::list::Writer;
    use crate::places::swapspace::SwapSpace;
    use crate::protocols::gate::tests::alone;
    use ebb_slots::Slot;
    use std::vec::Vec;

    /// Far from the beginning.
    const AT: usize = 5 * REACH;

    fn need(end: usize, front: usize, now: u32) -> Need {
        Need { end, front, now }
    }

    /// Runs `test` on a file of which at least so many slots are in use, from the first on. Not where no transfer flies.
    fn with_file(nr_slots: usize, test: impl FnOnce(&Fetches, &SpillFile, (&Budget, &Shared))) {
        // SAFETY: fresh zeroed memory is a valid page of counters and stays mapped.
        let stats: &'static Shared = unsafe { &*uapi::reserve(Shared::MAP_BYTES).expect("memory").cast::<Shared>() };
        let mut swap = SwapSpace::new([2048; 2], 64 << 20, stats).expect("memory");
        let spec = SwapSpec { dir: c"/var/tmp", bytes: 64 << 20, ..SwapSpec::DEFAULT };
        let file = SpillFile::create(&spec, swap.devices.lives(), true).expect("a file");
        let number = swap.devices.add_unshared(file).unwrap_or_else(|_| panic!("there is room for a file"));
        swap.devices.write_to(number, 1);
        let (budget, held) = (budget(FETCHES as u64 * (PART * BATCH) as u64), alone());
        // SAFETY: fresh memory that nobody else has.
        let data =
            unsafe { core::slice::from_raw_parts_mut(uapi::reserve(BUFFER_BYTES).expect("memory"), BUFFER_BYTES) };
        for round in 0..nr_slots.div_ceil(BATCH) {
            data.iter_mut().enumerate().for_each(|(i, byte)| *byte = (i * 7 + i / 4096 + round) as u8);
            let mut slots = [Slot(0); BATCH];
            assert_eq!(swap.alloc(0, &budget, stats, &mut slots), BATCH);
            let writer = Writer { held: &held, shard: 0, reclaim: &|_, _| false, stats };
            swap.store_file(writer, &budget, &slots, &[4096; BATCH], data).expect("there is room");
        }
        let file = swap.devices.file(&held, number).expect("a file");
        if file.may_fly() && swap.devices.contexts().lease().is_some() {
            test(&swap.fetches, file, (&budget, stats));
        } else {
            std::eprintln!("no transfer flies here: not tested");
        }
    }

    /// Slots as they are on the device.
    fn read(file: &SpillFile, slots: Range<u32>) -> Vec<u8> {
        let mut out = std::vec![0u8; (slots.len() + 1) * SLOT_BYTES];
        let before = out.as_ptr().align_offset(SLOT_BYTES);
        let aligned = &mut out[before..before + slots.len() * SLOT_BYTES];
        file.read_run(slots.start, aligned).expect("it is read");
        aligned.to_vec()
    }

    /// What comes of a fetch of these slots, as far as it goes.
    fn brought(fetches: &Fetches, file: &SpillFile, slots: Range<u32>) -> Vec<u8> {
        let mut out = std::vec![0u8; slots.len() * SLOT_BYTES];
        let n = fetches.bring(file, slots.start, &mut out);
        out.truncate(n * SLOT_BYTES);
        out
    }

    #[test]
    fn what_was_fetched_is_what_is_there() {
        with_file(256, |fetches, file, own| {
            assert!(brought(fetches, file, 0..10).is_empty());
            assert_eq!(fetches.begin(file, &[3..40, 100..110], need(AT, 0, 0), own), Begun::Yes);
            // What two windows need at their border is no reason.
            assert_eq!(fetches.begin(file, &[39..90], need(AT, 0, 0), own), Begun::Yes);
            assert_eq!(fetches.begin(file, &[5..30], need(AT, 0, 0), own), Begun::Already);
            let first = |slots| fetches.first_of(file, slots);
            assert_eq!([first(0..3), first(0..9), first(90..200)], [None, Some(3), Some(100)]);
            for (wanted, found) in [
                (2..10, 2..2),
                (3..10, 3..10),
                (95..110, 95..95),
                (100..120, 100..110),
                (30..39, 30..39),
                (9..60, 9..40),
                (40..99, 40..90),
            ] {
                assert_eq!(brought(fetches, file, wanted), read(file, found.clone()), "{found:?}");
            }
            // It is there once.
            assert!([3..10, 100..110, 39..90].into_iter().all(|slots| brought(fetches, file, slots).is_empty()));
            assert_eq!((first(0..256), own.1.unused_fetches.load(Ordering::Relaxed)), (None, 0));
        });
    }

    #[test]
    fn what_nobody_needs_any_more_gives_up_its_place() {
        with_file(16, |fetches, file, own| {
            let n = Fetches::allowed(own.0.expected());
            assert_eq!(n, FETCHES);
            let slots = |i: usize| 20 * i as u32..20 * i as u32 + 16;
            let begin = |i: usize, front, now| fetches.begin(file, &[slots(i)], need(AT + i, front, now), own);
            assert!((0..n).all(|i| begin(i, 0, 0) == Begun::Yes));
            fetches.entries.iter().for_each(|entry| {
                let hold = entry.place.take(|_| true).expect("there is something");
                // SAFETY: the place is this thread's.
                unsafe { (*entry.lease.get()).as_mut() }.expect("a read").wait();
                let label = hold.label();
                hold.leave(label);
            });
            // A walk may be slow.
            assert_eq!([begin(n, AT - 1, 0), begin(n, AT - 500, 10 * AGE), begin(n, 0, AGE)], [Begun::No; 3]);
            // The walk has passed the first.
            assert_eq!(begin(n, AT, 0), Begun::Yes);
            assert!(brought(fetches, file, slots(0)).is_empty() && !brought(fetches, file, slots(1)).is_empty());
            assert_eq!(begin(n + 1, 0, 0), Begun::Yes);
            // What is empty goes first, and to another walk the others are old.
            assert!(!brought(fetches, file, slots(5)).is_empty());
            assert_eq!([begin(n + 2, 0, AGE + 1), begin(n + 3, 0, AGE + 1)], [Begun::Yes; 2]);
            assert_eq!(own.1.unused_fetches.load(Ordering::Relaxed), 2);
        });
    }

    #[test]
    fn who_is_late_is_known() {
        let fetches = Fetches::new().expect("memory");
        assert_eq!(fetches.pace(0), Pace::Unknown);
        (0..20).for_each(|now| fetches.note(true, now));
        assert_eq!((fetches.pace(20), fetches.pace(20 + NOTED_STAMPS)), (Pace::Device, Pace::Unknown));
        (0..5).for_each(|_| fetches.note(false, 20));
        assert_eq!(fetches.pace(21), Pace::Walk);
        fetches.reset();
        assert_eq!(fetches.pace(21), Pace::Unknown);
    }

    #[test]
    fn buffers_are_charged_as_they_are_used_and_given_back() {
        with_file(16, |fetches, file, own| {
            let before = own.0.meta_pages();
            assert!((0..3).all(|i| fetches.begin(file, &[20 * i..20 * i + 16], need(AT, 0, 0), own) == Begun::Yes));
            assert_eq!(own.0.meta_pages(), before + 3 * BATCH);
            assert!(!fetches.are_too_many(usize::MAX) && fetches.are_too_many(2 * PART * BATCH));
            let mut freed = 0;
            // What is on its way keeps its buffer until it is there.
            while fetches.are_too_many(0) {
                freed += fetches.trim(0, own.0);
            }
            assert_eq!((freed, own.0.meta_pages()), (3 * BATCH, before));
            assert!(!uapi::are_resident(fetches.buffers as usize, 3 * BATCH));
            // Nothing is left of them.
            assert!(brought(fetches, file, 0..16).is_empty());
            assert_eq!(fetches.begin(file, &[0..16], need(0, 0, 0), own), Begun::Yes);
            assert!(!brought(fetches, file, 0..16).is_empty());
        });
    }

    #[test]
    fn a_small_share_has_none() {
        assert_eq!(Fetches::allowed(PART * BATCH - 1), 0);
        assert_eq!(Fetches::allowed(PART * BATCH), 1);
        assert_eq!(Fetches::allowed(usize::MAX), FETCHES);
    }
}
