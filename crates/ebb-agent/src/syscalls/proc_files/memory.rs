//! `/proc/self/mem`: the pages that it reads and writes may be out, or clean.
//!
//! The kernel answers EIO for a page that is out, and for a write to a page that is mapped write-protected. So both
//! sides of each piece are pinned while it is transferred. The file may write to pages that the program itself may only
//! read or execute; programs that generate code use this.

use crate::base::calls;
use crate::guard::{Memory, Pin, SpaceMemory};
use crate::syscalls::proc_files::{Parts, is_read, position, seek, tell};
use crate::table::visit::{PAGE_BYTES, RW_BYTES_MAX, ReadMemory};
use linux_raw_sys::{errno as e, general as g};

const EFAULT: i64 = -(e::EFAULT as i64);
/// Bytes of a piece. Both its sides are pinned, and every call may pin twice as much as this.
const PIECE_BYTES: u64 = 64 << 10;

/// Makes the call; none when the kernel answers it as it is.
pub(super) fn call(mem: &SpaceMemory<'_>, nr: u32, a: &[u64; 6]) -> Option<i64> {
    if matches!(nr, g::__NR_getdents | g::__NR_getdents64) {
        return None;
    }
    let at = position(nr, a);
    let start = match at {
        Some(at) => at,
        None => match tell(a[0]) {
            position if position >= 0 => position as u64,
            // Negative numbers: the upper half of the addresses.
            _ => return None,
        },
    };
    // Where there is no managed page, the kernel says all there is to say.
    let mut parts = Parts::of(nr, a);
    let mut done = 0;
    loop {
        let (buffer, len) = match parts.next() {
            Ok(Some(part)) => part,
            Ok(None) => break,
            Err(_) if done > 0 => break,
            Err(_) => return Some(EFAULT),
        };
        let len = len.min(RW_BYTES_MAX - done);
        let (ret, moved) = part(mem, (a[0], is_read(nr)), start.wrapping_add(done), buffer, len);
        done += moved;
        if ret < 0 && done == 0 {
            return Some(ret);
        }
        if moved < len || done >= RW_BYTES_MAX {
            break;
        }
    }
    if at.is_none() {
        seek(a[0], start.wrapping_add(done), g::SEEK_SET);
    }
    Some(done as i64)
}

/// Transfers between address `addr` of the file and a buffer. Returns the last answer, and how many bytes were transferred.
fn part(mem: &SpaceMemory<'_>, (fd, reads): (u64, bool), addr: u64, buffer: u64, len: u64) -> (i64, u64) {
    let nr = if reads { g::__NR_pread64 } else { g::__NR_pwrite64 } as u64;
    let mut done = 0;
    while done < len {
        let (from, to) = (addr.wrapping_add(done), buffer.wrapping_add(done));
        // The first piece ends where a page does.
        let wanted = (PIECE_BYTES - from % PAGE_BYTES).min(len - done);
        // SAFETY: a part of the program's own transfer.
        let make = || unsafe { calls::raw_syscall(nr, &[fd, to, wanted, from, 0, 0]) };
        let ret = if mem.may_be_managed(from, wanted) || mem.may_be_managed(to, wanted) {
            let mask = mem.block();
            mem.pin_begin();
            let pinned = [from, to].map(|at| mem.pin_add(at - at % PAGE_BYTES, wanted + at % PAGE_BYTES));
            let ret = if pinned[1] == Pin::Unreadable { EFAULT } else { make() };
            mem.pin_end();
            mem.unblock(mask);
            ret
        } else {
            make()
        };
        if ret <= 0 {
            return (ret, done);
        }
        done += ret as u64;
        if (ret as u64) < wanted {
            return (ret, done);
        }
    }
    (0, done)
}
