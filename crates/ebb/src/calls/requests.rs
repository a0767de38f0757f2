//! Ranges that requests in flight use: publishes those that the program submits, and keeps them in memory when they
//! move.

use crate::base::PAGE;
use crate::protocols::gate::Held;
use crate::protocols::page::Tag;
use crate::protocols::request::Requests;
use crate::space::Space;
use crate::threads::ctx::ThreadCtx;
use crate::way_in::pins;

impl Space {
    /// Ranges that the kernel uses for requests in flight.
    pub fn requests(&self) -> &'static Requests {
        self.threads.requests
    }

    /// Publishes `[addr, addr + len)` for a control block that is about to be submitted, and brings the range in. If no
    /// place is left to publish it, the range stays in memory for good instead.
    pub fn request_add(&self, ctx: &ThreadCtx, context: u64, block: u64, addr: usize, len: usize) {
        let start = addr & !(PAGE - 1);
        let end = (addr + len).next_multiple_of(PAGE);
        if !self.threads.requests.add(context, block, start as u64, end as u64) {
            return self.exclude(ctx, addr, len);
        }
        if !pins::is_resident(self, start, end - start) {
            // If a page cannot be read back, the request fails.
            let _ = self.bring_in(ctx, start, end - start);
        }
    }

    /// The budget in bytes. Requests in flight should keep only a small part of it from being evicted. This is not what
    /// other processes leave of the budget now: that changes, and a program whose request is refused may not know what
    /// to do.
    pub fn limit_bytes(&self) -> u64 {
        (self.budget.limit() * PAGE) as u64
    }
}

/// Keeps those parts of the range in memory for good that requests in flight use. The range moves, and a request is known by
/// where its range was. The gate is closed, or the range is hidden.
pub(crate) fn keep_requested(space: &Space, _held: &Held, start: usize, end: usize) {
    let _exact = space.threads.requests.hold();
    space.threads.requests.for_each_overlap(start as u64, end as u64, |start, end| {
        space.table.for_each_content(start as usize, end as usize, |_, word| {
            if let Some(state) = word.claim_while(|state| state.tag() == Tag::Present) {
                word.finish(state.with_pinned());
            }
        });
    });
}
