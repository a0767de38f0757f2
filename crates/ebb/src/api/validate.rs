//! Recounts a space from its pages' states, its slots and its pool, and compares the result with the counts that are
//! kept.

use crate::api::groups;
use crate::pages::stock;
use crate::places::inconsistency::Inconsistency;
use crate::protocols::page::Tag;
use crate::space::Space;
use ebb_slots::TableEntry::{Cached, Stored};

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
            for region in self.regions.all(exclusive) {
                self.table.for_each_content(region.start, region.end, |_, word| {
                    let state = word.load();
                    if state.is_clean() || state.tag() == Tag::Swapped {
                        clean += state.is_clean() as usize;
                        references += 1;
                        let entry = self.swap.entry(crate::places::swapspace::slot_of(state));
                        lost += !matches!(entry, Stored(_) | Cached { locked: false, .. }) as usize;
                    }
                    match state.tag() {
                        Tag::None => return,
                        Tag::Present => present += 1,
                        Tag::Staged => staged += 1,
                        Tag::Swapped => {}
                        Tag::Busy => present += 1 << 40,
                    }
                    content += 1;
                });
            }
            if present >= 1 << 40 {
                return Err(Inconsistency::Pages("a page is busy under the exclusive gate"));
            }
            if lost > 0 {
                return Err(Inconsistency::Pages("the slot of a page holds nothing"));
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
