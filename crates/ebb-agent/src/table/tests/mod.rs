//! What the table of system calls promises: its rows, and the visitor of their arguments.

mod rows;
mod visit;
