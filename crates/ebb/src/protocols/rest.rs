//! Whether the background thread works or sleeps, so that a thread that wants it is never overlooked.
//!
//! A thread that finds it at work leaves a mark, and looks once more whether it is idle by then. The background thread
//! says that it is idle before it takes the mark. So at least one of the two sees the other, and the background thread
//! need not look again by itself.

use crate::protocols::primitive::{AtomicU32, Ordering, model_fence};

const NOT_STARTED: u32 = 0;
const WORKING: u32 = 1;
/// Value of [`Rest::word`] while the thread sleeps.
pub const IDLE: u32 = 2;

/// What one thread is at: not started, working or idle.
#[derive(Debug)]
pub struct Rest {
    word: AtomicU32,
    /// 1 when the thread was wanted while it worked.
    mark: AtomicU32,
}

impl Default for Rest {
    fn default() -> Self {
        Self { word: AtomicU32::new(NOT_STARTED), mark: AtomicU32::new(0) }
    }
}

impl Rest {
    /// The word that the thread sleeps on while it is [`IDLE`].
    pub fn word(&self) -> &AtomicU32 {
        &self.word
    }

    /// True when the thread exists, or is about to be made.
    #[inline]
    pub fn is_started(&self) -> bool {
        self.word.load(Ordering::SeqCst) != NOT_STARTED
    }

    /// True when the caller is to make the thread; false when there is one.
    pub fn try_start(&self) -> bool {
        self.word.compare_exchange(NOT_STARTED, WORKING, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Says that there is no thread.
    pub fn set_ended(&self) {
        self.word.store(NOT_STARTED, Ordering::SeqCst);
    }

    /// Says that the thread is wanted, for something that it can see. False when it works, and will look again before
    /// it sleeps for long. True when the caller must wake it.
    #[inline]
    pub fn want(&self) -> bool {
        model_fence();
        if self.word.load(Ordering::SeqCst) != WORKING {
            return true;
        }
        model_fence();
        // Marked already: the thread has yet to take the mark, and will then look what it is wanted for.
        if self.mark.load(Ordering::SeqCst) != 0 {
            return false;
        }
        self.mark.store(1, Ordering::SeqCst);
        model_fence();
        self.word.load(Ordering::SeqCst) != WORKING
    }

    /// Sets an idle thread to working. True when it slept, and must be woken.
    pub fn wake(&self) -> bool {
        self.word.compare_exchange(IDLE, WORKING, Ordering::SeqCst, Ordering::Relaxed).is_ok()
    }

    /// Says that the thread is about to sleep; true when it was wanted meanwhile. Whoever wants it from now on wakes it.
    pub fn begin_idle(&self) -> bool {
        self.word.store(IDLE, Ordering::SeqCst);
        model_fence();
        let was_wanted = self.mark.swap(0, Ordering::SeqCst) != 0;
        model_fence();
        was_wanted
    }

    /// Says that the thread works again.
    pub fn end_idle(&self) {
        self.word.store(WORKING, Ordering::SeqCst);
        // Somebody may still have seen the thread idle, and come too late to wake it. So the thread now looks at all
        // that it was wanted for.
        model_fence();
    }
}
