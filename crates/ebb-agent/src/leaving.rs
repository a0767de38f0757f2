//! Before exec in a process that is dormant: will the new program be one that Ebb cannot manage?
//!
//! Such a program holds memory that somebody must count. So the process takes a place in the tree before it becomes one:
//! `ebb run` looks at what is there from outside, and names it. A program that can be managed takes a place by itself, when
//! it has grown.
//!
//! What is told from the file: a program that is linked statically, is made for another machine, or has the set-user-ID or
//! set-group-ID bit. `ebb` finds further reasons, and whom this missed.

use crate::entry;
use crate::exec;
use crate::start;
use core::sync::atomic::{AtomicPtr, Ordering::Relaxed};
use ebb::stats::Shared;
use ebb::uapi;
use linux_raw_sys::general as g;

/// The counters, mapped for this; they stay for the next exec, because a vfork child cannot give them back.
static COUNTERS: AtomicPtr<Shared> = AtomicPtr::new(core::ptr::null_mut());

/// Bytes of a file that are looked at: its header and more program headers than programs have.
const HEAD_BYTES: usize = 1024;
const ELF_HEADER_BYTES: usize = 64;
const PROGRAM_HEADER_BYTES: usize = 56;

/// The process is about to exec the file that `path` (in the program's memory) names, from the directory `dir`.
pub fn before_exec(dir: i32, path: u64) {
    if is_unmanaged(dir, path) {
        take_place();
    }
}

fn is_unmanaged(dir: i32, path: u64) -> bool {
    const S_ISUID_OR_S_ISGID: u32 = 0o6000;
    const S_IFMT: u32 = 0o170_000;
    const S_IFREG: u32 = 0o100_000;
    const ST_MODE_AT: usize = 3;
    let flags = (g::O_RDONLY | g::O_NONBLOCK | g::O_CLOEXEC) as u64;
    // SAFETY: the kernel reads the path, and refuses one that cannot be read.
    let fd = unsafe { entry::raw_syscall(g::__NR_openat as u64, &[dir as u64, path, flags, 0, 0, 0]) };
    let Ok(fd) = i32::try_from(fd) else { return false };
    if fd < 0 {
        return false;
    }
    let (mut stat, mut head) = ([0u64; 18], [0u8; HEAD_BYTES]);
    // SAFETY: the kernel writes one `struct stat`, 144 bytes, and at most the given length.
    let (found, len) = unsafe {
        let found = entry::raw_syscall(g::__NR_fstat as u64, &[fd as u64, stat.as_mut_ptr() as u64, 0, 0, 0, 0]);
        let to = [fd as u64, head.as_mut_ptr() as u64, HEAD_BYTES as u64, 0, 0, 0];
        (found, entry::raw_syscall(g::__NR_pread64 as u64, &to))
    };
    uapi::close(fd);
    let mode = stat[ST_MODE_AT] as u32;
    if found != 0 || len <= 0 || mode & S_IFMT != S_IFREG {
        return false;
    }
    mode & S_ISUID_OR_S_ISGID != 0 || needs_no_loader(&head[..len as usize])
}

/// Whether the file is a program that begins without a dynamic loader, or with another machine's.
fn needs_no_loader(head: &[u8]) -> bool {
    const CLASS_AT: usize = 4;
    const CLASS_64: u8 = 2;
    const MACHINE_AT: usize = 18;
    const MACHINE_X86_64: u16 = 62;
    const HEADERS_AT: usize = 32;
    const NR_HEADERS_AT: usize = 56;
    const PT_INTERP: u32 = 3;
    if !head.starts_with(b"\x7fELF") || head.len() < ELF_HEADER_BYTES {
        return false;
    }
    let half = |at: usize| u16::from_le_bytes([head[at], head[at + 1]]);
    if head[CLASS_AT] != CLASS_64 || half(MACHINE_AT) != MACHINE_X86_64 {
        return true;
    }
    // Elsewhere in the file: nothing is known.
    if head[HEADERS_AT..HEADERS_AT + 8] != (ELF_HEADER_BYTES as u64).to_le_bytes() {
        return false;
    }
    let headers = head[ELF_HEADER_BYTES..].chunks_exact(PROGRAM_HEADER_BYTES);
    let nr_headers = half(NR_HEADERS_AT) as usize;
    nr_headers <= headers.len() && headers.take(nr_headers).all(|header| header[..4] != PT_INTERP.to_le_bytes())
}

/// Takes a place for this process. Where there is none, `ebb` counts it among those that have none.
fn take_place() {
    let Some(fd) = exec::kept_stats_fd() else { return };
    let mut counters = COUNTERS.load(Relaxed);
    if counters.is_null() {
        let Some(mapped) = start::map_stats(fd) else { return };
        counters = core::ptr::from_ref(mapped).cast_mut();
        COUNTERS.store(counters, Relaxed);
    }
    // SAFETY: mapped by `map_stats`, and never unmapped; all fields are atomics.
    let counters = unsafe { &*counters };
    ebb::tree::leave_outside(&counters.tree, fd);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program(class: u8, machine: u16, kinds: &[u32]) -> Vec<u8> {
        let mut head = vec![0; ELF_HEADER_BYTES];
        head[..4].copy_from_slice(b"\x7fELF");
        head[4] = class;
        head[18..20].copy_from_slice(&machine.to_le_bytes());
        head[32..40].copy_from_slice(&(ELF_HEADER_BYTES as u64).to_le_bytes());
        head[56..58].copy_from_slice(&(kinds.len() as u16).to_le_bytes());
        for kind in kinds {
            head.extend(kind.to_le_bytes());
            head.extend([0; PROGRAM_HEADER_BYTES - 4]);
        }
        head
    }

    #[test]
    fn programs_with_a_loader_are_told_from_those_without() {
        assert!(!needs_no_loader(&program(2, 62, &[6, 3, 1])));
        assert!(needs_no_loader(&program(2, 62, &[1, 1, 4])));
        assert!(needs_no_loader(&program(1, 3, &[3])));
        assert!(!needs_no_loader(b"#!/bin/sh\n"));
        assert!(!needs_no_loader(b""));
    }

    #[test]
    fn a_file_of_which_not_all_headers_are_seen_is_left_alone() {
        let mut head = program(2, 62, &[1; 17]);
        head[56] = 200;
        assert!(!needs_no_loader(&head));
    }

    #[test]
    fn this_test_has_a_loader_and_a_directory_is_no_program() {
        let at = g::AT_FDCWD;
        assert!(!is_unmanaged(at, c"/proc/self/exe".as_ptr() as u64));
        assert!(!is_unmanaged(at, c"/proc".as_ptr() as u64));
        assert!(!is_unmanaged(at, 8));
    }
}
