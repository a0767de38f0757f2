//! A failure that stops `ebb`: one line, `ebb: WHAT: WHY; REMEDY`, and an exit status.

use std::fmt;

/// Ebb itself could not start.
pub const STATUS_EBB: i32 = 125;
/// The program was found but cannot be executed.
pub const STATUS_CANNOT_EXECUTE: i32 = 126;
/// The program was not found.
pub const STATUS_NOT_FOUND: i32 = 127;

/// A failure to report to the user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    pub what: String,
    pub why: String,
    pub remedy: String,
    pub status: i32,
}

impl Failure {
    /// A failure of Ebb itself: exit status 125.
    pub fn ebb(what: impl ToString, why: impl ToString, remedy: impl ToString) -> Self {
        Self::with_status(STATUS_EBB, what, why, remedy)
    }

    pub fn with_status(status: i32, what: impl ToString, why: impl ToString, remedy: impl ToString) -> Self {
        Self { what: what.to_string(), why: why.to_string(), remedy: remedy.to_string(), status }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ebb: {}: {}; {}", self.what, self.why, self.remedy)
    }
}
