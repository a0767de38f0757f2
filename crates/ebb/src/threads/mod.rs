//! What the engine knows of each thread.

pub(crate) mod ctx;
pub(crate) mod steps;
pub(crate) mod strides;
pub(crate) mod walker;

use crate::base::uapi::{self, Errno};
use crate::memory::list::List;
use crate::memory::region::Regions;
use crate::protocols::gate::{Exclusive, Gate, Inside};
use crate::protocols::primitive::{waiting, yield_now};
use crate::protocols::request::Requests;
use ctx::{Contexts, ThreadCtx};
use ebb_sync::{Class, Guard, Lock};

/// The threads of a process, and the gate that keeps them apart in the engine.
pub struct Threads {
    gate: Gate,
    pub(crate) contexts: Contexts,
    /// Requests in flight, whose memory the kernel uses while no thread waits for them.
    pub(crate) requests: &'static Requests,
}

impl Threads {
    /// No threads yet.
    pub fn new() -> Result<Self, Errno> {
        Ok(Self { gate: Gate::default(), contexts: Contexts::new()?, requests: Requests::new()? })
    }

    /// Enters the gate; waits while it is closed. The thread must not be inside already.
    #[inline]
    pub fn enter<'a>(&self, ctx: &'a ThreadCtx) -> Inside<'a> {
        self.gate.enter(&ctx.gate)
    }

    /// Goes on with the gate that a thread closed for a fork.
    ///
    /// # Safety
    /// The contract of [`Gate::closed_before`].
    pub unsafe fn closed_before(&self) -> Exclusive<'_> {
        // SAFETY: forwarded contract.
        unsafe { self.gate.closed_before() }
    }

    /// The process that has closed the gate, while it is closed.
    pub fn closed_by(&self) -> Option<u32> {
        self.gate.closed_by()
    }

    /// Changes `regions` beside the threads that are inside: see [`Regions::change_beside`].
    pub fn change_regions(
        &self,
        regions: &Regions,
        inside: &mut Inside<'_>,
        waits: bool,
        edit: impl FnOnce(&mut List) -> bool,
    ) -> bool {
        regions.change_beside(inside, &self.gate, || self.contexts.all().map(|ctx| &ctx.gate), waits, edit)
    }

    /// Completes a change of `regions` beside the threads that are inside: see [`Regions::finish_beside`].
    pub fn finish_change(
        &self,
        regions: &Regions,
        inside: &mut Inside<'_>,
        edit: impl FnOnce(&mut List) -> bool,
    ) -> bool {
        regions.finish_beside(inside, &self.gate, || self.contexts.all().map(|ctx| &ctx.gate), edit)
    }

    /// Waits until no other thread is inside that entered before this call: see [`Gate::wait_for_earlier`].
    pub fn wait_for_earlier(&self, inside: &mut Inside<'_>) {
        let flags = || self.contexts.all().map(|ctx| &ctx.gate);
        waiting("gate, for who is inside", || self.gate.wait_for_earlier(inside, flags));
    }

    /// Makes the thread count as one that enters now: see [`Inside::renew`].
    pub fn renew(&self, inside: &mut Inside<'_>) {
        inside.renew(&self.gate);
    }

    /// Takes a lock inside the gate. The thread delays nobody who waits for those inside, as the holder may do; and it has forgotten
    /// what it read.
    pub fn lock<'l, C: Class>(&self, inside: &mut Inside<'_>, lock: &'l Lock<(), C>) -> Guard<'l, (), C> {
        loop {
            if let Some(guard) = lock.try_lock() {
                return guard;
            }
            self.renew(inside);
            waiting("mapping", yield_now);
        }
    }

    /// Closes the gate, and waits until nobody is inside. The caller must not be inside.
    #[track_caller]
    pub fn close(&self) -> Exclusive<'_> {
        self.gate.close(uapi::getpid() as u32, self.contexts.all().map(|ctx| &ctx.gate))
    }
}
