//! Synchronisation for the other crates: atomics and cells that a model replaces with its own, one spin lock for data
//! in zeroed memory, and reports of where that lock is contended.
//!
//! No system calls, no allocation. What needs the system, such as giving up the processor and reading the time, comes
//! through [`Hooks`].
//!
//! # Contention
//!
//! A free lock costs one exchange and nothing else: statistics begin when a caller has to wait. Then the hook gets the
//! lock's class, the place in the source that asked for it, and the length of the wait. `perf lock contention` prints
//! the same for the kernel's locks.
#![no_std]
#![warn(missing_docs)]

#[cfg(test)]
extern crate std;

mod cache_line;
mod hooks;
mod lock;
mod model;

pub use cache_line::CacheLine;
pub use hooks::{Hooks, set_hooks, waiting};
pub use lock::{Class, Guard, Lock};
pub use model::{AtomicU32, AtomicU64, AtomicUsize, Ordering, UnsafeCell, fence, materialise, relax};

/// Declares classes of locks: types that only name them.
#[macro_export]
macro_rules! lock_classes {
    ($($(#[$doc:meta])* $class:ident = $name:literal;)*) => {
        $(
            $(#[$doc])*
            #[derive(Debug)]
            pub enum $class {}

            impl $crate::Class for $class {
                const NAME: &'static str = $name;
            }
        )*
    };
}
