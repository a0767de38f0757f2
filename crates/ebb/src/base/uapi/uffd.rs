//! userfaultfd: registration and the four ways to change a page table entry.
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
    has_move: bool,
    protects_for_sure: bool,
}

impl Uffd {
    /// Opens a userfaultfd, without any privilege: user-mode faults only, each answered by SIGBUS in the thread that
    /// took it. `INVAL` where the kernel lacks a feature that Ebb needs.
    pub fn open() -> Result<Self, Errno> {
        // SAFETY: creates a descriptor, touches no memory.
        let fd = unsafe { call(g::__NR_userfaultfd, [FLAGS, 0, 0, 0, 0, 0])? } as i32;
        // The kernel refuses the handshake if it lacks any feature named there, so ask with MOVE first.
        for has_move in [true, false] {
            let want = FEATURE_SIGBUS | FEATURE_PAGEFAULT_FLAG_WP | if has_move { FEATURE_MOVE } else { 0 };
            let mut api = [0xaau64, want, 0];
            // SAFETY: the kernel reads and writes the three words of `struct uffdio_api`.
            let got = unsafe { call(g::__NR_ioctl, [fd as u64, API, api.as_mut_ptr() as u64, 0, 0, 0]) };
            if got.is_ok() {
                return Ok(Self { fd, has_move, protects_for_sure: api[1] & FEATURE_WP_HUGETLBFS_SHMEM != 0 });
            }
        }
        super::close(fd);
        Err(Errno::INVAL)
    }

    /// Moves the descriptor to a number out of the program's way.
    pub fn raise(self) -> Result<Self, Errno> {
        Ok(Self { fd: super::fd::raise(self.fd)?, ..self })
    }

    /// The same userfaultfd under another number.
    pub fn renumbered(self, fd: i32) -> Result<Self, Errno> {
        Ok(Self { fd, ..self })
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
