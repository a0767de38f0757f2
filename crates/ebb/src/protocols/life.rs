//! When a thread of Ebb's own may be there.
//!
//! What a task may do is its own in the kernel: user and group, capabilities, filters, namespaces. A thread of Ebb's would keep
//! what the program gives up. So whoever changes such a thing *holds* the thread's life first: the thread ends, and none begins
//! until the last holder lets go. One that begins later is made by a thread of the program's, and is like it.
//!
//! One word has it all: a count of holders, and whether a thread is about to be made or is there. To begin is to change that
//! word from 0; so a beginner and a holder never overlook each other. Only who holds takes the thread out of the word, after
//! the kernel has said that it is gone: nobody may begin another one then, so of several holders each finds it out, or finds it
//! done.

use crate::protocols::primitive::{AtomicU32, Ordering, model_fence};

/// A thread is about to be made.
const STARTING: u32 = 1;
/// There is one, or its end has not been noticed.
const ALIVE: u32 = 2;
/// One holder.
const HOLD: u32 = 4;

/// The life of one thread.
#[derive(Debug)]
pub struct Life {
    word: AtomicU32,
    /// The kernel's number of the thread, while the word says that it is there.
    tid: AtomicU32,
}

impl Default for Life {
    fn default() -> Self {
        Self { word: AtomicU32::new(0), tid: AtomicU32::new(0) }
    }
}

impl Life {
    /// No thread, no holder.
    #[cfg(not(loom))]
    pub const fn new() -> Self {
        Self { word: AtomicU32::new(0), tid: AtomicU32::new(0) }
    }

    /// The caller is to make the thread, and then says [`Self::begun`] or [`Self::failed`]. False when there is one, or when
    /// somebody holds.
    pub fn try_begin(&self) -> bool {
        self.word.compare_exchange(0, STARTING, Ordering::SeqCst, Ordering::Relaxed).is_ok()
    }

    /// The thread was made.
    pub fn begun(&self, tid: i32) {
        // Released by the next step.
        self.tid.store(tid as u32, Ordering::Relaxed);
        self.word.fetch_add(ALIVE - STARTING, Ordering::SeqCst);
    }

    /// It was not.
    pub fn failed(&self) {
        self.word.fetch_sub(STARTING, Ordering::SeqCst);
    }

    /// Whether there is a thread, or one is about to be made.
    pub fn may_be_there(&self) -> bool {
        self.word.load(Ordering::Relaxed) & (STARTING | ALIVE) != 0
    }

    /// Whether the thread has this number.
    pub fn is(&self, tid: u64) -> bool {
        self.may_be_there() && u64::from(self.tid.load(Ordering::Relaxed)) == tid
    }

    /// Whether the thread is to end. It looks before it sleeps, after it has said that it does.
    pub fn is_held(&self) -> bool {
        model_fence();
        self.word.load(Ordering::SeqCst) >= HOLD
    }

    /// Has the thread end, and none begin until [`Self::release`]; true when there was one. `wake` wakes it if it sleeps, `is_gone`
    /// asks the kernel for a thread by its number, `wait` passes the time (the argument: how often it has), and `ended` is what
    /// is to be done before the next one may begin: at once and more than once.
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

    /// In fork's child, which has neither the thread nor who held.
    pub fn reset(&self) {
        self.word.store(0, Ordering::Relaxed);
    }
}
