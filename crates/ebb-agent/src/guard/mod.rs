//! The guard: what happens to the program's buffers around a system call.
//!
//! The kernel answers EFAULT for an evicted page, so [`before`] brings every buffer of the call in and pins it, and
//! [`after`] tries a call again that came back with EFAULT although nothing the program did explains it. A transfer
//! larger than a call may pin is made in pieces by [`run_split`]. [`call`] is all of it, for callers that wait for the
//! answer themselves.
//!
//! Invariants:
//! * the guard holds no lock and keeps no state between calls; pins belong to the engine, and those of a call that was
//!   left by `longjmp` or cancellation fall with the next call begun higher up on the stack;
//! * a call is repeated only when the table says that EFAULT had no effect, and at most [`TRIES_MAX`] times;
//! * what the program sees is an answer the kernel could have given: a short transfer only where one is allowed.

use crate::table::visit::{Buffer, Kind, PAGE_BYTES, ReadMemory};
use crate::table::walk::visit_row;
use crate::table::{self, Flags, Row, Split};
use core::cell::Cell;
use ebb::{Space, ThreadCtx};
use linux_raw_sys::errno;
pub use memory::SpaceMemory;

pub mod aio;
pub mod device;
mod memory;
mod split;

#[cfg(test)]
mod tests;

/// What pinning a range came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pin {
    /// Resident until the pins end.
    Ok,
    /// More than one call may pin: too many bytes, or too many ranges too far apart.
    TooLarge,
    /// A page's content cannot be had.
    Unreadable,
}

/// Bytes that a call may pin whatever others have pinned.
const PIECE_BYTES_MIN: u64 = ebb::PIN_PAGES_MIN as u64 * PAGE_BYTES;

/// The engine as one call of one thread sees it.
pub trait Memory: ReadMemory {
    /// Begins the call's pins; what an earlier call of the same frame left is dropped.
    fn pin_begin(&self);
    /// Begins the pins with one range that is resident; otherwise changes nothing and answers false. Takes no lock and
    /// may run with signals unblocked.
    fn pin_fast(&self, addr: u64, len: u64) -> bool;
    /// Adds a range to the pins and brings it in. Only between [`Memory::block`] and [`Memory::unblock`].
    fn pin_add(&self, addr: u64, len: u64) -> Pin;
    /// Ends the pins begun last.
    fn pin_end(&self);
    /// Bytes that one call may pin.
    fn pin_max(&self) -> u64;
    /// Bytes that one of the pieces of a call may pin now: no more than those, and never less than [`PIECE_BYTES_MIN`].
    fn piece_max(&self) -> u64;
    /// True when calls in flight, this one among them, have pinned so much together that none should pin more than
    /// [`PIECE_BYTES_MIN`].
    fn calls_pin_too_much(&self) -> bool;
    /// Brings a range in. Only between [`Memory::block`] and [`Memory::unblock`].
    fn bring_in(&self, addr: u64, len: u64) -> bool;
    /// Makes a range resident for good. Only between [`Memory::block`] and [`Memory::unblock`].
    fn exclude(&self, addr: u64, len: u64);
    /// The same, unless it is more than the budget can bear: then nothing is done, and it answers false.
    fn register(&self, addr: u64, len: u64) -> bool;
    /// Nothing is left to be done before a driver is given that address.
    fn is_known_to_drivers(&self, addr: u64) -> bool;
    /// A driver is about to be given that address. Only between [`Memory::block`] and [`Memory::unblock`].
    fn give_to_driver(&self, addr: u64);
    /// Makes a range resident until that request is done. Only between [`Memory::block`] and [`Memory::unblock`].
    fn request(&self, context: u64, block: u64, addr: u64, len: u64);
    /// Copies bytes to where the program asked for them; false when it could not write there itself.
    fn write(&self, addr: u64, bytes: &[u8]) -> bool;
    /// Blocks every signal; answers what [`Memory::unblock`] needs.
    fn block(&self) -> u64;
    /// Undoes [`Memory::block`].
    fn unblock(&self, mask: u64);
}

/// What to do with a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Before {
    /// Make it; nothing is pinned.
    Plain,
    /// Make it, then end the pins.
    Pinned,
    /// Its buffers exceed what a call may pin: [`run_split`]. Nothing is pinned.
    Split,
    /// Do not make it; this is the answer. Nothing is pinned.
    Fail(i64),
}

/// What to do with a call's answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum After {
    /// It is the program's.
    Done(i64),
    /// Make the call again. Its memory is pinned anew, and more of it, also when nothing was before.
    Retry,
}

/// Attempts at one call.
pub const TRIES_MAX: u32 = 8;
/// Attempts at a call whose every buffer the table knows: one in case a structure has grown since.
const TRIES_MAX_SIZED: u32 = 2;

/// A `do_call`'s answer when a signal came before the call was made, and the whole call is to be made anew after the
/// signal's handler: the kernel's ERESTARTSYS, which it never lets a program see.
pub const NOT_MADE: i64 = -512;

