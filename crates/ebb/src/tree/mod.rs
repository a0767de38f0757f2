//! The tree of processes that share one budget.
//!
//! `page` is what they share, `own` a process's part in it, `claim` how it becomes a member and is found dead, `ages` who has
//! to give up memory. What is counted once although several hold it since a fork is in `share`, with its `masks`, and, of one
//! process, in `holding`.

pub mod page;
pub mod share;

#[cfg(not(loom))]
pub mod ages;
#[cfg(not(loom))]
mod claim;
#[cfg(not(loom))]
pub mod holding;
#[cfg(not(loom))]
pub mod masks;
#[cfg(not(loom))]
mod own;

#[cfg(not(loom))]
pub use claim::{claim_outside, drop_outside, holder, leave_outside, reap, recount, share_byte, supervise, supervisor};
#[cfg(not(loom))]
pub use masks::FILE_BYTES;
#[cfg(not(loom))]
pub use own::{Tree, TreeFull, now_ms};
pub use page::{AGE_BASE_MS, AGES, Kind, MEMBERS_MAX, Member, MemberId, PAGES_MAX, Page, SHARES_MAX, Sum, said};
