//! MADV_PAGEOUT and MADV_COLD by process_madvise(2): for this process, and for others of the tree.
//!
//! The kernel gets each call first. It knows what is refused, and how many bytes take the advice: that is the answer. It gets
//! MADV_COLD in any case, because it must not swap by itself. Then the engine of the process that the descriptor names does what
//! it does after madvise(2). A process that is not managed, or is in no place of the tree, gets the kernel's own call.

use crate::base::text::Line;
use crate::base::user;
use ebb::errand::What;
use ebb::uapi;
use ebb::{PAGE, Space, ThreadCtx};
use linux_raw_sys::general as g;

/// Bytes of `/proc/thread-self/fdinfo/N` that are looked at. What tells the process is in the first hundred or so.
const TEXT_BYTES: usize = 512;

/// The process that a descriptor names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Named {
    /// Its number as this process's `/proc` numbers it.
    pid: i32,
    /// Its number in its own pid namespace.
    own_pid: u32,
}

/// Whether Ebb does something about a call.
pub fn is_followed(a: &[u64; 6]) -> bool {
    what(a[3] as u32).is_some()
}

fn what(advice: u32) -> Option<What> {
    match advice {
        g::MADV_COLD => Some(What::Cold),
        g::MADV_PAGEOUT => Some(What::PageOut),
        _ => None,
    }
}

/// Performs a call. `answer` makes one, and returns the kernel's answer.
pub fn advise(space: &Space, ctx: &ThreadCtx, a: &[u64; 6], mut answer: impl FnMut(&[u64; 6]) -> i64) -> i64 {
    let mut cold = *a;
    cold[3] = u64::from(g::MADV_COLD);
    let advised = answer(&cold);
    let Some(what) = what(a[3] as u32).filter(|_| advised > 0) else { return advised };
    let fd = a[0] as i32;
    // The kernel took a negative number: it means the calling process (PIDFD_SELF).
    let named = if fd < 0 { None } else { named_by(fd) };
    let is_own = fd < 0 || named.is_some_and(|named| named.pid == uapi::getpid());
    if is_own {
        for_each_range((a[1], a[2]), advised as u64, |start, bytes| {
            space.madvise(ctx, [start, bytes, a[3], 0, 0, 0]);
            true
        });
        return advised;
    }
    let member = named.and_then(|named| space.member_of(named.pid, named.own_pid));
    match member {
        Some(id) => for_each_range((a[1], a[2]), advised as u64, |start, bytes| {
            let start = start as usize;
            space.advise_other(id, what, start, start.saturating_add(bytes as usize))
        }),
        // Where the process cannot be told, it may be one whose memory is Ebb's to take.
        None if what == What::PageOut && named.is_some() => return answer(a),
        None => {}
    }
    advised
}

/// Calls `f` with start and length of each of the `ranges` at `at`, up to `bytes` in all, as long as it returns true. The
/// kernel has read the vector already, but the program may have changed it since.
fn for_each_range((at, ranges): (u64, u64), bytes: u64, mut f: impl FnMut(u64, u64) -> bool) {
    let mut left = bytes;
    for i in 0..ranges {
        let from = at.wrapping_add(i.wrapping_mul(size_of::<[u64; 2]>() as u64));
        let Ok([start, len]) = user::read::<[u64; 2]>(from) else { return };
        let len = len.min(left);
        // Whole pages, as the kernel takes them.
        if len > 0 && start.is_multiple_of(PAGE as u64) && !f(start, len.next_multiple_of(PAGE as u64)) {
            return;
        }
        left -= len;
        if left == 0 {
            return;
        }
    }
}

/// The process that the pidfd `fd` names.
fn named_by(fd: i32) -> Option<Named> {
    let mut path = Line::new();
    path.str("/proc/thread-self/fdinfo/").num(fd as u64).bytes(b"\0");
    let path = core::ffi::CStr::from_bytes_until_nul(path.as_bytes()).ok()?;
    let file = uapi::open_read(path).ok()?;
    let mut text = [0; TEXT_BYTES];
    let n = uapi::pread(file, &mut text, 0);
    uapi::close(file);
    named_in(&text[..n.ok()?])
}

/// What the text of a pidfd in `fdinfo` says.
fn named_in(text: &[u8]) -> Option<Named> {
    let field = |name: &[u8]| text.split(|c| *c == b'\n').find_map(|line| line.strip_prefix(name));
    let number = |bytes: &[u8]| core::str::from_utf8(bytes).ok()?.trim().parse::<i32>().ok().filter(|pid| *pid > 0);
    let pid = number(field(b"Pid:")?)?;
    // From this namespace down to the process's own.
    let own_pid = field(b"NSpid:").and_then(|list| list.rsplit(|c| *c == b'\t').next()).and_then(number);
    Some(Named { pid, own_pid: own_pid.unwrap_or(pid) as u32 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_text_names_the_process() {
        let text = |pid: &str| {
            format!("pos:\t0\nflags:\t02000002\nmnt_id:\t15\nino:\t7\nPid:\t{pid}\nNSpid:\t{pid}\t31\t2\n").into_bytes()
        };
        assert_eq!(named_in(&text("4711")), Some(Named { pid: 4711, own_pid: 2 }));
        // Gone, and without a number here.
        assert_eq!((named_in(&text("-1")), named_in(&text("0"))), (None, None));
        assert_eq!(named_in(b"pos:\t0\nflags:\t0100000\n"), None);
        assert_eq!(named_in(b"Pid:\t12\n"), Some(Named { pid: 12, own_pid: 12 }));
        // SAFETY: a descriptor of this process.
        let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, std::process::id(), 0) } as i32;
        let named = named_by(fd).expect("procfs");
        assert_eq!(named.pid as u32, std::process::id());
        // SAFETY: as above.
        unsafe { libc::close(fd) };
    }

    #[test]
    fn ranges_end_where_the_kernel_did() {
        let vector = [[4096u64, 8192], [40_960, 100], [81_920, 12_288], [1, 1]];
        let ranges = |bytes| {
            let mut all = Vec::new();
            for_each_range((vector.as_ptr() as u64, 4), bytes, |start, len| {
                all.push((start, len));
                true
            });
            all
        };
        assert_eq!(ranges(8192), [(4096, 8192)]);
        assert_eq!(ranges(8292 + 4096), [(4096, 8192), (40_960, 4096), (81_920, 4096)]);
        assert_eq!(ranges(8292 + 12_288).last(), Some(&(81_920, 12_288)));
    }
}
