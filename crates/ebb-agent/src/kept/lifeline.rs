//! The lifeline: when `ebb` is killed, every process that it started ends too, at once, whatever it is doing.
//!
//! `ebb` alone holds the write end of a pipe; all processes inherit the read end. Each process opens the read end anew,
//! to get a file description of its own. It asks the kernel to send SIGKILL when the last writer is gone (`O_ASYNC`,
//! `F_SETSIG`, `F_SETOWN`). No thread waits, and no signal of the program's is used.
//!
//! The pipe is opened through the descriptors of `ebb` in `/proc`. For the new process's own entry there, the kernel
//! would have to make files, and remove them when the process ends. A process uses its own entry only if it may not
//! look at `ebb`, or if the number there names something else by now.
//!
//! When `ebb` ends in good order, processes that go on without it (daemons) must live. So `ebb` sends the write end
//! into a socket whose other end, the keeper, all processes inherit. There the write end stays open as long as one of
//! them lives.

use crate::base::calls;
use crate::base::contract::Ends;
use crate::base::text::Line;
use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicI32, AtomicU64};
use ebb::uapi::{self, Errno};
use linux_raw_sys::general as g;

/// The read end, or -1.
static LINE: AtomicI32 = AtomicI32::new(-1);
/// The keeper, or -1.
static KEEPER: AtomicI32 = AtomicI32::new(-1);
/// The process of `ebb`, and its descriptor of the pipe; 0 if unknown.
static HOLDER: AtomicI32 = AtomicI32::new(0);
static HELD: AtomicI32 = AtomicI32::new(0);
/// The pipe's device and inode number.
static FILE: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];

const S_IFMT: u32 = 0o170_000;
const S_IFIFO: u32 = 0o010_000;
const S_IFSOCK: u32 = 0o140_000;
const F_SETSIG: u64 = 10;

/// The descriptors that are kept from the program; -1 where there is none.
pub fn fds() -> [i32; 2] {
    [LINE.load(Relaxed), KEEPER.load(Relaxed)]
}

/// The process of `ebb`; 0 if unknown.
pub fn holder() -> i32 {
    HOLDER.load(Relaxed)
}

/// Gives up the lifeline because the program wants the number `fd`. True if `fd` was one of its descriptors.
///
/// The process goes on without a lifeline: it must not stay armed when the keeper is gone. `foreign`: the caller's
/// descriptors are not those of the process that armed the lifeline. That process keeps its own. What the caller starts
/// finds another file at the number, and goes without a lifeline.
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
    unsafe { calls::raw_syscall(nr as u64, &[a[0], a[1], a[2], 0, 0, 0]) }
}

/// What the kernel says about a file.
struct Stat {
    device: u64,
    inode: u64,
    kind: u32,
}

impl Stat {
    /// Asks about the file behind `fd`.
    fn of(fd: i32) -> Option<Self> {
        Self::by(|out| call(g::__NR_fstat, [fd as u64, out, 0]))
    }

    /// Asks about the file at `path`, which ends with a NUL.
    fn at(path: &[u8]) -> Option<Self> {
        Self::by(|out| call(g::__NR_stat, [path.as_ptr() as u64, out, 0]))
    }

    fn by(ask: impl FnOnce(u64) -> i64) -> Option<Self> {
        const ST_MODE_AT: usize = 3;
        // The kernel writes one `struct stat`, 144 bytes.
        let mut stat = [0u64; 18];
        let found = ask(stat.as_mut_ptr() as u64) == 0;
        found.then(|| Self { device: stat[0], inode: stat[1], kind: stat[ST_MODE_AT] as u32 & S_IFMT })
    }

    /// True if it is the pipe that this process was given.
    fn is_line(&self) -> bool {
        self.kind == S_IFIFO && [self.device, self.inode] == [FILE[0].load(Relaxed), FILE[1].load(Relaxed)]
    }
}

/// Takes over the descriptors that the environment names, if they are still what `ebb run` opened.
pub fn start(ends: &Ends) {
    let (line, keeper) = (Stat::of(ends.line), Stat::of(ends.keeper));
    let line = line.filter(|stat| stat.kind == S_IFIFO && stat.inode == ends.line_inode);
    let keeper = keeper.filter(|stat| stat.kind == S_IFSOCK && stat.inode == ends.keeper_inode);
    if let (Some(file), Some(_)) = (line, keeper) {
        FILE[0].store(file.device, Relaxed);
        FILE[1].store(file.inode, Relaxed);
        HOLDER.store(ends.holder, Relaxed);
        HELD.store(ends.held, Relaxed);
        LINE.store(ends.line, Relaxed);
        KEEPER.store(ends.keeper, Relaxed);
        // A process that was armed and then executed another program is still armed.
        if !is_armed(ends.line) {
            arm();
        }
    }
}

/// True if the description behind `fd` was opened and armed for this process. One that was armed for the parent names
/// the parent. The kernel does not mistake a new process for an old one with the same number.
fn is_armed(fd: i32) -> bool {
    let asks = |command: u32| call(g::__NR_fcntl, [fd as u64, command as u64, 0]);
    asks(g::F_GETOWN) == uapi::getpid() as i64 && asks(g::F_GETFL) & g::FASYNC as i64 != 0
}

