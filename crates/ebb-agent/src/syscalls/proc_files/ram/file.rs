//! Which file is behind a descriptor: one that tells how much RAM there is, or another.
//!
//! The kernel's own answers decide, not the path that the program opened. `/proc/meminfo` is known by its inode, which
//! is the same wherever procfs is mounted, or by device and inode where a container engine has put another file in its
//! place. A file of a control group is known by its file system and its name. Of the groups, only the program's own and
//! those above it are told otherwise.

use crate::base::calls;
use crate::base::text::Line;
use crate::kept::refused;
use crate::kept::shown::Key;
use crate::syscalls::proc_files::describe;
use crate::syscalls::proc_files::ram::text::File;
use core::ffi::CStr;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;
use ebb::uapi;
use linux_raw_sys::general as g;

const PROC: u64 = 0x9fa0;
const CGROUP: u64 = 0x0027_e0eb;
const CGROUP2: u64 = 0x6367_7270;

/// Longest path of a file of a control group, with its NUL.
const PATH_BYTES: usize = 4096;

/// Device and inode of `/proc/meminfo`, and its file system's type, as they were at the start; 0 if it was not there.
static MEMINFO: [AtomicU64; 3] = [const { AtomicU64::new(0) }; 3];

/// Looks `/proc/meminfo` up, before the program runs.
pub fn find_meminfo() {
    if !refused::may_show() {
        return;
    }
    let Ok(fd) = uapi::open_read(c"/proc/meminfo") else { return };
    if let Some((file, kind)) = identity(fd as u64).zip(file_system(fd as u64)) {
        for (to, value) in MEMINFO.iter().zip([file[0], file[1], kind]) {
            to.store(value, Relaxed);
        }
    }
    uapi::close(fd);
}

/// Type of the file system on which the file lies; none if a filter kills for what it takes to find that out.
fn file_system(fd: u64) -> Option<u64> {
    if !refused::may_show() {
        return None;
    }
    let mut out = [0u64; 15];
    // SAFETY: the kernel writes one `struct statfs`, 120 bytes.
    let ret = unsafe { calls::raw_syscall(g::__NR_fstatfs as u64, &[fd, out.as_mut_ptr() as u64, 0, 0, 0, 0]) };
    (ret == 0).then_some(out[0])
}

/// Device of the file at a path.
fn device_at(path: &CStr) -> Option<u64> {
    let mut stat = [0u64; 18];
    // SAFETY: the kernel reads a C string, and writes one `struct stat`, 144 bytes.
    let ret = unsafe {
        calls::raw_syscall(g::__NR_stat as u64, &[path.as_ptr() as u64, stat.as_mut_ptr() as u64, 0, 0, 0, 0])
    };
    describe(ret, &stat).map(|(file, _)| file[0])
}

/// Device and inode of a file that is no directory.
fn identity(fd: u64) -> Option<[u64; 2]> {
    let mut stat = [0u64; 18];
    // SAFETY: the kernel writes one `struct stat`, 144 bytes.
    let ret = unsafe { calls::raw_syscall(g::__NR_fstat as u64, &[fd, stat.as_mut_ptr() as u64, 0, 0, 0, 0]) };
    describe(ret, &stat).filter(|(_, is_dir)| !is_dir).map(|(file, _)| file)
}

/// Whether the file may be one of these. A hint, which costs one system call.
pub fn may_be_one(fd: u64) -> bool {
    let kind = file_system(fd);
    kind.is_some_and(|kind| matches!(kind, PROC | CGROUP | CGROUP2) || kind == MEMINFO[2].load(Relaxed))
}

/// What is behind the descriptor; none for any other file.
pub fn behind(fd: u64) -> Option<(File, Key)> {
    let kind = file_system(fd)?;
    let file = identity(fd)?;
    let key = Key { fd, file };
    let [device, inode, meminfo_kind] = [0, 1, 2].map(|i| MEMINFO[i].load(Relaxed));
    let is_meminfo = file[1] == inode && kind == meminfo_kind && (kind == PROC || file[0] == device);
    if is_meminfo {
        return Some((File::Meminfo, key));
    }
    let is_second = match kind {
        CGROUP => false,
        CGROUP2 => true,
        _ => return None,
    };
    let mut link = Line::new();
    link.str("/proc/thread-self/fd/").num(fd).bytes(b"\0");
    let mut path = [0u8; PATH_BYTES];
    let args = [link.as_bytes().as_ptr() as u64, path.as_mut_ptr() as u64, (PATH_BYTES - 1) as u64, 0, 0, 0];
    // SAFETY: the kernel reads a C string, and writes into `path`, where a NUL stays.
    let len = usize::try_from(unsafe { calls::raw_syscall(g::__NR_readlink as u64, &args) }).ok()?;
    let slash = path[..len].iter().rposition(|&c| c == b'/')?;
    let told = named(&path[slash + 1..len], is_second)?;
    is_own_group(&mut path, slash, file[0], is_second).then_some((told, key))
}

