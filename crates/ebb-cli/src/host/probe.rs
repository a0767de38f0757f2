//! Tries the kernel features that Ebb needs, each in a function of its own. Leaves no trace.
//!
//! An attempt that could end the process runs in a child.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr;
use std::sync::atomic::{AtomicI32, AtomicU8, Ordering::Relaxed};

use linux_raw_sys::general as g;
use linux_raw_sys::ioctl;
use linux_raw_sys::prctl;

use crate::base::sys::{self, check};

const PAGE_BYTES: usize = 4096;

/// `_IOWR(UFFDIO, _UFFDIO_MOVE, struct uffdio_move)`.
const UFFDIO_MOVE: u32 = 0xc028_aa05;

/// `UFFDIO_WRITEPROTECT_MODE_WP`.
const PROTECT: u64 = 1;

/// Features of userfaultfd, as in `UFFD_FEATURE_*`.
pub const FEATURE_SIGBUS: u64 = g::UFFD_FEATURE_SIGBUS as u64;
pub const FEATURE_WRITE_PROTECT: u64 = g::UFFD_FEATURE_PAGEFAULT_FLAG_WP as u64;
pub const FEATURE_MOVE: u64 = g::UFFD_FEATURE_MOVE as u64;

/// A userfaultfd for user-mode faults only, which needs no privilege.
pub struct UserFault(OwnedFd);

/// The device that makes userfaultfds, since Linux 6.1.
pub const DEVICE: &str = "/dev/userfaultfd";
/// `USERFAULTFD_IOC_NEW`.
const NEW: u32 = 0xaa << 8;
const FLAGS: libc::c_int = libc::O_CLOEXEC | libc::O_NONBLOCK | g::UFFD_USER_MODE_ONLY as i32;

/// What made a userfaultfd.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Maker {
    SystemCall,
    Device,
}

impl UserFault {
    /// Opens one as the agent does: by the system call, or by the device where that is refused. The error is the system call's.
    pub fn open() -> io::Result<(Self, Maker)> {
        // SAFETY: makes a descriptor and touches no memory.
        match check(unsafe { libc::syscall(libc::SYS_userfaultfd, FLAGS) } as i32) {
            // SAFETY: a descriptor just made, which nobody else knows.
            Ok(fd) => Ok((Self(unsafe { OwnedFd::from_raw_fd(fd) }), Maker::SystemCall)),
            Err(refused) if !matches!(refused.raw_os_error(), Some(libc::EPERM | libc::EACCES)) => Err(refused),
            Err(refused) => Self::by_device().map(|made| (made, Maker::Device)).map_err(|_| refused),
        }
    }

    fn by_device() -> io::Result<Self> {
        let device = std::fs::OpenOptions::new().read(true).write(true).open(DEVICE)?;
        // SAFETY: makes a descriptor and touches no memory.
        let fd = check(unsafe { libc::ioctl(device.as_raw_fd(), NEW as libc::Ioctl, FLAGS) })?;
        // SAFETY: as above.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Performs the handshake: asks for `features`, and returns all features that the kernel offers.
    pub fn handshake(&self, features: u64) -> io::Result<u64> {
        let mut api = g::uffdio_api { api: g::UFFD_API as u64, features, ioctls: 0 };
        self.call(ioctl::UFFDIO_API, &mut api)?;
        Ok(api.features)
    }

    fn call<T>(&self, request: u32, argument: &mut T) -> io::Result<()> {
        // SAFETY: every caller in this file passes the structure that belongs to the request.
        check(unsafe { libc::ioctl(self.0.as_raw_fd(), request as libc::Ioctl, ptr::from_mut(argument)) }).map(drop)
    }

    fn register(&self, map: &Mapping) -> io::Result<()> {
        let mut register = g::uffdio_register {
            range: g::uffdio_range { start: map.at as u64, len: map.len as u64 },
            mode: (g::UFFDIO_REGISTER_MODE_MISSING | g::UFFDIO_REGISTER_MODE_WP) as u64,
            ioctls: 0,
        };
        self.call(ioctl::UFFDIO_REGISTER, &mut register)
    }
}

/// All features that the kernel offers.
pub fn features() -> io::Result<u64> {
    UserFault::open()?.0.handshake(0)
}

/// What makes userfaultfds here.
pub fn maker() -> io::Result<Maker> {
    UserFault::open().map(|(_, maker)| maker)
}

/// Private anonymous memory, unmapped when dropped.
struct Mapping {
    at: *mut u8,
    len: usize,
}

impl Mapping {
    fn new(len: usize) -> io::Result<Self> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a fresh mapping at an address of the kernel's choice disturbs nobody.
        let at = unsafe { libc::mmap(ptr::null_mut(), len, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { at: at.cast(), len })
    }

    fn write(&self, byte: u8) {
        // SAFETY: the first byte of a live, writable mapping.
        unsafe { self.at.write_volatile(byte) };
    }

