//! Locked memory: mlock(2), munlock(2) and their kin.
//!
//! What the program locks is brought in, marked, and locked in the kernel too, all of it before anybody may evict it: the kernel
//! moves no page between memory that is locked and memory that is not, and drops none that is. What a call leaves locked that was
//! refused, or came to a hole half-way, the kernel is asked.
//!
//! A page may be locked and not marked: one that comes in later (MLOCK_ONFAULT, after a discard, where mremap made the mapping
//! larger: see [`Space::mremap`]). Who tries to evict it finds out and marks it.

use crate::ctx::ThreadCtx;
use crate::mm::raw;
use crate::page::{State, Tag};
use crate::space::Space;
use crate::table::{ADDR_END, PAGE};
use crate::uapi::{self, Errno};
use core::sync::atomic::Ordering::Relaxed;
use linux_raw_sys::{errno, general as g};

/// Pages that keep their marks together where some of them are locked.
const ASKED_PAGES: usize = 64;

/// First byte and end of the pages that a range has part of, as the kernel rounds it; no further than what can be managed. None
/// for a range that the kernel takes for none, or for one that cannot be.
fn pages(addr: u64, len: u64) -> Option<(usize, usize)> {
    let (start, inside) = (addr & !(PAGE as u64 - 1), addr & (PAGE as u64 - 1));
    let len = len.wrapping_add(inside).wrapping_add(PAGE as u64 - 1) & !(PAGE as u64 - 1);
    let end = start.checked_add(len).filter(|end| *end > start)?;
    Some(((start as usize).min(ADDR_END), (end as usize).min(ADDR_END)))
}

/// Whether the kernel has any of the range locked. MADV_COLD changes no content, and is refused for what is locked.
pub(crate) fn is_locked(start: usize, len: usize) -> bool {
    uapi::madvise(start, len, g::MADV_COLD) == Err(Errno::INVAL)
}

/// Whether the kernel locks what is mapped from now on (MCL_FUTURE), which it would bring in before it can be registered.
pub fn is_future_locked() -> bool {
    match uapi::map_for_now(PAGE) {
        Ok(page) => {
            let answer = is_locked(page as usize, PAGE);
            // SAFETY: mapped above, and nobody refers to it.
            let _ = unsafe { uapi::munmap(page as usize, PAGE) };
            answer
        }
        // More than may be locked.
        Err(errno) => errno == Errno::AGAIN,
    }
}

impl Space {
    /// mlock(2) and mlock2(2): what is locked stays resident until it is unlocked or unmapped.
    pub fn mlock(&self, ctx: &ThreadCtx, nr: u32, a: [u64; 6]) -> i64 {
        let flags = if nr == g::__NR_mlock2 { a[2] as u32 } else { 0 };
        let wanted = pages(a[0], a[1]).filter(|_| flags & !g::MLOCK_ONFAULT == 0);
        let Some((start, end)) = wanted.filter(|&(start, end)| self.touches(ctx, start, end)) else {
            // SAFETY: the program's call on memory that is not managed, or one that has no effect.
            return raw(unsafe { self.kernel(nr, a) });
        };
        if flags & g::MLOCK_ONFAULT != 0 {
            return self.mlock_on_fault(start, end, a);
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
        // As the kernel answers for a page that it cannot read from swap.
        let mut result = locked.unwrap_or(-(errno::ENOMEM as i64));
        if result == 0 && flags == 0 {
            // SAFETY: as above.
            let call = || raw(unsafe { self.kernel(nr, a) });
            result = call();
            // Another thread may have discarded something since.
            if result < 0 && self.bring_in(ctx, start, end - start) {
                result = call();
            }
        }
        ctx.pins.end();
        result
    }

    /// mlock2(2) with MLOCK_ONFAULT, of the pages in `[start, end)`: what is in memory stays there, everything else from the
    /// moment on in which it comes in.
    fn mlock_on_fault(&self, start: usize, end: usize, a: [u64; 6]) -> i64 {
        self.exclusive(|| {
            let (mut present, locks_max) = (0, self.group.limit() / 2);
            self.table.for_each_content(start, end, |_, word| present += (word.load().tag() == Tag::Present) as usize);
            if present > locks_max {
                return -(errno::ENOMEM as i64);
            }
            // SAFETY: under the exclusive gate; locking changes no content, and brings nothing in.
            let result = raw(unsafe { self.kernel(g::__NR_mlock2, a) });
            self.has_locked.store(true, Relaxed);
            if result == 0 {
                self.table.for_each_content(start, end, |_, word| {
                    let state = word.load();
                    if state.is_open() {
                        word.set_exclusive(state.with_locked(true));
                    }
                });
            }
            result
        })
    }

    /// munlock(2).
    pub fn munlock(&self, ctx: &ThreadCtx, a: [u64; 6]) -> i64 {
        let Some((start, end)) = pages(a[0], a[1]).filter(|&(start, end)| self.touches(ctx, start, end)) else {
            // SAFETY: the program's call on memory that is not managed, or one that has no effect.
            return raw(unsafe { self.kernel(g::__NR_munlock, a) });
        };
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
        const BLOCK: usize = ASKED_PAGES * PAGE;
        let mut asked = None;
        self.table.for_each_content(start, end, |at, word| {
            let state = word.load();
            if !state.is_locked() {
                return;
            }
            let block = at & !(BLOCK - 1);
            let is_block_locked = match asked {
                Some((seen, answer)) if seen == block => answer,
                _ => {
                    let first = block.max(start);
                    is_locked(first, end.min(block + BLOCK) - first)
                }
            };
            asked = Some((block, is_block_locked));
            if !is_block_locked {
                word.set_exclusive(state.with_locked(false));
            }
        });
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
