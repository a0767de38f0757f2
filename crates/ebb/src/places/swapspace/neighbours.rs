//! Read-ahead on a disk that turns: one read brings the slots around a page's slot, because the disk needs about as long for one as for
//! all of them.
//!
//! A slot with several objects names their owners in its directory, and the file's own table names the owner of an object that is alone.
//! An owner is a slot of the swap space, and no slot knows its page. So what others have in the window goes into the pool, as an
//! evacuation moves it the other way, and the next fault on one of them finds it in RAM. What was asked for stays in the file: a page
//! that is only read may leave again without being written.
//!
//! The window is read and decrypted before any owner is known, and so with no lock on it: see [`crate::protocols::seal`]. Then each owner
//! is locked while its content moves, as for a swap-in; one that another thread has locked stays where it is. Under the lock, the
//! location word and the seal say whether what was read is still the content.
//!
//! The new location word is marked with the file from which the content was read ahead. The mark says, when the content is used, that
//! read-ahead was of use; and when writeback finds it, that it was not. Writeback then takes the mark, and passes over the content
//! once: it has been out for long, and would leave at once otherwise.

use super::SwapSpace;
use super::location::{ahead_of, marked_ahead, not_ahead};
use super::span::Span;
use crate::base::uapi;
use crate::budget::Budget;
use crate::counters::stats::Shared;
use crate::device::ahead::NEIGHBOURS_MAX;
use crate::device::file::{BATCH, Place, SLOT_BYTES, SealNumber, SpillFile, packing};
use crate::device::kind::Kind;
use crate::protocols::gate::Held;
use core::ops::Range;
use core::sync::atomic::Ordering;
use ebb_slots::{Locked, Slot};

/// Most slots of a window: those around a slot, and as many again that are wanted and lie beside them.
const SLOTS_MAX: usize = 2 * NEIGHBOURS_MAX;

/// Neighbouring slots of a file, decrypted, in a buffer.
pub struct Window<'a> {
    file: usize,
    first: u32,
    data: &'a [u8],
    /// Bytes of each that have content; none if it is free, or was changed meanwhile, or cannot be opened.
    lens: [Option<usize>; SLOTS_MAX],
}

impl Window<'_> {
    /// The content of the slot at `place`, and how many bytes of it are used, if the window has that.
    pub(super) fn opened(&self, (file, place): (usize, Place)) -> Option<(&[u8; SLOT_BYTES], usize)> {
        let i = place.slot.checked_sub(self.first).filter(|_| file == self.file)? as usize;
        let len = self.lens.get(i).copied().flatten()?;
        Some((self.data.as_chunks().0.get(i)?, len))
    }
}

/// Where content is that was read ahead, and on whose account it moves.
struct Source<'a> {
    held: &'a Held,
    budget: &'a Budget,
    stats: &'a Shared,
    number: usize,
    file: &'a SpillFile,
}

impl SwapSpace {
    fn turns(&self, file: usize) -> bool {
        self.devices.ahead(file).is_some_and(|ahead| ahead.kind() == Kind::Hdd)
    }

    /// Which slots of its file to read with the first of `slots`, whose content somebody waits for: those around it, and where the content
    /// of the others is, as far as it lies together. None if the content is not on a disk that turns, or what is wanted is as much as
    /// would be read.
    pub fn neighbourhood(&self, mut slots: impl Iterator<Item = Slot>) -> Option<Range<u32>> {
        let place = self.place_in_file(slots.next()?)?;
        let width = self.devices.ahead(place.0).filter(|ahead| ahead.kind() == Kind::Hdd)?.window();
        let mut span = Span::new(place);
        while slots.next().and_then(|slot| self.place_in_file(slot)).is_some_and(|place| span.add(place, BATCH)) {}
        let (start, wanted) = (place.1.slot - place.1.slot % width, span.slots());
        (wanted.len() < width as usize).then(|| start.min(wanted.start)..(start + width).max(wanted.end))
    }

    /// True if the content of `slot` is on a disk that turns, and not where the disk goes on.
    pub fn must_seek(&self, slot: Slot) -> bool {
        self.place_in_file(slot)
            .is_some_and(|(file, place)| self.devices.ahead(file).is_some_and(|ahead| ahead.must_seek(place.slot)))
    }

