//! The tree of processes that share one budget.
//!
//! `page` is what they share, `own` a process's part in it, `claim` how it becomes a member and is found dead, `ages` who has
//! to give up memory.

pub mod page;

#[cfg(not(loom))]
pub mod ages;
#[cfg(not(loom))]
mod claim;
#[cfg(not(loom))]
mod own;
#[cfg(not(loom))]
pub mod shared_map;

#[cfg(not(loom))]
pub use claim::{claim_outside, drop_outside, holder, leave_outside, reap, supervise, supervisor};
#[cfg(not(loom))]
pub use own::{CHILDREN_MAX, Tree, TreeFull, now_ms};
pub use page::{AGE_BASE_MS, AGES, Kind, MEMBERS_MAX, Member, MemberId, Page, Sum};
