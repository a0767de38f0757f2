//! Files: Ebb's own, and those of the kernel that Ebb reads.

use super::{Errno, call, fd, madvise, munmap, take_pending_signal, thread};
use linux_raw_sys::general as g;

/// Writes to a descriptor. For messages only: failures are ignored, because no caller could do anything about them.
pub fn write_all(fd: i32, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        // SAFETY: the kernel only reads `bytes`.
        match unsafe { call(g::__NR_write, [fd as u64, bytes.as_ptr() as u64, bytes.len() as u64, 0, 0, 0]) } {
            Ok(0) => return,
            Ok(n) => bytes = &bytes[n as usize..],
            Err(Errno::INTR) => {}
            Err(_) => return,
        }
    }
}

/// Opens a nameless file in directory `dir` (NUL-terminated), mode 0600.
pub fn open_tmpfile(dir: &core::ffi::CStr) -> Result<i32, Errno> {
    let flags = g::O_TMPFILE | g::O_RDWR | g::O_CLOEXEC | g::O_EXCL;
    // SAFETY: the path is NUL-terminated and only read.
    unsafe {
        call(g::__NR_openat, [g::AT_FDCWD as i64 as u64, dir.as_ptr() as u64, flags as u64, 0o600, 0, 0])
            .map(|fd| fd as i32)
    }
}

/// Creates the file `path` (NUL-terminated), mode 0600, and removes its name at once. Also says which file had the
/// name, which nobody else knew.
pub fn open_unlinked(path: &core::ffi::CStr) -> Result<(i32, fd::Identity), Errno> {
    let flags = g::O_CREAT | g::O_EXCL | g::O_RDWR | g::O_CLOEXEC | g::O_NOFOLLOW;
    // SAFETY: the path is NUL-terminated and only read.
    let remove = || unsafe { call(g::__NR_unlink, [path.as_ptr() as u64, 0, 0, 0, 0, 0]) };
    // SAFETY: as above.
    let opened =
        unsafe { call(g::__NR_openat, [g::AT_FDCWD as i64 as u64, path.as_ptr() as u64, flags as u64, 0o600, 0, 0]) };
    let fd = match opened {
        Ok(fd) => fd as i32,
        Err(errno) => {
            // A process that may make files but not write to them (landlock) has made one.
            if errno != Errno::EXIST {
                let _ = remove();
            }
            return Err(errno);
        }
    };
    let identity = fd::identity_of_path(path);
    match remove().and(identity) {
        Ok(identity) => Ok((fd, identity)),
        Err(errno) => {
            close(fd);
            Err(errno)
        }
    }
}

/// Closes a descriptor of Ebb's own.
pub fn close(fd: i32) {
    // SAFETY: the caller owns the descriptor.
    let _ = unsafe { call(g::__NR_close, [fd as u64, 0, 0, 0, 0, 0]) };
}

/// Opens a file for reading, close-on-exec.
pub fn open_read(path: &core::ffi::CStr) -> Result<i32, Errno> {
    let at = g::AT_FDCWD as i64 as u64;
    // SAFETY: the path is a C string that the kernel reads.
    unsafe { call(g::__NR_openat, [at, path.as_ptr() as u64, (g::O_RDONLY | g::O_CLOEXEC) as u64, 0, 0, 0]) }
        .map(|fd| fd as i32)
}

/// Opens a file for reading and writing, close-on-exec.
pub fn open_read_write(path: &core::ffi::CStr) -> Result<i32, Errno> {
    let at = g::AT_FDCWD as i64 as u64;
    // SAFETY: the path is a C string that the kernel reads.
    unsafe { call(g::__NR_openat, [at, path.as_ptr() as u64, (g::O_RDWR | g::O_CLOEXEC) as u64, 0, 0, 0]) }
        .map(|fd| fd as i32)
}

/// Creates or empties a file and opens it, close-on-exec.
#[cfg(feature = "events")]
pub fn create(path: &core::ffi::CStr) -> Result<i32, Errno> {
    let flags = u64::from(g::O_CREAT | g::O_TRUNC | g::O_RDWR | g::O_CLOEXEC);
    // SAFETY: the path is a C string that the kernel reads.
    unsafe { call(g::__NR_openat, [g::AT_FDCWD as i64 as u64, path.as_ptr() as u64, flags, 0o600, 0, 0]) }
        .map(|fd| fd as i32)
}

/// Makes a nameless file in memory, close-on-exec.
pub fn memory_file(name: &core::ffi::CStr) -> Result<i32, Errno> {
    // SAFETY: the name is a C string that the kernel reads.
    let make = |flags: u32| unsafe { call(g::__NR_memfd_create, [name.as_ptr() as u64, u64::from(flags), 0, 0, 0, 0]) };
    // Some systems refuse memory files that could be executed. Before Linux 6.3 there is no such flag.
    make(g::MFD_CLOEXEC | g::MFD_NOEXEC_SEAL).or_else(|_| make(g::MFD_CLOEXEC)).map(|fd| fd as i32)
}

/// Attempts at a call whose buffer is evicted each time.
const EVICTED_TRIES_MAX: usize = 64;

/// Calls `f`, in which a system call reads or writes `memory`. Repeats `f` if that call answers EFAULT.
///
/// `memory` is the caller's own and may lie on the program's stack. That stack can be managed memory, so a page of it can be
/// evicted between its last use and the call. A touch brings the page back. Callers inside the engine do not need this:
/// they run on stacks that are never managed.
pub fn with_own_memory<R>(memory: &mut [u8], mut f: impl FnMut(&mut [u8]) -> Result<R, Errno>) -> Result<R, Errno> {
    for _ in 1..EVICTED_TRIES_MAX {
        match f(memory) {
            Err(Errno::FAULT) => touch(memory),
            result => return result,
        }
    }
    f(memory)
}