/// The file behind a descriptor, under a number of the agent's. The program may give its own number to another file at any
/// moment, and that file's content and position must stay as they are. Not for longer than the lock of the texts is held, so
/// that no child of a fork inherits the number.
pub struct Held {
    fd: u64,
    file: [u64; 2],
    is_own: bool,
}

impl Held {
    /// Holds what is behind the descriptor; none if that is another file by now.
    pub fn new(key: &Key) -> Option<Self> {
        /// Where programs seldom look, near the other numbers of Ebb's.
        const LOWEST: u64 = 960;
        let duplicate = |lowest: u64| {
            let args = [key.fd, g::F_DUPFD_CLOEXEC as u64, lowest, 0, 0, 0];
            // SAFETY: numbers only.
            u64::try_from(unsafe { calls::raw_syscall(g::__NR_fcntl as u64, &args) }).ok()
        };
        // If the table is full, the program's own number has to do.
        let own = duplicate(LOWEST).or_else(|| duplicate(3));
        let fd = own.unwrap_or(key.fd);
        let held = Self { fd, file: identity(fd)?, is_own: own.is_some() };
        (held.file == key.file).then_some(held)
    }

    pub fn fd(&self) -> u64 {
        self.fd
    }

    /// Whether the number still is the file's.
    pub fn is_there(&self) -> bool {
        identity(self.fd) == Some(self.file)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // The program may have closed the number, and have a file of its own there.
        if self.is_own && self.is_there() {
            uapi::close(self.fd as i32);
        }
    }
}

/// What a file with this name tells of a control group, in version 2 or 1.
fn named(name: &[u8], is_second: bool) -> Option<File> {
    Some(match (is_second, name) {
        (true, b"memory.max" | b"memory.high") => File::Limit,
        (true, b"memory.current" | b"memory.peak") => File::Usage,
        (false, b"memory.limit_in_bytes" | b"memory.soft_limit_in_bytes" | b"memory.memsw.limit_in_bytes") => {
            File::Limit
        }
        (false, b"memory.usage_in_bytes" | b"memory.max_usage_in_bytes") => File::Usage,
        (false, b"memory.memsw.usage_in_bytes" | b"memory.memsw.max_usage_in_bytes") => File::Usage,
        (_, b"memory.stat") => File::Stat,
        _ => return None,
    })
}

/// Whether the directory of a control group, the first `len` bytes of `path`, is of the group of this process or of one
/// above. The directory is cut where the file system with this `device` begins. What is below must be a part of the group's own path: all
/// of it or its beginning, or less of its beginning where the file system shows only the part below a container.
fn is_own_group(path: &mut [u8; PATH_BYTES], len: usize, device: u64, is_second: bool) -> bool {
    if len == 0 {
        // The process's root is a group: its path is not known.
        return false;
    }
    let Ok(fd) = uapi::open_read(c"/proc/thread-self/cgroup") else { return false };
    let mut text = [0u8; PATH_BYTES];
    let read = uapi::pread(fd, &mut text, 0);
    uapi::close(fd);
    let Some(own) = read.ok().and_then(|n| own_path(&text[..n], is_second)) else { return false };
    let mut root = 0;
    loop {
        // The next part of the path ends here.
        root += 1 + path[root + 1..len].iter().take_while(|&&c| c != b'/').count();
        let next = core::mem::replace(&mut path[root], 0);
        let is_there = CStr::from_bytes_until_nul(&path[..]).ok().and_then(device_at) == Some(device);
        path[root] = next;
        if is_there {
            return is_part(&path[root..len], own);
        }
        if root >= len {
            return false;
        }
    }
}

