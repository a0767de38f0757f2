//! Signals of one thread that have arrived and wait in the agent.
//!
//! A queue belongs to its thread. A handler of the agent that interrupts another one may add to the queue at any instruction.
//! So every step is ordered against the thread itself, and nothing is ever reached through an exclusive reference.

use crate::base::frame::SigInfo;
use crate::base::signum::{SIGBUS, SIGSEGV, bit};
use core::cell::UnsafeCell;
use core::sync::atomic::Ordering::{Relaxed, SeqCst};
use core::sync::atomic::{AtomicU32, AtomicU64, compiler_fence};

/// Signals that arrived and wait in the agent: OURS while the program blocks them, and the one signal that may arrive
/// during an inner call or in a wait of the engine. Only a handler of the agent that interrupts another one adds to it.
#[repr(C)]
pub struct Queue {
    /// Not zero when something is to be delivered when the agent leaves.
    pub deferred: AtomicU32,
    has_held: AtomicU32,
    /// Which of OURS wait. A bit is set after its details are stored, and cleared after they are copied.
    pending: AtomicU64,
    infos: UnsafeCell<[SigInfo; 3]>,
    /// The signal that arrived during an inner call, or in a wait of the engine.
    held: UnsafeCell<SigInfo>,
}

fn slot(sig: i32) -> usize {
    match sig {
        SIGBUS => 0,
        SIGSEGV => 1,
        _ => 2,
    }
}

impl Queue {
    /// Adds a signal of OURS. Drops it if the same signal waits already.
    pub fn push(&self, info: &SigInfo) {
        if self.pending.load(Relaxed) & bit(info.signo) == 0 {
            // SAFETY: this slot is read only while its bit is set, and its bit is set only here, in the same thread.
            unsafe { (*self.infos.get())[slot(info.signo)] = *info };
            compiler_fence(SeqCst);
            self.pending.fetch_or(bit(info.signo), Relaxed);
        }
    }

    /// Holds the signal that arrived during an inner call, or in a wait of the engine.
    pub fn hold(&self, info: &SigInfo) {
        // SAFETY: the signal came while nothing was held, and all others are blocked until it is taken.
        unsafe { *self.held.get() = *info };
        compiler_fence(SeqCst);
        self.has_held.store(1, Relaxed);
    }

    /// Whether a signal is held: there is room for one.
    pub fn has_held(&self) -> bool {
        self.has_held.load(Relaxed) != 0
    }

    /// Which of OURS wait.
    pub fn pending(&self) -> u64 {
        self.pending.load(Relaxed)
    }

    /// Forgets everything: a new process has no signals waiting.
    pub fn clear(&self) {
        self.pending.store(0, Relaxed);
        self.has_held.store(0, Relaxed);
        self.deferred.store(0, Relaxed);
    }

    /// Forgets a signal, because it is ignored now.
    pub fn discard(&self, sig: i32) {
        self.pending.fetch_and(!bit(sig), Relaxed);
    }

    /// Makes the agent look again when it leaves, if `pop(allowed)` would find something.
    pub fn poke(&self, allowed: u64) {
        if self.has_held.load(Relaxed) != 0 || self.pending() & allowed != 0 {
            self.deferred.store(1, Relaxed);
        }
    }

    /// Takes the held signal, or one of OURS in `allowed`.
    pub fn pop(&self, allowed: u64) -> Option<SigInfo> {
        if self.has_held.load(Relaxed) != 0 {
            // SAFETY: as in `hold`.
            let info = unsafe { *self.held.get() };
            compiler_fence(SeqCst);
            self.has_held.store(0, Relaxed);
            return Some(info);
        }
        let ready = self.pending() & allowed;
        if ready == 0 {
            return None;
        }
        let sig = ready.trailing_zeros() as i32 + 1;
        // SAFETY: the bit is set, so nobody writes the slot.
        let info = unsafe { (&(*self.infos.get()))[slot(sig)] };
        compiler_fence(SeqCst);
        self.discard(sig);
        Some(info)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn empty() -> Queue {
        Queue {
            deferred: AtomicU32::new(0),
            has_held: AtomicU32::new(0),
            pending: AtomicU64::new(0),
            infos: UnsafeCell::new([SigInfo::ZERO; 3]),
            held: UnsafeCell::new(SigInfo::ZERO),
        }
    }

    #[test]
    fn a_second_signal_of_a_kind_is_absorbed() {
        let queue = empty();
        queue.push(&SigInfo { signo: SIGBUS, code: -1, ..SigInfo::ZERO });
        queue.push(&SigInfo { signo: SIGBUS, code: -6, ..SigInfo::ZERO });
        assert_eq!(queue.pop(u64::MAX).map(|i| i.code), Some(-1));
        assert!(queue.pop(u64::MAX).is_none());
    }

    #[test]
    fn a_blocked_signal_stays_in_the_queue() {
        let queue = empty();
        queue.push(&SigInfo { signo: SIGBUS, ..SigInfo::ZERO });
        assert!(queue.pop(!bit(SIGBUS)).is_none());
        assert_eq!(queue.pending(), bit(SIGBUS));
    }
}
