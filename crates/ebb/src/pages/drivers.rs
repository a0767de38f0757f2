//! Pages that are pinned for longer than a call: a device's buffers, registered memory (FOLL_LONGTERM).
//!
//! The kernel accesses such a page by its frame, whatever the page table says. If the page were copied and dropped, the device
//! would go on with the old frame, and the program with a new one. Neither would see what the other writes.
//!
//! Memory that a call is known to register stays for good ([`Space::register`]). Nobody can know what an unknown driver does
//! with the pointers that it is given, but the kernel can be asked. MOVE refuses a page that is pinned, atomically with
//! unmapping it. The kernel clears the page table entry first and then looks for pins, and code that pins without a lock
//! looks at the entry again. So from the first call of such a driver on, the process is *move-only*: what it gives up goes by
//! MOVE or stays. It has no clean pages any more, because these would be dropped.
//!
//! MOVE also refuses a page that is not exclusively this process's, as many are after a fork. Such a page is not pinned:
//! pinning makes a page exclusive, or copies it, and fork copies pinned pages for the child at once. So a refused page is
//! made exclusive by a write fault that changes nothing, and MOVE is tried again. A page that MOVE still refuses is pinned.
//!
//! Units that had pages when they were taken over are move-only from the start, because nobody saw what happened to these pages
//! before.
//!
//! Without MOVE (before Linux 6.8) the kernel cannot be asked. There the mappings that a driver's pointers lead to are
//! *kept*: what is in memory stays there.

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

/// If the kernel still refuses to move a page after this time, no passing reader such as a debugger has it.
const REFUSED_MS: u64 = 100;
/// Passes for which reclaim leaves a unit alone if more than a quarter of its pages is pinned.
pub(crate) const PINNED_SKIP: u32 = 15;

/// True if a driver may have pinned any page.
#[inline]
pub(crate) fn has_driver(space: &Space) -> bool {
    space.kernel.drivers.0.load(Relaxed) != 0
}

impl Space {
    /// True if the kernel can be asked whether a page is pinned.
    pub fn can_ask_for_pins(&self) -> bool {
        self.kernel.can_move()
    }
}

/// True if pages of the unit at `unit` go by MOVE only.
pub(crate) fn is_move_only(space: &Space, unit: usize) -> bool {
    space.kernel.can_move() && (has_driver(space) || stock::may_be_lent(space, unit))
}

/// Makes the claimed present pages `first..end` of a unit exclusively this process's, by write faults that change nothing.
/// Inside the gate.
///
/// Afterwards the pages are neither protected nor shared.
pub(crate) fn make_exclusive(space: &Space, unit: usize, first: usize, end: usize, saved: &mut [u64; UNIT_PAGES]) {
    let mut runs = Runs::new(|run| {
        // If this fails, MOVE refuses the pages again, and they stay.
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

/// Notes that the kernel refuses to move a page of the unit that is exclusively this process's: the page is pinned.
pub(crate) fn note_refused(space: &Space, unit: usize) {
    let Some(unit) = space.table.unit(unit) else { return };
    unit.lent.store(1, Relaxed);
    let now = clock::stamp().max(1);
    match unit.refused.load(Relaxed) {
        0 => unit.refused.store(now, Relaxed),
        // Something has the page pinned, and no call told of it.
        since if !clock::is_forbidden() && clock::ms_since(since) > REFUSED_MS => {
            let _ = space.kernel.drivers.0.compare_exchange(0, SUSPECTED, Relaxed, Relaxed);
        }
        _ => {}
    }
}