/// The path of the group in the text of `/proc/self/cgroup`, where lines are `NUMBER:CONTROLLERS:PATH`.
fn own_path(text: &[u8], is_second: bool) -> Option<&[u8]> {
    text.split(|&c| c == b'\n').find_map(|line| {
        let mut parts = line.splitn(3, |&c| c == b':');
        let (_, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
        let is_it = if is_second {
            controllers.is_empty()
        } else {
            controllers.split(|&c| c == b',').any(|name| name == b"memory")
        };
        is_it.then_some(path)
    })
}

/// Whether `below`, which is empty or begins with a slash, is a part of `own` that ends where a name does.
fn is_part(below: &[u8], own: &[u8]) -> bool {
    if below.is_empty() {
        return true;
    }
    let is_end = |at: usize| own.get(at).is_none_or(|&c| c == b'/');
    own.windows(below.len()).enumerate().any(|(at, part)| part == below && is_end(at + below.len()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    #[test]
    fn meminfo_is_known_by_what_it_is() {
        find_meminfo();
        let of = |path: &str| {
            let file = std::fs::File::open(path).expect("it is there");
            (behind(file.as_raw_fd() as u64).map(|(file, _)| file), may_be_one(file.as_raw_fd() as u64))
        };
        assert_eq!(of("/proc/meminfo"), (Some(File::Meminfo), true));
        assert_eq!(of("/proc/self/../meminfo"), (Some(File::Meminfo), true));
        assert_eq!(of("/proc/vmstat"), (None, true));
        assert_eq!(of("/proc"), (None, true));
        assert_eq!(of("/etc/passwd"), (None, false));
        assert_eq!((behind(u64::MAX).is_none(), may_be_one(u64::MAX)), (true, false));
    }

    #[test]
    fn a_file_that_is_held_stays_what_it_is() {
        let file = std::fs::File::open("/proc/meminfo").expect("it is there");
        let fd = file.as_raw_fd() as u64;
        let key = Key { fd, file: identity(fd).expect("a file") };
        let held = Held::new(&key).expect("the same file");
        let number = held.fd();
        assert!(number != fd && held.is_there());
        // SAFETY: the test's own descriptors.
        unsafe { libc::dup2(std::fs::File::open("/proc/vmstat").expect("it is there").as_raw_fd(), fd as i32) };
        assert!(held.is_there() && Held::new(&key).is_none());
        drop(held);
        assert_eq!(identity(number), None);
    }

    #[test]
    fn files_of_groups_are_known_by_their_names() {
        assert_eq!(named(b"memory.max", true), Some(File::Limit));
        assert_eq!(named(b"memory.current", true), Some(File::Usage));
        assert_eq!(named(b"memory.limit_in_bytes", false), Some(File::Limit));
        assert_eq!(named(b"memory.stat", true).zip(named(b"memory.stat", false)), Some((File::Stat, File::Stat)));
        assert_eq!((named(b"memory.max", false), named(b"memory.limit_in_bytes", true)), (None, None));
        assert_eq!((named(b"memory.min", true), named(b"cpu.stat", true), named(b"", true)), (None, None, None));
    }

    #[test]
    fn the_own_group_is_read_from_the_line_of_its_version() {
        let text = b"4:memory:/a/b\n3:cpu,cpuacct:/c\n2:hugetlb,memory:/d\n0::/e:f\n";
        assert_eq!((own_path(text, false), own_path(text, true)), (Some(&b"/a/b"[..]), Some(&b"/e:f"[..])));
        assert_eq!((own_path(b"3:cpu:/c\n", false), own_path(b"", true)), (None, None));
    }

    #[test]
    fn a_path_without_the_file_system_is_of_no_group() {
        let of = |text: &str| {
            let mut path = [0u8; PATH_BYTES];
            path[..text.len()].copy_from_slice(text.as_bytes());
            is_own_group(&mut path, text.len(), u64::MAX, true)
        };
        assert!(!["", "/", "/proc/self", "(unreachable)/a", "/proc//self/"].into_iter().any(of));
    }

    #[test]
    fn groups_above_are_parts_of_the_own_path() {
        let is = |below: &str, own: &str| is_part(below.as_bytes(), own.as_bytes());
        assert!(is("", "/") && is("/a", "/a/b") && is("/a/b", "/a/b") && is("/b", "/docker/a/b"));
        assert!(!is("/a", "/ab") && !is("/a/c", "/a/b") && !is("/a", "/") && !is("/a/b/c", "/a/b"));
    }
}
