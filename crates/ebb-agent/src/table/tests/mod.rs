//! Tests of the table of system calls: its rows, and the visitor of their arguments.

mod rows;
mod visit;
