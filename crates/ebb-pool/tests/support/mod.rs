//! A pool with memory, a budget and owners, for tests.
#![allow(dead_code)]

#[cfg(not(loom))]
pub use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

#[cfg(loom)]
pub use loom::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};

use ebb_pool::{BLOCK_BYTES, Backing, Handle, Owners, Pool, PoolFull};

/// Zeroed memory, as the engine reserves it.
pub struct Memory {
    at: *mut u8,
    layout: Layout,
}

impl Memory {
    pub fn zeroed(bytes: usize) -> Self {
        let layout = Layout::from_size_align(bytes, 4096).unwrap();
        // SAFETY: the size is not zero.
        let at = unsafe { alloc_zeroed(layout) };
        if at.is_null() {
            handle_alloc_error(layout);
        }
        Self { at, layout }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout.
        unsafe { dealloc(self.at, self.layout) };
    }
}

/// Counts blocks against a budget, notes which are held, and spoils the memory of those that come and go.
pub struct Ledger {
    arena: *mut u8,
    /// 1 for each block that is held.
    held: Vec<AtomicU64>,
    /// Loom's witness that what happens to a block while held ends before it is held again.
    #[cfg(loom)]
    witness: Vec<loom::cell::UnsafeCell<()>>,
    left: AtomicUsize,
    spoil: bool,
}

// SAFETY: the arena is only written by whoever acquires or releases the block written to.
unsafe impl Send for Ledger {}
// SAFETY: likewise.
unsafe impl Sync for Ledger {}

impl Ledger {
    pub fn held_blocks(&self) -> usize {
        self.held.iter().filter(|held| held.load(Ordering::SeqCst) == 1).count()
    }

    pub fn set_left(&self, blocks: usize) {
        self.left.store(blocks, Ordering::SeqCst);
    }

    fn spoil(&self, block: u32, with: u8) {
        if self.spoil {
            // SAFETY: the block is within the arena, and held by nobody but the caller.
            unsafe { self.arena.add(block as usize * BLOCK_BYTES).write_bytes(with, BLOCK_BYTES) };
        }
    }
}

impl Backing for Ledger {
    fn acquire(&self, block: u32, pages: u32) -> bool {
        assert_eq!(pages as usize, ebb_pool::BLOCK_PAGES);
        let take = |left: usize| left.checked_sub(1);
        if self.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, take).is_err() {
            return false;
        }
        let before = self.held[block as usize].swap(1, Ordering::SeqCst);
        assert_eq!(before, 0, "block {block} was held already");
        #[cfg(loom)]
        self.witness[block as usize].with_mut(|_| ());
        // Looks like live objects and free ones of wrong places.
        self.spoil(block, 0x55);
        true
    }

    fn release(&self, block: u32, pages: u32) {
        assert_eq!(pages as usize, ebb_pool::BLOCK_PAGES);
        #[cfg(loom)]
        self.witness[block as usize].with_mut(|_| ());
        self.spoil(block, 0xaa);
        let before = self.held[block as usize].swap(0, Ordering::SeqCst);
        assert_eq!(before, 1, "block {block} was not held");
        self.left.fetch_add(1, Ordering::SeqCst);
    }
}

const CLAIMED: u64 = 1 << 63;

/// Owners are indices; each has one word: its handle, and whether it is claimed.
pub struct Table {
    words: Vec<AtomicU64>,
}

impl Table {
    pub fn new(owners: usize) -> Self {
        Self { words: (0..owners).map(|_| AtomicU64::new(0)).collect() }
    }

    /// Claims an owner whatever it refers to; its handle, or none if somebody else has it.
    pub fn claim(&self, owner: u32) -> Option<Option<Handle>> {
        let word = &self.words[owner as usize];
        let now = word.load(Ordering::Relaxed);
        let free = now & CLAIMED == 0;
        let won = free && word.compare_exchange(now, now | CLAIMED, Ordering::Acquire, Ordering::Relaxed).is_ok();
        won.then(|| Handle::from_bits(now))
    }

