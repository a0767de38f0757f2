//! The loader's list of the images that it has loaded.

use core::ffi::{c_char, c_int};

unsafe extern "C" {
    static _r_debug: Debug;
}

#[repr(C)]
struct Debug {
    version: c_int,
    map: *const LinkMap,
}

/// An image, as far as the loader tells of it.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct LinkMap {
    pub base: u64,
    pub name: *const c_char,
    pub dynamic: u64,
    pub next: *const LinkMap,
}

/// The first image.
pub fn first() -> *const LinkMap {
    // SAFETY: a word of the loader's, which is set before any program begins.
    unsafe { _r_debug.map }
}
