//! What becomes of a system call that the agent looked at.

/// What the handler does with a call.
pub enum Outcome {
    /// It is done; the answer.
    Done(i64),
    /// The context is set up for what comes next.
    Set,
    /// It did not happen; the program makes it anew.
    Again,
    /// The kernel performs it, with these arguments.
    Forward([u64; 6]),
}
