//! What a program reads of itself under `/proc`: its own memory and descriptors, without Ebb's.
//!
//! A program may test, dump, lock or unmap each range that it reads from its own maps, or close each descriptor that it
//! finds in its own table. It finds only what is its own:
//!
//! * `maps`, `smaps` and `numa_maps` come without the lines of Ebb's mappings (`text`). The agent's code, and what it
//!   only reads, stay there, because symbols are looked up there;
//! * the directories `fd`, `fdinfo` and `map_files` come without Ebb's entries (`names`);
//! * `mem` reads and writes pages that are out, too (`memory`);
//! * `task` comes without Ebb's threads, and a program of one thread does not count them (`counts`).
//!
//! How much RAM there is may be told otherwise, too, if the user wants that (`ram`).
//!
//! Everything else is as the kernel tells it. Files that count memory (`statm`, `status`, `smaps_rollup`) count the
//! process with what Ebb holds for it, and `pagemap` says which pages are in memory.
//!
//! The program has the kernel's own file, so it is described, duplicated, inherited and seeked as ever. A bit for each
//! descriptor number marks those that may be such files. It is set where a file of such a name is opened or duplicated,
//! and cleared when a look at the descriptor shows another file. Only calls on marked descriptors come here: the bit is
//! a hint, the look decides. The kernel alone answers for a file that came in another way (by a socket, under another
//! name), and for the files of another process.

use crate::base::{calls, copy, user};
use crate::guard::{self, SpaceMemory};
use crate::kept::{marks, shown, texts};
use crate::process::tasks;
use crate::table::visit::PAGE_BYTES;
use crate::threads::thread::ThreadBlock;
use core::ffi::CStr;
use ebb::Space;
use linux_raw_sys::{errno as e, general as g};

pub mod counts;
mod memory;
mod names;
pub mod ram;
mod text;

/// Bytes that one piece of a text transfers.
const PIECE_BYTES: usize = 4096;

/// What is behind a descriptor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    /// Lines. Each is the first line of a mapping, or a line about the mapping above it.
    Text,
    Memory,
    /// A directory whose names are descriptors.
    Descriptors,
    /// A directory whose names are ranges of memory.
    Ranges,
    /// A directory whose names are tasks.
    Tasks,
    /// It tells, among other things, how many tasks there are.
    Counts,
}

/// The files, by their names in a process's directory and in the directory of one of its threads.
const FILES: [(&CStr, Kind); 18] = [
    (c"/proc/self/maps", Kind::Text),
    (c"/proc/self/smaps", Kind::Text),
    (c"/proc/self/mem", Kind::Memory),
    (c"/proc/self/fd", Kind::Descriptors),
    (c"/proc/self/fdinfo", Kind::Descriptors),
    (c"/proc/self/map_files", Kind::Ranges),
    (c"/proc/self/numa_maps", Kind::Text),
    (c"/proc/thread-self/maps", Kind::Text),
    (c"/proc/thread-self/smaps", Kind::Text),
    (c"/proc/thread-self/numa_maps", Kind::Text),
    (c"/proc/thread-self/mem", Kind::Memory),
    (c"/proc/thread-self/fd", Kind::Descriptors),
    (c"/proc/thread-self/fdinfo", Kind::Descriptors),
    (c"/proc/self/task", Kind::Tasks),
    (c"/proc/self/stat", Kind::Counts),
    (c"/proc/self/status", Kind::Counts),
    (c"/proc/thread-self/stat", Kind::Counts),
    (c"/proc/thread-self/status", Kind::Counts),
];

/// Whether a file with this path may be one of [`FILES`]: its name is among theirs, or says nothing.
pub fn has_such_name(path: &[u8]) -> bool {
    matches!(
        last_part(path),
        b"maps"
            | b"smaps"
            | b"numa_maps"
            | b"mem"
            | b"fd"
            | b"fdinfo"
            | b"map_files"
            | b"task"
            | b"stat"
            | b"status"
            | b"."
            | b".."
            | b""
    )
}

