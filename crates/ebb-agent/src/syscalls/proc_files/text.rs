//! Reads of `maps`, `smaps` and `numa_maps`, which come without Ebb's mappings: see `kept::texts`.

use crate::base::{copy, user};
use crate::guard::SpaceMemory;
use crate::kept::texts;
use crate::syscalls::proc_files::{PIECE_BYTES, Parts, is_read, position, tell};
use linux_raw_sys::errno as e;

const EFAULT: i64 = -(e::EFAULT as i64);

/// Reads the text; none when the kernel answers the call as it is.
pub(super) fn call(_: &SpaceMemory<'_>, nr: u32, a: &[u64; 6]) -> Option<i64> {
    if !is_read(nr) {
        return None;
    }
    let at = position(nr, a);
    let mut bytes = [0u8; PIECE_BYTES];
    let mut parts = Parts::of(nr, a);
    let (mut part, mut wanted) = (None, 0);
    let mut all = Parts::of(nr, a);
    loop {
        match all.next() {
            Ok(Some((_, len))) => wanted = (wanted + len.min(PIECE_BYTES as u64)).min(PIECE_BYTES as u64),
            Ok(None) => break,
            Err(user::Fault) => return Some(EFAULT),
        }
    }
    if wanted == 0 {
        return None;
    }
    let n = {
        let mut texts = texts::texts_lock().lock();
        let now = at.is_none().then(|| tell(a[0]) as u64);
        let stream = texts.stream(a[0] as i32 as i64, now);
        if let Some(now) = now {
            stream.follow(now);
        }
        match at.map_or(Ok(true), |offset| stream.go_to(a[0], offset, &mut bytes)) {
            Ok(true) => {}
            Ok(false) => return Some(0),
            Err(error) => return Some(error),
        }
        match stream.next(a[0], &mut bytes[..wanted as usize]) {
            Ok(n) => n,
            Err(error) => return Some(error),
        }
    };
    // The lock is given back by now, because the program's memory may be out.
    let mut done = 0;
    while done < n {
        let (buffer, len) = match part.take().map_or_else(|| parts.next(), |part| Ok(Some(part))) {
            Ok(Some(part)) => part,
            _ => break,
        };
        let step = (n - done).min(len as usize);
        // SAFETY: the agent's side is `bytes`; the program named the other side for what it reads.
        if !unsafe { copy::copy(buffer, bytes[done..].as_ptr() as u64, step) } {
            return Some(if done > 0 { done as i64 } else { EFAULT });
        }
        done += step;
    }
    Some(done as i64)
}
