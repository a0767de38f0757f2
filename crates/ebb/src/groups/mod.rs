//! Groups: parts of a space that have limits of their own, as the kernel's memory control groups are parts of a
//! machine.
//!
//! A region belongs to one group, and a page to the group of its region. So the owner of a page is known wherever the
//! page is, even when its content is swapped out, and no slot records it. Who brings a page in, for whom and on which
//! thread, does not matter for who is charged.
//!
//! # What is charged
//!
//! * *ram*: pages that are present or staged. A clean page is one of ram and one of swap, as it has both.
//! * *swap*: pages whose state names a slot, wherever the content is (pool, file, or a pattern). A slot that several
//!   pages share (snapshots) is charged once for each of them: nobody pays for what another group's page needs.
//!
//! Pool memory, metadata, frames that hold nothing more, and charges of work under way are the space's alone. They are
//! charged to the root, which is `Space`'s budget. Pages are charged to no entry of the root, so where there is no
//! other group, a fault costs nothing more.
//!
//! # Invariants
//!
//! 1. Charges go up: what is charged to a group is charged to each of its ancestors below the root.
//! 2. Groups are created and removed, and pages change group, with the gate closed; charges change inside the gate. So
//!    the group of a page that is charged exists, and with the gate closed all sums are exact ([`Space::validate`]
//!    recounts them).
//! 3. A charge is made before the page's state is published, and taken back while the page is claimed or later; so no
//!    counter falls below 0.
//! 4. The group that a region or a thread names exists: a group that is removed leaves both to its parent.
//!
//! [`Space::validate`]: crate::Space::validate

pub(crate) mod cost;
pub(crate) mod names;
pub(crate) mod table;
