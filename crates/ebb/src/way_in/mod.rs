//! The way in: from a fault, a system call or a walk to a mapped page.

pub(crate) mod charged;
pub(crate) mod collapse;
mod early;
mod extent;
pub(crate) mod fault;
pub(crate) mod fetch;
mod load;
pub(crate) mod pins;
pub(crate) mod prefetch;
mod reach;
pub(crate) mod readahead;
pub(crate) mod spurious;
pub(crate) mod swapin;
mod unreadable;
pub(crate) mod whole;
pub(crate) mod willneed;
pub(crate) mod window;
