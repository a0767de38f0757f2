//! Any sequence of stores, frees and compactions: every object keeps its bytes and the books balance.
//!
//! `cargo +nightly fuzz run pool_operations`
#![no_main]

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::cell::{Cell, RefCell};

use ebb_pool::{BLOCK_BYTES, Backing, Handle, Owners, Pool};
use libfuzzer_sys::fuzz_target;

const BLOCKS: usize = 24;
const OWNERS: usize = 64;

struct Budget(Cell<u32>);

impl Backing for Budget {
    fn acquire(&self, _block: u32, _pages: u32) -> bool {
        let left = self.0.get().checked_sub(1);
        self.0.set(left.unwrap_or(0));
        left.is_some()
    }

    fn release(&self, _block: u32, _pages: u32) {
        self.0.set(self.0.get() + 1);
    }
}

/// Owners whose number has this bit are claimed while compaction runs.
struct Table {
    handles: RefCell<[Option<Handle>; OWNERS]>,
    claimed_bit: Cell<u32>,
}

impl Owners for Table {
    fn try_claim(&self, owner: u32, handle: Handle) -> bool {
        assert_eq!(self.handles.borrow()[owner as usize], Some(handle));
        owner & self.claimed_bit.get() == 0
    }

    fn moved(&self, owner: u32, old: Handle, new: Handle) {
        assert_eq!(self.handles.borrow_mut()[owner as usize].replace(new), Some(old));
    }

    fn unclaim(&self, _owner: u32) {}
}

fuzz_target!(|data: &[u8]| {
    let arena_bytes = BLOCKS * BLOCK_BYTES;
    let metadata_bytes = Pool::metadata_bytes(arena_bytes);
    let layouts = [arena_bytes, metadata_bytes].map(|bytes| Layout::from_size_align(bytes, 4096).unwrap());
    // SAFETY: neither size is zero.
    let [arena, metadata] = layouts.map(|layout| unsafe { alloc_zeroed(layout) });
    // SAFETY: freed below, after the last use of the pool.
    let pool = unsafe { Pool::init(arena, arena_bytes, metadata, metadata_bytes) };
    let budget = Budget(Cell::new(BLOCKS as u32 - 4));
    let table = Table { handles: RefCell::new([None; OWNERS]), claimed_bit: Cell::new(0) };
    let mut expected: [Option<Vec<u8>>; OWNERS] = [const { None }; OWNERS];

    for &[what, owner, low, high] in data.as_chunks::<4>().0 {
        let owner = owner as usize % OWNERS;
        if what % 8 == 7 {
            table.claimed_bit.set(u32::from(low) & 63);
            pool.compact(&budget, &table, high as usize);
            continue;
        }
        if let Some(handle) = table.handles.borrow_mut()[owner].take() {
            // SAFETY: nothing else happens to the object meanwhile.
            assert_eq!(unsafe { pool.load(handle) }, expected[owner].take().unwrap());
            assert!(pool.free(&budget, handle));
        }
        if what % 8 < 5 {
            let content = vec![what ^ low; u16::from_le_bytes([low, high]) as usize % 4200];
            table.handles.borrow_mut()[owner] = pool.store(&budget, owner as u32, &content).ok();
            expected[owner] = table.handles.borrow()[owner].map(|_| content);
        }
    }
    let summary = pool.validate().unwrap();
    assert_eq!(summary.objects as usize, expected.iter().flatten().count());
    for (handle, content) in table.handles.borrow().iter().zip(&expected) {
        // SAFETY: as above.
        assert_eq!(handle.map(|handle| unsafe { pool.load(handle) }), content.as_deref());
    }
    for (at, layout) in [arena, metadata].into_iter().zip(layouts) {
        // SAFETY: allocated above with this layout.
        unsafe { dealloc(at, layout) };
    }
});
