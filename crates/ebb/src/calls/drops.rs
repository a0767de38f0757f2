//! Pages whose content goes: what held it is freed, many pages at a time.
//!
//! The kernel has dropped the pages already, or has unmapped them. Their frames and slots are freed here, and whatever
//! counts pages is told a unit at a time.

use crate::base::events::{self, Kind};
use crate::groups::cost::Cost;
use crate::pages::tally::Tally;
use crate::pages::{account, sharing};
use crate::places::swapspace::{Frees, folio_at, slot_of};
use crate::protocols::gate::Held;
use crate::protocols::page::{PageWord, State, Tag};
use crate::space::Space;

/// Pages of one unit, by what is to be counted.
#[derive(Clone, Copy, Default)]
struct Counts {
    content: usize,
    present: usize,
    clean: usize,
}

/// A walk over pages whose content is dropped. Drop ends it.
pub(crate) struct Drops<'a> {
    space: &'a Space,
    tally: Tally<'a>,
    frees: Frees<'a>,
    /// The unit of the last page, and what is not counted of it yet.
    unit: usize,
    counts: Counts,
    freed_slots: u32,
}

impl<'a> Drops<'a> {
    /// A walk that has dropped nothing yet.
    pub(crate) fn new(space: &'a Space, held: &'a Held) -> Self {
        let (tally, frees) = (Tally::new(space, held), space.swap.frees(held, &space.budget, space.stats));
        Self { space, tally, frees, unit: 0, counts: Counts::default(), freed_slots: 0 }
    }

    /// Frees what holds the content of the page at `addr`, last seen in `state`: its memory, its frame or its slot. The
    /// caller has claimed the page or closed the gate, and sets the word. A slot may be freed only when the walk ends, or
    /// with [`Self::end`].
    pub(crate) fn page(&mut self, addr: usize, state: State) {
        let unit = self.space.table.unit_start(addr);
        if unit != self.unit {
            self.count();
            // Others may wait for slots of the batch, so it does not last for a walk over memory of which little is out.
            self.frees.free();
            self.unit = unit;
        }
        match state.tag() {
            Tag::None | Tag::Busy => return,
            Tag::Present => {
                if state.is_clean() {
                    self.frees.claim(slot_of(state), folio_at(addr));
                    self.counts.clean += 1;
                }
                sharing::break_if_shared(self.space, addr, state);
                self.counts.present += 1;
            }
            Tag::Staged => self.space.places.staging.put_frame(state.payload() as u32),
            Tag::Swapped => self.freed_slots += u32::from(self.frees.claim(slot_of(state), folio_at(addr))),
        }
        events::record(Kind::Gone, addr, 1, state.tag() as u64);
        self.counts.content += 1;
        self.tally.add(addr, Cost::of(state).taken());
    }

    /// The same for a page that nobody can look up any more. Waits for a thread that is still busy with it, and leaves the
    /// page without content.
    pub(crate) fn hidden_page(&mut self, addr: usize, word: PageWord<'_>) {
        let seen = word.load();
        let state = match seen.tag() {
            Tag::None => None,
            Tag::Busy => self.wait_for(word),
            _ if word.try_claim(seen) => Some(seen),
            _ => self.wait_for(word),
        };
        if let Some(state) = state {
            self.page(addr, state);
            word.finish(State::NONE);
        }
    }

    /// Claims a page with which another thread is busy. Whoever has slots locked waits for nobody.
    fn wait_for(&mut self, word: PageWord<'_>) -> Option<State> {
        self.frees.free();
        word.claim_content()
    }

    /// Ends the walk. Returns how many slots it freed.
    pub(crate) fn end(self) -> u32 {
        self.freed_slots
    }

    fn count(&mut self) {
        let Counts { content, present, clean } = core::mem::take(&mut self.counts);
        let (space, unit) = (self.space, self.unit);
        if clean > 0 {
            account::uncount_clean(space, unit, clean);
        }
        if present > 0 {
            account::uncount_present(space, unit, present);
            space.budget.uncharge(present);
        }
        if content > 0 {
            account::uncount_content(space, unit, content);
        }
    }
}

impl Drop for Drops<'_> {
    fn drop(&mut self) {
        self.count();
    }
}
