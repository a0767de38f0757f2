//! userfaultfd: registration and the four ways to change a page table entry.
//!
//! The system call makes one. Where it is refused (EPERM), as by a container's seccomp filter, `/dev/userfaultfd` does (Linux
//! 6.1), if the process may open it. That device stays open: a fork's child needs a userfaultfd of its own, and may be unable to
//! open the device by then, after a chroot or a change of user. An exec closes it.
//!
//! Errnos become meanings here: [`UffdError`] has what the engine must tell apart.

use super::{Errno, call};
use crate::base::PAGE;
use linux_raw_sys::general as g;

const FEATURE_PAGEFAULT_FLAG_WP: u64 = 1 << 0;
const FEATURE_SIGBUS: u64 = 1 << 7;
const FEATURE_WP_HUGETLBFS_SHMEM: u64 = 1 << 12;
const FEATURE_MOVE: u64 = 1 << 16;
const REGISTER_MISSING: u64 = 1;
const REGISTER_WP: u64 = 2;
const WP_ON: u64 = 1;
const MODE_DONTWAKE: u64 = 1;
/// `UFFDIO_COPY_MODE_WP`.
const COPY_WP: u64 = 1 << 1;
const MOVE_DONTWAKE: u64 = 1;
const MOVE_HOLES: u64 = 2;

const fn iowr(nr: u64, size: usize) -> u64 {
    (3 << 30) | ((size as u64) << 16) | (0xaa << 8) | nr
}

/// Flags that userfaultfd(2) is called with.
pub const FLAGS: u64 = (g::O_CLOEXEC | g::O_NONBLOCK | g::UFFD_USER_MODE_ONLY) as u64;
/// Requests that Ebb makes of an open userfaultfd.
pub const REQUESTS: [u64; 5] = [API, REGISTER, COPY, MOVE, WRITE_PROTECT];
const API: u64 = iowr(0x3f, 24);
const REGISTER: u64 = iowr(0, 32);
const COPY: u64 = iowr(3, 40);
const MOVE: u64 = iowr(5, 40);
const WRITE_PROTECT: u64 = iowr(6, 24);
/// Request to the device: a new userfaultfd, `USERFAULTFD_IOC_NEW`.
pub const NEW: u64 = 0xaa << 8;
const DEVICE_FLAGS: u64 = (g::O_RDWR | g::O_CLOEXEC) as u64;
const DEVICE: &core::ffi::CStr = c"/dev/userfaultfd";
/// In place of the device's descriptor: the system call makes the userfaultfds.
const NO_DEVICE: i32 = -1;

/// What a refused operation means.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum UffdError {
    /// The destination is mapped already.
    Exists,
    /// Source or destination is not registered, or is gone.
    NotRegistered,
    /// MOVE: the page is shared with another process or pinned by the kernel.
    Shared,
    /// The kernel asks to try again.
    Again,
    /// The kernel has no memory (for example a cgroup limit).
    NoMemory,
    /// The two mappings do not fit together (protection, lock state), or MOVE is not known.
    Mismatch,
    /// Anything else.
    Other(Errno),
}

impl From<Errno> for UffdError {
    fn from(e: Errno) -> Self {
        match e {
            Errno::EXIST => Self::Exists,
            Errno::NOENT => Self::NotRegistered,
            Errno::BUSY => Self::Shared,
            Errno::AGAIN | Errno::INTR => Self::Again,
            Errno::NOMEM => Self::NoMemory,
            Errno::INVAL => Self::Mismatch,
            e => Self::Other(e),
        }
    }
}

/// An open userfaultfd in SIGBUS mode.
#[derive(Clone, Copy, Debug)]
pub struct Uffd {
    fd: i32,
    /// The device that made it, open, or [`NO_DEVICE`].
    device: i32,
    has_move: bool,
    protects_for_sure: bool,
}

impl Uffd {
    /// Opens a userfaultfd, without any privilege: user-mode faults only, each answered by SIGBUS in the thread that
    /// took it. `INVAL` where the kernel lacks a feature that Ebb needs. Where neither system call nor device make one, the error is
    /// the system call's.
    pub fn open() -> Result<Self, Errno> {
        // SAFETY: creates a descriptor, touches no memory.
        match unsafe { call(g::__NR_userfaultfd, [FLAGS, 0, 0, 0, 0, 0]) } {
            Ok(fd) => Self::shake_hands(fd as i32, NO_DEVICE),
            Err(refused @ (Errno::PERM | Errno::ACCES)) => {
                // With a higher limit, another try may do.
                Self::open_by_device().map_err(|error| if error == Errno::MFILE { error } else { refused })
            }
            // ENOSYS comes from old kernels and from emulators: those do not follow what the device would make.
            Err(error) => Err(error),
        }
    }

