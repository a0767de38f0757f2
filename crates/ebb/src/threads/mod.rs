//! What the engine knows of each thread.

pub(crate) mod ctx;
pub(crate) mod walker;

use crate::base::uapi::{self, Errno};
use crate::protocols::gate::{Exclusive, Gate, Inside};
use crate::protocols::request::Requests;
use ctx::{Contexts, ThreadCtx};

/// The threads of a process, and what keeps them apart in the engine.
pub struct Threads {
    gate: Gate,
    pub(crate) contexts: Contexts,
    /// What the kernel uses for requests that no thread waits for.
    pub(crate) requests: &'static Requests,
}

impl Threads {
    /// No thread yet.
    pub fn new() -> Result<Self, Errno> {
        Ok(Self { gate: Gate::default(), contexts: Contexts::new()?, requests: Requests::new()? })
    }

    /// Goes inside; waits while the gate is closed. The thread must not be inside already.
    #[inline]
    pub fn enter<'a>(&self, ctx: &'a ThreadCtx) -> Inside<'a> {
        self.gate.enter(&ctx.gate)
    }

    /// Goes on with the gate that a thread closed for a fork.
    ///
    /// # Safety
    /// That of [`Gate::closed_before`].
    pub unsafe fn closed_before(&self) -> Exclusive<'_> {
        // SAFETY: forwarded contract.
        unsafe { self.gate.closed_before() }
    }

    /// The process that has closed the gate, while it is closed.
    pub fn closed_by(&self) -> Option<u32> {
        self.gate.closed_by()
    }

    /// Closes the gate, and waits until nobody is inside. The caller must not be.
    pub fn close(&self) -> Exclusive<'_> {
        self.gate.close(uapi::getpid() as u32, self.contexts.all().map(|ctx| &ctx.gate))
    }
}
