//! Reads of a device before the page is claimed, outside the gate.
//!
//! A thread that waits for a device inside the gate keeps others from closing it: a fork, an mmap, and with them all
//! threads that enter later. So a fault on one page reads its slot first. It looks up the place, leaves the gate, and
//! reads the slot as it is on the device into a page of its own. Then the fault goes its usual way, and finds the slot
//! already read if the content still is in that place.
//!
//! Nothing keeps the slot from being freed and written anew meanwhile. The seal does not match what was read then,
//! because no nonce is used twice with a key. Nor does anything keep the file, or its descriptor, from going away:
//! then something else was read, or nothing. In each of these cases the slot is read once more, inside the gate.
//!
//! Reads that bring more are made inside the gate: those for a walk, and those of a disk that turns, which brings what lies
//! around the slot, too. They are left to the kernel if they take too long while others wait for the thread (`contexts.rs`
//! in `device`). Then the page comes alone, and is waited for here.
//!
//! The idea is that of a sequence lock: read without a lock, then see whether it is what was wanted.

use crate::base::uapi::{self, Errno};
use crate::counters::stats;
use crate::device::file::FileError;
use crate::places::swapspace::{LoadError, slot_of};
use crate::protocols::page::Tag;
use crate::space::Space;
use crate::threads::ctx::ThreadCtx;
use core::sync::atomic::AtomicU32;

/// Reads of one fault, or one call, and what has come of them.
#[derive(Default)]
pub(crate) struct Reads {
    /// Inside the gate, the device is not waited for: each page comes alone, and is read here.
    is_late: bool,
    /// Why the last read failed; none if it did not.
    error: Option<LoadError>,
    failures: u32,
}

/// How long to wait before the next look, if the device does not answer and a read outside has not brought the page either.
const PAUSE_NS: u64 = 20_000_000;
/// Reads outside that fail in a row before the page counts as unreadable.
const FAILURES_MAX: u32 = 2;

impl Reads {
    /// Reads the slot with the content of the swapped page at `page`, if a file has it, and no disk that turns; such a disk
    /// too once it has not answered. Outside the gate.
    pub(crate) fn read(&mut self, space: &Space, ctx: &ThreadCtx, page: usize) {
        self.error = read(space, ctx, page, self.is_late).err();
    }

    /// Whether each page comes alone, because a device did not answer.
    pub(crate) fn is_late(&self) -> bool {
        self.is_late
    }

    /// Whether to try again with the page alone, because a device does not answer (`why`). Outside the gate.
    pub(crate) fn try_again(&mut self, space: &Space, why: Option<LoadError>) -> bool {
        if !matches!(why, Some(LoadError::File { error: FileError::Late, .. })) {
            return false;
        }
        stats::add(&space.stats.late_transfers, 1);
        if core::mem::replace(&mut self.is_late, true) {
            // It was read outside, and that was not what is needed.
            self.failures = if self.error.is_some() { self.failures + 1 } else { 0 };
            uapi::futex_wait(&AtomicU32::new(0), 0, Some(PAUSE_NS));
        }
        self.failures < FAILURES_MAX
    }

    /// Why the page cannot be read, if that is `why` as far as is known inside the gate.
    pub(crate) fn reason(&self, why: Option<LoadError>) -> Option<LoadError> {
        if self.is_late { self.error.or(why) } else { why }
    }
}

fn read(space: &Space, ctx: &ThreadCtx, page: usize, is_late: bool) -> Result<(), LoadError> {
    let word = space.table.word(page).map(|word| word.load());
    let state = word.filter(|state| state.tag() == Tag::Swapped);
    let Some((number, place)) = state.and_then(|state| space.swap.place_in_file(slot_of(state))) else { return Ok(()) };
    if ctx.early.is_of(number, place.slot) {
        return Ok(());
    }
    if !is_late && space.swap.devices.ahead(number).is_some_and(|ahead| ahead.takes_neighbours()) {
        return Ok(());
    }
    let inside = space.threads.enter(ctx);
    let begun = space.swap.devices.file(&inside, number).and_then(|file| file.begin_early(place.slot));
    drop(inside);
    let Some(begun) = begun else { return Ok(()) };
    // SAFETY: the context's bounce pages belong to the calling thread.
    let [_, spare] = unsafe { &mut *ctx.bounce.get() };
    ctx.early.forget();
    let read = || uapi::pread(begun.fd, &mut spare.0, begun.offset);
    let read = space.swap.devices.timed_read(number, place.slot, 1, read);
    let inside = space.threads.enter(ctx);
    if let Some(file) = space.swap.devices.file(&inside, number) {
        file.end_early(begun);
    }
    drop(inside);
    let errno = match read {
        Ok(n) if n == spare.0.len() => {
            ctx.early.set(number, place.slot);
            return Ok(());
        }
        Ok(_) => Errno::IO,
        Err(errno) => errno,
    };
    Err(LoadError::File { file: number, at: place.slot, error: FileError::Io(errno) })
}