const EFAULT: i64 = errno::EFAULT as i64;
const ENOMEM: i64 = errno::ENOMEM as i64;

/// Prepares system call `nr`, made with stack pointer `sp`: brings in and pins what it touches.
#[inline]
pub fn before(space: &Space, ctx: &ThreadCtx, nr: u64, args: &[u64; 6], sp: u64) -> Before {
    let row = table::row(nr);
    if row.flags.has(Flags::NO_POINTERS) {
        return Before::Plain;
    }
    prepare(&SpaceMemory::new(space, ctx, sp), row, nr, args, true)
}

/// Looks at the answer of a call that [`before`] prepared, with the same arguments and stack pointer, after its pins have
/// ended.
///
/// `tries` counts the attempts at this call; it is 0 when [`before`] answers. After [`After::Retry`] the call is made
/// again as it is, without [`before`]: its pins are in place.
#[inline]
pub fn after(space: &Space, ctx: &ThreadCtx, nr: u64, args: &[u64; 6], sp: u64, ret: i64, tries: &Cell<u32>) -> After {
    if ret != -EFAULT { After::Done(ret) } else { again(&SpaceMemory::new(space, ctx, sp), nr, args, tries) }
}

/// Makes a call in pieces for which [`before`] said [`Before::Split`]; its answer. `do_call` makes one call each time
/// it is called; [`NOT_MADE`] from it before anything was transferred is the answer at once.
pub fn run_split(
    space: &Space,
    ctx: &ThreadCtx,
    nr: u64,
    args: &[u64; 6],
    sp: u64,
    do_call: &mut dyn FnMut(u64, &[u64; 6]) -> i64,
) -> i64 {
    split::run(&SpaceMemory::new(space, ctx, sp), nr, args, do_call)
}

/// All of it: makes a call with its buffers pinned. `do_call` is called once for each attempt or piece.
pub fn call<M: Memory>(mem: &M, nr: u64, args: &[u64; 6], do_call: &mut dyn FnMut(u64, &[u64; 6]) -> i64) -> i64 {
    let row = table::row(nr);
    let mut pinned = match prepare(mem, row, nr, args, true) {
        Before::Plain => false,
        Before::Pinned => true,
        Before::Split => return split::run(mem, nr, args, do_call),
        Before::Fail(answer) => return answer,
    };
    let tries = Cell::new(0);
    loop {
        let ret = do_call(nr, args);
        if pinned {
            mem.pin_end();
        }
        if ret != -EFAULT || again(mem, nr, args, &tries) != After::Retry {
            return ret;
        }
        pinned = true;
    }
}

/// Pins a call's buffers. Only when it `may_split` a call that could be made in pieces is answered so.
pub(crate) fn prepare<M: Memory>(mem: &M, row: &Row, nr: u64, args: &[u64; 6], may_split: bool) -> Before {
    let may_split = may_split && row.split != Split::No;
    if may_split && row.split == Split::Recvmmsg && split::recvmmsg::is_many(args) {
        return Before::Split;
    }
    let mut pinner = Pinner::new(mem, may_split, may_split);
    visit_row(row, nr, args, mem, &mut |buffer| pinner.add(buffer));
    pinner.finish()
}

/// The call was answered with EFAULT: is it worth another attempt?
#[cold]
fn again<M: Memory>(mem: &M, nr: u64, args: &[u64; 6], tries: &Cell<u32>) -> After {
    let done = After::Done(-EFAULT);
    let row = table::row(nr);
    let tries_max = if row.flags.has(Flags::UNSIZED) { TRIES_MAX } else { TRIES_MAX_SIZED };
    tries.set(tries.get() + 1);
    if !table::may_repeat(row, args) || tries.get() >= tries_max {
        return done;
    }
    // What was pinned before, and with each attempt more of what the registers point to.
    let mut pinner = Pinner::new(mem, false, false);
    visit_row(row, nr, args, mem, &mut |buffer| pinner.add(buffer));
    for &arg in args {
        pinner.guess(arg, u64::from(tries.get()));
    }
    if tries.get() > 1 {
        // The structures that the registers point to may hold pointers of their own.
        for &arg in args {
            let mut words = [[0u8; 8]; 32];
            if arg != 0 && mem.read(arg, words.as_flattened_mut()) {
                for word in words {
                    pinner.guess(u64::from_ne_bytes(word), u64::from(tries.get()) - 1);
                }
            }
        }
    }
    let found = pinner.begun;
    match pinner.finish() {
        // Nothing of it is managed: the address is the program's mistake.
        Before::Pinned if found => After::Retry,
        _ => done,
    }
}

/// Pins the buffers of one call, one after the other.
pub(crate) struct Pinner<'a, M> {
    mem: &'a M,
    may_split: bool,
    /// No more than others leave is to be pinned.
    is_modest: bool,
    /// Pins have begun.
    begun: bool,
    /// Signals are blocked, with this to undo it.
    blocked: Option<u64>,
    pinned: u64,
    /// Bytes that can still be pinned.
    left: u64,
    /// What others have pinned counts.
    is_limited: bool,
    /// Bytes beyond those that are brought in without a pin.
    spare: u64,
    too_large: bool,
    unreadable: bool,
    /// More was to stay for good than the budget can bear.
    is_refused: bool,
}

