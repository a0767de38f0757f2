//! What every room uses: failures, sizes, text, tables, sockets, and calls of the C library. Knows nothing of Ebb.

pub mod end;
pub mod exposition;
pub mod failure;
pub mod http;
pub mod interrupt;
pub mod name;
pub mod path;
pub mod progress;
pub mod size;
pub mod socket;
pub mod sys;
pub mod table;
pub mod text;
