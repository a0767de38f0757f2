//! Recounts a space from its pages' states, its slots and its pool, and compares the result with the counts that are
//! kept.

use crate::api::groups;
use crate::pages::stock;
use crate::places::inconsistency::Inconsistency;
use crate::protocols::page::Tag;
use crate::space::Space;
use core::sync::atomic::Ordering::Relaxed;
use ebb_slots::TableEntry::{Cached, Stored};

/// The pages of one unit by their states, to compare with what the unit counts.
#[derive(Default)]
struct UnitPages {
    start: usize,
    content: u32,
    present: u32,
    clean: u32,
    has_wrong: bool,
}

impl UnitPages {
    /// Ends one unit, and begins the one at `start`.
    fn begin(&mut self, space: &Space, start: usize) {
        if start == self.start {
            return;
        }
        let counted = space.table.unit(self.start).filter(|_| self.start != 0);
        let has_wrong = counted.is_some_and(|unit| {
            [(&unit.content, self.content), (&unit.present, self.present), (&unit.clean, self.clean)]
                .into_iter()
                .any(|(count, found)| count.load(Relaxed) != found)
        });
        *self = Self { start, has_wrong: self.has_wrong | has_wrong, ..Self::default() };
    }
}

impl Space {
    /// Calls `f` with the start, the end and the protection (as for mprotect) of each managed range. Nobody changes them meanwhile.
    pub fn for_each_range(&self, mut f: impl FnMut(usize, usize, u32)) {
        self.exclusive(|exclusive| {
            self.regions.all(exclusive).for_each(|region| f(region.start, region.end, region.attr.prot()));
        });
    }

    /// Recounts everything from the state words. Every other thread must be at rest.
    pub fn validate(&self) -> Result<(), Inconsistency> {
        self.exclusive(|exclusive| {
            let (mut content, mut present, mut staged, mut clean) = (0usize, 0usize, 0usize, 0usize);
            let (mut lost, mut references) = (0, 0);
            let mut unit = UnitPages::default();
            for region in self.regions.all(exclusive) {
                self.table.for_each_content(region.start, region.end, |at, word| {
                    let state = word.load();
                    unit.begin(self, self.table.unit_start(at));
                    unit.content += (state.tag() != Tag::None) as u32;
                    unit.present += (state.tag() == Tag::Present) as u32;
                    unit.clean += state.is_clean() as u32;
                    if state.is_clean() || state.tag() == Tag::Swapped {
                        clean += state.is_clean() as usize;
                        references += 1;
                        let entry = self.swap.entry(crate::places::swapspace::slot_of(state));
                        lost += !matches!(entry, Stored(_) | Cached { locked: false, .. }) as usize;
                    }
                    match state.tag() {
                        Tag::None => return,
                        Tag::Present => present += 1,
                        Tag::Staged => {
                            staged += 1;
                            let owner = self.places.staging.owner(state.payload() as u32).load(Relaxed);
                            lost += (owner as usize != at) as usize;
                        }
                        Tag::Swapped => {}
                        Tag::Busy => present += 1 << 40,
                    }
                    content += 1;
                });
            }
            if present >= 1 << 40 {
                return Err(Inconsistency::Pages("a page is busy under the exclusive gate"));
            }
            unit.begin(self, 0);
            if unit.has_wrong {
                return Err(Inconsistency::Pages("the pages of a unit differ from its counts"));
            }
            if lost > 0 {
                return Err(Inconsistency::Pages(
                    "the slot of a page holds nothing, or the frame of a page is another's",
                ));
            }
            let known = self.swap.references();
            if known.is_none_or(|(counts, residents, _)| counts + residents != references) {
                return Err(Inconsistency::Pages("the slots' references differ from the pages that have them"));
            }
            if known.is_some_and(|(_, _, claimed)| claimed > 0) {
                return Err(Inconsistency::Pages("a slot is claimed, and nobody is at work with it"));
            }
            if clean != self.eviction.nr_clean() {
                return Err(Inconsistency::Pages("clean pages differ from their count"));
            }
            if content != self.budget.wanted() {
                return Err(Inconsistency::Pages("pages with content differ from their count"));
            }
            if staged != self.places.staging.staged() {
                return Err(Inconsistency::Pages("staged pages differ from their count"));
            }
            if present + self.places.staging.held() + self.swap.pool_pages() > self.budget.charged() {
                return Err(Inconsistency::Pages("present pages, staging and pool exceed the charge"));
            }
            stock::validate_stock(self, exclusive).map_err(Inconsistency::Pages)?;
            groups::validate_groups(self, exclusive).map_err(Inconsistency::Groups)?;
            self.swap.validate(exclusive)
        })
    }
}
