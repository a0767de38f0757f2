//! What a process knows of the memory that it shares with its parent and its children. How that is counted is in
//! `pages::sharing`.

use crate::protocols::gate::Exclusive;
use crate::space::books::Books;
use crate::tree::MemberId;
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering::Relaxed};

/// Which of what a process shares matters where.
pub struct Family {
    /// How this process knows what it keeps books in.
    pub(crate) books: Books,
    /// Which fork was the last, by number, while memory may be shared with a parent or a child; else 0.
    last_fork: AtomicU32,
    /// Forks so far that shared memory.
    nr_forks: AtomicU32,
    shares_much: AtomicBool,
    pool_is_shared: AtomicBool,
    /// Pages of the pool that are shared, once for each process that shares them.
    shared_pool_pages: AtomicUsize,
    /// The clock of evictions when this process was forked.
    forked_at: AtomicU32,
    /// The place in the tree of the child of a fork that is under way.
    reserved_child: UnsafeCell<Option<MemberId>>,
}

// SAFETY: `reserved_child` is used with the gate closed only, as the tokens say; everything else is shared safely by its own type.
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
        }
    }

    /// Which fork was the last, by number, while memory may be shared with a parent or a child; else 0. May lag.
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

    /// So much is shared, or no more.
    pub fn set_shares_much(&self, shares_much: bool) {
        self.shares_much.store(shares_much, Relaxed);
    }

    /// True while most of the pool is shared: to free what is in it frees no memory. May lag.
    pub fn pool_is_shared(&self) -> bool {
        self.pool_is_shared.load(Relaxed)
    }

    /// Pages of the pool that are shared, once for each process that shares them. May lag.
    pub fn shared_pool_pages(&self) -> usize {
        self.shared_pool_pages.load(Relaxed)
    }

    /// What was found of the pool.
    pub fn set_pool(&self, is_shared: bool, shared_pages: usize) {
        self.pool_is_shared.store(is_shared, Relaxed);
        self.shared_pool_pages.store(shared_pages, Relaxed);
    }

    /// A fork shares memory.
    pub fn note_fork(&self, _exclusive: &Exclusive<'_>) {
        let number = self.nr_forks.fetch_add(1, Relaxed).wrapping_add(1).max(1);
        self.last_fork.store(number, Relaxed);
        self.set_shares_much(true);
    }

    /// Nothing is shared any more since this fork, unless there was another meanwhile.
    pub fn end_sharing(&self, fork: u32) {
        let _ = self.last_fork.compare_exchange(fork, 0, Relaxed, Relaxed);
    }

    /// The clock of evictions when this process was forked.
    pub fn forked_at(&self) -> u32 {
        self.forked_at.load(Relaxed)
    }

    /// In fork's child: what was evicted before now its parent needed.
    pub fn set_forked_at(&self, clock: u32) {
        self.forked_at.store(clock, Relaxed);
    }

    /// The place in the tree of the child of the fork that is under way.
    pub fn reserved_child(&self, _exclusive: &Exclusive<'_>) -> Option<MemberId> {
        // SAFETY: the gate is closed.
        unsafe { *self.reserved_child.get() }
    }

    /// A fork begins, whose child has this place.
    pub fn set_reserved_child(&self, _exclusive: &Exclusive<'_>, child: Option<MemberId>) {
        // SAFETY: the gate is closed.
        unsafe { *self.reserved_child.get() = child };
    }
}
