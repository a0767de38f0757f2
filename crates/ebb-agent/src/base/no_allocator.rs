//! The agent has no allocator. A library that it links has code that would need one, which the agent does not call and the
//! linker drops.

use core::alloc::{GlobalAlloc, Layout};

struct NoAllocator;

#[global_allocator]
static NO_ALLOCATOR: NoAllocator = NoAllocator;

unsafe extern "C" {
    /// Nowhere defined: if anything in the agent allocated, the agent would ask for this, and could not be loaded.
    fn ebb_agent_has_no_allocator() -> !;
}

// SAFETY: never called.
unsafe impl GlobalAlloc for NoAllocator {
    // SAFETY: never called.
    unsafe fn alloc(&self, _: Layout) -> *mut u8 {
        // SAFETY: as above.
        unsafe { ebb_agent_has_no_allocator() }
    }

    // SAFETY: never called.
    unsafe fn dealloc(&self, _: *mut u8, _: Layout) {
        // SAFETY: as above.
        unsafe { ebb_agent_has_no_allocator() }
    }
}
