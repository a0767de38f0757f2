//! Calls after which the kernel goes on reading the program's pages: sends with `MSG_ZEROCOPY`.
//!
//! The kernel keeps a plain reference to each page until the network is done with it. Such a page can be evicted like any other:
//! its frame is freed only when that reference is gone. But it must not be written with something else, so from the first such
//! call on Ebb keeps no frames for other pages (`Space::reuse_no_frames`). vmsplice, for which the same is true, has its
//! pages excluded for good.

use core::sync::atomic::{AtomicBool, Ordering::Relaxed};
use ebb::Space;
use linux_raw_sys::general as g;

const MSG_ZEROCOPY: u64 = 0x400_0000;

/// There was one before the process was managed.
static SEEN: AtomicBool = AtomicBool::new(false);

/// Whether a call keeps references to pages when it is over.
#[inline(always)]
pub fn is_one(nr: u32, args: &[u64; 6]) -> bool {
    let flags = match nr {
        g::__NR_sendto | g::__NR_sendmmsg => args[3],
        g::__NR_sendmsg => args[2],
        _ => return false,
    };
    flags & MSG_ZEROCOPY != 0
}

/// Before such a call is made.
#[cold]
pub fn note() {
    SEEN.store(true, Relaxed);
    if let Some(space) = crate::space() {
        space.reuse_no_frames();
    }
}

/// The process is managed from now on. Its sockets may be used by inline system calls before.
pub fn take_over(space: &Space) {
    if SEEN.load(Relaxed) || has_sockets() {
        space.reuse_no_frames();
    }
}

/// True when one of the first descriptors is a socket that such calls are made on.
fn has_sockets() -> bool {
    const SOL_SOCKET: u64 = 1;
    const SO_ZEROCOPY: u64 = 60;
    const LOOKS: u64 = 256;
    (0..LOOKS).any(|fd| {
        let (mut value, mut len) = (0i32, 4u32);
        let args = [fd, SOL_SOCKET, SO_ZEROCOPY, &raw mut value as u64, &raw mut len as u64, 0];
        // SAFETY: the kernel writes to these two variables.
        let ret = unsafe { crate::entry::raw_syscall(g::__NR_getsockopt as u64, &args) };
        ret == 0 && value != 0
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_flag_is_looked_for_where_each_call_has_it() {
        let at = |i: usize| core::array::from_fn(|n| if n == i { MSG_ZEROCOPY | 0x4000 } else { 0 });
        for (nr, place) in [(g::__NR_sendto, 3), (g::__NR_sendmsg, 2), (g::__NR_sendmmsg, 3), (g::__NR_write, 9)] {
            assert!((0..6).all(|i| is_one(nr, &at(i)) == (i == place)), "{nr}");
        }
    }
}
