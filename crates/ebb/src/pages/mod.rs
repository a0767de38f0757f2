//! What may be done with a page wherever it goes: to count it, to charge it, to share it, to open it, to lend its frame.

pub(crate) mod account;
pub(crate) mod books;
pub(crate) mod claims;
pub(crate) mod clean;
pub(crate) mod drivers;
pub(crate) mod exclusive;
pub(crate) mod in_use;
pub(crate) mod kept;
pub(crate) mod sharing;
pub(crate) mod stock;
pub(crate) mod tally;
