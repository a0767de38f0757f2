//! Locked memory: mlock(2), munlock(2) and their kin.
//!
//! What the program locks is brought in, marked, and locked in the kernel too, all of it before anybody may evict it: the kernel
//! moves no page between memory that is locked and memory that is not, and drops none that is. What a call leaves locked that was
//! refused, or came to a hole half-way, the kernel is asked.
//!
//! A page may be locked and not marked: one that comes in later (MLOCK_ONFAULT, after a discard, where mremap made the mapping
//! larger). Who tries to evict it finds out and marks it.

use crate::ctx::ThreadCtx;
use crate::mm::{page_up, raw};
use crate::page::State;
use crate::space::Space;
use crate::table::{ADDR_END, PAGE};
use crate::uapi::{self, Errno};
use core::sync::atomic::Ordering::Relaxed;
use linux_raw_sys::{errno, general as g};

/// Pages that keep their marks together where some of them are locked.
const ASKED_PAGES: usize = 64;

/// First byte and end of the pages that a range has part of, as the kernel rounds it; no further than what can be managed.
fn pages(addr: u64, len: u64) -> (usize, usize) {
    let (addr, len) = (addr as usize, len as usize);
    let (start, len) = (addr & !(PAGE - 1), page_up(len.saturating_add(addr & (PAGE - 1))));
    (start.min(ADDR_END), start.saturating_add(len).min(ADDR_END))
}

/// Whether the kernel has any of the range locked. MADV_COLD changes no content, and is refused for what is locked.
fn is_locked(start: usize, len: usize) -> bool {
    uapi::madvise(start, len, g::MADV_COLD) == Err(Errno::INVAL)
}

impl Space {
    /// mlock(2) and mlock2(2): what is locked stays resident until it is unlocked or unmapped.
    pub fn mlock(&self, ctx: &ThreadCtx, nr: u32, a: [u64; 6]) -> i64 {
        let (start, end) = pages(a[0], a[1]);
        let flags = if nr == g::__NR_mlock2 { a[2] as u32 } else { 0 };
        if flags & !g::MLOCK_ONFAULT != 0 || !self.touches(ctx, start, end) {
            // SAFETY: the program's call on memory that is not managed, or one that is refused.
            return raw(unsafe { self.kernel(nr, a) });
        }
        if (end - start) / PAGE > self.group.limit() / 2 {
            return -(errno::ENOMEM as i64);
        }
        let locked = self.keep_in(
            ctx,
            start,
            end - start,
            |state: State| state.with_locked(true),
            || {
                self.has_locked.store(true, Relaxed);
                // In the gate it brings nothing in: what is not managed may take long.
                let args = [a[0], a[1], g::MLOCK_ONFAULT as u64, 0, 0, 0];
                // SAFETY: everything is present and stays so; locking changes no content.
                let result = raw(unsafe { self.kernel(g::__NR_mlock2, args) });
                if result < 0 {
                    self.unlock_if_unlocked(start, end);
                }
                result
            },
        );
        match locked {
            // SAFETY: as above.
            Some(0) if flags == 0 => raw(unsafe { self.kernel(nr, a) }),
            Some(result) => result,
            // As the kernel answers for a page that it cannot read from swap.
            None => -(errno::ENOMEM as i64),
        }
    }

    /// munlock(2).
    pub fn munlock(&self, ctx: &ThreadCtx, a: [u64; 6]) -> i64 {
        let (start, end) = pages(a[0], a[1]);
        if !self.touches(ctx, start, end) {
            // SAFETY: the program's call on memory that is not managed.
            return raw(unsafe { self.kernel(g::__NR_munlock, a) });
        }
        self.exclusive(|| {
            // SAFETY: unlocking changes no content.
            let result = raw(unsafe { self.kernel(g::__NR_munlock, a) });
            match result {
                0 => self.unlock(start, end),
                _ => self.unlock_if_unlocked(start, end),
            }
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
            if result == 0 {
                self.unlock_all();
            }
            result
        })
    }

    /// Lets pages be evicted again of which none is locked any more: after munlockall, and in a child after fork, which inherits
    /// no locks. Under the exclusive gate.
    pub(crate) fn unlock_all(&self) {
        self.regions.all().iter().for_each(|r| self.unlock(r.start, r.end));
        self.has_locked.store(false, Relaxed);
    }

    /// The same for a range. Under the exclusive gate.
    fn unlock(&self, start: usize, end: usize) {
        if !self.has_locked.load(Relaxed) {
            return;
        }
        self.table.for_each_content(start, end, |_, word| {
            let state = word.load();
            if state.is_locked() {
                word.set_exclusive(state.with_locked(false));
            }
        });
    }

    /// The same as far as the kernel has them locked no more. Under the exclusive gate.
    fn unlock_if_unlocked(&self, start: usize, end: usize) {
        if !is_locked(start, end - start) {
            return self.unlock(start, end);
        }
        for at in (start..end).step_by(ASKED_PAGES * PAGE) {
            let stop = end.min(at + ASKED_PAGES * PAGE);
            if !is_locked(at, stop - at) {
                self.unlock(at, stop);
            }
        }
    }

    /// The state of a page that the kernel would not drop: marked, if it is locked. Inside the gate.
    pub(crate) fn kept(&self, at: usize, state: State) -> State {
        if !is_locked(at, PAGE) {
            return state;
        }
        self.has_locked.store(true, Relaxed);
        state.with_locked(true)
    }
}
