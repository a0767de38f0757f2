//! Compressed objects in RAM: the pool that swapped pages live in, and the codecs that make them small.
//!
//! # Words
//!
//! * *arena*: one reserved range of address space, given by the caller, that all objects live in.
//! * *block*: [`BLOCK_PAGES`] pages of the arena, aligned to their own size. While in use a block belongs to one size
//!   class and is cut into objects of that class's size; when its last object goes it is given back.
//! * *size class*: all blocks of one object size, under one lock. Blocks that are neither full nor empty are kept on
//!   lists by fullness, so that storing fills the fullest and compaction empties the emptiest (`mm/zsmalloc.c`).
//! * *object*: a header word (owner, length, state) and up to [`OBJECT_MAX`] bytes.
//! * *owner*: the caller's 32-bit name for whoever refers to an object; compaction asks and tells it.
//! * *claim*: the caller's own exclusive right to an owner's handle (in the engine: a swap table word in state cached).
//!
//! # Invariants
//!
//! 1. A thread that stores, loads or frees an object holds its owner's claim. Compaction moves an object only after
//!    [`Owners::try_claim`] gave it that claim. So an object's bytes have one user at a time, and no lock is held while
//!    they are copied.
//! 2. A block is in exactly one place: free in the block map; on its way in or out (one thread knows it); or in a
//!    class, and then on the list of its fullness exactly if it is neither empty nor full.
//! 3. A block's memory is released before the block map learns that it is free, so nobody can be using it again.
//! 4. Nothing here allocates, calls the system, or touches the metadata of blocks that were never used.
//!
//! # Locks
//!
//! A class lock is held for a few instructions, and while a few dozen objects are freed that are freed together.
//! Compaction holds it while it looks at no more than a few dozen headers and asks [`Owners::try_claim`], which therefore must not wait. The block map's lock is below it, and nothing is
//! called under it. [`Backing`] and the other functions of [`Owners`] are called with no lock held.

#![no_std]
#![warn(missing_docs)]

mod blocks;
mod class;
pub mod codec;
mod frees;
mod fullness;
mod handle;
mod object;
mod pool;
mod primitive;
mod validate;

pub use class::{BLOCK_BYTES, BLOCK_PAGES, NR_CLASSES, OBJECT_MAX, class_bytes};
pub use handle::Handle;
pub use pool::{Backing, Owners, Pool, PoolFull};
pub use validate::{Inconsistency, Summary};

ebb_sync::lock_classes! {
    /// Which blocks are free.
    BlockMapLock = "pool block map";
    /// The blocks of one size class.
    SizeClassLock = "pool size class";
}
