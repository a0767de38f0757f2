//! Calls after which the kernel goes on reading the program's pages: sends with `MSG_ZEROCOPY`.
//!
//! The kernel keeps a plain reference to each page until the network is done with it. Such a page can be evicted like
//! any other, because its frame is freed only when that reference is gone. But nothing else may be written to the
//! frame. So from the first such call on Ebb keeps no frames for other pages (`Space::reuse_no_frames`). vmsplice keeps
//! references in the same way, and its pages are excluded for good. No call tells which pages the kernel was lent, in
//! either way, before the process was managed: the frames of all pages from that time are never kept (`Unit::lent`).

use linux_raw_sys::general as g;

const MSG_ZEROCOPY: u64 = 0x400_0000;

/// Whether the kernel keeps references to pages after the call is over.
#[inline(always)]
pub fn is_one(nr: u32, args: &[u64; 6]) -> bool {
    let flags = match nr {
        g::__NR_sendto | g::__NR_sendmmsg => args[3],
        g::__NR_sendmsg => args[2],
        _ => return false,
    };
    flags & MSG_ZEROCOPY != 0
}

/// Tells the engine that such a call is about to be made.
#[cold]
pub fn note() {
    if let Some(space) = crate::base::here::space() {
        space.reuse_no_frames();
    }
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
