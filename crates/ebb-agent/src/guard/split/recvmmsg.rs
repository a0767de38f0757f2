//! `recvmmsg`: receives as many messages at a time as have buffers that can be pinned together.
//!
//! A datagram that meets an evicted page is lost, and the next call gets the error. So each piece is one or more whole
//! messages with all their buffers pinned. What ends a piece early also ends the call: nothing more to receive, the
//! timeout, a signal, an error.
//!
//! If the socket gets an error while one call is at work, that call ends, and the kernel keeps the error for the next
//! call. A further piece that met the error would take it away from the program, and nobody could give it back. So
//! between pieces the agent looks at the socket, and ends the call if there is an error. A race remains between this
//! look and the piece's first message. A further piece is made only once its first message has come. The wait for that
//! message happens outside the piece.

use crate::guard::split::{DoCall, IOV_MAX, MSG_DONTWAIT, MSG_ERRQUEUE, Memory, TOO_MUCH, modest_piece, piece};
use crate::kept::refused;
use core::mem::size_of_val;
use linux_raw_sys::general as g;

/// Bytes of a `struct mmsghdr`.
const MESSAGE_BYTES: u64 = 64;
/// Only the first message is waited for.
const MSG_WAITFORONE: u64 = 0x1_0000;
const NANOS: i128 = 1_000_000_000;

/// True if the call has more messages than one visit looks at. The kernel does not limit how many messages a call may
/// receive. It does limit how many a call may send, to the entries of one vector.
pub(in crate::guard) fn is_many(args: &[u64; 6]) -> bool {
    u64::from(args[2] as u32) > IOV_MAX
}

/// Makes the call in pieces, and returns its answer.
pub(super) fn run<M: Memory>(mem: &M, nr: u64, args: &[u64; 6], do_call: DoCall<'_>) -> i64 {
    let count = u64::from(args[2] as u32);
    let (mut done, mut most) = (0, IOV_MAX);
    loop {
        let wanted = (count - done).min(most);
        let mut now = *args;
        (now[1], now[2]) = (args[1].wrapping_add(done * MESSAGE_BYTES), wanted);
        if done > 0 && args[3] & MSG_WAITFORONE != 0 {
            now[3] |= MSG_DONTWAIT;
        }
        // A message too large to pin is received as it is: as much of its buffer's beginning as fits is pinned, and a
        // message goes to the beginning.
        let ret = if wanted > 1 { modest_piece(mem, nr, &now, do_call) } else { piece(mem, nr, &now, do_call) };
        if ret == TOO_MUCH {
            most = wanted / 2;
            continue;
        }
        if ret < 0 {
            return if done > 0 { done as i64 } else { ret };
        }
        done += ret as u64;
        if (ret as u64) < wanted || done >= count || is_time_over(mem, args[4]) || !is_next_there(mem, args, do_call) {
            return done as i64;
        }
    }
}

/// True if nothing is left of the timeout at `addr`, which the kernel counts down. With no time left, a further piece
/// would still wait for one message.
fn is_time_over<M: Memory>(mem: &M, addr: u64) -> bool {
    read_time(mem, addr) == Some(0)
}

/// Waits, as long as the call would, until the socket has something for a further piece. False if the call ends here:
/// there is an error, which is for the next call, or nothing comes.
fn is_next_there<M: Memory>(mem: &M, args: &[u64; 6], do_call: DoCall<'_>) -> bool {
    // Messages of the error queue come regardless of errors. If the agent may not poll, the call goes on.
    if args[3] & MSG_ERRQUEUE != 0 || !refused::may_make(g::__NR_ppoll) {
        return true;
    }
    match poll(mem, args[0], Some(0), do_call) {
        Poll::Ready => return true,
        Poll::Error => return false,
        Poll::Nothing => {}
    }
    if args[3] & (MSG_DONTWAIT | MSG_WAITFORONE) != 0 || is_nonblocking(mem, args[0], do_call) {
        return false;
    }
    // The call looks at its timeout only after a message. Count the timeout down here as the call would.
    let (of_call, of_socket) = (read_time(mem, args[4]), receive_timeout(mem, args[0], do_call));
    let began = monotonic(mem, do_call);
    let answer = poll(mem, args[0], of_call.into_iter().chain(of_socket).min(), do_call);
    if let Some(time) = of_call {
        let left = (time - (monotonic(mem, do_call) - began)).max(0);
        let words = [(left / NANOS) as u64, (left % NANOS) as u64];
        mem.write(args[4], words.map(u64::to_ne_bytes).as_flattened());
        if left == 0 {
            return false;
        }
    }
    answer == Poll::Ready
}

