//! Lock waits, by class, of everything that runs at the moment.
//!
//! The hook runs with the lock held that was waited for, so it takes none itself.

use ebb_sync::Hooks;
use std::collections::BTreeMap;
use std::panic::Location;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{LazyLock, OnceLock};
use std::time::Instant;

#[derive(Clone, Copy, Default, Debug)]
pub struct Waits {
    pub contended: u64,
    pub total_ns: u64,
    pub max_ns: u64,
}

/// One class.
struct Entry {
    class: OnceLock<&'static str>,
    contended: AtomicU64,
    total_ns: AtomicU64,
    max_ns: AtomicU64,
}

impl Entry {
    const fn new() -> Self {
        Self {
            class: OnceLock::new(),
            contended: AtomicU64::new(0),
            total_ns: AtomicU64::new(0),
            max_ns: AtomicU64::new(0),
        }
    }
}

static EPOCH: LazyLock<Instant> = LazyLock::new(Instant::now);
/// As many as there are classes here, and some.
static ENTRIES: [Entry; 8] = [const { Entry::new() }; 8];
static HOOKS: Hooks = Hooks { yield_now: std::thread::yield_now, now_ns, contended };

fn now_ns() -> u64 {
    EPOCH.elapsed().as_nanos() as u64
}

fn contended(class: &'static str, _caller: &'static Location<'static>, wait_ns: u64) {
    let entry = ENTRIES.iter().find(|entry| *entry.class.get_or_init(|| class) == class).expect("room for each class");
    entry.contended.fetch_add(1, Relaxed);
    entry.total_ns.fetch_add(wait_ns, Relaxed);
    entry.max_ns.fetch_max(wait_ns, Relaxed);
}

/// Begins to count.
pub fn start() {
    LazyLock::force(&EPOCH);
    ebb_sync::set_hooks(&HOOKS);
}

/// What was counted since the last call. With every other thread at rest.
pub fn take() -> BTreeMap<&'static str, Waits> {
    let counted = ENTRIES.iter().filter_map(|entry| {
        let waits = Waits {
            contended: entry.contended.swap(0, Relaxed),
            total_ns: entry.total_ns.swap(0, Relaxed),
            max_ns: entry.max_ns.swap(0, Relaxed),
        };
        entry.class.get().map(|class| (*class, waits))
    });
    counted.filter(|(_, waits)| waits.contended > 0).collect()
}
