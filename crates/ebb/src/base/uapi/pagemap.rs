//! What the kernel says in `/proc/self/pagemap` of this process's pages.

use super::{Errno, call, open_read, pread_exact};
use crate::base::PAGE;
use linux_raw_sys::general as g;

/// `PAGEMAP_SCAN`, since Linux 6.7.
const SCAN: u32 = 3 << 30 | (size_of::<ScanArguments>() as u32) << 16 | (b'f' as u32) << 8 | 16;
/// Categories of pages, for `PAGEMAP_SCAN`.
const FILE: u64 = 1 << 2;
const PRESENT: u64 = 1 << 3;
const SWAPPED: u64 = 1 << 4;
const ZERO: u64 = 1 << 5;
/// Most runs that one call reports.
const RUNS: usize = 32;
/// Most words that one call reads.
const WORDS: usize = 256;
/// In a page's word: no other process maps the page. And the byte that has this bit, counted from the lowest.
const EXCLUSIVE: u8 = 1;
const EXCLUSIVE_BYTE: usize = 7;

/// `struct pm_scan_arg`.
#[repr(C)]
#[derive(Default)]
struct ScanArguments {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    vec: u64,
    vec_len: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

/// `struct page_region`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Run {
    start: u64,
    end: u64,
    categories: u64,
}

/// Opens the map of this process, at the lowest free descriptor number.
pub fn open() -> Result<i32, Errno> {
    open_read(c"/proc/self/pagemap")
}

/// Calls `f` with start and end of each run of pages in `[start, end)` that have anonymous memory, in order of address.
/// A page that the kernel is moving, or has swapped out, counts too. `NOTTY` before Linux 6.7.
pub fn for_each_held(fd: i32, start: usize, end: usize, mut f: impl FnMut(usize, usize)) -> Result<(), Errno> {
    let mut runs = [Run::default(); RUNS];
    let mut at = start as u64;
    while at < end as u64 {
        let mut arguments = ScanArguments {
            size: size_of::<ScanArguments>() as u64,
            start: at,
            end: end as u64,
            vec: runs.as_mut_ptr() as u64,
            vec_len: RUNS as u64,
            category_inverted: FILE | ZERO,
            category_mask: FILE | ZERO,
            category_anyof_mask: PRESENT | SWAPPED,
            return_mask: PRESENT | SWAPPED,
            ..ScanArguments::default()
        };
        let call_arguments = [fd as u64, u64::from(SCAN), &raw mut arguments as u64, 0, 0, 0];
        // SAFETY: the kernel reads and writes the structure, and writes at most as many runs as there is room for.
        let found = unsafe { call(g::__NR_ioctl, call_arguments) }?;
        runs.iter().take(found as usize).for_each(|run| f(run.start as usize, run.end as usize));
        if arguments.walk_end <= at {
            break;
        }
        at = arguments.walk_end;
    }
    Ok(())
}

/// Calls `f` with the address of each page in `[start, end)` that no other process maps.
pub fn for_each_exclusive(fd: i32, start: usize, end: usize, mut f: impl FnMut(usize)) -> Result<(), Errno> {
    let mut words = [0u8; WORDS * 8];
    let mut at = start;
    while at < end {
        let n = ((end - at) / PAGE).min(WORDS);
        pread_exact(fd, &mut words[..n * 8], (at / PAGE * 8) as u64)?;
        for (i, word) in words[..n * 8].chunks_exact(8).enumerate() {
            if word[EXCLUSIVE_BYTE] & EXCLUSIVE != 0 {
                f(at + i * PAGE);
            }
        }
        at += n * PAGE;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::uapi;

    #[test]
    fn pages_with_memory_are_found_and_those_shared_with_a_child_told_apart() {
        const PAGES: usize = 64;
        let at = uapi::reserve(PAGES * PAGE).expect("memory") as usize;
        // SAFETY: the memory reserved above.
        let touch = |page: usize| unsafe { ((at + page * PAGE) as *mut u8).write_volatile(1) };
        let written = [0, 1, 2, 7, 63];
        written.iter().for_each(|page| touch(*page));
        // A page that was only read has no memory of its own.
        // SAFETY: as above.
        unsafe { ((at + 9 * PAGE) as *const u8).read_volatile() };
        let fd = open().expect("/proc");
        let mut found = Vec::new();
        let runs = for_each_held(fd, at, at + PAGES * PAGE, |start, end| {
            found.extend(((start - at) / PAGE)..((end - at) / PAGE));
        });
        // Kernels before 6.7 cannot say.
        assert!(runs == Err(Errno::NOTTY) || found == written, "{runs:?} {found:?}");
        let exclusive = || {
            let mut found = Vec::new();
            for_each_exclusive(fd, at, at + PAGES * PAGE, |addr| found.push((addr - at) / PAGE)).expect("/proc");
            found
        };
        assert_eq!(exclusive(), written);
        // SAFETY: the child waits to be killed, and touches nothing.
        let child = unsafe { libc::fork() };
        if child == 0 {
            loop {
                // SAFETY: waits.
                unsafe { libc::pause() };
            }
        }
        touch(2);
        assert_eq!(exclusive(), [2]);
        // SAFETY: this test's own child.
        unsafe {
            libc::kill(child, libc::SIGKILL);
            libc::waitpid(child, std::ptr::null_mut(), 0);
        }
        assert_eq!(exclusive(), written);
        uapi::close(fd);
    }
}
