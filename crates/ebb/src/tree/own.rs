//! This process's part in its tree.

use super::holding::Holdings;
use super::page::{Member, MemberId, PAGES_MAX, Page, Sum};
use crate::base::uapi;
use crate::protocols::primitive::Ordering;
use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicI64, AtomicU32, AtomicU64};
use ebb_sync::CacheLine;

/// Error: all places of the tree are taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TreeFull;

/// This process's part in its tree.
pub struct Tree {
    pub(super) page: &'static Page,
    /// The file behind the page, whose bytes members lock; -1 where no other process has the page.
    pub(super) fd: AtomicI32,
    index: AtomicI32,
    generation: AtomicU64,
    /// The process whose member this is. A process that only shares its memory (vfork) has no place through it.
    owner: AtomicU32,
    /// True while a thread of this process takes, gives back or reaps places. Record locks do not keep threads of one
    /// process apart. It is not one of the engine's locks, because fork's child must be able to release it when
    /// another thread of the parent held it: see [`Tree::become_child`].
    pub(super) places_busy: AtomicBool,
    /// How many threads of this process have called exec. Nobody takes a lock until the last of these calls has
    /// failed.
    pub(super) leaving: AtomicU32,
    /// True when threads have, or had, descriptor tables of their own. A lock goes away with its table.
    own_tables: AtomicBool,
    /// Pages of the budget that were left when this process last looked.
    free: CacheLine<AtomicI64>,
    /// What this process holds in common with others.
    pub(super) holdings: Holdings,
}

/// Bounds a number of pages from this process's own member: another process of the tree may have written there. Sums
/// of bounded numbers do not overflow.
fn sane(pages: i64) -> i64 {
    pages.clamp(-(PAGES_MAX as i64), PAGES_MAX as i64)
}

/// Milliseconds of CLOCK_MONOTONIC.
pub fn now_ms() -> u64 {
    uapi::now_ns() / 1_000_000
}

impl Tree {
    /// Makes this process a member of the tree whose page is `page`, mapped from the file `fd`. Without a file, it
    /// makes the process the only member.
    ///
    /// Fails when all places are taken.
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
            free: CacheLine(AtomicI64::new(i64::MAX)),
            holdings: Holdings::new(),
        };
        this.claim_own()?;
        Ok(this)
    }

    /// What all processes of the tree share.
    pub fn page(&self) -> &'static Page {
        self.page
    }

    /// This process's member.
    #[inline]
    pub fn member(&self) -> &'static Member {
        self.page.member(self.index.load(Relaxed) as u32)
    }

    /// The name of this process's member.
    pub fn id(&self) -> MemberId {
        MemberId { index: self.index.load(Relaxed) as u32, generation: self.generation.load(Relaxed) as u32 }
    }

    /// True in the process that is the member. False in one that only shares its memory: there another file may be
    /// behind the number `fd`, and locks are its own.
    pub(crate) fn is_owner(&self) -> bool {
        self.owner.load(Relaxed) == uapi::getpid() as u32
    }

    /// True in the first process of the tree: the child of the process that started the tree.
    pub fn is_first(&self) -> bool {
        !self.is_alone() && super::claim::supervisor(self.fd()).is_some_and(|pid| pid > 0 && pid == uapi::getppid())
    }

    /// True when another process took this one for dead, see [`Tree::hold`]. The member may then be another
    /// process's, so nothing may be written to it until this process has a place again.
    #[inline]
    pub fn is_lost(&self) -> bool {
        self.member().generation() != self.id().generation
    }

    /// Notes that a thread is about to get a descriptor table of its own.
    pub fn note_own_tables(&self) {
        self.own_tables.store(true, Relaxed);
    }

    /// True when threads may have descriptor tables of their own.
    pub fn has_own_tables(&self) -> bool {
        self.own_tables.load(Relaxed)
    }

    /// In fork's child, which has one thread and one descriptor table: forgets that threads had their own.
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

    /// Pages of the budget that were left when this process last looked; negative when too many are held.
    pub fn free_seen(&self) -> i64 {
        self.free.load(Relaxed)
    }

    /// Adds up all members, and remembers what is left of the budget.
    pub fn look(&self) -> Sum {
        let sum = self.page.sum();
        self.free.store(sum.free(), Relaxed);
        sum
    }

    /// Pages that this process may hold without asking; 0 while others take it for dead.
    #[inline]
    pub fn granted(&self) -> i64 {
        let member = self.member();
        if self.is_lost() { 0 } else { sane(member.granted.load(Ordering::SeqCst)) }
    }

    /// Takes `n` more pages from the budget; false when the budget has no room for them. While others take this
    /// process for dead, it only looks whether there is room.
    pub fn try_grow(&self, n: i64) -> bool {
        if self.is_lost() {
            return self.page.sum().free() >= n;
        }
        let free = self.page.try_grow(self.member(), n);
        self.free.store(free.unwrap_or_else(|| self.page.sum().free()), Relaxed);
        free.is_some()
    }

    /// Takes `n` more pages, whatever the budget. While others take this process for dead, nothing counts for it.
    pub fn force_grow(&self, n: i64) {
        if self.is_lost() {
            return;
        }
        self.member().granted.fetch_add(n, Ordering::SeqCst);
        let _ = self.free.fetch_sub(n, Relaxed);
    }

    /// Gives `n` granted pages back.
    pub fn shrink(&self, n: i64) {
        if self.is_lost() {
            return;
        }
        let member = self.member();
        let granted = sane(member.granted.fetch_sub(n, Ordering::SeqCst)) - n;
        // Others must never read a charge that is larger than the grant.
        member.charged.fetch_min(granted.max(0) as u64, Relaxed);
        let _ = self.free.fetch_add(n, Relaxed);
    }
}
