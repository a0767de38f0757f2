//! `recvmmsg`: messages are received by as many at a time as have buffers that can be pinned together.
//!
//! A datagram that meets an evicted page is lost, and the call after it gets the error. So the pieces are whole messages, each
//! with all of its buffers pinned, one at least. What ends a piece early (nothing more to receive, the time, a signal, an error)
//! ends the call.

use super::{DoCall, MSG_DONTWAIT, Memory, TOO_MUCH, modest_piece, piece};

/// Bytes of a `struct mmsghdr`.
const MESSAGE_BYTES: u64 = 64;
/// Only the first message is waited for.
const MSG_WAITFORONE: u64 = 0x1_0000;

/// Makes the call in pieces; its answer.
pub(super) fn run<M: Memory>(mem: &M, nr: u64, args: &[u64; 6], do_call: DoCall<'_>) -> i64 {
    let count = u64::from(args[2] as u32);
    let (mut done, mut most) = (0, count);
    loop {
        let wanted = (count - done).min(most);
        let mut now = *args;
        (now[1], now[2]) = (args[1].wrapping_add(done * MESSAGE_BYTES), wanted);
        if done > 0 && args[3] & MSG_WAITFORONE != 0 {
            now[3] |= MSG_DONTWAIT;
        }
        // One that is too large by itself is received as it is: what fits is pinned, which is where a message is.
        let ret = if wanted > 1 { modest_piece(mem, nr, &now, do_call) } else { piece(mem, nr, &now, do_call) };
        if ret == TOO_MUCH {
            most = wanted / 2;
            continue;
        }
        if ret < 0 {
            return if done > 0 { done as i64 } else { ret };
        }
        done += ret as u64;
        if (ret as u64) < wanted || done >= count || is_time_over(mem, args[4]) {
            return done as i64;
        }
    }
}

/// True when the kernel, which counts it down, has left nothing of the timeout at `addr`. Without time it would wait for
/// one more message.
fn is_time_over<M: Memory>(mem: &M, addr: u64) -> bool {
    let mut time = [0u8; 16];
    addr != 0 && mem.read(addr, &mut time) && time == [0; 16]
}
