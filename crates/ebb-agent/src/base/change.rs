//! Calls that change what a process may do, for its threads to follow.

/// Whom a call changes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u8)]
pub enum Change {
    /// Nobody.
    #[default]
    None,
    /// The thread that makes it.
    Privileges,
    /// Where and how the thread runs that makes it. Ebb's threads run as the first thread of the process.
    Scheduling,
}
