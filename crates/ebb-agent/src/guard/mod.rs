//! The guard: keeps the program's buffers in memory while a system call uses them.
//!
//! The kernel answers EFAULT for an evicted page. So [`before`] brings in and pins every buffer of the call. If the
//! call fails with EFAULT although the program did nothing wrong, [`after`] has it made again. [`run_split`] makes a
//! transfer in pieces if it is larger than one call may pin. [`call`] does all of this, for callers that wait for the
//! answer themselves.
//!
//! Invariants:
//! * The guard holds no lock and keeps no state between calls. Pins belong to the engine. If a call was left by
//!   `longjmp` or cancellation, its pins end with the next call that is made higher up on the same stack.
//! * A call is repeated only if the table says that EFAULT had no effect, and at most [`TRIES_MAX`] times.
//! * The program sees only answers that the kernel could have given. A transfer is short only where that is allowed.

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

/// The outcome of pinning a range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pin {
    /// The range is resident until the pins end.
    Ok,
    /// The range is more than one call may pin: too many bytes, or too many ranges too far apart.
    TooLarge,
    /// The content of a page cannot be read.
    Unreadable,
}

/// Bytes that every call may pin, however much other calls have pinned.
const PIECE_BYTES_MIN: u64 = ebb::PIN_PAGES_MIN as u64 * PAGE_BYTES;

/// The engine as one call of one thread sees it.
pub trait Memory: ReadMemory {
    /// Begins the call's pins. Drops the pins of calls on this stack that can no longer return.
    fn pin_begin(&self);
    /// Begins the pins with one range if that is resident. Otherwise changes nothing and returns false. Takes no lock,
    /// and may run with signals unblocked.
    fn pin_fast(&self, addr: u64, len: u64) -> bool;
    /// Adds a range to the pins and brings it in. Call only between [`Memory::block`] and [`Memory::unblock`].
    fn pin_add(&self, addr: u64, len: u64) -> Pin;
    /// Ends the pins that were begun last.
    fn pin_end(&self);
    /// Bytes that one call may pin.
    fn pin_max(&self) -> u64;
    /// Bytes that one piece of a call may pin now: at most [`Memory::pin_max`], at least [`PIECE_BYTES_MIN`].
    fn piece_max(&self) -> u64;
    /// True if the calls in flight, this one among them, have together pinned so much that none should pin more than
    /// [`PIECE_BYTES_MIN`].
    fn calls_pin_too_much(&self) -> bool;
    /// Brings a range in. Call only between [`Memory::block`] and [`Memory::unblock`].
    fn bring_in(&self, addr: u64, len: u64) -> bool;
    /// Makes a range resident for good. Call only between [`Memory::block`] and [`Memory::unblock`].
    fn exclude(&self, addr: u64, len: u64);
    /// Makes a range resident for good, unless that exceeds what the budget can bear: then does nothing and returns
    /// false. Call only between [`Memory::block`] and [`Memory::unblock`].
    fn register(&self, addr: u64, len: u64) -> bool;
    /// True if nothing is left to be done before a driver is given `addr`.
    fn is_known_to_drivers(&self, addr: u64) -> bool;
    /// Prepares for a driver being given `addr`. Call only between [`Memory::block`] and [`Memory::unblock`].
    fn give_to_driver(&self, addr: u64);
    /// Makes a range resident until the request is done. Call only between [`Memory::block`] and [`Memory::unblock`].
    fn request(&self, context: u64, block: u64, addr: u64, len: u64);
    /// Copies bytes to where the program asked for them. False if the program could not write there either.
    fn write(&self, addr: u64, bytes: &[u8]) -> bool;
    /// Blocks every signal, and returns what [`Memory::unblock`] needs.
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
    /// Its buffers exceed what a call may pin: use [`run_split`]. Nothing is pinned.
    Split,
    /// Do not make it; this is the answer. Nothing is pinned.
    Fail(i64),
}

/// What to do with a call's answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum After {
    /// Give it to the program.
    Done(i64),
    /// Make the call again. The memory of the first attempt is pinned anew, and more; also if nothing was pinned
    /// before.
    Retry,
}

/// Attempts at one call.
pub const TRIES_MAX: u32 = 8;
/// Attempts at a call if the table knows all its buffers: the second is for a structure that has grown meanwhile.
const TRIES_MAX_SIZED: u32 = 2;

