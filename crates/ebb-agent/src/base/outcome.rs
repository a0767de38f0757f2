//! What becomes of a system call that the agent looked at.

/// What the handler does with a call.
pub enum Outcome {
    /// The call is done, with this answer.
    Done(i64),
    /// The context is set up for what comes next.
    Set,
    /// The call did not happen; the program makes it again.
    Again,
    /// The kernel performs the call, with these arguments.
    Forward([u64; 6]),
}
