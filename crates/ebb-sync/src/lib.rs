//! What the other crates synchronise with: atomics and cells that a model replaces by its own, one spin lock for data
//! in zeroed memory, and the news of where that lock is contended.
//!
//! No system call, no allocation. What needs the system, such as giving the processor up and telling the time, comes
//! through [`Hooks`].
//!
//! # Contention
//!
//! A lock that is free costs one exchange and nothing else: statistics begin when a caller has to wait. Then the hook
//! is told the lock's class, the place in the source that asked for it, and how long that took: what `perf lock
//! contention` prints of the kernel's locks.
#![no_std]
#![warn(missing_docs)]

#[cfg(test)]
extern crate std;

mod hooks;
mod lock;
mod model;

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
