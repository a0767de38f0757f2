//! Kernel asynchronous I/O: which requests are in flight.
//!
//! The buffers of io_submit belong to the kernel until the program is told that the request is done. The guard
//! publishes them to the engine ([`Kind::Request`](crate::table::visit::Kind::Request)) before the call is made. This
//! module says when requests begin and when they end. A request ends if io_submit did not take it, when io_getevents
//! reports it, or when its context is gone.
//!
//! Memory in flight cannot be evicted. So a call passes on only requests that keep what is in flight within a part of
//! the budget; the kernel, too, may take fewer requests than it is given. If one more request would leave too little
//! for anything else, the answer is EAGAIN. But if none is reported for a second, the call passes one on: some programs
//! read the ring of events by themselves.

use crate::base::user;
use crate::table::visit::{BLOCKS_MAX, PAGE_BYTES, RW_BYTES_MAX};
use crate::threads::thread::Call;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;
use ebb::Space;
use linux_raw_sys::{errno, general as g};

/// Vectors of one request (`UIO_MAXIOV`).
const VECTORS_MAX: u64 = 1024;
/// A call passes on a further request if all that is then in flight is at most `1/PART` of the budget.
const PART: u64 = 4;
/// A call passes on its first request if all that is then in flight is at most `1/PART_MAX` of the budget.
const PART_MAX: u64 = 2;
/// How long requests are refused while none is reported.
const REFUSE_MS: u64 = 1000;
/// Attempts to reserve bytes while other threads change what is in flight.
const LOOKS: usize = 8;

/// Since when requests have been refused while none was reported, in milliseconds; 0 if none is refused.
static REFUSED_MS: AtomicU64 = AtomicU64::new(0);

/// `struct iocb` by words. The opcode is in the low half of the third word; then come the buffer and the number of
/// bytes or vectors.
const OPCODE: usize = 2;
const BUFFER: usize = 3;
const NUMBER: usize = 4;
const PREAD: u64 = 0;
const PWRITE: u64 = 1;
const PREADV: u64 = 7;
const PWRITEV: u64 = 8;
/// `struct io_event` has four words. The second is the address of the control block.
const EVENT_WORDS: usize = 4;
const EVENT_BLOCK: usize = 1;

/// Control blocks that are passed to the engine at a time.
const BATCH: usize = 64;

/// True if the agent must see the call's answer as soon as it is there.
pub fn is_followed(nr: u32) -> bool {
    matches!(nr, g::__NR_io_submit | g::__NR_io_getevents | g::__NR_io_pgetevents | g::__NR_io_destroy)
}

/// Begins the requests of a call with arguments `used`. May shorten the number of requests that io_submit passes on. An
/// error is the answer of a call that is not to be made. Otherwise [`answered`] must follow, whatever becomes of the
/// call.
pub fn begin(space: &Space, call: &Call, used: &mut [u64; 6]) -> Result<(), i64> {
    match call.nr.get() as u32 {
        g::__NR_io_submit => {
            let (nr, bytes) = fitting(space, used)?;
            used[1] = nr;
            call.reserved.set(bytes);
            for_each_batch(used, 0, |blocks| space.requests().begin(used[0], blocks));
        }
        g::__NR_io_destroy => space.requests().leave(used[0]),
        _ => return Ok(()),
    }
    call.has_requests.set(true);
    Ok(())
}

/// Gives back what [`begin`] reserved, now that the buffers of the call are published.
pub fn published(space: &Space, call: &Call) {
    if call.reserved.get() > 0 {
        space.requests().unreserve(call.reserved.take());
    }
}

/// Ends requests by the call's answer `ret`, which is a failure if the call was not made.
pub fn answered(space: &Space, call: &Call, ret: i64) {
    let used = &call.used.get();
    match call.nr.get() as u32 {
        g::__NR_io_getevents | g::__NR_io_pgetevents => reported(space, used, ret),
        g::__NR_io_submit if call.has_requests.get() => {
            for_each_batch(used, ret.max(0) as u64, |blocks| space.requests().end(used[0], blocks));
        }
        // If it failed, there is no such context, or another thread's call destroys the context and sees its end.
        g::__NR_io_destroy if call.has_requests.get() && ret == 0 => space.requests().left(used[0]),
        _ => {}
    }
    call.has_requests.set(false);
}

