//! Whether the background thread works or sleeps, so that who wants it is never overlooked.
//!
//! Who finds it at work leaves a mark, and looks once more whether it is idle by then. The thread says that it is idle before it
//! takes the mark. So of the two at least one sees the other, and the thread need not look again by itself.

use crate::protocols::primitive::{AtomicU32, Ordering, model_fence};

const NOT_STARTED: u32 = 0;
const WORKING: u32 = 1;
/// What [`Rest::word`] is while the thread sleeps.
pub const IDLE: u32 = 2;

/// The rest of one thread.
#[derive(Debug)]
pub struct Rest {
    word: AtomicU32,
    /// 1 when it was wanted while it worked.
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

    /// True when there is a thread, or one is about to be made.
    #[inline]
    pub fn is_started(&self) -> bool {
        self.word.load(Ordering::SeqCst) != NOT_STARTED
    }

    /// The caller is to make the thread; false when there is one.
    pub fn try_start(&self) -> bool {
        self.word.compare_exchange(NOT_STARTED, WORKING, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// There is none.
    pub fn set_ended(&self) {
        self.word.store(NOT_STARTED, Ordering::SeqCst);
    }

    /// Somebody wants the thread, for something that it can see. False when it works, and looks again before it sleeps for long.
    #[inline]
    pub fn want(&self) -> bool {
        model_fence();
        if self.word.load(Ordering::SeqCst) != WORKING {
            return true;
        }
        model_fence();
        // Marked already: the thread has yet to take it, and to look what it is wanted for.
        if self.mark.load(Ordering::SeqCst) != 0 {
            return false;
        }
        self.mark.store(1, Ordering::SeqCst);
        model_fence();
        self.word.load(Ordering::SeqCst) != WORKING
    }

    /// True when the thread slept and must be woken.
    pub fn wake(&self) -> bool {
        self.word.compare_exchange(IDLE, WORKING, Ordering::SeqCst, Ordering::Relaxed).is_ok()
    }

    /// The thread is about to sleep; true when it was wanted meanwhile. Whoever wants it from now on wakes it.
    pub fn begin_idle(&self) -> bool {
        self.word.store(IDLE, Ordering::SeqCst);
        model_fence();
        let was_wanted = self.mark.swap(0, Ordering::SeqCst) != 0;
        model_fence();
        was_wanted
    }

    /// The thread works again.
    pub fn end_idle(&self) {
        self.word.store(WORKING, Ordering::SeqCst);
        // Who was still seen idle, and could not be woken, looks at all that it was wanted for.
        model_fence();
    }
}
