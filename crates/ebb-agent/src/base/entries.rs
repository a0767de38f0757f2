//! Where the kernel enters the agent. The room above that has the handlers sets these addresses once, before it
//! installs the first handler.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

/// Addresses of the agent's signal handlers.
#[derive(Clone, Copy)]
pub struct Entries {
    /// For SIGBUS.
    pub bus: u64,
    /// For SIGSEGV.
    pub segv: u64,
    /// For SIGSYS.
    pub sys: u64,
    /// For every other signal.
    pub other: u64,
}

static ENTRIES: [AtomicU64; 4] = [const { AtomicU64::new(0) }; 4];

/// Records the addresses.
pub fn set(entries: &Entries) {
    let all = [entries.bus, entries.segv, entries.sys, entries.other];
    ENTRIES.iter().zip(all).for_each(|(to, entry)| to.store(entry, Relaxed));
}

/// The recorded addresses.
pub fn get() -> Entries {
    let [bus, segv, sys, other] = [0, 1, 2, 3].map(|i| ENTRIES[i].load(Relaxed));
    Entries { bus, segv, sys, other }
}
