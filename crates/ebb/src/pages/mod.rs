//! What both ways do to pages: counting, charging, sharing, opening clean pages, lending frames of the stock.

pub(crate) mod account;
pub(crate) mod books;
pub(crate) mod claims;
pub(crate) mod clean;
pub(crate) mod clean_folio;
pub(crate) mod drivers;
pub(crate) mod exclusive;
pub(crate) mod folio;
pub(crate) mod in_use;
pub(crate) mod kept;
pub(crate) mod sharing;
pub(crate) mod stock;
pub(crate) mod tally;
