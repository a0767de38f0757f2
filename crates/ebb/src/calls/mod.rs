//! Address-space calls: performs them for the program, and brings regions and page states in line.

pub(crate) mod beside;
pub(crate) mod brk;
pub(crate) mod discard;
pub(crate) mod drops;
pub(crate) mod madvise;
pub(crate) mod mapping;
pub(crate) mod mlock;
pub(crate) mod mmap;
pub(crate) mod mremap;
pub(crate) mod register;
pub(crate) mod requests;
pub(crate) mod widen;