/// Ends the requests of the `ret` events that io_getevents reported.
fn reported(space: &Space, args: &[u64; 6], ret: i64) {
    let count = ret.max(0) as u64;
    if count > 0 {
        REFUSED_MS.store(0, Relaxed);
    }
    let mut at = 0;
    while at < count {
        let mut events = [[0u64; EVENT_WORDS]; BATCH];
        let n = (count - at).min(BATCH as u64) as usize;
        let from = args[3].wrapping_add(at * size_of::<[u64; EVENT_WORDS]>() as u64);
        let mut blocks = [0; BATCH];
        for ((i, event), block) in (0..n as u64).zip(&mut events).zip(&mut blocks) {
            *event = user::read(from.wrapping_add(i * size_of_val(event) as u64)).unwrap_or_default();
            *block = event[EVENT_BLOCK];
        }
        space.requests().end(args[0], &blocks[..n]);
        at += n as u64;
    }
}

/// Calls `f` with batches of the addresses of the control blocks, from number `first` on.
fn for_each_batch(args: &[u64; 6], first: u64, mut f: impl FnMut(&[u64])) {
    // The kernel refuses a negative count.
    let count = (args[1] as i64).max(0) as u64;
    let mut at = first;
    while at < count {
        let mut blocks = [0; BATCH];
        let wanted = (count - at).min(BATCH as u64) as usize;
        let read = |(i, to): (u64, &mut u64)| user::read(args[2].wrapping_add(i * 8)).map(|block| *to = block).is_ok();
        let n = (at..).zip(&mut blocks[..wanted]).map(read).take_while(|is_read| *is_read).count();
        f(&blocks[..n]);
        if n < wanted {
            return;
        }
        at += n as u64;
    }
}

/// Returns how many requests to pass on, and their bytes, which it reserves. It stops at the request with which all
/// that is in flight would exceed a part of the budget, but passes at least one on, unless it refuses with EAGAIN. A
/// program whose requests were not all taken submits the rest later.
fn fitting(space: &Space, args: &[u64; 6]) -> Result<(u64, u64), i64> {
    let (count, most) = ((args[1] as i64).max(0) as u64, space.limit_bytes());
    if count == 0 {
        return Ok((args[1], 0));
    }
    for _ in 0..LOOKS {
        let before = space.requests().bytes();
        let (mut passed, mut bytes) = (0, 0u64);
        while passed < count.min(BLOCKS_MAX) {
            // The kernel refuses a control block that cannot be read.
            let block = user::read::<u64>(args[2].wrapping_add(passed * 8)).unwrap_or(0);
            let more = bytes.saturating_add(bytes_of(space, block));
            let part = if passed == 0 { PART_MAX } else { PART };
            if before.saturating_add(more) > most / part && (passed > 0 || before > 0 && refuses()) {
                break;
            }
            (passed, bytes) = (passed + 1, more);
        }
        if passed == 0 {
            return Err(-(errno::EAGAIN as i64));
        }
        if space.requests().reserve(bytes, before) {
            return Ok((passed, bytes));
        }
    }
    // Other threads keep submitting. One request that is not reserved does no great harm.
    Ok((1, 0))
}

/// True while there is reason to believe that some request in flight will be reported soon.
fn refuses() -> bool {
    let now = ebb::uapi::now_ns() / 1_000_000;
    let since = REFUSED_MS.load(Relaxed);
    if since == 0 {
        REFUSED_MS.store(now, Relaxed);
    }
    since == 0 || now.saturating_sub(since) < REFUSE_MS
}

/// Bytes of a request's buffers that are managed.
fn bytes_of(space: &Space, block: u64) -> u64 {
    let Ok(words) = user::read::<[u64; 8]>(block) else { return 0 };
    let (buffer, number) = (words[BUFFER], words[NUMBER]);
    match words[OPCODE] & 0xffff {
        PREAD | PWRITE => managed(space, buffer, number),
        PREADV | PWRITEV => {
            let vectors = (0..number.min(VECTORS_MAX)).map(|i| user::read::<[u64; 2]>(buffer.wrapping_add(i * 16)));
            let bytes = vectors.map_while(Result::ok).map(|[at, len]| managed(space, at, len));
            bytes.fold(0, u64::saturating_add).min(RW_BYTES_MAX)
        }
        _ => 0,
    }
}

/// Bytes of a buffer if either of its ends is managed. That is good enough to know how much is in flight.
fn managed(space: &Space, at: u64, len: u64) -> u64 {
    let len = len.min(RW_BYTES_MAX);
    let is_managed = |at: u64| at < ebb::ADDR_END as u64 && space.is_managed(at as usize);
    if len > 0 && (is_managed(at) || is_managed(at.saturating_add(len - 1))) {
        len.next_multiple_of(PAGE_BYTES)
    } else {
        0
    }
}
