//! What happens to each page, for the miss simulator (`docs/internals/misses.md`). Only with the feature `events`; otherwise
//! nothing here has any code.
//!
//! A process writes records to a file of its own, which it maps. It can also be told to keep only a few pages mapped, so
//! that its faults are a trace of what the program touches (`set_filter`).

#[cfg_attr(not(feature = "events"), path = "off.rs")]
#[cfg_attr(feature = "events", path = "on.rs")]
mod records;

#[cfg(feature = "events")]
pub use records::{begin, set_filter};
pub(crate) use records::{count_present, is_filtering, is_on, is_over_filter, record, same_in_all_runs, stop};

/// The kinds of records: each has a page, a count and a detail.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum Kind {
    /// Pages came in, from the first on. Detail: [`in_detail`].
    In = 1,
    /// A fault on the page was served. Detail: the tag before, and bit 8 for a write.
    Fault = 2,
    /// The page was unmapped. Detail: [`Out`].
    Out = 3,
    /// The staged page was stored.
    Stored = 4,
    /// The program gave the page up. Detail: the tag before.
    Gone = 5,
    /// The page has another address now. Detail: the number of its new page.
    Moved = 6,
    /// The thread begins to bring pages in that nobody waits for. Detail: [`Ahead::of`].
    Ahead = 7,
    /// Pages were in memory when Ebb took them over.
    Taken = 8,
    /// A number of pages now. Count: which ([`Size`]). Detail: how many.
    Size = 9,
    /// Clean pages were opened, from the first on.
    Opened = 10,
}

/// The way that a page leaves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Out {
    Staged = 0,
    InPlace = 1,
    Clean = 2,
}

/// For whom pages come in that nobody waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Ahead {
    /// The rest of a walk's window.
    Window = 1,
    /// The background thread reads ahead of a walk.
    Beside = 2,
    /// The program said that it will need them.
    WillNeed = 3,
}

impl Ahead {
    /// The detail of [`Kind::Ahead`].
    #[inline(always)]
    pub(crate) fn of(self, thread: usize) -> u64 {
        self as u64 | (thread as u64) << 32
    }
}

/// What a sample of the sizes says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Size {
    /// First of a sample: the budget.
    Limit = 0,
    Charged = 1,
    /// Memory of the pool.
    Pool = 2,
    /// Ebb's tables.
    Books = 3,
    /// Staged pages.
    Staged = 4,
    /// Frames of staging with memory, the stock's among them.
    Frames = 5,
    Stock = 6,
    Clean = 7,
    Wanted = 8,
    /// Pages that a device holds.
    Device = 9,
    /// Last of a sample: slots in use, those of clean pages among them.
    Slots = 10,
}

/// The detail of [`Kind::In`]: the tag before, bit 8 for a write, bit 9 if nobody waits for the pages, from bit 16 on how
/// many a system call uses, from bit 32 on the thread.
#[inline(always)]
pub(crate) fn in_detail(tag: u64, write: bool, ahead: bool, used: usize, thread: usize) -> u64 {
    tag | (write as u64) << 8 | (ahead as u64) << 9 | (used as u64) << 16 | (thread as u64) << 32
}