/// True if there is something to receive and no error. An error would be for another call.
pub(super) fn is_ready<M: Memory>(mem: &M, fd: u64, do_call: DoCall<'_>) -> bool {
    poll(mem, fd, Some(0), do_call) == Poll::Ready
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Poll {
    Ready,
    Error,
    /// The time is over, or a signal came.
    Nothing,
}

/// Waits until the descriptor is ready, for up to `nanos` nanoseconds; without a number, for ever.
fn poll<M: Memory>(mem: &M, fd: u64, nanos: Option<i128>, do_call: DoCall<'_>) -> Poll {
    const POLLIN: i16 = 1;
    const POLLERR: i16 = 8;
    let mut poll = g::pollfd { fd: fd as i32, events: POLLIN, revents: 0 };
    let mut time = nanos.map(|nanos| [(nanos / NANOS) as u64, (nanos % NANOS) as u64]);
    let time = time.as_mut().map_or(0, |time| time.as_mut_ptr() as u64);
    let ret = piece(mem, g::__NR_ppoll as u64, &[&raw mut poll as u64, 1, time, 0, 0, 0], do_call);
    match ret {
        1 if poll.revents & POLLERR != 0 => Poll::Error,
        1 => Poll::Ready,
        _ => Poll::Nothing,
    }
}

fn is_nonblocking<M: Memory>(mem: &M, fd: u64, do_call: DoCall<'_>) -> bool {
    if !refused::may_make(g::__NR_fcntl) {
        return true;
    }
    let flags = piece(mem, g::__NR_fcntl as u64, &[fd, g::F_GETFL as u64, 0, 0, 0, 0], do_call);
    // If this cannot be asked, do not wait.
    flags < 0 || flags as u64 & g::O_NONBLOCK as u64 != 0
}

/// How long a call waits at the socket for one message, in nanoseconds (SO_RCVTIMEO). None means for ever.
fn receive_timeout<M: Memory>(mem: &M, fd: u64, do_call: DoCall<'_>) -> Option<i128> {
    const SOL_SOCKET: u64 = 1;
    const SO_RCVTIMEO: u64 = 20;
    // Seconds and microseconds.
    let mut time = [0i64; 2];
    let mut len = size_of_val(&time) as u32;
    let at = [time.as_mut_ptr() as u64, &raw mut len as u64];
    let ret = piece(mem, g::__NR_getsockopt as u64, &[fd, SOL_SOCKET, SO_RCVTIMEO, at[0], at[1], 0], do_call);
    let nanos = i128::from(time[0]) * NANOS + i128::from(time[1]) * 1000;
    (ret == 0 && nanos > 0).then_some(nanos)
}

/// Reads a `struct timespec` of the program's, in nanoseconds.
fn read_time<M: Memory>(mem: &M, addr: u64) -> Option<i128> {
    let mut time = [[0u8; 8]; 2];
    if addr == 0 || !mem.read(addr, time.as_flattened_mut()) {
        return None;
    }
    let [seconds, nanos] = time.map(i64::from_ne_bytes);
    Some((i128::from(seconds) * NANOS + i128::from(nanos)).max(0))
}

fn monotonic<M: Memory>(mem: &M, do_call: DoCall<'_>) -> i128 {
    let mut time = [0i64; 2];
    let args = [g::CLOCK_MONOTONIC as u64, time.as_mut_ptr() as u64, 0, 0, 0, 0];
    piece(mem, g::__NR_clock_gettime as u64, &args, do_call);
    i128::from(time[0]) * NANOS + i128::from(time[1])
}
