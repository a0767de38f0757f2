//! The lifeline: when `ebb` is killed, every process that it started ends with it, at once and whatever it is doing.
//!
//! `ebb` alone holds the write end of a pipe; the read end is inherited by all. Each process opens the read end anew,
//! for a file description of its own, and asks the kernel to send SIGKILL to it when the last writer is gone
//! (`O_ASYNC`, `F_SETSIG`, `F_SETOWN`). No thread waits, and no signal of the program's is used.
//!
//! When `ebb` ends in good order, processes that go on without it (daemons) must live. Then `ebb` sends the write end
//! into a socket whose other end, the keeper, they all inherit: there it stays open as long as one of them lives.

use crate::contract::Ends;
use crate::entry;
use crate::text::Line;
use core::sync::atomic::{AtomicI32, Ordering::Relaxed};
use ebb::uapi;
use linux_raw_sys::general as g;

/// The read end, or -1.
static LINE: AtomicI32 = AtomicI32::new(-1);
/// The keeper, or -1.
static KEEPER: AtomicI32 = AtomicI32::new(-1);

const S_IFMT: u32 = 0o170_000;
const S_IFIFO: u32 = 0o010_000;
const S_IFSOCK: u32 = 0o140_000;
const F_SETSIG: u64 = 10;

/// The descriptors to keep from the program, -1 where there is none.
pub fn fds() -> [i32; 2] {
    [LINE.load(Relaxed), KEEPER.load(Relaxed)]
}

/// True when `fd` was one of these. The program wants the number: the process goes on without a lifeline, which must
/// not stay armed when the keeper is gone. `foreign`: the caller's descriptors are not those of the process that armed
/// it, which keeps its own; what the caller starts finds another file there, and goes without.
pub fn give_up(fd: i32, foreign: bool) -> bool {
    let was = fds().contains(&fd);
    if was && !foreign {
        let line = LINE.swap(-1, Relaxed);
        KEEPER.store(-1, Relaxed);
        call(g::__NR_fcntl, [line as u64, g::F_SETFL as u64, g::O_NONBLOCK as u64]);
        if line != fd {
            uapi::close(line);
        }
    }
    was
}

fn call(nr: u32, a: [u64; 3]) -> i64 {
    // SAFETY: calls on descriptors of Ebb's own; buffers are named where they are passed.
    unsafe { entry::raw_syscall(nr as u64, &[a[0], a[1], a[2], 0, 0, 0]) }
}

/// Whether the file behind `fd` is of type `kind` and has the number `inode`.
fn is_file(fd: i32, kind: u32, inode: u64) -> bool {
    const ST_INO_AT: usize = 1;
    const ST_MODE_AT: usize = 3;
    let mut stat = [0u64; 18];
    // The kernel writes one `struct stat`, 144 bytes.
    let found = call(g::__NR_fstat, [fd as u64, stat.as_mut_ptr() as u64, 0]) == 0;
    found && stat[ST_INO_AT] == inode && stat[ST_MODE_AT] as u32 & S_IFMT == kind
}

/// Takes over what the environment names, if it still is what `ebb run` opened.
pub fn start(ends: &Ends) {
    if is_file(ends.line, S_IFIFO, ends.line_inode) && is_file(ends.keeper, S_IFSOCK, ends.keeper_inode) {
        LINE.store(ends.line, Relaxed);
        KEEPER.store(ends.keeper, Relaxed);
        // A process that was armed and executed another program still is.
        if !is_armed(ends.line) {
            arm();
        }
    }
}

/// Whether the description behind `fd` has been opened and armed for this process. Its parent's names its parent; and
/// the kernel does not take a new process for an old one with the same number.
fn is_armed(fd: i32) -> bool {
    let asks = |command: u32| call(g::__NR_fcntl, [fd as u64, command as u64, 0]);
    asks(g::F_GETOWN) == uapi::getpid() as i64 && asks(g::F_GETFL) & g::FASYNC as i64 != 0
}

/// In each new process, and after an exec that did not keep it: hangs this process on the line. Where the pipe cannot be opened again
/// (no /proc, other user) the process goes without.
pub fn arm() {
    let line = LINE.load(Relaxed);
    if line < 0 {
        return;
    }
    let mut path = Line::new();
    path.str("/proc/self/fd/").num(line as u64).bytes(b"\0");
    // SAFETY: the path is a C string; reading tells whether a writer is left and takes nothing out of an empty pipe.
    let fresh = unsafe {
        let flags = (g::O_RDONLY | g::O_NONBLOCK | g::O_CLOEXEC) as u64;
        let at = g::AT_FDCWD as i64 as u64;
        entry::raw_syscall(g::__NR_openat as u64, &[at, path.as_bytes().as_ptr() as u64, flags, 0, 0, 0])
    };
    if fresh < 0 {
        return;
    }
    // The same number again, open across exec, on the new description.
    let moved = call(g::__NR_dup3, [fresh as u64, line as u64, 0]);
    uapi::close(fresh as i32);
    if moved < 0 {
        return;
    }
    let fd = line as u64;
    call(g::__NR_fcntl, [fd, F_SETSIG, g::SIGKILL as u64]);
    call(g::__NR_fcntl, [fd, g::F_SETOWN as u64, uapi::getpid() as u64]);
    call(g::__NR_fcntl, [fd, g::F_SETFL as u64, (g::O_NONBLOCK | g::FASYNC) as u64]);
    // `ebb` may have died before: then the pipe is at its end, instead of merely empty.
    let mut byte = 0u8;
    if call(g::__NR_read, [fd, &raw mut byte as u64, 1]) == 0 {
        uapi::kill_self();
    }
}