    fn read(&self) -> u8 {
        // SAFETY: the first byte of a live, readable mapping.
        unsafe { self.at.read_volatile() }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own.
        unsafe { libc::munmap(self.at.cast(), self.len) };
    }
}

fn lost() -> io::Error {
    io::Error::other("the page's content was lost")
}

/// Moves a page by UFFDIO_MOVE.
pub fn move_page() -> io::Result<()> {
    let (fault, _) = UserFault::open()?;
    fault.handshake(FEATURE_SIGBUS | FEATURE_MOVE)?;
    let (from, to) = (Mapping::new(PAGE_BYTES)?, Mapping::new(PAGE_BYTES)?);
    from.write(42);
    fault.register(&to)?;
    let mut request =
        g::uffdio_move { dst: to.at as u64, src: from.at as u64, len: PAGE_BYTES as u64, mode: 0, move_: 0 };
    fault.call(UFFDIO_MOVE, &mut request)?;
    if to.read() == 42 { Ok(()) } else { Err(lost()) }
}

/// Fills a page by UFFDIO_COPY, then write-protects it.
pub fn copy_and_protect() -> io::Result<()> {
    let (fault, _) = UserFault::open()?;
    fault.handshake(FEATURE_SIGBUS | FEATURE_WRITE_PROTECT)?;
    let (from, to) = (Mapping::new(PAGE_BYTES)?, Mapping::new(PAGE_BYTES)?);
    from.write(42);
    fault.register(&to)?;
    let mut copy = g::uffdio_copy { dst: to.at as u64, src: from.at as u64, len: PAGE_BYTES as u64, mode: 0, copy: 0 };
    fault.call(ioctl::UFFDIO_COPY, &mut copy)?;
    let mut protect = g::uffdio_writeprotect {
        range: g::uffdio_range { start: to.at as u64, len: PAGE_BYTES as u64 },
        mode: PROTECT,
    };
    fault.call(ioctl::UFFDIO_WRITEPROTECT, &mut protect)?;
    if to.read() == 42 { Ok(()) } else { Err(lost()) }
}

/// Drops a page of this process by process_madvise(2), which can drop many ranges in one call.
pub fn process_madvise() -> io::Result<()> {
    // SAFETY: makes a descriptor for this process.
    let fd = check(unsafe { libc::syscall(libc::SYS_pidfd_open, libc::getpid(), 0) } as i32)?;
    // SAFETY: a descriptor just made, which nobody else knows.
    let this = unsafe { OwnedFd::from_raw_fd(fd) };
    let map = Mapping::new(PAGE_BYTES)?;
    map.write(42);
    let range = libc::iovec { iov_base: map.at.cast(), iov_len: map.len };
    // SAFETY: the one range is a mapping of this function's own.
    check(unsafe {
        libc::syscall(libc::SYS_process_madvise, this.as_raw_fd(), &raw const range, 1, libc::MADV_DONTNEED, 0)
    } as i32)?;
    if map.read() == 0 { Ok(()) } else { Err(io::Error::other("the page is still there")) }
}

/// Reserves `len` bytes of address space without touching them.
pub fn reserve(len: usize) -> io::Result<()> {
    Mapping::new(len).map(drop)
}

/// The byte that the kernel reads before each system call (Syscall User Dispatch).
static SELECTOR: AtomicU8 = AtomicU8::new(0);
/// `si_code` of the SIGSYS that arrived.
static CAUGHT: AtomicI32 = AtomicI32::new(0);

/// The `si_code` of a call that Syscall User Dispatch caught.
const SYS_USER_DISPATCH: i32 = 2;

extern "C" fn on_sigsys(_signal: libc::c_int, info: *mut libc::siginfo_t, _context: *mut libc::c_void) {
    // First, because the return from this handler is a system call too.
    SELECTOR.store(prctl::SYSCALL_DISPATCH_FILTER_ALLOW as u8, Relaxed);
    // SAFETY: the kernel passes a whole `siginfo_t` to a handler with SA_SIGINFO.
    CAUGHT.store(unsafe { (*info).si_code }, Relaxed);
}

/// Exit status of the child that caught no call. 0 says that a call was caught; any other status is an errno.
const NOT_CAUGHT: i32 = 255;

fn catch_one_call() -> i32 {
    // SAFETY: this runs in a child of its own between fork and _exit: only system calls, and a handler of atomics.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_sigsys as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO;
        libc::sigaction(libc::SIGSYS, &action, ptr::null_mut());
        let only = sys::one_signal(libc::SIGSYS);
        libc::sigprocmask(libc::SIG_UNBLOCK, &only, ptr::null_mut());
        let mode = prctl::PR_SYS_DISPATCH_ON as libc::c_ulong;
        if libc::prctl(prctl::PR_SET_SYSCALL_USER_DISPATCH as i32, mode, 0, 0, SELECTOR.as_ptr()) == -1 {
            return *libc::__errno_location();
        }
        SELECTOR.store(prctl::SYSCALL_DISPATCH_FILTER_BLOCK as u8, Relaxed);
        libc::syscall(libc::SYS_getppid);
        SELECTOR.store(prctl::SYSCALL_DISPATCH_FILTER_ALLOW as u8, Relaxed);
    }
    if CAUGHT.load(Relaxed) == SYS_USER_DISPATCH { 0 } else { NOT_CAUGHT }
}

/// Catches one system call by Syscall User Dispatch, in a child.
pub fn syscall_user_dispatch() -> io::Result<()> {
    // SAFETY: the child calls only what is safe between fork and _exit.
    let child = check(unsafe { libc::fork() })?;
    if child == 0 {
        let status = catch_one_call();
        // SAFETY: ends the child without running anything of the parent's.
        unsafe { libc::_exit(status) };
    }
    let mut status = 0;
    loop {
        // SAFETY: `status` is a whole int, and the child is this function's own.
        match check(unsafe { libc::waitpid(child, &mut status, 0) }) {
            Ok(_) => break,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    match (libc::WIFEXITED(status), libc::WEXITSTATUS(status)) {
        (true, 0) => Ok(()),
        (true, NOT_CAUGHT) => Err(io::Error::other("the call was not caught")),
        (true, errno) => Err(io::Error::from_raw_os_error(errno)),
        (false, _) => Err(io::Error::other(format!("the attempt died of signal {}", libc::WTERMSIG(status)))),
    }
}
