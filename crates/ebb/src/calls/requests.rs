//! Ranges that requests in flight use: what the program submits, and what must not be taken from it.

use crate::base::PAGE;
use crate::protocols::gate::Exclusive;
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

    /// Publishes `[addr, addr + len)` for a control block that is about to be submitted, and brings it in; for good where
    /// there is no place for it.
    pub fn request_add(&self, ctx: &ThreadCtx, context: u64, block: u64, addr: usize, len: usize) {
        let start = addr & !(PAGE - 1);
        let end = (addr + len).next_multiple_of(PAGE);
        if !self.threads.requests.add(context, block, start as u64, end as u64) {
            return self.exclude(ctx, addr, len);
        }
        if !pins::is_resident(self, start, end - start) {
            // What cannot be read back is the request's failure.
            let _ = self.bring_in(ctx, start, end - start);
        }
    }

    /// The budget in bytes, of which requests in flight should not keep much from being evicted. Not what other processes
    /// leave of it now: that changes, and who is refused may not know what to do.
    pub fn limit_bytes(&self) -> u64 {
        (self.budget.limit() * PAGE) as u64
    }
}

/// What requests in flight use of the range stays for good: it is about to move, and a request is known by where its
/// range was.
pub(crate) fn keep_requested(space: &Space, exclusive: &Exclusive<'_>, start: usize, end: usize) {
    let _exact = space.threads.requests.hold();
    space.threads.requests.for_each_overlap(start as u64, end as u64, |start, end| {
        space.table.for_each_content(start as usize, end as usize, |_, word| {
            let state = word.load();
            if state.tag() == Tag::Present {
                word.set_exclusive(exclusive, state.with_pinned());
            }
        });
    });
}
