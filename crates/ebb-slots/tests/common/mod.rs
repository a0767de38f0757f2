//! Metadata memory for tests, and a device in it.

use ebb_slots::{METADATA_ALIGN, Placement, SwapDevice, metadata_bytes};
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ops::Deref;
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
    pub fn new(nr_slots: u32, shards: usize, placement: Placement) -> Self {
        let layout = Layout::from_size_align(metadata_bytes(nr_slots, shards), METADATA_ALIGN).unwrap();
        // SAFETY: the size is not zero.
        let memory = NonNull::new(unsafe { alloc_zeroed(layout) }).unwrap();
        // SAFETY: zeroed, as large as asked for, freed only after the device's last use.
        let device = unsafe { SwapDevice::init(memory, layout.size(), nr_slots, shards, placement) }.unwrap();
        Self { device, memory, layout }
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