    /// Opens one by the device.
    pub fn open_by_device() -> Result<Self, Errno> {
        let device = open_device()?;
        let made = Self::of_device(device);
        if made.is_err() {
            super::close(device);
        }
        made
    }

    fn of_device(device: i32) -> Result<Self, Errno> {
        // SAFETY: creates a descriptor, touches no memory.
        let fd = unsafe { call(g::__NR_ioctl, [device as u64, NEW, FLAGS, 0, 0, 0]) }? as i32;
        Self::shake_hands(fd, device)
    }

    /// Opens one for the memory of a fork's child, which inherited this one, and closes this one. The device stays open.
    pub fn open_in_child(self) -> Result<Self, Errno> {
        super::close(self.fd);
        super::fd::beyond_limit(|| match self.device {
            NO_DEVICE => Self::open(),
            device => Self::of_device(device),
        })
    }

    /// Closes it, and the device that made it.
    pub fn close(self) {
        self.fds().into_iter().filter(|fd| *fd >= 0).for_each(super::close);
    }

    fn shake_hands(fd: i32, device: i32) -> Result<Self, Errno> {
        // The kernel refuses the handshake if it lacks any feature named there, so ask with MOVE first.
        for has_move in [true, false] {
            let want = FEATURE_SIGBUS | FEATURE_PAGEFAULT_FLAG_WP | if has_move { FEATURE_MOVE } else { 0 };
            let mut api = [0xaau64, want, 0];
            // SAFETY: the kernel reads and writes the three words of `struct uffdio_api`.
            let got = unsafe { call(g::__NR_ioctl, [fd as u64, API, api.as_mut_ptr() as u64, 0, 0, 0]) };
            if got.is_ok() {
                let protects_for_sure = api[1] & FEATURE_WP_HUGETLBFS_SHMEM != 0;
                return Ok(Self { fd, device, has_move, protects_for_sure });
            }
        }
        super::close(fd);
        Err(Errno::INVAL)
    }

    /// Moves its descriptors to numbers out of the program's way. What finds no number there keeps the one that it has.
    pub fn raise(self) -> Self {
        let [fd, device] = self.fds().map(|fd| if fd >= 0 { super::fd::raise(fd).unwrap_or(fd) } else { fd });
        Self { fd, device, ..self }
    }

    /// Moves its descriptor `fd` to another number, because the program wants this one. On failure all stays as it is.
    pub fn move_away(self, fd: i32) -> Result<Self, Errno> {
        let moved = super::fd::raise(fd)?;
        let [fd, device] = self.fds().map(|own| if own == fd { moved } else { own });
        Ok(Self { fd, device, ..self })
    }

    /// Whether the device made it.
    pub fn is_by_device(&self) -> bool {
        self.device != NO_DEVICE
    }

    /// Its descriptors: its own, and that of the device that made it, or -1.
    pub fn fds(&self) -> [i32; 2] {
        [self.fd, self.device]
    }

    /// The descriptor.
    pub fn fd(&self) -> i32 {
        self.fd
    }

    /// True when the kernel offers MOVE.
    pub fn has_move(&self) -> bool {
        self.has_move
    }

    /// True when a protected page stays protected. Before Linux 5.19, COPY did not protect pages of memory that was not
    /// writable at the moment, and fork and swapoff lost the mark. A feature that came with the other work of 5.19 tells.
    pub fn protects_for_sure(&self) -> bool {
        self.protects_for_sure
    }

    /// Has faults on missing and on write-protected pages of the range answered by SIGBUS. Harmless when done twice.
    pub fn register(&self, at: usize, len: usize) -> Result<(), UffdError> {
        let mut arg = [at as u64, len as u64, REGISTER_MISSING | REGISTER_WP, 0];
        // SAFETY: the kernel reads and writes the four words of `struct uffdio_register`.
        unsafe { self.ioctl(REGISTER, arg.as_mut_ptr()) }
    }

    /// Maps copies of `len` bytes at `src` to the missing range `dst`. On error `.0` bytes were mapped before it.
    ///
    /// The kernel refuses a range that spans several of its mappings, and the caller cannot know those. Such a range is
    /// copied page by page.
    pub fn copy(&self, dst: usize, src: usize, len: usize) -> Result<(), (usize, UffdError)> {
        self.copy_with(dst, src, len, MODE_DONTWAKE)
    }

    /// As [`Self::copy`], but maps the pages write-protected: the first write is a fault.
    pub fn copy_protected(&self, dst: usize, src: usize, len: usize) -> Result<(), (usize, UffdError)> {
        self.copy_with(dst, src, len, MODE_DONTWAKE | COPY_WP)
    }