    /// How many of these slots, whose pages are neighbours, to load together, if the first is to be loaded: up to one for which a disk
    /// must seek. `window` has some of them already.
    pub fn without_seek(&self, mut slots: impl Iterator<Item = Slot>, window: Option<&Window<'_>>) -> usize {
        let Some(first) = slots.next() else { return 0 };
        let mut span = self.place_in_file(first).filter(|(file, _)| self.turns(*file)).map(Span::new);
        let mut is_near = |slot: Slot| match self.place_in_file(slot) {
            Some(place) if self.turns(place.0) => {
                let has = window.is_some_and(|window| window.opened(place).is_some());
                has || span.as_mut().is_some_and(|span| span.add(place, BATCH))
            }
            _ => true,
        };
        1 + slots.take_while(|slot| is_near(*slot)).count()
    }

    /// Reads the slots of `range`, among them that of the locked `slot`, into `data`, and moves what other pages have there into the pool.
    /// None if there is nothing else, or it cannot be read, or has no room: then the page comes alone.
    pub fn read_window<'a>(
        &self,
        held: &Held,
        budget: &Budget,
        stats: &Shared,
        slot: Slot,
        range: Range<u32>,
        data: &'a mut [u8],
    ) -> Option<Window<'a>> {
        let (number, place) = self.place_in_file(slot)?;
        let file = self.devices.file(held, number)?;
        // While files take nothing, the pool is all the room that there is. And a disk that fails may take long for each read.
        if self.memory.was_refused() || file.is_resting() || !file.may_read_windows() {
            return None;
        }
        let span = file.around(place.slot, range);
        if span.len() == 1 && file.is_last(place) || span.len() > SLOTS_MAX.min(data.len() / SLOT_BYTES) {
            return None;
        }
        let data = &mut data[..span.len() * SLOT_BYTES];
        let began_ns = uapi::now_ns();
        self.devices
            .timed_read(number, span.start, span.len(), || file.read_run(span.start, data))
            .inspect_err(|_| file.read_no_windows(began_ns))
            .ok()?;
        stats.runs.note_in(span.len());
        let source = Source { held, budget, stats, number, file };
        let (first, mut lens) = (span.start, [None; SLOTS_MAX]);
        for ((at, content), len) in span.zip(data.as_chunks_mut().0).zip(&mut lens) {
            let Some((used, seal)) = file.open_unlocked(at, content) else { continue };
            *len = Some(used);
            if let Some(owner) = file.owner_out(at) {
                self.bring_to_pool(&source, owner, Place::alone(at), seal, &content[..used]);
            } else if file.has_several(at) {
                let objects = (0..=u8::MAX).map_while(|i| packing::object(content, i).map(|object| (i, object)));
                for (i, (owner, object)) in objects {
                    self.bring_to_pool(&source, owner, Place::packed(at, i), seal, &content[object]);
                }
            }
        }
        Some(Window { file: number, first, data, lens })
    }

    /// Moves an object that was read from `place`, under this seal, into the pool, if that is the content of `owner` and no page in memory
    /// has it too. It stays in the file if another thread has `owner` locked, or there is no room.
    fn bring_to_pool(&self, source: &Source<'_>, owner: Slot, place: Place, seal: SealNumber, object: &[u8]) {
        let &Source { held, budget, stats, number, file } = source;
        let Some(was) = self.lock_owner(held, number, place, owner) else { return };
        if matches!(was, Locked::Stored(_))
            && file.is_sealed_as(place.slot, seal)
            // One that finds no room is not the last: another may fit into a block that is there.
            && let Ok(location) = self.store_object(budget, stats, owner, object)
        {
            self.location(owner).store(marked_ahead(location, number), Ordering::Release);
            self.free_in_file(held, number, &[place]);
        }
        self.unclaim(held, owner, was);
    }

    /// Takes the mark of the locked `slot`, whose location word is `loc`: its content was read ahead, and is of use now or not. False if it
    /// was not read ahead.
    pub(super) fn note_if_ahead(&self, slot: Slot, loc: u64, is_used: bool) -> bool {
        let Some(file) = ahead_of(loc) else { return false };
        self.location(slot).store(not_ahead(loc), Ordering::Release);
        self.devices.note_ahead(file, is_used.into(), (!is_used).into());
        true
    }
}
