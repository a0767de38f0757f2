//! Entry point of `ebb`.
//!
//! Rust's usual entry point changes the disposition of SIGPIPE and fills closed standard descriptors before `main`
//! runs. The program that `ebb run` starts must find both as `ebb` got them, so the entry point is C's.

#![no_main]

use std::ffi::{c_char, c_int};

#[unsafe(no_mangle)]
pub extern "C" fn main(_argc: c_int, _argv: *const *const c_char) -> c_int {
    ebb_cli::main(std::env::args_os())
}
