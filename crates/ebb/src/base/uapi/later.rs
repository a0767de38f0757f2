//! Address space set aside at the start for what Ebb maps later: page tables of further gigabytes, blocks of further
//! threads, the spill file of a fork's child.
//!
//! The kernel would put a late mapping into any hole that is large enough. The program may know such a hole to be
//! empty: it has just unmapped something there, or fork's child did not get the range (MADV_DONTFORK). There an access
//! must stay a fault, and a MAP_FIXED_NOREPLACE must succeed.
//!
//! Invariant: `[next, end)` is mapped inaccessible and belongs to nobody; there is never a hole before it.

use super::{Errno, call};
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use linux_raw_sys::general as g;

// Relaxed: a range belongs to its taker alone, and mapping it orders everything else.
static BEGIN: AtomicUsize = AtomicUsize::new(0);
static NEXT: AtomicUsize = AtomicUsize::new(0);
static END: AtomicUsize = AtomicUsize::new(0);

/// Sets `len` bytes aside, once per process. Sets nothing aside under a limit on address space: the program needs it more.
pub fn set_aside(len: usize) {
    if NEXT.load(Relaxed) != 0 || super::address_space_limit() != u64::MAX {
        return;
    }
    if let Ok(at) = map_nothing(len) {
        BEGIN.store(at, Relaxed);
        END.store(at + len, Relaxed);
        NEXT.store(at, Relaxed);
    }
}

/// Takes an aligned range out of what was set aside; none when it does not fit any more.
fn take(len: usize, align: usize) -> Option<usize> {
    let len = len.next_multiple_of(4096);
    let end = END.load(Relaxed);
    let fits = |next: usize| {
        let at = next.next_multiple_of(align);
        (next != 0 && at + len <= end).then_some(at + len)
    };
    NEXT.fetch_update(Relaxed, Relaxed, fits).ok().map(|next| next.next_multiple_of(align))
}

/// Gives back the range that was taken last, and could not be mapped (as under a limit that came later) or is no longer
/// mapped. Does nothing if somebody has taken more since. Without this, a caller that tries again and again would use
/// up all that was set aside.
fn put_back(at: usize, len: usize) {
    let _ = NEXT.compare_exchange(at + len.next_multiple_of(4096), at, Relaxed, Relaxed);
}

/// Maps `len` bytes of anonymous memory, readable and writable, in what was set aside, or at an address of the kernel's
/// choice when that is used up. `align` is a power of two, at least a page.
pub(super) fn map(len: usize, align: usize, flags: u32) -> Result<*mut u8, Errno> {
    let flags = flags | g::MAP_ANONYMOUS | g::MAP_NORESERVE;
    let prot = (g::PROT_READ | g::PROT_WRITE) as u64;
    if let Some(at) = take(len, align) {
        let fixed = (flags | g::MAP_FIXED) as u64;
        // SAFETY: replaces a range that was set aside for this and is the caller's alone from here on.
        return unsafe { call(g::__NR_mmap, [at as u64, len as u64, prot, fixed, u64::MAX, 0]) }
            .map(|at| at as *mut u8)
            .inspect_err(|_| put_back(at, len));
    }
    let slack = if align > 4096 { align } else { 0 };
    // SAFETY: a fresh mapping at an address of the kernel's choice disturbs nobody.
    let raw = unsafe { call(g::__NR_mmap, [0, (len + slack) as u64, prot, flags as u64, u64::MAX, 0])? } as usize;
    let at = raw.next_multiple_of(align);
    // SAFETY: both ends lie in the mapping just made, which nobody else knows.
    unsafe {
        if at > raw {
            super::munmap(raw, at - raw)?;
        }
        if raw + slack > at {
            super::munmap(at + len, raw + slack - at)?;
        }
    }
    super::own::add(at, len);
    Ok(at as *mut u8)
}

/// Maps `len` bytes of `fd` from `offset` on, shared, readable and writable, at such an address.
pub fn map_file(len: usize, fd: i32, offset: u64) -> Result<*mut u8, Errno> {
    let at = reserve_nothing(len)?;
    // SAFETY: the range is the caller's alone.
    match unsafe { super::map_shared_over(at, fd, offset, len) } {
        Ok(()) => Ok(at as *mut u8),
        Err(error) => {
            // SAFETY: nobody has it.
            let _ = unsafe { unmap(at, len) };
            Err(error)
        }
    }
}

/// Takes back a whole range that [`map_file`] or `map` gave. If the range was set aside, it becomes inaccessible, and
/// is used again if it was taken last. A hole would not do: the kernel could put memory of the program there, which
/// would count as Ebb's.
///
/// # Safety
/// Nobody may use the range afterwards.
pub unsafe fn unmap(at: usize, len: usize) -> Result<(), Errno> {
    if (BEGIN.load(Relaxed)..END.load(Relaxed)).contains(&at) {
        // SAFETY: the caller's contract.
        unsafe { super::map_nothing_over(at, len) }?;
        put_back(at, len);
        Ok(())
    } else {
        // SAFETY: the caller's contract.
        unsafe { super::munmap(at, len) }
    }
}

/// Takes an inaccessible range of `len` bytes that is the caller's for good.
pub fn reserve_nothing(len: usize) -> Result<usize, Errno> {
    take(len, 4096).map_or_else(|| map_nothing(len), Ok)
}

/// Maps an inaccessible range at an address of the kernel's choice.
fn map_nothing(len: usize) -> Result<usize, Errno> {
    let flags = (g::MAP_PRIVATE | g::MAP_ANONYMOUS | g::MAP_NORESERVE) as u64;
    // SAFETY: a fresh mapping at an address of the kernel's choice disturbs nobody.
    let at = unsafe { call(g::__NR_mmap, [0, len as u64, g::PROT_NONE as u64, flags, u64::MAX, 0]) }? as usize;
    super::own::add(at, len);
    Ok(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_come_aligned_and_apart_until_nothing_is_left() {
        set_aside(1 << 20);
        let first = take(4096, 4096).expect("there is room");
        let second = take(5000, 1 << 16).expect("there is room");
        assert!(second >= first + 4096);
        assert!(second.is_multiple_of(1 << 16));
        let third = take(1, 4096).expect("there is room");
        assert!(third >= second + 8192);
        assert_eq!(take(1 << 40, 4096), None);
        let fourth = take(5000, 4096).expect("there is room");
        put_back(third, 4096);
        assert_eq!(take(4096, 4096), Some(fourth + 8192));
        put_back(fourth + 8192, 4096);
        assert_eq!(take(4096, 4096), Some(fourth + 8192));
        // A range that is given back leaves no hole for the program's memory.
        let mapped = map(8192, 4096, g::MAP_PRIVATE).expect("there is room");
        // SAFETY: mapped above, writable.
        unsafe { mapped.write(1) };
        // SAFETY: nobody uses it.
        unsafe { unmap(mapped as usize, 8192) }.expect("unmapped");
        assert!(!crate::base::uapi::is_hole(mapped as usize) && !crate::base::uapi::is_mapped(mapped as usize));
    }
}