    /// Ends a claim and says what the owner refers to now.
    pub fn publish(&self, owner: u32, handle: Option<Handle>) {
        let word = &self.words[owner as usize];
        assert_ne!(word.load(Ordering::Relaxed) & CLAIMED, 0);
        word.store(handle.map_or(0, Handle::to_bits), Ordering::Release);
    }

    pub fn handle(&self, owner: u32) -> Option<Handle> {
        Handle::from_bits(self.words[owner as usize].load(Ordering::Relaxed) & !CLAIMED)
    }
}

impl Owners for Table {
    fn try_claim(&self, owner: u32, handle: Handle) -> bool {
        let (now, claimed) = (handle.to_bits(), handle.to_bits() | CLAIMED);
        let word = &self.words[owner as usize];
        word.compare_exchange(now, claimed, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    fn moved(&self, owner: u32, old: Handle, new: Handle) {
        let before = self.words[owner as usize].swap(new.to_bits() | CLAIMED, Ordering::Relaxed);
        assert_eq!(before, old.to_bits() | CLAIMED, "moved without a claim");
    }

    fn unclaim(&self, owner: u32) {
        let handle = self.handle(owner);
        self.publish(owner, handle);
    }
}

/// A pool, what it needs, and owners.
pub struct Rig {
    pub pool: Pool,
    pub ledger: Ledger,
    pub table: Table,
    _arena: Memory,
    _metadata: Memory,
}

// SAFETY: the memory is only used through the pool.
unsafe impl Send for Rig {}
// SAFETY: likewise.
unsafe impl Sync for Rig {}

impl Rig {
    pub fn new(blocks: usize, owners: usize) -> Self {
        let arena_bytes = blocks * BLOCK_BYTES;
        let metadata_bytes = Pool::metadata_bytes(arena_bytes);
        let (arena, metadata) = (Memory::zeroed(arena_bytes), Memory::zeroed(metadata_bytes));
        // SAFETY: both live as long as the pool, and are used by nobody else.
        let pool = unsafe { Pool::init(arena.at, arena_bytes, metadata.at, metadata_bytes) };
        let ledger = Ledger {
            arena: arena.at,
            held: (0..blocks).map(|_| AtomicU64::new(0)).collect(),
            #[cfg(loom)]
            witness: (0..blocks).map(|_| loom::cell::UnsafeCell::new(())).collect(),
            left: AtomicUsize::new(usize::MAX / 2),
            spoil: cfg!(not(loom)),
        };
        Self { pool, ledger, table: Table::new(owners), _arena: arena, _metadata: metadata }
    }

    /// Stores for a claimed owner that has nothing, and ends the claim.
    pub fn store(&self, owner: u32, data: &[u8]) -> Result<Handle, PoolFull> {
        let stored = self.pool.store(&self.ledger, owner, data);
        self.table.publish(owner, stored.ok());
        stored
    }

    /// Claims an owner that nobody else can have claimed, and stores for it.
    pub fn put(&self, owner: u32, data: &[u8]) -> Result<Handle, PoolFull> {
        assert_eq!(self.table.claim(owner), Some(None));
        self.store(owner, data)
    }

    /// Frees what a claimed owner refers to, and ends the claim.
    pub fn free(&self, owner: u32, handle: Handle) {
        assert!(self.pool.free(&self.ledger, handle));
        self.table.publish(owner, None);
    }

    /// Stores something else for a claimed owner in place of what it refers to, and ends the claim.
    pub fn replace(&self, owner: u32, old: Handle, data: &[u8]) {
        if let Ok(new) = self.pool.store(&self.ledger, owner, data) {
            self.table.moved(owner, old, new);
            assert!(self.pool.free(&self.ledger, old));
        }
        self.table.unclaim(owner);
    }

    /// What a claimed owner refers to.
    pub fn load(&self, handle: Handle) -> Vec<u8> {
        // SAFETY: the owner is claimed.
        unsafe { self.pool.load(handle) }.to_vec()
    }

    pub fn compact(&self, max_objects: usize) -> usize {
        self.pool.compact(&self.ledger, &self.table, max_objects)
    }
}