/// Writes back one byte of each page of `memory`. A read would not be enough: it can bring the page back write-protected.
fn touch(memory: &mut [u8]) {
    let len = memory.len();
    for at in (0..len).step_by(crate::base::PAGE).chain(len.checked_sub(1)) {
        let byte = &raw mut memory[at];
        // SAFETY: a byte of the slice.
        unsafe { byte.write_volatile(byte.read_volatile()) };
    }
}

/// Reads at most `out.len()` bytes at the file's position. Returns the number of bytes; 0 at the end of the file.
pub fn read(fd: i32, out: &mut [u8]) -> Result<usize, Errno> {
    loop {
        // SAFETY: the kernel writes only into `out`.
        match unsafe { call(g::__NR_read, [fd as u64, out.as_mut_ptr() as u64, out.len() as u64, 0, 0, 0]) } {
            Err(Errno::INTR) => {}
            result => return result.map(|n| n as usize),
        }
    }
}

/// Reads at `offset` with one call; returns how many bytes came, 0 at the end of the file.
pub fn pread(fd: i32, out: &mut [u8], offset: u64) -> Result<usize, Errno> {
    // SAFETY: the kernel writes only into `out`.
    unsafe { call(g::__NR_pread64, [fd as u64, out.as_mut_ptr() as u64, out.len() as u64, offset, 0, 0]) }
        .map(|n| n as usize)
}

/// Writes at `offset` with one call; returns how many bytes were written.
pub fn pwrite(fd: i32, data: &[u8], offset: u64) -> Result<usize, Errno> {
    // SAFETY: the kernel only reads `data`.
    unsafe { call(g::__NR_pwrite64, [fd as u64, data.as_ptr() as u64, data.len() as u64, offset, 0, 0]) }
        .map(|n| n as usize)
}

/// Reads exactly `out.len()` bytes at `offset`.
pub fn pread_exact(fd: i32, out: &mut [u8], offset: u64) -> Result<(), Errno> {
    let mut done = 0;
    while done < out.len() {
        match pread(fd, &mut out[done..], offset + done as u64) {
            Ok(0) => return Err(Errno::IO),
            Ok(n) => done += n,
            Err(Errno::INTR) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// Writes all of `data` at `offset`.
pub fn pwrite_all(fd: i32, data: &[u8], offset: u64) -> Result<(), Errno> {
    let mut done = 0;
    while done < data.len() {
        match pwrite(fd, &data[done..], offset + done as u64) {
            Ok(0) => return Err(Errno::IO),
            Ok(n) => done += n,
            Err(Errno::INTR) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// Makes the file `len` bytes long; what this adds is a hole.
pub fn truncate(fd: i32, len: u64) -> Result<(), Errno> {
    // SAFETY: only the engine's own file is touched.
    unsafe { call(g::__NR_ftruncate, [fd as u64, len, 0, 0, 0, 0]).map(drop) }
}

/// Allocates memory or blocks for a range of the file. The file may become longer for it, never shorter.
pub fn allocate(fd: i32, offset: u64, len: u64) -> Result<(), Errno> {
    // SAFETY: only the engine's own file is touched.
    unsignalled(|| unsafe { call(g::__NR_fallocate, [fd as u64, 0, offset, len, 0, 0]).map(drop) })
}

/// Makes a call, and takes back the SIGXFSZ that the kernel sends beside the error when a file would pass RLIMIT_FSIZE. The file
/// is not the program's, and neither is the signal.
pub fn unsignalled<T>(call: impl FnOnce() -> Result<T, Errno>) -> Result<T, Errno> {
    let mask = thread::block_signals();
    let result = call();
    if matches!(result, Err(Errno::FBIG)) {
        take_pending_signal(g::SIGXFSZ);
    }
    thread::restore_signals(mask);
    result
}

/// Gives the space of a range of the file back to the file system. The range then reads as zeros.
pub fn punch_hole(fd: i32, offset: u64, len: u64) -> Result<(), Errno> {
    let mode = (g::FALLOC_FL_PUNCH_HOLE | g::FALLOC_FL_KEEP_SIZE) as u64;
    // SAFETY: only the engine's own file is touched.
    unsafe { call(g::__NR_fallocate, [fd as u64, mode, offset, len, 0, 0]).map(drop) }
}

/// Writes `data` at `offset` inside the file's length through a mapping, to which RLIMIT_FSIZE does not apply.
pub fn write_mapped(fd: i32, data: &[u8], offset: u64) -> Result<(), Errno> {
    // Blocks first: a store into a hole of a full file system would raise SIGBUS.
    allocate(fd, offset, data.len() as u64)?;
    let prot = (g::PROT_READ | g::PROT_WRITE) as u64;
    // SAFETY: a fresh mapping of the engine's own file, gone before anybody else could know of it.
    unsafe {
        let at = call(g::__NR_mmap, [0, data.len() as u64, prot, g::MAP_SHARED as u64, fd as u64, offset])? as *mut u8;
        // Otherwise neighbouring pages would come into the page cache, too.
        let _ = madvise(at as usize, data.len(), g::MADV_RANDOM);
        core::ptr::copy_nonoverlapping(data.as_ptr(), at, data.len());
        munmap(at as usize, data.len())
    }
}
