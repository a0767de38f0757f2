//! Runs code alone in the engine.

use crate::pages::books;
use crate::protocols::gate::Exclusive;
use crate::space::Space;

impl Space {
    /// Runs `f` with the gate closed: nobody else is inside the engine, and no page is busy.
    #[track_caller]
    pub(crate) fn exclusive<R>(&self, f: impl FnOnce(&Exclusive<'_>) -> R) -> R {
        let exclusive = self.threads.close();
        let result = f(&exclusive);
        books::note_books_used_exclusive(self, &exclusive);
        result
    }
}
