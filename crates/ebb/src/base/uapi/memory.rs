//! Mappings, advice about them, and what of them is in memory.

use super::{Errno, call, check, later, own, syscall};
use linux_raw_sys::general as g;

/// Reserves `len` bytes of private anonymous memory that costs nothing until it is touched.
pub fn reserve(len: usize) -> Result<*mut u8, Errno> {
    reserve_aligned(len, 4096)
}

/// Maps `len` bytes of private anonymous memory for a short time, at an address of the kernel's choice.
pub fn map_for_now(len: usize) -> Result<*mut u8, Errno> {
    let flags = (g::MAP_PRIVATE | g::MAP_ANONYMOUS | g::MAP_NORESERVE) as u64;
    let prot = (g::PROT_READ | g::PROT_WRITE) as u64;
    // SAFETY: a fresh mapping at an address of the kernel's choice disturbs nobody.
    unsafe { call(g::__NR_mmap, [0, len as u64, prot, flags, u64::MAX, 0]) }.map(|at| at as *mut u8)
}

/// Maps private anonymous memory of zeros over what is mapped at `at`.
///
/// # Safety
/// Nobody needs what is there.
pub unsafe fn map_private_over(at: usize, len: usize, prot: u32) -> Result<(), Errno> {
    let flags = (g::MAP_PRIVATE | g::MAP_ANONYMOUS | g::MAP_FIXED) as u64;
    // SAFETY: the caller's contract.
    unsafe { call(g::__NR_mmap, [at as u64, len as u64, prot as u64, flags, u64::MAX, 0]) }.map(drop)
}

/// Reserves `len` bytes aligned to `align` (a power of two, at least a page).
pub fn reserve_aligned(len: usize, align: usize) -> Result<*mut u8, Errno> {
    let len = len.next_multiple_of(4096);
    let at = later::map(len, align, g::MAP_PRIVATE)?;
    keep_small(at as usize, len);
    Ok(at)
}

/// Reserves `len` bytes of private anonymous memory that is inaccessible until parts of it are opened.
pub fn reserve_closed(len: usize) -> Result<usize, Errno> {
    let len = len.next_multiple_of(4096);
    let at = later::reserve_nothing(len)?;
    keep_small(at, len);
    Ok(at)
}

/// Makes whole pages of a [`reserve_closed`] range accessible. They read as zeros, and cost nothing until they are written.
pub fn open_reserved(at: usize, len: usize) -> Result<(), Errno> {
    mprotect(at, len, g::PROT_READ | g::PROT_WRITE)
}

/// Keeps Ebb's own memory out of core dumps, because most of it is never used, and out of huge pages, which nobody
/// would have charged. A failure only costs memory.
fn keep_small(at: usize, len: usize) {
    let _ = madvise(at, len, g::MADV_DONTDUMP);
    let _ = madvise(at, len, g::MADV_NOHUGEPAGE);
}

/// Maps `len` bytes of `fd` shared and writable.
pub fn map_shared(fd: i32, len: usize) -> Result<*mut u8, Errno> {
    let prot = (g::PROT_READ | g::PROT_WRITE) as u64;
    // SAFETY: a fresh mapping at an address of the kernel's choice disturbs nobody.
    let at = unsafe { call(g::__NR_mmap, [0, len as u64, prot, g::MAP_SHARED as u64, fd as u64, 0]) }?;
    let _ = madvise(at as usize, len, g::MADV_DONTDUMP);
    Ok(at as *mut u8)
}

/// As [`map_shared`], but from `offset` on, over what is mapped at `at`.
///
/// # Safety
/// The range must be the caller's.
pub unsafe fn map_shared_over(at: usize, fd: i32, offset: u64, len: usize) -> Result<(), Errno> {
    let (prot, flags) = ((g::PROT_READ | g::PROT_WRITE) as u64, (g::MAP_SHARED | g::MAP_FIXED) as u64);
    // SAFETY: the caller's contract.
    unsafe { call(g::__NR_mmap, [at as u64, len as u64, prot, flags, fd as u64, offset]) }?;
    let _ = madvise(at, len, g::MADV_DONTDUMP);
    Ok(())
}

/// Replaces a range by an inaccessible mapping, so that nobody else's mapping comes there.
///
/// # Safety
/// The range must be the caller's, and not used any more.
pub unsafe fn map_nothing_over(at: usize, len: usize) -> Result<(), Errno> {
    let flags = (g::MAP_PRIVATE | g::MAP_ANONYMOUS | g::MAP_NORESERVE | g::MAP_FIXED) as u64;
    // SAFETY: the caller's contract.
    unsafe { call(g::__NR_mmap, [at as u64, len as u64, g::PROT_NONE as u64, flags, u64::MAX, 0]) }.map(drop)
}

/// Reserves `len` bytes of anonymous memory that fork shares instead of copying.
pub fn reserve_shared(len: usize) -> Result<*mut u8, Errno> {
    let at = later::map(len, 4096, g::MAP_SHARED)?;
    // Otherwise a core dump would have all of it, holes included.
    let _ = madvise(at as usize, len, g::MADV_DONTDUMP);
    Ok(at)
}

/// # Safety
/// Nobody may use the range afterwards.
pub unsafe fn munmap(at: usize, len: usize) -> Result<(), Errno> {
    // Before the call: what is mapped there afterwards may be the program's.
    own::remove(at);
    // SAFETY: the caller gives the range up.
    unsafe { call(g::__NR_munmap, [at as u64, len as u64, 0, 0, 0, 0]).map(drop) }
}

