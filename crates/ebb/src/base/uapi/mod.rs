//! Raw system calls: the only room of the engine that talks to the kernel.
//!
//! Every wrapper turns an errno into [`Errno`]. No wrapper allocates or touches thread-local storage, and all may be
//! called from a signal handler. Numbers and structures come from `linux-raw-sys`.

pub mod aio;
pub mod cache;
pub mod fd;
mod files;
mod futex;
pub mod kernel;
pub mod later;
mod memory;
pub mod own;
pub mod pagemap;
mod process;
pub mod record_lock;
pub mod stderr;
pub mod thread;
mod time;
pub mod uffd;

#[cfg(feature = "events")]
pub use files::create;
pub use files::{
    allocate, close, memory_file, open_read, open_read_write, open_tmpfile, open_unlinked, pread, pread_exact,
    punch_hole, pwrite, pwrite_all, read, truncate, unsignalled, with_own_memory, write_all, write_mapped,
};
pub use futex::{futex_wait, futex_wait_any, futex_wait_shared, futex_wake, futex_wake_shared, sched_yield};
pub use memory::{
    are_resident, drop_vectored, forward, is_hole, is_mapped, is_resident, leave_ksm, madvise, map_for_now,
    map_nothing_over, map_private_over, map_shared, map_shared_over, may_have_hole, mlock_on_fault, mprotect, munlock,
    munmap, open_reserved, reserve, reserve_aligned, reserve_closed, reserve_shared,
};
pub use process::{
    address_space_limit, exit_group, getpid, getppid, getrandom, is_own_thread, is_thread_gone, kill_self,
    longest_file, nr_cpus, process_exists, take_pending_signal, with_largest_files,
};
pub use time::{
    Usage, calendar_ns, counter_is_forbidden, now_ns, thread_time_ns, times_preempted, usage_of_process,
    usage_of_thread,
};

use core::arch::asm;
use process::{limit, with_hard_limit};

/// A kernel error number, positive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Errno(pub i32);

impl core::fmt::Display for Errno {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "errno {}", self.0)
    }
}

impl core::error::Error for Errno {}

impl Errno {
    /// Operation not permitted.
    pub const PERM: Self = Self(linux_raw_sys::errno::EPERM as i32);
    /// The caller may not do that.
    pub const ACCES: Self = Self(linux_raw_sys::errno::EACCES as i32);
    /// No such entry; for userfaultfd: the range is not registered.
    pub const NOENT: Self = Self(linux_raw_sys::errno::ENOENT as i32);
    /// The file does not know the request.
    pub const NOTTY: Self = Self(linux_raw_sys::errno::ENOTTY as i32);
    /// Nothing there; for a seek: no data follows in the file.
    pub const NXIO: Self = Self(linux_raw_sys::errno::ENXIO as i32);
    /// Interrupted.
    pub const INTR: Self = Self(linux_raw_sys::errno::EINTR as i32);
    /// Bad descriptor.
    pub const BADF: Self = Self(linux_raw_sys::errno::EBADF as i32);
    /// No such system call.
    pub const NOSYS: Self = Self(linux_raw_sys::errno::ENOSYS as i32);
    /// Try again.
    pub const AGAIN: Self = Self(linux_raw_sys::errno::EAGAIN as i32);
    /// Out of memory.
    pub const NOMEM: Self = Self(linux_raw_sys::errno::ENOMEM as i32);
    /// Busy; for MOVE: the page is shared or pinned.
    pub const BUSY: Self = Self(linux_raw_sys::errno::EBUSY as i32);
    /// Exists; for COPY: the page is mapped already.
    pub const EXIST: Self = Self(linux_raw_sys::errno::EEXIST as i32);
    /// Invalid argument.
    pub const INVAL: Self = Self(linux_raw_sys::errno::EINVAL as i32);
    /// A timer has expired.
    pub const TIME: Self = Self(linux_raw_sys::errno::ETIME as i32);
    /// The file is larger than it may be.
    pub const FBIG: Self = Self(linux_raw_sys::errno::EFBIG as i32);
    /// Input/output error.
    pub const IO: Self = Self(linux_raw_sys::errno::EIO as i32);
    /// The user's quota is used up.
    pub const DQUOT: Self = Self(linux_raw_sys::errno::EDQUOT as i32);
    /// Memory that the kernel cannot reach.
    pub const FAULT: Self = Self(linux_raw_sys::errno::EFAULT as i32);
    /// The time is up.
    pub const TIMEDOUT: Self = Self(linux_raw_sys::errno::ETIMEDOUT as i32);
    /// The process has as many descriptors as it may have.
    pub const MFILE: Self = Self(linux_raw_sys::errno::EMFILE as i32);
    /// The system has as many open files as it can have.
    pub const NFILE: Self = Self(linux_raw_sys::errno::ENFILE as i32);
    /// No space left on the device.
    pub const NOSPC: Self = Self(linux_raw_sys::errno::ENOSPC as i32);
    /// No buffer space.
    pub const NOBUFS: Self = Self(linux_raw_sys::errno::ENOBUFS as i32);
    /// The file system is read-only.
    pub const ROFS: Self = Self(linux_raw_sys::errno::EROFS as i32);
}

/// Performs system call `nr`; returns the kernel's raw answer (negative errno on failure).
///
/// # Safety
/// The arguments must be valid for that call, and its effects on memory must be sound for the caller.
#[inline(always)]
pub unsafe fn syscall(nr: u64, a: [u64; 6]) -> i64 {
    let ret: i64;
    // SAFETY: the caller vouches for the call; the kernel preserves everything but rax, rcx and r11.
    unsafe {
        asm!("syscall", inlateout("rax") nr => ret, in("rdi") a[0], in("rsi") a[1], in("rdx") a[2],
             in("r10") a[3], in("r8") a[4], in("r9") a[5], lateout("rcx") _, lateout("r11") _, options(nostack));
    }
    ret
}

/// Splits a raw answer into value and errno.
#[inline]
pub fn check(ret: i64) -> Result<u64, Errno> {
    if (-4095..0).contains(&ret) { Err(Errno(-ret as i32)) } else { Ok(ret as u64) }
}

/// # Safety
/// As [`syscall`].
#[inline]
unsafe fn call(nr: u32, a: [u64; 6]) -> Result<u64, Errno> {
    // SAFETY: forwarded contract.
    check(unsafe { syscall(nr as u64, a) })
}