/// The answer of `do_call` if a signal came before the call was made: the whole call is to be made again after the
/// signal's handler. This is the kernel's ERESTARTSYS, which no program ever sees.
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

/// Judges the answer of a call that [`before`] prepared. Takes the same arguments and stack pointer. The call's pins
/// have ended.
///
/// `tries` counts the attempts at this call; it is 0 when [`before`] returns. After [`After::Retry`], make the call
/// again as it is, without [`before`]: its pins are in place.
#[inline]
pub fn after(space: &Space, ctx: &ThreadCtx, nr: u64, args: &[u64; 6], sp: u64, ret: i64, tries: &Cell<u32>) -> After {
    if ret != -EFAULT { After::Done(ret) } else { again(&SpaceMemory::new(space, ctx, sp), nr, args, tries) }
}

/// Makes a call in pieces for which [`before`] returned [`Before::Split`], and returns its answer. Each call of
/// `do_call` makes one system call. If `do_call` returns [`NOT_MADE`] before anything was transferred, so does
/// `run_split`.
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

/// Makes a call with its buffers pinned, from preparation to answer. Calls `do_call` once for each attempt or piece.
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

/// Pins a call's buffers. Returns [`Before::Split`] only if `may_split`, for a call that can be made in pieces.
pub(crate) fn prepare<M: Memory>(mem: &M, row: &Row, nr: u64, args: &[u64; 6], may_split: bool) -> Before {
    let may_split = may_split && row.split != Split::No;
    if may_split && row.split == Split::Recvmmsg && split::recvmmsg::is_many(args) {
        return Before::Split;
    }
    let mut pinner = Pinner::new(mem, may_split, may_split);
    visit_row(row, nr, args, mem, &mut |buffer| pinner.add(buffer));
    pinner.finish()
}

/// Decides whether a call that failed with EFAULT is worth another attempt.
#[cold]
fn again<M: Memory>(mem: &M, nr: u64, args: &[u64; 6], tries: &Cell<u32>) -> After {
    let done = After::Done(-EFAULT);
    let row = table::row(nr);
    let tries_max = if row.flags.has(Flags::UNSIZED) { TRIES_MAX } else { TRIES_MAX_SIZED };
    tries.set(tries.get() + 1);
    if !table::may_repeat(row, args) || tries.get() >= tries_max {
        return done;
    }
    // Pin what was pinned before, and with each attempt more of what the registers point to.
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
        // None of these addresses is managed: the program passed a bad address.
        Before::Pinned if found => After::Retry,
        _ => done,
    }
}

/// Pins the buffers of one call, one after the other.
pub(crate) struct Pinner<'a, M> {
    mem: &'a M,
    may_split: bool,
    /// Pin no more than other calls leave.
    is_modest: bool,
    /// Pins have begun.
    begun: bool,
    /// What [`Memory::unblock`] needs, while signals are blocked.
    blocked: Option<u64>,
    pinned: u64,
    /// Bytes that can still be pinned.
    left: u64,
    /// `left` already allows for what other calls have pinned.
    is_limited: bool,
    /// Bytes that can still be brought in without a pin.
    spare: u64,
    too_large: bool,
    unreadable: bool,
    /// A range was to stay for good, and the budget cannot bear it.
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
        // `piece_max` looks at every thread, so ask only if much is to be pinned.
        if self.is_modest && !self.is_limited && self.pinned.saturating_add(len) > PIECE_BYTES_MIN {
            self.is_limited = true;
            // `piece_max` counts this call's own pins among those of all calls.
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
            // Pin whole pages, so that buffers on neighbouring pages become one range. The engine counts only the
            // managed part.
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

    /// Pins the first part of a range, and brings in what follows. That is better than nothing for a call that cannot
    /// be made in pieces.
    fn part(&mut self, addr: u64, len: u64) {
        let mut pinned = len.min(self.left);
        if pinned > 0 && self.mem.pin_add(addr, pinned) == Pin::Ok {
            self.count(pinned);
        } else {
            // The range is not too large, but too far from the others to be pinned.
            pinned = 0;
        }
        let more = (len - pinned).min(self.spare);
        if more > 0 {
            self.spare -= more;
            self.mem.bring_in(addr + pinned, more);
        }
    }

    /// Adds `pages` pages, starting with the one that contains `addr`, if that page is managed.
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

    /// True if calls have meanwhile pinned too much. Threads that asked at the same time did not see each other's pins.
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
            // The kernel's own answer for a page that it cannot read back from swap.
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