/// Gives advice about a range that the engine owns or holds busy.
pub fn madvise(at: usize, len: usize, advice: u32) -> Result<(), Errno> {
    // SAFETY: callers pass only ranges whose content they own or have saved; other advice changes no content.
    unsafe { call(g::__NR_madvise, [at as u64, len as u64, advice as u64, 0, 0, 0]).map(drop) }
}

/// Unlocks a range.
pub fn munlock(at: usize, len: usize) -> Result<(), Errno> {
    // SAFETY: changes no content.
    unsafe { call(g::__NR_munlock, [at as u64, len as u64, 0, 0, 0, 0]).map(drop) }
}

/// Locks each page of a range when it comes in.
pub fn mlock_on_fault(at: usize, len: usize) -> Result<(), Errno> {
    // SAFETY: changes no content.
    unsafe { call(g::__NR_mlock2, [at as u64, len as u64, g::MLOCK_ONFAULT as u64, 0, 0, 0]).map(drop) }
}

/// Changes the protection of a range that the caller owns, or whose users can bear the change.
pub fn mprotect(at: usize, len: usize, prot: u32) -> Result<(), Errno> {
    // SAFETY: protection changes no content.
    unsafe { call(g::__NR_mprotect, [at as u64, len as u64, prot as u64, 0, 0, 0]).map(drop) }
}

/// Drops the content of ranges `(address, length)` that the engine holds busy, of the first 256 at most, with one call
/// and one flush. Returns the number of bytes dropped, from the first range on. Works on the caller's own process since
/// Linux 6.13, with `PIDFD_SELF` since 6.14.
pub fn drop_vectored(ranges: &[(usize, usize)]) -> Result<usize, Errno> {
    let mut parts = [[0u64; 2]; 256];
    let parts = &mut parts[..ranges.len().min(256)];
    for (part, (at, len)) in parts.iter_mut().zip(ranges) {
        *part = [*at as u64, *len as u64];
    }
    let own = g::PIDFD_SELF_THREAD_GROUP as i64 as u64;
    let advice = g::MADV_DONTNEED as u64;
    // SAFETY: callers pass only ranges whose content they have saved; the kernel reads the parts.
    unsafe { call(g::__NR_process_madvise, [own, parts.as_ptr() as u64, parts.len() as u64, advice, 0, 0]) }
        .map(|bytes| bytes as usize)
}

/// Takes this process's memory out of KSM and lets none in; false when it stays in. A page that KSM merges loses its
/// write protection without notice. The setting survives fork and exec.
pub fn leave_ksm() -> bool {
    const PR_SET_MEMORY_MERGE: u64 = 67;
    const PR_GET_MEMORY_MERGE: u64 = 68;
    // SAFETY: unmerging changes no content.
    unsafe {
        syscall(g::__NR_prctl as u64, [PR_SET_MEMORY_MERGE, 0, 0, 0, 0, 0]);
        // Kernels without the setting refuse both calls, and there is nothing to leave.
        syscall(g::__NR_prctl as u64, [PR_GET_MEMORY_MERGE, 0, 0, 0, 0, 0]) <= 0
    }
}

/// True when the page at `at` is in memory; none when the kernel does not say.
pub fn is_resident(at: usize) -> Option<bool> {
    let mut byte = 0u8;
    // SAFETY: the kernel writes one byte for one page.
    let result = unsafe { syscall(g::__NR_mincore as u64, [at as u64, 4096, &raw mut byte as u64, 0, 0, 0]) };
    (result == 0).then_some(byte & 1 != 0)
}

/// True when all of the `n` pages from `at` on, at most 512, are in memory for sure.
pub fn are_resident(at: usize, n: usize) -> bool {
    let mut bytes = [0u8; 512];
    assert!(n <= bytes.len());
    // SAFETY: the kernel writes one byte for each page.
    let result =
        unsafe { syscall(g::__NR_mincore as u64, [at as u64, n as u64 * 4096, bytes.as_mut_ptr() as u64, 0, 0, 0]) };
    result == 0 && bytes[..n].iter().all(|byte| byte & 1 != 0)
}

/// True when the page at `at` is in memory for sure.
pub fn is_mapped(at: usize) -> bool {
    is_resident(at) == Some(true)
}

/// True when nothing is mapped at `at`.
pub fn is_hole(at: usize) -> bool {
    let mut byte = 0u8;
    // SAFETY: as above.
    check(unsafe { syscall(g::__NR_mincore as u64, [at as u64, 4096, &raw mut byte as u64, 0, 0, 0]) })
        == Err(Errno::NOMEM)
}

/// False when all of a range is mapped for sure.
pub fn may_have_hole(start: usize, len: usize) -> bool {
    // This msync has nothing to write back; it only looks at the mappings.
    // SAFETY: changes nothing.
    let result = unsafe { syscall(g::__NR_msync as u64, [start as u64, len as u64, g::MS_ASYNC as u64, 0, 0, 0]) };
    check(result).is_err()
}

/// Makes an address-space call of the program's, unchanged.
///
/// # Safety
/// The caller must hold the gate exclusively and bring the engine's state in line with the result.
pub unsafe fn forward(nr: u32, a: [u64; 6]) -> Result<u64, Errno> {
    // SAFETY: forwarded contract.
    unsafe { call(nr, a) }
}
