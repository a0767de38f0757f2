//! The file that all processes of the tree share: who gets its descriptor by exec, and how a process comes by it that
//! did not.
//!
//! Whoever has the file open can write anything to it. So it is closed by the exec of a program that Ebb does not manage: one
//! with more rights than its user, whatever comes of it, and any other as long as the file can be found again. For such a
//! program may start others that are managed: they open the file of `ebb` itself, by way of its descriptor in `/proc`. Where
//! that is not to be seen (another user, another pid namespace, `ebb` is gone) the descriptor stays open.

use crate::contract::Early;
use crate::entry;
use crate::exec::Kept;
use crate::fds;
use crate::leaving::Kind;
use crate::lifeline;
use crate::stat::{S_IFREG, Stat};
use crate::text::Line;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering::Relaxed};
use ebb::stats::Shared;
use ebb::uapi;
use linux_raw_sys::general as g;

/// The descriptor that `ebb` has of it, or -1 where nobody says.
static HELD: AtomicI32 = AtomicI32::new(-1);
/// The number of the file; 0 where nobody says.
static INODE: AtomicU64 = AtomicU64::new(0);
/// The descriptor was marked to be closed by an exec, which may have failed.
static WAS_WITHHELD: AtomicBool = AtomicBool::new(false);

/// What `ebb` says of the file: its own descriptor, and the number of the file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Held {
    pub fd: i32,
    pub inode: u64,
}

fn is_it(stat: &Stat) -> bool {
    let inode = INODE.load(Relaxed);
    stat.kind() == S_IFREG && stat.bytes >= Shared::MAP_BYTES as u64 && (inode == 0 || stat.inode == inode)
}

/// The descriptor of the file in a process that begins: the one that it was given, or else a new one, which the programs that
/// it starts are given.
pub fn find(early: &Early<'_>) -> Option<i32> {
    let given = early.stats_fd?;
    if let Some(held) = early.stats_held {
        HELD.store(held.fd, Relaxed);
        INODE.store(held.inode, Relaxed);
    }
    // The number may be another file's by now.
    let found = Stat::of(given);
    if found.as_ref().is_some_and(is_it) {
        return Some(given);
    }
    let fresh = open_at_holder(early.life_ends?.holder)?;
    let moved = match found {
        None => uapi::fd::beyond_limit(|| uapi::check(call(g::__NR_dup3, [fresh as u64, given as u64, 0]))).is_ok(),
        Some(_) => false,
    };
    let fd = if moved { given } else { uapi::fd::duplicate(fresh).ok()? };
    uapi::close(fresh);
    call(g::__NR_fcntl, [fd as u64, g::F_SETFD as u64, 0]);
    Some(fd)
}

/// Remembers that the descriptor has the number `fd`, other than the environment says.
pub fn rename(kept: &mut Kept, fd: i32) {
    let mut text = Line::new();
    text.str("EBB_STATS_FD=").num(fd as u64);
    // Without room it goes on as one that lost the descriptor.
    let _ = kept.replace(text.as_bytes());
}

fn call(nr: u32, a: [u64; 3]) -> i64 {
    // SAFETY: calls on descriptors of Ebb's own, and with a path that a NUL follows.
    unsafe { entry::raw_syscall(nr as u64, &[a[0], a[1], a[2], 0, 0, 0]) }
}

/// Where `ebb` has the file, if it is there.
fn at_holder(holder: i32) -> Option<Line> {
    let held = HELD.load(Relaxed);
    if holder <= 0 || held < 0 || INODE.load(Relaxed) == 0 {
        return None;
    }
    let mut path = Line::new();
    path.str("/proc/").num(holder as u64).str("/fd/").num(held as u64).bytes(b"\0");
    Stat::at(path.as_bytes()).is_some_and(|stat| is_it(&stat)).then_some(path)
}

/// Opens the file anew. Nothing else is opened: there it might have an effect.
fn open_at_holder(holder: i32) -> Option<i32> {
    let path = at_holder(holder)?;
    let flags = (g::O_RDWR | g::O_CLOEXEC) as u64;
    let open = || uapi::check(call(g::__NR_open, [path.as_bytes().as_ptr() as u64, flags, 0]));
    let fd = uapi::fd::beyond_limit(open).ok()? as i32;
    if Stat::of(fd).is_some_and(|stat| is_it(&stat)) {
        return Some(fd);
    }
    uapi::close(fd);
    None
}

/// The process is about to exec a program of this kind. `true` when that will not have the descriptor.
pub fn before_exec(kind: Kind) -> bool {
    let withholds = match kind {
        Kind::Managed => false,
        Kind::Privileged => true,
        Kind::Heedless | Kind::Foreign => at_holder(lifeline::holder()).is_some(),
    };
    // Once marked it may be so in this process's table, or in that of a relative with the same memory.
    if !withholds && !WAS_WITHHELD.load(Relaxed) {
        return false;
    }
    let fd = fds::stats();
    // A child of vfork may have another file at that number.
    if fd < 0 || !Stat::of(fd).is_some_and(|stat| is_it(&stat)) {
        return false;
    }
    WAS_WITHHELD.store(true, Relaxed);
    let flags = if withholds { g::FD_CLOEXEC } else { 0 };
    call(g::__NR_fcntl, [fd as u64, g::F_SETFD as u64, flags as u64]);
    withholds
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file as long as the shared one, closed with the test, and its number.
    fn file() -> (i32, u64) {
        // SAFETY: creates a file, and makes it longer.
        let fd = unsafe { libc::memfd_create(c"test".as_ptr(), libc::MFD_CLOEXEC) };
        // SAFETY: as above.
        assert_eq!(unsafe { libc::ftruncate(fd, Shared::MAP_BYTES as i64) }, 0);
        (fd, Stat::of(fd).unwrap().inode)
    }

    #[test]
    fn the_file_is_found_again_by_the_descriptor_of_its_holder() {
        let ((fd, inode), (other, _)) = (file(), file());
        let early = |given, held| Early {
            stats_fd: Some(given),
            stats_held: Some(Held { fd: held, inode }),
            life_ends: Some(crate::contract::Ends {
                line: -1,
                keeper: -1,
                line_inode: 0,
                keeper_inode: 0,
                holder: uapi::getpid(),
                held: -1,
            }),
            ..Early::of([&b"EBB_RAM=1"[..]].into_iter()).unwrap().unwrap()
        };
        let inode_of = |fd| Stat::of(fd).map(|stat| stat.inode);
        let flags = |fd: i32| call(g::__NR_fcntl, [fd as u64, g::F_GETFD as u64, 0]);
        assert_eq!(find(&early(fd, fd)), Some(fd));
        // Closed: the same number again, open across exec.
        let closed = uapi::fd::duplicate(fd).unwrap();
        uapi::close(closed);
        assert_eq!(find(&early(closed, fd)), Some(closed));
        assert_eq!((inode_of(closed), flags(closed)), (Some(inode), 0));
        // Somebody else's: another number.
        let moved = find(&early(other, fd)).unwrap();
        assert!(moved != other && moved != fd);
        assert_eq!((inode_of(moved), flags(moved)), (Some(inode), 0));
        // The holder has another file there.
        assert_eq!(find(&early(other, other)), None);
        let _ = [fd, other, closed, moved].map(uapi::close);
    }
}
