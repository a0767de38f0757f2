//! Which memory is managed: the regions, and a word for each page.

pub(crate) mod list;
pub(crate) mod region;
pub(crate) mod table;
