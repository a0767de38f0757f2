//! The slow truth: recounts a space from its pages' states, its slots and its pool, and compares with what is kept.

use crate::page::Tag;
use crate::space::Space;
use core::fmt;
use core::sync::atomic::Ordering::Relaxed;
use ebb_slots::TableEntry::{Cached, Stored};

/// What a recount found wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inconsistency {
    /// The pages' states do not fit each other or what is counted of them.
    Pages(&'static str),
    /// What groups are charged, or how they hang together.
    Groups(&'static str),
    /// The slots.
    Slots(ebb_slots::Inconsistency),
    /// The pool.
    Pool(ebb_pool::Inconsistency),
    /// The slots of the file with this number.
    File(usize, ebb_slots::Inconsistency),
    /// The file's count of slots that this process has content in.
    FileUsed {
        /// The file's number in the list of devices.
        file: usize,
        /// Slots by the count that the file keeps.
        kept: u32,
        /// Slots by the recount.
        counted: u32,
    },
}

impl fmt::Display for Inconsistency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pages(what) | Self::Groups(what) => f.write_str(what),
            Self::Slots(what) => write!(f, "slots: {what}"),
            Self::Pool(what) => write!(f, "pool: {what}"),
            Self::File(file, what) => write!(f, "file {file}: {what}"),
            Self::FileUsed { file, kept, counted } => write!(f, "file {file} counts {kept} slots, but has {counted}"),
        }
    }
}

impl core::error::Error for Inconsistency {}

impl Space {
    /// Recounts everything against the state words. With every other thread at rest.
    pub fn validate(&self) -> Result<(), Inconsistency> {
        self.exclusive(|| {
            let (mut content, mut present, mut staged, mut clean) = (0usize, 0usize, 0usize, 0usize);
            let (mut lost, mut references) = (0, 0);
            for region in self.regions.all() {
                self.table.for_each_content(region.start, region.end, |_, word| {
                    let state = word.load();
                    if state.is_clean() || state.tag() == Tag::Swapped {
                        clean += state.is_clean() as usize;
                        references += 1;
                        let entry = self.swap.entry(crate::swapin::slot_of(state));
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
            if clean != self.nr_clean.load(Relaxed) {
                return Err(Inconsistency::Pages("clean pages differ from their count"));
            }
            if content != self.group.wanted() {
                return Err(Inconsistency::Pages("pages with content differ from their count"));
            }
            if staged != self.staging.staged() {
                return Err(Inconsistency::Pages("staged pages differ from their count"));
            }
            if present + self.staging.held() + self.swap.pool_pages() > self.group.charged() {
                return Err(Inconsistency::Pages("present pages, staging and pool exceed the charge"));
            }
            self.validate_stock().map_err(Inconsistency::Pages)?;
            self.validate_groups().map_err(Inconsistency::Groups)?;
            self.swap.validate()
        })
    }
}
