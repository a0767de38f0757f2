//! Runs code alone in the engine.

use crate::base::uapi;
use crate::pages::books;
use crate::protocols::gate::Exclusive;
use crate::protocols::primitive::yield_now;
use crate::space::Space;

/// How long a thread waits for another one to tell the region table what the kernel has done. That one only has to close the gate; but
/// a process that shares the memory may have been killed before it did.
const PATIENCE_NS: u64 = 1_000_000_000;

impl Space {
    /// Runs `f` with the gate closed: nobody else is inside the engine, no page is busy, and the region table says what the kernel
    /// does.
    #[track_caller]
    pub(crate) fn exclusive<R>(&self, f: impl FnOnce(&Exclusive<'_>) -> R) -> R {
        self.run_alone(self.close_gate(), f)
    }

    /// Waits for each transfer from now on, and for those in flight now: the calls for them may not be made any more. The
    /// calling thread must not be inside.
    pub fn fly_no_more(&self) {
        self.swap.devices.contexts().ground();
        // Even if another thread has said so already: its wait may not be over.
        self.exclusive(|_| ());
    }

    /// While this `holds`, no transfer in flight ever seems to end, as if the devices did not answer: for tests.
    pub fn hold_transfers(&self, holds: bool) {
        self.swap.devices.contexts().hold(holds);
    }

    /// As [`Self::exclusive`], for `f` that tells the region table.
    #[track_caller]
    pub(crate) fn exclusive_to_publish<R>(&self, f: impl FnOnce(&Exclusive<'_>) -> R) -> R {
        self.run_alone(self.threads.close(), f)
    }

    fn run_alone<R>(&self, exclusive: Exclusive<'_>, f: impl FnOnce(&Exclusive<'_>) -> R) -> R {
        let result = f(&exclusive);
        books::note_books_used_exclusive(self, &exclusive);
        result
    }

    /// Closes the gate once the region table says what the kernel does. The caller must not be inside.
    #[track_caller]
    pub(crate) fn close_gate(&self) -> Exclusive<'_> {
        let mut since = None;
        loop {
            let exclusive = self.threads.close();
            if self.regions.is_published(&exclusive) {
                return exclusive;
            }
            let (now, published) = (uapi::now_ns(), self.regions.published());
            let (begun, seen) = *since.get_or_insert((now, published));
            if seen != published {
                since = Some((now, published));
            } else if now - begun > PATIENCE_NS {
                self.regions.give_up_publishing(&exclusive);
                return exclusive;
            }
            drop(exclusive);
            yield_now();
        }
    }
}
