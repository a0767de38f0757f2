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

use crate::base::uapi;
use crate::places::swapspace::slot_of;
use crate::protocols::page::Tag;
use crate::space::Space;
use crate::threads::ctx::ThreadCtx;

/// Reads the slot with the content of the swapped page at `page`, if a file has it; on a disk that turns only if it `must`.
/// Outside the gate.
pub(crate) fn read(space: &Space, ctx: &ThreadCtx, page: usize, must: bool) {
    let Some(state) = space.table.word(page).map(|word| word.load()).filter(|state| state.tag() == Tag::Swapped) else {
        return;
    };
    let Some((number, place)) = space.swap.place_in_file(slot_of(state)) else { return };
    if ctx.early.is_of(number, place.slot) {
        return;
    }
    if !must && space.swap.devices.ahead(number).is_some_and(|ahead| ahead.takes_neighbours()) {
        return;
    }
    let inside = space.threads.enter(ctx);
    let begun = space.swap.devices.file(&inside, number).and_then(|file| file.begin_early(place.slot));
    drop(inside);
    let Some(begun) = begun else { return };
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
    if read == Ok(spare.0.len()) {
        ctx.early.set(number, place.slot);
    }
}
