//! Locked memory: mlock(2), munlock(2) and their kin.
//!
//! What the program locks is brought in, marked, and locked in the kernel too, all of it before anybody may evict it: the kernel
//! does not move a page between memory that is locked and memory that is not. The mark is kept as long as the kernel has the
//! page locked, which is asked rather than concluded: a call that is refused, or one over a hole, may have been half done.

use crate::ctx::ThreadCtx;
use crate::mm::{page_up, raw};
use crate::page::State;
use crate::space::Space;
use crate::table::PAGE;
use crate::uapi::{self, Errno};
use core::sync::atomic::Ordering::Relaxed;
use linux_raw_sys::{errno, general as g};

/// First byte and bytes of the pages that a range has part of, as the kernel rounds it.
fn pages(addr: u64, len: u64) -> (usize, usize) {
    let (addr, len) = (addr as usize, len as usize);
    (addr & !(PAGE - 1), page_up(len.saturating_add(addr & (PAGE - 1))))
}

/// Whether the kernel has any of the range locked. MADV_COLD changes no content, and is refused for what is locked.
fn is_locked(start: usize, len: usize) -> bool {
    uapi::madvise(start, len, g::MADV_COLD) == Err(Errno::INVAL)
}

impl Space {
    /// mlock(2) and mlock2(2): what is locked stays resident until it is unlocked or unmapped.
    pub fn mlock(&self, ctx: &ThreadCtx, nr: u32, a: [u64; 6]) -> i64 {
        let (start, len) = pages(a[0], a[1]);
        if !self.touches(ctx, start, start.saturating_add(len)) {
            // SAFETY: the program's call on memory that is not managed.
            return raw(unsafe { self.kernel(nr, a) });
        }
        if len / PAGE > self.group.limit() / 2 {
            return -(errno::ENOMEM as i64);
        }
        self.keep_in(
            ctx,
            start,
            len,
            |state: State| state.with_locked(true),
            || {
                self.has_locked.store(true, Relaxed);
                // SAFETY: everything is present and stays so; locking changes no content.
                let result = raw(unsafe { self.kernel(nr, a) });
                if result < 0 {
                    self.unlock(start, start.saturating_add(len));
                }
                result
            },
        )
    }

    /// munlock(2).
    pub fn munlock(&self, ctx: &ThreadCtx, a: [u64; 6]) -> i64 {
        let (start, len) = pages(a[0], a[1]);
        if !self.touches(ctx, start, start.saturating_add(len)) {
            // SAFETY: the program's call on memory that is not managed.
            return raw(unsafe { self.kernel(g::__NR_munlock, a) });
        }
        self.exclusive(|| {
            // SAFETY: unlocking changes no content.
            let result = raw(unsafe { self.kernel(g::__NR_munlock, a) });
            self.unlock(start, start.saturating_add(len));
            result
        })
    }

    /// mlockall(2): managed memory stays in the budget, which the caller asked for by running under it; the call succeeds
    /// without effect.
    pub fn mlockall(&self) -> i64 {
        0
    }

    /// munlockall(2): undoes each mlock.
    pub fn munlockall(&self, a: [u64; 6]) -> i64 {
        self.exclusive(|| {
            // SAFETY: as for munlock.
            let result = raw(unsafe { self.kernel(g::__NR_munlockall, a) });
            self.unlock_all();
            result
        })
    }

    /// Lets pages be evicted again that are locked no more: after munlockall, and in a child after fork, which inherits no
    /// locks. Under the exclusive gate.
    pub(crate) fn unlock_all(&self) {
        self.regions.all().iter().for_each(|r| self.unlock(r.start, r.end));
        self.has_locked.store(false, Relaxed);
    }

    /// The same for a range, as far as it is so. Under the exclusive gate.
    fn unlock(&self, start: usize, end: usize) {
        if !self.has_locked.load(Relaxed) {
            return;
        }
        let has_any = is_locked(start, end - start);
        self.table.for_each_content(start, end, |at, word| {
            let state = word.load();
            if state.is_locked() && !(has_any && is_locked(at, PAGE)) {
                word.set_exclusive(state.with_locked(false));
            }
        });
    }
}
