//! The background thread: what is done beside the program.

pub(crate) mod ageing;
pub(crate) mod errand;
pub(crate) mod give;
pub(crate) mod thread;
