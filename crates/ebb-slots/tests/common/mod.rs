//! Metadata memory for tests, and a device in it.

use ebb_slots::{ClusterId, METADATA_ALIGN, Options, Placement, SwapDevice, metadata_bytes};
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ops::{Deref, Range};
use std::ptr::NonNull;

/// A device whose metadata goes with it.
pub struct TestDevice {
    device: SwapDevice,
    memory: NonNull<u8>,
    layout: Layout,
}

// SAFETY: the memory is used through the device only.
unsafe impl Send for TestDevice {}
// SAFETY: as above.
unsafe impl Sync for TestDevice {}

impl TestDevice {
    #[allow(dead_code, reason = "not every test has devices of a fixed size")]
    pub fn new(nr_slots: u32, shards: usize, placement: Placement) -> Self {
        Self::with(&Options::fixed(nr_slots, shards, placement))
    }

    #[allow(dead_code, reason = "nor of another")]
    pub fn with(options: &Options) -> Self {
        let bytes = metadata_bytes(options.nr_slots_max, options.shards);
        // Aligned by hand: what is asked for with a page's alignment is zeroed by writing to it.
        let layout = Layout::from_size_align(bytes + METADATA_ALIGN, 16).unwrap();
        // SAFETY: the size is not zero.
        let memory = NonNull::new(unsafe { alloc_zeroed(layout) }).unwrap();
        let gap = memory.align_offset(METADATA_ALIGN);
        // SAFETY: zeroed, as large as asked for beyond the gap, freed only after the device's last use.
        let device = unsafe { SwapDevice::init(memory.add(gap), bytes, options) }.unwrap();
        Self { device, memory, layout }
    }
}

/// Has the words of some clusters read as zeros from now on, as memory does that was given back.
#[allow(dead_code, reason = "not every test gives tables back")]
pub fn zero_words(device: &SwapDevice, clusters: Range<ClusterId>) {
    let (words, bytes) = device.words_of(clusters);
    // SAFETY: one word, as the device says; all are valid for as long as it is used.
    for index in 0..bytes / size_of_val(unsafe { &*words }) {
        // SAFETY: as above.
        unsafe { &*words.add(index) }.store(0, ebb_sync::Ordering::Relaxed);
    }
}

impl Deref for TestDevice {
    type Target = SwapDevice;

    fn deref(&self) -> &SwapDevice {
        &self.device
    }
}

impl Drop for TestDevice {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout; the device is not used any more.
        unsafe { dealloc(self.memory.as_ptr(), self.layout) }
    }
}
