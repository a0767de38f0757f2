//! Reads of `maps`, `smaps` and `numa_maps`, which come without Ebb's mappings: see `kept::texts`.

use crate::base::user;
use crate::guard::SpaceMemory;
use crate::kept::texts;
use crate::syscalls::proc_files::{PIECE_BYTES, Parts, give, is_read, position, tell};
use linux_raw_sys::errno as e;

const EFAULT: i64 = -(e::EFAULT as i64);

/// Reads the text; none when the kernel answers the call as it is.
pub(super) fn call(_: &SpaceMemory<'_>, nr: u32, a: &[u64; 6]) -> Option<i64> {
    if !is_read(nr) {
        return None;
    }
    let at = position(nr, a);
    let mut bytes = [0u8; PIECE_BYTES];
    let wanted = match Parts::of(nr, a).bytes(PIECE_BYTES as u64) {
        Ok(0) => return None,
        Ok(wanted) => wanted,
        Err(user::Fault) => return Some(EFAULT),
    };
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
    Some(give(nr, a, &bytes[..n]))
}
