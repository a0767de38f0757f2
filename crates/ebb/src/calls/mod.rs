//! Address-space calls: performed for the program, with regions and page states brought in line.

pub(crate) mod madvise;
pub(crate) mod mapping;
pub(crate) mod mlock;
pub(crate) mod mmap;
pub(crate) mod register;
pub(crate) mod requests;