impl<'a, M: Memory> Pinner<'a, M> {
    fn new(mem: &'a M, may_split: bool, is_modest: bool) -> Self {
        let left = mem.pin_max();
        Self {
            mem,
            may_split,
            is_modest,
            begun: false,
            blocked: None,
            pinned: 0,
            left,
            is_limited: false,
            spare: left,
            too_large: false,
            unreadable: false,
            is_refused: false,
        }
    }

    fn add(&mut self, buffer: Buffer) {
        let Buffer { addr, len, kind, .. } = buffer;
        if kind == Kind::Driver && !self.mem.is_known_to_drivers(addr) {
            self.block();
            self.mem.give_to_driver(addr);
        }
        if self.is_over() || !self.mem.may_be_managed(addr, len) {
            return;
        }
        match kind {
            Kind::Pin | Kind::Probe | Kind::Driver => {}
            Kind::Register => {
                self.block();
                self.is_refused |= !self.mem.register(addr, len);
                return;
            }
            Kind::Exclude => {
                self.block();
                return self.mem.exclude(addr, len);
            }
            Kind::Request { context, block } => {
                self.block();
                return self.mem.request(context, block, addr, len);
            }
        }
        // Looks at every thread, so only for what is worth it.
        if self.is_modest && !self.is_limited && self.pinned.saturating_add(len) > PIECE_BYTES_MIN {
            self.is_limited = true;
            // What this call has pinned already others' is with it.
            self.left = self.left.min(self.mem.piece_max());
        }
        if !self.begun {
            // The common case: one buffer, resident.
            if len <= self.left && self.mem.pin_fast(addr, len) {
                self.begun = true;
                self.count(len);
                return;
            }
            self.block();
            self.mem.pin_begin();
            self.begun = true;
        }
        self.block();
        let result = if len <= self.left || self.left == self.mem.pin_max() {
            // Whole pages, so that buffers on neighbouring pages become one range. The engine counts only what it
            // manages of it.
            let start = addr - addr % PAGE_BYTES;
            self.mem.pin_add(start, (addr + len).next_multiple_of(PAGE_BYTES) - start)
        } else {
            Pin::TooLarge
        };
        match result {
            Pin::Ok => self.count(len),
            Pin::Unreadable => self.unreadable |= kind == Kind::Pin,
            Pin::TooLarge if self.may_split => self.too_large = true,
            Pin::TooLarge => self.part(addr, len),
        }
    }

    /// Pins the first part of a range, and brings in what follows: better than nothing, for a call that cannot be
    /// made in pieces.
    fn part(&mut self, addr: u64, len: u64) {
        let mut pinned = len.min(self.left);
        if pinned > 0 && self.mem.pin_add(addr, pinned) == Pin::Ok {
            self.count(pinned);
        } else {
            // Its place among the other ranges, not its size, is what cannot be pinned.
            pinned = 0;
        }
        let more = (len - pinned).min(self.spare);
        if more > 0 {
            self.spare -= more;
            self.mem.bring_in(addr + pinned, more);
        }
    }

    /// Adds `pages` pages from the one that `addr` is in, if that is managed.
    fn guess(&mut self, addr: u64, pages: u64) {
        if addr != 0 && self.mem.may_be_managed(addr, 1) {
            let start = addr - addr % PAGE_BYTES;
            self.add(Buffer { addr: start, len: pages * PAGE_BYTES, write: true, kind: Kind::Probe });
        }
    }

    fn count(&mut self, len: u64) {
        self.pinned = self.pinned.saturating_add(len);
        self.left -= len.min(self.left);
    }

    fn is_over(&self) -> bool {
        self.too_large || self.unreadable || self.is_refused
    }

    /// Others have pinned much meanwhile: of threads that look at the same time none has seen the others.
    fn is_too_much(&self) -> bool {
        self.begun && self.is_limited && self.mem.calls_pin_too_much()
    }

    fn block(&mut self) {
        if self.blocked.is_none() {
            self.blocked = Some(self.mem.block());
        }
    }

    fn finish(self) -> Before {
        let answer = if self.is_refused {
            Before::Fail(-ENOMEM)
        } else if self.too_large || self.is_too_much() {
            Before::Split
        } else if self.unreadable {
            // What the kernel says of a page that it cannot read back from swap.
            Before::Fail(-EFAULT)
        } else if self.begun {
            return self.unblock(Before::Pinned);
        } else {
            return self.unblock(Before::Plain);
        };
        if self.begun {
            self.mem.pin_end();
        }
        self.unblock(answer)
    }

    fn unblock(&self, answer: Before) -> Before {
        if let Some(mask) = self.blocked {
            self.mem.unblock(mask);
        }
        answer
    }
}
