//! When a thread of Ebb's own may exist.
//!
//! In the kernel each task has its own rights: user and group, capabilities, filters, namespaces. A thread of Ebb's
//! would keep what the program gives up. So a thread that changes its rights *holds* the life of Ebb's thread first:
//! Ebb's thread ends, and none begins until the last holder lets go. A later one is made by a thread of the program,
//! and has that thread's rights.
//!
//! One word has it all: the number of holders, and whether a thread is about to be made or exists. A thread can begin
//! only by changing that word from 0, so a beginner and a holder never overlook each other. Only a holder takes the
//! thread out of the word, after the kernel has said that the thread is gone. Nobody can begin another one at that
//! time. So each of several holders either finds that the thread is gone, or finds it taken out already.

use crate::protocols::primitive::{AtomicU32, Ordering, model_fence};

/// A thread is about to be made.
const STARTING: u32 = 1;
/// There is a thread, or its end has not been noticed.
const ALIVE: u32 = 2;
/// One holder.
const HOLD: u32 = 4;

/// The life of one thread.
#[derive(Debug)]
pub struct Life {
    word: AtomicU32,
    /// The thread's number in the kernel, while the word says that it exists.
    tid: AtomicU32,
}

impl Default for Life {
    fn default() -> Self {
        Self { word: AtomicU32::new(0), tid: AtomicU32::new(0) }
    }
}

impl Life {
    /// A life without thread and holders.
    #[cfg(not(loom))]
    pub const fn new() -> Self {
        Self { word: AtomicU32::new(0), tid: AtomicU32::new(0) }
    }

    /// True when the caller is to make the thread, and must then call [`Self::begun`] or [`Self::failed`]. False when
    /// there is a thread, or somebody holds the life.
    pub fn try_begin(&self) -> bool {
        self.word.compare_exchange(0, STARTING, Ordering::SeqCst, Ordering::Relaxed).is_ok()
    }

    /// Says that the thread was made.
    pub fn begun(&self, tid: i32) {
        // Released by the next step.
        self.tid.store(tid as u32, Ordering::Relaxed);
        self.word.fetch_add(ALIVE - STARTING, Ordering::SeqCst);
    }

    /// Says that the thread could not be made.
    pub fn failed(&self) {
        self.word.fetch_sub(STARTING, Ordering::SeqCst);
    }

    /// Whether there is a thread, or one is about to be made.
    pub fn may_be_there(&self) -> bool {
        self.word.load(Ordering::Relaxed) & (STARTING | ALIVE) != 0
    }

    /// Whether the thread has the number `tid`.
    pub fn is(&self, tid: u64) -> bool {
        self.may_be_there() && u64::from(self.tid.load(Ordering::Relaxed)) == tid
    }

    /// Whether the thread is to end. The thread checks this before it sleeps, after it has said that it is about to.
    pub fn is_held(&self) -> bool {
        model_fence();
        self.word.load(Ordering::SeqCst) >= HOLD
    }

    /// Has the thread end, and keeps another from beginning until [`Self::release`]; true when there was one.
    ///
    /// * `wake` wakes the thread if it sleeps.
    /// * `is_gone` asks the kernel whether the thread with the given number is gone.
    /// * `wait` passes the time. Its argument says how often it was called before.
    /// * `ended` does what must be done before the next thread may begin. Several holders may call it, also at the same time.
    pub fn hold(&self, wake: impl Fn(), is_gone: impl Fn(i32) -> bool, wait: impl Fn(u32), ended: impl Fn()) -> bool {
        self.word.fetch_add(HOLD, Ordering::SeqCst);
        model_fence();
        let mut turns = 0;
        loop {
            let word = self.word.load(Ordering::SeqCst);
            if word & (STARTING | ALIVE) == 0 {
                return turns > 0;
            }
            if word & ALIVE != 0 {
                wake();
                if is_gone(self.tid.load(Ordering::Relaxed) as i32) {
                    ended();
                    self.word.fetch_and(!ALIVE, Ordering::SeqCst);
                    return true;
                }
            }
            wait(turns);
            turns = turns.saturating_add(1);
        }
    }

    /// Ends what [`Self::hold`] began.
    pub fn release(&self) {
        self.word.fetch_sub(HOLD, Ordering::SeqCst);
    }

    /// For fork's child, which has neither the thread nor its holders.
    pub fn reset(&self) {
        self.word.store(0, Ordering::Relaxed);
    }
}
