//! Which files belong to drivers that may keep what they are given in a call.
//!
//! Files, directories, pipes, sockets and block devices are done with the program's memory when a call is over. A
//! socket keeps only what the program names by `setsockopt`. The character devices listed here are done with it, too.
//! All other character devices may be drivers that pin memory. So may files without a type, because a driver hands out
//! such files beside its device.

use crate::base::calls;
use core::mem::size_of;
use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering::Relaxed;
use ebb::uapi::fd::Kind;
use ebb::uapi::{self, Errno};
use linux_raw_sys::general as g;

/// Major numbers: memory, terminals old and new, consoles, printers, virtual consoles, input, sound, pseudo-terminals.
const HARMLESS_MAJORS: [u32; 18] = [1, 2, 3, 4, 5, 6, 7, 13, 14, 116, 128, 129, 130, 131, 136, 137, 138, 139];
const MISC: u32 = 10;
/// Minor numbers of [`MISC`]: watchdog, settings of the machine, tun, uinput, fuse, kvm, autofs, device mapper, loop
/// control. kvm keeps only what the table has rows for.
const HARMLESS_MISC: [u32; 9] = [130, 144, 200, 223, 229, 232, 235, 236, 237];

/// True if the descriptor's file may belong to such a driver. False for a number that is no descriptor.
pub fn is_driver(fd: i32) -> bool {
    match uapi::fd::kind_of(fd) {
        Ok(Kind::Character { major: MISC, minor }) => !HARMLESS_MISC.contains(&minor),
        Ok(Kind::Character { major, .. }) => !HARMLESS_MAJORS.contains(&major),
        Ok(Kind::Nameless) => !is_named(fd, HARMLESS_NAMELESS),
        Ok(Kind::Other) | Err(_) => false,
    }
}

/// Devices that take commands by write: InfiniBand, SCSI, and an old network of QLogic's. Listed is how their names
/// begin after `/dev/`. The kernel takes these commands only from the process that opened the device, so it is enough
/// to watch what this process opens.
const COMMANDED: [&[u8]; 3] = [b"infiniband/", b"sg", b"ipath"];

/// The process has opened a device of [`COMMANDED`].
static HAS_COMMANDED: AtomicBool = AtomicBool::new(false);

/// Notes that the program has opened the file named `name`.
#[inline(always)]
pub fn note_opened(name: &[u8]) {
    if let Some(device) = name.strip_prefix(b"/dev/") {
        note_device(device);
    }
}

#[cold]
fn note_device(name: &[u8]) {
    if COMMANDED.iter().any(|start| name.starts_with(start)) {
        HAS_COMMANDED.store(true, Relaxed);
    }
}

/// False if no descriptor of this process takes commands.
#[inline(always)]
pub fn may_take_commands() -> bool {
    HAS_COMMANDED.load(Relaxed)
}

/// Files without a type that the kernel itself hands out, by the beginning of their links.
const HARMLESS_NAMELESS: &[&[u8]] = &[
    b"anon_inode:[eventfd]",
    b"anon_inode:[eventpoll]",
    b"anon_inode:[signalfd]",
    b"anon_inode:[timerfd]",
    b"anon_inode:[pidfd]",
    b"anon_inode:[userfaultfd]",
    b"anon_inode:[perf_event]",
    b"anon_inode:[fanotify]",
    b"anon_inode:inotify",
    b"anon_inode:kvm-vm",
    b"anon_inode:kvm-vcpu",
    b"anon_inode:kvm-stats",
];
const GUESTS: &[&[u8]] = &[b"anon_inode:kvm-vm"];