    fn copy_with(&self, dst: usize, src: usize, len: usize, mode: u64) -> Result<(), (usize, UffdError)> {
        let mut done = 0;
        let mut step = len;
        loop {
            let n = step.min(len - done);
            let mut arg = [(dst + done) as u64, (src + done) as u64, n as u64, mode, 0];
            // SAFETY: `struct uffdio_copy`; the kernel maps new pages only where none are.
            let got = unsafe { self.ioctl(COPY, arg.as_mut_ptr()) };
            let copied = arg[4] as i64;
            if copied > 0 {
                done += copied as usize;
            }
            match got {
                Ok(()) if done >= len => return Ok(()),
                Ok(()) => {}
                Err(UffdError::Again) => {}
                Err(UffdError::NotRegistered) if n > 4096 => step = 4096,
                Err(e) => return Err((done, e)),
            }
        }
    }

    /// Moves the pages of `src` to the empty, registered range `dst`, each page atomically. Holes stay holes. On error
    /// `.0` bytes were moved before it.
    ///
    /// Nobody else may map anything in `dst`. Linux 6.18 loses count of what it moves right after a page table entry
    /// changed under it, as it does when a page that is shared since a fork is copied. It keeps the error of its first
    /// try, does the pages again, and finds them in `dst`. So a page that is in `dst`, and no longer in `src`, was moved.
    pub fn move_pages(&self, dst: usize, src: usize, len: usize) -> Result<(), (usize, UffdError)> {
        self.move_with(dst, src, len, MOVE_DONTWAKE | MOVE_HOLES)
    }

    /// As [`Self::move_pages`], for a range without holes.
    pub fn move_resident(&self, dst: usize, src: usize, len: usize) -> Result<(), (usize, UffdError)> {
        self.move_with(dst, src, len, MOVE_DONTWAKE)
    }

    fn move_with(&self, dst: usize, src: usize, len: usize, mode: u64) -> Result<(), (usize, UffdError)> {
        let mut done = 0;
        // An EAGAIN without progress means that somebody else holds a page for a moment.
        let mut idle_tries = 0;
        loop {
            let mut arg = [(dst + done) as u64, (src + done) as u64, (len - done) as u64, mode, 0];
            // SAFETY: `struct uffdio_move`; both ranges are the caller's to change.
            let got = unsafe { self.ioctl(MOVE, arg.as_mut_ptr()) };
            let moved = arg[4] as i64;
            if moved > 0 {
                done += moved as usize;
                idle_tries = 0;
            }
            match got {
                Ok(()) if done >= len => return Ok(()),
                Ok(()) => {}
                Err(UffdError::Again) if idle_tries < 64 => idle_tries += 1,
                Err(UffdError::Exists) if done < len && super::is_resident(src + done) == Some(false) => {
                    done += PAGE;
                    if done >= len {
                        return Ok(());
                    }
                }
                Err(e) => return Err((done, e)),
            }
        }
    }

    /// Write-protects the mapped pages of the range, or lifts the protection.
    ///
    /// The kernel refuses a range of which a part is not registered, and before Linux 6.4 one that spans several of its mappings. Such a
    /// range is done page by page: up to the first failure to protect a page, and all of it to lift the protection.
    pub fn write_protect(&self, at: usize, len: usize, on: bool) -> Result<(), UffdError> {
        match self.write_protect_once(at, len, on) {
            Err(UffdError::NotRegistered) if len > PAGE => {
                let mut all = Ok(());
                for page in (at..at + len).step_by(PAGE) {
                    all = all.and(self.write_protect_once(page, PAGE, on));
                    if on && all.is_err() {
                        break;
                    }
                }
                all
            }
            result => result,
        }
    }

    fn write_protect_once(&self, at: usize, len: usize, on: bool) -> Result<(), UffdError> {
        loop {
            let mut arg = [at as u64, len as u64, if on { WP_ON } else { 0 }];
            // SAFETY: `struct uffdio_writeprotect`; changes protection only.
            match unsafe { self.ioctl(WRITE_PROTECT, arg.as_mut_ptr()) } {
                Err(UffdError::Again) => {}
                other => return other,
            }
        }
    }

    /// # Safety
    /// `arg` must point to the structure that `request` names.
    unsafe fn ioctl(&self, request: u64, arg: *mut u64) -> Result<(), UffdError> {
        // SAFETY: forwarded contract.
        unsafe { call(g::__NR_ioctl, [self.fd as u64, request, arg as u64, 0, 0, 0]) }?;
        Ok(())
    }
}

/// Opens the device that makes userfaultfds.
fn open_device() -> Result<i32, Errno> {
    // SAFETY: the path is NUL-terminated and only read.
    unsafe { call(g::__NR_openat, [g::AT_FDCWD as u64, DEVICE.as_ptr() as u64, DEVICE_FLAGS, 0, 0, 0]) }
        .map(|fd| fd as i32)
}
