//! This process's part in its tree.

use super::holding::Holdings;
use super::page::{Member, MemberId, PAGES_MAX, Page, Sum};
use crate::base::uapi;
use crate::protocols::primitive::Ordering;
use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicI64, AtomicU32, AtomicU64};

/// All places of the tree are taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TreeFull;

/// This process's part in its tree.
pub struct Tree {
    pub(super) page: &'static Page,
    /// The file of the page, whose bytes members lock; -1 where no other process has the page.
    pub(super) fd: AtomicI32,
    index: AtomicI32,
    generation: AtomicU64,
    /// The process whose member this is. Another one that shares the memory (vfork) has no place by it.
    owner: AtomicU32,
    /// A thread of this process takes, gives or reaps places: record locks do not keep threads apart. Not a lock of the
    /// engine's kind, because fork's child lets go of what another thread of its parent held, see [`Tree::become_child`].
    pub(super) places_busy: AtomicBool,
    /// Threads of this process that have called exec: nobody locks anything until the last of these calls has failed.
    pub(super) leaving: AtomicU32,
    /// Threads have, or had, tables of descriptors of their own, with which a lock goes.
    own_tables: AtomicBool,
    /// Pages that were left of the budget when somebody last looked.
    free: AtomicI64,
    /// What this process holds in common with others.
    pub(super) holdings: Holdings,
}

/// Pages that this process's own word says, which another of the tree may have written to: sums of it do not overflow.
fn sane(pages: i64) -> i64 {
    pages.clamp(-(PAGES_MAX as i64), PAGES_MAX as i64)
}

/// Milliseconds of CLOCK_MONOTONIC.
pub fn now_ms() -> u64 {
    uapi::now_ns() / 1_000_000
}

impl Tree {
    /// Makes this process a member of the tree whose page is `page`, mapped from the file `fd`; or of one that nobody else
    /// is in, when there is no file.
    pub fn join(page: &'static Page, fd: Option<i32>) -> Result<Self, TreeFull> {
        let this = Self {
            page,
            fd: AtomicI32::new(fd.unwrap_or(-1)),
            index: AtomicI32::new(0),
            generation: AtomicU64::new(0),
            owner: AtomicU32::new(0),
            places_busy: AtomicBool::new(false),
            leaving: AtomicU32::new(0),
            own_tables: AtomicBool::new(false),
            free: AtomicI64::new(i64::MAX),
            holdings: Holdings::new(),
        };
        this.claim_own()?;
        Ok(this)
    }

    /// What all share.
    pub fn page(&self) -> &'static Page {
        self.page
    }

    /// This process's member.
    #[inline]
    pub fn member(&self) -> &'static Member {
        self.page.member(self.index.load(Relaxed) as u32)
    }

    /// Its name.
    pub fn id(&self) -> MemberId {
        MemberId { index: self.index.load(Relaxed) as u32, generation: self.generation.load(Relaxed) as u32 }
    }

    /// False in a process that only shares the memory of the one that is the member: it may have another file behind the
    /// number, and has locks of its own.
    pub(crate) fn is_owner(&self) -> bool {
        self.owner.load(Relaxed) == uapi::getpid() as u32
    }

    /// True in the first process of the tree, the child of the one that started it.
    pub fn is_first(&self) -> bool {
        !self.is_alone() && super::claim::supervisor(self.fd()).is_some_and(|pid| pid > 0 && pid == uapi::getppid())
    }

    /// True when somebody took this process for dead, see [`Tree::hold`]. Until it has a place again the member is somebody
    /// else's: nothing may be written to it.
    #[inline]
    pub fn is_lost(&self) -> bool {
        self.member().generation() != self.id().generation
    }

    /// A thread is about to have a table of descriptors of its own.
    pub fn note_own_tables(&self) {
        self.own_tables.store(true, Relaxed);
    }

    /// Whether threads may have such tables.
    pub fn has_own_tables(&self) -> bool {
        self.own_tables.load(Relaxed)
    }

    /// In fork's child, which has one thread, and one table.
    pub(super) fn forget_own_tables(&self) {
        self.own_tables.store(false, Relaxed);
    }

    pub(super) fn set_id(&self, id: MemberId) {
        self.owner.store(uapi::getpid() as u32, Relaxed);
        self.index.store(id.index as i32, Relaxed);
        self.generation.store(u64::from(id.generation), Relaxed);
    }

    /// Budget of the tree in pages.
    pub fn limit(&self) -> usize {
        self.page.limit() as usize
    }

    /// Pages of the budget that were left when this process last looked.
    pub fn free_seen(&self) -> i64 {
        self.free.load(Relaxed)
    }

    /// Looks again.
    pub fn look(&self) -> Sum {
        let sum = self.page.sum();
        self.free.store(sum.free(), Relaxed);
        sum
    }

    /// Pages that this process may hold without asking; none while others take it for dead.
    #[inline]
    pub fn granted(&self) -> i64 {
        let member = self.member();
        if self.is_lost() { 0 } else { sane(member.granted.load(Ordering::SeqCst)) }
    }

    /// Takes `n` pages more from the budget; false when it has not so many.
    pub fn try_grow(&self, n: i64) -> bool {
        if self.is_lost() {
            return self.page.sum().free() >= n;
        }
        let free = self.page.try_grow(self.member(), n);
        self.free.store(free.unwrap_or_else(|| self.page.sum().free()), Relaxed);
        free.is_some()
    }

    /// Takes `n` pages more, whatever the budget. While others take this process for dead, it counts for nobody.
    pub fn force_grow(&self, n: i64) {
        if self.is_lost() {
            return;
        }
        self.member().granted.fetch_add(n, Ordering::SeqCst);
        let _ = self.free.fetch_sub(n, Relaxed);
    }

    /// Gives `n` pages back.
    pub fn shrink(&self, n: i64) {
        if self.is_lost() {
            return;
        }
        let member = self.member();
        let granted = sane(member.granted.fetch_sub(n, Ordering::SeqCst)) - n;
        // What others read of it never says more than what it may hold.
        member.charged.fetch_min(granted.max(0) as u64, Relaxed);
        let _ = self.free.fetch_add(n, Relaxed);
    }
}