/// True if the link of the descriptor begins with one of `names`.
fn is_named(fd: i32, names: &[&[u8]]) -> bool {
    const PATH_BYTES: usize = 32;
    let mut path = crate::base::text::Line::new();
    path.str("/proc/self/fd/").num(fd as u64).bytes(&[0]);
    // Path and link, on a stack that may be the program's.
    let mut both = [0u8; PATH_BYTES + 64];
    both[..path.as_bytes().len()].copy_from_slice(path.as_bytes());
    let readlink = |both: &mut [u8]| {
        let (path, link) = both.split_at_mut(PATH_BYTES);
        let args = [path.as_ptr() as u64, link.as_mut_ptr() as u64, link.len() as u64, 0, 0, 0];
        // SAFETY: a path that ends with a zero byte, and a buffer of so many bytes.
        match unsafe { calls::raw_syscall(g::__NR_readlink as u64, &args) } {
            e @ ..0 => Err(Errno(-e as i32)),
            n => Ok(n as usize),
        }
    };
    let Ok(n) = uapi::with_own_memory(&mut both, readlink) else { return false };
    names.iter().any(|name| both[PATH_BYTES..PATH_BYTES + n].starts_with(name))
}

/// What a process has open.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Open {
    /// A driver that may keep memory.
    pub driver: bool,
    /// A guest, whose memory must stay resident.
    pub guest: bool,
}

/// Looks through the descriptors of this process. If they cannot be listed, assumes that there are both.
pub fn open_ones() -> Open {
    let mut open = Open::default();
    let Ok(dir) = uapi::open_read(c"/proc/self/fd") else { return Open { driver: true, guest: true } };
    loop {
        let mut entries = [0u64; 256];
        let args = [dir as u64, entries.as_mut_ptr() as u64, size_of::<[u64; 256]>() as u64, 0, 0, 0];
        // SAFETY: the kernel writes at most the length of the buffer.
        let n = unsafe { calls::raw_syscall(g::__NR_getdents64 as u64, &args) };
        if n <= 0 {
            break;
        }
        // SAFETY: the kernel wrote these bytes; any bytes are valid.
        let bytes = unsafe { core::slice::from_raw_parts(entries.as_ptr().cast::<u8>(), n as usize) };
        let mut rest = bytes;
        // struct linux_dirent64: inode, offset, length of the entry in 16 bits, type, name.
        while let [_, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _, low, high, _, name @ ..] = rest {
            let len = u16::from_ne_bytes([*low, *high]) as usize;
            let digits = name.split(|&c| c == 0).next().unwrap_or_default();
            let number = core::str::from_utf8(digits).ok().and_then(|text| text.parse::<i32>().ok());
            if let Some(fd) = number.filter(|fd| *fd != dir) {
                open.driver |= is_driver(fd);
                open.guest |= uapi::fd::kind_of(fd) == Ok(Kind::Nameless) && is_named(fd, GUESTS);
            }
            rest = rest.get(len.max(1)..).unwrap_or_default();
        }
    }
    uapi::close(dir);
    open
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    #[test]
    fn files_of_the_kernels_own_are_no_drivers() {
        let file = std::fs::File::open("/proc/self/exe").unwrap();
        let null = std::fs::File::open("/dev/null").unwrap();
        // SAFETY: new descriptors, closed with the process.
        let others =
            unsafe { [libc::eventfd(0, 0), libc::epoll_create1(0), libc::socket(libc::AF_UNIX, libc::SOCK_DGRAM, 0)] };
        for fd in others.into_iter().chain([file.as_raw_fd(), null.as_raw_fd(), -1]) {
            assert!(!is_driver(fd), "{fd}");
        }
    }

    #[test]
    fn devices_that_take_commands_are_known_by_name() {
        for name in [&b"/dev/null"[..], b"/dev/shm/sg0", b"/tmp/sg0", b"/dev/sda1", b"infiniband/uverbs0"] {
            note_opened(name);
            assert!(!may_take_commands());
        }
        for name in [&b"/dev/sg0"[..], b"/dev/infiniband/uverbs0"] {
            HAS_COMMANDED.store(false, Relaxed);
            note_opened(name);
            assert!(may_take_commands());
        }
    }

    #[test]
    fn a_device_that_is_not_known_may_be_a_driver() {
        let Ok(device) = std::fs::File::open("/dev/cpu_dma_latency") else { return };
        assert!(is_driver(device.as_raw_fd()));
        assert!(open_ones().driver);
    }
}
