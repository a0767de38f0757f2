//! Lock waits, by class, of everything that runs at the moment.

use ebb_sync::Hooks;
use std::collections::BTreeMap;
use std::panic::Location;
use std::sync::{LazyLock, Mutex};
use std::time::Instant;

#[derive(Clone, Copy, Default, Debug)]
pub struct Waits {
    pub contended: u64,
    pub total_ns: u64,
    pub max_ns: u64,
}

static EPOCH: LazyLock<Instant> = LazyLock::new(Instant::now);
static WAITS: Mutex<BTreeMap<&'static str, Waits>> = Mutex::new(BTreeMap::new());

static HOOKS: Hooks = Hooks { yield_now: std::thread::yield_now, now_ns, contended };

fn now_ns() -> u64 {
    EPOCH.elapsed().as_nanos() as u64
}

fn contended(class: &'static str, _caller: &'static Location<'static>, wait_ns: u64) {
    let mut waits = WAITS.lock().expect("nobody panics with it");
    let entry = waits.entry(class).or_default();
    entry.contended += 1;
    entry.total_ns += wait_ns;
    entry.max_ns = entry.max_ns.max(wait_ns);
}

/// Begins to count.
pub fn start() {
    ebb_sync::set_hooks(&HOOKS);
}

/// What was counted since the last call.
pub fn take() -> BTreeMap<&'static str, Waits> {
    std::mem::take(&mut *WAITS.lock().expect("nobody panics with it"))
}
