//! Reads a stream on: takes what one call would have taken too, because it is there already.
//!
//! A further piece waits for nothing. If another thread or process reads the same stream, the call cannot be left
//! waiting with bytes that the program has not got. A further piece is made only when there is something to read. A
//! piece that finds nothing would take an error of the socket or the end of a terminal's input, which belong to the
//! next call.

use crate::guard::split::plan::NoWait;
use crate::guard::split::{DoCall, Entry, Header, How, MSG_DONTWAIT, Memory, RWF_NOWAIT, one_of, recvmmsg};
use crate::kept::refused;
use crate::table::Split;
use linux_raw_sys::{errno, general as g, ioctl};

/// The answer of a further piece that cannot be made without waiting.
const WOULD_WAIT: i64 = -(errno::EAGAIN as i64);

/// True if there is something to read.
pub(super) fn has_more<M: Memory>(mem: &M, fd: u64, do_call: DoCall<'_>) -> bool {
    let mut bytes = 0i32;
    if refused::may_make(g::__NR_ioctl) {
        let args = [fd, ioctl::FIONREAD as u64, &raw mut bytes as u64, 0, 0, 0];
        if made(mem, g::__NR_ioctl, &args, do_call) == 0 {
            return bytes > 0;
        }
    }
    // The file cannot count its bytes.
    refused::may_make(g::__NR_ppoll) && recvmmsg::is_ready(mem, fd, do_call)
}

/// Makes a query that no signal ends.
fn made<M: Memory>(mem: &M, nr: u32, args: &[u64; 6], do_call: DoCall<'_>) -> i64 {
    one_of(mem, nr as u64, args, How { goes_on: true, is_modest: false }, do_call)
}

/// Makes a further piece of a call with a buffer and a length. `args` already holds both.
pub(super) fn scalar<M: Memory>(
    mem: &M,
    (nr, split): (u64, Split),
    args: &[u64; 6],
    (buffer_at, len_at): (usize, usize),
    (no_wait, how): (NoWait, How),
    do_call: DoCall<'_>,
) -> i64 {
    let [buffer, len] = [args[buffer_at], args[len_at]];
    match (no_wait, split) {
        // The address came with the first piece.
        (_, Split::Recvfrom) => {
            let now = [args[0], buffer, len, args[3] | MSG_DONTWAIT, 0, 0];
            one_of(mem, nr, &now, how, do_call)
        }
        (NoWait::Same, _) => one_of(mem, nr, args, how, do_call),
        (NoWait::Socket, _) if refused::may_make(g::__NR_recvfrom) => {
            one_of(mem, g::__NR_recvfrom as u64, &[args[0], buffer, len, MSG_DONTWAIT, 0, 0], how, do_call)
        }
        (NoWait::Socket, _) => WOULD_WAIT,
        (NoWait::File, _) => {
            let entry: Entry = [buffer, len];
            of_file(mem, [args[0], entry.as_ptr() as u64, 1, u64::MAX, u64::MAX, 0], how, do_call)
        }
    }
}

/// Makes a further piece of a call with a vector, whose entries are at `entries.0`.
pub(super) fn vector<M: Memory>(
    mem: &M,
    (nr, split): (u64, Split),
    args: &[u64; 6],
    entries: (u64, usize),
    (no_wait, how): (NoWait, How),
    do_call: DoCall<'_>,
) -> i64 {
    let (at, n) = (entries.0, entries.1 as u64);
    match no_wait {
        NoWait::Same => one_of(mem, nr, &[args[0], at, n, args[3], args[4], args[5]], how, do_call),
        NoWait::Socket if refused::may_make(g::__NR_recvmsg) => {
            let mut header = Header { iov: at, iov_len: n, ..Header::EMPTY };
            let call = [args[0], &raw mut header as u64, MSG_DONTWAIT, 0, 0, 0];
            one_of(mem, g::__NR_recvmsg as u64, &call, how, do_call)
        }
        NoWait::Socket => WOULD_WAIT,
        NoWait::File => {
            let flags = if split == Split::Preadv2 { args[5] } else { 0 };
            of_file(mem, [args[0], at, n, u64::MAX, u64::MAX, flags], how, do_call)
        }
    }
}

/// Reads from the stream itself by preadv2. If the kernel cannot do that without waiting, it says so.
fn of_file<M: Memory>(mem: &M, args: [u64; 6], how: How, do_call: DoCall<'_>) -> i64 {
    if !refused::may_make(g::__NR_preadv2) {
        return WOULD_WAIT;
    }
    let [fd, at, n, low, high, flags] = args;
    one_of(mem, g::__NR_preadv2 as u64, &[fd, at, n, low, high, flags | RWF_NOWAIT], how, do_call)
}
