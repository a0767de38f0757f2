//! Slot devices in memory of their own, and what their tables cost.

use crate::base::uapi::{self, Errno};
use crate::budget::Budget;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, Ordering};
use ebb_slots::{CLUSTER_SLOTS, Options, SwapDevice, metadata_bytes};

/// Makes a slot device in memory of its own; returns it with the address of that memory and its length in bytes.
pub fn new_slots(options: &Options) -> Result<(SwapDevice, (usize, usize)), Errno> {
    let len = metadata_bytes(options.nr_slots_max, options.shards);
    let memory = NonNull::new(uapi::reserve(len)?).ok_or(Errno::NOMEM)?;
    let at = memory.addr().get();
    // SAFETY: fresh zeroed memory of the size asked for, page-aligned. Whoever unmaps it uses the device no more.
    let slots = unsafe { SwapDevice::init(memory, len, options) }.map_err(|_| Errno::INVAL)?;
    Ok((slots, (at, len)))
}

/// Adjusts the charge from the `charged` tables to the `now` tables that there are. A table costs `bytes_per_slot` for
/// each slot of a cluster.
pub fn charge_tables(budget: &Budget, charged: &AtomicU32, now: u32, bytes_per_slot: usize) {
    if charged.load(Ordering::Relaxed) == now {
        return;
    }
    let before = charged.swap(now, Ordering::Relaxed);
    // Whole pages of all tables together, so that what is charged is uncharged, in whatever steps.
    let bytes = |tables: u32| (tables as usize * CLUSTER_SLOTS as usize * bytes_per_slot).next_multiple_of(4096);
    if now > before {
        budget.charge_meta(bytes(now) - bytes(before));
    } else if now < before {
        budget.uncharge_meta(bytes(before) - bytes(now));
    }
}
