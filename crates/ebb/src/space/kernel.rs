//! What this kernel can do, what Ebb was told not to use, and what the kernel has of this process's memory.

use crate::base::uapi::{self, Errno, uffd::Uffd};
use crate::counters::bound::Bound;
use crate::protocols::gate::Exclusive;
use crate::space::config::{Force, InitError};
use crate::space::drivers::Drivers;
use crate::threads::ctx::WINDOW_MAX;
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};
use ebb_sync::Lock;
use linux_raw_sys::general::MADV_DONTNEED;

ebb_sync::lock_classes! {
    /// The lock of the program break.
    BreakLock = "break";
    /// The lock of mappings that move.
    MovingLock = "moving";
}

/// The kernel, as a space knows it.
pub struct Kernel {
    uffd: UnsafeCell<Uffd>,
    can_move: bool,
    can_protect: bool,
    can_drop_vectored: AtomicBool,
    zeros: usize,
    force: Force,
    /// True when something may be locked (mlock).
    has_locked: AtomicBool,
    /// Pages that stay in memory because they are locked or registered.
    pub(crate) staying: Bound,
    /// Held by the thread that moves the program break, while others are inside.
    pub(crate) program_break: Lock<(), BreakLock>,
    /// Held by the thread that moves a mapping, while others are inside.
    pub(crate) moving_mapping: Lock<(), MovingLock>,
    /// Drivers that may have pinned memory for long: see [`crate::pages::drivers`].
    pub(crate) drivers: Drivers,
}

// SAFETY: `uffd` changes only before the space is shared, or with the gate closed; everything else is shared safely by
// its own type.
unsafe impl Sync for Kernel {}

impl Kernel {
    /// Describes the kernel behind `uffd`, without what `force` forbids.
    pub fn new(uffd: Uffd, force: Force) -> Result<Self, InitError> {
        Ok(Self {
            can_move: uffd.has_move() && !force.no_move && !force.shared,
            can_protect: uapi::leave_ksm() && uffd.protects_for_sure(),
            uffd: UnsafeCell::new(uffd),
            can_drop_vectored: AtomicBool::new(!force.no_process_madvise),
            zeros: uapi::reserve(WINDOW_MAX * 4096)? as usize,
            force,
            has_locked: AtomicBool::new(false),
            staying: Bound::default(),
            program_break: Lock::new(()),
            moving_mapping: Lock::new(()),
            drivers: Drivers::default(),
        })
    }

    /// The userfaultfd.
    #[inline]
    pub fn uffd(&self) -> Uffd {
        // SAFETY: it changes only with the gate closed. Readers are inside, or want the number alone, which may be
        // outdated by the time they use it in any case.
        unsafe { *self.uffd.get() }
    }

    /// Replaces the userfaultfd.
    pub fn set_uffd(&self, _exclusive: &Exclusive<'_>, uffd: Uffd) {
        // SAFETY: with the gate closed nobody else reads it.
        unsafe { *self.uffd.get() = uffd };
    }

    /// True when MOVE works here.
    #[inline]
    pub fn can_move(&self) -> bool {
        self.can_move
    }

    /// True when write protection lasts whatever the program and the kernel do, so that pages can be clean.
    #[inline]
    pub fn can_protect(&self) -> bool {
        self.can_protect
    }

    /// True when one call can drop several ranges, as far as is known.
    pub fn can_drop_vectored(&self) -> bool {
        self.can_drop_vectored.load(Relaxed)
    }

    /// Address of [`WINDOW_MAX`] pages of zeros: the most that are brought in at once.
    #[inline]
    pub fn zeros(&self) -> usize {
        self.zeros
    }

    /// The forced fallbacks.
    #[inline]
    pub fn force(&self) -> &Force {
        &self.force
    }

    /// True when something may be locked (mlock).
    pub fn has_locked(&self) -> bool {
        self.has_locked.load(Relaxed)
    }

    /// Sets [`Self::has_locked`].
    pub fn set_has_locked(&self, has_locked: bool) {
        self.has_locked.store(has_locked, Relaxed);
    }

    /// Gives back the memory of ranges `(address, length)`, with one call where the kernel takes several ranges (Linux
    /// 6.13). Returns how many leading ranges are gone for sure.
    pub fn drop_ranges(&self, ranges: &[(usize, usize)]) -> usize {
        let one_by_one =
            || ranges.iter().take_while(|(at, len)| uapi::madvise(*at, *len, MADV_DONTNEED).is_ok()).count();
        if ranges.len() < 2 || !self.can_drop_vectored() {
            return one_by_one();
        }
        match uapi::drop_vectored(ranges) {
            Ok(bytes) => {
                let mut left = bytes;
                let whole = |(_, len): &&(usize, usize)| {
                    let fits = *len <= left;
                    left = left.saturating_sub(*len);
                    fits
                };
                ranges.iter().take_while(whole).count()
            }
            // An older kernel or a seccomp filter: do not try again. Or locked memory, if EINVAL came and no range is
            // gone.
            Err(error @ (Errno::BADF | Errno::INVAL | Errno::PERM | Errno::NOSYS)) => {
                let gone = one_by_one();
                if error != Errno::INVAL || gone > 0 {
                    self.can_drop_vectored.store(false, Relaxed);
                }
                gone
            }
            Err(_) => 0,
        }
    }
}