/// The last name in a path.
fn last_part(path: &[u8]) -> &[u8] {
    let end = path.iter().rposition(|&c| c != b'/').map_or(0, |last| last + 1);
    path[..end].rsplit(|&c| c == b'/').next().unwrap_or_default()
}

/// Whether a call asks for the number of links of a file that may be the directory of the tasks.
pub fn counts_tasks(nr: u32, a: &[u64; 6]) -> bool {
    let at = match nr {
        g::__NR_stat | g::__NR_lstat => a[0],
        g::__NR_newfstatat | g::__NR_statx => a[1],
        _ => return false,
    };
    let mut path = [0u8; 64];
    // An empty path stands for the descriptor itself.
    let tells = |path: &[u8]| last_part(path) == b"task" || path.is_empty() && marks::is_marked(a[0]);
    matches!(user::read_str(at, &mut path), Ok(Some(len)) if tells(&path[..len]))
}

/// Whether the path of an open call satisfies [`has_such_name`].
pub fn opens_such(nr: u32, a: &[u64; 6]) -> bool {
    let at = if nr == g::__NR_open { a[0] } else { a[1] };
    // Most paths are short: copy no more than those take.
    names_such::<64>(at).unwrap_or_else(|| names_such::<512>(at).unwrap_or(false))
}

/// As [`opens_such`], for the path at `at` if it has less than `N` bytes; none for a longer one, or for one that cannot
/// be read.
#[inline(never)]
fn names_such<const N: usize>(at: u64) -> Option<bool> {
    let mut path = [0u8; N];
    user::read_str(at, &mut path).ok()?.map(|len| has_such_name(&path[..len]))
}

/// Device and inode, and whether the file is a directory; none if the call failed.
fn describe(ret: i64, stat: &[u64; 18]) -> Option<([u64; 2], bool)> {
    const MODE_AT: usize = 3;
    let is_dir = stat[MODE_AT] as u32 & g::S_IFMT == g::S_IFDIR;
    (ret == 0).then_some(([stat[0], stat[1]], is_dir))
}

/// What is behind a descriptor; none for a file that is not this process's.
fn kind_of(fd: u64) -> Option<Kind> {
    let mut stat = [0u64; 18];
    let at = stat.as_mut_ptr() as u64;
    // SAFETY: the kernel writes one `struct stat`, 144 bytes.
    let ret = unsafe { calls::raw_syscall(g::__NR_fstat as u64, &[fd, at, 0, 0, 0, 0]) };
    let (found, is_dir) = describe(ret, &stat)?;
    let mut device = None;
    for (name, kind) in FILES {
        if is_dir != matches!(kind, Kind::Descriptors | Kind::Ranges | Kind::Tasks) && device.is_some() {
            continue;
        }
        // SAFETY: the kernel reads a C string, and writes one `struct stat`.
        let ret = unsafe { calls::raw_syscall(g::__NR_stat as u64, &[name.as_ptr() as u64, at, 0, 0, 0, 0]) };
        let Some((file, _)) = describe(ret, &stat) else { continue };
        if file == found {
            return Some(kind);
        }
        // The first look says whether the descriptor is of /proc at all.
        if file[0] != found[0] {
            return None;
        }
        device = Some(file[0]);
    }
    None
}

/// Performs a call on a marked descriptor. Returns its answer, or none where the kernel answers as ever. Must run on
/// the agent's stack, with every signal blocked. `call` makes one call of the program's.
pub fn call(
    space: &'static Space,
    b: &ThreadBlock,
    (nr, sp): (u32, u64),
    a: &[u64; 6],
    call: &mut dyn FnMut(u64, &[u64; 6]) -> i64,
) -> Option<i64> {
    if shown::is_on()
        && let Some(told) = ram::behind(a[0])
    {
        return ram::call(space, b.foreign.get(), nr, a, told);
    }
    let Some(kind) = kind_of(a[0]) else {
        marks::unmark(a[0]);
        return None;
    };
    let mem = SpaceMemory::new(space, b.ctx(), sp);
    match kind {
        Kind::Memory => memory::call(&mem, nr, a),
        Kind::Text => text::call(&mem, nr, a),
        Kind::Tasks if counts::tells_links(nr) => {
            let ret = guard::call(&mem, nr as u64, a, call);
            if ret == 0 && tasks::would_be_counted(space) {
                counts::correct_links(nr, a);
            }
            Some(ret)
        }
        Kind::Counts if tasks::would_be_counted(space) => counts::read(nr, a, || guard::call(&mem, nr as u64, a, call)),
        Kind::Counts => None,
        Kind::Descriptors | Kind::Ranges | Kind::Tasks => {
            let is_hidden = |name: &[u8]| match kind {
                Kind::Descriptors => names::number(name).is_some_and(|fd| crate::kept::fds::is_protected(space, fd)),
                Kind::Tasks => names::number(name).is_some_and(|tid| tasks::is_ebbs(space, tid)),
                _ => names::range(name).is_some_and(|(start, end)| texts::is_hidden(start, end)),
            };
            names::call(&mem, nr, a, &is_hidden, call)
        }
    }
}

