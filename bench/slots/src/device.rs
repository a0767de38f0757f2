//! A device in memory of its own, for the length of the benchmark.

use ebb_slots::{METADATA_ALIGN, Options, SwapDevice, metadata_bytes};
use std::alloc::{Layout, alloc_zeroed};
use std::ptr::NonNull;

/// Makes a device. Its memory is never freed: a run makes a few dozen.
pub fn new(options: &Options) -> SwapDevice {
    let bytes = metadata_bytes(options.nr_slots_max, options.shards);
    let layout = Layout::from_size_align(bytes + METADATA_ALIGN, 16).expect("a size that fits");
    // SAFETY: the size is not zero.
    let memory = NonNull::new(unsafe { alloc_zeroed(layout) }).expect("memory");
    let gap = memory.align_offset(METADATA_ALIGN);
    // SAFETY: zeroed, as large as asked for beyond the gap, never freed, used by nothing else.
    unsafe { SwapDevice::init(memory.add(gap), bytes, options) }.expect("a valid device")
}
