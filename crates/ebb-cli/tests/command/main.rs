//! The command, as its users run it.

mod common;

mod account;
mod control;
mod errors;
mod killable;
mod layout;
mod nested;
mod outside;
mod preload;
mod ps;
mod reclaim;
mod set;
mod transparent;
mod writes;