/// The parts of a call's buffer, vectored or plain, one after the other.
struct Parts {
    /// Address of the vector, and how many entries it has; none for a plain buffer.
    vector: Option<(u64, u64)>,
    plain: (u64, u64),
    index: u64,
}

impl Parts {
    fn of(nr: u32, a: &[u64; 6]) -> Self {
        let is_vector = matches!(
            nr,
            g::__NR_readv | g::__NR_preadv | g::__NR_preadv2 | g::__NR_writev | g::__NR_pwritev | g::__NR_pwritev2
        );
        let vector = is_vector.then_some((a[1], (a[2] as u32 as u64).min(crate::table::visit::IOV_MAX)));
        Self { vector, plain: (a[1], a[2]), index: 0 }
    }

    /// Bytes of all parts, as far as they are below `most`; an error where the vector cannot be read.
    fn bytes(&self, most: u64) -> Result<u64, user::Fault> {
        let (mut all, mut bytes) = (Self { ..*self }, 0);
        while let Some((_, len)) = all.next()? {
            bytes = (bytes + len.min(most)).min(most);
        }
        Ok(bytes)
    }

    /// The next part that is not empty; an error where the vector cannot be read.
    fn next(&mut self) -> Result<Option<(u64, u64)>, user::Fault> {
        let Some((at, count)) = self.vector else {
            let is_first = self.index == 0 && self.plain.1 > 0;
            self.index = 1;
            return Ok(is_first.then_some(self.plain));
        };
        while self.index < count {
            let [base, len] = user::read::<[u64; 2]>(at.wrapping_add(self.index * 16))?;
            self.index += 1;
            if len > 0 {
                return Ok(Some((base, len)));
            }
        }
        Ok(None)
    }
}

/// Copies what was read to the call's buffer. Returns the call's answer: how many bytes arrived, or EFAULT if none did.
fn give(nr: u32, a: &[u64; 6], bytes: &[u8]) -> i64 {
    let mut parts = Parts::of(nr, a);
    let mut done = 0;
    while done < bytes.len() {
        let Ok(Some((buffer, len))) = parts.next() else { break };
        let end = done + (bytes.len() - done).min(len as usize);
        let mut to = buffer;
        while done < end {
            // The next page may not be there.
            let step = (end - done).min((PAGE_BYTES - to % PAGE_BYTES) as usize);
            // SAFETY: the agent's side is `bytes`; the program named the other side for what it reads.
            if !unsafe { copy::copy(to, bytes[done..].as_ptr() as u64, step) } {
                return if done > 0 { done as i64 } else { -(e::EFAULT as i64) };
            }
            (done, to) = (done + step, to.wrapping_add(step as u64));
        }
    }
    done as i64
}

/// The position at which a call reads or writes; none if that is the file's own position.
fn position(nr: u32, a: &[u64; 6]) -> Option<u64> {
    match nr {
        g::__NR_pread64 | g::__NR_pwrite64 | g::__NR_preadv | g::__NR_pwritev => Some(a[3]),
        g::__NR_preadv2 | g::__NR_pwritev2 => (a[3] != u64::MAX).then_some(a[3]),
        _ => None,
    }
}