/// Opens the pipe anew by `path`, which ends with a NUL.
fn open(path: &[u8]) -> Option<i32> {
    let flags = (g::O_RDONLY | g::O_NONBLOCK | g::O_CLOEXEC) as u64;
    let open = || uapi::check(call(g::__NR_open, [path.as_ptr() as u64, flags, 0]));
    uapi::fd::beyond_limit(open).ok().map(|fd| fd as i32)
}

/// Opens the pipe anew through `ebb`. Opens no other file, because that might have an effect.
fn open_at_holder() -> Option<i32> {
    let holder = HOLDER.load(Relaxed);
    if holder <= 0 {
        return None;
    }
    let mut path = Line::new();
    path.str("/proc/").num(holder as u64).str("/fd/").num(HELD.load(Relaxed) as u64).bytes(b"\0");
    if !Stat::at(path.as_bytes())?.is_line() {
        return None;
    }
    let fd = open(path.as_bytes())?;
    if Stat::of(fd).is_some_and(|stat| stat.is_line()) {
        return Some(fd);
    }
    uapi::close(fd);
    None
}

/// Opens the pipe anew through this process's own descriptor.
fn open_own(line: i32) -> Option<i32> {
    let mut path = Line::new();
    path.str("/proc/self/fd/").num(line as u64).bytes(b"\0");
    open(path.as_bytes())
}

/// Arms the lifeline for this process: in each new process, and after an exec that did not keep it armed. If the pipe
/// cannot be opened again (no /proc, another user), the process goes without.
pub fn arm() {
    let line = LINE.load(Relaxed);
    if line < 0 {
        return;
    }
    let Some(fresh) = open_at_holder().or_else(|| open_own(line)) else { return };
    // Put the new description at the old number, open across exec.
    let moved = uapi::fd::beyond_limit(|| match uapi::check(call(g::__NR_dup3, [fresh as u64, line as u64, 0])) {
        // The number is above the soft limit.
        Err(Errno::BADF) => Err(Errno::MFILE),
        moved => moved,
    });
    uapi::close(fresh);
    if moved.is_err() {
        return;
    }
    let fd = line as u64;
    call(g::__NR_fcntl, [fd, F_SETSIG, g::SIGKILL as u64]);
    call(g::__NR_fcntl, [fd, g::F_SETOWN as u64, uapi::getpid() as u64]);
    call(g::__NR_fcntl, [fd, g::F_SETFL as u64, (g::O_NONBLOCK | g::FASYNC) as u64]);
    // If `ebb` died before this, the pipe is at its end, instead of merely empty.
    let mut byte = 0u8;
    if call(g::__NR_read, [fd, &raw mut byte as u64, 1]) == 0 {
        uapi::kill_self();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Calls `test` with a pipe that counts as the lifeline's until the test ends. Tests that use it take turns.
    fn with_pipe(test: impl FnOnce(i32, i32)) {
        static TURN: std::sync::Mutex<()> = std::sync::Mutex::new(());
        let _turn = TURN.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let mut ends = [0; 2];
        // SAFETY: room for both descriptors.
        assert_eq!(unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) }, 0);
        let stat = Stat::of(ends[0]).unwrap();
        FILE[0].store(stat.device, Relaxed);
        FILE[1].store(stat.inode, Relaxed);
        HOLDER.store(uapi::getpid(), Relaxed);
        HELD.store(ends[1], Relaxed);
        test(ends[0], ends[1]);
        HOLDER.store(0, Relaxed);
        let _ = ends.map(uapi::close);
    }

    #[test]
    fn the_line_is_opened_by_the_end_that_its_holder_writes_to() {
        with_pipe(|_, writer| {
            let fd = open_at_holder().expect("opened");
            let mut byte = [0u8; 1];
            let mut read = || call(g::__NR_read, [fd as u64, byte.as_mut_ptr() as u64, 1]);
            assert_eq!(read(), -i64::from(libc::EAGAIN));
            // SAFETY: writes one byte.
            assert_eq!(unsafe { libc::write(writer, c"x".as_ptr().cast(), 1) }, 1);
            assert_eq!(read(), 1);
            uapi::close(fd);
        });
    }

    #[test]
    fn another_file_under_the_holders_number_is_not_opened() {
        with_pipe(|_, _| {
            let mut other = [0; 2];
            // SAFETY: room for both descriptors.
            assert_eq!(unsafe { libc::pipe2(other.as_mut_ptr(), libc::O_CLOEXEC) }, 0);
            HELD.store(other[1], Relaxed);
            assert_eq!(open_at_holder(), None);
            let _ = other.map(uapi::close);
        });
    }

    #[test]
    fn a_holder_that_is_gone_or_unknown_is_no_way_in() {
        with_pipe(|line, _| {
            HOLDER.store(i32::MAX, Relaxed);
            assert_eq!(open_at_holder(), None);
            HOLDER.store(0, Relaxed);
            assert_eq!(open_at_holder(), None);
            assert!(open_own(line).inspect(|fd| uapi::close(*fd)).is_some());
        });
    }
}
