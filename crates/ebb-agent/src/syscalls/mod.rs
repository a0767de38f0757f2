//! System calls of the program: what each needs, and what the agent does about it.

pub mod hints;
pub mod interpose;
pub mod interpose_files;
pub mod memory;
pub mod proc_files;
pub mod process_madvise;
pub mod trap;
pub mod uprobe;
