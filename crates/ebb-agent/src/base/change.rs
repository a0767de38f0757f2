//! System calls that change what a thread of the program may do, which Ebb's threads must follow.

/// Whom a call changes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u8)]
pub enum Change {
    /// Nobody.
    #[default]
    None,
    /// The thread that makes the call: what it may do.
    Privileges,
    /// The thread that makes the call: where and how it runs. Ebb's threads run as the first thread of the process does.
    Scheduling,
}
