//! Pages that somebody has pinned for longer than a call: a device's buffers, registered memory (FOLL_LONGTERM).
//!
//! The kernel writes to such a page, or reads it, by its frame, whatever the page table says. Were it copied and dropped, the
//! device would go on with the old frame, and the program with a new one: neither would see what the other writes.
//!
//! What a call is known to register stays for good ([`Space::register`]). What an unknown driver does with the pointers that it
//! is given nobody can know; but the kernel can be asked. MOVE refuses a page that is pinned, atomically with unmapping
//! it: it clears the page table entry first and then looks for pins, and who pins without a lock looks at the entry again. So
//! from the first such call on the process is *move-only*: what it gives up goes by MOVE or stays. Clean pages, which
//! would be dropped, there are none of any more.
//!
//! MOVE also refuses a page that is not exclusively this process's, as many are after a fork. Such a page is not pinned: who pins
//! one makes it exclusive, or a copy of it, and fork copies pinned pages for the child at once. So a refused page is made
//! exclusive by a write fault that changes nothing, and MOVE is asked again. What it refuses then is pinned.
//!
//! Units that had pages when they were taken over are move-only from the start: what became of those before, nobody saw.
//!
//! Without MOVE (before Linux 6.8) nobody can be asked. There the mappings that a driver's pointers lead to are *kept*: what is
//! in memory stays there.

use crate::base::runs::Runs;
use crate::base::{PAGE, clock, uapi};
use crate::memory::table::UNIT_PAGES;
use crate::pages::claims::is_present;
use crate::pages::{sharing, stock};
use crate::protocols::page::{State, Tag};
use crate::space::Space;
use crate::space::drivers::SUSPECTED;
use core::sync::atomic::Ordering::Relaxed;
use linux_raw_sys::general::MADV_POPULATE_WRITE;

/// A page that the kernel still refuses to move after so long is no passing reader's, as a debugger is.
const REFUSED_MS: u64 = 100;
/// Passes that reclaim leaves a unit alone most of which is pinned.
pub(crate) const PINNED_SKIP: u32 = 15;

/// A driver may have pinned any page.
#[inline]
pub(crate) fn has_driver(space: &Space) -> bool {
    space.kernel.drivers.0.load(Relaxed) != 0
}

impl Space {
    /// The kernel can be asked whether a page is pinned.
    pub fn can_ask_for_pins(&self) -> bool {
        self.kernel.can_move()
    }
}

/// Pages of the unit at `unit` go by MOVE only.
pub(crate) fn is_move_only(space: &Space, unit: usize) -> bool {
    space.kernel.can_move() && (has_driver(space) || stock::may_be_lent(space, unit))
}

/// Makes the claimed present pages `first..end` of a unit exclusively this process's, by write faults that change
/// nothing. They are not protected any more, and not shared. Inside the gate.
pub(crate) fn make_exclusive(space: &Space, unit: usize, first: usize, end: usize, saved: &mut [u64; UNIT_PAGES]) {
    let mut runs = Runs::new(|run| {
        // What fails is refused by MOVE again, and stays.
        let _ = space.uffd().write_protect(run.start, run.len(), false);
        let _ = uapi::madvise(run.start, run.len(), MADV_POPULATE_WRITE);
    });
    for (page, raw) in saved.iter_mut().enumerate().take(end).skip(first).filter(|(_, raw)| is_present(**raw)) {
        let (addr, state) = (unit + page * PAGE, State::from_raw(*raw));
        debug_assert!(state.tag() == Tag::Present && !state.is_clean());
        sharing::break_if_shared(space, addr, state);
        *raw = state.with_shared(false).to_raw();
        runs.add(addr);
    }
}

/// The kernel refuses to move a page of the unit that is exclusively this process's: somebody has it pinned.
pub(crate) fn note_refused(space: &Space, unit: usize) {
    let Some(unit) = space.table.unit(unit) else { return };
    unit.lent.store(1, Relaxed);
    let now = clock::stamp().max(1);
    match unit.refused.load(Relaxed) {
        0 => unit.refused.store(now, Relaxed),
        // By whom no call told.
        since if !clock::is_forbidden() && clock::ms_since(since) > REFUSED_MS => {
            let _ = space.kernel.drivers.0.compare_exchange(0, SUSPECTED, Relaxed, Relaxed);
        }
        _ => {}
    }
}
