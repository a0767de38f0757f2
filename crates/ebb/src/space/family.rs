//! What a process knows of the memory that it shares with its parent and its children. `pages::sharing` counts it.

use crate::protocols::gate::Exclusive;
use crate::space::books::Books;
use crate::space::newborn::Newborns;
use crate::tree::MemberId;
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering::Relaxed};

/// What a process knows of the memory that it shares.
pub struct Family {
    /// How this process knows which pages of its books are its own.
    pub(crate) books: Books,
    /// The number of the last fork, while memory may be shared with a parent or a child; else 0.
    last_fork: AtomicU32,
    /// Forks so far that shared memory.
    nr_forks: AtomicU32,
    shares_much: AtomicBool,
    pool_is_shared: AtomicBool,
    /// Pages of pools that the tree counts too often, because processes share them.
    shared_pool_pages: AtomicUsize,
    /// The eviction clock's reading when this process was forked.
    forked_at: AtomicU32,
    /// The place in the tree of the child, while a fork is under way.
    reserved_child: UnsafeCell<Option<MemberId>>,
    /// Children that may have died before they took their places.
    pub(crate) newborns: Newborns,
}

// SAFETY: `reserved_child` is used only with the gate closed, as its functions demand; everything else is shared safely
// by its own type.
unsafe impl Sync for Family {}

impl Family {
    /// A process that shares nothing.
    pub const fn new() -> Self {
        Self {
            books: Books::new(),
            last_fork: AtomicU32::new(0),
            nr_forks: AtomicU32::new(0),
            shares_much: AtomicBool::new(false),
            pool_is_shared: AtomicBool::new(false),
            shared_pool_pages: AtomicUsize::new(0),
            forked_at: AtomicU32::new(0),
            reserved_child: UnsafeCell::new(None),
            newborns: Newborns::new(),
        }
    }

    /// The number of the last fork, while memory may be shared with a parent or a child; else 0. May lag.
    pub fn last_fork(&self) -> u32 {
        self.last_fork.load(Relaxed)
    }

    /// True while memory may be shared with a parent or a child. May lag.
    pub fn is_sharing(&self) -> bool {
        self.last_fork() != 0
    }

    /// True while so much of this process's memory is shared that reclaim works round it. May lag.
    pub fn shares_much(&self) -> bool {
        self.shares_much.load(Relaxed)
    }

    /// Sets [`Self::shares_much`].
    pub fn set_shares_much(&self, shares_much: bool) {
        self.shares_much.store(shares_much, Relaxed);
    }

    /// True while most of the pool is shared: freeing its content then frees no memory. May lag.
    pub fn pool_is_shared(&self) -> bool {
        self.pool_is_shared.load(Relaxed)
    }

    /// Pages of pools that the tree counts too often, because processes share them. May lag.
    pub fn shared_pool_pages(&self) -> usize {
        self.shared_pool_pages.load(Relaxed)
    }

    /// Sets [`Self::pool_is_shared`] and [`Self::shared_pool_pages`].
    pub fn set_pool(&self, is_shared: bool, shared_pages: usize) {
        self.pool_is_shared.store(is_shared, Relaxed);
        self.shared_pool_pages.store(shared_pages, Relaxed);
    }

    /// Notes a fork that shares memory.
    pub fn note_fork(&self, _exclusive: &Exclusive<'_>) {
        let number = self.nr_forks.fetch_add(1, Relaxed).wrapping_add(1).max(1);
        self.last_fork.store(number, Relaxed);
        self.set_shares_much(true);
    }

    /// Notes that nothing is shared any more since `fork`, unless there was another fork meanwhile.
    pub fn end_sharing(&self, fork: u32) {
        let _ = self.last_fork.compare_exchange(fork, 0, Relaxed, Relaxed);
    }

    /// The eviction clock's reading when this process was forked.
    pub fn forked_at(&self) -> u32 {
        self.forked_at.load(Relaxed)
    }

    /// Sets [`Self::forked_at`] in fork's child. Pages evicted before then say what the parent needed, not what the
    /// child needs.
    pub fn set_forked_at(&self, clock: u32) {
        self.forked_at.store(clock, Relaxed);
    }

    /// The place in the tree of the child, while a fork is under way.
    pub fn reserved_child(&self, _exclusive: &Exclusive<'_>) -> Option<MemberId> {
        // SAFETY: the gate is closed.
        unsafe { *self.reserved_child.get() }
    }

    /// Sets [`Self::reserved_child`] when a fork begins.
    pub fn set_reserved_child(&self, _exclusive: &Exclusive<'_>, child: Option<MemberId>) {
        // SAFETY: the gate is closed.
        unsafe { *self.reserved_child.get() = child };
    }
}