fn is_read(nr: u32) -> bool {
    matches!(nr, g::__NR_read | g::__NR_pread64 | g::__NR_readv | g::__NR_preadv | g::__NR_preadv2)
}

/// True of the calls that come here: those that read or write, list a directory or describe the file.
pub fn concerns(nr: u32) -> bool {
    matches!(
        nr,
        g::__NR_write
            | g::__NR_pwrite64
            | g::__NR_writev
            | g::__NR_pwritev
            | g::__NR_pwritev2
            | g::__NR_getdents
            | g::__NR_getdents64
            | g::__NR_fstat
    ) || is_read(nr)
}

/// The file's own position.
fn tell(fd: u64) -> i64 {
    seek(fd, 0, g::SEEK_CUR)
}

fn seek(fd: u64, offset: u64, whence: u32) -> i64 {
    // SAFETY: no effect on memory.
    unsafe { calls::raw_syscall(g::__NR_lseek as u64, &[fd, offset, whence as u64, 0, 0, 0]) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    #[test]
    fn names_are_looked_at_by_their_last_part() {
        for path in [
            "/proc/self/maps",
            "maps",
            "/proc/12/fd/",
            "/dev/fd",
            "//",
            ".",
            "/proc/self/task/7/smaps",
            "self/task/",
            "stat",
        ] {
            assert!(has_such_name(path.as_bytes()), "{path}");
        }
        for path in ["/proc/self/maps2", "/proc/self/mem/x", "/etc/passwd", "/proc/self/fd/3", "mema"] {
            assert!(!has_such_name(path.as_bytes()), "{path}");
        }
    }

    #[test]
    fn a_file_is_known_by_what_it_is() {
        let kind = |path: &str| {
            let file = std::fs::File::open(path).expect("it is there");
            kind_of(file.as_raw_fd() as u64)
        };
        let own = std::process::id();
        assert_eq!(kind("/proc/self/maps"), Some(Kind::Text));
        assert_eq!(kind(&format!("/proc/{own}/smaps")), Some(Kind::Text));
        assert_eq!(kind("/proc/thread-self/mem"), Some(Kind::Memory));
        assert_eq!(kind("/dev/fd/"), Some(Kind::Descriptors));
        assert_eq!(kind("/proc/self/fdinfo"), Some(Kind::Descriptors));
        let mut other = std::process::Command::new("cat").stdin(std::process::Stdio::piped()).spawn().expect("cat");
        assert_eq!(kind(&format!("/proc/{}/maps", other.id())), None);
        drop(other.stdin.take());
        other.wait().expect("it ends");
        assert_eq!(kind("/proc/self/status"), Some(Kind::Counts));
        assert_eq!(kind(&format!("/proc/{own}/task/")), Some(Kind::Tasks));
        assert_eq!((kind("/proc/stat"), kind("/proc/self/limits")), (None, None));
        assert_eq!(kind("/"), None);
        assert_eq!(kind_of(u64::MAX), None);
    }

    #[test]
    fn a_look_at_the_tasks_is_known_by_call_and_path() {
        let path = c"self/task/".as_ptr() as u64;
        assert!(
            counts_tasks(g::__NR_newfstatat, &[3, path, 0, 0, 0, 0])
                && counts_tasks(g::__NR_stat, &[path, 0, 0, 0, 0, 0])
        );
        assert!(!counts_tasks(g::__NR_stat, &[c"tasks".as_ptr() as u64, 0, 0, 0, 0, 0]));
        assert!(!counts_tasks(g::__NR_open, &[path; 6]));
    }

    #[test]
    fn marks_are_of_single_numbers() {
        marks::mark(4000);
        assert!(
            marks::is_marked(4000) && !marks::is_marked(4001) && !marks::is_marked(u64::MAX) && !marks::is_marked(5000)
        );
        marks::mark_like(4000, 4002);
        marks::mark_like(4001, 4003);
        assert!(marks::is_marked(4002) && !marks::is_marked(4003));
        marks::unmark(4000);
        marks::unmark(4002);
        marks::mark(-1);
        marks::mark(5000);
        assert!(!marks::is_marked(4000) && !marks::is_marked(4002) && !marks::is_marked(5000));
    }
}
