//! The tree of processes that share one budget.
//!
//! * `page`: what all processes of the tree share.
//! * `own`: this process's part in the tree.
//! * `claim`: how a process becomes a member, and how it is found dead.
//! * `ages`: which process has to give up memory.
//! * `share`: pages that several processes hold since a fork, and that count once. `masks` has their masks, `holding`
//!   the part of one process in them.

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
